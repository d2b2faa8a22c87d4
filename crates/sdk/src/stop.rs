//! Being told to stop.

use std::sync::Arc;

use tokio::sync::watch;

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody cancelled the task.
    Cancelled,
    /// Its time is over.
    TimedOut,
    /// The lease is lost: another worker may run it by now.
    LeaseLost,
    /// This worker shuts down and its patience has ended.
    Shutdown,
}

/// Tells a handler, once, that it should stop. Cheap to clone, and fine to look at from any thread.
#[derive(Clone, Debug)]
pub struct StopToken {
    sender: Arc<watch::Sender<Option<StopReason>>>,
}

impl Default for StopToken {
    fn default() -> Self {
        Self { sender: Arc::new(watch::Sender::new(None)) }
    }
}

impl StopToken {
    /// Why it should stop, if it should.
    pub fn reason(&self) -> Option<StopReason> {
        *self.sender.borrow()
    }

    /// Whether it should stop.
    pub fn is_stopped(&self) -> bool {
        self.reason().is_some()
    }

    /// Resolves when it should stop.
    pub async fn stopped(&self) -> StopReason {
        let mut receiver = self.sender.subscribe();
        loop {
            if let Some(reason) = *receiver.borrow_and_update() {
                return reason;
            }
            // The sender lives as long as this token.
            let _ = receiver.changed().await;
        }
    }

    /// Says it. The first reason stays.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.sender.send_if_modified(|current| {
            let is_first = current.is_none();
            current.get_or_insert(reason);
            is_first
        });
    }
}
