//! One question to one server, answered within a bound or not at all.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Row;
use windlass_cluster::backend::BackendError;

use crate::error::failed;
use crate::pool::{Connection, Param, Pool};
use crate::read::{Query, query_all};

/// What is asked.
pub(crate) enum Ask<'a> {
    /// Statements that a connection may keep.
    Known(&'a [Query<'a>]),
    /// One whose text depends on what somebody looks for.
    AdHoc(&'a str, &'a [Param<'a>]),
}

impl Ask<'_> {
    /// The rows of every statement.
    pub(crate) async fn of(&self, pool: &Pool, answer_in: Duration) -> Result<Vec<Vec<Row>>, BackendError> {
        let connection = pool.get().await?;
        let answers = timeout(answer_in, self.send(&connection, pool.name())).await;
        // After an error the connection may be in the middle of something: it is not given back.
        let answers = answers.map_err(|_| no_answer(pool))??;
        connection.give_back();
        Ok(answers)
    }

    async fn send(&self, connection: &Connection, server: &str) -> Result<Vec<Vec<Row>>, BackendError> {
        match self {
            Self::Known(queries) => query_all(connection, server, queries).await,
            Self::AdHoc(sql, params) => {
                let rows = connection.client().query_typed(sql, params).await;
                Ok(vec![rows.map_err(|error| failed(server, &error))?])
            }
        }
    }
}

pub(crate) fn no_answer(pool: &Pool) -> BackendError {
    BackendError::new(format!("{}: no answer in time", pool.name()))
}
