//! What is asked of a run: the input, the limits, and why somebody may want it stopped.

use std::time::Duration;

/// One run of a program.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// Written to the program's stdin, which is closed afterwards. A program that does not read it is no error.
    pub input: Vec<u8>,
    /// Added to the worker's own environment, which the program inherits.
    pub environment: Vec<(String, String)>,
    /// How long the program may run before it is stopped.
    pub timeout: Option<Duration>,
    /// How long after the timeout's SIGTERM it is given before SIGKILL, if that is less than the grace of the limits: for
    /// whoever has to report the end by a certain time.
    pub timeout_grace: Option<Duration>,
}

/// What a program may use.
///
/// Memory is bounded by looking, not by a resource limit: `RLIMIT_AS` and `RLIMIT_DATA` count reserved address space and
/// the stacks of all threads, so they break Go, Java and Node long before memory is short. A program can therefore
/// overshoot for as long as one look takes to come round (25 ms on a quiet machine). The kernel's own out-of-memory
/// killer is the backstop: programs run with the highest `oom_score_adj`, so it takes them before the worker.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Memory in use by the program and everything it started, together.
    pub memory_bytes: Option<u64>,
    /// Processor time of the program and everything it started, together.
    pub cpu: Option<Duration>,
    /// How long after SIGTERM a program is given before SIGKILL.
    pub kill_grace: Duration,
    /// How much the program may print to stdout. More is an error, and the program is stopped.
    pub stdout_bytes: usize,
    /// How much of the end of stderr is kept.
    pub stderr_tail_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            cpu: None,
            // Long enough to finish a write and remove temporary files, short enough for a worker that shuts down.
            kill_grace: Duration::from_secs(5),
            // As much as a result may sensibly be; larger ones belong in a store of their own, with a link as result.
            stdout_bytes: 1 << 20,
            // A long stack trace fits.
            stderr_tail_bytes: 8 << 10,
        }
    }
}

/// Why somebody asked to stop a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The task was cancelled.
    Cancelled,
    /// The worker is shutting down.
    Shutdown,
}
