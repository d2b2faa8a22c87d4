//! What the clients of a run share: the address, the phase, the history, and how a call becomes records.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::checker::{FinalTask, is_ended};
use crate::clock::Clock;
use crate::history::{Op, Outcome, Record, Recorder};
use crate::http::{CallError, Client};

use super::workload::Workload;

/// Longer than any poll waits; after this an answer is not expected any more.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// With several servers, a client goes to another one after so many calls, even if all is well.
const CALLS_AT_ONE_SERVER: u64 = 50;
/// How many ids are kept for clients that look at or cancel some task.
const KNOWN_TASKS: usize = 5_000;

/// The parts of a run, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Tasks are submitted and worked on while the server is killed.
    Load,
    /// Everybody finishes what is under way and starts nothing new.
    Pause,
    /// Workers are healthy and work off what is left.
    Drain,
    /// Everybody goes home.
    Stop,
}

/// What the clients of a run do.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// What tasks they submit.
    pub workload: Workload,
    /// `max_retries` of every task.
    pub max_retries: u64,
    /// How long the server's leases are.
    pub lease: Duration,
    /// How often workers renew.
    pub heartbeat: Duration,
    /// In 100,000 tasks, how many are held too long or never reported.
    pub troubled: u64,
    /// With more tasks under way than this, submitters wait: the drain at the end has to be short.
    pub outstanding_max: i64,
    /// How long a client waits after a call that did not succeed.
    pub retry_pause: Duration,
}

/// Shared by all clients of a run.
#[derive(Debug)]
pub struct World {
    /// Where the servers listen.
    pub addresses: Vec<SocketAddr>,
    /// The clock of the history.
    pub clock: Clock,
    /// What the clients do.
    pub habits: Habits,
    phase: watch::Receiver<Phase>,
    up: watch::Receiver<bool>,
    recorder: Mutex<Recorder>,
    known: Mutex<Vec<String>>,
    refusals: Mutex<BTreeMap<String, u64>>,
    failures: Mutex<BTreeMap<String, u64>>,
    outstanding: AtomicI64,
    submitted: AtomicU64,
    submit_max: AtomicU64,
    resting: watch::Sender<usize>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// The world of one run.
    pub fn new(
        addresses: Vec<SocketAddr>,
        habits: Habits,
        phase: watch::Receiver<Phase>,
        up: watch::Receiver<bool>,
    ) -> Self {
        Self {
            addresses,
            clock: Clock::start(),
            habits,
            phase,
            up,
            recorder: Mutex::default(),
            known: Mutex::default(),
            refusals: Mutex::default(),
            failures: Mutex::default(),
            outstanding: AtomicI64::new(0),
            submitted: AtomicU64::new(0),
            submit_max: AtomicU64::new(u64::MAX),
            resting: watch::Sender::new(0),
        }
    }

    /// The part of the run that is on now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Says that a worker has nothing under way, and waits until the phase is another than `current`.
    pub async fn rest_until_after(&self, current: Phase) {
        self.resting.send_modify(|resting| *resting += 1);
        let mut phase = self.phase.clone();
        // An error means that the run is over; the worker sees that by itself.
        let _ended = phase.wait_for(|phase| *phase != current).await.is_err();
        self.resting.send_modify(|resting| *resting -= 1);
    }

    /// Waits until so many workers have nothing under way.
    pub async fn all_resting(&self, workers: usize) {
        let mut resting = self.resting.subscribe();
        // The sender lives in this very struct, so this cannot fail while it is waited for.
        let _ended = resting.wait_for(|resting| *resting >= workers).await.is_err();
    }

    /// After a call that did not succeed: waits until a server is believed to be up, or the run is over, and a little
    /// longer.
    pub async fn wait_up(&self) {
        let mut up = self.up.clone();
        // An error means that the run is over; the caller sees that in its next call.
        let _ended = up.wait_for(|up| *up).await.is_err();
        tokio::time::sleep(self.habits.retry_pause).await;
    }

    /// The history, to read or write.
    pub fn recorder(&self) -> MutexGuard<'_, Recorder> {
        locked(&self.recorder)
    }

    /// Remembers a task for clients that pick one.
    pub fn remember(&self, task_id: &str) {
        let mut known = locked(&self.known);
        if known.len() >= KNOWN_TASKS {
            // Old ones have mostly ended: forget the older half.
            known.drain(..KNOWN_TASKS / 2);
        }
        known.push(task_id.to_owned());
    }

    /// Some task that was acknowledged, newer ones rather than older ones.
    pub fn some_task(&self, draw: impl FnOnce(u64) -> u64) -> Option<String> {
        let known = locked(&self.known);
        let recent = known.len().min(400) as u64;
        known.get(known.len().checked_sub(1 + draw(recent.max(1)) as usize)?).cloned()
    }

    /// Counts tasks that were sent (positive) or have ended (negative), to keep the backlog small.
    pub fn count_outstanding(&self, change: i64) {
        self.outstanding.fetch_add(change, Ordering::Relaxed);
    }

    /// Puts the count right again from what the server says.
    pub fn set_outstanding(&self, count: u64) {
        self.outstanding.store(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Roughly how many tasks have not ended.
    pub fn outstanding(&self) -> i64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// What a list shows counts as a look at every task in it.
    pub fn note_reads(&self, tasks: &[FinalTask]) {
        let mut recorder = self.recorder();
        let call = recorder.next_call();
        let now_us = self.clock.elapsed_us();
        for task in tasks.iter().filter(|task| is_ended(&task.status)) {
            recorder.add(Record {
                seq: 0,
                call,
                client: u32::MAX,
                op: Op::Read,
                key: task.key.clone(),
                task_id: Some(task.task_id.clone()),
                token: None,
                nonce: None,
                status: Some(task.status.clone()),
                deduplicated: None,
                t_invoke_us: now_us,
                t_complete_us: now_us,
                outcome: Outcome::Ok,
            });
        }
    }

    /// Whether submitters may send more, and have no more than they should under way.
    pub fn may_submit(&self) -> bool {
        self.submitted() < self.submit_max.load(Ordering::Relaxed) && self.outstanding() <= self.habits.outstanding_max
    }

    /// Counts tasks that submitters have sent.
    pub fn count_submitted(&self, count: u64) {
        self.submitted.fetch_add(count, Ordering::Relaxed);
    }

    /// How many tasks submitters have sent.
    pub fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    /// Submitters stop at so many tasks.
    pub fn set_submit_max(&self, count: u64) {
        self.submit_max.store(count, Ordering::Relaxed);
    }

    /// Counts a call without an answer.
    pub fn count_failure(&self, what: String) {
        *locked(&self.failures).entry(what).or_default() += 1;
    }

    /// The calls without an answer so far, by operation and reason.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        locked(&self.failures).clone()
    }

    /// Counts an answer that refuses.
    pub fn count_refusal(&self, what: String) {
        *locked(&self.refusals).entry(what).or_default() += 1;
    }

    /// The refusals so far, by operation and code.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        locked(&self.refusals).clone()
    }
}

/// What came back from a call.
#[derive(Debug)]
pub struct Reply {
    /// The number of the call in the history.
    pub call: u64,
    /// When it began.
    pub t_invoke_us: u64,
    /// When the answer was there.
    pub t_complete_us: u64,
    /// Whether the server did it.
    pub outcome: Outcome,
    /// Nothing was sent: there is no need to record the call.
    pub not_sent: bool,
    /// The `code` of a problem document.
    pub code: Option<String>,
    /// The document; null if there was none.
    pub body: Value,
}

/// One client of the run with connections of its own. With several servers it goes to another one now and then, and
/// whenever one is away or does not do what it was asked to.
#[derive(Debug)]
pub struct Caller {
    client: u32,
    servers: Vec<Client>,
    at: usize,
    calls: u64,
}

impl Caller {
    /// A caller with this number.
    pub fn new(world: &World, client: u32) -> Self {
        let servers: Vec<_> = world.addresses.iter().map(|address| Client::new(*address, CALL_TIMEOUT)).collect();
        let at = client as usize % servers.len();
        Self { client, servers, at, calls: 0 }
    }

    /// Its number in the history.
    pub fn client(&self) -> u32 {
        self.client
    }

    /// One call; refusals are counted under `name`.
    pub async fn call(&mut self, world: &World, name: &str, method: &str, path: &str, body: &Value) -> Reply {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let call = world.recorder().next_call();
        let t_invoke_us = world.clock.elapsed_us();
        let answer = self.servers[self.at].call(method, path, &bytes).await;
        let t_complete_us = world.clock.elapsed_us();
        let mut reply = Reply {
            call,
            t_invoke_us,
            t_complete_us,
            outcome: Outcome::Unknown,
            not_sent: false,
            code: None,
            body: Value::Null,
        };
        match answer {
            Ok((status, body)) => {
                reply.body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                reply.code = reply.body.get("code").and_then(Value::as_str).map(str::to_owned);
                reply.outcome = judge(status, &reply.body);
                if reply.outcome != Outcome::Ok {
                    let code = reply.code.as_deref().unwrap_or("no code");
                    world.count_refusal(format!("{name}: {status} {code}"));
                }
            }
            Err(CallError::NotSent(error)) => {
                world.count_failure(format!("{name}: not sent, {}", error.kind()));
                reply.outcome = Outcome::Fail;
                reply.not_sent = true;
            }
            Err(CallError::Unknown(error)) => world.count_failure(format!("{name}: no answer, {}", error.kind())),
        }
        self.calls += 1;
        let away = reply.not_sent || reply.outcome == Outcome::Unknown || is_away(reply.code.as_deref());
        if away || self.calls.is_multiple_of(CALLS_AT_ONE_SERVER) {
            self.at = (self.at + 1) % self.servers.len();
        }
        reply
    }

    /// A record of this call, to be completed by the caller.
    pub fn record(&self, reply: &Reply, op: Op) -> Record {
        Record {
            seq: 0,
            call: reply.call,
            client: self.client,
            op,
            key: None,
            task_id: None,
            token: None,
            nonce: None,
            status: None,
            deduplicated: None,
            t_invoke_us: reply.t_invoke_us,
            t_complete_us: reply.t_complete_us,
            outcome: reply.outcome,
        }
    }
}

/// Whether a refusal is about the server and not about the call.
pub fn is_away(code: Option<&str>) -> bool {
    matches!(code, Some("store_unavailable" | "draining"))
}

/// What an HTTP answer says about whether the call was done. A 503 says itself whether it may have been applied.
fn judge(status: u16, body: &Value) -> Outcome {
    let said = |field: &str| body.get(field).and_then(Value::as_str);
    match status {
        200..=299 => Outcome::Ok,
        400..=499 => Outcome::Fail,
        503 if said("applied") == Some("no") || said("code") == Some("draining") => Outcome::Fail,
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_judged_with_care() {
        assert_eq!(judge(201, &Value::Null), Outcome::Ok);
        assert_eq!(judge(409, &json!({"code": "lease_lost"})), Outcome::Fail);
        assert_eq!(judge(503, &json!({"applied": "no"})), Outcome::Fail);
        assert_eq!(judge(503, &json!({"applied": "unknown"})), Outcome::Unknown);
        assert_eq!(judge(503, &json!({"code": "draining"})), Outcome::Fail);
        assert_eq!(judge(503, &json!({"code": "store_unavailable"})), Outcome::Unknown);
        assert_eq!(judge(500, &Value::Null), Outcome::Unknown);
    }
}
