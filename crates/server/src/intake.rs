//! The store's own inbox: what others wrote there, in transactions of their own, is taken in as a
//! submit would be. One node does it, the one that leads.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use windlass_core::json::Json;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::store::{InboxItem, Intake, StoreError};
use windlass_core::task::{NewTask, TaskSpec};

use crate::engine::Engine;
use crate::submit::{Builder, SubmitBody};

/// Items that are taken at a time.
const SLICE: usize = 500;
/// After a failure of the store, or when there is no room for what is there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The type of an item that does not even name one.
const UNREADABLE: &str = "unreadable";

/// Takes in whatever comes, for ever.
pub async fn run(engine: &Engine) {
    let mut pass = Pass::default();
    loop {
        match pass.again_at {
            None => engine.upkeep.inbox_grown().await,
            // What comes meanwhile does not wait behind what was refused.
            Some(again_at) => tokio::select! {
                () = engine.upkeep.inbox_grown() => {}
                () = sleep_until(again_at) => pass = Pass::default(),
            },
        }
        if let Err(StoreError { reason, .. }) = pass.go_on(engine).await {
            tracing::warn!(reason, "the inbox cannot be taken in; trying again");
            pass = Pass { again_at: Some(Instant::now() + LOOK_AGAIN), ..Pass::default() };
        }
    }
}

/// A way through the inbox, from the oldest item to the youngest. What is refused for now is left behind for the next
/// one, so that a queue that is full holds up no other.
#[derive(Default)]
struct Pass {
    /// The last item that was looked at.
    after: i64,
    /// What was refused: whatever is alike would be, too.
    refused: HashSet<Alike>,
    left: usize,
    /// When to begin anew, if anything was left.
    again_at: Option<Instant>,
}

/// All that room for a task depends on.
#[derive(PartialEq, Eq, Hash)]
struct Alike {
    queue: QueueName,
    priority: Priority,
    tenant: Option<Text>,
    task_type: TaskType,
    capabilities: CapabilitySet,
}

impl Alike {
    fn to(task: &NewTask) -> Self {
        let TaskSpec { queue, priority, tenant, task_type, capabilities, .. } = &task.spec;
        Self {
            queue: queue.clone(),
            priority: *priority,
            tenant: tenant.clone(),
            task_type: task_type.clone(),
            capabilities: capabilities.clone(),
        }
    }
}

impl Pass {
    /// Takes in what has come since, as far as there is room for it.
    async fn go_on(&mut self, engine: &Engine) -> Result<(), StoreError> {
        let begun = Instant::now();
        loop {
            let items = engine.upkeep.inbox(self.after, SLICE).await?;
            let Some(last) = items.last() else { break };
            self.after = last.no;
            self.slice(engine, &items).await?;
            if items.len() < SLICE {
                break;
            }
        }
        if self.left == 0 {
            // An item with a lower number may yet be committed.
            *self = Self::default();
        } else if self.again_at.is_none() {
            tracing::warn!(left = self.left, "tasks stay in the inbox until there is room for them");
            // However many are left, looking at them is a small part of the work.
            self.again_at = Some(Instant::now() + LOOK_AGAIN.max(begun.elapsed() * 4));
        }
        Ok(())
    }

    async fn slice(&mut self, engine: &Engine, items: &[InboxItem]) -> Result<(), StoreError> {
        let settings = engine.store.settings();
        let builder = Builder::new(engine, &settings, None);
        let all = items.iter().map(|item| intake(&builder, item));
        let intakes: Vec<Intake> =
            all.filter(|item| item.refused.is_some() || !self.refused.contains(&Alike::to(&item.task))).collect();
        self.left += items.len() - intakes.len();
        if intakes.is_empty() {
            return Ok(());
        }
        let alike: Vec<Alike> = intakes.iter().map(|item| Alike::to(&item.task)).collect();
        let answers = engine.upkeep.take_in(intakes).await?;
        for (answer, alike) in answers.into_iter().zip(alike) {
            if let Err(refused) = answer {
                tracing::debug!(%refused, "a task stays in the inbox");
                self.left += 1;
                self.refused.insert(alike);
            }
        }
        Ok(())
    }
}

/// The task of an item. One that cannot be built stands for itself, with the reason.
fn intake(builder: &Builder<'_>, item: &InboxItem) -> Intake {
    let built = serde_json::from_slice::<SubmitBody>(&item.body)
        .map_err(|error| error.to_string())
        .and_then(|body| builder.build(body).map_err(|problem| problem.detail().to_owned()));
    let (task, refused) = match built {
        Ok(task) => (task, None),
        Err(reason) => (stand_in(builder, &item.body), Some(reason)),
    };
    Intake { no: item.no, key: item.key, created_at: item.created_at, task, refused }
}

/// What can be told of a body that is no task: enough to find it among the dead letters.
fn stand_in(builder: &Builder<'_>, body: &[u8]) -> NewTask {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    let task_type = text("task_type").and_then(|name| TaskType::new(name).ok()).unwrap_or_else(unreadable);
    let queue = text("queue").and_then(|name| QueueName::new(name).ok());
    let parameters = value.get("parameters").and_then(|parameters| Json::encode(parameters).ok());
    builder.stand_in(task_type, queue, parameters.unwrap_or_else(Json::empty_object))
}

/// The type of what names none.
fn unreadable() -> TaskType {
    TaskType::new(UNREADABLE).expect("a name of letters")
}
