//! Reads for decisions: everything that is wanted in one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};
use uuid::Uuid;
use windlass_cluster::backend::{BackendError, Found, TaskRecord, Wants};
use windlass_core::ids::TaskKey;
use windlass_core::json::Json;

use crate::columns::scope_id;
use crate::commit::send_all;
use crate::error::failed;
use crate::pool::{Connection, Param};
use crate::rows::{self, Names, Rows, get};
use crate::sql::{Sql, Statements};

/// A query with its parameters.
pub(crate) type Query<'a> = (&'a Sql, Vec<Param<'a>>);

/// Sends all queries, then waits for their rows.
pub(crate) async fn query_all(
    connection: &Connection,
    server: &str,
    queries: &[Query<'_>],
) -> Result<Vec<Vec<Row>>, BackendError> {
    let fail = |error: Error| failed(server, &error);
    let types = |params: &[Param<'_>]| params.iter().map(|(_, of)| of.clone()).collect();
    connection.prepare(queries.iter().map(|(sql, params)| (*sql, types(params)))).await.map_err(fail)?;
    let futures = queries
        .iter()
        .map(|(sql, params)| Box::pin(connection.query(sql, params)) as BoxFuture<'_, Result<Vec<Row>, Error>>);
    let answers = send_all(futures.collect()).await;
    answers.into_iter().map(|answer| answer.map_err(|error| failed(server, &error))).collect()
}

/// Reads what is wanted.
pub(crate) async fn read(
    connection: &Connection,
    server: &str,
    sql: &Statements,
    wants: &Wants,
) -> Result<Found, BackendError> {
    let tasks: Vec<i64> = wants.tasks.iter().map(|key| key.0 as i64).collect();
    let claims: Vec<i64> = wants.claims.iter().map(|first| *first as i64).collect();
    let uniques: Vec<Uuid> = wants.uniques.iter().map(|key| Uuid::from_u128(key.0)).collect();
    let keys: Vec<Uuid> = wants.idempotency.iter().map(scope_id).collect();
    let mut queries: Vec<Query<'_>> = Vec::new();
    if !tasks.is_empty() {
        queries.push((&sql.read_tasks, vec![(&tasks, Type::INT8_ARRAY)]));
        queries.push((&sql.read_steps, vec![(&tasks, Type::INT8_ARRAY)]));
    }
    if !claims.is_empty() {
        queries.push((&sql.read_claims, vec![(&claims, Type::INT8_ARRAY)]));
    }
    if !keys.is_empty() {
        queries.push((&sql.read_idempotency, vec![(&keys, Type::UUID_ARRAY)]));
    }
    if !uniques.is_empty() {
        queries.push((&sql.read_uniques, vec![(&uniques, Type::UUID_ARRAY)]));
    }
    let mut answers = query_all(connection, server, &queries).await?.into_iter();
    let mut next = |wanted: bool| if wanted { answers.next().unwrap_or_default() } else { Vec::new() };
    let (task_rows, step_rows) = (next(!tasks.is_empty()), next(!tasks.is_empty()));
    let (claim_rows, key_rows, unique_rows) =
        (next(!claims.is_empty()), next(!keys.is_empty()), next(!uniques.is_empty()));
    Ok(Found {
        tasks: records(&task_rows, &step_rows)?,
        claims: claim_rows.iter().map(rows::claim).collect::<Rows<_>>()?,
        idempotency: key_rows.iter().map(rows::idempotency).collect::<Rows<_>>()?,
        uniques: unique_rows.iter().map(rows::unique).collect::<Rows<_>>()?,
    })
}

fn records(tasks: &[Row], steps: &[Row]) -> Rows<Vec<(TaskKey, TaskRecord)>> {
    let mut steps_of: BTreeMap<TaskKey, BTreeMap<String, Json>> = BTreeMap::new();
    for row in steps {
        let name = String::from_utf8_lossy(get::<&[u8]>(row, 1)?).into_owned();
        steps_of.entry(rows::key(row, 0)?).or_default().insert(name, rows::json(get(row, 2)?)?);
    }
    let mut names = Names::default();
    let record = |row: &Row| {
        let key = rows::key(row, 0)?;
        let record = TaskRecord {
            row: Arc::new(rows::task(row, &mut names)?),
            overlay: rows::overlay(row)?,
            ended: rows::ended(row)?,
            steps: steps_of.remove(&key).unwrap_or_default(),
        };
        Ok((key, record))
    };
    tasks.iter().map(record).collect()
}
