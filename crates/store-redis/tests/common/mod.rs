//! Servers, and what is written to them.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod certificates;
pub mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass_cluster::backend::{
    Backend, Changes, CommitError, Entry, EventRow, Is, NodeId, OverlayChange, Snapshot, Tail, TaskChange, Wants, Was,
};
use windlass_core::actor::Actor;
use windlass_core::event::{Change, Event};
use windlass_core::failure::{ErrorClass, ErrorReport};
use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
use windlass_core::status::Status;
use windlass_core::task::FailedAttempt;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{Ended, LiveRow, Overlay, TaskRow};
use windlass_store_redis::{RedisBackend, RedisOptions};
use windlass_testkit::fixtures;

/// A prefix of its own on some servers; its keys are deleted when it is dropped.
pub struct Place {
    pub base: String,
    pub prefix: String,
}

/// The URL that the environment gives; a test without a server fails.
pub fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must name the servers to test on"))
}

impl Place {
    #[allow(clippy::disallowed_methods, reason = "a prefix that no other run has")]
    pub fn new(variable: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { base: url(variable), prefix: format!("test-{nanos}-{}-{count}", std::process::id()) }
    }

    pub fn options(&self) -> RedisOptions {
        let separator = if self.base.contains('?') { '&' } else { '?' };
        RedisOptions::new(format!("{}{separator}prefix={}", self.base, self.prefix))
    }

    pub async fn open(&self) -> RedisBackend {
        RedisBackend::open(self.options()).await.expect("the servers are there")
    }

    /// Connections to every server, to do things behind the backend's back.
    pub async fn servers(&self) -> Vec<redis::aio::MultiplexedConnection> {
        let (scheme, rest) = self.base.split_once("://").expect("a URL");
        let hosts: Vec<&str> = rest.split(['/', '?']).next().unwrap_or_default().split(',').collect();
        let mut connections = Vec::new();
        let mut addresses: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        if scheme.ends_with("sentinel") {
            let master = rest.split('/').nth(1).and_then(|path| path.split('?').next()).expect("a master");
            let client = redis::Client::open(format!("redis://{}", hosts[0])).expect("a URL");
            let mut sentinel = client.get_multiplexed_async_connection().await.expect("a sentinel");
            let found: (String, u16) = redis::cmd("SENTINEL")
                .arg("get-master-addr-by-name")
                .arg(master)
                .query_async(&mut sentinel)
                .await
                .expect("a master");
            addresses = vec![format!("{}:{}", found.0, found.1)];
        }
        for address in addresses {
            let client = redis::Client::open(format!("redis://{address}")).expect("a URL");
            connections.push(client.get_multiplexed_async_connection().await.expect("a server"));
        }
        connections
    }

    pub async fn everywhere(&self, command: &redis::Cmd) {
        for mut connection in self.servers().await {
            let _: redis::Value = command.query_async(&mut connection).await.expect("an answer");
        }
    }

    /// Deletes everything that the test has written.
    pub async fn delete(&self) {
        for mut connection in self.servers().await {
            let mut cursor = 0;
            loop {
                let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
                    .arg(cursor)
                    .arg("MATCH")
                    .arg(format!("{}:*", self.prefix))
                    .arg("COUNT")
                    .arg(1_000)
                    .query_async(&mut connection)
                    .await
                    .expect("keys");
                for key in keys {
                    let _: i64 = redis::cmd("UNLINK").arg(key).query_async(&mut connection).await.expect("gone");
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
    }
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}

pub fn entry(no: u64) -> Entry {
    Entry { no, node: NodeId(7), redo: format!("redo {no}").into_bytes() }
}

pub fn row(queue: &str, key: u64) -> TaskRow {
    let task = fixtures::task("mail").queue(queue).parameters(&format!("{{\"key\":{key}}}")).build();
    TaskRow {
        spec: task.spec,
        created_at: at(key as i64),
        run_at: at(key as i64),
        event_no: key,
        original_parameters: None,
        auto_replayed: false,
    }
}

pub fn new_task(queue: &str, key: u64) -> TaskChange {
    TaskChange {
        key: TaskKey(key),
        was: Was::Absent,
        is: Is::Live,
        row: Some(Arc::new(row(queue, key))),
        overlay: OverlayChange::Keep,
    }
}

pub fn change(key: u64, was: Was, is: Is) -> TaskChange {
    TaskChange { key: TaskKey(key), was, is, row: None, overlay: OverlayChange::Keep }
}

pub fn tasks(tasks: Vec<TaskChange>) -> Changes {
    Changes { tasks, ..Changes::default() }
}

pub fn overlay() -> Overlay {
    Overlay {
        status: Status::Scheduled,
        version: 3,
        attempt: 1,
        retries: 1,
        crashes: 0,
        timeouts: 2,
        ready_at: at(5),
        run_at: at(6),
        retrying: true,
        started_at: Some(at(4)),
        worker: Some(WorkerId::random()),
        applied: None,
        event_nos: vec![2, 3],
        place: None,
    }
}

pub fn ended(status: Status, keep_until: Option<Timestamp>) -> Ended {
    Ended {
        status,
        reason: None,
        version: 4,
        attempt: 1,
        retries: 0,
        crashes: 0,
        timeouts: 0,
        ready_at: at(5),
        run_at: at(6),
        started_at: Some(at(7)),
        ended_at: at(8),
        worker: Some(WorkerId::random()),
        result: Some(fixtures::json(r#"{"done": true}"#)),
        applied: Some(windlass_ledger::journal::AppliedResult { claim: 9, digest: u64::MAX - 1, status }),
        event_nos: vec![2, 300, 70_000],
        keep_until,
    }
}

pub fn end(key: u64, status: Status, keep_until: Option<Timestamp>) -> TaskChange {
    let is = Is::Ended(Box::new(ended(status, keep_until)));
    TaskChange { overlay: OverlayChange::Drop, ..change(key, Was::Live, is) }
}

pub fn attempt(number: u32) -> FailedAttempt {
    FailedAttempt {
        attempt: number,
        worker: None,
        started_at: at(1),
        ended_at: at(2),
        class: ErrorClass::Transient,
        error: ErrorReport::internal("code", format!("attempt {number}")),
    }
}

pub fn events(backend: &RedisBackend, no: u64, keys: &[u64]) -> EventRow {
    let ids = IdCodec::new(backend.secret());
    let event = |key: &u64| Event {
        task_id: ids.task_id(TaskKey(*key), at(*key as i64)),
        version: 1,
        at: at(no as i64),
        actor: Actor::Api,
        change: Change::Submitted { status: Status::Queued, run_at: at(*key as i64) },
    };
    EventRow { no, at: at(no as i64), events: keys.iter().map(event).collect() }
}

/// Commits the next entry, following whatever came between.
pub async fn commit(backend: &RedisBackend, no: u64, changes: &Changes) {
    backend.commit(&entry(no), changes).await.unwrap_or_else(|error| panic!("entry {no}: {error:?}"));
}

/// Writes an entry with a task; follows the log as a node does if the answer was lost.
pub async fn write(backend: &RedisBackend, last: u64) -> Result<u64, CommitError> {
    let no = last + 1;
    match backend.commit(&entry(no), &tasks(vec![new_task(&format!("q{}", no % 5), no)])).await {
        Ok(()) => Ok(no),
        Err(CommitError::Behind) => match backend.tail(last, 100).await {
            Ok(Tail::Entries(entries)) => Ok(last + entries.len() as u64),
            other => panic!("nothing was lost: {other:?}"),
        },
        Err(error) => Err(error),
    }
}

pub async fn writes_until(backend: &RedisBackend, mut last: u64, goal: u64) -> u64 {
    let mut failures = 0;
    while last < goal {
        match write(backend, last).await {
            Ok(no) => last = no,
            Err(error) => {
                failures += 1;
                assert!(failures < 200, "no master came back: {error:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    last
}

pub async fn has_all(backend: &RedisBackend, last: u64) {
    let Ok(Tail::Entries(entries)) = backend.tail(0, 10_000).await else { panic!("the log is whole") };
    assert_eq!(entries.len() as u64, last);
    let wants = Wants { tasks: (1..=last).map(TaskKey).collect(), ..Wants::default() };
    assert_eq!(backend.read(&wants, last).await.expect("rows").tasks.len() as u64, last);
    assert_eq!(live(&mut backend.load().await.expect("a snapshot")).await.len() as u64, last);
}

pub async fn live(snapshot: &mut Snapshot) -> Vec<LiveRow> {
    let mut rows = Vec::new();
    while let Some(page) = snapshot.live.recv().await {
        rows.extend(page.expect("rows"));
    }
    rows.sort_by_key(|row| row.key);
    rows
}

pub fn is_behind(result: &Result<(), CommitError>) -> bool {
    matches!(result, Err(CommitError::Behind))
}

/// Waits for a condition that is met soon.
pub async fn soon<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    for _ in 0..200 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it did not come about that {what}");
}
