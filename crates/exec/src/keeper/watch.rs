//! The keeper's loop: waits for the end of the program, a word of the worker, or a limit; then sees to it that nothing is
//! left.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use tokio::signal::unix;
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use super::control::{Control, Wish};
use super::limits::Look;
use crate::oom;
use crate::processes::{self, Process};
use crate::protocol::{Cause, KILLING, Order, Report, Status, Word};

/// Between two rounds of killing. One round is nearly always enough: more are for what forks faster than it is found.
const ROUND: Duration = Duration::from_millis(10);

pub(super) struct Watch {
    order: Order,
    program: Pid,
    keeper: Process,
    control: Control,
    child_ended: unix::Signal,
    oom_kills: Option<u64>,
    look: Look,
    /// Of the program. Its descendants may live on.
    status: Option<WaitStatus>,
    stopped: bool,
    cause: Cause,
    kill_at: Option<Instant>,
    left_running: u32,
}

/// What the loop does next.
enum Next {
    Continue,
    KillAll,
}

impl Watch {
    pub(super) fn new(
        order: Order,
        program: Pid,
        control: Control,
        child_ended: unix::Signal,
        oom_kills: Option<u64>,
        keeper: Process,
    ) -> Self {
        Self {
            order,
            program,
            control,
            child_ended,
            oom_kills,
            look: Look::new(keeper.pid, order),
            keeper,
            status: None,
            stopped: false,
            cause: Cause::Nothing,
            kill_at: None,
            left_running: 0,
        }
    }

    pub(super) async fn until_over(mut self) {
        let mut lingering = false;
        while self.reap() {
            if self.status.is_some() && !lingering {
                lingering = true;
                self.control.say(&Word::Lingering).await;
            }
            if matches!(self.wait().await, Next::KillAll) {
                self.kill_all().await;
                break;
            }
        }
        let report = self.report();
        self.control.say(&Word::Over(report)).await;
    }

    async fn wait(&mut self) -> Next {
        let look_at = self.look.next_at();
        let kill_at = self.kill_at;
        tokio::select! {
            _ = self.child_ended.recv() => Next::Continue,
            wish = self.control.next() => match wish {
                Wish::Terminate => self.terminate(),
                Wish::Kill => Next::KillAll,
            },
            () = at(look_at) => self.look(),
            () = at(kill_at) => Next::KillAll,
        }
    }

    fn terminate(&mut self) -> Next {
        // The program may have ended by itself in this very moment: then its own word counts.
        if !self.reap() || self.status.is_some() {
            return Next::Continue;
        }
        self.stopped = true;
        self.kill_at = Some(Instant::now() + self.order.kill_grace);
        // A program that is stopped (SIGSTOP) hears of SIGTERM when it is continued. Errors are left to SIGKILL.
        for signal in [Signal::TERM, Signal::CONT] {
            kill_process_group(self.program, signal).ok();
        }
        Next::Continue
    }

    fn look(&mut self) -> Next {
        match self.look.look() {
            Ok(None) => Next::Continue,
            Ok(Some(cause)) => {
                // After a stop was asked for, that is why the program ends. Limits are still kept.
                if !self.stopped && self.status.is_none() {
                    self.cause = cause;
                }
                Next::KillAll
            }
            Err(error) => {
                eprintln!("keeper of a program: its limits cannot be watched: {error}");
                Next::KillAll
            }
        }
    }

    /// Takes note of everybody who has ended. False when nobody is left: orphans become children of the keeper, so
    /// without children there are no descendants.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.program => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                // ECHILD: there is no other error left.
                Err(_) => return false,
            }
        }
    }

    async fn kill_all(&mut self) {
        let give_up_at = Instant::now() + KILLING;
        // In one step and without looking: looking takes long while something forks without end. Until the program has
        // been waited for, nobody else's group can have its number.
        if self.status.is_none() {
            kill_process_group(self.program, Signal::KILL).ok();
        }
        loop {
            let left = processes::descendants_of(self.keeper.pid).unwrap_or_else(|error| {
                eprintln!("keeper of a program: its descendants cannot be found: {error}");
                // The group can be killed without looking.
                kill_process_group(self.program, Signal::KILL).ok();
                Vec::new()
            });
            processes::kill_all(&left, self.keeper.group);
            let round_ends = Instant::now() + ROUND;
            loop {
                if !self.reap() {
                    return;
                }
                if timeout_at(round_ends, self.child_ended.recv()).await.is_err() {
                    break;
                }
            }
            if Instant::now() > give_up_at {
                self.left_running = left.len().max(1) as u32;
                return;
            }
        }
    }

    fn report(&self) -> Report {
        let exit_code = self.status.and_then(WaitStatus::exit_status);
        let signal = self.status.and_then(WaitStatus::terminating_signal);
        let status = match (exit_code, signal) {
            (Some(code), _) => Status::Exited(code),
            (None, Some(signal)) => Status::Signalled(signal),
            (None, None) => Status::Unknown,
        };
        let cause = match (self.cause, status) {
            (Cause::Nothing, _) if self.stopped => Cause::Nothing,
            (Cause::Nothing, Status::Signalled(signal))
                if signal == Signal::XCPU.as_raw() && self.order.cpu.is_some() =>
            {
                Cause::Cpu
            }
            // Shells give 128 + 9 for a child of theirs that was killed.
            (Cause::Nothing, Status::Signalled(9) | Status::Exited(137)) if oom::kills() > self.oom_kills => {
                Cause::KernelOutOfMemory
            }
            (cause, _) => cause,
        };
        Report {
            status,
            stopped: self.stopped,
            cause,
            cpu: processes::myself().map(|keeper| keeper.children_cpu()).unwrap_or_default(),
            peak_memory_bytes: self.look.peak_memory_bytes(),
            left_running: self.left_running,
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
