//! The clock of the shared database, as a node knows it: asked now and then, and kept by the
//! machine's monotonic clock in between. A jump of the database's clock is followed slowly
//! ([`Slewed`]), so that it lapses no lease, and the time that is shown never runs backwards.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use windlass_core::slew::Slewed;
use windlass_core::time::{Clock, Timestamp};

struct State {
    shown: Slewed,
    /// What the database said last, and when that was.
    told: Timestamp,
    told_at: Instant,
}

/// The time of the shared database.
pub struct DatabaseClock(Mutex<State>);

#[allow(clippy::disallowed_methods, reason = "this is the one place where a node reads its own clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

impl DatabaseClock {
    /// A clock that starts with what the database says, and never before `floor`.
    pub fn starting_at(told: Timestamp, floor: Timestamp) -> Self {
        let now = instant();
        Self(Mutex::new(State { shown: Slewed::starting_at(told.max(floor), now), told, told_at: now }))
    }

    /// The database said so at that moment of this machine.
    pub fn tell(&self, told: Timestamp, told_at: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.told = told;
        state.told_at = told_at;
    }
}

impl Clock for DatabaseClock {
    fn now(&self) -> Timestamp {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = instant();
        let told = state.told + now.saturating_duration_since(state.told_at);
        state.shown.show(told, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn it_starts_no_earlier_than_what_was_written() {
        let clock = DatabaseClock::starting_at(at(5_000), at(9_000));
        let first = clock.now();
        assert!(first >= at(9_000));
        clock.tell(at(0), instant());
        assert!(clock.now() >= first);
    }
}
