//! Looks at what the program and its descendants use. Nobody looks when there is no limit.

use std::io;
use std::thread;
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::Instant;

use crate::processes::{self, Process};
use crate::protocol::{Cause, Order};

/// How long a program can overshoot on a quiet machine.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// A look at processor time comes at least this often, whatever the number of processors says.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A look costs a read per process on the machine. On a crowded one it comes more seldom, so that looking takes at most a
/// twentieth of a processor.
const COST_SHARE: u32 = 20;

#[derive(Debug)]
pub(super) struct Look {
    keeper: Pid,
    order: Order,
    processors: u32,
    next_at: Option<Instant>,
    peak_memory_bytes: Option<u64>,
}

impl Look {
    pub(super) fn new(keeper: Pid, order: Order) -> Self {
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let mut look = Self { keeper, order, processors, next_at: None, peak_memory_bytes: None };
        look.plan(Duration::ZERO, Duration::ZERO);
        look
    }

    /// When to look next, if ever.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next_at
    }

    pub(super) fn peak_memory_bytes(&self) -> Option<u64> {
        self.peak_memory_bytes
    }

    /// Looks once, and says which limit is exceeded.
    pub(super) fn look(&mut self) -> io::Result<Option<Cause>> {
        let began = Instant::now();
        let family = processes::descendants_of(self.keeper)?;
        if let Some(limit) = self.order.memory_bytes {
            let used = memory(&family, limit);
            self.peak_memory_bytes = self.peak_memory_bytes.max(Some(used));
            if used > limit {
                return Ok(Some(Cause::Memory { used }));
            }
        }
        let mut cpu = Duration::ZERO;
        if let Some(limit) = self.order.cpu {
            // Who ended is in the figure of who waited for it, up to the keeper.
            cpu = processes::myself()?.children_cpu() + family.iter().map(Process::cpu).sum::<Duration>();
            if cpu > limit {
                return Ok(Some(Cause::Cpu));
            }
        }
        self.plan(began.elapsed(), cpu);
        Ok(None)
    }

    fn plan(&mut self, cost: Duration, cpu_used: Duration) {
        // Processor time grows no faster than the clock times the number of processors; memory can at any time.
        let pause = match (self.order.memory_bytes, self.order.cpu) {
            (None, None) => return,
            (Some(_), _) => PAUSE_MIN,
            (None, Some(limit)) => (limit.saturating_sub(cpu_used) / self.processors).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        self.next_at = Some(Instant::now() + pause.max(cost * COST_SHARE));
    }
}

/// Resident memory is cheap to read and counts shared pages more than once: forked children share nearly everything. So
/// it is believed when it is below the limit, and above it the exact figure decides.
fn memory(family: &[Process], limit: u64) -> u64 {
    let resident = family.iter().map(Process::resident_bytes).sum();
    if resident <= limit || family.len() == 1 {
        return resident;
    }
    family.iter().map(Process::proportional_bytes).sum()
}
