//! The way from a running handler to Windlass.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::context::Attempt;
use crate::error::Error;
use crate::protocol::{Acknowledged, Beaten, Heartbeat, Held, StepCall};
use crate::stop::StopReason;
use crate::task_error::{TaskError, TaskResult};
use crate::worker::identity::Identity;

/// How long one call of a handler may take before it is sent again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a renewal that a handler asks for is tried.
const RENEW_TRIES: u32 = 5;

/// What a handler talks through: a live worker, or nothing at all in a test of the handler alone.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    Live {
        client: Client,
        identity: Arc<Identity>,
        /// Wakes the thread that sends progress.
        pulse: Arc<Notify>,
    },
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "made by test helpers only"))]
    Alone,
}

impl Link {
    pub(crate) fn client(&self) -> Result<&Client, Error> {
        match self {
            Self::Live { client, .. } => Ok(client),
            Self::Alone => Err(Error::Worker("a handler that is run inline has no client".to_owned())),
        }
    }

    pub(crate) fn progress_changed(&self) {
        if let Self::Live { pulse, .. } = self {
            pulse.notify_one();
        }
    }

    /// Renews one lease; false if it is lost.
    pub(crate) async fn renew(&self, attempt: &Attempt) -> TaskResult<bool> {
        let Self::Live { client, identity, .. } = self else { return Ok(true) };
        // A heartbeat tells of the whole worker, so it says what the last one said.
        let status = if attempt.shutdown.is_stopped() { "draining" } else { "active" };
        let held = Held { task_id: &attempt.task.task_id, lease_token: &attempt.task.lease_token };
        let beat = Heartbeat { current_load: 1, status, tasks: vec![held], health: identity.health() };
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
        let mut tries_left = RENEW_TRIES;
        let beaten: Beaten = loop {
            tries_left -= 1;
            match client.post_once(&identity.path("heartbeat"), &beat, CALL_TIMEOUT).await {
                Ok(beaten) => break beaten,
                Err(error) if tries_left == 0 || error.problem().is_some_and(|problem| !problem.is_passing()) => {
                    return Err(error.into());
                }
                Err(_) => tokio::time::sleep(backoff.next()).await,
            }
        };
        if beaten.cancel.contains(&attempt.task.task_id) {
            attempt.stop.stop(StopReason::Cancelled);
        } else if beaten.lost.contains(&attempt.task.task_id) {
            attempt.stop.stop(StopReason::LeaseLost);
        }
        Ok(!attempt.stop.is_stopped())
    }

    /// Stores the result of a step, however long Windlass is away, as long as the attempt is wanted.
    pub(crate) async fn record_step(&self, attempt: &Attempt, name: &str, result: &RawValue) -> TaskResult<()> {
        let Self::Live { client, identity, .. } = self else { return Ok(()) };
        let body = StepCall { task_id: &attempt.task.task_id, lease_token: &attempt.task.lease_token, name, result };
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            let stored = client.post_once::<Acknowledged>(&identity.path("step"), &body, CALL_TIMEOUT).await;
            let trouble = match stored {
                Ok(Acknowledged {}) => return Ok(()),
                Err(Error::Refused(problem)) if problem.blames_the_body() || problem.is_about_the_lease() => {
                    if problem.code == "lease_lost" {
                        attempt.stop.stop(StopReason::LeaseLost);
                    }
                    let message = format!("step {name} was not stored: {problem}");
                    return Err(TaskError::permanent(message).code(problem.code.clone()));
                }
                Err(trouble) => trouble,
            };
            tokio::select! {
                reason = attempt.stop.stopped() => {
                    let message = format!("step {name} was not stored before the attempt was stopped ({reason:?}): {trouble}");
                    return Err(TaskError::retry(message));
                }
                () = tokio::time::sleep(backoff.next().max(trouble.retry_after())) => {}
            }
        }
    }
}
