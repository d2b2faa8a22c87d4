//! What worker and keeper say to each other: the order as arguments, bytes from the worker, lines from the keeper.
//! Both ends are always the same binary, so there are no versions.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};
use std::time::Duration;

/// First argument of a process that is to be a keeper.
pub(crate) const KEEPER_WORD: &str = "__exec-keeper";

/// From the worker: SIGTERM now, SIGKILL after the grace.
pub(crate) const TERMINATE: u8 = b'T';
/// From the worker: SIGKILL now. The end of the connection means the same.
pub(crate) const KILL: u8 = b'K';

/// How long the keeper tries to kill what is left before it reports it as left running.
pub(crate) const KILLING: Duration = Duration::from_secs(2);

/// The limits that the keeper watches over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu: Option<Duration>,
    pub(crate) kill_grace: Duration,
}

impl Order {
    pub(crate) fn to_arguments(self) -> [String; 3] {
        [
            or_dash(self.memory_bytes),
            or_dash(self.cpu.map(|cpu| cpu.as_millis())),
            self.kill_grace.as_millis().to_string(),
        ]
    }

    pub(crate) fn from_arguments([memory, cpu, grace]: [&str; 3]) -> Option<Self> {
        Some(Self {
            memory_bytes: from_dash(memory).ok()?,
            cpu: from_dash(cpu).ok()?.map(Duration::from_millis),
            kill_grace: Duration::from_millis(grace.parse().ok()?),
        })
    }
}

/// A line from the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// I am a keeper, and about to start the program. A program can kill its keeper before anything else is said.
    Here,
    /// The kernel refused to start it, with this error number.
    Refused(i32),
    /// The program has ended, something that it started has not.
    Lingering,
    /// All is over.
    Over(Report),
}

/// The keeper's last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) status: Status,
    /// The program was still running when the worker asked to stop it.
    pub(crate) stopped: bool,
    pub(crate) cause: Cause,
    pub(crate) cpu: Duration,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) left_running: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Exited(i32),
    Signalled(i32),
    /// It could not even be killed.
    Unknown,
}

/// What ended the program, apart from itself and the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Nothing,
    Memory { used: u64 },
    Cpu,
    KernelOutOfMemory,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = match self {
            Self::Here => return write!(f, "here"),
            Self::Refused(errno) => return write!(f, "refused {errno}"),
            Self::Lingering => return write!(f, "lingering"),
            Self::Over(report) => report,
        };
        match report.status {
            Status::Exited(code) => write!(f, "over exited {code}")?,
            Status::Signalled(signal) => write!(f, "over signalled {signal}")?,
            Status::Unknown => write!(f, "over unknown 0")?,
        }
        match report.cause {
            Cause::Nothing => write!(f, " nothing 0")?,
            Cause::Memory { used } => write!(f, " memory {used}")?,
            Cause::Cpu => write!(f, " cpu 0")?,
            Cause::KernelOutOfMemory => write!(f, " kernel 0")?,
        }
        let peak = or_dash(report.peak_memory_bytes);
        write!(f, " {} {} {peak} {}", report.stopped, report.cpu.as_millis(), report.left_running)
    }
}

impl FromStr for Word {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut parts = line.split_ascii_whitespace();
        let word = match parts.next().ok_or(())? {
            "here" => Self::Here,
            "refused" => Self::Refused(next(&mut parts)?),
            "lingering" => Self::Lingering,
            "over" => Self::Over(report(&mut parts)?),
            _ => return Err(()),
        };
        if parts.next().is_some() { Err(()) } else { Ok(word) }
    }
}

fn report(parts: &mut SplitAsciiWhitespace<'_>) -> Result<Report, ()> {
    let status = match (parts.next().ok_or(())?, next(parts)?) {
        ("exited", code) => Status::Exited(code),
        ("signalled", signal) => Status::Signalled(signal),
        ("unknown", _) => Status::Unknown,
        _ => return Err(()),
    };
    let cause = match (parts.next().ok_or(())?, next(parts)?) {
        ("nothing", _) => Cause::Nothing,
        ("memory", used) => Cause::Memory { used },
        ("cpu", _) => Cause::Cpu,
        ("kernel", _) => Cause::KernelOutOfMemory,
        _ => return Err(()),
    };
    Ok(Report {
        status,
        cause,
        stopped: next(parts)?,
        cpu: Duration::from_millis(next(parts)?),
        peak_memory_bytes: from_dash(parts.next().ok_or(())?)?,
        left_running: next(parts)?,
    })
}

fn next<T: FromStr>(parts: &mut SplitAsciiWhitespace<'_>) -> Result<T, ()> {
    parts.next().ok_or(())?.parse().map_err(|_| ())
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn from_dash<T: FromStr>(text: &str) -> Result<Option<T>, ()> {
    if text == "-" { Ok(None) } else { text.parse().map(Some).map_err(|_| ()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let report = |status, cause, peak_memory_bytes| {
            let cpu = Duration::from_millis(1230);
            Word::Over(Report { status, stopped: true, cause, cpu, peak_memory_bytes, left_running: 2 })
        };
        for word in [
            Word::Here,
            Word::Refused(8),
            Word::Lingering,
            report(Status::Exited(75), Cause::Nothing, None),
            report(Status::Signalled(9), Cause::Memory { used: 1 << 40 }, Some(1 << 40)),
            report(Status::Signalled(24), Cause::Cpu, None),
            report(Status::Unknown, Cause::KernelOutOfMemory, Some(0)),
        ] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        for nonsense in ["", "running 0 tests", "over", "refused", "refused x", "here now", "over exited 0"] {
            assert_eq!(nonsense.parse::<Word>(), Err(()), "{nonsense}");
        }
    }

    #[test]
    fn an_order_survives_being_arguments() {
        for order in [
            Order { memory_bytes: None, cpu: None, kill_grace: Duration::ZERO },
            Order {
                memory_bytes: Some(u64::MAX),
                cpu: Some(Duration::from_millis(1)),
                kill_grace: Duration::from_secs(5),
            },
        ] {
            assert_eq!(Order::from_arguments(order.to_arguments().each_ref().map(String::as_str)), Some(order));
        }
    }
}
