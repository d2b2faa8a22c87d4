//! The contract of a shared database, asked of a real PostgreSQL server.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{
    Backend, Changes, CommitError, EventRow, Is, KeyChange, NodeId, OverlayChange, Tail, TaskChange, Wants, Was,
};
use windlass_core::actor::Actor;
use windlass_core::breaker::{Record, Scope};
use windlass_core::event::{Change, Event};
use windlass_core::failure::{EndReason, ErrorClass, ErrorReport};
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::{FlowKey, OnConflict, OnFailure, Unique, UniqueKey};
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::{Capability, CapabilitySet, QueueName, TagKey, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::time::Timestamp;
use windlass_ledger::archive::Archive;
use windlass_ledger::days::{Day, DayState, DayStep};
use windlass_ledger::journal::{AppliedResult, ClaimEntry, ClaimRow, KeyRow, KeyScope, Overlay, TaskRow, UniqueRow};
use windlass_store_postgres::{OpenError, PostgresBackend, PostgresOptions};

fn text(text: &str) -> Text {
    Text::new(text).expect("a text")
}

fn json(text: &str) -> Json {
    Json::from_text(text.to_owned()).expect("JSON")
}

fn keys(keys: &[u64]) -> Wants {
    Wants { tasks: keys.iter().copied().map(TaskKey).collect(), ..Wants::default() }
}

/// A task with everything that a task can have.
fn full_row() -> TaskRow {
    let mut row = row(r#"{"text":"größe \u0000 '' \\ ","list":[1,2.5e3,null]}"#);
    let spec = &mut row.spec;
    spec.priority = Priority::HIGH;
    spec.capabilities = CapabilitySet::new(vec![Capability::new("gpu").expect("a label")]);
    spec.policy.max_retries = 7;
    spec.policy.retry.timeout_growth = 2.0;
    spec.expires_at = Some(at(77));
    spec.idempotency_key = Some(text("order-17"));
    spec.flow_key = Some(FlowKey::Ordering { key: text("acct'1"), on_failure: OnFailure::Skip });
    spec.unique = Some(Unique {
        key: UniqueKey(u128::MAX - 5),
        held_while: vec![Status::Queued],
        for_seconds: Some(Duration::from_secs(5)),
        on_conflict: OnConflict::Replace,
    });
    spec.tenant = Some(text("größe"));
    spec.tags = [(TagKey::new("customer").expect("a label"), text("42"))].into();
    spec.trace_parent = Some(text("00-abc-def-01"));
    row.original_parameters = Some(json("[]"));
    row.auto_replayed = true;
    row
}

fn overlay() -> Overlay {
    Overlay {
        status: Status::Scheduled,
        version: 4,
        attempt: 2,
        retries: 1,
        crashes: 1,
        timeouts: 2,
        ready_at: at(5),
        run_at: at(6),
        retrying: true,
        started_at: Some(at(3)),
        worker: Some(WorkerId::random()),
        applied: Some(AppliedResult { claim: 5, digest: u64::MAX, status: Status::Scheduled }),
        event_nos: vec![2, u64::MAX],
        place: None,
    }
}

fn same_row(one: &TaskRow, two: &TaskRow) {
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

fn failure(attempt: u32) -> FailedAttempt {
    FailedAttempt {
        attempt,
        worker: None,
        started_at: at(1),
        ended_at: at(2),
        class: ErrorClass::Transient,
        error: ErrorReport::internal("E1", "zero \0 byte".into()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_second_is_behind_and_has_written_nothing() {
    let database = Database::new();
    let (one, two) = (database.open().await, database.open().await);
    assert_eq!(one.secret(), two.secret());
    assert_eq!(one.tail(0, 10).await, Ok(Tail::Entries(Vec::new())));
    commit(&one, 1, tasks(vec![new_task(1)])).await;
    assert_eq!(refused(&two, 1, tasks(vec![new_task(2)])).await, CommitError::Behind);
    assert_eq!(refused(&two, 3, tasks(vec![new_task(2)])).await, CommitError::Behind, "not the next number");
    assert_eq!(two.tail(0, 10).await, Ok(Tail::Entries(vec![entry(1)])));
    commit(&two, 2, tasks(vec![new_task(2)])).await;
    assert_eq!(one.tail(1, 10).await, Ok(Tail::Entries(vec![entry(2)])));
    assert_eq!(one.tail(0, 1).await, Ok(Tail::Entries(vec![entry(1)])));
    assert_eq!(one.tail(2, 10).await, Ok(Tail::Entries(Vec::new())));
    assert_eq!(one.tail(9, 10).await, Ok(Tail::Gone), "a log that is shorter than what we know is another one");
    let found = one.read(&keys(&[1, 2, 3]), 2).await.expect("read");
    let found: BTreeSet<u64> = found.tasks.iter().map(|(key, _)| key.0).collect();
    assert_eq!(found, [1, 2].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_cannot_be_stored_is_the_fault_of_its_item() {
    let database = Database::new();
    let backend = database.open().await;
    commit(&backend, 1, tasks(vec![new_task(1)])).await;
    let CommitError::Refused(error) = refused(&backend, 2, tasks(vec![new_task(1)])).await else {
        panic!("a key that is there must be refused")
    };
    assert!(error.item_at_fault, "{error}");
    commit(&backend, 2, tasks(vec![new_task(2)])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_race_leave_a_log_without_a_gap_and_lose_nothing() {
    const EACH: u64 = 500;
    let database = Database::new();
    // As nodes do: both take the next number of the log and the next key of a task.
    let race = |backend: Arc<PostgresBackend>| async move {
        let (mut seen, mut done, mut behind) = (0, 0, 0);
        while done < EACH {
            let key = seen + 1;
            match backend.commit(&entry(seen + 1), &tasks(vec![new_task(key)])).await {
                Ok(()) => {
                    seen += 1;
                    done += 1;
                    behind = 0;
                }
                Err(CommitError::Behind) => {
                    behind += 1;
                    // As a node does: after losing twice it waits for its turn.
                    let tail = if behind > 1 { backend.turn(seen, 100).await } else { backend.tail(seen, 100).await };
                    let Ok(Tail::Entries(entries)) = tail else { panic!("no tail: {tail:?}") };
                    seen += entries.len() as u64;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        backend.pass().await;
    };
    let (one, two) = (Arc::new(database.open().await), Arc::new(database.open().await));
    tokio::join!(race(Arc::clone(&one)), race(two));
    let log = "SELECT count(*) FROM :schema.log WHERE no BETWEEN 1 AND 1000";
    assert_eq!(database.number(log).await, 1000);
    assert_eq!(database.number("SELECT max(no) FROM :schema.log").await, 1000);
    assert_eq!(database.number("SELECT count(*) FROM :schema.live").await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_holds_up_others_and_ends_with_a_commit_or_a_pass() {
    let database = Database::new();
    let (one, two) = (Arc::new(database.open().await), Arc::new(database.open().await));
    commit(&one, 1, Changes::default()).await;
    assert_eq!(one.turn(0, 10).await, Ok(Tail::Entries(vec![entry(1)])));
    let other = Arc::clone(&two);
    let waiting = tokio::spawn(async move { other.commit(&entry(2), &Changes::default()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    commit(&one, 2, Changes::default()).await;
    assert_eq!(waiting.await.expect("ran"), Err(CommitError::Behind));
    assert_eq!(two.turn(2, 10).await, Ok(Tail::Entries(Vec::new())));
    two.pass().await;
    commit(&one, 3, Changes::default()).await;
    // A node that is gone in the middle of its turn does not hold others up for long.
    one.turn(3, 10).await.expect("a turn");
    let began = Instant::now();
    loop {
        match two.commit(&entry(4), &Changes::default()).await {
            Ok(()) => break,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(6), "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_row_is_read_back_and_loaded() {
    let database = Database::new();
    let backend = database.open().await;
    let worker = WorkerId::random();
    let scope = KeyScope { queue: QueueName::default(), tenant: Some(text("t")), key: text("k") };
    let bare = KeyScope { queue: QueueName::default(), tenant: None, key: text("k") };
    let key_row = KeyRow { task: TaskKey(1), created_at: at(1), digest: u64::MAX, forget_at: at(9) };
    let unique = UniqueKey(u128::MAX - 5);
    let unique_row = UniqueRow { task: TaskKey(1), created_at: at(1), held: true, keep_until: Some(at(3)) };
    let free = UniqueRow { held: false, keep_until: Some(at(3)), ..unique_row };
    let claim = ClaimRow {
        first: 40,
        worker,
        at: at(3),
        event_no: 9,
        entries: vec![
            ClaimEntry { key: 1, version: 2, attempt: 1 },
            ClaimEntry { key: 0, version: 1, attempt: 1 },
            ClaimEntry { key: 3, version: 2, attempt: 4 },
        ],
    };
    let mut put_overlay = new_task(2);
    put_overlay.overlay = OverlayChange::Put(Box::new(overlay()));
    let breaker = Scope::Type(TaskType::new("resize").expect("a name"));
    let mut changes = tasks(vec![change(1, Was::Absent, Is::Live, Some(full_row())), put_overlay, new_task(3)]);
    changes.claims = [(40, Some(claim.clone())), (41, Some(ClaimRow { first: 41, ..claim.clone() }))].into();
    changes.attempts = vec![(TaskKey(1), failure(1)), (TaskKey(1), failure(2)), (TaskKey(1), failure(2))];
    let progress =
        Progress { percent: 5.5, message: Some("m".into()), step: None, steps: None, metadata: None, at: at(3) };
    changes.progress = [(TaskKey(1), Some(progress.clone())), (TaskKey(3), Some(progress.clone()))].into();
    changes.steps = vec![(TaskKey(1), "step \0 1".into(), json("[1]")), (TaskKey(1), "step \0 1".into(), json("[2]"))];
    changes.idempotency = [(scope.clone(), KeyChange::Put(key_row)), (bare.clone(), KeyChange::New(key_row))].into();
    changes.uniques = [(unique, Some(unique_row)), (UniqueKey(7), Some(free))].into();
    changes.queues = [(QueueName::default(), Some(QueueSettings { paused: true, ..QueueSettings::default() }))].into();
    changes.types = [(TaskType::new("resize").expect("a name"), Some(TypeSettings::default()))].into();
    changes.breakers = [(breaker.clone(), Some(Record::default()))].into();
    changes.error_rules = Some(windlass_core::error_rules::ErrorRules::default());
    commit(&backend, 1, changes).await;

    let wants = Wants {
        tasks: vec![TaskKey(1), TaskKey(2), TaskKey(99)],
        claims: vec![40, 42],
        idempotency: vec![scope.clone(), bare.clone(), KeyScope { key: text("x"), ..bare.clone() }],
        uniques: vec![unique, UniqueKey(8)],
    };
    let mut found = backend.read(&wants, 1).await.expect("read");
    found.tasks.sort_by_key(|(key, _)| *key);
    assert_eq!(found.tasks.len(), 2);
    same_row(&found.tasks[0].1.row, &full_row());
    assert_eq!(found.tasks[0].1.steps, [("step \0 1".to_owned(), json("[1]"))].into());
    let stands = found.tasks[1].1.overlay.as_ref().expect("an overlay");
    assert_eq!(Overlay { worker: None, ..stands.clone() }, Overlay { worker: None, ..overlay() });
    assert_eq!(found.claims, std::slice::from_ref(&claim));
    let found_keys: BTreeMap<_, _> = found.idempotency.into_iter().collect();
    assert_eq!(found_keys, [(scope.clone(), key_row), (bare.clone(), key_row)].into());
    assert_eq!(found.uniques, [(unique, unique_row)]);

    let mut snapshot = backend.load().await.expect("loaded");
    assert_eq!((snapshot.version, snapshot.last.clone()), (1, Some(entry(1))));
    let rows = live(&mut snapshot).await;
    assert_eq!(rows.iter().map(|row| row.key.0).collect::<Vec<_>>(), [1, 2, 3]);
    let first = &rows[0];
    let spec = full_row().spec;
    assert_eq!(first.lane.queue, spec.queue);
    assert_eq!(first.lane.tenant, spec.tenant);
    assert_eq!(first.lane.capabilities, spec.capabilities);
    assert_eq!(first.lane.priority, spec.priority);
    assert_eq!((first.expires_at, &first.flow_key, first.unique), (spec.expires_at, &spec.flow_key, true));
    assert_eq!((first.created_at, first.run_at), (at(1), at(2)));
    assert!(rows[1].overlay.is_some() && rows[2].overlay.is_none() && !rows[2].unique);
    let recovered = &snapshot.found;
    assert_eq!(recovered.claims, [claim.clone(), ClaimRow { first: 41, ..claim.clone() }]);
    assert_eq!(recovered.timeouts, [(1, Duration::from_secs(300)), (3, Duration::from_secs(300))].into());
    assert!(recovered.settings.queues[&QueueName::default()].paused);
    assert_eq!(recovered.settings.types.len(), 1);
    assert_eq!(recovered.breakers, [(breaker.clone(), Record::default())]);
    assert_eq!(recovered.secret, backend.secret());

    let cold = backend.archive().cold(vec![TaskKey(1), TaskKey(99)]).await.expect("read");
    let first = cold[0].as_ref().expect("there");
    assert_eq!(first.progress, Some(progress));
    assert_eq!(first.failed_attempts, [failure(1), failure(2)]);
    assert!(cold[1].is_none());

    // And everything is deleted again.
    let mut changes = tasks(vec![change(3, Was::Live, Is::Gone, None)]);
    changes.claims = [(40, None), (41, Some(ClaimRow { first: 41, entries: Vec::new(), ..claim.clone() }))].into();
    changes.progress = [(TaskKey(1), None)].into();
    changes.idempotency = [(scope, KeyChange::Gone)].into();
    changes.uniques = [(unique, None)].into();
    changes.queues = [(QueueName::default(), None)].into();
    changes.types = [(TaskType::new("resize").expect("a name"), None)].into();
    changes.breakers = [(breaker, None)].into();
    commit(&backend, 2, changes).await;
    let snapshot = backend.load().await.expect("loaded");
    assert_eq!(snapshot.found.claims, [ClaimRow { first: 41, entries: Vec::new(), ..claim }]);
    assert!(snapshot.found.settings.queues.is_empty() && snapshot.found.settings.types.is_empty());
    assert!(snapshot.found.breakers.is_empty());
    let found = backend.read(&wants, 2).await.expect("read");
    assert_eq!(found.idempotency, [(bare.clone(), key_row)]);
    assert!(found.uniques.is_empty());
    assert_eq!(database.number("SELECT count(*) FROM :schema.progress").await, 0);

    assert_eq!(backend.expired_keys(at(9), 10).await, Ok(vec![(bare, key_row)]));
    assert_eq!(backend.expired_keys(at(8), 10).await, Ok(Vec::new()));
    assert_eq!(backend.expired_uniques(at(3), 10).await, Ok(vec![UniqueKey(7)]));
    assert_eq!(backend.expired_uniques(at(2), 10).await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_said_to_be_new_and_is_not_refuses_everything() {
    let database = Database::new();
    let backend = database.open().await;
    let scope = KeyScope { queue: QueueName::default(), tenant: None, key: text("k") };
    let key_row = |task| KeyRow { task: TaskKey(task), created_at: at(1), digest: 3, forget_at: at(9) };
    let with_key = |task, key| Changes { idempotency: [(scope.clone(), key)].into(), ..tasks(vec![new_task(task)]) };
    commit(&backend, 1, with_key(1, KeyChange::New(key_row(1)))).await;
    let refused = backend.commit(&entry(2), &with_key(2, KeyChange::New(key_row(2)))).await;
    assert!(matches!(refused, Err(CommitError::Behind)), "{refused:?}");
    assert_eq!(database.number("SELECT count(*) FROM :schema.live").await, 1);
    assert_eq!(database.number("SELECT max(no) FROM :schema.log").await, 1);
    commit(&backend, 2, with_key(2, KeyChange::Put(key_row(2)))).await;
    let wants = Wants { idempotency: vec![scope.clone()], ..Wants::default() };
    assert_eq!(backend.read(&wants, 2).await.expect("read").idempotency, [(scope, key_row(2))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_move_between_the_live_and_the_ended() {
    let database = Database::new();
    let backend = database.open().await;
    let worker = WorkerId::random();
    let mut with_overlay = change(1, Was::Absent, Is::Live, Some(full_row()));
    with_overlay.overlay = OverlayChange::Put(Box::new(overlay()));
    commit(&backend, 1, tasks(vec![with_overlay, new_task(2), new_task(3)])).await;

    let mut dead = ended(Status::DeadLetter, Some(30));
    dead.reason = Some(EndReason::ALL[0]);
    dead.worker = Some(worker);
    dead.applied = Some(AppliedResult { claim: 9, digest: u64::MAX, status: Status::DeadLetter });
    let done = ended(Status::Completed, Some(7));
    let edited = TaskRow { auto_replayed: true, ..row("[]") };
    let changes = vec![
        TaskChange { overlay: OverlayChange::Drop, ..end(1, Was::Live, dead.clone()) },
        end(2, Was::Live, done.clone()),
        change(3, Was::Live, Is::Ended(Box::new(ended(Status::Cancelled, None))), Some(edited.clone())),
        change(4, Was::Absent, Is::Ended(Box::new(done.clone())), Some(row("4"))),
    ];
    commit(&backend, 2, tasks(changes)).await;
    assert_eq!(database.number("SELECT count(*) FROM :schema.live").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM :schema.overlays").await, 0);
    let found: BTreeMap<_, _> = backend.read(&keys(&[1, 2, 3, 4]), 2).await.expect("read").tasks.into_iter().collect();
    same_row(&found[&TaskKey(1)].row, &full_row());
    assert_eq!(found[&TaskKey(1)].ended, Some(dead.clone()));
    assert_eq!(found[&TaskKey(2)].ended, Some(done.clone()));
    same_row(&found[&TaskKey(3)].row, &edited);
    assert_eq!(found[&TaskKey(3)].ended, Some(ended(Status::Cancelled, None)));
    same_row(&found[&TaskKey(4)].row, &row("4"));
    let dead_letters = backend.load().await.expect("loaded").found.dead_letters;
    assert_eq!(dead_letters.into_values().collect::<Vec<_>>(), [1]);

    // A replay with and without edited parameters, a discard.
    let mut revived = change(2, Was::Ended, Is::Live, None);
    revived.overlay = OverlayChange::Put(Box::new(overlay()));
    let given_up = ended(Status::Failed, Some(7));
    let changes = vec![
        end(1, Was::Ended, given_up.clone()),
        revived,
        change(3, Was::Ended, Is::Live, Some(row("{\"edited\":1}"))),
        change(4, Was::Ended, Is::Gone, None),
    ];
    commit(&backend, 3, tasks(changes)).await;
    let found: BTreeMap<_, _> = backend.read(&keys(&[1, 2, 3, 4]), 3).await.expect("read").tasks.into_iter().collect();
    assert_eq!(found.len(), 3);
    assert_eq!(found[&TaskKey(1)].ended, Some(given_up));
    same_row(&found[&TaskKey(1)].row, &full_row());
    assert!(found[&TaskKey(2)].ended.is_none() && found[&TaskKey(2)].overlay.is_some());
    same_row(&found[&TaskKey(3)].row, &row("{\"edited\":1}"));
    assert_eq!(database.number("SELECT count(*) FROM :schema.ended").await, 1);

    // An amendment in place.
    let mut amended = row("{\"edited\":1}");
    amended.spec.priority = Priority::CRITICAL;
    amended.spec.tenant = Some(text("new"));
    commit(&backend, 4, tasks(vec![change(3, Was::Live, Is::Live, Some(amended.clone()))])).await;
    let found = backend.read(&keys(&[3]), 4).await.expect("read").tasks;
    same_row(&found[0].1.row, &amended);

    // A task that was cancelled while it ran is told to its worker by the node that loads.
    let claim = ClaimRow {
        first: 1,
        worker,
        at: at(1),
        event_no: 1,
        entries: vec![ClaimEntry { key: 3, version: 9, attempt: 1 }],
    };
    let mut changes = tasks(vec![end(3, Was::Live, ended(Status::Cancelled, Some(7)))]);
    changes.claims = [(1, Some(claim))].into();
    commit(&backend, 5, changes).await;
    let recovered = backend.load().await.expect("loaded").found;
    assert_eq!(recovered.cancelled[&3].lane.priority, Priority::CRITICAL);
    assert!(recovered.timeouts.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_and_the_newest_attempts_are_kept() {
    let database = Database::new();
    let backend = database.open().await;
    commit(&backend, 1, tasks(vec![new_task(1)])).await;
    let all = ATTEMPTS_KEPT as u32 + 5;
    for attempt in 1..=all {
        let changes = Changes { attempts: vec![(TaskKey(1), failure(attempt))], ..Changes::default() };
        commit(&backend, u64::from(attempt) + 1, changes).await;
    }
    let cold = backend.archive().cold(vec![TaskKey(1)]).await.expect("read");
    let kept: Vec<u32> =
        cold[0].as_ref().expect("there").failed_attempts.iter().map(|failure| failure.attempt).collect();
    let expected: Vec<u32> = std::iter::once(1).chain(7..=all).collect();
    assert_eq!(kept, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_tasks_are_found_one_by_one_and_days_are_dropped_whole() {
    let database = Database::new();
    let backend = database.open().await;
    commit(&backend, 1, tasks((1..=6).map(new_task).collect())).await;
    let ends = vec![
        end(1, Was::Live, ended(Status::Completed, Some(1))),
        end(2, Was::Live, ended(Status::Failed, Some(1))),
        end(3, Was::Live, ended(Status::Completed, Some(7))),
        end(4, Was::Live, ended(Status::Completed, None)),
        end(5, Was::Live, ended(Status::DeadLetter, Some(1))),
        end(6, Was::Live, ended(Status::Completed, Some(400))),
    ];
    let mut changes = tasks(ends);
    changes.attempts = vec![(TaskKey(1), failure(1)), (TaskKey(3), failure(1))];
    changes.steps = vec![(TaskKey(1), "a".into(), json("1")), (TaskKey(3), "a".into(), json("1"))];
    commit(&backend, 2, changes).await;
    assert_eq!(backend.expired_tasks(at(0), 10).await, Ok(Vec::new()));
    let found: BTreeSet<_> = backend.expired_tasks(at(4 + DAY_US), 10).await.expect("read").into_iter().collect();
    let expected =
        [(TaskKey(1), Status::Completed), (TaskKey(2), Status::Failed), (TaskKey(5), Status::DeadLetter)].into();
    assert_eq!(found, expected);

    assert_eq!(backend.day_step(at(DAY_US)).await, Ok(DayStep::Nothing), "the day is not over");
    assert_eq!(backend.expired_tasks(at(2 * DAY_US), 10).await, Ok(vec![(TaskKey(5), Status::DeadLetter)]));
    assert_eq!(backend.day(20_001, 2).await, Ok(DayState::Open));
    let day = Day { no: 20_001, ends_at: at(2 * DAY_US - 1_000_000) };
    assert_eq!(backend.day_step(at(2 * DAY_US)).await, Ok(DayStep::Close(day)));
    commit(&backend, 3, days(day.no, DayState::Closed)).await;
    assert_eq!(backend.day(day.no, 3).await, Ok(DayState::Closed));
    assert_eq!(backend.read(&keys(&[1, 2]), 3).await.expect("read").tasks.len(), 2, "they are still there");
    let mut counts = [0; 8];
    for status in [Status::Completed, Status::Failed] {
        counts[usize::from(status.code())] = 1;
    }
    assert_eq!(backend.day_step(at(2 * DAY_US)).await, Ok(DayStep::Drop(day, counts)));
    assert_eq!(backend.day_step(at(2 * DAY_US)).await, Ok(DayStep::Drop(day, counts)), "as often as it is asked");
    assert_eq!(database.number("SELECT count(*) FROM :schema.attempts").await, 2);
    commit(&backend, 4, days(day.no, DayState::Gone)).await;
    assert_eq!(backend.day(day.no, 4).await, Ok(DayState::Gone));
    assert!(backend.read(&keys(&[1, 2]), 4).await.expect("read").tasks.is_empty());
    let (listed, _) = backend.archive().candidates(TaskKey(u64::MAX), TaskFilter::default(), 10).await.expect("read");
    assert_eq!(listed, [6, 5, 4, 3].map(TaskKey), "gone from lists, too");
    assert_eq!(database.number("SELECT count(*) FROM :schema.ended").await, 6, "but not from the disk");
    assert_eq!(backend.day_step(at(2 * DAY_US)).await, Ok(DayStep::More));
    assert_eq!(backend.day_step(at(2 * DAY_US)).await, Ok(DayStep::Nothing));
    assert_eq!(backend.day(day.no, 4).await, Ok(DayState::Gone));
    assert_eq!(database.number("SELECT count(*) FROM :schema.days_over").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM :schema.ended").await, 4);
    assert_eq!(database.number("SELECT count(*) FROM :schema.attempts").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM :schema.steps").await, 1);
    // A task that belongs into a day that was dropped gets it back.
    commit(&backend, 5, tasks(vec![new_task(7)])).await;
    commit(&backend, 6, tasks(vec![end(7, Was::Live, ended(Status::Completed, Some(1)))])).await;
    assert_eq!(backend.read(&keys(&[7]), 6).await.expect("read").tasks.len(), 1);
}

fn days(day: i32, state: DayState) -> Changes {
    Changes { days: [(day, state)].into(), ..Changes::default() }
}

fn events(backend: &PostgresBackend, no: u64, keys: &[u64]) -> EventRow {
    let ids = IdCodec::new(backend.secret());
    let event = |key: &u64| Event {
        task_id: ids.task_id(TaskKey(*key), at(1)),
        version: 1,
        at: at(no as i64),
        actor: Actor::System,
        change: Change::Cancelled { note: Some("zero \0".into()) },
    };
    EventRow { no, at: at(no as i64), events: keys.iter().map(event).collect() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_read_and_pruned_with_their_tasks() {
    let database = Database::new();
    let backend = database.open().await;
    for no in 1..=30 {
        let changes = Changes { events: Some(events(&backend, no, &[no, 100 + no])), ..tasks(vec![new_task(no)]) };
        commit(&backend, no, changes).await;
    }
    let archive = backend.archive();
    let found = archive.events_in(vec![3, 2, 99]).await.expect("read");
    let wanted: Vec<Event> = [2, 3].iter().flat_map(|no| events(&backend, *no, &[*no, 100 + *no]).events).collect();
    assert_eq!(found, wanted);
    let page = archive.events_from(29, 1).await.expect("read");
    assert_eq!(page.iter().map(|(no, _)| *no).collect::<Vec<_>>(), [29, 30]);

    // The tasks from 101 on were never there: their events go. Task 1 goes now.
    commit(&backend, 31, tasks(vec![change(1, Was::Live, Is::Gone, None)])).await;
    let mut slices = 0;
    while backend.prune_events(at(29), 100).await.expect("pruned") {
        slices += 1;
        assert!(slices < 10);
    }
    let left = archive.events_from(0, 100).await.expect("read");
    let counts: Vec<usize> = left.iter().map(|(_, events)| events.len()).collect();
    assert_eq!(left[0].0, 2, "the row of the task that is gone is gone");
    assert_eq!(counts, [vec![1; 27], vec![2, 2]].concat());
    assert_eq!(database.number("SELECT count(*) FROM :schema.log").await, 31, "young entries stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_entries_of_the_log_go_but_for_the_last_thousand() {
    let database = Database::new();
    let backend = database.open().await;
    let fill = format!(
        "INSERT INTO {}.log SELECT no, 1, CASE WHEN no < 4000 THEN 0 ELSE 99999999999999999 END, ''
        FROM generate_series(1, 6000) no",
        database.schema
    );
    database.client().await.batch_execute(&fill).await.expect("filled");
    while backend.prune_events(Timestamp::EPOCH, 10).await.expect("pruned") {}
    assert_eq!(database.number("SELECT min(no) FROM :schema.log").await, 4000);
    assert_eq!(backend.tail(100, 10).await, Ok(Tail::Gone));
    let client = database.client().await;
    client.batch_execute(&format!("UPDATE {}.log SET at = 0", database.schema)).await.expect("aged");
    while backend.prune_events(Timestamp::EPOCH, 10).await.expect("pruned") {}
    assert_eq!(database.number("SELECT min(no) FROM :schema.log").await, 5001);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_walk_the_live_and_the_ended_newest_first() {
    let database = Database::new();
    let backend = database.open().await;
    let mut new: Vec<_> = (1..=100).map(new_task).collect();
    for task in new.iter_mut().skip(50) {
        let mut other = row("{}");
        other.spec.queue = QueueName::new("other").expect("a name");
        other.spec.tenant = Some(text("t"));
        task.row = Some(Arc::new(other));
    }
    commit(&backend, 1, tasks(new)).await;
    let ends = (1..=100).filter(|key| key % 2 == 0).map(|key| {
        let status = if key % 10 == 0 { Status::DeadLetter } else { Status::Completed };
        end(key, Was::Live, ended(status, Some(7)))
    });
    commit(&backend, 2, tasks(ends.collect())).await;
    let archive = backend.archive();
    let all = |filter: TaskFilter| {
        let archive = Arc::clone(&archive);
        async move {
            let (mut below, mut found) = (TaskKey(u64::MAX), Vec::new());
            loop {
                let (page, rest) = archive.candidates(below, filter.clone(), 7).await.expect("read");
                found.extend(page.iter().map(|key| key.0));
                match rest {
                    Some(next) => below = next,
                    None => return found,
                }
            }
        }
    };
    let down = |keep: fn(&u64) -> bool| (1..=100).rev().filter(keep).collect::<Vec<u64>>();
    assert_eq!(all(TaskFilter::default()).await, down(|_| true));
    let of = |statuses: &[Status]| TaskFilter { statuses: statuses.to_vec(), ..TaskFilter::default() };
    assert_eq!(all(of(&[Status::DeadLetter])).await, down(|key| key % 10 == 0));
    assert_eq!(all(of(&[Status::Completed])).await, down(|key| key % 2 == 0 && key % 10 != 0));
    assert_eq!(all(of(&[Status::Completed, Status::DeadLetter])).await, down(|key| key % 2 == 0));
    assert_eq!(all(of(&[Status::Queued])).await, down(|key| key % 2 == 1));
    let mut queue = of(&[]);
    queue.queue = Some(QueueName::new("other").expect("a name"));
    queue.tenant = Some(text("t"));
    queue.priority = Some(Priority::MEDIUM);
    queue.task_type = Some(TaskType::new("resize").expect("a name"));
    queue.created_after = Some(at(1));
    queue.created_before = Some(at(2));
    assert_eq!(all(queue).await, down(|key| *key > 50));
    assert!(archive.bytes().await.expect("a size") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_run_once_whoever_comes() {
    let database = Database::new();
    let (one, two, three) = tokio::join!(database.open(), database.open(), database.open());
    assert!(one.secret() == two.secret() && two.secret() == three.secret());
    let again = database.open().await;
    commit(&again, 1, tasks(vec![new_task(1)])).await;
    let strict = PostgresOptions { migrate: false, ..database.options() };
    PostgresBackend::connect(strict.clone()).await.expect("it is up to date");
    let sql = format!("INSERT INTO {}.schema_version VALUES (99, 'later')", database.schema);
    database.client().await.batch_execute(&sql).await.expect("written");
    let Err(error) = PostgresBackend::connect(database.options()).await else { panic!("a newer schema was used") };
    assert!(matches!(error, OpenError::TooNew { found: 99, .. }), "{error}");
    let elsewhere = PostgresOptions { schema: "wt_not_there".into(), ..strict };
    let Err(error) = PostgresBackend::connect(elsewhere).await else { panic!("nothing was there") };
    assert!(matches!(error, OpenError::NotMigrated { found: 0, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_an_older_schema_are_found() {
    let database = Database::new();
    database.open().await.close().await;
    let older = "DROP TRIGGER copied ON :schema.idempotency;
        DROP FUNCTION :schema.copy_idempotency; DROP FUNCTION :schema.idempotency_scope;
        DROP TABLE :schema.idempotency_keys;
        INSERT INTO :schema.idempotency VALUES (1, 1, 3, 9, 'default', 'töchter', 'kéy'), (2, 1, 4, 9, 'default', '', 'kéy');
        DELETE FROM :schema.schema_version WHERE version > 3";
    let older = older.replace(":schema", &database.schema);
    database.client().await.batch_execute(&older).await.expect("made older");
    let backend = database.open().await;
    let scope = KeyScope { queue: QueueName::default(), tenant: Some(text("töchter")), key: text("kéy") };
    let bare = KeyScope { tenant: None, ..scope.clone() };
    let time = Timestamp::from_micros;
    let row = |task, digest| KeyRow { task: TaskKey(task), created_at: time(1), digest, forget_at: time(9) };
    let stored = async |scope: &KeyScope| {
        let wants = Wants { idempotency: vec![scope.clone()], ..Wants::default() };
        backend.read(&wants, 0).await.expect("read").idempotency.pop().map(|(_, row)| row)
    };
    assert_eq!((stored(&scope).await, stored(&bare).await), (Some(row(1, 3)), Some(row(2, 4))));
    // An older server that still runs goes on with the old table.
    let older = "DELETE FROM :schema.idempotency WHERE tenant = '';
        UPDATE :schema.idempotency SET digest = 5 WHERE key = 'kéy';
        INSERT INTO :schema.idempotency VALUES (7, 1, 6, 9, 'default', '', 'new')";
    database.client().await.batch_execute(&older.replace(":schema", &database.schema)).await.expect("written");
    assert_eq!((stored(&scope).await, stored(&bare).await), (Some(row(1, 5)), None));
    assert_eq!(stored(&KeyScope { key: text("new"), ..bare }).await, Some(row(7, 6)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_named_without_the_password() {
    let options = PostgresOptions::new("postgres://ann:secret@127.0.0.1:1/jobs");
    let Err(error) = PostgresBackend::connect(options).await else { panic!("nobody is there") };
    let said = error.to_string();
    assert!(said.contains("127.0.0.1:1/jobs") && said.contains("refused") && !said.contains("secret"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_few_rights_runs_a_server() {
    let database = Database::new();
    database.open().await;
    let (schema, role) = (&database.schema, format!("{}_role", database.schema));
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT {role} TO CURRENT_USER; GRANT USAGE ON SCHEMA {schema} TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
        REVOKE UPDATE ON {schema}.live FROM {role};
        GRANT EXECUTE ON FUNCTION {schema}.make_ended_partition TO {role};"
    );
    let client = database.client().await;
    client.batch_execute(&sql).await.expect("granted");
    let url = url();
    let (_, place) = url.split_once('@').expect("a user and a place");
    let url = format!("postgres://{role}@{place}");
    let options = PostgresOptions { url, migrate: false, ..database.options() };
    let Err(error) = PostgresBackend::connect(options.clone()).await else { panic!("it may not do everything") };
    let told = error.to_string();
    assert!(told.contains(&role) && told.contains("table live, function drop_ended_partition of"), "{told}");
    let rest = format!(
        "GRANT UPDATE ON {schema}.live TO {role};
        GRANT EXECUTE ON FUNCTION {schema}.drop_ended_partition TO {role};"
    );
    client.batch_execute(&rest).await.expect("granted");
    let backend = PostgresBackend::connect(options).await.expect("connects");
    commit(&backend, 1, tasks(vec![new_task(1)])).await;
    commit(&backend, 2, tasks(vec![end(1, Was::Live, ended(Status::Completed, Some(1)))])).await;
    assert_eq!(backend.read(&keys(&[1]), 2).await.expect("read").tasks.len(), 1);
    commit(&backend, 3, days(20_001, DayState::Closed)).await;
    assert!(matches!(backend.day_step(at(3 * DAY_US)).await, Ok(DayStep::Drop(..))));
    commit(&backend, 4, days(20_001, DayState::Gone)).await;
    assert_eq!(backend.day_step(at(3 * DAY_US)).await, Ok(DayStep::More));
    assert_eq!(
        database
            .number(
                "SELECT count(*) FROM pg_class WHERE relname = 'ended_20001'
        AND relnamespace = ':schema'::regnamespace"
            )
            .await,
        0
    );
    backend.close().await;
    client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.expect("dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_wakes_other_nodes_and_not_its_own() {
    let database = Database::new();
    let slow = PostgresOptions { slow_poll_interval: Duration::from_secs(30), ..database.options() };
    let open = || async { PostgresBackend::connect(slow.clone()).await.expect("connects") };
    let (one, two) = (open().await, open().await);
    let began = Instant::now();
    while !(one.is_listening() && two.is_listening()) {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut waits = Vec::new();
    for no in 1..=50 {
        commit(&one, no, Changes::default()).await;
        let began = Instant::now();
        two.grown(no - 1).await;
        waits.push(began.elapsed());
    }
    waits.sort_unstable();
    assert!(waits[25] < Duration::from_millis(50), "{waits:?}");
    assert!(waits[49] < Duration::from_secs(5), "a hint was lost: {waits:?}");
    let own = tokio::time::timeout(Duration::from_millis(200), one.grown(0)).await;
    assert!(own.is_err(), "a node was woken by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_leads_at_a_time() {
    let database = Database::new();
    let (one, two) = (database.open().await, database.open().await);
    let span = Duration::from_millis(300);
    assert_eq!(one.lead(NodeId(1), span).await, Ok(true));
    assert_eq!(two.lead(NodeId(2), span).await, Ok(false));
    assert_eq!(one.lead(NodeId(1), span).await, Ok(true));
    tokio::time::sleep(span + Duration::from_millis(50)).await;
    assert_eq!(two.lead(NodeId(2), span).await, Ok(true));
    assert_eq!(one.lead(NodeId(1), span).await, Ok(false));
    two.resign(NodeId(2)).await;
    assert_eq!(one.lead(NodeId(1), span).await, Ok(true));
    let (before, after) = (one.time().await.expect("a time"), two.time().await.expect("a time"));
    assert!(after >= before && after.as_micros() > 1_600_000_000_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_behind_a_pooler() {
    let database = Database::new();
    let options = PostgresOptions { url: pooled_url(), ..database.options() };
    let (one, two) = (
        Arc::new(PostgresBackend::connect(options.clone()).await.expect("connects")),
        Arc::new(PostgresBackend::connect(options).await.expect("connects")),
    );
    let race = |index: u64, backend: Arc<PostgresBackend>| async move {
        let (mut seen, mut done) = (0, 0);
        while done < 100 {
            let key = index * 1_000 + done + 1;
            match backend.commit(&entry(seen + 1), &tasks(vec![new_task(key)])).await {
                Ok(()) => (seen, done) = (seen + 1, done + 1),
                Err(CommitError::Behind) => {
                    let Ok(Tail::Entries(entries)) = backend.turn(seen, 100).await else { panic!("no tail") };
                    seen += entries.len() as u64;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        backend.pass().await;
    };
    tokio::join!(race(1, Arc::clone(&one)), race(2, Arc::clone(&two)));
    commit(&one, 201, tasks(vec![end(1001, Was::Live, ended(Status::Completed, Some(7)))])).await;
    let mut snapshot = two.load().await.expect("loaded");
    assert_eq!(snapshot.version, 201);
    assert_eq!(live(&mut snapshot).await.len(), 199);
    assert!(!one.is_listening());
    assert_eq!(two.read(&keys(&[1001, 2001]), 201).await.expect("read").tasks.len(), 2);
}
