//! Until when ended tasks are kept where they go a whole day at a time.

use std::time::Duration;

use crate::time::Timestamp;

/// Microseconds of a day.
pub const DAY_US: i64 = 24 * 3600 * 1_000_000;
/// Whatever the retention, the tasks that are kept end on about this many days: a store has a place for each of them,
/// and looks through all of them for a task.
const PLACES: i64 = 35;

/// Until when a task is kept that may go when it was kept for this long: to the end of that day, in UTC. One that is
/// kept for less than a day goes at its time. One that is kept for longer than 35 days stays to the end of the next
/// two days, four, eight and so on: never more than a seventeenth longer than was asked for.
pub fn to_the_end_of_the_day(ended_at: Timestamp, kept: Duration) -> Timestamp {
    let until = ended_at + kept;
    let days = i64::try_from(kept.as_micros()).unwrap_or(i64::MAX) / DAY_US;
    if days == 0 {
        return until;
    }
    let together = ((days + PLACES - 1) / PLACES).cast_unsigned().next_power_of_two().cast_signed();
    let span = together * DAY_US;
    Timestamp::from_micros((until.as_micros() + span - 1) / span * span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_early_and_nothing_much_later() {
        for hour in 0..48 {
            let ended_at = Timestamp::from_micros(20_000 * DAY_US + hour * DAY_US / 24 + 5);
            for days in [1.0, 1.5, 7.0, 34.9, 35.0, 36.0, 71.0, 400.0, 3650.0] {
                let kept = Duration::from_secs_f64(days * 86_400.0);
                let until = to_the_end_of_the_day(ended_at, kept);
                assert_eq!(until.as_micros() % DAY_US, 0, "{days}");
                assert!(until >= ended_at + kept, "{days}");
                let late = until.since(ended_at + kept).as_secs_f64() / 86_400.0;
                assert!(late < 1.0 || late <= days / 17.0, "{days} days: {late} late");
            }
        }
    }

    #[test]
    fn less_than_a_day_is_taken_at_its_word() {
        let ended_at = Timestamp::from_micros(20_000 * DAY_US + 5);
        for kept in [Duration::ZERO, Duration::from_secs(864), Duration::from_micros(DAY_US as u64 - 1)] {
            assert_eq!(to_the_end_of_the_day(ended_at, kept), ended_at + kept);
        }
    }

    #[test]
    fn the_ends_of_any_retention_are_few() {
        for days in [1, 7, 35, 36, 100, 400, 3650] {
            let ends: std::collections::BTreeSet<Timestamp> = (0..=days)
                .map(|day| Timestamp::from_micros((20_000 + day) * DAY_US))
                .map(|ended_at| to_the_end_of_the_day(ended_at, Duration::from_micros((days * DAY_US) as u64)))
                .collect();
            assert!(ends.len() as i64 <= PLACES + 2, "{days} days: {}", ends.len());
        }
    }
}
