//! The way from a running handler to Windlass.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::context::Attempt;
use crate::error::Error;
use crate::protocol::{Acknowledged, Beaten, Health, Heartbeat, Held, StepCall};
use crate::stop::StopReason;
use crate::task_error::{TaskError, TaskResult};
use crate::worker::identity::Identity;

/// How long one call of a handler may take before it is sent again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

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
        let held = Held { task_id: &attempt.task.task_id, lease_token: &attempt.task.lease_token };
        let beat: Heartbeat<'_> =
            Heartbeat { current_load: 1, status: "active", tasks: vec![held], health: None::<Health> };
        let beaten: Beaten = client.post_once(&identity.path("heartbeat"), &beat, CALL_TIMEOUT).await?;
        let is_held = !beaten.lost.contains(&attempt.task.task_id) && !beaten.cancel.contains(&attempt.task.task_id);
        if !is_held {
            attempt.stop.stop(StopReason::LeaseLost);
        }
        Ok(is_held)
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
                Err(Error::Refused(problem)) if !problem.is_passing() => {
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
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}
