//! Submits tasks one by one and in batches, each with an idempotency key, and sends again what got no answer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{Caller, Phase, World};
use crate::history::{Op, Outcome};
use crate::random::Random;

/// Tasks in one batch.
const BATCH: usize = 20;

/// Submits until the load ends.
pub async fn run(world: Arc<World>, client: u32, seed: u64) {
    let mut submitter = Submitter {
        caller: Caller::new(&world, client),
        random: Random::new(seed, u64::from(client)),
        number: 0,
        world,
    };
    while submitter.world.phase() == Phase::Load {
        if !submitter.world.may_submit() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        submitter.submit_once().await;
        let pause = submitter.random.duration(Duration::ZERO, Duration::from_millis(4));
        tokio::time::sleep(pause).await;
    }
}

struct Submitter {
    world: Arc<World>,
    caller: Caller,
    random: Random,
    number: u64,
}

impl Submitter {
    fn next_key(&mut self, batch: bool) -> String {
        self.number += 1;
        let workload = self.world.habits.workload;
        let mark = if batch { workload.mark_of_many(&mut self.random) } else { workload.mark(&mut self.random) };
        format!("s{}-{}{mark}", self.caller.client(), self.number)
    }

    fn task(&self, key: &str) -> Value {
        self.world.habits.workload.task(key, self.world.habits.max_retries)
    }

    async fn submit_once(&mut self) {
        let batch = self.random.chance(300);
        let keys: Vec<String> = (0..if batch { BATCH } else { 1 }).map(|_| self.next_key(batch)).collect();
        // Some are left as they are when no answer comes: a batch must then be there as a whole or not at all, and
        // sending it again would hide that it was torn.
        let gives_up = self.random.chance(if batch { 500 } else { 100 });
        self.world.count_outstanding(keys.len() as i64);
        self.world.count_submitted(keys.len() as u64);
        loop {
            let (outcome, again) = self.send(batch, &keys).await;
            match outcome {
                Outcome::Ok => break,
                Outcome::Unknown if gives_up => return,
                Outcome::Fail if !again => {
                    self.world.count_outstanding(-(keys.len() as i64));
                    return;
                }
                Outcome::Unknown | Outcome::Fail => self.world.wait_up().await,
            }
        }
        // The same key once more: it must lead to the same task. Only of what is surely there, or one task of a batch would
        // be stored alone.
        if self.random.chance(80) {
            let key = &keys[self.random.below(keys.len() as u64) as usize..][..1];
            self.send(false, key).await;
        }
    }

    /// One call for these keys. Answers what came of it and whether a refusal is worth another try.
    async fn send(&mut self, batch: bool, keys: &[String]) -> (Outcome, bool) {
        let (path, body, op) = if batch {
            let tasks: Vec<Value> = keys.iter().map(|key| self.task(key)).collect();
            ("/api/v1/tasks/batch", json!({ "tasks": tasks }), Op::Batch)
        } else {
            ("/api/v1/tasks", self.task(&keys[0]), Op::Submit)
        };
        let reply = self.caller.call(&self.world, "submit", "POST", path, &body).await;
        if reply.not_sent {
            return (Outcome::Fail, true);
        }
        let ids: Vec<Option<String>> = if batch {
            let ids = reply.body.get("task_ids").and_then(Value::as_array);
            keys.iter()
                .enumerate()
                .map(|(at, _)| ids.and_then(|ids| ids.get(at)?.as_str()).map(str::to_owned))
                .collect()
        } else {
            vec![reply.body.get("task_id").and_then(Value::as_str).map(str::to_owned)]
        };
        // A flag for one task, a number for a batch.
        let deduplicated =
            reply.body.get("deduplicated").and_then(|said| said.as_u64().or(said.as_bool().map(u64::from)));
        let mut recorder = self.world.recorder();
        for (key, task_id) in keys.iter().zip(&ids) {
            let mut record = self.caller.record(&reply, op);
            record.key = Some(key.clone());
            record.task_id.clone_from(task_id);
            record.deduplicated = deduplicated;
            recorder.add(record);
        }
        drop(recorder);
        if reply.outcome == Outcome::Ok {
            for task_id in ids.iter().flatten() {
                self.world.remember(task_id);
            }
        }
        let again = matches!(reply.code.as_deref(), Some("queue_full" | "store_unavailable" | "draining"));
        (reply.outcome, again)
    }
}
