//! The clock of the shared database, as a node knows it: asked now and then, and kept by the
//! machine's monotonic clock in between. A jump of the database's clock is followed slowly,
//! so that it lapses no lease, and the time that is shown never runs backwards.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass_core::time::{Clock, Timestamp};

/// At most this share of elapsed time is added or held back to follow the database.
const SLEW: f64 = 0.1;
/// Differences below this are followed at once: they are the noise of asking.
const STEP: Duration = Duration::from_millis(5);

struct State {
    /// What was shown last, and when.
    shown: Timestamp,
    shown_at: Instant,
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

fn slewed(shown: Timestamp, elapsed: Duration, told: Timestamp) -> Timestamp {
    let expected = shown + elapsed;
    let off = if told >= expected { told.since(expected) } else { expected.since(told) };
    let step = if off <= STEP { off } else { off.min(elapsed.mul_f64(SLEW)) };
    if told >= expected { expected + step } else { (expected - step).max(shown) }
}

impl DatabaseClock {
    /// A clock that starts with what the database says, and never before `floor`.
    pub fn starting_at(told: Timestamp, floor: Timestamp) -> Self {
        let now = instant();
        Self(Mutex::new(State { shown: told.max(floor), shown_at: now, told, told_at: now }))
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
        state.shown = slewed(state.shown, now.saturating_duration_since(state.shown_at), told);
        state.shown_at = state.shown_at.max(now);
        state.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn a_jump_of_the_database_is_followed_slowly_and_never_backwards() {
        let second = Duration::from_secs(1);
        let hour = 3_600_000;
        assert_eq!(slewed(at(10_000), second, at(11_003)), at(11_003), "small differences are followed at once");
        assert_eq!(slewed(at(10_000), second, at(11_000 + hour)), at(11_100));
        assert_eq!(slewed(at(hour), second, at(1_000)), at(hour + 900));
        assert_eq!(slewed(at(hour), Duration::ZERO, at(0)), at(hour));
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
