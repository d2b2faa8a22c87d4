//! The store's clock: monotonic, with the wall clock slewed in. A jump of the wall clock
//! by an hour lapses no lease and makes no task due early; it is followed slowly.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::time::{Clock, Timestamp};

/// At most this share of elapsed time is added or held back to follow the wall clock: a
/// lease of 30 s can be off by 3 s, and an hour's jump is absorbed in ten.
const SLEW: f64 = 0.1;

/// Differences below this are followed at once: they are the ordinary discipline of NTP.
const STEP: Duration = Duration::from_millis(5);

struct State {
    last: Timestamp,
    read_at: Instant,
}

/// The clock of an embedded store.
pub struct SlewedClock(Mutex<State>);

#[allow(
    clippy::disallowed_methods,
    reason = "this is the one place where an embedded store reads the machine's clocks"
)]
fn machine() -> (Instant, Timestamp) {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), Timestamp::EPOCH + wall)
}

/// The next time to show, after `elapsed` of monotonic time, while the wall shows `wall`.
fn slewed(last: Timestamp, elapsed: Duration, wall: Timestamp) -> Timestamp {
    let expected = last + elapsed;
    let off = if wall >= expected { wall.since(expected) } else { expected.since(wall) };
    let step = if off <= STEP { off } else { off.min(elapsed.mul_f64(SLEW)) };
    if wall >= expected { expected + step } else { (expected - step).max(last) }
}

impl SlewedClock {
    /// A clock that starts with the wall clock, and never before `floor`: the latest time
    /// that the store has written.
    pub fn starting_at(floor: Timestamp) -> Self {
        let (read_at, wall) = machine();
        Self(Mutex::new(State { last: wall.max(floor), read_at }))
    }
}

impl Clock for SlewedClock {
    fn now(&self) -> Timestamp {
        let (read_at, wall) = machine();
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let elapsed = read_at.saturating_duration_since(state.read_at);
        state.last = slewed(state.last, elapsed, wall);
        state.read_at = state.read_at.max(read_at);
        state.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn a_jump_is_followed_slowly_and_never_backwards() {
        let second = Duration::from_secs(1);
        let hour = 3_600_000;
        assert_eq!(slewed(at(10_000), second, at(11_000)), at(11_000));
        assert_eq!(slewed(at(10_000), second, at(11_000 + hour)), at(11_100));
        assert_eq!(slewed(at(hour), second, at(1_000)), at(hour + 900));
        assert_eq!(slewed(at(hour), Duration::ZERO, at(0)), at(hour));
        // However often it is asked, it neither races nor stands still.
        let (mut ahead, mut behind) = (at(0), at(2 * hour));
        for step in 1..=10_000u64 {
            ahead = slewed(ahead, Duration::from_millis(1), at(hour + step));
            behind = slewed(behind, Duration::from_millis(1), at(hour + step));
        }
        assert_eq!((ahead, behind), (at(11_000), at(2 * hour + 9_000)));
        // An hour ahead is caught up with after about ten hours of small steps.
        let mut shown = at(0);
        for step in 1..=11 * 3_600u64 {
            shown = slewed(shown, second, at(hour + step * 1_000));
        }
        assert_eq!(shown, at(hour + 11 * 3_600_000));
    }
}
