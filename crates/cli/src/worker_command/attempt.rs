//! One attempt at a task: the program runs, with what it may know and use, until it ends or must stop.

use std::future::pending;
use std::time::Duration;

use serde_json::value::RawValue;
use windlass::{Context, StopReason, TaskResult};
use windlass_exec::{Job, Limits, Program, Stop};

use super::{environment, outcome};

/// What all attempts of a worker have in common.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What a program may use.
    pub limits: Limits,
    /// How long programs may go on after the worker was told to stop.
    pub shutdown_timeout: Duration,
}

/// Runs the program of a task.
pub async fn run(
    program: &Program,
    rules: &Rules,
    parameters: &RawValue,
    context: &Context,
) -> TaskResult<Box<RawValue>> {
    let time = Time::within(context.time_left(), rules.limits.kill_grace);
    let job = Job {
        input: format!("{parameters}\n").into_bytes(),
        environment: environment::of(context, time.until_told),
        timeout: Some(time.until_told),
        timeout_grace: Some(time.grace),
    };
    tracing::debug!(program = program.name(), "starts");
    let ended = windlass_exec::run(program, job, &rules.limits, told_to_stop(context, rules.shutdown_timeout)).await;
    tracing::debug!(wall = ?ended.wall, "{}", ended.how);
    if ended.left_running > 0 {
        tracing::warn!(processes = ended.left_running, "some processes of the program could not be killed");
    }
    outcome::of(&ended, &rules.limits)
}

/// Resolves when the program must go although its time is not over.
async fn told_to_stop(context: &Context, shutdown_timeout: Duration) -> Stop {
    let stopped = async {
        match context.stop_token().stopped().await {
            StopReason::Cancelled | StopReason::LeaseLost => Stop::Cancelled,
            StopReason::Shutdown => Stop::Shutdown,
            // The runner has a clock of its own, which is ahead of this one.
            StopReason::TimedOut => pending().await,
        }
    };
    let shut_down = async {
        context.shutdown_token().stopped().await;
        tokio::time::sleep(shutdown_timeout).await;
        Stop::Shutdown
    };
    tokio::select! {
        stop = stopped => stop,
        stop = shut_down => stop,
    }
}

/// The server ends an attempt when its time is over, and what is said about it later is not heard. So the program is told
/// a little earlier, and killed early enough for its error to be reported.
#[derive(Debug, PartialEq, Eq)]
struct Time {
    /// Until SIGTERM.
    until_told: Duration,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
}

impl Time {
    /// Kept back are the grace and the time for the report, but never more than a tenth of the whole; then each gets half.
    fn within(time_left: Duration, kill_grace: Duration) -> Self {
        const REPORT: Duration = Duration::from_secs(1);
        let kept_back = (kill_grace + REPORT).min(time_left / 10);
        let report = REPORT.min(kept_back / 2);
        Self {
            until_told: time_left.saturating_sub(kept_back),
            grace: kill_grace.min(kept_back.saturating_sub(report)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_comes_a_little_before_the_time_is_over() {
        let milliseconds = Duration::from_millis;
        for (time_left, kill_grace, until_told, grace) in [
            (600_000, 5_000, 594_000, 5_000),
            (10_000, 5_000, 9_000, 500),
            (10_000, 0, 9_000, 0),
            (200, 5_000, 180, 10),
            (0, 5_000, 0, 0),
        ] {
            let time = Time::within(milliseconds(time_left), milliseconds(kill_grace));
            assert_eq!(time, Time { until_told: milliseconds(until_told), grace: milliseconds(grace) });
        }
    }
}
