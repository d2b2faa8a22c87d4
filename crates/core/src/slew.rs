//! Following a clock that may jump. What is shown runs with the machine's monotonic clock and comes nearer to the clock
//! that is followed only slowly: a jump by an hour lapses no lease and makes no task due early. It never runs backwards.

use std::time::{Duration, Instant};

use crate::time::Timestamp;

/// At most this share of elapsed time is added or held back: a lease of 30 s can be off by 3 s, and an hour's jump is
/// absorbed in ten.
const SLEW: f64 = 0.1;

/// Differences below this are followed at once: they are the ordinary discipline of NTP, and the noise of asking a
/// database.
const STEP: Duration = Duration::from_millis(5);

/// The time that is shown while another clock is followed.
#[derive(Clone, Copy, Debug)]
pub struct Slewed {
    shown: Timestamp,
    shown_at: Instant,
}

impl Slewed {
    /// Shows `first` at this moment of the machine.
    pub fn starting_at(first: Timestamp, now: Instant) -> Self {
        Self { shown: first, shown_at: now }
    }

    /// The time to show at this moment of the machine, while the clock that is followed says `told`.
    pub fn show(&mut self, told: Timestamp, now: Instant) -> Timestamp {
        let elapsed = now.saturating_duration_since(self.shown_at);
        self.shown = slewed(self.shown, elapsed, told);
        self.shown_at = self.shown_at.max(now);
        self.shown
    }
}

fn slewed(shown: Timestamp, elapsed: Duration, told: Timestamp) -> Timestamp {
    let expected = shown + elapsed;
    let off = if told >= expected { told.since(expected) } else { expected.since(told) };
    let step = if off <= STEP { off } else { off.min(elapsed.mul_f64(SLEW)) };
    if told >= expected { expected + step } else { (expected - step).max(shown) }
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
        assert_eq!(slewed(at(10_000), second, at(11_003)), at(11_003), "small differences are followed at once");
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
