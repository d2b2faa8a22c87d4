//! Looks at tasks and cancels a few, beside the workers that work on them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::world::{Caller, Phase, World};
use crate::history::{Op, Outcome};
use crate::random::Random;

/// In a thousand looks, how many are cancels.
const CANCEL_PER_MILLE: u64 = 60;

/// Looks until the load ends.
pub async fn run(world: Arc<World>, client: u32, seed: u64) {
    let mut caller = Caller::new(&world, client);
    let mut random = Random::new(seed, u64::from(client));
    while world.phase() == Phase::Load {
        tokio::time::sleep(random.duration(Duration::from_millis(1), Duration::from_millis(6))).await;
        let Some(task_id) = world.some_task(|bound| random.below(bound)) else { continue };
        let (op, name, method) =
            if random.chance(CANCEL_PER_MILLE) { (Op::Cancel, "cancel", "DELETE") } else { (Op::Read, "read", "GET") };
        let reply = caller.call(&world, name, method, &format!("/api/v1/tasks/{task_id}"), &Value::Null).await;
        if reply.not_sent {
            world.wait_up().await;
            continue;
        }
        // A read that was refused for another reason than "no such task" says nothing about the task.
        if op == Op::Read && reply.outcome == Outcome::Fail && reply.code.as_deref() != Some("task_not_found") {
            continue;
        }
        let mut record = caller.record(&reply, op);
        record.task_id = Some(task_id);
        record.status = reply.body.get("status").and_then(Value::as_str).map(str::to_owned);
        world.recorder().add(record);
        if op == Op::Cancel && reply.outcome == Outcome::Ok {
            world.count_outstanding(-1);
        }
        if reply.outcome == Outcome::Unknown {
            world.wait_up().await;
        }
    }
}
