//! The contract of a shared database, on PostgreSQL.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use windlass_cluster::backend::{
    Backend, BackendError, Changes, CommitError, Entry, Found, NodeId, Snapshot, Tail, Wants,
};
use windlass_core::ids::TaskKey;
use windlass_core::json::digest;
use windlass_core::keys::UniqueKey;
use windlass_core::status::Status;
use windlass_core::store::InboxItem;
use windlass_core::time::Timestamp;
use windlass_ledger::archive::Archive;
use windlass_ledger::days::{DayState, DayStep};
use windlass_ledger::journal::{KeyRow, KeyScope};

use crate::archive::PostgresArchive;
use crate::batch::Batch;
use crate::commit::{Frame, commit};
use crate::days::Walks;
use crate::error::{OpenError, failed};
use crate::listen::{Hinting, Hints, listen};
use crate::load::{entry, load};
use crate::migrate::{in_schema, migrate};
use crate::options::{PostgresOptions, Target};
use crate::partitions::last_day_over;
use crate::pieces::Pieces;
use crate::pool::{Connection, Connector, FIXED_PLANS_HERE, For, Param, Pool};
use crate::prune::PruneFrom;
use crate::read::{Query, query_all, read};
use crate::replica::Replica;
use crate::rows::{self, Rows, get};
use crate::sql::Statements;

/// The oldest server that has all we use.
const SERVER_VERSION: i32 = 130_000;
/// Beyond what a statement may take by the server's clock: for the way there and back.
const GRACE: Duration = Duration::from_secs(1);
/// Connections of whoever commits: one holds the turn while another reads.
const WRITERS: usize = 2;
/// Looking for expired tasks begins this long before where the last look ended: clocks of nodes differ a little.
const LOOK_BACK_US: i64 = 3600 * 1_000_000;

/// The database, as a node sees it.
pub struct PostgresBackend {
    pub(crate) schema: String,
    pub(crate) secret: [u8; 16],
    pub(crate) sql: Arc<Statements>,
    pieces: Pieces,
    /// Of whoever decides and commits, and of nobody else.
    writers: Pool,
    pub(crate) readers: Arc<Pool>,
    /// Where what nobody waits for is done.
    threads: Handle,
    archive: Arc<PostgresArchive>,
    /// Makes the connections that read everything at start.
    loader: Connector,
    /// What begins a transaction, and what begins one that waits for its turn.
    begin: String,
    begin_turn: String,
    /// The connection whose turn it is.
    turn: Mutex<Option<Connection>>,
    hints: Arc<Hints>,
    hinting: Arc<Hinting>,
    listener: Option<AbortHandle>,
    /// Days that have a partition.
    days: Mutex<HashSet<i32>>,
    pub(crate) prune_from: PruneFrom,
    pub(crate) walks: Walks,
    poll_interval: Duration,
    slow_poll_interval: Duration,
    answer_in: Duration,
}

impl PostgresBackend {
    /// Connects, brings the schema up to date if that is asked for, and begins to listen for hints.
    pub async fn connect(options: PostgresOptions) -> Result<Self, OpenError> {
        options.check_schema()?;
        let target = Target::parse(&options.url)?;
        let replica = options.read_url.as_deref().map(Target::parse).transpose()?;
        let listening = match &options.listen_url {
            Some(url) => Some(Target::parse(url)?),
            None => Some(target.clone()).filter(|target| !target.pooled),
        };
        let answer_in = options.statement_timeout + GRACE;
        let schema = options.schema.clone();
        let connector = || Connector::new(target.clone(), &options, For::Work);
        let writers = Pool::new(connector()?, WRITERS, answer_in);
        let readers = Pool::new(connector()?.for_all(), options.readers.max(1), answer_in);
        let looks = |target: Target| -> Result<Pool, OpenError> {
            let connector = Connector::new(target, &options, For::Looks)?.for_all();
            Ok(Pool::new(connector, options.readers.max(1), answer_in))
        };
        let archive = looks(target.clone())?;
        let replica = replica.map(looks).transpose()?.map(|pool| Replica::new(pool, &schema, answer_in));

        let connection = readers.get().await?;
        check_server(&connection, readers.name()).await?;
        migrate(&connection, readers.name(), &options).await?;
        check_rights(&connection, readers.name(), &schema).await?;
        let secret = secret(&connection, readers.name(), &schema).await?;
        connection.give_back();

        let mut own = [0; 8];
        getrandom::fill(&mut own).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
        let hints = Hints::new(u64::from_le_bytes(own));
        let listener = match listening.filter(|_| options.listen) {
            Some(target) => {
                let connector = Connector::new(target, &options, For::Work)?;
                Some(tokio::spawn(listen(connector, schema.clone(), Arc::clone(&hints))).abort_handle())
            }
            None => None,
        };
        let (begin, begin_turn) = begins(&options, writers.connector().is_pooled());
        Ok(Self {
            secret,
            sql: Arc::new(Statements::new(&schema)),
            loader: Connector::new(target, &options, For::Looks)?,
            pieces: Pieces::new(&schema),
            writers,
            readers: Arc::new(readers),
            archive: Arc::new(PostgresArchive::new(archive, replica, schema.clone(), answer_in)),
            schema,
            threads: Handle::current(),
            begin,
            begin_turn,
            turn: Mutex::default(),
            hints,
            hinting: Arc::default(),
            listener,
            days: Mutex::default(),
            prune_from: PruneFrom::default(),
            walks: Walks::default(),
            poll_interval: options.poll_interval,
            slow_poll_interval: options.slow_poll_interval,
            answer_in,
        })
    }

    /// The reads that lists, history and events are made of.
    pub fn archive(&self) -> Arc<PostgresArchive> {
        Arc::clone(&self.archive)
    }

    /// Whether hints of other nodes arrive at present.
    pub fn is_listening(&self) -> bool {
        self.hints.is_listening()
    }

    fn no_answer(&self) -> BackendError {
        BackendError::new(format!("{}: no answer in time", self.readers.name()))
    }

    /// Runs one query on a connection for reads.
    pub(crate) async fn one(&self, query: Query<'_>) -> Result<Vec<Row>, BackendError> {
        let connection = self.readers.get().await?;
        let answers = timeout(self.answer_in, query_all(&connection, self.readers.name(), &[query])).await;
        let mut answers = answers.map_err(|_| self.no_answer())??;
        connection.give_back();
        Ok(answers.pop().unwrap_or_default())
    }

    /// Sees to it that tasks that end can be put where they belong.
    async fn make_days(&self, days: impl IntoIterator<Item = i32>) -> Result<(), BackendError> {
        for day in days {
            if !self.lock_days().contains(&day) {
                self.one((&self.sql.make_partition, vec![(&day, Type::INT4)])).await?;
                self.lock_days().insert(day);
            }
        }
        Ok(())
    }

    fn lock_days(&self) -> std::sync::MutexGuard<'_, HashSet<i32>> {
        self.days.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The partition of a day is gone.
    pub(crate) fn forget_day(&self, day: i32) {
        self.lock_days().remove(&day);
    }

    fn take_turn(&self) -> Option<Connection> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn try_commit(&self, entry: &Entry, batch: &Batch<'_>) -> Result<(), CommitError> {
        // A turn that took too long has ended by itself.
        let held = self.take_turn().filter(|connection| !connection.is_closed());
        let (connection, begin) = if let Some(connection) = held {
            (connection, None)
        } else {
            let kept = self.writers.get().await.map_err(CommitError::Refused)?.keep();
            let closed = || CommitError::Refused(BackendError::new("the store is closed"));
            (kept.ok_or_else(closed)?, Some(self.begin.as_str()))
        };
        let hint = self.hinting.is_due().then(|| (self.schema.as_str(), self.hints.message(entry.no)));
        let hinted = hint.is_some();
        let is_plain = begin.is_some() && !self.writers.connector().is_pooled();
        let frame = Frame { begin, is_plain, hint, turn: turn_key(&self.schema), server: self.writers.name() };
        let done = timeout(self.answer_in, commit(&connection, &self.sql, &self.pieces, frame, entry, batch)).await;
        let done = done.unwrap_or_else(|_| Err(CommitError::Unknown(self.no_answer())));
        match &done {
            Ok(()) if hinted => self.hinting.told(entry.no),
            Ok(()) => self.hint_later(entry.no),
            Err(_) => {}
        }
        match &done {
            // What failed was rolled back by the commit behind it: nothing is left under way.
            Ok(()) | Err(CommitError::Behind | CommitError::Refused(_)) => self.writers.put_back(connection),
            Err(CommitError::Unknown(_) | CommitError::Unsafe(_)) => drop(connection),
        }
        done
    }

    /// A hint follows, so that the last commit of a burst is heard of as well.
    fn hint_later(&self, no: u64) {
        if !self.hinting.untold(no) {
            return;
        }
        let (hinting, hints) = (Arc::clone(&self.hinting), Arc::clone(&self.hints));
        let (pool, sql, channel) = (Arc::clone(&self.readers), Arc::clone(&self.sql), self.schema.clone());
        let answer_in = self.answer_in;
        self.threads.spawn(async move {
            let Some(no) = hinting.trailing().await else { return };
            let message = hints.message(no);
            let Ok(connection) = pool.get().await else { return };
            let params: Vec<Param<'_>> = vec![(&channel, Type::TEXT), (&message, Type::TEXT)];
            let told = timeout(answer_in, query_all(&connection, pool.name(), &[(&sql.notify, params)])).await;
            // Only a hint: whoever misses it looks by themselves soon.
            if matches!(told, Ok(Ok(_))) {
                hinting.told(no);
                connection.give_back();
            }
        });
    }
}

/// The turn is a lock that those who do not wait for theirs share: they do not hold each other up, and whoever has the
/// turn holds up all.
fn turn_key(schema: &str) -> i64 {
    digest(format!("{schema}:turn").as_bytes()) as i64
}

/// What begins a transaction, and what begins one that waits for its turn.
fn begins(options: &PostgresOptions, pooled: bool) -> (String, String) {
    let mut begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE".to_owned();
    if pooled {
        let (statement, lock) = (options.statement_timeout.as_millis(), options.lock_timeout.as_millis());
        begin.push_str(&format!(
            "; SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; \
             SET LOCAL idle_in_transaction_session_timeout = {lock}; SET LOCAL synchronous_commit = on; \
             {FIXED_PLANS_HERE}"
        ));
    }
    let begin_turn = format!("{begin}; SELECT pg_advisory_xact_lock({})", turn_key(&options.schema));
    (begin, begin_turn)
}

async fn check_server(connection: &Connection, server: &str) -> Result<(), OpenError> {
    let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
        current_setting('fsync') = 'on'";
    let rows = connection.client().query_typed(sql, &[]).await;
    let rows = rows.map_err(|error| OpenError::Database(failed(server, &error)))?;
    let Some(row) = rows.first() else { return Ok(()) };
    let version: i32 = get(row, 0)?;
    if version < SERVER_VERSION {
        let reason = format!("{server}: the server is PostgreSQL {}; Windlass needs 13 or later", version / 10_000);
        return Err(BackendError::new(reason).into());
    }
    let encoding: String = get(row, 1)?;
    if encoding != "UTF8" {
        return Err(OpenError::Encoding(encoding));
    }
    if !get::<bool>(row, 2)? {
        tracing::warn!(server, "the server runs with fsync = off: what was acknowledged can be lost");
    }
    Ok(())
}

/// A role that does not own the schema may lack rights to what an update added. Better told now than by the first task.
async fn check_rights(connection: &Connection, server: &str, schema: &str) -> Result<(), OpenError> {
    // Partitions are reached through their table.
    let sql = in_schema(
        "SELECT current_user::text, string_agg(name, ', ') FROM (
            SELECT 'table ' || relname AS name FROM pg_class
            WHERE relnamespace = ':name'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND NOT (
                has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
                AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
            UNION ALL
            SELECT 'function ' || proname FROM pg_proc
            WHERE pronamespace = ':name'::regnamespace AND NOT has_function_privilege(oid, 'EXECUTE')
            AND proname IN ('make_ended_partition', 'drop_ended_partition')
        ) lacking",
        schema,
    );
    let rows = connection.client().query_typed(&sql, &[]).await;
    let rows = rows.map_err(|error| OpenError::Database(failed(server, &error)))?;
    let Some(row) = rows.first() else { return Ok(()) };
    match get::<Option<String>>(row, 1)? {
        None => Ok(()),
        Some(what) => Err(OpenError::Rights { role: get(row, 0)?, schema: schema.to_owned(), what }),
    }
}

/// The secret of ids and tokens, made when the schema is.
async fn secret(connection: &Connection, server: &str, schema: &str) -> Result<[u8; 16], OpenError> {
    let fail = |error: tokio_postgres::Error| OpenError::Database(failed(server, &error));
    let stored = format!("SELECT value FROM \"{schema}\".secrets WHERE name = 'ids'");
    let mut rows = connection.client().query_typed(&stored, &[]).await.map_err(fail)?;
    if rows.is_empty() {
        let mut fresh = [0u8; 16];
        getrandom::fill(&mut fresh).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
        let sql =
            format!("INSERT INTO \"{schema}\".secrets (name, value) VALUES ('ids', $1) ON CONFLICT (name) DO NOTHING");
        connection.client().execute_typed(&sql, &[(&fresh.as_slice(), Type::BYTEA)]).await.map_err(fail)?;
        // Another node may have been first.
        rows = connection.client().query_typed(&stored, &[]).await.map_err(fail)?;
    }
    let row = rows.first().ok_or_else(|| OpenError::Damaged("the secret of ids is gone".into()))?;
    let value: &[u8] = get(row, 0)?;
    value.try_into().map_err(|_| OpenError::Damaged("the secret of ids has a wrong length".into()))
}

/// What follows the entry `after`, which comes first in the rows if it is there.
fn tail(after: u64, rows: &[Row]) -> Result<Tail, BackendError> {
    let known = usize::from(after > 0);
    if known == 1 && rows.first().map(|row| rows::number(row, 0)).transpose()? != Some(after) {
        return Ok(Tail::Gone);
    }
    let entries: Vec<Entry> = rows.iter().skip(known).map(entry).collect::<Rows<_>>()?;
    let in_order = entries.iter().zip(after + 1..).all(|(entry, no)| entry.no == no);
    Ok(if in_order { Tail::Entries(entries) } else { Tail::Gone })
}

/// As many rows as it takes to see `limit` entries after the one that is known.
fn tail_rows(after: u64, limit: usize) -> i64 {
    (limit.min(1_000_000) + usize::from(after > 0)) as i64
}

#[async_trait]
impl Backend for PostgresBackend {
    fn secret(&self) -> [u8; 16] {
        self.secret
    }

    async fn time(&self) -> Result<Timestamp, BackendError> {
        let rows = self.one((&self.sql.time, Vec::new())).await?;
        rows.first().map_or_else(|| Err(self.no_answer()), |row| rows::time(row, 0))
    }

    async fn load(&self) -> Result<Snapshot, BackendError> {
        self.prune_from.expired.store(0, Ordering::Relaxed);
        self.walks.forget();
        self.hints.forget();
        load(&self.loader, &self.schema, self.secret, self.answer_in).await
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        let (no, count) = (after as i64, tail_rows(after, limit));
        tail(after, &self.one((&self.sql.tail, vec![(&no, Type::INT8), (&count, Type::INT8)])).await?)
    }

    async fn grown(&self, after: u64) {
        let interval = if self.hints.is_listening() { self.slow_poll_interval } else { self.poll_interval };
        // Either way somebody looks.
        let _ = timeout(interval, self.hints.heard(after)).await;
    }

    async fn turn(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        self.pass().await;
        let lease = self.writers.get().await?;
        let (no, count) = (after as i64, tail_rows(after, limit));
        let params: Vec<Param<'_>> = vec![(&no, Type::INT8), (&count, Type::INT8)];
        let taken = async {
            connection_prepared(&lease, &self.sql, &params).await?;
            // Sent together: the look at the log comes after the lock, in a snapshot of its own.
            let (begun, rows) =
                futures_util::future::join(lease.batch(&self.begin_turn), lease.query(&self.sql.tail, &params)).await;
            begun?;
            rows
        };
        let taken = timeout(self.answer_in, taken).await.map_err(|_| self.no_answer())?;
        let rows = taken.map_err(|error| failed(self.writers.name(), &error))?;
        let found = tail(after, &rows)?;
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = lease.keep();
        Ok(found)
    }

    async fn pass(&self) {
        let Some(connection) = self.take_turn() else { return };
        // If it does not work, the connection goes and the turn with it.
        if matches!(timeout(self.answer_in, connection.batch("ROLLBACK")).await, Ok(Ok(()))) {
            self.writers.put_back(connection);
        }
    }

    fn refuses_known_keys(&self) -> bool {
        true
    }

    async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError> {
        let batch = match Batch::new(changes) {
            Ok(batch) => batch,
            Err(error) => {
                self.pass().await;
                return Err(CommitError::Refused(error));
            }
        };
        if let Err(error) = self.make_days(batch.days()).await {
            self.pass().await;
            return Err(CommitError::Refused(error));
        }
        let done = self.try_commit(entry, &batch).await;
        if let Err(CommitError::Refused(error)) = &done
            && error.reason.contains(SqlState::CHECK_VIOLATION.code())
        {
            // A partition that we know of was dropped; the next try makes it anew.
            self.lock_days().clear();
        }
        done
    }

    async fn read(&self, wants: &Wants, _: u64) -> Result<Found, BackendError> {
        if wants.is_empty() {
            return Ok(Found::default());
        }
        let connection = self.writers.get().await?;
        let found = timeout(self.answer_in, read(&connection, self.writers.name(), &self.sql, wants)).await;
        let found = found.map_err(|_| self.no_answer())??;
        connection.give_back();
        Ok(found)
    }

    async fn day_step(&self, now: Timestamp) -> Result<DayStep, BackendError> {
        self.next_day_step(now).await
    }

    async fn day(&self, no: i32, _: u64) -> Result<DayState, BackendError> {
        self.day_state(no).await
    }

    async fn expired_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<(TaskKey, Status)>, BackendError> {
        let last_over = last_day_over(now);
        let position: &AtomicI64 = &self.prune_from.expired;
        let (from, now, count) = (position.load(Ordering::Relaxed), now.as_micros(), limit as i64);
        let params: Vec<Param<'_>> =
            vec![(&from, Type::INT8), (&now, Type::INT8), (&count, Type::INT8), (&last_over, Type::INT4)];
        let rows = self.one((&self.sql.expired_tasks, params)).await?;
        if rows.is_empty() {
            // What was deleted is not walked over again while a long transaction elsewhere keeps it from being cleared.
            position.store((now - LOOK_BACK_US).max(0), Ordering::Relaxed);
        }
        rows.iter().map(|row| Ok((rows::key(row, 0)?, rows::status(get(row, 1)?)?))).collect()
    }

    async fn expired_keys(&self, now: Timestamp, limit: usize) -> Result<Vec<(KeyScope, KeyRow)>, BackendError> {
        let (now, count) = (now.as_micros(), limit as i64);
        let rows = self.one((&self.sql.expired_keys, vec![(&now, Type::INT8), (&count, Type::INT8)])).await?;
        rows.iter().map(rows::idempotency).collect()
    }

    async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError> {
        let (now, count) = (now.as_micros(), limit as i64);
        let rows = self.one((&self.sql.expired_uniques, vec![(&now, Type::INT8), (&count, Type::INT8)])).await?;
        rows.iter().map(rows::unique_key).collect()
    }

    async fn prune_events(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError> {
        self.prune(before, limit).await
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, BackendError> {
        self.inbox_items(after, limit).await
    }

    async fn inbox_grown(&self) {
        let interval = if self.hints.is_listening() { self.slow_poll_interval } else { self.poll_interval };
        // Without a hint within this time it is time to look.
        let _ = timeout(interval, self.hints.inbox()).await;
    }

    async fn lead(&self, node: NodeId, span: Duration) -> Result<bool, BackendError> {
        let (node, span) = (node.0 as i64, span.as_micros() as i64);
        let rows = self.one((&self.sql.lead, vec![(&node, Type::INT8), (&span, Type::INT8)])).await?;
        Ok(!rows.is_empty())
    }

    async fn resign(&self, node: NodeId) {
        let node = node.0 as i64;
        if let Err(error) = self.one((&self.sql.resign, vec![(&node, Type::INT8)])).await {
            tracing::debug!(reason = error.reason, "could not resign; the time of leading will run out");
        }
    }

    async fn bytes(&self) -> Option<u64> {
        self.archive.bytes().await
    }

    async fn close(&self) {
        self.pass().await;
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        self.writers.close();
        self.readers.close();
        self.archive.close();
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

async fn connection_prepared(
    connection: &Connection,
    sql: &Statements,
    params: &[Param<'_>],
) -> Result<(), tokio_postgres::Error> {
    let types = params.iter().map(|(_, of)| of.clone()).collect();
    connection.prepare([(&sql.tail, types)].into_iter()).await
}
