//! How fast entries go in, and what they cost: `cargo run --release --example measure -- URL`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use windlass_cluster::backend::{Backend, Changes, Entry, EventRow, Is, NodeId, OverlayChange, TaskChange, Was};
use windlass_core::actor::Actor;
use windlass_core::event::{Change, Event};
use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{AppliedResult, Ended, TaskRow};
use windlass_store_redis::{RedisBackend, RedisOptions};
use windlass_testkit::fixtures;

const SPAN: Duration = Duration::from_secs(3);

struct Bench {
    backend: RedisBackend,
    no: u64,
    key: u64,
    ids: IdCodec,
    worker: WorkerId,
}

impl Bench {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + self.no as i64 * 1_000)
    }

    fn new_tasks(&mut self, count: u64) -> Changes {
        let now = self.now();
        let mut events = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..count {
            self.key += 1;
            let spec = fixtures::task("send_mail")
                .queue(["mail", "reports", "images"][self.key as usize % 3])
                .parameters(&format!(
                    r#"{{"to":"user{}@example.com","template":"welcome","locale":"en_GB"}}"#,
                    self.key
                ))
                .build()
                .spec;
            let row = TaskRow {
                spec,
                created_at: now,
                run_at: now,
                event_no: self.no + 1,
                original_parameters: None,
                auto_replayed: false,
            };
            events.push(Event {
                task_id: self.ids.task_id(TaskKey(self.key), now),
                version: 1,
                at: now,
                actor: Actor::Api,
                change: Change::Submitted { status: Status::Queued, run_at: now },
            });
            tasks.push(TaskChange {
                key: TaskKey(self.key),
                was: Was::Absent,
                is: Is::Live,
                row: Some(Arc::new(row)),
                overlay: OverlayChange::Keep,
            });
        }
        Changes { tasks, events: Some(EventRow { no: self.no + 1, at: now, events }), ..Changes::default() }
    }

    fn ends(&self, keys: std::ops::Range<u64>) -> Changes {
        let now = self.now();
        let ended = Ended {
            status: Status::Completed,
            reason: None,
            version: 3,
            attempt: 1,
            retries: 0,
            crashes: 0,
            timeouts: 0,
            ready_at: now,
            run_at: now,
            started_at: Some(now),
            ended_at: now,
            worker: Some(self.worker),
            result: Some(fixtures::json("{\"ok\":true}")),
            applied: Some(AppliedResult { claim: 7, digest: 1 << 60, status: Status::Completed }),
            event_nos: vec![self.no, self.no + 1],
            keep_until: Some(now + Duration::from_secs(600_000)),
        };
        let events = keys.clone().map(|key| Event {
            task_id: self.ids.task_id(TaskKey(key), now),
            version: 3,
            at: now,
            actor: Actor::Worker(self.worker),
            change: Change::Completed,
        });
        let events = EventRow { no: self.no + 1, at: now, events: events.collect() };
        let tasks = keys.map(|key| TaskChange {
            key: TaskKey(key),
            was: Was::Live,
            is: Is::Ended(Box::new(ended.clone())),
            row: None,
            overlay: OverlayChange::Keep,
        });
        Changes { tasks: tasks.collect(), events: Some(events), ..Changes::default() }
    }

    async fn commit(&mut self, changes: &Changes) {
        let redo = vec![b'r'; 64 * changes.tasks.len()];
        let entry = Entry { no: self.no + 1, node: NodeId(1), redo };
        self.backend.commit(&entry, changes).await.expect("committed");
        self.no += 1;
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let url = std::env::args().nth(1).expect("a URL");
    let backend = RedisBackend::open(RedisOptions::new(url)).await.expect("opened");
    let ids = IdCodec::new(backend.secret());
    let mut bench = Bench { backend, no: 0, key: 0, ids, worker: WorkerId::random() };
    assert_eq!(bench.backend.load().await.expect("loaded").version, 0, "an empty prefix");
    for size in [1, 32, 200, 1_000] {
        let (begin, mut entries) = (Instant::now(), 0);
        let mut own = Duration::ZERO;
        while begin.elapsed() < SPAN {
            let built = Instant::now();
            let changes = bench.new_tasks(size);
            own += built.elapsed();
            bench.commit(&changes).await;
            entries += 1;
        }
        let seconds = begin.elapsed().saturating_sub(own).as_secs_f64();
        println!(
            "{size} new: {:.0} entries/s, {:.0} tasks/s",
            entries as f64 / seconds,
            (entries * size) as f64 / seconds
        );
    }
    let (begin, mut entries, mut key) = (Instant::now(), 0, 1);
    while begin.elapsed() < SPAN && key + 200 <= bench.key {
        let changes = bench.ends(key..key + 200);
        bench.commit(&changes).await;
        key += 200;
        entries += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "200 ends: {:.0} entries/s, {:.0} tasks/s",
        f64::from(entries) / seconds,
        f64::from(entries) * 200.0 / seconds
    );
    while bench.key - key < 200_000 {
        let changes = bench.new_tasks(1_000);
        bench.commit(&changes).await;
    }
    let begin = Instant::now();
    let mut snapshot = bench.backend.load().await.expect("loaded");
    let mut live = 0;
    while let Some(rows) = snapshot.live.recv().await {
        live += rows.expect("rows").len();
    }
    println!("load of {live} live tasks: {:?}", begin.elapsed());
    println!("{} live, {} ended, {} entries", live, key - 1, bench.no);
}
