//! What memory holds, read in one snapshot when a node starts or has fallen too far behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_cluster::backend::{BackendError, Entry, NodeId, Snapshot};
use windlass_core::error_rules::RuleBook;
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::retry::{RetryPolicy, grown_timeout};
use windlass_core::settings::Settings;
use windlass_ledger::journal::{CancelledRow, ClaimRow, LiveRow, Overlay, Recovered};

use crate::error::{damaged, failed};
use crate::migrate::in_schema;
use crate::pool::{Connection, Connector};
use crate::rows::{self, Names, Rows, get};

/// Live tasks that are handed over at a time: enough to be quick, little enough to be small.
const CHUNK: usize = 4_000;
/// Chunks on their way.
const CHUNKS: usize = 4;
/// A reader that has not taken a chunk by then is gone, or as good as.
const STALLED: Duration = Duration::from_secs(120);

/// One snapshot for everything, on a connection of its own: it may take a while.
pub(crate) async fn load(
    connector: &Connector,
    schema: &str,
    secret: [u8; 16],
    answer_in: Duration,
) -> Result<Snapshot, BackendError> {
    let server = connector.name().to_owned();
    let connection = connector.connect().await?;
    let reader = Reader { connection, schema: schema.to_owned(), server, answer_in };
    reader.begin().await?;
    let last = reader.last_entry().await?;
    let found = reader.found(secret).await?;
    let (sender, live) = mpsc::channel(CHUNKS);
    tokio::spawn(async move {
        if let Err(error) = reader.live(&sender).await {
            // Nobody waits any more: then nobody needs to know.
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(Snapshot { version: last.as_ref().map_or(0, |last| last.no), last, found, live })
}

struct Reader {
    connection: Connection,
    schema: String,
    server: String,
    answer_in: Duration,
}

impl Reader {
    async fn begin(&self) -> Result<(), BackendError> {
        // Bounded by the pace at which rows come, not by the time that all of them take.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0; \
            SET LOCAL idle_in_transaction_session_timeout = '2min'";
        self.within(self.connection.batch(begin)).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, BackendError> {
        match timeout(self.answer_in, work).await {
            Ok(done) => done.map_err(|error| failed(&self.server, &error)),
            Err(_) => Err(BackendError::new(format!("{}: no answer in time", self.server))),
        }
    }

    async fn query(&self, sql: &str, params: &[crate::pool::Param<'_>]) -> Result<Vec<Row>, BackendError> {
        let sql = in_schema(sql, &self.schema);
        match timeout(STALLED, self.connection.client().query_typed(&sql, params)).await {
            Ok(done) => done.map_err(|error| failed(&self.server, &error)),
            Err(_) => Err(BackendError::new(format!("{}: no answer in time", self.server))),
        }
    }

    async fn last_entry(&self) -> Result<Option<Entry>, BackendError> {
        let rows = self.query("SELECT no, node, redo FROM :schema.log ORDER BY no DESC LIMIT 1", &[]).await?;
        rows.first().map(entry).transpose()
    }

    /// Everything but the live tasks.
    async fn found(&self, secret: [u8; 16]) -> Result<Recovered, BackendError> {
        let claims = self.query("SELECT first, at, event_no, worker, entries FROM :schema.claims ORDER BY first", &[]);
        let claims: Vec<ClaimRow> = claims.await?.iter().map(rows::claim).collect::<Rows<_>>()?;
        let settings = self.settings().await?;
        let workers = self.query("SELECT worker FROM :schema.workers", &[]).await?;
        let breakers = self.query("SELECT scope, record FROM :schema.breakers", &[]).await?;
        let breaker = |row: &Row| Ok((rows::decode(get(row, 0)?)?, rows::decode(get(row, 1)?)?));
        let keys: Vec<i64> = claims
            .iter()
            .flat_map(|claim| &claim.entries)
            .map(|entry| entry.key as i64)
            .filter(|key| *key != 0)
            .collect();
        Ok(Recovered {
            secret,
            timeouts: self.timeouts(&keys).await?,
            cancelled: self.cancelled(&keys, &settings).await?,
            claims,
            workers: workers.iter().map(|row| rows::decode(get(row, 0)?)).collect::<Rows<_>>()?,
            breakers: breakers.iter().map(breaker).collect::<Rows<_>>()?,
            dead_letters: self.dead_letters().await?,
            settings,
            ..Recovered::default()
        })
    }

    /// How long the attempts that run may take.
    async fn timeouts(&self, keys: &[i64]) -> Result<BTreeMap<u64, Duration>, BackendError> {
        let sql = "SELECT l.key, l.timeout_us, l.retry, o.overlay FROM :schema.live l
            LEFT JOIN :schema.overlays o ON o.key = l.key WHERE l.key = ANY($1)";
        let mut timeouts = BTreeMap::new();
        for row in self.query(sql, &[(&keys, Type::INT8_ARRAY)]).await? {
            let growths = rows::optional::<Overlay>(&row, 3)?.map_or(0, |overlay| overlay.timeouts);
            let retry: RetryPolicy = rows::optional(&row, 2)?.unwrap_or_default();
            let own = Duration::from_micros(rows::number(&row, 1)?);
            timeouts.insert(rows::number(&row, 0)?, grown_timeout(own, retry.timeout_growth, growths.into()));
        }
        Ok(timeouts)
    }

    /// Tasks that were cancelled while they ran.
    async fn cancelled(&self, keys: &[i64], settings: &Settings) -> Result<BTreeMap<u64, CancelledRow>, BackendError> {
        let sql = "SELECT key, created_at, version, queue, task_type, capabilities, priority, tenant, flow_key
            FROM :schema.ended WHERE key = ANY($1) AND status = 6";
        let mut names = Names::default();
        let mut cancelled = BTreeMap::new();
        for row in self.query(sql, &[(&keys, Type::INT8_ARRAY)]).await? {
            let queue = names.queue(&row, 3)?;
            let tenant = names.tenant(&row, 7)?.filter(|_| settings.is_fair(&queue));
            let lane = LaneKey {
                queue,
                task_type: names.task_type(&row, 4)?,
                capabilities: names.capabilities(&row, 5)?,
                priority: rows::priority(&row, 6)?,
                tenant,
            };
            let task = CancelledRow {
                created_at: rows::time(&row, 1)?,
                version: get::<i32>(&row, 2)? as u32,
                lane,
                flow_key: rows::optional(&row, 8)?,
            };
            cancelled.insert(rows::number(&row, 0)?, task);
        }
        Ok(cancelled)
    }

    async fn settings(&self) -> Result<Settings, BackendError> {
        let mut settings = Settings::default();
        let mut names = Names::default();
        for row in self.query("SELECT queue, settings FROM :schema.queue_settings", &[]).await? {
            settings.queues.insert(names.queue(&row, 0)?, rows::decode(get(&row, 1)?)?);
        }
        for row in self.query("SELECT task_type, settings FROM :schema.type_settings", &[]).await? {
            settings.types.insert(names.task_type(&row, 0)?, rows::decode(get(&row, 1)?)?);
        }
        let rules = self.query("SELECT document FROM :schema.documents WHERE name = 'error_rules'", &[]).await?;
        if let Some(row) = rules.first() {
            let rules = RuleBook::compile(rows::decode(get(row, 0)?)?).map_err(|error| damaged("rule", error))?;
            settings.error_rules = Arc::new(rules);
        }
        Ok(settings)
    }

    async fn dead_letters(&self) -> Result<BTreeMap<(QueueName, TaskType), u64>, BackendError> {
        let sql = "SELECT queue, task_type, count(*) FROM :schema.ended WHERE drop_day = -1 GROUP BY queue, task_type";
        let mut names = Names::default();
        let rows = self.query(sql, &[]).await?;
        rows.iter().map(|row| Ok(((names.queue(row, 0)?, names.task_type(row, 1)?), rows::number(row, 2)?))).collect()
    }

    /// Sends the live tasks as they come.
    async fn live(&self, sender: &mpsc::Sender<Result<Vec<LiveRow>, BackendError>>) -> Result<(), BackendError> {
        let sql = "SELECT l.key, l.created_at, l.run_at, l.expires_at, l.priority, l.queue, l.task_type, l.tenant,
            l.capabilities, l.flow_key, l.unique_key IS NOT NULL, o.overlay
            FROM :schema.live l LEFT JOIN :schema.overlays o ON o.key = l.key";
        let mut stream = self.within(self.connection.stream(&in_schema(sql, &self.schema))).await?;
        let mut names = Names::default();
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            let next = timeout(self.answer_in, stream.next()).await;
            let next = next.map_err(|_| BackendError::new(format!("{}: no answer in time", self.server)))?;
            let ended = next.is_none();
            if let Some(row) = next {
                let row = row.map_err(|error| failed(&self.server, &error))?;
                chunk.push(live_row(&row, &mut names)?);
            }
            if chunk.len() == CHUNK || (ended && !chunk.is_empty()) {
                let full = std::mem::replace(&mut chunk, Vec::with_capacity(if ended { 0 } else { CHUNK }));
                if !matches!(timeout(STALLED, sender.send(Ok(full))).await, Ok(Ok(()))) {
                    return Ok(());
                }
            }
            if ended {
                break;
            }
        }
        self.within(self.connection.batch("COMMIT")).await
    }
}

fn live_row(row: &Row, names: &mut Names) -> Rows<LiveRow> {
    Ok(LiveRow {
        key: rows::key(row, 0)?,
        created_at: rows::time(row, 1)?,
        run_at: rows::time(row, 2)?,
        expires_at: rows::optional_time(row, 3)?,
        lane: LaneKey {
            priority: rows::priority(row, 4)?,
            queue: names.queue(row, 5)?,
            task_type: names.task_type(row, 6)?,
            tenant: names.tenant(row, 7)?,
            capabilities: names.capabilities(row, 8)?,
        },
        flow_key: rows::optional(row, 9)?,
        unique: get(row, 10)?,
        overlay: rows::optional(row, 11)?,
    })
}

/// An entry of the log.
pub(crate) fn entry(row: &Row) -> Rows<Entry> {
    Ok(Entry { no: rows::number(row, 0)?, node: NodeId(rows::number(row, 1)?), redo: get(row, 2)? })
}
