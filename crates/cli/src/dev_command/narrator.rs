//! Tells what happens to tasks: one line per change, and never a flood.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};
use windlass_core::event::{Change, Committed, Observer};
use windlass_core::fact::Fact;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_server::Watch;

use crate::input::duration;
use crate::show::escape::plain;
use crate::show::screen::{Screen, Tint};

/// Lines a second that a person can follow. What is more is counted.
const LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// Changes on their way to the screen; a terminal that is slower loses lines, and never slows the store down.
const CHANGES: usize = 1_000;

/// Hears what the store commits.
pub struct Listener {
    watch: Arc<Watch>,
    changes: mpsc::Sender<Committed>,
    missed: Arc<AtomicU64>,
}

/// Says it.
pub struct Narrator {
    changes: mpsc::Receiver<Committed>,
    missed: Arc<AtomicU64>,
}

/// A listener between a store and those who watch it anyway, and the narrator for it.
pub fn new(watch: Arc<Watch>) -> (Arc<Listener>, Narrator) {
    let (sender, changes) = mpsc::channel(CHANGES);
    let missed = Arc::new(AtomicU64::new(0));
    (Arc::new(Listener { watch, changes: sender, missed: Arc::clone(&missed) }), Narrator { changes, missed })
}

impl Observer for Listener {
    fn committed(&self, changes: &[Committed]) {
        self.watch.committed(changes);
        for change in changes.iter().filter(|committed| is_worth_telling(committed)) {
            if self.changes.try_send(change.clone()).is_err() {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn followed(&self, facts: &[Fact]) {
        self.watch.followed(facts);
    }
}

/// That a retry's time has come is seen when it starts; settings of waiting tasks change no state.
fn is_worth_telling(committed: &Committed) -> bool {
    !matches!(committed.event.change, Change::Due | Change::Amended { .. })
}

impl Narrator {
    /// Writes lines for as long as there is a store and somebody who reads them.
    pub async fn tell(mut self, screen: &Screen, began: Timestamp) -> std::io::Result<()> {
        loop {
            let Some(first) = self.changes.recv().await else { return Ok(()) };
            let period_ends = Instant::now() + PERIOD;
            screen.line(&line(screen, &first, began))?;
            let mut lines = 1;
            while let Ok(Some(next)) = tokio::time::timeout_at(period_ends, self.changes.recv()).await {
                if lines < LINES {
                    lines += 1;
                    screen.line(&line(screen, &next, began))?;
                } else {
                    self.missed.fetch_add(1, Ordering::Relaxed);
                }
            }
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed > 0 {
                screen.line(&screen.tint(Tint::Dim, &format!("{:>8}  … and {missed} more changes", "")))?;
            }
        }
    }
}

fn line(screen: &Screen, committed: &Committed, began: Timestamp) -> String {
    let event = &committed.event;
    let seconds = format!("{:.1}s", event.at.since(began).as_secs_f64());
    let status = committed.to.as_str();
    let status = screen.tint(Tint::of_status(status), &format!("{status:<11}"));
    let task_type = committed.lane.task_type.as_str();
    let line = format!("{seconds:>8}  {task_type:<10} {status} {:<38}", what(committed));
    if is_narrow(screen) {
        return line.trim_end().to_owned();
    }
    format!("{line} {}", screen.tint(Tint::Dim, &event.task_id.to_string()))
}

/// Whether lines with ids would be broken.
fn is_narrow(screen: &Screen) -> bool {
    const WITH_ID: usize = 110;
    screen.width.is_some_and(|width| width < WITH_ID)
}

/// What happened, in a few words. The status stands beside it.
fn what(committed: &Committed) -> String {
    let at = committed.event.at;
    let again = |run_at: &Timestamp| format!("again in {}", duration::rough(run_at.since(at)));
    match &committed.event.change {
        Change::Submitted { status: Status::Scheduled, run_at } => {
            format!("submitted, starts in {}", duration::rough(run_at.since(at)))
        }
        Change::Submitted { .. } => "submitted".to_owned(),
        Change::Claimed { attempt, .. } => format!("attempt {attempt} starts"),
        Change::Completed => {
            let mut text = "done".to_owned();
            if let Some(ran) = committed.ran {
                // Writing to a String cannot fail.
                let _ = write!(text, " in {}", duration::rough(ran));
            }
            text
        }
        Change::Retrying { class, code, run_at } => {
            format!("failed: {}; {}", plain(code.as_deref().unwrap_or(class.as_str())), again(run_at))
        }
        Change::Released => "given back by its worker".to_owned(),
        Change::Snoozed { run_at } => format!("put off by its handler; {}", again(run_at)),
        Change::Lapsed { run_at, .. } => format!("its worker was lost; {}", again(run_at)),
        Change::Failed { reason, code, .. } | Change::DeadLettered { reason, code, .. } => {
            format!("given up: {}", plain(code.as_deref().unwrap_or(reason.as_str())))
        }
        Change::Cancelled { .. } => "cancelled".to_owned(),
        Change::Replayed { .. } => "run again by hand".to_owned(),
        Change::Discarded { .. } => "discarded".to_owned(),
        Change::Replaced { run_at } => {
            format!("replaced by a submit of the same work; starts in {}", duration::rough(run_at.since(at)))
        }
        Change::Due | Change::Amended { .. } => committed.event.change.kind().to_owned(),
    }
}
