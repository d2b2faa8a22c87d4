//! Who the worker is to the server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::client::path_part;
use crate::protocol::{Health, Registered};

/// The id and rhythm that registration gave. They change when a server that forgot the worker is told about it again.
#[derive(Debug, Default)]
pub(crate) struct Identity(Mutex<Known>);

#[derive(Clone, Debug, Default)]
struct Known {
    worker_id: Option<String>,
    heartbeat: Duration,
    health: Option<Health>,
}

impl Identity {
    fn known(&self) -> Known {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn registered(&self, answer: &Registered) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Known {
            worker_id: Some(answer.worker_id.clone()),
            heartbeat: Duration::from_millis(answer.heartbeat_interval_ms.max(10)),
            health: None,
        };
    }

    /// The server does not know this id any more; false if that is no news.
    pub(crate) fn forgotten(&self, worker_id: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = known.worker_id.as_deref() == Some(worker_id);
        if is_news {
            known.worker_id = None;
        }
        is_news
    }

    /// What the last heartbeat said of the machine.
    pub(crate) fn health(&self) -> Option<Health> {
        self.known().health
    }

    pub(crate) fn keep_health(&self, health: Option<Health>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).health = health;
    }

    pub(crate) fn worker_id(&self) -> Option<String> {
        self.known().worker_id
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        self.known().heartbeat
    }

    /// The path of a worker's call.
    pub(crate) fn path(&self, call: &str) -> String {
        Self::path_of(self.known().worker_id.as_deref().unwrap_or("unregistered"), call)
    }

    pub(crate) fn path_of(worker_id: &str, call: &str) -> String {
        format!("/internal/workers/{}/{call}", path_part(worker_id))
    }
}
