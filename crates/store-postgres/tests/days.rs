//! Retention on a real server, by the store's own verb: days that are over go whole, whoever does it, whatever dies.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::Database;
use tokio::time::Instant;
use windlass_core::event::Observer;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::keys::OnConflict;
use windlass_core::status::Status;
use windlass_core::store::{ChangeError, StepReport, Store};
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_testkit::fixtures::{again, completed, failed_for_good, json, task};
use windlass_testkit::rig::{LEASE, seconds};
use windlass_testkit::{Fixture, ManualClock, Rig};

const DAY: u64 = 24 * 3600;
const ENDED: [Status; 4] = [Status::Completed, Status::Failed, Status::Cancelled, Status::DeadLetter];

/// Nodes over one schema.
struct Nodes(PostgresOptions);

impl Nodes {
    async fn node(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        PostgresStore::open(self.0.clone(), LEASE, Some(clock), observer).await.expect("opens")
    }
}

#[async_trait]
impl Fixture for Nodes {
    fn label(&self) -> &'static str {
        "PostgreSQL"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        self.node(clock, observer).await
    }

    async fn reopen(
        &self,
        _: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>> {
        Some(self.node(clock, observer).await)
    }
}

async fn open(database: &Database) -> Rig {
    Rig::open(Arc::new(Nodes(database.options()))).await
}

/// One more node over the same schema and clock.
async fn another(rig: &Rig) -> Rig {
    rig.reopen().await.expect("opens")
}

/// Tasks that end in every way, with all that can hang on one: seven that have a retention, and a dead letter.
async fn some_end(rig: &Rig) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (worker, claimed) = rig.started(task("a")).await;
        let step = StepReport { task: claimed.id, token: claimed.token, name: "s".into(), result: json("[7]") };
        rig.store.record_steps(worker, vec![step]).await.expect("taken")[0].expect("live");
        rig.finished(worker, &claimed, completed()).await;
        ids.push(claimed.id);
    }
    for _ in 0..2 {
        let id = rig.submit(task("a")).await;
        rig.cancel(id).await.expect("cancelled");
        ids.push(id);
        let (worker, claimed) = rig.started(task("a").no_dead_letter()).await;
        rig.finished(worker, &claimed, failed_for_good()).await;
        ids.push(claimed.id);
    }
    let (worker, dead) = rig.started(task("a")).await;
    rig.finished(worker, &dead, failed_for_good()).await;
    ids
}

/// How many partitions of days there are.
async fn partitions(database: &Database) -> i64 {
    let sql = "SELECT count(*) FROM pg_class WHERE relnamespace = ':schema'::regnamespace AND relkind = 'r'
        AND relname ~ '^ended_[0-9]+$'";
    database.number(sql).await
}

/// What nodes have in memory is what is in the tables, at the latest when what a node that died had sent is done.
async fn counts_agree(database: &Database, nodes: &[&Rig]) {
    let mut told = Vec::new();
    for _ in 0..200 {
        told = counts(database, nodes).await;
        if told.iter().all(|of_one| *of_one == told[0]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the tables and then the nodes say {told:?}");
}

/// Ended tasks by status: first those in the tables, then those that each node counts.
async fn counts(database: &Database, nodes: &[&Rig]) -> Vec<Vec<u64>> {
    let mut there = Vec::new();
    for status in ENDED {
        let sql = format!(
            "SELECT count(*) FROM :schema.ended WHERE status = {}
                AND drop_day NOT IN (SELECT day FROM :schema.days_over WHERE gone)",
            status.code()
        );
        there.push(database.number(&sql).await as u64);
    }
    let mut all = vec![there];
    for rig in nodes {
        let stats = rig.store.stats().await.expect("stats");
        all.push(ENDED.iter().map(|status| stats.by_status[usize::from(status.code())]).collect());
    }
    all
}

/// Twenty tasks that end at once.
async fn work(rig: &Rig) {
    for _ in 0..20 {
        let id = rig.submit(task("w")).await;
        rig.cancel(id).await.expect("cancelled");
    }
}

/// Prunes until there is no more, in slices as small as they come.
async fn drain(rig: &Rig) -> usize {
    let mut changed = 0;
    loop {
        let sweep = rig.store.prune(100).await.expect("pruned");
        changed += sweep.changed;
        if !sweep.more {
            return changed;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_drop_the_same_days_and_count_them_once() {
    let database = Database::new();
    let one = open(&database).await;
    let two = another(&one).await;
    let throttled = || task("u").unique_while(OnConflict::Keep, &[Status::Queued], Some(seconds(90 * DAY)));
    let kept = one.submit(throttled()).await;
    one.cancel(kept).await.expect("cancelled");
    for round in 0..3 {
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.extend(some_end(&one).await);
            one.advance(seconds(DAY));
        }
        let waiting = one.submit(task("waits").delay(seconds(100 * DAY))).await;
        counts_agree(&database, &[&one, &two]).await;
        assert!(partitions(&database).await >= 3);
        one.advance(seconds(9 * DAY));
        // Work goes on meanwhile, on both.
        let (by_one, by_two, (), ()) = tokio::join!(drain(&one), drain(&two), work(&one), work(&two));
        let before = if round == 0 { 1 } else { 40 };
        assert_eq!(by_one + by_two, 21 + before, "each task goes once");
        // Whoever was done first left the rest to the other.
        assert_eq!(drain(&one).await + drain(&two).await, 0);
        // If the server itself was looking at a table, it is dropped a while later.
        one.advance(seconds(11));
        assert_eq!(drain(&one).await + drain(&two).await, 0);
        counts_agree(&database, &[&one, &two, &another(&one).await]).await;
        assert_eq!(partitions(&database).await, 1, "only that of what ended meanwhile");
        assert_eq!(database.number("SELECT count(*) FROM :schema.days_over").await, 0);
        for id in ids {
            assert_eq!(two.find(id).await, None);
        }
        assert_eq!(two.status(waiting).await, Status::Scheduled);
    }
    assert_eq!(one.store.stats().await.expect("stats").by_status[usize::from(Status::DeadLetter.code())], 9);
    assert_eq!(database.number("SELECT count(*) FROM :schema.attempts").await, 9, "of the dead letters");
    assert_eq!(database.number("SELECT count(*) FROM :schema.steps").await, 0);
    assert_eq!(one.submitted(throttled()).await.id, kept, "a key is kept for its own time, not for its task's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_one_node_left_half_done_another_brings_to_an_end() {
    let database = Database::new();
    let rig = open(&database).await;
    let ids = some_end(&rig).await;
    rig.advance(rig.kept_until(seconds(7 * DAY)).since(rig.now()) + seconds(1));
    let (mut steps, mut gone) = (0, 0);
    loop {
        // Each knows only what is in the database.
        let node = another(&rig).await;
        let sweep = node.store.prune(100).await.expect("pruned");
        counts_agree(&database, &[&node, &rig]).await;
        gone += sweep.changed;
        let found = node.find(ids[0]).await.is_some();
        assert_eq!(found, gone == 0, "tasks are there until they are counted off");
        if partitions(&database).await == 0 {
            break;
        }
        steps += 1;
        assert!(steps < 20, "it has no end");
    }
    assert_eq!((gone, steps), (7, 2), "closed, gone, dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_die_at_any_moment_leave_the_counts_right() {
    let database = Database::new();
    let rig = open(&database).await;
    for _ in 0..4 {
        some_end(&rig).await;
        rig.advance(seconds(DAY));
    }
    rig.advance(seconds(9 * DAY));
    let mut tries = 0;
    while partitions(&database).await > 0 {
        tries += 1;
        assert!(tries < 400, "it does not come to an end");
        let node = another(&rig).await;
        // Gone in the middle of whatever it is at.
        let span = Duration::from_micros((tries * 733) % 40_000);
        let _ = tokio::time::timeout(span, drain(&node)).await;
        drop(node);
        counts_agree(&database, &[&rig]).await;
    }
    println!("{tries} nodes died");
    counts_agree(&database, &[&rig, &another(&rig).await]).await;
    assert_eq!(rig.store.stats().await.expect("stats").by_status.iter().sum::<u64>(), 4, "the dead letters");
    assert_eq!(database.number("SELECT count(*) FROM :schema.steps").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_has_what_is_left_of_it_when_it_is_closed() {
    let database = Database::new();
    let one = open(&database).await;
    let two = another(&one).await;
    let ids = some_end(&one).await;
    let failed = [ids[4], ids[6]];
    one.requeue(again(failed[0])).await.expect("it failed");
    one.advance(one.kept_until(seconds(7 * DAY)).since(one.now()) + seconds(1));
    assert_eq!(one.store.prune(100).await.expect("pruned").changed, 0);
    assert_eq!(database.number("SELECT count(*) FROM :schema.days_over WHERE NOT gone").await, 1);
    assert_eq!(two.requeue(again(failed[1])).await, Err(ChangeError::UnknownTask), "the day is closed");
    // Meanwhile work goes on, and ends into other days.
    let ended = two.submit(task("b")).await;
    two.cancel(ended).await.expect("cancelled");
    assert_eq!(drain(&one).await, 6);
    counts_agree(&database, &[&one, &two, &another(&one).await]).await;
    assert_eq!(two.status(failed[0]).await, Status::Queued, "what was replayed in time lives");
    assert_eq!(one.ids(&TaskFilter::default()).await.len(), 3, "it, what ended since and the dead letter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_less_than_a_day_goes_at_its_time() {
    let database = Database::new();
    let rig = open(&database).await;
    rig.change_queue("default", r#"{"retention":{"completed_days":0.01}}"#).await;
    some_end(&rig).await;
    rig.advance(seconds(863));
    assert_eq!(drain(&rig).await, 0);
    rig.advance(seconds(1));
    assert_eq!(drain(&rig).await, 7);
    assert_eq!(partitions(&database).await, 1, "its day is not over");
    rig.advance(seconds(DAY));
    assert_eq!(drain(&rig).await, 0);
    assert_eq!(partitions(&database).await, 0);
    counts_agree(&database, &[&rig]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_look_at_history_delays_the_drop_and_nobody_else() {
    let database = Database::new();
    let one = open(&database).await;
    let two = another(&one).await;
    let ids = some_end(&one).await;
    one.advance(one.kept_until(seconds(7 * DAY)).since(one.now()) + seconds(1));
    let reader = database.client().await;
    let look = format!("BEGIN; SELECT count(*) FROM {}.ended", database.schema);
    reader.batch_execute(&look).await.expect("begun");

    let work = async {
        let (mut submits, mut ends) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..100 {
            let began = Instant::now();
            let id = two.submit(task("b")).await;
            submits = submits.max(began.elapsed());
            let began = Instant::now();
            two.cancel(id).await.expect("cancelled");
            ends = ends.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (submits, ends)
    };
    let prunes = async {
        let mut changed = drain(&one).await;
        let began = Instant::now();
        // As maintenance does, but without a rest: every one tries in vain.
        while began.elapsed() < Duration::from_millis(500) {
            one.advance(seconds(10));
            changed += drain(&one).await;
        }
        changed
    };
    let ((submits, ends), changed) = tokio::join!(work, prunes);
    println!("of 100 submits the longest took {submits:?}, of 100 ends {ends:?}");
    assert!(submits.max(ends) < Duration::from_millis(500), "held up: {submits:?}, {ends:?}");
    assert_eq!(changed, 7);
    assert_eq!(partitions(&database).await, 2, "gone, but not yet dropped; and a new one");
    for rig in [&one, &two] {
        assert_eq!(rig.find(ids[0]).await, None);
        assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 101, "the dead letter and what was cancelled since");
    }
    counts_agree(&database, &[&one, &two]).await;
    // A node that starts now finds the same.
    counts_agree(&database, &[&another(&one).await]).await;

    reader.batch_execute("COMMIT").await.expect("ended");
    one.advance(seconds(10));
    assert_eq!(drain(&one).await, 0);
    assert_eq!(partitions(&database).await, 1);
    counts_agree(&database, &[&one, &two]).await;
}
