//! Reads for people: lists, history and events. What may be a little old goes to a replica, if there is one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use windlass_cluster::backend::BackendError;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskKey;
use windlass_core::limits;
use windlass_core::status::Status;
use windlass_core::store::StoreError;
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::time::Timestamp;
use windlass_ledger::archive::{Archive, Cold};

use crate::ask::Ask;
use crate::error::in_read;
use crate::migrate::in_schema;
use crate::pool::{Param, Pool};
use crate::read::Query;
use crate::replica::Replica;
use crate::rows::{self, Names, Rows, get};
use crate::sql::{NOT_GONE, Statements};

/// The reading side of the database.
pub struct PostgresArchive {
    /// The database itself.
    primary: Pool,
    /// Asked first for what may be a little old.
    replica: Option<Arc<Replica>>,
    sql: Statements,
    schema: String,
    answer_in: Duration,
}

impl PostgresArchive {
    pub(crate) fn new(primary: Pool, replica: Option<Arc<Replica>>, schema: String, answer_in: Duration) -> Self {
        Self { primary, replica, sql: Statements::new(&schema), schema, answer_in }
    }

    pub(crate) fn close(&self) {
        self.primary.close();
        if let Some(replica) = &self.replica {
            replica.close();
        }
    }

    /// From the replica while it answers, else from the database itself.
    async fn query(&self, ask: Ask<'_>) -> Result<Vec<Row>, BackendError> {
        let answer = match &self.replica {
            Some(replica) => replica.answer(&ask).await,
            None => None,
        };
        let answers = match answer {
            Some(answer) => answer,
            None => ask.of(&self.primary, self.answer_in).await,
        };
        Ok(answers?.pop().unwrap_or_default())
    }

    async fn one(&self, query: Query<'_>) -> Result<Vec<Row>, BackendError> {
        self.query(Ask::Known(&[query])).await
    }

    /// A query whose text depends on what is asked.
    async fn ad_hoc(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, BackendError> {
        self.query(Ask::AdHoc(sql, params)).await
    }

    /// Never from a replica. These rows are put together with what memory knows now: one that lags behind has no row for
    /// a task that was just submitted, and one that still lives for a task that has ended.
    async fn find_cold(&self, keys: &[TaskKey]) -> Result<Vec<Option<Cold>>, BackendError> {
        let numbers: Vec<i64> = keys.iter().map(|key| key.0 as i64).collect();
        let param = || -> Vec<Param<'_>> { vec![(&numbers, Type::INT8_ARRAY)] };
        let queries =
            [(&self.sql.read_tasks, param()), (&self.sql.read_progress, param()), (&self.sql.read_attempts, param())];
        let answers = Ask::Known(&queries).of(&self.primary, self.answer_in).await?;
        let [tasks, progress, attempts] = answers.as_slice() else { return Ok(Vec::new()) };
        let mut progress_of: HashMap<TaskKey, Progress> = HashMap::new();
        for row in progress {
            progress_of.insert(rows::key(row, 0)?, rows::decode(get(row, 1)?)?);
        }
        let mut attempts_of: HashMap<TaskKey, Vec<FailedAttempt>> = HashMap::new();
        for row in attempts {
            attempts_of.entry(rows::key(row, 0)?).or_default().push(rows::decode(get(row, 1)?)?);
        }
        let mut names = Names::default();
        let mut found: HashMap<TaskKey, Cold> = HashMap::new();
        for row in tasks {
            let key = rows::key(row, 0)?;
            let cold = Cold {
                row: rows::task(row, &mut names)?,
                overlay: rows::overlay(row)?,
                ended: rows::ended(row)?,
                progress: progress_of.remove(&key),
                failed_attempts: attempts_of.remove(&key).unwrap_or_default(),
            };
            found.insert(key, cold);
        }
        // The same key may be asked for twice.
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn find_candidates(
        &self,
        below: TaskKey,
        filter: &TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), BackendError> {
        let below = below.0.min(i64::MAX as u64) as i64;
        let look = Look::of(filter);
        let from = in_schema(&look.from(), &self.schema);
        let filters = Filters::of(filter);
        let (sql, values) = filters.sql(look, &from, &below, limit);
        let params: Vec<Param<'_>> = values.iter().map(|(value, of)| (*value, of.clone())).collect();
        let rows = self.ad_hoc(&in_schema(&sql, &self.schema), &params).await?;
        let keys: Vec<TaskKey> = rows.iter().map(|row| rows::key(row, 0)).collect::<Rows<_>>()?;
        if keys.len() == limit {
            let rest = keys.last().copied();
            return Ok((keys, rest));
        }
        // Fewer than were asked for: either that was all, or the look ended at its bound.
        let sql = format!("SELECT key FROM ({from}) t WHERE key < $1 ORDER BY key DESC LIMIT 1 OFFSET $2");
        let scanned = limits::SCANNED_ROWS as i64 - 1;
        let rows = self.ad_hoc(&sql, &[(&below, Type::INT8), (&scanned, Type::INT8)]).await?;
        let rest = rows.first().map(|row| rows::key(row, 0)).transpose()?;
        Ok((keys, rest))
    }
}

#[cfg(test)]
impl PostgresArchive {
    pub(crate) fn pool(&self) -> &Pool {
        &self.primary
    }

    /// What lists of every kind ask.
    pub(crate) fn looks<'a>(&self, below: &'a i64) -> Vec<(String, Vec<Param<'a>>)> {
        let looks = [Look::Dead, Look::Ended, Look::Live, Look::All];
        let sql = |look: Look| {
            let filter = TaskFilter { statuses: Vec::new(), ..TaskFilter::default() };
            let from = in_schema(&look.from(), &self.schema);
            let filters = Filters::of(&filter);
            // Without statuses, so that nothing but the bound is a parameter.
            let look = if look == Look::Ended { Look::All } else { look };
            (
                in_schema(&filters.sql(look, &from, below, 50).0, &self.schema),
                vec![(below as &(dyn ToSql + Sync), Type::INT8)],
            )
        };
        looks.into_iter().map(sql).collect()
    }
}

/// Which tables a list looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Dead,
    Ended,
    Live,
    All,
}

impl Look {
    fn of(filter: &TaskFilter) -> Self {
        let statuses = &filter.statuses;
        if statuses.as_slice() == [Status::DeadLetter] {
            Self::Dead
        } else if !statuses.is_empty() && statuses.iter().all(|status| status.is_ended()) {
            Self::Ended
        } else if !statuses.is_empty() && !statuses.iter().any(|status| status.is_ended()) {
            // A task that is just ending may be missed here and is found as ended by the next look.
            Self::Live
        } else {
            Self::All
        }
    }

    fn from(self) -> String {
        const COLUMNS: &str = "key, queue, task_type, priority, tenant, created_at";
        const NOT_ENDED: &str = "NULL::smallint AS status, NULL::integer AS drop_day";
        match self {
            Self::Dead => format!("SELECT {COLUMNS}, status, drop_day FROM :schema.ended WHERE drop_day = -1"),
            Self::Ended => format!("SELECT {COLUMNS}, status, drop_day FROM :schema.ended"),
            Self::Live => format!("SELECT {COLUMNS}, {NOT_ENDED} FROM :schema.live"),
            Self::All => format!(
                "SELECT {COLUMNS}, {NOT_ENDED} FROM :schema.live
                UNION ALL SELECT {COLUMNS}, status, drop_day FROM :schema.ended"
            ),
        }
    }
}

/// What stands in columns; the rest is looked at by the filter itself.
struct Filters<'a> {
    queue: Option<&'a str>,
    task_type: Option<&'a str>,
    tenant: Option<&'a str>,
    priority: Option<i16>,
    created_after: Option<i64>,
    created_before: Option<i64>,
    statuses: Vec<i16>,
}

type Values<'a> = Vec<(&'a (dyn ToSql + Sync), Type)>;

impl<'a> Filters<'a> {
    fn of(filter: &'a TaskFilter) -> Self {
        Self {
            queue: filter.queue.as_ref().map(windlass_core::names::QueueName::as_str),
            task_type: filter.task_type.as_ref().map(windlass_core::names::TaskType::as_str),
            tenant: filter.tenant.as_ref().map(windlass_core::names::Text::as_str),
            priority: filter.priority.map(|priority| priority.level().into()),
            created_after: filter.created_after.map(Timestamp::as_micros),
            created_before: filter.created_before.map(Timestamp::as_micros),
            statuses: filter.statuses.iter().copied().map(crate::columns::status_code).collect(),
        }
    }

    /// The newest rows, up to a bound, and of those the ones that match: it stops as soon as there are enough.
    fn sql<'b>(&'b self, look: Look, from: &str, below: &'b i64, limit: usize) -> (String, Values<'b>) {
        let mut values: Values<'b> = vec![(below, Type::INT8)];
        // Not inside, where it would lead the planner astray.
        let mut conditions = vec![format!("(drop_day IS NULL OR {NOT_GONE})")];
        let mut also = |condition: &str, value: &'b (dyn ToSql + Sync), of: Type| {
            values.push((value, of));
            conditions.push(condition.replace('?', &format!("${}", values.len())));
        };
        if let Some(queue) = &self.queue {
            also("queue = ?", queue, Type::TEXT);
        }
        if let Some(task_type) = &self.task_type {
            also("task_type = ?", task_type, Type::TEXT);
        }
        if let Some(tenant) = &self.tenant {
            also("tenant = ?", tenant, Type::TEXT);
        }
        if let Some(priority) = &self.priority {
            also("priority = ?", priority, Type::INT2);
        }
        if let Some(after) = &self.created_after {
            also("created_at >= ?", after, Type::INT8);
        }
        if let Some(before) = &self.created_before {
            also("created_at < ?", before, Type::INT8);
        }
        if look == Look::Ended {
            also("status = ANY(?)", &self.statuses, Type::INT2_ARRAY);
        }
        let wanted = conditions.join(" AND ");
        let sql = format!(
            "SELECT key FROM (SELECT * FROM ({from}) t WHERE key < $1 ORDER BY key DESC LIMIT {}) s
            WHERE {wanted} LIMIT {limit}",
            limits::SCANNED_ROWS
        );
        (sql, values)
    }
}

#[async_trait]
impl Archive for PostgresArchive {
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError> {
        self.find_cold(&keys).await.map_err(|error| in_read(&error))
    }

    async fn candidates(
        &self,
        below: TaskKey,
        filter: TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError> {
        self.find_candidates(below, &filter, limit).await.map_err(|error| in_read(&error))
    }

    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError> {
        let nos: Vec<i64> = nos.into_iter().map(|no| no as i64).collect();
        let found = self.one((&self.sql.events_in, vec![(&nos, Type::INT8_ARRAY)])).await;
        let found = found.map_err(|error| in_read(&error))?;
        let mut events = Vec::new();
        for row in &found {
            events.extend(rows::events(row).map_err(|error| in_read(&error))?.1);
        }
        Ok(events)
    }

    async fn events_from(&self, from: u64, limit: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError> {
        let (from, limit) = (from as i64, limit as i64 + 1);
        let found = self.one((&self.sql.events_from, vec![(&from, Type::INT8), (&limit, Type::INT8)])).await;
        let found = found.map_err(|error| in_read(&error))?;
        found.iter().map(|row| rows::events(row).map_err(|error| in_read(&error))).collect()
    }

    async fn bytes(&self) -> Option<u64> {
        let rows = self.one((&self.sql.bytes, Vec::new())).await.ok()?;
        get::<Option<i64>>(rows.first()?, 0).ok().flatten().map(|bytes| bytes as u64)
    }
}
