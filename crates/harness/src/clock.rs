//! The only place of the harness that reads a clock. The harness measures real processes, so it needs real time, but
//! only ever as a distance from its own start: no time of the server is compared with a time of the harness.

use std::time::{Duration, Instant};

/// A monotonic clock that counts from its own creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that stands at zero now.
    #[allow(clippy::disallowed_methods, reason = "the harness measures real processes in real time")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time since the clock was started.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The same in microseconds, as the history keeps it.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A number that differs from run to run, to keep names of one run apart from those of another.
#[allow(clippy::disallowed_methods, reason = "a run needs a name of its own, no decision hangs on this time")]
pub fn run_number() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (since_epoch.as_millis() as u64) << 16 | u64::from(std::process::id() & 0xffff)
}
