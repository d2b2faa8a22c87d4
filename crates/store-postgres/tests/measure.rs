//! How fast it is. Run by name, in release, on a machine that has nothing else to do:
//! `cargo test --release -p windlass-store-postgres --test measure -- --ignored --nocapture --test-threads 1`

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{Backend, Changes, EventRow, Is, TaskChange, Was};
use windlass_core::actor::Actor;
use windlass_core::event::{Change, Event};
use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
use windlass_core::status::Status;
use windlass_core::store::Store;
use windlass_ledger::journal::{ClaimEntry, ClaimRow};
use windlass_store_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use windlass_testkit::ManualClock;
use windlass_testkit::fixtures::{queue, task};
use windlass_testkit::rig::{LEASE, Witness};

/// How much was written so far.
const WAL: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";

/// About 200 bytes, as the benchmark of the whole product has it.
fn payload() -> String {
    format!("{{\"id\":7,\"text\":\"{}\"}}", "x".repeat(180))
}

struct Run {
    backend: PostgresBackend,
    ids: IdCodec,
    no: u64,
    key: u64,
}

impl Run {
    async fn open(options: PostgresOptions) -> Self {
        let backend = PostgresBackend::connect(options).await.expect("connects");
        Self { ids: IdCodec::new(backend.secret()), backend, no: 0, key: 0 }
    }

    fn event(&self, key: u64, change: Change) -> Event {
        let task_id = self.ids.task_id(TaskKey(key), at(1));
        Event { task_id, version: 1, at: at(1), actor: Actor::Api, change }
    }

    async fn commit(&mut self, mut changes: Changes, events: Vec<Event>) {
        self.no += 1;
        changes.events = Some(EventRow { no: self.no, at: at(1), events });
        let mut entry = entry(self.no);
        // What a node writes of its memory: about fifty bytes a task.
        entry.redo = vec![7; changes.tasks.len() * 50 + 100];
        self.backend.commit(&entry, &changes).await.expect("committed");
    }

    async fn submit(&mut self, count: u64, payload: &str) {
        let keys = self.key + 1..=self.key + count;
        self.key += count;
        let new = |key| change(key, Was::Absent, Is::Live, Some(row(payload)));
        let events =
            keys.clone().map(|key| self.event(key, Change::Submitted { status: Status::Queued, run_at: at(1) }));
        let events = events.collect();
        self.commit(tasks(keys.map(new).collect()), events).await;
    }

    /// Ends some tasks, and claims as many others, as a worker that is busy does.
    async fn finish(&mut self, ends: std::ops::Range<u64>, claims: std::ops::Range<u64>, last: bool) {
        let ended = |key| -> TaskChange { end(key, Was::Live, ended(Status::Completed, Some(7))) };
        let mut changes = tasks(ends.clone().map(ended).collect());
        if !ends.is_empty() {
            changes.claims.insert(ends.start, None);
        }
        let worker = WorkerId::random();
        if !last {
            let entries = claims.clone().map(|key| ClaimEntry { key, version: 2, attempt: 1 }).collect();
            let claim = ClaimRow { first: claims.start, worker, at: at(1), event_no: self.no + 1, entries };
            changes.claims.insert(claims.start, Some(claim));
        }
        let claimed = |key| self.event(key, Change::Claimed { worker, attempt: 1, claim: key });
        let events = ends.map(|key| self.event(key, Change::Completed)).chain(claims.map(claimed)).collect();
        self.commit(changes, events).await;
    }
}

async fn measure(name: &str, prepare: Option<bool>, pooled: bool) {
    let database = Database::new();
    let url = if pooled { pooled_url() } else { url() };
    let mut run = Run::open(PostgresOptions { prepare, url, ..database.options() }).await;
    let payload = payload();
    for batch in [1, 32, 200, 1000] {
        run.submit(batch, &payload).await;
        let (began, before, first) = (Instant::now(), run.key, run.no);
        while began.elapsed() < Duration::from_secs(3) {
            run.submit(batch, &payload).await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let rows = (run.key - before) as f64 / seconds;
        let commits = (run.no - first) as f64 / seconds;
        println!("{name}: submit {batch}: {rows:.0} tasks/s, {commits:.0} commits/s");
    }
    for batch in [1, 32, 200, 1000] {
        let from = 1 + (batch - 1) * 100;
        let mut key = run.key - 60_000 + from % 7;
        run.key += 0;
        let wal_before = database.number(WAL).await;
        let began = Instant::now();
        run.finish(key..key, key..key + batch, false).await;
        let mut done = 0;
        let start = key;
        while began.elapsed() < Duration::from_secs(2) && key + 2 * batch < start + 50_000 / 4 {
            run.finish(key..key + batch, key + batch..key + 2 * batch, false).await;
            key += batch;
            done += batch;
        }
        run.finish(key..key + batch, key..key, true).await;
        let seconds = began.elapsed().as_secs_f64();
        let wal = (database.number(WAL).await - wal_before) as f64 / (done + batch) as f64;
        println!("{name}: end and claim {batch}: {:.0} tasks/s, {wal:.0} bytes of WAL a task", done as f64 / seconds);
        // The ones that ended are not there any more.
        run.submit(20_000, &payload).await;
        run.submit(20_000, &payload).await;
        run.submit(20_000, &payload).await;
    }
    run.backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and measures only"]
async fn commits() {
    measure("prepared", Some(true), false).await;
    measure("typed", Some(false), false).await;
    measure("pooled", None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and measures only"]
async fn load_of_a_million() {
    let database = Database::new();
    let mut run = Run::open(database.options()).await;
    let payload = payload();
    while run.key < 1_000_000 {
        run.submit(5_000, &payload).await;
    }
    for _ in 0..3 {
        let began = Instant::now();
        let mut snapshot = run.backend.load().await.expect("loaded");
        let first = began.elapsed();
        let mut count = 0;
        while let Some(chunk) = snapshot.live.recv().await {
            count += chunk.expect("read").len();
        }
        println!("load: {count} live tasks in {:?}, the rest in {first:?}", began.elapsed());
    }
    run.backend.close().await;
}

/// Lets 100,000 tasks end and cleans them up an hour after `before`, while somebody submits all the time.
async fn clean_up(name: &str, retention_days: f64, before: Duration) {
    const TASKS: usize = 100_000;
    let database = Database::new();
    let clock = Arc::new(ManualClock::new());
    let store =
        PostgresStore::open(database.options(), LEASE, Some(Arc::clone(&clock) as _), Arc::<Witness>::default());
    let store = store.await.expect("opens");
    let change = format!("{{\"retention\":{{\"completed_days\":{retention_days}}}}}");
    let change = serde_json::from_str(&change).expect("settings");
    store.change_queue(queue("default"), change).await.expect("set");
    for _ in 0..TASKS / 1_000 {
        let new = (0..1_000).map(|_| task("a").parameters(&payload()).build()).collect();
        let ids = store.submit(new).await.expect("taken").into_iter().map(|submitted| submitted.id).collect();
        store.cancel(ids, Actor::Api).await.expect("cancelled");
    }
    clock.advance(before);
    // Old events are looked through once a day; that is not what is measured.
    while store.prune(500).await.expect("pruned").more {}
    clock.advance(Duration::from_hours(1));
    let (wal, began) = (database.number(WAL).await, Instant::now());
    let done = tokio::sync::Notify::new();
    let submits = async {
        let mut waits = Vec::new();
        let over = done.notified();
        tokio::pin!(over);
        while tokio::time::timeout(Duration::from_millis(5), &mut over).await.is_err() {
            let began = Instant::now();
            store.submit(vec![task("b").build()]).await.expect("taken");
            waits.push(began.elapsed());
        }
        waits.sort_unstable();
        waits
    };
    let prunes = async {
        let (mut calls, mut changed) = (0, 0);
        loop {
            let sweep = store.prune(500).await.expect("pruned");
            (calls, changed) = (calls + 1, changed + sweep.changed);
            if !sweep.more {
                done.notify_one();
                return (calls, changed, began.elapsed());
            }
        }
    };
    let (waits, (calls, changed, took)) = tokio::join!(submits, prunes);
    assert_eq!(changed, TASKS);
    let wal = (database.number(WAL).await - wal) / 1_000_000;
    let (middle, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!(
        "{name}: {changed} tasks in {took:?} and {calls} calls, {wal} MB of WAL; {} submits meanwhile: half within \
         {middle:?}, the longest {longest:?}",
        waits.len()
    );
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and measures only"]
async fn cleaning_up_by_days_and_by_rows() {
    // They go before the end of a day, and after it.
    clean_up("by rows", 0.5, Duration::from_mins(11 * 60 + 30)).await;
    clean_up("by days", 1.0, Duration::from_hours(25)).await;
}
