//! The contract of a shared log, on one server and on a cluster.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{
    Backend, Changes, CommitError, Entry, Is, KeyChange, NodeId, OverlayChange, Tail, TaskChange, Wants, Was,
};
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskKey;
use windlass_core::keys::{OnFailure, UniqueKey};
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::task::Progress;
use windlass_ledger::archive::Archive;
use windlass_ledger::journal::{ClaimEntry, ClaimRow, KeyRow, KeyScope, UniqueRow, WorkerRow};
use windlass_store_redis::RedisBackend;
use windlass_testkit::fixtures;

async fn entries_are_taken_once_and_in_order(place: Place) {
    let (one, two) = (place.open().await, place.open().await);
    assert_eq!(one.secret(), two.secret());
    assert_eq!(one.tail(0, 10).await, Ok(Tail::Entries(Vec::new())));
    commit(&one, 1, &Changes::default()).await;
    commit(&one, 2, &Changes::default()).await;
    let other = Entry { no: 2, node: NodeId(8), redo: b"other".to_vec() };
    assert!(is_behind(&two.commit(&other, &tasks(vec![new_task("q", 1)])).await), "the number is taken");
    assert!(is_behind(&two.commit(&entry(4), &Changes::default()).await), "the number is not next");
    assert_eq!(two.tail(0, 10).await, Ok(Tail::Entries(vec![entry(1), entry(2)])));
    assert_eq!(two.tail(1, 10).await, Ok(Tail::Entries(vec![entry(2)])));
    assert_eq!(two.tail(0, 1).await, Ok(Tail::Entries(vec![entry(1)])));
    let found = two.read(&Wants { tasks: vec![TaskKey(1)], ..Wants::default() }, 2).await.expect("rows");
    assert!(found.tasks.is_empty(), "whoever was behind has written nothing");
    commit(&one, 2, &Changes::default()).await;
    let mut snapshot = two.load().await.expect("a snapshot");
    assert_eq!((snapshot.version, snapshot.last.clone()), (2, Some(entry(2))));
    assert!(live(&mut snapshot).await.is_empty());
    place.delete().await;
}

async fn two_nodes_race(place: Place) {
    const EACH: usize = 500;
    let race = |backend: Arc<RedisBackend>, node: u64| async move {
        let mut last = 0;
        let mut written = 0;
        while written < EACH {
            let no = last + 1;
            let key = no;
            let queue = format!("q{}", key % 3);
            let entry = Entry { no, node: NodeId(node), redo: key.to_be_bytes().to_vec() };
            match backend.commit(&entry, &tasks(vec![new_task(&queue, key)])).await {
                Ok(()) => {
                    last = no;
                    written += 1;
                }
                Err(CommitError::Behind) => {
                    let Tail::Entries(entries) = backend.turn(last, 1_000).await.expect("a tail") else {
                        panic!("nothing is trimmed")
                    };
                    for entry in entries {
                        assert_eq!(entry.no, last + 1, "no gap");
                        last = entry.no;
                    }
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        backend.pass().await;
    };
    let (one, two) = (Arc::new(place.open().await), Arc::new(place.open().await));
    tokio::join!(
        async {
            tokio::spawn(race(Arc::clone(&one), 1)).await.expect("done");
        },
        async {
            tokio::spawn(race(Arc::clone(&two), 2)).await.expect("done");
        }
    );
    let Ok(Tail::Entries(entries)) = one.tail(0, 10_000).await else { panic!("the whole log") };
    assert_eq!(entries.iter().map(|entry| entry.no).collect::<Vec<_>>(), (1..=1_000).collect::<Vec<_>>());
    let wanted = Wants { tasks: (1..=1_000).map(TaskKey).collect(), ..Wants::default() };
    for backend in [&one, &two] {
        let found = backend.read(&wanted, 1_000).await.expect("rows");
        assert_eq!(found.tasks.len(), 1_000, "no row is lost");
    }
    let mut snapshot = two.load().await.expect("a snapshot");
    assert_eq!(live(&mut snapshot).await.len(), 1_000);
    place.delete().await;
}

fn worker() -> WorkerRow {
    WorkerRow { profile: fixtures::profile(), registered_at: at(1), draining: true }
}

async fn every_row_comes_back(place: Place) {
    let (backend, other) = (place.open().await, place.open().await);
    let mut rich = row("rich", 1);
    rich.spec = fixtures::task("mail")
        .queue("rich")
        .tenant("acme")
        .tag("colour", "red")
        .requires(&["gpu"])
        .key("once")
        .expires_at(at(99))
        .ordered("line", OnFailure::Skip)
        .parameters(r#"{"a":  [1, 2]}"#)
        .build()
        .spec;
    rich.original_parameters = Some(fixtures::json("[0]"));
    rich.auto_replayed = true;
    let worker = worker();
    let claim = ClaimRow {
        first: 5,
        worker: worker.profile.id,
        at: at(9),
        event_no: 1,
        entries: vec![ClaimEntry { key: 2, version: 2, attempt: 1 }],
    };
    let scope =
        KeyScope { queue: fixtures::queue("rich"), tenant: Some(fixtures::text("acme")), key: fixtures::text("once") };
    let bare = KeyScope { tenant: None, ..scope.clone() };
    let key_row = KeyRow { task: TaskKey(1), created_at: at(1), digest: u64::MAX, forget_at: at(50) };
    let unique = UniqueKey(u128::MAX - 5);
    let unique_row = UniqueRow { task: TaskKey(1), created_at: at(1), held: false, keep_until: Some(at(40)) };
    let progress = Progress { percent: 50.0, message: None, step: None, steps: None, metadata: None, at: at(3) };
    let changes = Changes {
        tasks: vec![
            TaskChange {
                key: TaskKey(1),
                was: Was::Absent,
                is: Is::Live,
                row: Some(Arc::new(rich.clone())),
                overlay: OverlayChange::Put(Box::new(overlay())),
            },
            new_task("plain", 2),
        ],
        claims: BTreeMap::from([(5, Some(claim.clone()))]),
        attempts: vec![(TaskKey(1), attempt(1)), (TaskKey(1), attempt(2))],
        progress: BTreeMap::from([(TaskKey(1), Some(progress.clone()))]),
        steps: vec![
            (TaskKey(1), "first".into(), fixtures::json("1")),
            (TaskKey(1), "first".into(), fixtures::json("2")),
        ],
        idempotency: BTreeMap::from([
            (scope.clone(), KeyChange::Put(key_row)),
            (bare.clone(), KeyChange::New(key_row)),
        ]),
        uniques: BTreeMap::from([(unique, Some(unique_row))]),
        events: Some(events(&backend, 1, &[1, 2])),
        workers: BTreeMap::from([(worker.profile.id, Some(worker.clone()))]),
        queues: BTreeMap::from([(fixtures::queue("rich"), Some(QueueSettings::default()))]),
        types: BTreeMap::from([(fixtures::task_type("mail"), Some(TypeSettings::default()))]),
        error_rules: Some(ErrorRules::default()),
        breakers: BTreeMap::from([(Scope::Type(fixtures::task_type("mail")), Some(Record::default()))]),
        taken: Vec::new(),
        days: BTreeMap::new(),
    };
    commit(&backend, 1, &changes).await;
    assert!(matches!(other.tail(0, 10).await, Ok(Tail::Entries(entries)) if entries.len() == 1));
    for backend in [&backend, &other] {
        let wants = Wants {
            tasks: vec![TaskKey(1), TaskKey(2), TaskKey(3)],
            claims: vec![5, 6],
            idempotency: vec![scope.clone(), bare.clone()],
            uniques: vec![unique, UniqueKey(3)],
        };
        let found = backend.read(&wants, 1).await.expect("rows");
        let tasks: BTreeMap<TaskKey, _> = found.tasks.into_iter().collect();
        assert_eq!(tasks.keys().copied().collect::<Vec<_>>(), [TaskKey(1), TaskKey(2)]);
        let record = &tasks[&TaskKey(1)];
        assert_eq!(record.row.spec, rich.spec);
        assert_eq!(record.row.spec.parameters.as_str(), r#"{"a":  [1, 2]}"#, "passed through as it was");
        assert_eq!((record.row.created_at, record.row.run_at, record.row.event_no), (rich.created_at, rich.run_at, 1));
        assert_eq!((&record.row.original_parameters, record.row.auto_replayed), (&rich.original_parameters, true));
        assert_eq!(record.overlay.as_ref().map(|overlay| overlay.timeouts), Some(2));
        assert_eq!(record.steps["first"].as_str(), "1", "a step is stored once");
        assert!(tasks[&TaskKey(2)].overlay.is_none() && tasks[&TaskKey(2)].ended.is_none());
        assert_eq!(found.claims, std::slice::from_ref(&claim));
        assert_eq!(found.idempotency, [(scope.clone(), key_row), (bare.clone(), key_row)]);
        assert_eq!(found.uniques, [(unique, unique_row)]);
        let cold = backend.cold(vec![TaskKey(3), TaskKey(1)]).await.expect("rows");
        assert!(cold[0].is_none());
        let cold = cold[1].as_ref().expect("there");
        assert_eq!((cold.progress.as_ref(), cold.failed_attempts.len()), (Some(&progress), 2));
        assert_eq!(backend.events_in(vec![1, 7]).await.expect("events").len(), 2);
        assert_eq!(backend.events_from(0, 10).await.expect("events").len(), 1);
    }
    let mut snapshot = other.load().await.expect("a snapshot");
    let rows = live(&mut snapshot).await;
    assert_eq!(rows.iter().map(|row| row.key.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(rows[0].lane.tenant, rich.spec.tenant);
    assert_eq!((rows[0].expires_at, &rows[0].flow_key), (rich.spec.expires_at, &rich.spec.flow_key));
    assert!(rows[0].overlay.is_some() && rows[1].overlay.is_none());
    let found = &snapshot.found;
    assert_eq!((found.claims.len(), found.workers.len(), found.breakers.len()), (1, 1, 1));
    assert_eq!((found.settings.queues.len(), found.settings.types.len()), (1, 1));
    assert_eq!(found.workers[0], worker);
    assert_eq!(found.timeouts[&2], rows_timeout());
    // Nothing of the small things is left when it is deleted.
    let gone = Changes {
        claims: BTreeMap::from([(5, None)]),
        progress: BTreeMap::from([(TaskKey(1), None)]),
        idempotency: BTreeMap::from([(scope, KeyChange::Gone), (bare, KeyChange::Gone)]),
        uniques: BTreeMap::from([(unique, None)]),
        workers: BTreeMap::from([(worker.profile.id, None)]),
        queues: BTreeMap::from([(fixtures::queue("rich"), None)]),
        types: BTreeMap::from([(fixtures::task_type("mail"), None)]),
        breakers: BTreeMap::from([(Scope::Type(fixtures::task_type("mail")), None)]),
        ..Changes::default()
    };
    commit(&backend, 2, &gone).await;
    let snapshot = backend.load().await.expect("a snapshot");
    let found = &snapshot.found;
    assert_eq!((found.claims.len(), found.workers.len(), found.breakers.len()), (0, 0, 0));
    assert_eq!((found.settings.queues.len(), found.settings.types.len()), (0, 0));
    assert!(backend.expired_keys(at(100), 10).await.expect("keys").is_empty());
    place.delete().await;
}

fn rows_timeout() -> Duration {
    row("q", 1).spec.policy.timeout
}

async fn tasks_end_live_again_and_go(place: Place) {
    let backend = place.open().await;
    let one = TaskKey(1);
    let wants = Wants { tasks: vec![one], ..Wants::default() };
    let record = async || backend.read(&wants, 0).await.expect("rows").tasks.pop().map(|(_, record)| record);
    let mut first = new_task("q", 1);
    first.overlay = OverlayChange::Put(Box::new(overlay()));
    commit(&backend, 1, &tasks(vec![first, new_task("q", 2)])).await;
    commit(&backend, 2, &tasks(vec![end(1, Status::DeadLetter, None), end(2, Status::Completed, Some(at(20)))])).await;
    let found = record().await.expect("there");
    assert!(found.overlay.is_none(), "what has ended has no overlay");
    assert_eq!(found.ended.as_ref().map(|ended| ended.status), Some(Status::DeadLetter));
    assert_eq!(found.ended.as_ref().map(|ended| ended.event_nos.clone()), Some(vec![2, 300, 70_000]));
    assert_eq!(found.row.spec, row("q", 1).spec);
    let dead = TaskFilter { statuses: vec![Status::DeadLetter], ..TaskFilter::default() };
    assert_eq!(backend.candidates(TaskKey(u64::MAX >> 1), dead.clone(), 10).await, Ok((vec![one], None)));
    let mut snapshot = backend.load().await.expect("a snapshot");
    assert_eq!(snapshot.found.dead_letters.values().sum::<u64>(), 1);
    assert!(live(&mut snapshot).await.is_empty());
    // Discarded: it ends otherwise.
    let discarded = change(1, Was::Ended, Is::Ended(Box::new(ended(Status::Failed, Some(at(30))))));
    commit(&backend, 3, &tasks(vec![discarded])).await;
    assert_eq!(record().await.and_then(|found| found.ended).map(|ended| ended.status), Some(Status::Failed));
    assert_eq!(backend.candidates(TaskKey(99), dead, 10).await, Ok((Vec::new(), None)));
    assert_eq!(backend.expired_tasks(at(25), 10).await, Ok(vec![(TaskKey(2), Status::Completed)]), "only what is due");
    // Replayed with what was submitted, ended again, replayed with something else.
    let mut replay = change(1, Was::Ended, Is::Live);
    replay.overlay = OverlayChange::Put(Box::new(overlay()));
    commit(&backend, 4, &tasks(vec![replay.clone()])).await;
    let found = record().await.expect("there");
    assert!(found.ended.is_none() && found.overlay.is_some());
    assert_eq!(found.row.spec, row("q", 1).spec);
    assert_eq!(live(&mut backend.load().await.expect("a snapshot")).await.len(), 1);
    assert_eq!(backend.expired_tasks(at(99), 10).await.map(|tasks| tasks.len()), Ok(1));
    commit(&backend, 5, &tasks(vec![end(1, Status::Cancelled, Some(at(30)))])).await;
    let mut edited = row("q", 1);
    edited.spec.parameters = fixtures::json("[7]");
    replay.row = Some(Arc::new(edited));
    commit(&backend, 6, &tasks(vec![replay])).await;
    assert_eq!(record().await.map(|found| found.row.spec.parameters.as_str().to_owned()), Some("[7]".into()));
    // Deleted: nothing is left of it.
    commit(&backend, 7, &tasks(vec![end(1, Status::Completed, Some(at(30)))])).await;
    let with_more = Changes {
        attempts: vec![(one, attempt(1))],
        steps: vec![(one, "s".into(), fixtures::json("1"))],
        ..Changes::default()
    };
    commit(&backend, 8, &with_more).await;
    commit(&backend, 9, &tasks(vec![change(1, Was::Ended, Is::Gone), change(2, Was::Ended, Is::Gone)])).await;
    assert!(record().await.is_none());
    assert_eq!(backend.expired_tasks(at(99), 10).await, Ok(Vec::new()));
    assert_eq!(backend.candidates(TaskKey(99), TaskFilter::default(), 10).await, Ok((Vec::new(), None)));
    place.delete().await;
}

async fn lists_are_newest_first_and_bounded(place: Place) {
    let backend = place.open().await;
    let rows = (1..=600).map(|key| new_task(if key % 2 == 0 { "even" } else { "odd" }, key)).collect();
    commit(&backend, 1, &tasks(rows)).await;
    let far = (9_000..9_010).map(|key| new_task("even", key)).collect();
    commit(&backend, 2, &tasks(far)).await;
    commit(&backend, 3, &tasks(vec![end(10, Status::Completed, None), end(12, Status::Failed, None)])).await;
    let list = async |below: u64, filter: &TaskFilter, limit| {
        let (keys, rest) = backend.candidates(TaskKey(below), filter.clone(), limit).await.expect("keys");
        (keys.into_iter().map(|key| key.0).collect::<Vec<_>>(), rest.map(|key| key.0))
    };
    let all = TaskFilter::default();
    assert_eq!(list(u64::MAX >> 1, &all, 3).await, (vec![9_009, 9_008, 9_007], Some(9_007)));
    assert_eq!(list(9_001, &all, 3).await, (vec![9_000, 600, 599], Some(599)));
    assert_eq!(list(3, &all, 10).await, (vec![2, 1], None));
    let odd = TaskFilter { queue: Some(fixtures::queue("odd")), ..TaskFilter::default() };
    assert_eq!(list(u64::MAX >> 1, &odd, 2).await, (vec![599, 597], Some(597)));
    let completed = TaskFilter { statuses: vec![Status::Completed, Status::Cancelled], ..TaskFilter::default() };
    let (keys, _) = list(14, &completed, 100).await;
    assert!(keys.contains(&10) && !keys.contains(&12), "what has ended otherwise is left out");
    let none = TaskFilter { queue: Some(fixtures::queue("none")), ..TaskFilter::default() };
    assert_eq!(list(99, &none, 2).await, (vec![], None));
    place.delete().await;
}

async fn attempts_are_bounded(place: Place) {
    let backend = place.open().await;
    commit(&backend, 1, &tasks(vec![new_task("q", 1)])).await;
    let most = ATTEMPTS_KEPT as u32 + 10;
    let attempts = (1..=most).map(|number| (TaskKey(1), attempt(number))).collect();
    commit(&backend, 2, &Changes { attempts, ..Changes::default() }).await;
    let cold = backend.cold(vec![TaskKey(1)]).await.expect("rows").pop().flatten().expect("there");
    let numbers: Vec<u32> = cold.failed_attempts.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers.len(), ATTEMPTS_KEPT);
    assert_eq!((numbers[0], numbers[1], numbers[ATTEMPTS_KEPT - 1]), (1, 12, most));
    place.delete().await;
}

async fn what_is_over_is_found_and_pruned(place: Place) {
    let backend = place.open().await;
    let scope = |key: &str| KeyScope { queue: fixtures::queue("q"), tenant: None, key: fixtures::text(key) };
    let key = |forget_at| KeyChange::Put(KeyRow { task: TaskKey(1), created_at: at(1), digest: 3, forget_at });
    let unique = |held, keep_until| Some(UniqueRow { task: TaskKey(1), created_at: at(1), held, keep_until });
    let changes = Changes {
        tasks: vec![new_task("q", 1), new_task("q", 2)],
        idempotency: BTreeMap::from([(scope("a"), key(at(10))), (scope("b"), key(at(20)))]),
        uniques: BTreeMap::from([
            (UniqueKey(1), unique(true, None)),
            (UniqueKey(2), unique(false, Some(at(10)))),
            (UniqueKey(3), unique(false, Some(at(20)))),
        ]),
        events: Some(events(&backend, 1, &[1])),
        ..Changes::default()
    };
    commit(&backend, 1, &changes).await;
    commit(&backend, 2, &Changes { events: Some(events(&backend, 2, &[2])), ..Changes::default() }).await;
    // A cluster carries changes out a moment after they are committed.
    soon("the keys are there", || async { backend.expired_keys(at(15), 10).await.is_ok_and(|keys| keys.len() == 1) })
        .await;
    let keys = backend.expired_keys(at(15), 10).await.expect("keys");
    assert_eq!((keys.len(), &keys[0].0), (1, &scope("a")));
    soon("the unique keys are there", || async { backend.expired_uniques(at(15), 10).await == Ok(vec![UniqueKey(2)]) })
        .await;
    // A key that is held again is not forgotten.
    let held = Changes { uniques: BTreeMap::from([(UniqueKey(2), unique(true, None))]), ..Changes::default() };
    commit(&backend, 3, &held).await;
    soon("the key is held", || async { backend.expired_uniques(at(15), 10).await == Ok(Vec::new()) }).await;
    // Events go with the last of their tasks.
    commit(&backend, 4, &tasks(vec![change(1, Was::Live, Is::Gone)])).await;
    while backend.prune_events(at(50), 100).await.expect("pruned") {}
    let left = backend.events_from(0, 10).await.expect("events");
    assert_eq!(left.iter().map(|(no, _)| *no).collect::<Vec<_>>(), [2]);
    while backend.prune_events(at(2), 100).await.expect("pruned") {}
    assert_eq!(backend.events_from(0, 10).await.expect("events").len(), 1, "what is younger stays");
    place.delete().await;
}

async fn the_log_can_be_trimmed(place: Place) {
    let backend = place.open().await;
    for no in 1..=50 {
        commit(&backend, no, &Changes::default()).await;
    }
    let now = backend.time().await.expect("a time");
    for _ in 0..5 {
        backend.prune_events(now + Duration::from_secs(60), 100).await.expect("pruned");
    }
    assert_eq!(backend.tail(10, 100).await, Ok(Tail::Gone));
    assert_eq!(backend.tail(50, 100).await, Ok(Tail::Entries(Vec::new())));
    let snapshot = backend.load().await.expect("a snapshot");
    assert_eq!((snapshot.version, snapshot.last), (50, Some(entry(50))));
    commit(&backend, 51, &Changes::default()).await;
    place.delete().await;
}

async fn flushed_scripts_are_loaded_again(place: Place) {
    let backend = place.open().await;
    for no in 1..=20 {
        if no % 5 == 0 {
            place.everywhere(redis::cmd("SCRIPT").arg("FLUSH")).await;
        }
        commit(&backend, no, &tasks(vec![new_task("q", no)])).await;
        let wants = Wants { tasks: vec![TaskKey(no)], ..Wants::default() };
        assert_eq!(backend.read(&wants, no).await.expect("rows").tasks.len(), 1);
    }
    place.delete().await;
}

async fn a_node_hears_of_others_at_once(place: Place) {
    let (one, two) = (place.open().await, Arc::new(place.open().await));
    commit(&one, 1, &Changes::default()).await;
    two.tail(0, 10).await.expect("a tail");
    // Until the node listens.
    soon("the node listens", || async {
        let before = Instant::now();
        two.grown(1).await;
        before.elapsed() > Duration::from_millis(500)
    })
    .await;
    let mut slowest = Duration::ZERO;
    for no in 2..=20 {
        let waiting = Arc::clone(&two);
        let heard = tokio::spawn(async move {
            waiting.grown(no - 1).await;
            Instant::now()
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        commit(&one, no, &Changes::default()).await;
        let done = Instant::now();
        slowest = slowest.max(heard.await.expect("heard").saturating_duration_since(done));
    }
    assert!(slowest < Duration::from_millis(50), "it took {slowest:?}");
    place.delete().await;
}

async fn one_node_leads(place: Place) {
    let (one, two) = (place.open().await, place.open().await);
    let span = Duration::from_millis(300);
    assert_eq!(one.lead(NodeId(1), span).await, Ok(true));
    assert_eq!(two.lead(NodeId(2), span).await, Ok(false));
    assert_eq!(one.lead(NodeId(1), span).await, Ok(true));
    two.resign(NodeId(2)).await;
    assert_eq!(two.lead(NodeId(2), span).await, Ok(false), "only the leader resigns");
    one.resign(NodeId(1)).await;
    assert_eq!(two.lead(NodeId(2), span).await, Ok(true));
    soon("the time runs out", || async { one.lead(NodeId(1), span).await == Ok(true) }).await;
    place.delete().await;
}

async fn a_turn_keeps_others_out_for_a_while(place: Place) {
    let (one, two) = (place.open().await, place.open().await);
    assert_eq!(one.turn(0, 10).await, Ok(Tail::Entries(Vec::new())));
    assert!(is_behind(&two.commit(&entry(1), &Changes::default()).await), "it is another's turn");
    commit(&one, 1, &Changes::default()).await;
    two.tail(0, 10).await.expect("a tail");
    commit(&two, 2, &Changes::default()).await;
    one.tail(1, 10).await.expect("a tail");
    one.turn(2, 10).await.expect("a turn");
    one.pass().await;
    commit(&two, 3, &Changes::default()).await;
    one.turn(2, 10).await.expect("a turn");
    drop(one);
    soon("the turn of a node that is gone ends", || async { two.commit(&entry(4), &Changes::default()).await.is_ok() })
        .await;
    place.delete().await;
}

async fn a_log_that_lost_its_end_is_noticed(place: Place) {
    let backend = place.open().await;
    for no in 1..=3 {
        commit(&backend, no, &Changes::default()).await;
    }
    // As after a failover to a replica that was one entry behind.
    let meta = format!("{}:{{log}}:meta", place.prefix);
    let log = format!("{}:{{log}}:log", place.prefix);
    let reader = place.open().await;
    let Ok(Tail::Entries(entries)) = reader.tail(0, 10).await else { panic!("the log") };
    assert_eq!(entries.len(), 3);
    for mut connection in place.servers().await {
        let last: redis::RedisResult<Option<String>> =
            redis::cmd("HGET").arg(&meta).arg("last").query_async(&mut connection).await;
        if let Ok(Some(_)) = last {
            let head: Vec<(String, Vec<String>)> = redis::cmd("XRANGE")
                .arg(&log)
                .arg("2-0")
                .arg("2-0")
                .query_async(&mut connection)
                .await
                .expect("an entry");
            let print = head[0].1[1].split(' ').next().expect("a fingerprint").to_owned();
            let _: () = redis::pipe()
                .cmd("XDEL")
                .arg(&log)
                .arg("3-0")
                .ignore()
                .cmd("XSETID")
                .arg(&log)
                .arg("2-0")
                .ignore()
                .cmd("DEL")
                .arg(format!("{}:{{log}}:bell", place.prefix))
                .ignore()
                .cmd("HSET")
                .arg(&meta)
                .arg("last")
                .arg(format!("2:{print}"))
                .ignore()
                .query_async(&mut connection)
                .await
                .expect("changed");
        }
    }
    assert!(is_behind(&backend.commit(&entry(4), &Changes::default()).await));
    assert_eq!(reader.tail(3, 10).await, Ok(Tail::Gone), "it is shorter");
    let fresh = place.open().await;
    fresh.load().await.expect("a snapshot");
    let other = Entry { no: 3, node: NodeId(99), redo: b"other".to_vec() };
    fresh.commit(&other, &Changes::default()).await.expect("next");
    assert_eq!(backend.tail(3, 10).await, Ok(Tail::Gone), "another entry has the number");
    assert!(backend.lost_entries() >= 1 && reader.lost_entries() >= 1);
    place.delete().await;
}

macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod standalone {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Place::new("WINDLASS_TEST_REDIS_URL")).await;
            })*
        }
        mod cluster {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Place::new("WINDLASS_TEST_REDIS_CLUSTER_URL")).await;
            })*
        }
        mod sentinel {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Place::new("WINDLASS_TEST_REDIS_SENTINEL_URL")).await;
            })*
        }
    };
}

on_both!(
    entries_are_taken_once_and_in_order,
    two_nodes_race,
    every_row_comes_back,
    tasks_end_live_again_and_go,
    lists_are_newest_first_and_bounded,
    attempts_are_bounded,
    what_is_over_is_found_and_pruned,
    the_log_can_be_trimmed,
    flushed_scripts_are_loaded_again,
    a_node_hears_of_others_at_once,
    one_node_leads,
    a_turn_keeps_others_out_for_a_while,
    a_log_that_lost_its_end_is_noticed,
);

/// A node that dies between the log and the rows: others carry out what it left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_node_left_behind_is_done_by_others() {
    let place = Place::new("WINDLASS_TEST_REDIS_CLUSTER_URL");
    let mut options = place.options();
    options.hold_back_rows = true;
    let dead = RedisBackend::open(options).await.expect("the servers are there");
    commit(&dead, 1, &tasks(vec![new_task("a", 1), new_task("b", 2)])).await;
    commit(&dead, 2, &tasks(vec![end(1, Status::Completed, None), new_task("a", 3)])).await;
    drop(dead);
    let reader = place.open().await;
    reader.tail(0, 10).await.expect("a tail");
    let wants = Wants { tasks: vec![TaskKey(1), TaskKey(2), TaskKey(3)], ..Wants::default() };
    let found = reader.read(&wants, 2).await.expect("rows");
    assert_eq!(found.tasks.len(), 3);
    assert!(found.tasks.iter().any(|(key, record)| *key == TaskKey(1) && record.ended.is_some()));
    // Another that had to start anew.
    let mut options = place.options();
    options.hold_back_rows = true;
    let dead = RedisBackend::open(options).await.expect("the servers are there");
    dead.load().await.expect("a snapshot");
    commit(&dead, 3, &tasks(vec![new_task("c", 4), change(2, Was::Live, Is::Gone)])).await;
    drop(dead);
    let fresh = place.open().await;
    let mut snapshot = fresh.load().await.expect("a snapshot");
    assert_eq!(snapshot.version, 3);
    assert_eq!(live(&mut snapshot).await.iter().map(|row| row.key.0).collect::<Vec<_>>(), [3, 4]);
    commit(&fresh, 4, &tasks(vec![end(3, Status::Completed, None)])).await;
    assert_eq!(live(&mut fresh.load().await.expect("a snapshot")).await.len(), 1);
    place.delete().await;
}

#[tokio::test]
async fn weak_servers_are_told_and_refused() {
    let place = Place::new("WINDLASS_TEST_REDIS_SENTINEL_URL");
    let backend = place.open().await;
    assert!(backend.durability().losses.iter().any(|loss| loss.contains("asynchronously")));
    let mut options = place.options();
    options.require_durable = true;
    let error = RedisBackend::open(options).await.err().expect("refused");
    assert!(error.to_string().contains("failover"), "{error}");
    place.delete().await;
}
