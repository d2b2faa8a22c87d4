//! How a command ends: exit codes that mean something, and failures that say what to do.

use std::fmt;

use windlass::{Error, Problem};

use crate::show::escape::plain;

/// The exit codes. They are documented in `windlass --help` and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Something else went wrong.
    Failed = 1,
    /// The command line was wrong; nothing was sent.
    Usage = 2,
    /// No server was reached, or none that can serve now.
    Unreachable = 3,
    /// There is no such task, queue, type or worker.
    NotFound = 4,
    /// The server refused: conflict, invalid, not allowed, not now.
    Refused = 5,
    /// The task that was waited for ended without success.
    NoSuccess = 6,
    /// The time to wait was over before the task ended.
    TimedOut = 7,
}

/// The table of exit codes, for `--help`.
pub const HELP: &str = "Exit codes:
  0  done
  1  failed for another reason
  2  wrong usage; nothing was sent
  3  no server reached, or it cannot serve now
  4  not found
  5  refused: conflict, invalid, not allowed now
  6  the task that was waited for ended without success
  7  timed out waiting";

/// What to do where no server is.
pub const START_ONE: &str = "Is it running? Start one with `windlass server`, or `windlass dev` to try things.";

/// Why a command did not do what it should: what went wrong, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
    hint: Option<String>,
    is_told: bool,
}

/// The result of a command or a part of one.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with its message: one line, without a full stop.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None, is_told: false }
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// An end that needs no more words: they were said already, or nobody listens any more.
    pub fn told(exit: Exit) -> Self {
        Self { is_told: true, ..Self::new(exit, String::new()) }
    }

    /// What to do about it, as a sentence.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With which code the process ends.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether there is nothing more to say.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// What to do about it.
    pub fn what_to_do(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // Whoever read our output has enough of it (`| head`): that is no error.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::told(Exit::Done);
        }
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Unreachable(unreachable) => {
                let failure = Self::new(Exit::Unreachable, plain(&unreachable.to_string()));
                if unreachable.may_have_happened {
                    return failure.hint("The call may have arrived: look before you repeat it.");
                }
                failure.hint(START_ONE)
            }
            Error::Refused(problem) => Self::from(&*problem),
            Error::Address { address, reason } => {
                Self::usage(format!("--server {} cannot be used: {}", plain(&address), plain(&reason)))
                    .hint("An address looks like http://127.0.0.1:7070; several are separated by commas.")
            }
            Error::BadAnswer { address, reason } => {
                let message = format!("{address} gave an answer that was not understood: {}", plain(&reason));
                Self::new(Exit::Failed, message).hint("Is this the address of a Windlass server? See --server.")
            }
            other @ (Error::Store { .. }
            | Error::Json { .. }
            | Error::TaskDidNotSucceed(_)
            | Error::StillRunning { .. }
            | Error::Worker(_)
            | Error::Database { .. }) => Self::new(Exit::Failed, plain(&other.to_string())),
        }
    }
}

impl From<&Problem> for Failure {
    fn from(problem: &Problem) -> Self {
        let exit = match problem.status {
            404 if problem.code != "not_found" => Exit::NotFound,
            502..=504 => Exit::Unreachable,
            400..=499 => Exit::Refused,
            _ => Exit::Failed,
        };
        let failure = Self::new(exit, plain(&problem.to_string()));
        match (advice(&problem.code), problem.retry_after_seconds) {
            (Some(advice), _) => failure.hint(advice),
            (None, Some(seconds)) => failure.hint(format!("Try again in {seconds} s.")),
            (None, None) => failure,
        }
    }
}

/// The next step after a refusal, for codes where there is one that is always right.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "task_not_found" => "`windlass list` shows the tasks there are; ended ones are deleted after their retention.",
        "worker_not_found" => "`windlass workers` shows the workers there are.",
        "queue_not_found" => "`windlass queues` shows the queues there are.",
        "task_type_not_found" => "`windlass types` shows the types that have settings.",
        "not_found" => "The server does not know this call: is it older than this command? See `windlass doctor`.",
        "not_cancellable" => "It has ended; `windlass get ID` shows how.",
        "not_retryable" => {
            "Only scheduled, failed and dead tasks can be retried; `windlass get ID` shows how it stands."
        }
        "not_dead" => "`windlass dlq` shows the dead letters there are.",
        "idempotency_key_reused" => "Use another --idempotency-key, or submit the same type and parameters again.",
        "unique_conflict" => {
            "`windlass get ID` shows that task. --on-conflict says what a submit does to it; it cannot change one that runs, but\nwhere all are submitted with --unique-while scheduled,queued a new one waits behind it."
        }
        "not_amendable" => "Only a task that waits can be changed or buried; `windlass get ID` shows how it stands.",
        "breaker_not_found" => "`windlass breakers` shows the breakers that have something to say.",
        "unknown_task_type" => "Set the type up first: `windlass types set TYPE key=value`.",
        "payload_too_large" => "Keep large data elsewhere and pass a reference to it.",
        "unauthenticated" => "Give an API key with --api-key or WINDLASS_API_KEY.",
        "forbidden" | "forbidden_type" | "forbidden_queue" => "This API key may not do that; ask for one that may.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_of(status: u16, code: &str) -> Exit {
        let problem = Problem { status, code: code.to_owned(), ..Problem::default() };
        Failure::from(&problem).exit()
    }

    #[test]
    fn refusals_have_the_code_of_their_kind() {
        assert_eq!(exit_of(404, "task_not_found"), Exit::NotFound);
        assert_eq!(exit_of(404, "not_found"), Exit::Refused);
        assert_eq!(exit_of(409, "not_cancellable"), Exit::Refused);
        assert_eq!(exit_of(429, "queue_full"), Exit::Refused);
        assert_eq!(exit_of(503, "store_unavailable"), Exit::Unreachable);
        assert_eq!(exit_of(500, "internal"), Exit::Failed);
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(failure.is_told() && failure.exit() == Exit::Done);
    }
}
