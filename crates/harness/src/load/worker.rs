//! A worker that does everything a worker may do, and some things a broken one does: results sent twice, contradicted,
//! late or never, leases let go or held long, tokens of other tasks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::results::{Held, Pending, Plan, plan};
use super::world::{Caller, Phase, Reply, World};
use crate::checker::is_ended;
use crate::history::{Op, Outcome, Run, Verdict};
use crate::random::Random;

/// Most tasks taken by one poll.
const CLAIM_MAX: u64 = 8;
/// Longest run of an ordinary handler.
const HANDLER_MAX: Duration = Duration::from_millis(8);

/// What the heartbeat of a worker has to know.
#[derive(Debug, Default)]
struct Beat {
    worker_id: String,
    /// The leases to renew. Named one by one: a heartbeat without names would also renew the tasks of a poll whose
    /// answer was lost, which nobody works on.
    leases: Vec<(String, String)>,
}

type SharedBeat = Arc<Mutex<Beat>>;

fn locked(beat: &SharedBeat) -> MutexGuard<'_, Beat> {
    beat.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A result that is due later than the handler's usual end.
#[derive(Debug)]
struct Later {
    due_us: u64,
    run: usize,
    pending: Pending,
}

/// Works until the run is over. `client` and `client + 1` are its numbers: calls, and heartbeats.
pub async fn run(world: Arc<World>, client: u32, seed: u64) {
    let beat = SharedBeat::default();
    let heart = tokio::spawn(keep_alive(Arc::clone(&world), Caller::new(&world, client + 1), Arc::clone(&beat)));
    let mut worker = Worker {
        caller: Caller::new(&world, client),
        random: Random::new(seed, u64::from(client)),
        beat,
        pending: Vec::new(),
        later: Vec::new(),
        results_made: 0,
        world,
    };
    worker.register().await;
    while worker.world.phase() != Phase::Stop {
        worker.round().await;
    }
    heart.abort();
}

async fn keep_alive(world: Arc<World>, mut caller: Caller, beat: SharedBeat) {
    let mut interval = tokio::time::interval(world.habits.heartbeat);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let (worker_id, leases) = {
            let beat = locked(&beat);
            (beat.worker_id.clone(), beat.leases.clone())
        };
        if leases.is_empty() {
            continue;
        }
        let tasks: Vec<Value> =
            leases.iter().map(|(task_id, token)| json!({"task_id": task_id, "lease_token": token})).collect();
        let body = json!({"current_load": leases.len(), "status": "active", "tasks": tasks});
        let path = format!("/internal/workers/{worker_id}/heartbeat");
        let reply = caller.call(&world, "heartbeat", "POST", &path, &body).await;
        if reply.not_sent {
            world.wait_up().await;
            continue;
        }
        let lost: HashSet<&str> =
            reply.body.get("lost").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut recorder = world.recorder();
        for (task_id, token) in leases {
            let mut record = caller.record(&reply, Op::Heartbeat);
            if reply.outcome == Outcome::Ok && lost.contains(task_id.as_str()) {
                record.outcome = Outcome::Fail;
            }
            record.task_id = Some(task_id);
            record.token = Some(token);
            recorder.add(record);
        }
    }
}

struct Worker {
    world: Arc<World>,
    caller: Caller,
    random: Random,
    beat: SharedBeat,
    pending: Vec<Pending>,
    later: Vec<Later>,
    results_made: u64,
}

impl Worker {
    async fn register(&mut self) {
        let body = json!({"capabilities": [], "capacity": 64, "queues": self.world.habits.workload.queues()});
        while self.world.phase() != Phase::Stop {
            let reply = self.caller.call(&self.world, "register", "POST", "/internal/workers/register", &body).await;
            if reply.outcome == Outcome::Ok
                && let Some(worker_id) = reply.body.get("worker_id").and_then(Value::as_str)
            {
                worker_id.clone_into(&mut locked(&self.beat).worker_id);
                return;
            }
            self.world.wait_up().await;
        }
    }

    fn path(&self, call: &str) -> String {
        format!("/internal/workers/{}/{call}", locked(&self.beat).worker_id)
    }

    async fn round(&mut self) {
        self.take_due();
        let phase = self.world.phase();
        if phase == Phase::Pause && self.pending.is_empty() {
            self.world.rest_until_after(Phase::Pause).await;
            return;
        }
        if phase == Phase::Load && self.random.chance(10) {
            self.forge();
        }
        if phase == Phase::Pause || (!self.pending.is_empty() && self.random.chance(400)) {
            self.send_results().await;
        } else {
            self.poll(phase).await;
        }
    }

    /// Results whose time has come; the handler of a slow or stalled task ends only now.
    fn take_due(&mut self) {
        let now_us = self.world.clock.elapsed_us();
        let (due, later): (Vec<Later>, _) = self.later.drain(..).partition(|later| later.due_us <= now_us);
        self.later = later;
        for late in due {
            self.world.recorder().end_run(late.run, now_us);
            self.pending.push(late.pending);
        }
    }

    fn next_nonce(&mut self) -> String {
        self.results_made += 1;
        format!("w{}-{}", self.caller.client(), self.results_made)
    }

    /// The result of one task under the lease of another.
    fn forge(&mut self) {
        let Some(task_id) = self.world.some_task(|bound| self.random.below(bound)) else { return };
        let token = locked(&self.beat).leases.iter().find(|(held, _)| *held != task_id).map(|(_, token)| token.clone());
        let Some(token) = token else { return };
        let nonce = self.next_nonce();
        self.pending.push(Pending {
            task_id,
            token,
            nonce,
            verdict: Verdict::FailedFinal,
            follow_ups: Vec::new(),
            repeats: 0,
            then_contradict: false,
            gives_up: true,
        });
    }

    async fn send_results(&mut self) {
        let mut sent = std::mem::take(&mut self.pending);
        let alone = sent.len() == 1 || self.random.chance(300);
        if alone {
            self.pending = sent.split_off(1);
        }
        let bodies: Vec<Value> = sent.iter().map(|pending| pending.body(&self.world)).collect();
        let body = if alone { bodies[0].clone() } else { json!({ "results": bodies }) };
        let reply = self.caller.call(&self.world, "result", "POST", &self.path("result"), &body).await;
        let answers = if alone { vec![ItemAnswer::of_single(&reply)] } else { ItemAnswer::of_list(&reply, sent.len()) };
        self.take_answers(&reply, sent, &answers).await;
    }

    async fn poll(&mut self, phase: Phase) {
        let sent = std::mem::take(&mut self.pending);
        let results: Vec<Value> = sent.iter().map(|pending| pending.body(&self.world)).collect();
        let mut body =
            json!({"available_capacity": 1 + self.random.below(CLAIM_MAX), "wait_ms": 20 + self.random.below(200)});
        if !results.is_empty() {
            body["results"] = Value::Array(results);
        }
        let reply = self.caller.call(&self.world, "poll", "POST", &self.path("poll"), &body).await;
        if reply.outcome == Outcome::Unknown {
            // It may have given tasks that nobody will ever hear of again, until their leases lapse.
            let record = self.caller.record(&reply, Op::Claim);
            self.world.recorder().add(record);
        }
        let answers = ItemAnswer::of_list(&reply, sent.len());
        let given: Vec<Held> = if reply.outcome == Outcome::Ok { held_tasks(&reply) } else { Vec::new() };
        let runs = self.start_handlers(&reply, &given);
        self.take_answers(&reply, sent, &answers).await;
        if !given.is_empty() {
            tokio::time::sleep(self.random.duration(Duration::ZERO, HANDLER_MAX)).await;
            self.end_handlers(phase, given, &runs);
        }
    }

    fn start_handlers(&mut self, reply: &Reply, given: &[Held]) -> Vec<usize> {
        locked(&self.beat).leases.extend(given.iter().map(|held| (held.task_id.clone(), held.token.clone())));
        let mut recorder = self.world.recorder();
        let mut runs = Vec::with_capacity(given.len());
        for held in given {
            let mut record = self.caller.record(reply, Op::Claim);
            record.task_id = Some(held.task_id.clone());
            record.token = Some(held.token.clone());
            record.key.clone_from(&held.key);
            recorder.add(record);
            runs.push(recorder.start_run(Run {
                client: self.caller.client(),
                task_id: held.task_id.clone(),
                key: held.key.clone(),
                token: held.token.clone(),
                t_start_us: self.world.clock.elapsed_us(),
                t_end_us: None,
            }));
        }
        runs
    }

    fn end_handlers(&mut self, phase: Phase, given: Vec<Held>, runs: &[usize]) {
        let now_us = self.world.clock.elapsed_us();
        let lease_us = self.world.habits.lease.as_micros() as u64;
        for (held, &run) in given.into_iter().zip(runs) {
            let nonce = self.next_nonce();
            match plan(&mut self.random, &held, nonce, &self.world.habits, phase == Phase::Drain) {
                Plan::Send(pending) => {
                    self.world.recorder().end_run(run, now_us);
                    self.pending.push(pending);
                }
                Plan::Slow(pending) => {
                    let due_us = now_us + lease_us + self.random.below(lease_us);
                    self.later.push(Later { due_us, run, pending });
                }
                Plan::Stall(pending) => {
                    self.forget_lease(&held.token);
                    let due_us = now_us + lease_us + self.random.below(lease_us);
                    self.later.push(Later { due_us, run, pending });
                }
                Plan::Vanish => self.forget_lease(&held.token),
            }
        }
    }

    fn forget_lease(&self, token: &str) {
        locked(&self.beat).leases.retain(|(_, held)| held != token);
    }

    async fn take_answers(&mut self, reply: &Reply, sent: Vec<Pending>, answers: &[ItemAnswer]) {
        for (pending, answer) in sent.into_iter().zip(answers) {
            if !reply.not_sent {
                self.record_result(reply, &pending, answer);
            }
            self.follow_answer(pending, answer, reply.not_sent);
        }
        if reply.code.as_deref() == Some("worker_not_found") {
            self.register().await;
        } else if reply.outcome != Outcome::Ok {
            self.world.wait_up().await;
        }
    }

    fn record_result(&self, reply: &Reply, pending: &Pending, answer: &ItemAnswer) {
        let mut recorder = self.world.recorder();
        let mut record = self.caller.record(reply, Op::Result(pending.verdict));
        record.outcome = answer.outcome;
        record.task_id = Some(pending.task_id.clone());
        record.token = Some(pending.token.clone());
        record.nonce = Some(pending.nonce.clone());
        record.status.clone_from(&answer.status);
        recorder.add(record);
        for key in &pending.follow_ups {
            let mut record = self.caller.record(reply, Op::FollowUp);
            record.outcome = answer.outcome;
            record.key = Some(key.clone());
            record.nonce = Some(pending.nonce.clone());
            recorder.add(record);
        }
    }

    /// What the worker does next about a result it sent.
    fn follow_answer(&mut self, mut pending: Pending, answer: &ItemAnswer, not_sent: bool) {
        let healthy = self.world.phase() != Phase::Load;
        match answer.outcome {
            Outcome::Ok => {
                self.forget_lease(&pending.token);
                if answer.status.as_deref().is_some_and(is_ended) {
                    self.world.count_outstanding(pending.follow_ups.len() as i64 - 1);
                }
                if pending.repeats > 0 {
                    pending.repeats -= 1;
                    self.pending.push(pending);
                } else if pending.then_contradict && !healthy {
                    self.pending.push(pending.contradiction());
                }
            }
            Outcome::Fail => {
                if answer.in_list {
                    self.world.count_refusal(format!("result item: {}", answer.code.as_deref().unwrap_or("no code")));
                }
                let again = ["worker_not_found", "store_unavailable", "draining"];
                if not_sent || answer.code.as_deref().is_some_and(|code| again.contains(&code)) {
                    self.pending.push(pending);
                } else {
                    self.forget_lease(&pending.token);
                }
            }
            Outcome::Unknown if pending.gives_up && !healthy => self.forget_lease(&pending.token),
            Outcome::Unknown => self.pending.push(pending),
        }
    }
}

fn held_tasks(reply: &Reply) -> Vec<Held> {
    let tasks = reply.body.get("tasks").and_then(Value::as_array).into_iter().flatten();
    let text = |task: &Value, field: &str| task.get(field).and_then(Value::as_str).map(str::to_owned);
    tasks
        .filter_map(|task| {
            Some(Held {
                task_id: text(task, "task_id")?,
                token: text(task, "lease_token")?,
                key: text(task, "idempotency_key"),
            })
        })
        .collect()
}

/// What the server said about one result.
#[derive(Debug)]
struct ItemAnswer {
    outcome: Outcome,
    status: Option<String>,
    code: Option<String>,
    /// The call as a whole went well; this is about one result of its list.
    in_list: bool,
}

impl ItemAnswer {
    fn of_single(reply: &Reply) -> Self {
        let status = reply.body.get("status").and_then(Value::as_str).map(str::to_owned);
        Self { outcome: reply.outcome, status, code: reply.code.clone(), in_list: false }
    }

    fn of_list(reply: &Reply, count: usize) -> Vec<Self> {
        let items = reply.body.get("results").and_then(Value::as_array);
        (0..count)
            .map(|at| match (reply.outcome, items.and_then(|items| items.get(at))) {
                (Outcome::Ok, Some(item)) => Self::of_item(item),
                // Acknowledged as a whole without a word about this one: nobody knows.
                (Outcome::Ok, None) => Self { outcome: Outcome::Unknown, status: None, code: None, in_list: false },
                (outcome, _) => Self { outcome, status: None, code: reply.code.clone(), in_list: false },
            })
            .collect()
    }

    fn of_item(item: &Value) -> Self {
        let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
        let accepted = item.get("acknowledged").and_then(Value::as_bool).unwrap_or(false);
        let code = text(item, "code").or_else(|| item.get("error").and_then(|error| text(error, "code")));
        let outcome = if accepted { Outcome::Ok } else { Outcome::Fail };
        Self { outcome, status: if accepted { text(item, "status") } else { None }, code, in_list: true }
    }
}
