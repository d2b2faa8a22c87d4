//! A clock that only tests move.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use windlass_core::time::{Clock, Timestamp};

/// 2023-11-14 22:13:20 UTC: where every manual clock starts.
const START_MICROS: i64 = 1_700_000_000_000_000;

/// A clock that stands still until it is moved forward.
#[derive(Debug)]
pub struct ManualClock {
    micros: AtomicI64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { micros: AtomicI64::new(START_MICROS) }
    }
}

impl ManualClock {
    /// A clock at its fixed start.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time every manual clock starts at.
    pub fn start() -> Timestamp {
        Timestamp::from_micros(START_MICROS)
    }

    /// Moves it forward and says what time it is then.
    pub fn advance(&self, span: Duration) -> Timestamp {
        let micros = i64::try_from(span.as_micros()).expect("a span a test can mean");
        Timestamp::from_micros(self.micros.fetch_add(micros, Ordering::SeqCst) + micros)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_only_when_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), ManualClock::start());
        let then = clock.advance(Duration::from_millis(5));
        assert_eq!((clock.now(), then.since(ManualClock::start())), (then, Duration::from_millis(5)));
    }
}
