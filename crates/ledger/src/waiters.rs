//! Claims that wait for work. Those that serve the same lanes stand in one line, so that
//! one task wakes one of them and a thousand idle workers cost nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;
use windlass_core::ids::WorkerId;
use windlass_core::lane::Serves;
use windlass_core::store::{ClaimRequest, Claimed, WorkerError};

/// Where the answer to a claim goes.
pub(crate) type ClaimReply = oneshot::Sender<Result<Claimed, WorkerError>>;

pub(crate) struct Waiter {
    pub(crate) request: ClaimRequest,
    pub(crate) serves: Arc<Serves>,
    pub(crate) reply: ClaimReply,
}

#[derive(Default)]
pub(crate) struct Waiters {
    lines: HashMap<Arc<Serves>, VecDeque<Waiter>>,
}

impl Waiters {
    /// At the back of its line. Who left the line meanwhile is forgotten.
    pub(crate) fn join(&mut self, waiter: Waiter) {
        let line = self.lines.entry(Arc::clone(&waiter.serves)).or_default();
        while line.front().is_some_and(|first| first.reply.is_closed()) {
            line.pop_front();
        }
        line.push_back(waiter);
    }

    /// Back to the front, with its claim undone.
    pub(crate) fn rejoin(&mut self, waiter: Waiter) {
        self.lines.entry(Arc::clone(&waiter.serves)).or_default().push_front(waiter);
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// What each line serves. Lines that everybody left are forgotten.
    pub(crate) fn lines(&mut self) -> Vec<Arc<Serves>> {
        self.lines.retain(|_, line| line.iter().any(|waiter| !waiter.reply.is_closed()));
        self.lines.keys().cloned().collect()
    }

    /// The first of a line that still waits and may be served.
    pub(crate) fn next(&mut self, serves: &Arc<Serves>, may: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let line = self.lines.get_mut(serves)?;
        line.retain(|waiter| !waiter.reply.is_closed());
        let position = line.iter().position(may);
        let waiter = position.and_then(|position| line.remove(position));
        if line.is_empty() {
            self.lines.remove(serves);
        }
        waiter
    }

    /// One waiting claim of a worker.
    pub(crate) fn of_worker(&mut self, worker: WorkerId) -> Option<Waiter> {
        let serves = self.lines.iter().find_map(|(serves, line)| {
            let waits = |waiter: &Waiter| waiter.request.worker == worker && !waiter.reply.is_closed();
            line.iter().any(waits).then(|| Arc::clone(serves))
        })?;
        self.next(&serves, |waiter| waiter.request.worker == worker)
    }

    /// Everybody, to be sent away.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waiter> {
        self.lines.drain().flat_map(|(_, line)| line)
    }
}
