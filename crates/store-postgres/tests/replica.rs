//! A replica for reading, asked of a real standby: what it answers, what it never decides, and what is when it is away.

mod common;

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::server::{Server, run};
use common::warnings::{keep_warnings, warnings_with};
use tokio::time::{Instant, sleep};
use windlass_core::event::Observer;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::status::Status;
use windlass_core::store::Store;
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_testkit::fixtures::{again, completed, failed_for_good, task};
use windlass_testkit::rig::LEASE;
use windlass_testkit::{Fixture, ManualClock, Rig};

/// How long something may take that comes by itself, on a busy machine too.
const SOON: Duration = Duration::from_secs(30);

/// Opens stores that read from a replica.
struct Replicated(PostgresOptions);

#[async_trait]
impl Fixture for Replicated {
    fn label(&self) -> &'static str {
        "PostgreSQL with a replica"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        PostgresStore::open(self.0.clone(), LEASE, Some(clock), observer).await.expect("the database is there")
    }

    async fn reopen(&self, _: Arc<dyn Store>, _: Arc<ManualClock>, _: Arc<dyn Observer>) -> Option<Arc<dyn Store>> {
        None
    }
}

/// A primary and a standby that follows it.
struct Pair {
    primary: Server,
    standby: Server,
}

impl Pair {
    fn new() -> Self {
        let primary = Server::new();
        let standby = Server::standby_of(&primary);
        Self { primary, standby }
    }

    fn options(&self) -> PostgresOptions {
        options(&self.primary, format!("{}?application_name=reader", self.standby.url()))
    }

    async fn open(&self) -> Rig {
        Rig::open(Arc::new(Replicated(self.options()))).await
    }

    /// Lets the standby fall behind.
    async fn pause(&self) {
        self.standby.client().await.batch_execute("SELECT pg_wal_replay_pause()").await.expect("paused");
    }

    async fn resume(&self) {
        self.standby.client().await.batch_execute("SELECT pg_wal_replay_resume()").await.expect("resumed");
    }

    /// The processes of the standby that we have asked for a list.
    async fn readers(&self) -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity
            WHERE application_name = 'reader' AND query LIKE '%ORDER BY key DESC%'";
        self.standby.client().await.query(sql, &[]).await.expect("read").iter().map(|row| row.get(0)).collect()
    }

    /// What was said of the standby.
    fn warnings(&self) -> Vec<String> {
        warnings_with(&format!("127.0.0.1:{}", self.standby.port()))
    }
}

fn options(primary: &Server, read_url: String) -> PostgresOptions {
    PostgresOptions { read_url: Some(read_url), ..PostgresOptions::new(primary.url()) }
}

async fn listed(rig: &Rig) -> Vec<TaskId> {
    rig.ids(&TaskFilter::default()).await
}

/// Waits until the list has these tasks, newest first.
async fn comes_to_list(rig: &Rig, wanted: &[TaskId]) {
    let began = Instant::now();
    loop {
        let found = listed(rig).await;
        if found == wanted {
            return;
        }
        assert!(began.elapsed() < SOON, "{found:?} and not {wanted:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Lists until the standby is what answers.
async fn comes_to_use(pair: &Pair, rig: &Rig) {
    let began = Instant::now();
    while pair.readers().await.is_empty() {
        assert!(began.elapsed() < SOON, "the replica is not used");
        listed(rig).await;
        sleep(Duration::from_millis(50)).await;
    }
}

/// A task from its submit to its end.
async fn worked_off(rig: &Rig) -> TaskId {
    let (worker, claimed) = rig.started(task("resize")).await;
    rig.finished(worker, &claimed, completed()).await;
    claimed.id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_histories_may_lag_and_decisions_never_do() {
    let pair = Pair::new();
    let rig = pair.open().await;
    let old = rig.submit(task("resize")).await;
    comes_to_list(&rig, &[old]).await;
    comes_to_use(&pair, &rig).await;

    pair.pause().await;
    let new = rig.submit(task("resize")).await;
    assert_eq!(listed(&rig).await, [old], "the list comes from the standby");
    assert_eq!(rig.status(new).await, Status::Queued, "whoever has submitted a task can look at it");
    assert!(rig.history(new).await.is_empty(), "the history comes from the standby");

    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [old, new]);
    rig.finished(worker, &claimed[0], completed()).await;
    rig.finished(worker, &claimed[1], failed_for_good()).await;
    // To the standby both still wait: neither is found as one that has ended, and what is found stands as it stands now.
    assert_eq!((rig.status(old).await, rig.status(new).await), (Status::Completed, Status::DeadLetter));
    let all = rig.list_by(&TaskFilter::default(), 100).await;
    assert_eq!(all.iter().map(|task| (task.id, task.state.status)).collect::<Vec<_>>(), [(old, Status::Completed)]);
    let dead = TaskFilter { statuses: vec![Status::DeadLetter], ..TaskFilter::default() };
    assert!(rig.ids(&dead).await.is_empty());
    assert_eq!(rig.kinds(old).await.len(), 1);
    rig.requeue(again(new)).await.expect("a dead letter, whatever the standby knows");
    assert_eq!(rig.claim(worker).await.id, new);

    pair.resume().await;
    comes_to_list(&rig, &[new, old]).await;
    let began = Instant::now();
    while rig.kinds(old).await.len() < 3 {
        assert!(began.elapsed() < SOON);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(rig.store.stats().await.expect("statistics").bytes.is_some_and(|bytes| bytes > 0));
    rig.store.close().await;
    let log = pair.standby.log();
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("ERROR") && line.contains("cannot")).collect();
    assert!(refused.is_empty(), "nobody tries to write there: {refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_on_when_the_replica_is_killed() {
    keep_warnings();
    let pair = Pair::new();
    let rig = pair.open().await;
    let first = worked_off(&rig).await;
    comes_to_list(&rig, &[first]).await;
    comes_to_use(&pair, &rig).await;

    pair.standby.kill();
    let began = Instant::now();
    let second = worked_off(&rig).await;
    // The primary answers in its place, as soon as the last process of the standby has noticed.
    comes_to_list(&rig, &[second, first]).await;
    assert_eq!(rig.kinds(second).await.len(), 3);
    for _ in 0..20 {
        assert_eq!(listed(&rig).await, [second, first]);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(pair.warnings().len(), 1, "{:?}", pair.warnings());

    pair.standby.start();
    comes_to_use(&pair, &rig).await;
    comes_to_list(&rig, &[second, first]).await;
    rig.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_never_answers_is_waited_for_once() {
    keep_warnings();
    let primary = Server::new();
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = format!("127.0.0.1:{}", silent.local_addr().expect("an address").port());
    let options = PostgresOptions {
        connect_timeout: Duration::from_millis(500),
        ..options(&primary, format!("postgres://postgres@{place}/postgres"))
    };
    let rig = Rig::open(Arc::new(Replicated(options))).await;
    let only = worked_off(&rig).await;
    assert!(warnings_with(&place).is_empty(), "work asks no replica");
    let began = Instant::now();
    for _ in 0..50 {
        assert_eq!(listed(&rig).await, [only]);
    }
    // A second for the first of them, and fifty if every one had to find out.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let warnings = warnings_with(&place);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    rig.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stops_in_the_middle_is_given_up_in_time() {
    keep_warnings();
    let pair = Pair::new();
    let options = PostgresOptions { statement_timeout: Duration::from_secs(1), ..pair.options() };
    let rig = Rig::open(Arc::new(Replicated(options))).await;
    let only = worked_off(&rig).await;
    comes_to_list(&rig, &[only]).await;
    comes_to_use(&pair, &rig).await;

    let stopped: Vec<String> = pair.readers().await.iter().map(i32::to_string).collect();
    run(Command::new("kill").arg("-STOP").args(&stopped));
    let began = Instant::now();
    assert_eq!(listed(&rig).await, [only]);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(pair.warnings().len(), 1, "{:?}", pair.warnings());
    run(Command::new("kill").arg("-CONT").args(&stopped));
    comes_to_use(&pair, &rig).await;
    rig.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_not_got_the_tables_yet_is_no_hindrance() {
    keep_warnings();
    let pair = Pair::new();
    pair.pause().await;
    let rig = pair.open().await;
    let only = worked_off(&rig).await;
    assert_eq!(listed(&rig).await, [only]);
    // Being there is not enough: it is asked again and found wanting, and nobody is told twice.
    let began = Instant::now();
    while pair.standby.log().matches("does not exist").count() < 3 {
        assert!(began.elapsed() < SOON, "it is not asked again");
        assert_eq!(listed(&rig).await, [only]);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pair.warnings().len(), 1, "{:?}", pair.warnings());

    pair.resume().await;
    comes_to_use(&pair, &rig).await;
    comes_to_list(&rig, &[only]).await;
    rig.store.close().await;
}
