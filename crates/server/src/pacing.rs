//! Many tasks at a pace: each gets a start time of its own, so that the pace is as durable as
//! the tasks and nobody has to keep it.

use std::time::Duration;

use windlass_core::limits;

/// How long the task at this place waits where so many start per second.
pub fn paced(index: usize, per_second: f64) -> Duration {
    let seconds = (index as f64 / per_second).min(limits::DELAY.as_secs_f64());
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_delay_per_place() {
        assert_eq!(paced(0, 10.0), Duration::ZERO);
        assert_eq!(paced(25, 10.0), Duration::from_millis(2_500));
        assert_eq!(paced(1_000_000_000, 0.001), limits::DELAY);
    }
}
