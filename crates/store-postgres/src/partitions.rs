//! The days that ended tasks are sorted by: a day that is over is dropped whole.

use windlass_core::retention::DAY_US;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::Ended;

/// The partition of dead letters.
const DEAD: i32 = -1;
/// The partition of what is kept for ever.
const FOREVER: i32 = 0;

/// The partition that a task belongs in: the last day that it is kept on. When that is over, everything in it may go.
pub(crate) fn drop_day(ended: &Ended) -> i32 {
    if ended.status == Status::DeadLetter {
        return DEAD;
    }
    let Some(until) = ended.keep_until else { return FOREVER };
    ((until.as_micros() - 1) / DAY_US).clamp(1, i32::MAX.into()) as i32
}

/// When a day ends.
pub(crate) fn ends_at(day: i32) -> Timestamp {
    Timestamp::from_micros((i64::from(day) + 1) * DAY_US)
}

/// The last day that has ended before `now`: a task that ends now and goes at once still belongs in a later one.
pub(crate) fn last_day_over(now: Timestamp) -> i32 {
    ((now.as_micros() - 1) / DAY_US - 1).clamp(0, i32::MAX.into()) as i32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_core::retention::to_the_end_of_the_day;

    use super::*;

    fn ended(status: Status, kept_days: Option<f64>) -> Ended {
        let ended_at = Timestamp::from_micros(20_000 * DAY_US + 5);
        Ended {
            status,
            reason: None,
            version: 1,
            attempt: 1,
            retries: 0,
            crashes: 0,
            timeouts: 0,
            ready_at: ended_at,
            run_at: ended_at,
            started_at: None,
            ended_at,
            worker: None,
            result: None,
            applied: None,
            event_nos: Vec::new(),
            keep_until: kept_days.map(|days| ended_at + Duration::from_secs_f64(days * 86_400.0)),
        }
    }

    #[test]
    fn a_partition_never_goes_before_its_tasks_may() {
        for days in [0.0, 0.5, 1.0, 7.0, 34.9, 36.0, 400.0] {
            let ended = ended(Status::Completed, Some(days));
            let until = ended.keep_until.expect("a time");
            let day = drop_day(&ended);
            assert!(last_day_over(until) < day && ends_at(day) >= until, "{days}");
            assert_eq!(last_day_over(until + Duration::from_micros(DAY_US as u64)), day, "{days}");
        }
        assert_eq!(drop_day(&ended(Status::Completed, None)), FOREVER);
        assert_eq!(drop_day(&ended(Status::DeadLetter, Some(1.0))), DEAD);
    }

    #[test]
    fn a_task_that_is_kept_to_the_end_of_a_day_goes_with_that_day() {
        let mut ended = ended(Status::Completed, None);
        let until = to_the_end_of_the_day(ended.ended_at, Duration::from_hours(7 * 24));
        ended.keep_until = Some(until);
        assert_eq!((drop_day(&ended), ends_at(drop_day(&ended))), (20_007, until));
        assert_eq!(last_day_over(until), 20_006, "what ends at this very moment may still belong in it");
        assert_eq!(last_day_over(until + Duration::from_micros(1)), 20_007);
    }
}
