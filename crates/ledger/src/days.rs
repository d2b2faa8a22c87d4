//! Ended tasks that go a whole day at a time, in stores that can do that.
//!
//! How many tasks a day has must be known before they go, because every entry of the log says how many are left. Counting
//! takes a while, and nobody waits for it. So a day goes in two transactions. The first **closes** it: whatever comes after
//! that in the log is later than the end of the day, so no task can end into it any more, and what is past its retention
//! cannot be changed ([`Ledger`] takes it for gone). Then it is counted, at leisure. The second transaction takes it out of
//! the counts, and nobody sees its tasks any more; the store clears away what is left of it when it can.

use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::journal::{Journal, JournalResult};
use crate::ledger::Ledger;

/// All ended tasks that are kept to the same day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Day {
    /// Its number.
    pub no: i32,
    /// When it ends. No task of it is kept longer.
    pub ends_at: Timestamp,
}

/// How a day stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayState {
    /// Tasks may come and go.
    Open,
    /// Nothing comes or goes any more.
    Closed,
    /// It is gone with all its tasks.
    Gone,
}

/// What is next to be done about days that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayStep {
    /// Nothing for now.
    Nothing,
    /// A slice of what needs no transaction was done, and there is more.
    More,
    /// This one is to be closed.
    Close(Day),
    /// This one is closed and may go. It has so many tasks by status, index = [`Status::code`].
    Drop(Day, [u64; 8]),
}

impl Ledger {
    /// Closes a day that is over, unless somebody has.
    pub fn close_day(&mut self, journal: &mut dyn Journal, day: Day) -> JournalResult<()> {
        // By the time of this transaction and not of whoever asked: it is what all later ones come after.
        if self.now > day.ends_at && journal.day(day.no)? == DayState::Open {
            journal.put_day(day.no, DayState::Closed)?;
        }
        Ok(())
    }

    /// Lets a closed day go with its tasks, unless it is gone. Returns how many went.
    pub fn drop_day(&mut self, journal: &mut dyn Journal, day: Day, ended: &[u64; 8]) -> JournalResult<usize> {
        if journal.day(day.no)? != DayState::Closed {
            return Ok(0);
        }
        journal.put_day(day.no, DayState::Gone)?;
        for status in Status::ALL {
            let count = ended[usize::from(status.code())];
            if count > 0 {
                self.count_ended(status, -i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        Ok(usize::try_from(ended.iter().sum::<u64>()).unwrap_or(usize::MAX))
    }
}
