//! A schema of its own for every test, and rows to put in it.

#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod certificates;
pub mod server;
pub mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_postgres::NoTls;
use windlass_cluster::backend::{
    Backend, Changes, CommitError, Entry, Is, NodeId, OverlayChange, Snapshot, TaskChange, Was,
};
use windlass_core::failure::TaskPolicy;
use windlass_core::ids::TaskKey;
use windlass_core::json::Json;
use windlass_core::names::{CapabilitySet, QueueName, TaskType};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::status::Status;
use windlass_core::task::TaskSpec;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{Ended, LiveRow, TaskRow};
use windlass_store_postgres::{PostgresBackend, PostgresOptions};

/// Microseconds of a day.
pub const DAY_US: i64 = 24 * 3600 * 1_000_000;
/// When everything happens in these tests.
pub const NOW: i64 = 20_000 * DAY_US + 1_000_000;

/// Where the server is.
pub fn url() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES_URL")
        .expect("WINDLASS_TEST_POSTGRES_URL must name a PostgreSQL server for tests")
}

/// Where the same server is behind a pooler.
pub fn pooled_url() -> String {
    let url = std::env::var("WINDLASS_TEST_PGBOUNCER_URL")
        .expect("WINDLASS_TEST_PGBOUNCER_URL must name a PgBouncer in front of the server for tests");
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}pgbouncer=true")
}

/// A schema of its own, dropped at the end.
pub struct Database {
    /// Its name.
    pub schema: String,
    url: String,
}

impl Database {
    pub fn new() -> Self {
        Self::at(&url())
    }

    /// A schema on another server.
    pub fn at(url: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { schema: format!("wt_{}_{count}", std::process::id()), url: url.to_owned() }
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::new(self.url.clone()) }
    }

    pub async fn open(&self) -> PostgresBackend {
        PostgresBackend::connect(self.options()).await.expect("connects")
    }

    /// A plain connection beside the store.
    pub async fn client(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    }

    /// One number, by a query with `:schema` in it.
    pub async fn number(&self, sql: &str) -> i64 {
        let sql = sql.replace(":schema", &self.schema);
        self.client().await.query_one(&sql, &[]).await.expect(&sql).get(0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, sql) = (self.url.clone(), format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema));
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                    tokio::spawn(connection);
                    let _ = client.batch_execute(&sql).await;
                }
            });
        });
        let _ = dropped.join();
    }
}

pub fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(NOW + micros)
}

/// A task without anything special.
pub fn row(parameters: &str) -> TaskRow {
    TaskRow {
        spec: TaskSpec {
            task_type: TaskType::new("resize").expect("a name"),
            queue: QueueName::default(),
            priority: Priority::MEDIUM,
            capabilities: CapabilitySet::default(),
            parameters: Json::from_text(parameters.to_owned()).expect("JSON"),
            policy: TaskPolicy {
                timeout: Duration::from_secs(300),
                max_retries: 3,
                max_crashes: 3,
                dead_letter: true,
                retry: RetryPolicy::default(),
            },
            expires_at: None,
            idempotency_key: None,
            flow_key: None,
            unique: None,
            tenant: None,
            tags: BTreeMap::new(),
            trace_parent: None,
        },
        created_at: at(1),
        run_at: at(2),
        event_no: 1,
        original_parameters: None,
        auto_replayed: false,
    }
}

pub fn ended(status: Status, keep_days: Option<i64>) -> Ended {
    Ended {
        status,
        reason: None,
        version: 3,
        attempt: 1,
        retries: 0,
        crashes: 0,
        timeouts: 0,
        ready_at: at(2),
        run_at: at(2),
        started_at: Some(at(3)),
        ended_at: at(4),
        worker: None,
        result: Some(Json::from_text("{\"ok\":true}".into()).expect("JSON")),
        applied: None,
        event_nos: vec![2, 3],
        keep_until: keep_days.map(|days| at(4 + days * DAY_US)),
    }
}

pub fn entry(no: u64) -> Entry {
    Entry { no, node: NodeId(7), redo: format!("redo {no}").into_bytes() }
}

pub fn change(key: u64, was: Was, is: Is, row: Option<TaskRow>) -> TaskChange {
    TaskChange { key: TaskKey(key), was, is, row: row.map(Arc::new), overlay: OverlayChange::Keep }
}

pub fn new_task(key: u64) -> TaskChange {
    change(key, Was::Absent, Is::Live, Some(row(&format!("{{\"n\":{key}}}"))))
}

pub fn end(key: u64, was: Was, ended: Ended) -> TaskChange {
    change(key, was, Is::Ended(Box::new(ended)), None)
}

pub fn tasks(tasks: Vec<TaskChange>) -> Changes {
    Changes { tasks, ..Changes::default() }
}

/// Commits and expects it to work.
pub async fn commit(backend: &PostgresBackend, no: u64, changes: Changes) {
    backend.commit(&entry(no), &changes).await.expect("committed");
}

/// Commits and expects it not to work.
pub async fn refused(backend: &PostgresBackend, no: u64, changes: Changes) -> CommitError {
    backend.commit(&entry(no), &changes).await.expect_err("not committed")
}

/// The live tasks of a snapshot, by key.
pub async fn live(snapshot: &mut Snapshot) -> Vec<LiveRow> {
    let mut all = Vec::new();
    while let Some(chunk) = snapshot.live.recv().await {
        all.extend(chunk.expect("read"));
    }
    all.sort_by_key(|row| row.key);
    all
}
