//! Nodes that share a database: what they do when it is away, when answers are lost, when they
//! write at once, and when one was left behind.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use windlass_cluster::backend::NodeId;
use windlass_cluster::{NodeOptions, open};
use windlass_core::fact::{Fact, Happened};
use windlass_core::failure::EndReason;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::keys::{HELD_WHILE, OnConflict, OnFailure};
use windlass_core::status::Status;
use windlass_core::store::{
    Applied, Capabilities, ClaimRequest, Finish, InboxItem, Intake, KnownBy, Outcome, Store, SubmitError,
};
use windlass_testkit::ManualClock;
use windlass_testkit::fixtures::{completed, error, profile, task};
use windlass_testkit::rig::{LEASE, Witness, soon};
use windlass_testkit::shared_memory::SharedMemory;

async fn nodes(count: u64) -> (Arc<SharedMemory>, Vec<Arc<dyn Store>>) {
    let (database, nodes, _) = watched_nodes(count).await;
    (database, nodes)
}

async fn watched_nodes(count: u64) -> (Arc<SharedMemory>, Vec<Arc<dyn Store>>, Vec<Arc<Witness>>) {
    let (_, database, nodes, witnesses) = clocked_nodes(count).await;
    (database, nodes, witnesses)
}

type Nodes = (Arc<ManualClock>, Arc<SharedMemory>, Vec<Arc<dyn Store>>, Vec<Arc<Witness>>);

async fn clocked_nodes(count: u64) -> Nodes {
    let clock = Arc::new(ManualClock::new());
    let database = SharedMemory::new(Arc::clone(&clock) as _);
    let (mut nodes, mut witnesses): (Vec<Arc<dyn Store>>, Vec<_>) = (Vec::new(), Vec::new());
    for number in 1..=count {
        let options = NodeOptions {
            name: "shared",
            capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
            lease: LEASE,
            clock: Some(Arc::clone(&clock) as _),
            node: NodeId(number),
        };
        let witness = Arc::new(Witness::default());
        let node = open(Arc::clone(&database) as _, database.archive(), options, Arc::clone(&witness) as _);
        nodes.push(node.await.expect("opens"));
        witnesses.push(witness);
    }
    (clock, database, nodes, witnesses)
}

async fn worker(node: &Arc<dyn Store>) -> WorkerId {
    let profile = profile();
    let id = profile.id;
    node.register_worker(profile).await.expect("taken");
    id
}

fn claim(worker: WorkerId, up_to: usize, wait: bool) -> ClaimRequest {
    ClaimRequest { worker, capabilities: None, up_to, lease: LEASE, wait }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_claim_is_served_by_a_submit_on_another_node() {
    let (_, nodes) = nodes(2).await;
    let worker = worker(&nodes[0]).await;
    let waiting = tokio::spawn({
        let node = Arc::clone(&nodes[0]);
        async move { node.claim(claim(worker, 1, true)).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let submitted = nodes[1].submit(vec![task("a").build()]).await.expect("taken");
    let claimed = soon(waiting).await.expect("no panic").expect("served");
    assert_eq!(claimed.tasks[0].id, submitted[0].id);
    // The result may come to the node that did not give the task out.
    let result = Finish::new(claimed.tasks[0].id, claimed.tasks[0].token, completed());
    nodes[1].finish(worker, vec![result]).await.expect("reached")[0].as_ref().expect("the lease is live");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_away_everything_is_refused_and_then_goes_on() {
    let (database, nodes) = nodes(1).await;
    let node = &nodes[0];
    let worker = worker(node).await;
    let waiting = tokio::spawn({
        let node = Arc::clone(node);
        async move { node.claim(claim(worker, 1, true)).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    database.is_away.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    for _ in 0..20 {
        match node.submit(vec![task("a").build()]).await {
            Err(SubmitError::Store(error)) => assert_eq!(error.applied, Applied::No),
            other => panic!("{other:?}"),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "refused at once, not after a wait each");
    assert!(node.check().await.is_err());
    let ended = soon(waiting).await.expect("no panic").expect("a poll ends cleanly");
    assert!(ended.tasks.is_empty());
    database.is_away.store(false, Ordering::SeqCst);
    let submitted = soon(async {
        loop {
            match node.submit(vec![task("a").build()]).await {
                Ok(submitted) => return submitted,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    let claimed = soon(node.claim(claim(worker, 10, false))).await.expect("served");
    assert_eq!(claimed.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [submitted[0].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_which_nobody_knows_is_told_as_such() {
    let (database, nodes) = nodes(2).await;
    database.drop_nth.store(1, Ordering::SeqCst);
    match nodes[0].submit(vec![task("a").build()]).await {
        Err(SubmitError::Store(error)) => assert_eq!(error.applied, Applied::Unknown),
        other => panic!("{other:?}"),
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Nothing of it is left in the way of what follows.
    for node in &nodes {
        node.submit(vec![task("a").build()]).await.expect("taken");
    }
    let stats = nodes[0].stats().await.expect("stats");
    assert_eq!(stats.by_status[usize::from(Status::Queued.code())], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_left_behind_loads_everything_anew() {
    let (database, nodes) = nodes(2).await;
    let worker = worker(&nodes[1]).await;
    nodes[1].lanes().await.expect("reads");
    nodes[0].lanes().await.expect("reads");
    database.is_silent.store(true, Ordering::SeqCst);
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(nodes[0].submit(vec![task("a").build()]).await.expect("taken")[0].id);
    }
    database.cut_log();
    database.is_silent.store(false, Ordering::SeqCst);
    let claimed = soon(async {
        loop {
            match nodes[1].claim(claim(worker, 100, false)).await {
                Ok(claimed) if claimed.tasks.len() == 10 => return claimed,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    assert_eq!(claimed.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids);
}

/// What was counted, by type and what happened.
fn counted(facts: &[Fact]) -> BTreeMap<(String, &'static str), u64> {
    let mut counts = BTreeMap::new();
    for fact in facts.iter().filter(|fact| fact.counts()) {
        let what = match fact.happened {
            Happened::Submitted => "submitted",
            Happened::Claimed { .. } => "claimed",
            Happened::Completed => "completed",
            Happened::Retried(_) => "retried",
            Happened::Failed(_) => "failed",
            Happened::Poisoned(..) => "poisoned",
            Happened::Other => "other",
        };
        *counts.entry((fact.task_type.to_string(), what)).or_default() += fact.count;
    }
    counts
}

/// Everything that a node commits is told once by that node, and once by every other, also when
/// nodes are in each other's way and answers of the database are lost.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_hears_once_of_what_the_others_did() {
    const ROUNDS: usize = 40;
    let (database, nodes, witnesses) = watched_nodes(3).await;
    database.lose_every.store(7, Ordering::SeqCst);
    let mut running = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let node = Arc::clone(node);
        running.push(tokio::spawn(async move {
            let worker = worker(&node).await;
            for round in 0..ROUNDS {
                let name = ["a", "b", "c"][number];
                node.submit(vec![task(name).build(), task("d").build()]).await.expect("taken");
                let claimed = node.claim(claim(worker, 3, false)).await.expect("served").tasks;
                let outcome = |n: usize| match (n + round) % 3 {
                    0 => Outcome::Failed(error(&format!("user {round} is gone"))),
                    _ => completed(),
                };
                let results = claimed.iter().enumerate();
                let results = results.map(|(n, task)| Finish::new(task.id, task.token, outcome(n))).collect();
                node.finish(worker, results).await.expect("reached");
            }
        }));
    }
    for task in running {
        soon(task).await.expect("no panic");
    }
    for node in &nodes {
        node.lanes().await.expect("reads what is there");
    }
    let mine: Vec<Vec<Fact>> = witnesses.iter().map(|witness| witness.seen().iter().map(Fact::of).collect()).collect();
    assert!(mine.iter().all(|facts| facts.len() > ROUNDS), "each did something");
    for (number, witness) in witnesses.iter().enumerate() {
        let others: Vec<Fact> =
            mine.iter().enumerate().filter(|(of, _)| *of != number).flat_map(|(_, facts)| facts.clone()).collect();
        assert_eq!(counted(&witness.heard()), counted(&others), "node {number}");
        let notes =
            |facts: &[Fact]| -> u64 { facts.iter().filter(|fact| fact.failure.is_some()).map(|fact| fact.count).sum() };
        assert!(notes(&others) > 0);
        assert_eq!(notes(&witness.heard()), notes(&others), "node {number}");
    }
}

/// Four nodes at once: everything is done once, and nodes and rows agree in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_write_at_once_do_everything_once() {
    const TASKS: usize = 2_000;
    let (_, nodes) = nodes(4).await;
    let done: Arc<Mutex<BTreeMap<TaskId, usize>>> = Arc::default();
    let mut running = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let submitting = Arc::clone(node);
        running.push(tokio::spawn(async move {
            for n in 0..TASKS / 4 {
                let key = format!("k{}", n % 50);
                submitting.submit(vec![task("a").ordered(&key, OnFailure::Block).build()]).await.expect("taken");
            }
        }));
        let (node, done) = (Arc::clone(node), Arc::clone(&done));
        let other = Arc::clone(&nodes[(number + 1) % 4]);
        running.push(tokio::spawn(async move {
            let worker = worker(&node).await;
            while done.lock().unwrap().len() < TASKS {
                let claimed = node.claim(claim(worker, 20, false)).await.expect("served");
                let results: Vec<Finish> =
                    claimed.tasks.iter().map(|task| Finish::new(task.id, task.token, completed())).collect();
                // Results go to another node than the one that gave the tasks.
                for answer in other.finish(worker, results).await.expect("reached") {
                    answer.expect("the lease is live");
                }
                let mut done = done.lock().unwrap();
                for task in claimed.tasks {
                    *done.entry(task.id).or_default() += 1;
                }
            }
        }));
    }
    for task in running {
        tokio::time::timeout(Duration::from_secs(120), task).await.expect("in time").expect("no panic");
    }
    assert!(done.lock().unwrap().values().all(|times| *times == 1));
    for node in &nodes {
        let stats = node.stats().await.expect("stats");
        assert_eq!(stats.by_status[usize::from(Status::Completed.code())], TASKS as u64);
        assert_eq!(stats.by_status.iter().sum::<u64>(), TASKS as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_the_inbox_that_two_nodes_read_is_one_task() {
    let (database, nodes) = nodes(2).await;
    let ids = [database.enqueue("{}"), database.enqueue("{}")];
    let items = nodes[0].inbox(0, 10).await.expect("read");
    assert_eq!(nodes[1].inbox(items[0].no, 10).await.expect("read").len(), 1, "the rest");
    let intakes = || -> Vec<Intake> {
        let intake = |(item, name): (&InboxItem, &str)| Intake {
            no: item.no,
            key: item.key,
            created_at: item.created_at,
            task: task(name).build(),
            refused: (name == "bad").then(|| "it is bad".to_owned()),
        };
        items.iter().zip(["good", "bad"]).map(intake).collect()
    };
    for node in &nodes {
        // The second is told of the task of the first, whether it lives or has ended.
        let answers = soon(node.take_in(intakes())).await.expect("reached");
        let found: Vec<TaskId> = answers.into_iter().map(|answer| answer.expect("taken").id).collect();
        assert_eq!(found, ids);
        let tasks = node.get(ids.to_vec()).await.expect("read");
        let stand = |task: &Option<_>| task.as_ref().map(|task: &windlass_core::task::Task| task.state.status);
        assert_eq!(tasks.iter().map(stand).collect::<Vec<_>>(), [Some(Status::Queued), Some(Status::DeadLetter)]);
        let dead = tasks[1].as_ref().expect("stored");
        assert_eq!(dead.state.end_reason, Some(EndReason::PermanentError));
        assert_eq!(dead.state.failed_attempts.last().map(|attempt| attempt.error.message.as_str()), Some("it is bad"));
        assert!(node.inbox(0, 10).await.expect("read").is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_leaves_what_its_own_transaction_took() {
    let (clock, database, nodes, _) = clocked_nodes(1).await;
    let node = &nodes[0];
    let worker = worker(node).await;
    let minute = Duration::from_secs(60);
    let unique = || task("u").unique_while(OnConflict::Keep, &HELD_WHILE, Some(minute)).build();
    let result = async |outcome: Outcome| {
        let claimed = node.claim(claim(worker, 1, false)).await.expect("served").tasks.remove(0);
        Finish::new(claimed.id, claimed.token, outcome)
    };
    let finish = |result: Finish| {
        let node = Arc::clone(node);
        async move { node.finish(worker, vec![result]).await.expect("reached").remove(0).expect("the lease is live") }
    };
    node.submit(vec![unique()]).await.expect("taken");
    finish(result(completed()).await).await;
    clock.advance(minute * 2);
    // Nobody holds the key any more, but its row is still there.
    node.submit(vec![task("a").build()]).await.expect("taken");
    let result = result(Outcome::Completed { result: None, follow_ups: vec![unique()] }).await;

    let held = database.hold.write().await;
    let holds_up = tokio::spawn({
        let node = Arc::clone(node);
        async move { node.submit(vec![task("b").build()]).await.expect("taken") }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Both go into the next transaction, the result first.
    let finish = tokio::spawn(finish(result));
    let sweep = tokio::spawn({
        let node = Arc::clone(node);
        async move { node.prune(100).await.expect("reached") }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(held);
    let follow_up = soon(finish).await.expect("no panic").follow_ups[0];
    soon(sweep).await.expect("no panic");
    soon(holds_up).await.expect("no panic");
    let again = node.submit(vec![unique()]).await.expect("answered");
    assert_eq!((again[0].id, again[0].known_by), (follow_up, Some(KnownBy::UniqueKept)), "the key is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_not_safe_is_not_acknowledged_and_not_forgotten() {
    let (database, nodes) = nodes(2).await;
    database.unsafe_next.store(true, Ordering::SeqCst);
    match nodes[0].submit(vec![task("a").build()]).await {
        Err(SubmitError::Store(error)) => assert_eq!(error.applied, Applied::Unknown),
        other => panic!("{other:?}"),
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for node in &nodes {
        let stats = node.stats().await.expect("stats");
        assert_eq!(stats.by_status[usize::from(Status::Queued.code())], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_committed_fails_alone() {
    let (database, nodes) = nodes(1).await;
    database.enqueue("{}");
    let mut items = nodes[0].inbox(0, 1).await.expect("read");
    let item = items.remove(0);
    // Somebody deletes the item by hand after it was read.
    database.forget_inbox();
    let intake =
        Intake { no: item.no, key: item.key, created_at: item.created_at, task: task("a").build(), refused: None };
    let refused = soon(nodes[0].take_in(vec![intake])).await;
    assert!(refused.is_err(), "{refused:?}");
    nodes[0].submit(vec![task("a").build()]).await.expect("others go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_its_worker_never_heard_of_is_given_back() {
    let (database, nodes) = nodes(1).await;
    let node = &nodes[0];
    let worker = worker(node).await;
    let id = node.submit(vec![task("a").build()]).await.expect("taken")[0].id;
    // The commit is carried out, and nobody gets to know in time. The one that gives it back is lost.
    database.unsafe_next.store(true, Ordering::SeqCst);
    database.drop_nth.store(2, Ordering::SeqCst);
    assert!(node.claim(claim(worker, 1, false)).await.is_err());
    let claimed = soon(async {
        loop {
            match node.claim(claim(worker, 1, false)).await {
                Ok(mut claimed) if !claimed.tasks.is_empty() => return claimed.tasks.remove(0),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    assert_eq!((claimed.id, claimed.attempt, claimed.crashes), (id, 1, 0), "as if it had not been claimed");
}
