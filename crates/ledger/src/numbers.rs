//! The numbers of tasks, claims and event rows: they only grow, also over restarts.

use crate::journal::{Journal, JournalResult, Sequence};

/// Numbers of a sequence are reserved in blocks: one small write per block, and at most a
/// block is skipped at a restart.
const RESERVED: u64 = 65_536;

/// A sequence in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    sequence: Sequence,
    pub(crate) next: u64,
    ceiling: u64,
}

impl Numbers {
    pub(crate) fn new(sequence: Sequence, next: u64) -> Self {
        Self { sequence, next, ceiling: next }
    }

    /// The first of `count` fresh numbers.
    pub(crate) fn take(&mut self, count: u64, journal: &mut dyn Journal) -> JournalResult<u64> {
        let first = self.next;
        if first + count > self.ceiling {
            self.ceiling = first + count + RESERVED;
            journal.reserve(self.sequence, self.ceiling)?;
        }
        self.next = first + count;
        Ok(first)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AllNumbers {
    pub(crate) task: Numbers,
    pub(crate) claim: Numbers,
    pub(crate) event: Numbers,
}
