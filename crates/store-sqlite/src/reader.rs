//! Short reads beside the writer, on a few threads with connections of their own.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_trait::async_trait;
use rusqlite::{Connection, params, params_from_iter};
use tokio::sync::oneshot;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskKey;
use windlass_core::limits;
use windlass_core::status::Status;
use windlass_core::store::StoreError;
use windlass_core::time::Timestamp;
use windlass_ledger::archive::{Archive, Cold};

use crate::error::{OpenError, in_read};
use crate::journal::PackedEvent;
use crate::rows;
use crate::schema::open_for_reading;

/// Enough to keep a slow list from holding up a quick look; more would only fight for the cores.
const THREADS: usize = 2;

type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The reading side of the file.
pub(crate) struct Readers {
    file: PathBuf,
    reads: Mutex<Option<Sender<Read>>>,
}

impl Readers {
    pub(crate) fn open(file: &Path) -> Result<Self, OpenError> {
        let (sender, receiver) = channel::<Read>();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..THREADS {
            let connection = open_for_reading(file)?;
            let receiver = Arc::clone(&receiver);
            thread::Builder::new()
                .name(format!("windlass-reader-{number}"))
                .spawn(move || serve(&connection, &receiver))
                .map_err(|error| OpenError::Folder(file.to_owned(), error))?;
        }
        Ok(Self { file: file.to_owned(), reads: Mutex::new(Some(sender)) })
    }

    /// Lets the threads end when they have done what they were given.
    pub(crate) fn close(&self) {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job: Read = Box::new(move |connection| {
            // Whoever is gone does not need to know.
            let _ = reply.send(read(connection));
        });
        let closed = || StoreError::not_applied("the store is closed");
        {
            let reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
            reads.as_ref().ok_or_else(closed)?.send(job).map_err(|_| closed())?;
        }
        answer.await.map_err(|_| closed())?.map_err(|error| in_read(&error))
    }
}

fn serve(connection: &Connection, reads: &Mutex<Receiver<Read>>) {
    loop {
        let read = reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match read {
            Ok(read) => read(connection),
            Err(_) => return,
        }
    }
}

#[async_trait]
impl Archive for Readers {
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError> {
        self.read(move |connection| {
            // One snapshot for all rows of a task.
            let snapshot = connection.unchecked_transaction()?;
            keys.into_iter().map(|key| cold(&snapshot, key)).collect()
        })
        .await
    }

    async fn candidates(
        &self,
        below: TaskKey,
        filter: TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError> {
        self.read(move |connection| candidates(connection, below, &filter, limit)).await
    }

    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached("SELECT at, events FROM events WHERE no = ?1")?;
            let mut found = Vec::new();
            for no in nos {
                let mut rows = statement.query(params![no as i64])?;
                if let Some(row) = rows.next()? {
                    found.extend(unpack(rows::time(row, 0)?, row.get_ref(1)?.as_str()?)?);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn events_from(&self, from: u64, limit: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError> {
        self.read(move |connection| {
            let sql = "SELECT no, at, events FROM events WHERE no >= ?1 ORDER BY no LIMIT ?2";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map(params![from as i64, limit as i64 + 1], |row| {
                let events = unpack(rows::time(row, 1)?, row.get_ref(2)?.as_str()?)?;
                Ok((row.get::<_, i64>(0)? as u64, events))
            })?;
            rows.collect()
        })
        .await
    }

    async fn bytes(&self) -> Option<u64> {
        let mut wal = self.file.clone().into_os_string();
        wal.push("-wal");
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Some(size(&self.file) + size(Path::new(&wal)))
    }
}

fn cold(connection: &Connection, key: TaskKey) -> rusqlite::Result<Option<Cold>> {
    let Some(row) = rows::task(connection, key)? else { return Ok(None) };
    Ok(Some(Cold {
        row,
        overlay: rows::overlay(connection, key)?,
        ended: rows::ended(connection, key)?,
        progress: rows::progress(connection, key)?,
        failed_attempts: rows::attempts(connection, key)?,
    }))
}

fn unpack(at: Timestamp, text: &str) -> rusqlite::Result<Vec<Event>> {
    let packed: Vec<PackedEvent<'_>> = rows::decode(text)?;
    let unpacked = packed.into_iter().map(|(task_id, version, actor, change)| Event {
        task_id,
        version,
        at,
        actor,
        change: change.into_owned(),
    });
    Ok(unpacked.collect())
}

/// Keys that may match, by what stands in columns; the rest is looked at by the filter itself.
fn candidates(
    connection: &Connection,
    below: TaskKey,
    filter: &TaskFilter,
    limit: usize,
) -> rusqlite::Result<(Vec<TaskKey>, Option<TaskKey>)> {
    let below = below.0.min(i64::MAX as u64) as i64;
    let dead_only = filter.statuses == [Status::DeadLetter];
    let ended_only = !filter.statuses.is_empty() && filter.statuses.iter().all(|status| status.is_ended());
    let table = match (dead_only, ended_only) {
        (true, _) => "ended AS d INDEXED BY dead_letters JOIN tasks AS t ON t.key = d.key AND d.status = 7",
        (false, true) => "ended AS d JOIN tasks AS t ON t.key = d.key",
        (false, false) => "tasks AS t",
    };
    let column = if ended_only { "d.key" } else { "t.key" };
    let floor_table = match (dead_only, ended_only) {
        (true, _) => "ended INDEXED BY dead_letters WHERE status = 7 AND",
        (false, true) => "ended WHERE",
        (false, false) => "tasks WHERE",
    };
    // The row that a bounded look ends before.
    let floor: Option<i64> = {
        let sql = format!("SELECT key FROM {floor_table} key < ?1 ORDER BY key DESC LIMIT 1 OFFSET ?2");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![below, limits::SCANNED_ROWS as i64])?;
        rows.next()?.map(|row| row.get(0)).transpose()?
    };
    let mut sql = format!("SELECT {column} FROM {table} WHERE {column} < ?1 AND {column} > ?2");
    let mut values: Vec<rusqlite::types::Value> = vec![below.into(), floor.unwrap_or(-1).into()];
    let mut also = |condition: &str, value: rusqlite::types::Value| {
        values.push(value);
        sql.push_str(&format!(" AND {condition} ?{}", values.len()));
    };
    if let Some(queue) = &filter.queue {
        also("t.queue =", queue.as_str().to_owned().into());
    }
    if let Some(task_type) = &filter.task_type {
        also("t.task_type =", task_type.as_str().to_owned().into());
    }
    if let Some(priority) = filter.priority {
        also("t.priority =", i64::from(priority.level()).into());
    }
    if let Some(tenant) = &filter.tenant {
        also("t.tenant =", tenant.as_str().to_owned().into());
    }
    if let Some(after) = filter.created_after {
        also("t.created_at >=", after.as_micros().into());
    }
    if let Some(before) = filter.created_before {
        also("t.created_at <", before.as_micros().into());
    }
    if ended_only && !dead_only {
        let codes: Vec<String> = filter.statuses.iter().map(|status| status.code().to_string()).collect();
        sql.push_str(&format!(" AND d.status IN ({})", codes.join(", ")));
    }
    sql.push_str(&format!(" ORDER BY {column} DESC LIMIT {limit}"));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| rows::key(row, 0))?;
    let keys: Vec<TaskKey> = rows.collect::<rusqlite::Result<_>>()?;
    let rest = if keys.len() == limit { keys.last().copied() } else { floor.map(|floor| TaskKey(floor as u64 + 1)) };
    Ok((keys, rest))
}
