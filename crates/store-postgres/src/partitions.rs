//! The days that ended tasks are sorted by: a day that is over is dropped whole.

use std::time::Duration;

use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::Ended;

/// The partition of dead letters.
const DEAD: i32 = -1;
/// The partition of what is kept for ever.
const FOREVER: i32 = 0;
const DAY_US: i64 = 24 * 3600 * 1_000_000;
/// Beyond so many days of retention, days are put together, so that there are never more than a few dozen partitions
/// to look through for a key.
const SINGLE_DAYS: i64 = 35;
/// How many are put together.
const DAYS_TOGETHER: i64 = 30;

/// The partition that a task belongs in: when that day is over, everything in it may go.
pub(crate) fn drop_day(ended: &Ended) -> i32 {
    if ended.status == Status::DeadLetter {
        return DEAD;
    }
    let Some(until) = ended.keep_until else { return FOREVER };
    let day = until.as_micros() / DAY_US;
    let kept = until.since(ended.ended_at);
    let day = if kept > Duration::from_micros((SINGLE_DAYS * DAY_US) as u64) {
        (day / DAYS_TOGETHER + 1) * DAYS_TOGETHER
    } else {
        day
    };
    day.clamp(1, i32::MAX.into()) as i32
}

/// The last day that is over: partitions up to it may be dropped.
pub(crate) fn last_day_over(now: Timestamp) -> i32 {
    (now.as_micros() / DAY_US - 1).clamp(0, i32::MAX.into()) as i32
}

#[cfg(test)]
mod tests {
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
        for days in [0.0, 0.5, 1.0, 7.0, 34.9, 35.0, 36.0, 400.0, 10_000.0] {
            let ended = ended(Status::Completed, Some(days));
            let until = ended.keep_until.expect("a time");
            let day = drop_day(&ended);
            assert!(last_day_over(until) < day, "{days}");
            assert!(i64::from(day) * DAY_US <= until.as_micros() + 31 * DAY_US, "{days}");
        }
        assert_eq!(drop_day(&ended(Status::Completed, None)), FOREVER);
        assert_eq!(drop_day(&ended(Status::DeadLetter, Some(1.0))), DEAD);
    }
}
