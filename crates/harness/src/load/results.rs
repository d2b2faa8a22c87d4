//! The results a worker sends: what is in them, and what it does on purpose to test the fence.

use serde_json::{Value, json};

use super::world::{Habits, World};
use crate::history::Verdict;
use crate::random::Random;

/// A task a worker holds.
#[derive(Clone, Debug)]
pub struct Held {
    /// The task.
    pub task_id: String,
    /// The lease.
    pub token: String,
    /// The idempotency key the task came with.
    pub key: Option<String>,
}

/// A result that is to be sent, and sent again until there is an answer.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The task.
    pub task_id: String,
    /// The lease it is sent under.
    pub token: String,
    /// Names this content.
    pub nonce: String,
    /// What it says.
    pub verdict: Verdict,
    /// Keys of the follow-up tasks in it.
    pub follow_ups: Vec<String>,
    /// How often it is sent after the first answer.
    pub repeats: u32,
    /// After the answer, another opinion is sent under the same lease: it must be refused.
    pub then_contradict: bool,
    /// It is not sent again when no answer comes.
    pub gives_up: bool,
}

/// What a handler does with a task.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Sends this result.
    Send(Pending),
    /// Keeps the task longer than a lease, with heartbeats, then sends this.
    Slow(Pending),
    /// Keeps the task longer than a lease, silently, then sends this late.
    Stall(Pending),
    /// Never reports anything, as if the worker had died.
    Vanish,
}

/// Decides what becomes of a task. A healthy worker completes everything.
pub fn plan(random: &mut Random, held: &Held, nonce: String, habits: &Habits, healthy: bool) -> Plan {
    let mut pending = Pending {
        task_id: held.task_id.clone(),
        token: held.token.clone(),
        nonce,
        verdict: Verdict::Completed,
        follow_ups: Vec::new(),
        repeats: 0,
        then_contradict: false,
        gives_up: false,
    };
    if healthy {
        return Plan::Send(pending);
    }
    pending.verdict = match random.below(1000) {
        0..70 => Verdict::FailedRetriable,
        70..90 => Verdict::FailedFinal,
        90..120 => Verdict::Released,
        120..150 => Verdict::Snoozed,
        _ => Verdict::Completed,
    };
    pending.repeats = u32::from(random.chance(60));
    pending.then_contradict = random.chance(30);
    pending.gives_up = random.chance(100);
    // Follow-ups only from tasks that are none themselves, or the work would never end.
    let is_follow_up = held.key.as_deref().is_some_and(|key| key.starts_with('f'));
    if pending.verdict == Verdict::Completed && !is_follow_up && random.chance(120) {
        let count = 1 + random.below(3);
        // Sending it again would hide that a result and its follow-ups were torn apart.
        pending.gives_up = random.chance(500);
        pending.follow_ups = (0..count)
            .map(|number| format!("f-{}-{number}{}", pending.nonce, habits.workload.mark_of_many(random)))
            .collect();
    }
    if random.below(100_000) >= habits.troubled {
        return Plan::Send(pending);
    }
    match random.below(9) {
        0..2 => Plan::Vanish,
        2..6 => Plan::Stall(pending),
        _ => Plan::Slow(pending),
    }
}

impl Pending {
    /// The result as it is sent.
    pub fn body(&self, world: &World) -> Value {
        let mut body = json!({"task_id": self.task_id, "lease_token": self.token});
        let nonce = &self.nonce;
        match self.verdict {
            Verdict::Completed => {
                body["status"] = json!("completed");
                body["result"] = json!({ "nonce": nonce });
            }
            Verdict::FailedRetriable | Verdict::FailedFinal => {
                let retriable = self.verdict == Verdict::FailedRetriable;
                body["status"] = json!("failed");
                body["error"] = json!({"message": format!("failed on purpose {nonce}"), "retriable": retriable});
            }
            Verdict::Released => body["status"] = json!("released"),
            Verdict::Snoozed => {
                body["status"] = json!("snoozed");
                body["snooze_seconds"] = json!(0.05);
            }
        }
        if !self.follow_ups.is_empty() {
            let habits = &world.habits;
            let tasks = self.follow_ups.iter().map(|key| habits.workload.task(key, habits.max_retries));
            body["enqueue"] = tasks.collect();
        }
        body
    }

    /// Another opinion about the same attempt.
    pub fn contradiction(&self) -> Self {
        let verdict = if self.verdict == Verdict::FailedFinal { Verdict::Completed } else { Verdict::FailedFinal };
        Self {
            nonce: format!("{}-contra", self.nonce),
            verdict,
            follow_ups: Vec::new(),
            repeats: 0,
            then_contradict: false,
            gives_up: true,
            ..self.clone()
        }
    }
}
