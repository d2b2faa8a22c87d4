//! The load of a run: server processes, and clients that submit, work, look and cancel while something breaks. Everything
//! they do is recorded. The crash test and the chaos test share it.

pub mod observer;
mod results;
pub mod server;
pub mod settle;
pub mod submitter;
pub mod worker;
pub mod workload;
pub mod world;

use std::time::Duration;

use tokio::task::JoinHandle;

use crate::error::HarnessError;

/// Clients that have not finished after this long are stuck.
const CLIENTS_WITHIN: Duration = Duration::from_mins(1);

/// Refusals that belong to a run in which things break and workers misbehave on purpose, by call and code.
const EXPECTED_REFUSALS: [(&str, &[&str]); 7] = [
    ("submit", &["429 queue_full", "503 draining", "503 store_unavailable"]),
    ("register", &["503 store_unavailable"]),
    ("poll", &["503 store_unavailable", "404 worker_not_found"]),
    ("result", &["503 store_unavailable", "404 worker_not_found", "409 lease_lost"]),
    ("result item", &["lease_lost"]),
    ("heartbeat", &["503 store_unavailable", "404 worker_not_found"]),
    ("cancel", &["503 store_unavailable", "409 not_cancellable"]),
];

/// Whether a refusal, such as `poll: 503 store_unavailable`, is one that a run may meet.
pub fn is_expected(refusal: &str) -> bool {
    let Some((call, code)) = refusal.split_once(": ") else { return false };
    let reads = call == "read" && code == "503 store_unavailable";
    reads || EXPECTED_REFUSALS.iter().any(|(name, codes)| *name == call && codes.contains(&code))
}

/// Waits for clients that end by themselves.
pub async fn join(who: &str, clients: Vec<JoinHandle<()>>) -> Result<(), HarnessError> {
    let all = async {
        for client in clients {
            client.await.map_err(|error| HarnessError::Server(format!("one of the {who} failed: {error}")))?;
        }
        Ok(())
    };
    within_time(who, all).await?
}

/// Waits for clients, but not for ever.
pub async fn within_time<T>(who: &str, future: impl Future<Output = T>) -> Result<T, HarnessError> {
    let finished = tokio::time::timeout(CLIENTS_WITHIN, future).await;
    finished.map_err(|_| HarnessError::Server(format!("the {who} did not finish within {CLIENTS_WITHIN:?}")))
}
