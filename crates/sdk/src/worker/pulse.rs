//! The pulse: a thread of its own, with a runtime and connections of its own, so that handlers that keep every other
//! thread busy cannot stop heartbeats, progress, signals or the health page.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::context::Attempt;
use crate::error::{Error, Result};
use crate::protocol::{Beaten, Heartbeat, Held, Outcome, ProgressCall, ProgressTaken, Results};
use crate::random;
use crate::stop::{StopReason, StopToken};
use crate::worker::common::Common;
use crate::worker::health::{self, HealthPage};
use crate::worker::identity::Identity;
use crate::worker::lane::Lane;
use crate::worker::load::LoadMeter;
use crate::worker::outbox::CALL_RESULTS;

/// After a heartbeat without an answer the next follows sooner, whatever the server asks for: leases hang on it.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// After so many in a row the connections are taken for dead and made anew.
const FAILURES_UNTIL_REBUILD: u32 = 3;
/// What is said to a server while leaving must be said quickly.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// After handlers had to be abandoned, the program has this long to end by itself.
const RUNTIME_GRACE: Duration = Duration::from_secs(3);

/// See the module.
pub(crate) struct Pulse {
    pub(crate) common: Arc<Common>,
    pub(crate) lanes: Arc<[Arc<Lane>]>,
    /// Set when all lanes have ended.
    pub(crate) lanes_ended: StopToken,
    /// Set when the worker has left the server.
    pub(crate) left: StopToken,
    /// Whether signals of the process stop the worker.
    pub(crate) heeds_signals: bool,
    pub(crate) health_page: Option<std::net::TcpListener>,
}

impl Pulse {
    /// Starts the thread.
    pub(crate) fn start(self) -> Result<JoinHandle<()>> {
        let failed = |error: std::io::Error| Error::Worker(format!("cannot start the heartbeat thread: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        std::thread::Builder::new()
            .name("windlass-pulse".to_owned())
            .spawn(move || runtime.block_on(self.run()))
            .map_err(failed)
    }

    async fn run(self) {
        let client = match self.common.client.for_own_runtime() {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%error, "no connections for heartbeats; sharing those of the worker");
                self.common.client.clone()
            }
        };
        if let Some(listener) = self.health_page {
            let page = HealthPage { common: Arc::clone(&self.common), lanes: Arc::clone(&self.lanes) };
            tokio::spawn(health::serve(listener, page));
        }
        if self.heeds_signals {
            tokio::spawn(heed_signals(self.common.stopping.clone()));
        }
        let beats = tokio::spawn(beat(Arc::clone(&self.common), Arc::clone(&self.lanes), client.clone()));
        let progress = tokio::spawn(send_progress(Arc::clone(&self.common), Arc::clone(&self.lanes), client.clone()));

        self.common.stopping.stopped().await;
        let timeout = self.common.settings.shutdown_timeout;
        let mut abandoned = 0;
        if tokio::time::timeout(timeout, self.lanes_ended.stopped()).await.is_err() {
            abandoned = release_rest(&self.lanes, &client).await;
        }
        beats.abort();
        progress.abort();
        for lane in &*self.lanes {
            deregister(lane, &client).await;
        }
        self.left.stop(StopReason::Shutdown);
        if self.heeds_signals && abandoned > 0 {
            // A handler that keeps its thread keeps the application's runtime, and with it the process, alive without
            // end. Its task is released. If the program ends by itself, this thread ends with it.
            tokio::time::sleep(RUNTIME_GRACE).await;
            tracing::warn!(abandoned, "handlers do not give their threads back; leaving without them");
            std::process::exit(0);
        }
    }
}

/// Signals: the first stops gracefully, the second at once.
async fn heed_signals(stopping: StopToken) {
    use tokio::signal::unix::{SignalKind, signal};
    // Once for both: a second signal must not fall between two listeners.
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot listen to signals");
            return;
        }
    };
    let mut signalled = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    signalled().await;
    tracing::info!("stopping: no new tasks; what runs may finish (a second signal stops at once)");
    stopping.stop(StopReason::Shutdown);
    signalled().await;
    tracing::warn!("stopped at once by a second signal; what ran comes back when its lease lapses");
    std::process::exit(130);
}

/// Sends what was not sent and gives back whatever still runs; those attempts do not count. Says how many that were.
async fn release_rest(lanes: &[Arc<Lane>], client: &Client) -> usize {
    // All of them first: whatever goes wrong below, nobody goes on working for a worker that has left.
    let rest: Vec<_> = lanes.iter().map(|lane| (lane, lane.take_rest(StopReason::Shutdown))).collect();
    let mut abandoned = 0;
    for (lane, results) in rest.into_iter().filter(|(_, results)| !results.is_empty()) {
        let path = lane.identity.path("result");
        let released = results.iter().filter(|result| matches!(result.outcome, Outcome::Released)).count();
        abandoned += released;
        tracing::warn!(
            released,
            results = results.len() - released,
            "the shutdown timeout is over; giving back what runs"
        );
        for results in results.chunks(CALL_RESULTS) {
            if let Err(error) = client.post_once::<serde_json::Value>(&path, &Results { results }, LAST_WORDS).await {
                tracing::warn!(%error, "could not say it; these tasks come back when their leases lapse");
            }
        }
    }
    abandoned
}

async fn deregister(lane: &Lane, client: &Client) {
    let Some(worker_id) = lane.identity.worker_id() else { return };
    let path = format!("/internal/workers/{worker_id}");
    if let Err(error) = client.delete_once(&path, LAST_WORDS).await {
        tracing::warn!(%error, "could not deregister; the server will notice by itself");
    }
}

/// Sends heartbeats for all lanes, for ever.
async fn beat(common: Arc<Common>, lanes: Arc<[Arc<Lane>]>, mut client: Client) {
    let mut load = LoadMeter::new(common.settings.reports_cpu);
    let mut failures = 0;
    loop {
        let interval = lanes.iter().map(|lane| lane.identity.heartbeat()).filter(|interval| !interval.is_zero()).min();
        let Some(interval) = interval else {
            // Not registered yet.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Not all at once when a server is back.
        let sooner = || AFTER_FAILURE.mul_f64(0.5 + random::fraction() / 2.0);
        tokio::time::sleep(if failures > 0 { interval.min(sooner()) } else { interval }).await;
        let health = load.sample();
        let mut answered = true;
        for lane in &*lanes {
            let Some(worker_id) = lane.identity.worker_id() else { continue };
            let attempts = lane.attempts();
            lane.identity.keep_health(health);
            let status = if common.stopping.is_stopped() { "draining" } else { "active" };
            let tasks: Vec<_> = attempts.iter().map(|attempt| held_of(attempt)).collect();
            let body = Heartbeat { current_load: lane.load(), status, tasks, health };
            let path = Identity::path_of(&worker_id, "heartbeat");
            let timeout = interval.clamp(Duration::from_secs(1), Duration::from_secs(5));
            match client.post_once::<Beaten>(&path, &body, timeout).await {
                Ok(beaten) => {
                    common.stats.connected();
                    heed(lane, &attempts, &common, &beaten);
                }
                Err(Error::Refused(problem)) if problem.code == "worker_not_found" => lane.forgotten(&worker_id),
                Err(error) => {
                    answered = false;
                    common.stats.heartbeat_failed();
                    tracing::warn!(%error, "a heartbeat got no answer");
                }
            }
        }
        if answered && failures > 0 {
            // The server is back, or was reached another way.
            for lane in &*lanes {
                lane.suspect_poll();
            }
        }
        failures = if answered { 0 } else { failures + 1 };
        if failures > 0 && failures % FAILURES_UNTIL_REBUILD == 0 {
            match common.client.for_own_runtime() {
                Ok(rebuilt) => client = rebuilt,
                Err(error) => tracing::error!(%error, "cannot rebuild the connections"),
            }
        }
    }
}

fn held_of(attempt: &Arc<Attempt>) -> Held<'_> {
    Held { task_id: &attempt.task.task_id, lease_token: &attempt.task.lease_token }
}

/// Does what the answer to a heartbeat asks for.
fn heed(lane: &Lane, named: &[Arc<Attempt>], common: &Common, beaten: &Beaten) {
    for task in &beaten.cancel {
        lane.cancelled(task);
    }
    // Only what this heartbeat named: by now a newer attempt at the same task may be here.
    for attempt in named.iter().filter(|attempt| beaten.lost.contains(&attempt.task.task_id)) {
        attempt.stop.stop(StopReason::LeaseLost);
    }
    if beaten.should_drain && !common.stopping.is_stopped() {
        tracing::info!("drained by an operator: no new tasks; stops when what runs has finished");
        common.stopping.stop(StopReason::Shutdown);
    }
}

/// Sends progress as it becomes due, for ever.
async fn send_progress(common: Arc<Common>, lanes: Arc<[Arc<Lane>]>, client: Client) {
    const TIMEOUT: Duration = Duration::from_secs(5);
    loop {
        let mut look_again: Option<Instant> = None;
        for lane in &*lanes {
            let Some(worker_id) = lane.identity.worker_id() else { continue };
            let path = Identity::path_of(&worker_id, "progress");
            for attempt in lane.attempts() {
                let progress = match attempt.progress.take_due(Instant::now()) {
                    Ok(progress) => progress,
                    Err(None) => continue,
                    Err(Some(due)) => {
                        look_again = Some(look_again.map_or(due, |earlier| earlier.min(due)));
                        continue;
                    }
                };
                let body = ProgressCall {
                    task_id: &attempt.task.task_id,
                    lease_token: &attempt.task.lease_token,
                    progress: &progress,
                };
                match client.post_once::<ProgressTaken>(&path, &body, TIMEOUT).await {
                    Ok(taken) if taken.cancelled => attempt.stop.stop(StopReason::Cancelled),
                    Ok(_) => common.stats.connected(),
                    Err(Error::Refused(problem)) if problem.code == "lease_lost" => {
                        attempt.stop.stop(StopReason::LeaseLost);
                    }
                    // Progress is a courtesy: the next word will do.
                    Err(error) => tracing::debug!(%error, "progress was not taken"),
                }
            }
        }
        let pause = async {
            match look_again {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = common.pulse.notified() => {}
            () = pause => {}
        }
    }
}
