//! How a run ended.

use std::fmt;
use std::time::Duration;

use crate::error::StartError;
use crate::job::Stop;

/// What is known of a run that is over.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub how: How,
    /// What the program printed to stdout, up to the limit.
    pub stdout: Vec<u8>,
    /// The end of what it printed to stderr. Begins with `…` when something was cut off.
    pub stderr_tail: String,
    /// From the call of `run` to the end of the last process.
    pub wall: Duration,
    /// The most memory seen in use at once. Known when there is a memory limit: without one, nobody looks.
    pub peak_memory_bytes: Option<u64>,
    /// Processor time of everything that ran, in steps of the kernel's clock (10 ms). Unknown when the keeper was lost.
    pub cpu: Option<Duration>,
    /// Processes that could not be killed: stuck in the kernel, or of another user (`sudo`). Zero but for those.
    pub left_running: u32,
}

/// How a program ended.
#[derive(Debug)]
pub enum How {
    /// By itself, with this exit code.
    Exited(i32),
    /// By a signal that was not sent by us.
    Signalled(i32),
    /// Killed: the program and what it started used more memory than allowed.
    OutOfMemory {
        /// Bytes in use when it was killed.
        used: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel killed it because the machine, or the container, ran out of memory.
    KernelOutOfMemory,
    /// Killed: it used more processor time than allowed.
    CpuLimit,
    /// Stopped: the timeout passed.
    TimedOut,
    /// Stopped because somebody asked for it.
    Stopped(Stop),
    /// Stopped: it printed more to stdout than allowed.
    TooMuchOutput {
        /// The limit in bytes.
        limit: usize,
    },
    /// It never ran.
    CouldNotStart(StartError),
    /// The keeper was killed, so how the program would have ended is unknown. What it had started has been killed.
    KeeperLost,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "the program exited with code {code}"),
            Self::Signalled(signal) => write!(f, "the program was killed by signal {signal}"),
            Self::OutOfMemory { used, limit } => {
                write!(f, "the program used {used} bytes of memory, the limit is {limit}")
            }
            Self::KernelOutOfMemory => write!(f, "the program was killed by the kernel: out of memory"),
            Self::CpuLimit => write!(f, "the program used more processor time than allowed"),
            Self::TimedOut => write!(f, "the program ran longer than its timeout"),
            Self::Stopped(Stop::Cancelled) => write!(f, "the program was stopped: the task was cancelled"),
            Self::Stopped(Stop::Shutdown) => write!(f, "the program was stopped: the worker is shutting down"),
            Self::TooMuchOutput { limit } => {
                write!(f, "the program printed more than {limit} bytes to stdout")
            }
            Self::CouldNotStart(error) => write!(f, "the program could not be started: {error}"),
            Self::KeeperLost => write!(f, "the process that watches over the program was killed"),
        }
    }
}
