//! Replay by rule: when the breaker of a type has closed, dead letters of the outage run again.
//!
//! A crash at any point is harmless: what was replayed is marked in the same transaction and
//! not listed again, and the breaker keeps its note until all of it is done.

use windlass_core::actor::Actor;
use windlass_core::breaker::{Scope, State, View};
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::names::TaskType;
use windlass_core::settings::{AutoReplay, Settings};
use windlass_core::status::Status;
use windlass_core::store::{ListError, Requeue, Store, StoreError, Sweep};
use windlass_core::time::Timestamp;

use crate::pacing::paced;

/// Tasks replayed in one transaction.
const SLICE: usize = 500;
const NOTE: &str = "replayed by rule: breaker closed";

/// Replays what is to be replayed now.
///
/// Breakers are looked at even where no type has a rule: an outage that nobody wanted
/// replayed must not be replayed by a rule of next week. Stores have them at hand.
pub async fn run_once(store: &dyn Store) -> Result<Sweep, StoreError> {
    let mut changed = 0;
    for view in store.breakers().await? {
        let Some((task_type, since)) = to_replay(view) else { continue };
        let settings = store.settings();
        if let Some(rule) = settings.types.get(&task_type).and_then(|of_type| of_type.auto_replay.as_ref()) {
            changed += replay(store, &settings, &task_type, rule, since).await?;
        }
        store.replay_settled(task_type, since).await?;
    }
    Ok(Sweep { changed, ..Sweep::default() })
}

/// The type of a breaker that has closed, and since when it had not been.
fn to_replay(view: View) -> Option<(TaskType, Timestamp)> {
    match (view.scope, view.state, view.replay_since) {
        (Scope::Type(task_type), State::Closed, Some(since)) => Some((task_type, since)),
        (Scope::Type(_) | Scope::Worker(_), _, _) => None,
    }
}

async fn replay(
    store: &dyn Store,
    settings: &Settings,
    task_type: &TaskType,
    rule: &AutoReplay,
    since: Timestamp,
) -> Result<usize, StoreError> {
    // What opened the breaker failed before it did.
    let window = std::time::Duration::from_secs_f64(settings.breaker(task_type).window_seconds);
    let filter = TaskFilter {
        statuses: vec![Status::DeadLetter],
        task_type: Some(task_type.clone()),
        ended_after: Some(since - window),
        auto_replayed: Some(false),
        ..TaskFilter::default()
    };
    let ids = oldest_first(store, filter, rule).await?;
    let mut replayed = 0;
    for (number, slice) in ids.chunks(SLICE).enumerate() {
        let wish = |(index, task): (usize, &TaskId)| Requeue {
            task: *task,
            only_dead: true,
            reset_retries: true,
            priority: None,
            parameters: None,
            delay: paced(number * SLICE + index, rule.rate_per_second),
            by_rule: true,
            note: Some(NOTE.to_owned()),
        };
        let answers = store.requeue(slice.iter().enumerate().map(wish).collect(), Actor::System).await?;
        replayed += answers.iter().filter(|answer| answer.is_ok()).count();
    }
    Ok(replayed)
}

/// The dead letters whose class the rule names.
async fn oldest_first(store: &dyn Store, filter: TaskFilter, rule: &AutoReplay) -> Result<Vec<TaskId>, StoreError> {
    let mut ids = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(filter.clone(), limits::PAGE_ITEMS, cursor).await.map_err(|error| match error {
            ListError::Store(error) => error,
            ListError::BadCursor => StoreError::not_applied("the store refused its own cursor"),
        })?;
        let named = page
            .items
            .iter()
            .filter(|task| task.state.last_failure().is_some_and(|failure| rule.classes.contains(&failure.class)));
        ids.extend(named.map(|task| task.id));
        cursor = page.next;
        if cursor.is_none() {
            ids.reverse();
            return Ok(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::breaker::{Figures, Opened, Record};
    use windlass_core::ids::WorkerId;

    use super::*;

    #[test]
    fn only_a_type_that_has_closed_is_replayed() {
        let (now, since) = (Timestamp::from_micros(9), Timestamp::from_micros(5));
        let mail = TaskType::new("mail").expect("a name");
        let closed = Record { replay_since: Some(since), ..Record::default() };
        let opened = Some(Opened { since: now, until: now + SHORT, reason: String::new() });
        let view = |scope: Scope, record: &Record| View::new(scope, record, Figures::default(), now);
        assert_eq!(to_replay(view(Scope::Type(mail.clone()), &closed)), Some((mail.clone(), since)));
        assert_eq!(to_replay(view(Scope::Type(mail.clone()), &Record::default())), None);
        assert_eq!(to_replay(view(Scope::Type(mail), &Record { opened, ..closed.clone() })), None);
        assert_eq!(to_replay(view(Scope::Worker(WorkerId::random()), &closed)), None);
    }

    const SHORT: std::time::Duration = std::time::Duration::from_secs(1);
}
