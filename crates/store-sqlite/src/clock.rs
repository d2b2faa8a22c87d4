//! The store's clock: monotonic, with the wall clock slewed in ([`Slewed`]).

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use windlass_core::slew::Slewed;
use windlass_core::time::{Clock, Timestamp};

/// The clock of an embedded store.
pub struct SlewedClock(Mutex<Slewed>);

#[allow(
    clippy::disallowed_methods,
    reason = "this is the one place where an embedded store reads the machine's clocks"
)]
fn machine() -> (Instant, Timestamp) {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), Timestamp::EPOCH + wall)
}

impl SlewedClock {
    /// A clock that starts with the wall clock, and never before `floor`: the latest time
    /// that the store has written.
    pub fn starting_at(floor: Timestamp) -> Self {
        let (now, wall) = machine();
        Self(Mutex::new(Slewed::starting_at(wall.max(floor), now)))
    }
}

impl Clock for SlewedClock {
    fn now(&self) -> Timestamp {
        let (now, wall) = machine();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).show(wall, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_starts_no_earlier_than_what_was_written() {
        let (_, wall) = machine();
        let floor = wall + Duration::from_secs(3_600);
        let clock = SlewedClock::starting_at(floor);
        let first = clock.now();
        assert!(first >= floor);
        assert!(clock.now() >= first);
    }
}
