//! What happened lately: counts and waiting times over sliding windows, by the store's clock.

use windlass_core::time::Timestamp;

/// Counts per slot of time; slots that have passed are forgotten.
#[derive(Clone, Debug)]
pub struct Window<T> {
    slot_seconds: i64,
    slots: Vec<(i64, T)>,
}

impl<T: Default> Window<T> {
    /// A window of so many slots of so many seconds.
    pub fn new(slots: usize, slot_seconds: i64) -> Self {
        Self { slot_seconds, slots: (0..slots).map(|_| (-1, T::default())).collect() }
    }

    fn number(&self, at: Timestamp) -> i64 {
        at.as_micros() / 1_000_000 / self.slot_seconds
    }

    /// The slot of a time, empty if it is new.
    pub fn slot(&mut self, at: Timestamp) -> &mut T {
        let number = self.number(at);
        let index = number as usize % self.slots.len();
        let slot = &mut self.slots[index];
        if slot.0 < number {
            *slot = (number, T::default());
        }
        &mut slot.1
    }

    /// The slots that are still within the window.
    pub fn recent(&self, now: Timestamp) -> impl Iterator<Item = &T> {
        let oldest = self.number(now) - self.slots.len() as i64;
        self.slots.iter().filter(move |(number, _)| *number > oldest && *number >= 0).map(|(_, value)| value)
    }
}

/// Counts of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Tasks submitted.
    pub enqueued: u64,
    /// Tasks claimed.
    pub claimed: u64,
    /// Attempts that succeeded.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
}

/// Counts of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recoveries {
    /// Leases that lapsed.
    pub lease_expiries: u64,
    /// Attempts that ran out of time.
    pub timeouts: u64,
}

const BUCKETS: usize = 96;
const SMALLEST_SECONDS: f64 = 0.000_5;
const GROWTH: f64 = 1.25;

/// Waiting times of one slot, in buckets that each are a quarter wider than the one before.
#[derive(Clone, Debug)]
pub struct Waits([u32; BUCKETS]);

impl Default for Waits {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Waits {
    /// Counts one.
    pub fn add(&mut self, seconds: f64) {
        let bucket =
            if seconds <= SMALLEST_SECONDS { 0.0 } else { ((seconds / SMALLEST_SECONDS).ln() / GROWTH.ln()).ceil() };
        let bucket = &mut self.0[(bucket as usize).min(BUCKETS - 1)];
        *bucket = bucket.saturating_add(1);
    }
}

/// The waiting times below which these shares of tasks stayed; nothing if there were none.
pub fn percentiles<'a, const N: usize>(waits: impl Iterator<Item = &'a Waits>, shares: [f64; N]) -> [Option<f64>; N] {
    let mut sums = [0u64; BUCKETS];
    for slot in waits {
        for (sum, count) in sums.iter_mut().zip(slot.0) {
            *sum += u64::from(count);
        }
    }
    let total: u64 = sums.iter().sum();
    shares.map(|share| {
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = sums.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some((SMALLEST_SECONDS * GROWTH.powi(bucket as i32) * 1e6).round() / 1e6)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_micros((1_000_000 + n) * 1_000_000)
    }

    #[test]
    fn a_window_forgets_what_has_passed() {
        let mut window = Window::<u64>::new(60, 1);
        *window.slot(second(0)) += 1;
        *window.slot(second(30)) += 2;
        let sum = |window: &Window<u64>, n| window.recent(second(n)).sum::<u64>();
        assert_eq!(sum(&window, 30), 3);
        assert_eq!(sum(&window, 60), 2);
        assert_eq!(sum(&window, 90), 0);
        *window.slot(second(60)) += 4;
        assert_eq!(sum(&window, 60), 6);
    }

    #[test]
    fn percentiles_are_close() {
        let mut waits = Waits::default();
        for n in 1..=1000 {
            waits.add(f64::from(n) / 100.0);
        }
        let [p50, p99] = percentiles([&waits].into_iter(), [0.5, 0.99]);
        assert!((4.5..=6.5).contains(&p50.expect("some")), "{p50:?}");
        assert!((9.0..=12.5).contains(&p99.expect("some")), "{p99:?}");
        assert_eq!(percentiles([].into_iter(), [0.5]), [None]);
    }
}
