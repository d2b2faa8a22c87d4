//! Tasks that others wrote into the store's inbox: stored as submits, under the ids they have
//! already.

use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::failure::{EndReason, ErrorClass, ErrorReport};
use windlass_core::ids::TaskKey;
use windlass_core::store::{Intake, KnownBy, SubmitError, Submitted};
use windlass_core::task::FailedAttempt;
use windlass_core::time::Timestamp;
use windlass_core::transition::{Trigger, transition};

use crate::claim::missing;
use crate::finish::given_up;
use crate::journal::{Journal, JournalResult, Needs};
use crate::ledger::{Ending, Ledger, Move, moved};
use crate::submit::Prepared;

/// The code of what is in the inbox and can be no task.
const INVALID_TASK: &str = "invalid_task";

/// An item with what can be computed before it is its turn.
#[derive(Debug)]
pub struct Incoming {
    no: i64,
    key: TaskKey,
    created_at: Timestamp,
    task: Prepared,
    refused: Option<String>,
}

impl Incoming {
    /// Computes what needs no look at the store.
    pub fn new(item: Intake) -> Self {
        let Intake { no, key, created_at, task, refused } = item;
        Self { no, key, created_at, task: Prepared::new(task).known_as(key, created_at), refused }
    }

    pub(crate) fn needs(&self, needs: &mut Needs) {
        self.task.needs(needs);
        // To see whether another node has taken it.
        needs.tasks.push(self.key);
    }
}

/// The id under which a task is known before it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownAs {
    pub(crate) key: TaskKey,
    pub(crate) created_at: Timestamp,
}

impl Ledger {
    /// See [`windlass_core::store::Store::take_in`].
    pub fn take_in(
        &mut self,
        journal: &mut dyn Journal,
        items: &[Incoming],
    ) -> JournalResult<Vec<Result<Submitted, SubmitError>>> {
        items.iter().map(|item| self.take_in_one(journal, item)).collect()
    }

    fn take_in_one(
        &mut self,
        journal: &mut dyn Journal,
        item: &Incoming,
    ) -> JournalResult<Result<Submitted, SubmitError>> {
        // Two nodes that lead for a moment may both have read it; who is second finds the task of the first.
        if self.index.task(item.key).is_some() || journal.ended(item.key)?.is_some() {
            return self.known(journal, item.key, item.created_at, KnownBy::IdempotencyKey).map(Ok);
        }
        if let Some(reason) = &item.refused {
            return self.take_in_dead(journal, item, reason).map(Ok);
        }
        let answer = match self.submit(journal, std::slice::from_ref(&item.task))? {
            Ok(mut answers) => answers.pop(),
            Err(error @ (SubmitError::IdempotencyKeyReused { .. } | SubmitError::UniqueConflict { .. })) => {
                return self.take_in_dead(journal, item, &error.to_string()).map(Ok);
            }
            // There will be room, or time.
            Err(error) => return Ok(Err(error)),
        };
        let Some(answer) = answer else { return self.take_in_dead(journal, item, "it is no task").map(Ok) };
        if answer.is_known() {
            let stored = self.insert(journal, &item.task.without_keys(), Actor::Api)?;
            let note = format!("task {} is there already", answer.id);
            self.cancel_with_note(journal, stored.id, note)?;
        }
        journal.take_from_inbox(item.no);
        Ok(Ok(answer))
    }

    fn take_in_dead(&mut self, journal: &mut dyn Journal, item: &Incoming, reason: &str) -> JournalResult<Submitted> {
        let stored = self.insert(journal, &item.task.without_keys(), Actor::Api)?;
        let (key, class) = (item.key, ErrorClass::Permanent);
        let task = self.index.task(key).ok_or_else(|| missing(key))?;
        let effect = transition(task.status, Trigger::Bury).map_err(|_| missing(key))?;
        // No attempt was made. It is told as one all the same, because that is where people look for what went wrong.
        let error = ErrorReport::internal(INVALID_TASK, reason.to_owned());
        let now = self.now;
        let attempt = FailedAttempt { attempt: 0, worker: None, started_at: now, ended_at: now, class, error };
        journal.insert_attempt(key, &attempt)?;
        let past = Self::past(journal, key, &task, None)?;
        let ended = moved(task, &effect, now, Duration::ZERO);
        let end = EndReason::PermanentError;
        let change = given_up(ended, end, Some(class), Some(INVALID_TASK.to_owned()), Some(reason.to_owned()));
        let step = Move::new(key, task.status, ended, effect, past, change, Actor::System);
        self.end(journal, step, Ending { reason: Some(end), result: None })?;
        journal.take_from_inbox(item.no);
        Ok(stored)
    }
}
