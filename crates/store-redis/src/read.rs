//! Rows by their keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{FromRedisValue, Value, from_redis_value};
use windlass_cluster::backend::{BackendError, Found, TaskRecord, Wants};
use windlass_core::ids::TaskKey;
use windlass_core::json::Json;
use windlass_core::names::QueueName;
use windlass_core::task::{FailedAttempt, Progress};
use windlass_ledger::journal::{Ended, Overlay, TaskRow};

use crate::error::{Damaged, Failure};
use crate::inner::Inner;
use crate::keys::{log, queue, queue_tag, unique_tag};
use crate::rows;
use crate::sheet::text;

/// Tasks that one call of a script looks at. Others wait while it runs.
const TASKS_AT_ONCE: usize = 500;

/// Everything about a task.
pub(crate) struct Record {
    pub(crate) row: TaskRow,
    pub(crate) overlay: Option<Overlay>,
    pub(crate) ended: Option<Ended>,
    pub(crate) steps: BTreeMap<String, Json>,
    pub(crate) progress: Option<Progress>,
    pub(crate) attempts: Vec<FailedAttempt>,
}

type Bytes = Option<Vec<u8>>;

struct Page {
    applied: String,
    live: Vec<Bytes>,
    overlays: Vec<Bytes>,
    ended: Vec<Bytes>,
    progress: Vec<Bytes>,
    steps: Vec<Vec<Vec<u8>>>,
    attempts: Vec<Vec<Vec<u8>>>,
}

fn page(value: Value) -> Result<Page, Failure> {
    fn next<T: FromRedisValue>(items: &mut impl Iterator<Item = Value>) -> Result<T, Failure> {
        from_redis_value(items.next().unwrap_or_default()).map_err(|error| Failure::odd(error.to_string()))
    }
    let Value::Array(items) = value else { return Err(Failure::odd("rows were answered with something else")) };
    let items = &mut items.into_iter();
    Ok(Page {
        applied: next(items)?,
        live: next(items)?,
        overlays: next(items)?,
        ended: next(items)?,
        progress: next(items)?,
        steps: next(items)?,
        attempts: next(items)?,
    })
}

impl Page {
    fn record(&mut self, at: usize, queue: &QueueName) -> Result<Option<Record>, Damaged> {
        let take = |rows: &mut Vec<Bytes>| rows.get_mut(at).and_then(Option::take);
        let (row, ended) = match (take(&mut self.live), take(&mut self.ended)) {
            (Some(row), _) => (rows::unpack_task(queue, &row)?, None),
            (None, Some(value)) => {
                let (ended, row) = rows::unpack_ended(&value)?;
                (rows::unpack_task(queue, row)?, Some(ended))
            }
            (None, None) => return Ok(None),
        };
        let overlay = take(&mut self.overlays).map(|bytes| rows::decode(&bytes)).transpose()?;
        let progress = take(&mut self.progress).map(|bytes| rows::decode(&bytes)).transpose()?;
        let mut steps = BTreeMap::new();
        for pair in self.steps.get(at).into_iter().flat_map(|steps| steps.chunks_exact(2)) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(Damaged::new);
            steps.insert(text(&pair[0])?, Json::from_text(text(&pair[1])?).map_err(Damaged::new)?);
        }
        let attempts = self.attempts.get(at).into_iter().flatten().map(|bytes| rows::decode(bytes));
        let attempts = attempts.collect::<Result<_, _>>()?;
        Ok(Some(Record { row, overlay, ended, steps, progress, attempts }))
    }
}

impl Inner {
    /// Tasks that are there; with progress and attempts if they are read whole.
    pub(crate) async fn records(
        &self,
        tasks: impl Iterator<Item = TaskKey>,
        whole: bool,
    ) -> Result<Vec<(TaskKey, Record)>, BackendError> {
        let mut by_queue: BTreeMap<QueueName, Vec<TaskKey>> = BTreeMap::new();
        for (task, queue) in self.places.find(&self.reads, &self.keys, tasks).await? {
            by_queue.entry(queue).or_default().push(task);
        }
        let mut records = Vec::new();
        for (queue, mut tasks) in by_queue {
            tasks.sort_unstable();
            for tasks in tasks.chunks(TASKS_AT_ONCE) {
                let mut page = self.page(&queue, tasks, whole).await?;
                for (at, task) in tasks.iter().enumerate() {
                    if let Some(record) = page.record(at, &queue)? {
                        records.push((*task, record));
                    }
                }
            }
        }
        Ok(records)
    }

    async fn page(&self, queue: &QueueName, tasks: &[TaskKey], whole: bool) -> Result<Page, BackendError> {
        let tag = queue_tag(queue);
        let mut keys: Vec<String> = [queue::APPLIED, queue::LIVE, queue::OVERLAYS, queue::ENDED, queue::PROGRESS]
            .map(|name| self.keys.of(&tag, name))
            .to_vec();
        let mut args = vec![text(u8::from(whole))];
        for task in tasks {
            keys.extend([queue::STEPS, queue::ATTEMPTS].map(|name| self.keys.of_task(&tag, name, *task)));
            args.push(text(task.0));
        }
        self.fresh(&tag, || async {
            let page = page(self.reads.script(&self.scripts.read, &keys, &args).await?)?;
            Ok((page.applied.clone(), page))
        })
        .await
    }

    /// Reads in a tag that has everything that this node has followed. What is read comes with
    /// the last entry that was applied to the tag.
    pub(crate) async fn fresh<T, F: Future<Output = Result<(String, T), Failure>>>(
        &self,
        tag: &str,
        read: impl Fn() -> F,
    ) -> Result<T, BackendError> {
        if !self.reads.is_cluster() {
            return Ok(read().await?.1);
        }
        self.wait_for_own(tag).await;
        let (applied, found) = read().await?;
        if self.must_look_again(tag, &applied).await? {
            return Ok(read().await?.1);
        }
        Ok(found)
    }

    async fn fields(&self, tag: &str, key: &str, fields: &[Vec<u8>]) -> Result<Vec<Bytes>, BackendError> {
        self.fresh(tag, || async {
            let mut commands = redis::pipe();
            commands.cmd("GET").arg(self.keys.of(tag, queue::APPLIED));
            commands.cmd("HMGET").arg(self.keys.of(tag, key)).arg(fields);
            let (applied, found): (Option<String>, Vec<Bytes>) = self.reads.pipeline(&commands).await?;
            Ok((applied.unwrap_or_default(), found))
        })
        .await
    }

    pub(crate) async fn read(&self, wants: &Wants) -> Result<Found, BackendError> {
        let mut found = Found::default();
        if !wants.tasks.is_empty() {
            for (task, record) in self.records(wants.tasks.iter().copied(), false).await? {
                let Record { row, overlay, ended, steps, .. } = record;
                found.tasks.push((task, TaskRecord { row: Arc::new(row), overlay, ended, steps }));
            }
        }
        if !wants.claims.is_empty() {
            let mut get = redis::cmd("HMGET");
            get.arg(self.keys.log(log::CLAIMS)).arg(&wants.claims);
            let claims: Vec<Bytes> = self.reads.command(&get).await?;
            for claim in claims.into_iter().flatten() {
                found.claims.push(rows::decode(&claim)?);
            }
        }
        let mut by_tag: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for scope in &wants.idempotency {
            by_tag.entry(queue_tag(&scope.queue)).or_default().push(scope);
        }
        for (tag, scopes) in by_tag {
            let fields: Vec<Vec<u8>> = scopes.iter().map(|scope| rows::key_field(scope)).collect();
            for (scope, bytes) in scopes.into_iter().zip(self.fields(&tag, queue::KEYS, &fields).await?) {
                if let Some(bytes) = bytes {
                    found.idempotency.push((scope.clone(), rows::unpack_key(&bytes)?));
                }
            }
        }
        let mut by_tag: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for key in &wants.uniques {
            by_tag.entry(unique_tag(*key)).or_default().push(*key);
        }
        for (tag, uniques) in by_tag {
            let fields: Vec<Vec<u8>> = uniques.iter().map(|key| key.0.to_be_bytes().to_vec()).collect();
            for (key, bytes) in uniques.into_iter().zip(self.fields(&tag, queue::UNIQUES, &fields).await?) {
                if let Some(bytes) = bytes {
                    found.uniques.push((key, rows::unpack_unique(&bytes)?));
                }
            }
        }
        Ok(found)
    }
}
