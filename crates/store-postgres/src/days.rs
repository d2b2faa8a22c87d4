//! Days of ended tasks that are over: counted when they are closed, cleared away when they are gone.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::types::Type;
use windlass_cluster::backend::BackendError;
use windlass_core::time::Timestamp;
use windlass_ledger::days::{Day, DayState, DayStep};

use crate::backend::PostgresBackend;
use crate::partitions::{ends_at, last_day_over};
use crate::pool::Param;
use crate::rows::{self, Rows, get};

/// Tasks that one slice counts, at most and at least: after one that was too much for a statement the next ones are smaller.
const COUNTED_TASKS: [i64; 2] = [20_000, 100];
/// Likewise, tasks that one slice clears of what hangs on them: none for most, thousands of rows for some.
const CLEARED_TASKS: [i64; 2] = [5_000, 10];

/// After somebody was found to read a day that is to be dropped, how long not to ask again: who asks holds others up for a
/// moment.
const LET_READ: Duration = Duration::from_secs(10);

/// How far a look through a day has come.
#[derive(Clone, Copy, Default)]
struct Walk {
    day: i32,
    /// The last key that was looked at.
    after: i64,
    /// Tasks by status.
    ended: [u64; 8],
    /// Slices that did not work, less those that did since.
    failures: u32,
}

impl Walk {
    /// How many tasks the next slice has.
    fn slice(&self, [most, least]: [i64; 2]) -> i64 {
        (most >> (2 * self.failures).min(62)).max(least)
    }

    fn worked(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }
}

/// Where the next look begins. Whoever begins anew only does again what is done.
#[derive(Default)]
pub(crate) struct Walks {
    counting: Mutex<Walk>,
    clearing: Mutex<Walk>,
    /// Nothing is dropped before this.
    drop_from: AtomicI64,
}

impl Walks {
    /// What was counted may be of another time: before a day was closed, or of a log that was not the one that we knew.
    pub(crate) fn forget(&self) {
        *lock(&self.counting) = Walk::default();
        *lock(&self.clearing) = Walk::default();
        self.drop_from.store(0, Ordering::Relaxed);
    }
}

fn lock(walk: &Mutex<Walk>) -> MutexGuard<'_, Walk> {
    walk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a look through this day has come to.
fn come_to(walk: &Mutex<Walk>, day: i32) -> Walk {
    let walk = *lock(walk);
    if walk.day == day { walk } else { Walk { day, ..Walk::default() } }
}

/// Notes that a slice did not work, so that the next one is smaller.
fn failed_once_more<T>(answer: Result<T, BackendError>, of: &Mutex<Walk>, walk: Walk) -> Result<T, BackendError> {
    if answer.is_err() {
        *lock(of) = Walk { failures: walk.failures.saturating_add(1), ..walk };
    }
    answer
}

fn state(gone: Option<bool>) -> DayState {
    match gone {
        None => DayState::Open,
        Some(false) => DayState::Closed,
        Some(true) => DayState::Gone,
    }
}

impl PostgresBackend {
    pub(crate) async fn next_day_step(&self, now: Timestamp) -> Result<DayStep, BackendError> {
        let last = last_day_over(now);
        let days = self.one((&self.sql.days_over, vec![(&last, Type::INT4)])).await?;
        let days: Vec<(i32, DayState)> =
            days.iter().map(|row| Ok((get(row, 0)?, state(get(row, 1)?)))).collect::<Rows<_>>()?;
        // What others can see comes first; nobody waits for the rest.
        for (no, state) in &days {
            let day = Day { no: *no, ends_at: ends_at(*no) };
            match state {
                DayState::Open => {
                    self.walks.forget();
                    return Ok(DayStep::Close(day));
                }
                DayState::Closed => {
                    return Ok(self.count_day(*no).await?.map_or(DayStep::More, |ended| DayStep::Drop(day, ended)));
                }
                DayState::Gone => {}
            }
        }
        match days.first() {
            Some((no, _)) if self.clear_day(*no, now).await? => Ok(DayStep::More),
            Some(_) | None => Ok(DayStep::Nothing),
        }
    }

    /// Counts a slice of a closed day; when all of it is counted, says how many tasks it has by status.
    async fn count_day(&self, day: i32) -> Result<Option<[u64; 8]>, BackendError> {
        let mut walk = come_to(&self.walks.counting, day);
        let tasks = walk.slice(COUNTED_TASKS);
        let params: Vec<Param<'_>> = vec![(&day, Type::INT4), (&walk.after, Type::INT8), (&tasks, Type::INT8)];
        let found = self.one((&self.sql.count_day, params)).await;
        let found = failed_once_more(found, &self.walks.counting, walk)?;
        walk.worked();
        let mut counted = 0;
        for row in &found {
            let count = rows::number(row, 1)?;
            counted += count;
            walk.ended[usize::from(rows::status(get(row, 0)?)?.code())] += count;
            walk.after = walk.after.max(get(row, 2)?);
        }
        let is_whole = counted < tasks as u64;
        // Whoever counts it again, because the day did not go, begins anew: it may not be the same day any more.
        *lock(&self.walks.counting) = if is_whole { Walk::default() } else { walk };
        Ok(is_whole.then_some(walk.ended))
    }

    /// Clears away a slice of what hangs on the tasks of a day that is gone; when nothing is left, drops the day. False if
    /// it must wait for somebody who reads it.
    async fn clear_day(&self, day: i32, now: Timestamp) -> Result<bool, BackendError> {
        if now.as_micros() < self.walks.drop_from.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut walk = come_to(&self.walks.clearing, day);
        let tasks = walk.slice(CLEARED_TASKS);
        let params: Vec<Param<'_>> = vec![(&day, Type::INT4), (&walk.after, Type::INT8), (&tasks, Type::INT8)];
        let cleared = self.one((&self.sql.clear_day, params)).await;
        let cleared = failed_once_more(cleared, &self.walks.clearing, walk)?;
        walk.worked();
        let (count, last) = match cleared.first() {
            Some(row) => (get::<i64>(row, 0)?, get::<Option<i64>>(row, 1)?),
            None => (0, None),
        };
        walk.after = last.unwrap_or(walk.after);
        *lock(&self.walks.clearing) = walk;
        if count == tasks {
            return Ok(true);
        }
        let dropped = self.one((&self.sql.drop_partition, vec![(&day, Type::INT4)])).await?;
        let is_dropped = dropped.first().map(|row| get::<bool>(row, 0)).transpose()? == Some(true);
        if is_dropped {
            self.forget_day(day);
        } else {
            self.walks.drop_from.store((now + LET_READ).as_micros(), Ordering::Relaxed);
            tracing::debug!(day, "history that is over is being read; its partition is dropped later");
        }
        Ok(is_dropped)
    }

    pub(crate) async fn day_state(&self, no: i32) -> Result<DayState, BackendError> {
        let found = self.one((&self.sql.day_state, vec![(&no, Type::INT4)])).await?;
        found.first().map_or(Ok(DayState::Gone), |row| Ok(state(get(row, 0)?)))
    }
}
