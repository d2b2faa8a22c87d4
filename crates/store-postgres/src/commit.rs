//! A transaction: one statement, behind the entry of the log that fences it.

use std::pin::Pin;
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};
use windlass_cluster::backend::{BackendError, CommitError, Entry};
use windlass_core::limits::ATTEMPTS_KEPT;

use crate::batch::{Batch, Step};
use crate::error::{alone, in_commit, refused};
use crate::pieces::{Piece, Pieces, together};
use crate::pool::{Connection, Param};
use crate::sql::Statements;

/// How many attempts are kept of a task, as the statement takes it.
const KEPT: i64 = ATTEMPTS_KEPT as i64;

/// How a transaction begins and whom it tells.
pub(crate) struct Frame<'a> {
    /// What begins it; none if it has begun.
    pub(crate) begin: Option<&'a str>,
    /// Whether it needs no beginning and no end: the session has all bounds.
    pub(crate) is_plain: bool,
    /// Channel and message of the hint to other nodes.
    pub(crate) hint: Option<(&'a str, String)>,
    /// The lock that is shared by those who do not wait for their turn.
    pub(crate) turn: i64,
    /// For messages.
    pub(crate) server: &'a str,
}

/// Carries the transaction out in one round trip.
pub(crate) async fn commit(
    connection: &Connection,
    sql: &Statements,
    pieces: &Pieces,
    frame: Frame<'_>,
    entry: &Entry,
    batch: &Batch<'_>,
) -> Result<(), CommitError> {
    let (no, node) = (entry.no as i64, entry.node.0 as i64);
    let fence = if entry.no == 1 { &pieces.first_fence } else { &pieces.fence };
    let params: Vec<Param<'_>> =
        vec![(&no, Type::INT8), (&node, Type::INT8), (&entry.redo, Type::BYTEA), (&frame.turn, Type::INT8)];
    let mut steps = vec![Step { piece: fence, params, rows: None }];
    steps.extend(batch.steps(pieces));
    if let Some((channel, message)) = &frame.hint {
        let params: Vec<Param<'_>> = vec![(channel, Type::TEXT), (message, Type::TEXT)];
        steps.push(Step { piece: &pieces.notify, params, rows: None });
    }
    let all: Vec<&Piece> = steps.iter().map(|step| step.piece).collect();
    let statement = together(&all);
    let params: Vec<Param<'_>> = steps.iter().flat_map(|step| step.params.iter().cloned()).collect();
    let trim: [Param<'_>; 2] = [(&batch.attempts_trimmed, Type::INT8_ARRAY), (&KEPT, Type::INT8)];
    let trims = !batch.attempts_trimmed.is_empty();

    let types = params.iter().map(|(_, of)| of.clone()).collect();
    if let Err(error) = connection.prepare([(&statement, types)].into_iter()).await {
        if frame.begin.is_none() {
            // A turn is a transaction that is open, and of no use now. If it cannot be ended, the connection is broken.
            let _ = connection.batch("ROLLBACK").await;
        }
        return Err(CommitError::Refused(crate::error::failed(frame.server, &error)));
    }

    if frame.is_plain && !trims {
        let rows = connection.query(&statement, &params).await;
        let rows = rows.map_err(|error| alone(frame.server, &error))?;
        check_counts(&steps, rows.first());
        return Ok(());
    }
    let mut futures: Vec<BoxFuture<'_, Result<Vec<Row>, Error>>> = Vec::with_capacity(4);
    if let Some(begin) = frame.begin {
        futures.push(Box::pin(async move { connection.batch(begin).await.map(|()| Vec::new()) }));
    }
    let first = futures.len();
    futures.push(Box::pin(connection.query(&statement, &params)));
    if trims {
        futures.push(Box::pin(connection.query(&sql.trim_attempts, &trim)));
    }
    futures.push(Box::pin(async move { connection.batch("COMMIT").await.map(|()| Vec::new()) }));
    let answers = send_all(futures).await;

    // If any statement failed, the commit was a rollback, though it says nothing.
    let (last, before) = answers.split_last().ok_or(CommitError::Refused(BackendError::new("nothing to commit")))?;
    if let Some(error) = before.iter().find_map(|answer| answer.as_ref().err()) {
        return Err(refused(frame.server, error));
    }
    if let Err(error) = last {
        return Err(in_commit(frame.server, error));
    }
    if let Some(Ok(rows)) = before.get(first) {
        check_counts(&steps, rows.first());
    }
    Ok(())
}

/// The fence makes it impossible that a row is not where it should be; if it happens all the same, somebody should know.
fn check_counts(steps: &[Step<'_>], answer: Option<&Row>) {
    let Some(answer) = answer else { return };
    let counted = steps.iter().filter(|step| step.piece.is_counted());
    for (column, step) in counted.enumerate() {
        let found: Option<i64> = answer.try_get(column).ok();
        if let (Some(expected), Some(found)) = (step.rows, found)
            && expected as i64 != found
        {
            tracing::error!(
                expected,
                found,
                piece = step.piece.name(),
                "a commit did not touch the rows that it should"
            );
        }
    }
}

/// Polls every future once, in order, so that everything is sent; then waits for the answers.
pub(crate) async fn send_all<T>(mut futures: Vec<BoxFuture<'_, Result<T, Error>>>) -> Vec<Result<T, Error>> {
    let mut answers: Vec<Option<Result<T, Error>>> = Vec::with_capacity(futures.len());
    std::future::poll_fn(|context| {
        for future in &mut futures {
            answers.push(match Pin::new(future).poll(context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            });
        }
        Poll::Ready(())
    })
    .await;
    for (future, answer) in futures.iter_mut().zip(&mut answers) {
        if answer.is_none() {
            *answer = Some(future.await);
        }
    }
    answers.into_iter().flatten().collect()
}
