//! One run, from start to end, as the worker sees it.

use std::future::{Future, pending};
use std::io;
use std::pin::pin;

use rustix::process::Pid;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use crate::ended::{Ended, How};
use crate::error::StartError;
use crate::job::{Job, Limits, Stop};
use crate::orphans;
use crate::program::Program;
use crate::protocol::{Cause, KILL, KILLING, Report, Status, TERMINATE, Word};
use crate::start::{Kept, Silence};

/// A process that has not said within this time that it is a keeper is none.
const START: Duration = Duration::from_secs(30);
/// After the program's end its stdout may still be open in something that it started, as in `… | tee log`. It gets this
/// long to finish.
const LINGER: Duration = Duration::from_millis(500);
/// How much later than it should a keeper may answer before it is taken for stuck.
const SLACK: Duration = Duration::from_secs(5);

/// Why the worker stopped the program.
#[derive(Debug, Clone, Copy)]
enum Reason {
    TimedOut,
    Asked(Stop),
    TooMuchOutput,
}

/// How it went on the keeper's side.
enum Outcome {
    Over(Report),
    Refused(i32),
    Lost { is_keeper: bool },
}

/// Runs the program until it ends, or is stopped: by `stop`, by the timeout of the job, or by a limit.
///
/// When this returns, nothing that the program started is running. When the future is dropped, or the worker is killed,
/// the same holds a moment later. Must be called within a runtime with I/O and time, in a binary that calls
/// [`shim_main`](crate::shim_main).
pub async fn run(program: &Program, job: Job, limits: &Limits, stop: impl Future<Output = Stop>) -> Ended {
    let began = Instant::now();
    let run = Run {
        timeout_at: job.timeout.map(|timeout| began + timeout),
        timeout_grace: job.timeout_grace,
        limits,
        reason: None,
    };
    let mut kept = match Kept::start(program, job, limits) {
        Ok(kept) => kept,
        Err(error) => return could_not_start(StartError::Keeper(error), began),
    };
    let keeper_pid = kept.keeper.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let (outcome, reason) = run.until_over(&mut kept, stop).await;

    // Without processes the pipes are at their end. With one that cannot be killed they may never be.
    let mut left_running = match &outcome {
        Outcome::Over(report) => report.left_running,
        Outcome::Refused(_) => 0,
        Outcome::Lost { .. } => {
            kept.keeper.start_kill().ok();
            orphans::kill(keeper_pid, &kept.mark).await
        }
    };
    timeout(LINGER, kept.drain_output()).await.ok();
    let keeper_status = timeout(SLACK, kept.keeper.wait()).await;
    if keeper_status.is_err() {
        kept.keeper.start_kill().ok();
        left_running += 1;
    }

    let too_much = kept.stdout.kept.exceeded;
    let (peak_memory_bytes, cpu) = match &outcome {
        Outcome::Over(report) => (report.peak_memory_bytes, Some(report.cpu)),
        Outcome::Refused(_) | Outcome::Lost { .. } => (None, None),
    };
    let how = match outcome {
        Outcome::Over(report) => how_it_ended(&report, reason, too_much, limits),
        Outcome::Refused(errno) => How::CouldNotStart(program.refused(io::Error::from_raw_os_error(errno))),
        Outcome::Lost { is_keeper } => match reason {
            Some(reason) => stopped(reason, limits),
            None if is_keeper => How::KeeperLost,
            None => How::CouldNotStart(StartError::Keeper(io::Error::other(match keeper_status {
                Ok(Ok(status)) => format!("it ended without a word ({status})"),
                Ok(Err(error)) => format!("it ended without a word ({error})"),
                Err(_) => "it does not answer".to_owned(),
            }))),
        },
    };
    Ended {
        how,
        stdout: kept.stdout.kept.bytes,
        stderr_tail: kept.stderr.kept.into_text(),
        wall: began.elapsed(),
        peak_memory_bytes,
        cpu,
        left_running,
    }
}

struct Run<'a> {
    limits: &'a Limits,
    timeout_at: Option<Instant>,
    timeout_grace: Option<Duration>,
    reason: Option<Reason>,
}

impl Run<'_> {
    async fn until_over(mut self, kept: &mut Kept, stop: impl Future<Output = Stop>) -> (Outcome, Option<Reason>) {
        let mut stop = pin!(stop);
        let mut is_keeper = false;
        let mut linger_until = None;
        let mut told_to_kill = false;
        let mut kill_at = None;
        let mut give_up_at = Some(Instant::now() + START);
        let outcome = loop {
            // Once it has been stopped, or has ended, there is nothing more to stop.
            let stoppable = self.reason.is_none() && linger_until.is_none();
            let reason = tokio::select! {
                word = kept.next() => match word {
                    Ok(None) if kept.stdout.kept.exceeded && stoppable => Some(Reason::TooMuchOutput),
                    Ok(None) => None,
                    Ok(Some(Word::Here)) => {
                        is_keeper = true;
                        if stoppable {
                            give_up_at = None;
                        }
                        None
                    }
                    Ok(Some(Word::Lingering)) => {
                        linger_until = Some(Instant::now() + LINGER);
                        None
                    }
                    Ok(Some(Word::Refused(errno))) => break Outcome::Refused(errno),
                    Ok(Some(Word::Over(report))) => break Outcome::Over(report),
                    Err(Silence) => break Outcome::Lost { is_keeper },
                },
                stop = &mut stop, if stoppable => Some(Reason::Asked(stop)),
                () = at(self.timeout_at), if stoppable => Some(Reason::TimedOut),
                () = at(linger_until), if !told_to_kill => None,
                () = at(kill_at), if !told_to_kill => None,
                () = at(give_up_at) => break Outcome::Lost { is_keeper },
            };
            if let Some(reason) = reason {
                self.reason = Some(reason);
                give_up_at = Some(Instant::now() + self.limits.kill_grace + LINGER + KILLING + SLACK);
                if let (Reason::TimedOut, Some(grace)) = (reason, self.timeout_grace) {
                    kill_at = Some(Instant::now() + grace);
                }
                kept.wish(TERMINATE).await;
            }
            let closed = !kept.stdout.is_open() && !kept.stderr.is_open();
            let has_lingered = linger_until.is_some_and(|until| closed || Instant::now() >= until);
            let grace_is_over = kill_at.is_some_and(|at| Instant::now() >= at);
            if !told_to_kill && (has_lingered || grace_is_over) {
                told_to_kill = true;
                give_up_at = Some(Instant::now() + KILLING + SLACK);
                kept.wish(KILL).await;
            }
        };
        (outcome, self.reason)
    }
}

/// The program's own end counts if it came before the worker's wish to stop it.
fn how_it_ended(report: &Report, reason: Option<Reason>, too_much: bool, limits: &Limits) -> How {
    match (reason, report.cause, report.status) {
        (Some(reason), ..) if report.stopped => stopped(reason, limits),
        (_, Cause::Memory { used }, _) => How::OutOfMemory { used, limit: limits.memory_bytes.unwrap_or(used) },
        (_, Cause::Cpu, _) => How::CpuLimit,
        _ if too_much => How::TooMuchOutput { limit: limits.stdout_bytes },
        (_, Cause::KernelOutOfMemory, _) => How::KernelOutOfMemory,
        (_, Cause::Nothing, Status::Exited(code)) => How::Exited(code),
        (_, Cause::Nothing, Status::Signalled(signal)) => How::Signalled(signal),
        (_, Cause::Nothing, Status::Unknown) => How::KeeperLost,
    }
}

fn stopped(reason: Reason, limits: &Limits) -> How {
    match reason {
        Reason::TimedOut => How::TimedOut,
        Reason::Asked(stop) => How::Stopped(stop),
        Reason::TooMuchOutput => How::TooMuchOutput { limit: limits.stdout_bytes },
    }
}

fn could_not_start(error: StartError, began: Instant) -> Ended {
    Ended {
        how: How::CouldNotStart(error),
        stdout: Vec::new(),
        stderr_tail: String::new(),
        wall: began.elapsed(),
        peak_memory_bytes: None,
        cpu: None,
        left_running: 0,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
