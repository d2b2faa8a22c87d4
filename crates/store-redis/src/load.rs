//! Everything that memory holds. Rows may be newer than the entry that the load begins at:
//! entries say how things are, so following one that is in already does no harm.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::mpsc;
use windlass_cluster::backend::{BackendError, Snapshot};
use windlass_core::error_rules::RuleBook;
use windlass_core::ids::TaskKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::retry::grown_timeout;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_ledger::journal::{CancelledRow, ClaimRow, LiveRow, Recovered};

use crate::changes::ERROR_RULES;
use crate::error::{Damaged, Failure};
use crate::inner::Inner;
use crate::keys::{log, queue, queue_tag};
use crate::rows;

/// Live tasks that are read at a time.
const PAGE: usize = 1_000;
/// Pages that may wait for the reader of the snapshot.
const PAGES: usize = 4;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn name<T>(bytes: &[u8], new: impl Fn(&str) -> Result<T, windlass_core::names::BadName>) -> Result<T, Damaged> {
    new(std::str::from_utf8(bytes).map_err(Damaged::new)?).map_err(Damaged::new)
}

impl Inner {
    pub(crate) async fn load(self: &Arc<Self>) -> Result<Snapshot, BackendError> {
        self.forget();
        let last = self.last_entry().await?;
        if self.reads.is_cluster() {
            self.settle().await?;
        }
        let version = last.as_ref().map_or(0, |last| last.entry.no);
        if let Some(last) = &last {
            self.known.note(version, last.fingerprint);
        }
        let settings = self.settings().await?;
        let claims = self.documents(log::CLAIMS).await?;
        let claims: Vec<ClaimRow> = claims.iter().map(|(_, row)| rows::decode(row)).collect::<Result<_, _>>()?;
        let workers = self.documents(log::WORKERS).await?;
        let breakers = self.documents(log::BREAKERS).await?;
        let (timeouts, cancelled) = self.running(&claims, &settings).await?;
        let found = Recovered {
            secret: self.secret,
            timeouts,
            cancelled,
            claims,
            workers: workers.iter().map(|(_, row)| rows::decode(row)).collect::<Result<_, _>>()?,
            breakers: breakers
                .iter()
                .map(|(scope, record)| Ok((rows::decode(scope)?, rows::decode(record)?)))
                .collect::<Result<_, Damaged>>()?,
            settings,
            dead_letters: self.dead_letters().await?,
            ..Recovered::default()
        };
        let queues = self.places.queues(&self.reads, &self.keys).await?;
        let (sender, live) = mpsc::channel(PAGES);
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            for (_, queue) in queues {
                if let Err(error) = inner.live_tasks(&queue, &sender).await {
                    // Whoever has dropped the snapshot does not need to know.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        });
        Ok(Snapshot { version, last: last.map(|last| last.entry), found, live })
    }

    async fn documents(&self, key: &str) -> Result<Pairs, Failure> {
        self.reads.command(redis::cmd("HGETALL").arg(self.keys.log(key))).await
    }

    async fn settings(&self) -> Result<Settings, BackendError> {
        let mut settings = Settings::default();
        for (queue, document) in self.documents(log::QUEUES).await? {
            settings.queues.insert(name(&queue, QueueName::new)?, rows::decode(&document)?);
        }
        for (task_type, document) in self.documents(log::TYPES).await? {
            settings.types.insert(name(&task_type, TaskType::new)?, rows::decode(&document)?);
        }
        let documents = self.documents(log::DOCUMENTS).await?;
        if let Some((_, rules)) = documents.iter().find(|(name, _)| name == ERROR_RULES.as_bytes()) {
            let unusable = |error| BackendError::new(format!("the error rules cannot be used: {error}"));
            settings.error_rules = Arc::new(RuleBook::compile(rows::decode(rules)?).map_err(unusable)?);
        }
        Ok(settings)
    }

    /// How long the attempts under these claims may take, and which of their tasks were cancelled.
    async fn running(
        &self,
        claims: &[ClaimRow],
        settings: &Settings,
    ) -> Result<(BTreeMap<u64, std::time::Duration>, BTreeMap<u64, CancelledRow>), BackendError> {
        let (mut timeouts, mut cancelled) = (BTreeMap::new(), BTreeMap::new());
        let tasks = claims.iter().flat_map(|claim| &claim.entries).filter(|entry| entry.key != 0);
        let tasks: HashSet<TaskKey> = tasks.map(|entry| TaskKey(entry.key)).collect();
        for (task, record) in self.records(tasks.into_iter(), false).await? {
            match &record.ended {
                Some(ended) if ended.status == Status::Cancelled => {
                    let row = CancelledRow {
                        created_at: record.row.created_at,
                        version: ended.version,
                        lane: LaneKey::of(&record.row.spec, settings),
                        flow_key: record.row.spec.flow_key,
                    };
                    cancelled.insert(task.0, row);
                }
                Some(_) => {}
                None => {
                    let growths = record.overlay.map_or(0, |overlay| overlay.timeouts);
                    let policy = &record.row.spec.policy;
                    timeouts.insert(task.0, grown_timeout(policy.timeout, policy.retry.timeout_growth, growths.into()));
                }
            }
        }
        Ok((timeouts, cancelled))
    }

    /// How many dead letters there are of each queue and type.
    async fn dead_letters(&self) -> Result<BTreeMap<(QueueName, TaskType), u64>, BackendError> {
        let mut counts = BTreeMap::new();
        let dead: Vec<u64> =
            self.reads.command(redis::cmd("ZRANGE").arg(self.keys.log(log::DEAD)).arg(0).arg(-1)).await?;
        for dead in dead.chunks(PAGE) {
            let places = self.places.find(&self.reads, &self.keys, dead.iter().map(|key| TaskKey(*key))).await?;
            let mut by_queue: BTreeMap<QueueName, Vec<u64>> = BTreeMap::new();
            for (task, queue) in places {
                by_queue.entry(queue).or_default().push(task.0);
            }
            for (queue, tasks) in by_queue {
                let mut get = redis::cmd("HMGET");
                get.arg(self.keys.of(&queue_tag(&queue), queue::ENDED)).arg(&tasks);
                let found: Vec<Option<Vec<u8>>> = self.reads.command(&get).await?;
                for value in found.into_iter().flatten() {
                    let (ended, row) = rows::unpack_ended(&value)?;
                    if ended.status == Status::DeadLetter {
                        *counts.entry((queue.clone(), rows::task_type(row)?)).or_default() += 1;
                    }
                }
            }
        }
        Ok(counts)
    }

    async fn live_tasks(
        &self,
        queue: &QueueName,
        sender: &mpsc::Sender<Result<Vec<LiveRow>, BackendError>>,
    ) -> Result<(), BackendError> {
        let tag = queue_tag(queue);
        let (live, overlays) = (self.keys.of(&tag, queue::LIVE), self.keys.of(&tag, queue::OVERLAYS));
        // A hash that grows while it is scanned may give a task twice.
        let mut seen: HashSet<u64> = HashSet::new();
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&live).arg(cursor).arg("COUNT").arg(PAGE);
            let (next, found): (u64, Vec<(u64, Vec<u8>)>) = self.reads.command(&scan).await?;
            let found: Vec<(u64, Vec<u8>)> = found.into_iter().filter(|(task, _)| seen.insert(*task)).collect();
            if !found.is_empty() {
                let tasks: Vec<u64> = found.iter().map(|(task, _)| *task).collect();
                let stand: Vec<Option<Vec<u8>>> =
                    self.reads.command(redis::cmd("HMGET").arg(&overlays).arg(&tasks)).await?;
                let mut rows = Vec::with_capacity(found.len());
                for ((task, row), overlay) in found.into_iter().zip(stand) {
                    let overlay = overlay.map(|bytes| rows::decode(&bytes)).transpose()?;
                    rows.push(rows::unpack_live(TaskKey(task), queue, &row, overlay)?);
                }
                if sender.send(Ok(rows)).await.is_err() {
                    return Ok(());
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}
