//! One node: its writer, and the tasks that keep it in step with the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use windlass_core::event::Observer;
use windlass_core::ids::IdCodec;
use windlass_core::store::{Capabilities, InboxItem, StoreError};
use windlass_core::time::{Clock, Timestamp};
use windlass_ledger::archive::Archive;
use windlass_ledger::batch::{Operation, Writer};
use windlass_ledger::days::DayStep;
use windlass_ledger::journal::{Fault, JournalError};
use windlass_ledger::ledger::Ledger;
use windlass_ledger::recover::Recovery;
use windlass_ledger::redo::Totals;
use windlass_ledger::store::{Inbox, LedgerStore, Others, Parts};
use windlass_ledger::thread::{self, Host, WriterInbox};

use crate::backend::{Backend, BackendError, NodeId};
use crate::clock::{DatabaseClock, instant};
use crate::envelope;
use crate::journal::SharedJournal;

/// How often the database is asked for the time.
const ASK_TIME: Duration = Duration::from_secs(1);
/// How long a hint is given to be looked at before the next one.
const LET_IT_LOOK: Duration = Duration::from_millis(2);
/// How long the writer rests after every try while the database is away.
const BREATHE: Duration = Duration::from_millis(10);
/// How long to wait before memory is loaded anew once more.
const LOAD_AGAIN: Duration = Duration::from_millis(500);

/// How to open a store that nodes share.
pub struct NodeOptions {
    /// A short name for metrics (`postgres`).
    pub name: &'static str,
    /// In what it differs from other stores.
    pub capabilities: Capabilities,
    /// How long leases last that are live when the node starts.
    pub lease: Duration,
    /// A clock of the caller's own, for tests; without one, that of the database.
    pub clock: Option<Arc<dyn Clock>>,
    /// This node; another number for every process.
    pub node: NodeId,
}

/// Opens the store: loads everything into memory and begins to follow the others.
pub async fn open(
    backend: Arc<dyn Backend>,
    archive: Arc<dyn Archive>,
    options: NodeOptions,
    observer: Arc<dyn Observer>,
) -> Result<Arc<LedgerStore>, BackendError> {
    let told = backend.time().await?;
    let asked_at = instant();
    let database_clock = Arc::new(DatabaseClock::starting_at(told, Timestamp::EPOCH));
    database_clock.tell(told, asked_at);
    let clock: Arc<dyn Clock> = match options.clock {
        Some(clock) => clock,
        None => Arc::clone(&database_clock) as Arc<dyn Clock>,
    };
    let ids = IdCodec::new(backend.secret());
    let (ledger, version) = load(backend.as_ref(), Arc::clone(&clock), options.lease).await?;
    let cannot_start = |error: std::io::Error| BackendError::new(format!("the writer cannot be started: {error}"));
    // Its own, so that an answer of the database wakes the writer and nobody in between.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    let runtime = Arc::new(WriterRuntime(Some(runtime)));
    let journal = SharedJournal::new(
        Arc::clone(&backend),
        Arc::clone(&runtime),
        options.node,
        options.capabilities.keeps_whole_days,
        version,
    );
    let version = journal.version();
    let (writer, shared) = Writer::new(ledger, journal, observer);
    let host = NodeHost {
        backend: Arc::clone(&backend),
        clock: Arc::clone(&clock),
        lease: options.lease,
        runtime,
        is_away: false,
    };
    let on_panic = Arc::new(|| {
        tracing::error!("the writer panicked; stopping");
        std::process::abort();
    });
    let writer_inbox = Arc::new(thread::start(writer, host, on_panic).map_err(cannot_start)?);
    let tasks = vec![
        tokio::spawn(follow(Arc::clone(&backend), version, Arc::clone(&writer_inbox))),
        tokio::spawn(keep_time(Arc::clone(&backend), database_clock)),
    ];
    let others = OtherNodes { backend: Arc::clone(&backend), node: options.node };
    let inbox = NodeInbox { writer: writer_inbox, tasks, backend, node: options.node };
    Ok(Arc::new(LedgerStore::new(Parts {
        name: options.name,
        capabilities: options.capabilities,
        clock,
        ids,
        inbox: Arc::new(inbox),
        archive,
        shared,
        others: Arc::new(others),
    })))
}

/// Everything that memory holds, and the entry it is as new as.
async fn load(backend: &dyn Backend, clock: Arc<dyn Clock>, lease: Duration) -> Result<(Ledger, u64), BackendError> {
    let mut snapshot = backend.load().await?;
    let damaged = |reason: String| BackendError::new(format!("the last entry of the log cannot be read: {reason}"));
    let totals = match &snapshot.last {
        Some(entry) => {
            let (_, redo) = envelope::open(&entry.redo).map_err(|error| damaged(error.to_string()))?;
            Totals::of(redo).map_err(|error| damaged(error.to_string()))?
        }
        // Sequences start at one: a zero would look like nothing.
        None => Totals { next: [1; 3], ..Totals::default() },
    };
    let mut found = snapshot.found;
    found.secret = backend.secret();
    [found.next_task, found.next_claim, found.next_event] = totals.next;
    found.ended = totals.ended;
    let mut recovery = Recovery::new(clock, found);
    while let Some(rows) = snapshot.live.recv().await {
        for mut row in rows? {
            if !recovery.is_fair(&row.lane.queue) {
                row.lane.tenant = None;
            }
            recovery.add(&row);
        }
    }
    let mut ledger = recovery.finish(lease);
    ledger.not_before(totals.at);
    Ok((ledger, snapshot.version))
}

/// Wakes the writer whenever the log may have grown.
async fn follow(backend: Arc<dyn Backend>, version: Arc<AtomicU64>, writer: Arc<WriterInbox>) {
    loop {
        let at = version.load(Ordering::Acquire);
        backend.grown(at).await;
        writer.hint();
        if version.load(Ordering::Acquire) == at {
            // The writer has yet to look: what made us wake is still there and would wake us at once again.
            tokio::time::sleep(LET_IT_LOOK).await;
        }
    }
}

async fn keep_time(backend: Arc<dyn Backend>, clock: Arc<DatabaseClock>) {
    loop {
        tokio::time::sleep(ASK_TIME).await;
        let asked_at = instant();
        if let Ok(told) = backend.time().await {
            // Half way between question and answer.
            clock.tell(told, asked_at + asked_at.elapsed() / 2);
        }
    }
}

/// Where a writer waits for the database. Ends without waiting for what is under way in it, wherever it is dropped.
pub(crate) struct WriterRuntime(Option<Runtime>);

impl WriterRuntime {
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        // It is there until it is dropped.
        let runtime = self.0.as_ref().expect("a runtime that is in use");
        runtime.block_on(future)
    }
}

impl Drop for WriterRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the writer of a node has beside it.
struct NodeHost {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    lease: Duration,
    runtime: Arc<WriterRuntime>,
    /// Whether the database was away when last looked at.
    is_away: bool,
}

impl Host<SharedJournal> for NodeHost {
    /// Connections go on meanwhile: one that breaks is noticed.
    fn wait(&mut self, up_to: Option<Duration>, arrived: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        self.runtime.block_on(async {
            let arrived = std::future::poll_fn(arrived);
            match up_to {
                None => arrived.await,
                Some(span) => tokio::time::timeout(span, arrived).await.unwrap_or_default(),
            }
        });
    }

    fn after_batch(&mut self, writer: &mut Writer<SharedJournal>) {
        let reason = writer.journal().away_because().map(str::to_owned);
        match (&reason, self.is_away) {
            (Some(reason), false) => tracing::error!(reason, "the shared store is away"),
            (None, true) => tracing::info!("the shared store is back"),
            (Some(_), true) | (None, false) => {}
        }
        self.is_away = reason.is_some();
        if self.is_away {
            writer.end_polls();
            // Whatever falls due meanwhile falls due again and again.
            std::thread::sleep(BREATHE);
        }
    }

    /// What memory holds has lost touch with the log: the truth is in the database.
    fn failed(&mut self, writer: &mut Writer<SharedJournal>, error: &JournalError) -> bool {
        if error.fault != Fault::Astray {
            return true;
        }
        tracing::warn!(reason = error.reason, "memory is loaded anew");
        writer.end_polls();
        match self.runtime.block_on(load(self.backend.as_ref(), Arc::clone(&self.clock), self.lease)) {
            Ok((ledger, version)) => {
                writer.journal().restart_at(version);
                writer.replace_ledger(ledger);
            }
            Err(error) => {
                tracing::warn!(reason = error.reason, "memory cannot be loaded; trying again");
                std::thread::sleep(LOAD_AGAIN);
            }
        }
        true
    }

    fn closed(self, writer: Writer<SharedJournal>) {
        drop(writer);
    }
}

struct OtherNodes {
    backend: Arc<dyn Backend>,
    node: NodeId,
}

#[async_trait]
impl Others for OtherNodes {
    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.backend.lead(self.node, span).await.map_err(|error| StoreError::not_applied(error.reason))
    }

    async fn resign(&self) {
        self.backend.resign(self.node).await;
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> {
        self.backend.inbox(after, limit).await.map_err(|error| StoreError::not_applied(error.reason))
    }

    async fn inbox_grown(&self) {
        self.backend.inbox_grown().await;
    }

    async fn day_step(&self, now: Timestamp) -> Result<DayStep, StoreError> {
        self.backend.day_step(now).await.map_err(|error| StoreError::not_applied(error.reason))
    }
}

/// The way to the writer, and what ends with it.
struct NodeInbox {
    writer: Arc<WriterInbox>,
    tasks: Vec<JoinHandle<()>>,
    backend: Arc<dyn Backend>,
    node: NodeId,
}

#[async_trait]
impl Inbox for NodeInbox {
    async fn send(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        self.writer.send(operation).await
    }

    fn send_later(&self, operation: Box<dyn Operation>) {
        self.writer.send_later(operation);
    }

    async fn close(&self) {
        for task in &self.tasks {
            task.abort();
        }
        self.writer.close().await;
        self.backend.resign(self.node).await;
        self.backend.close().await;
    }
}

impl Drop for NodeInbox {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
