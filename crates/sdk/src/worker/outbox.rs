//! Results that Windlass has not acknowledged. They are kept, and sent again, until it has or their lease is lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::Attempt;
use crate::protocol::{Outcome, Outgoing};
use crate::task_error::Failure;
use crate::view::TaskId;

/// Results that one call carries at most, and about how many bytes: far below what a server takes.
pub(crate) const CALL_RESULTS: usize = 500;
const CALL_BYTES: usize = 4 * 1024 * 1024;

/// A result on its way.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) outgoing: Outgoing,
    /// How long the attempt took.
    pub(crate) took: Duration,
    /// The attempt had been told to stop when it ended: nobody will miss its result.
    pub(crate) was_stopped: bool,
    /// How often it was refused, and whether it must go alone to find out whether it is the one at fault.
    refusals: u32,
}

impl Unsent {
    pub(crate) fn new(attempt: Arc<Attempt>, outcome: Outcome) -> Self {
        let outgoing =
            Outgoing { task_id: attempt.task.task_id.clone(), lease_token: attempt.task.lease_token.clone(), outcome };
        let took = attempt.started.elapsed();
        let was_stopped = attempt.stop.is_stopped();
        Self { attempt, outgoing, took, was_stopped, refusals: 0 }
    }

    pub(crate) fn task_id(&self) -> &TaskId {
        &self.outgoing.task_id
    }

    pub(crate) fn token(&self) -> &str {
        &self.outgoing.lease_token
    }

    /// What to try after a refusal: first the same alone, then a failure that tells what was wrong, then nothing.
    pub(crate) fn after_refusal(mut self, why: &str) -> Option<Self> {
        self.refusals += 1;
        match self.refusals {
            1 => Some(self),
            2 => {
                let error = match self.outgoing.outcome {
                    // A failure stays what it is, without what may be too large or out of range.
                    Outcome::Failed { error } => Failure {
                        message: format!("{} (more about it was refused: {why})", error.message),
                        retriable: error.retriable,
                        ..Failure::default()
                    },
                    _ => Failure {
                        message: format!("the handler ended, but its result was refused: {why}"),
                        code: Some("result_refused".to_owned()),
                        retriable: Some(false),
                        ..Failure::default()
                    },
                };
                self.outgoing.outcome = Outcome::Failed { error };
                Some(self)
            }
            _ => None,
        }
    }

    /// About how many bytes it takes.
    fn size(&self) -> usize {
        const REST: usize = 512;
        let body = match &self.outgoing.outcome {
            Outcome::Completed { result, enqueue } => {
                let parameters = |size: usize, task: &crate::submission::Submission| {
                    size + REST + task.parameters.as_ref().map_or(0, |parameters| parameters.get().len())
                };
                enqueue.iter().fold(result.as_ref().map_or(0, |result| result.get().len()), parameters)
            }
            Outcome::Failed { error } => error.message.len() + error.stack.as_ref().map_or(0, String::len),
            Outcome::Snoozed { .. } | Outcome::Cancelled { .. } | Outcome::Released => 0,
        };
        body + REST
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Mutex<VecDeque<Unsent>>);

impl Outbox {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Unsent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue().len()
    }

    /// Everything, to be spoken for by somebody else.
    pub(crate) fn take_all(&self) -> Vec<Unsent> {
        self.queue().drain(..).collect()
    }

    pub(crate) fn push(&self, unsent: Unsent) {
        self.queue().push_back(unsent);
    }

    /// Back to the front, in their order.
    pub(crate) fn put_back(&self, unsent: Vec<Unsent>) {
        let mut queue = self.queue();
        for each in unsent.into_iter().rev() {
            queue.push_front(each);
        }
    }

    /// What the next call carries.
    pub(crate) fn take(&self) -> Vec<Unsent> {
        let mut queue = self.queue();
        let (mut count, mut bytes) = (0, 0);
        for unsent in queue.iter().take(CALL_RESULTS) {
            let is_alone = unsent.refusals > 0;
            bytes += unsent.size();
            if count > 0 && (bytes > CALL_BYTES || is_alone) {
                break;
            }
            count += 1;
            if is_alone {
                break;
            }
        }
        queue.drain(..count).collect()
    }
}
