//! Enqueueing in the caller's own PostgreSQL transaction: the tasks are there when it commits, and
//! only then. Nothing here talks to a server of Windlass.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;

use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::client::Client;
use crate::enqueue::{check_pace, one_call, option_setters, place};
use crate::error::{Error, Result};
use crate::handle::TaskHandle;
use crate::submission::Submission;
use crate::task::Task;
use crate::view::TaskId;

/// The schema of Windlass unless set.
pub(crate) const SCHEMA: &str = "windlass";

type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a transaction is needed for, whatever its type.
trait Database: Sync {
    /// Runs a statement whose only parameter is a text; gives the texts of its first column.
    fn texts<'a>(&'a self, sql: &'a str, parameter: &'a str) -> Later<'a, Result<Vec<String>, tokio_postgres::Error>>;
}

impl<C: GenericClient + Sync> Database for C {
    fn texts<'a>(&'a self, sql: &'a str, parameter: &'a str) -> Later<'a, Result<Vec<String>, tokio_postgres::Error>> {
        Box::pin(async move {
            // Typed, so that nothing is prepared: one round trip, and poolers do not mind.
            let rows = self.query_typed(sql, &[(&parameter, Type::TEXT)]).await?;
            rows.iter().map(|row| row.try_get(0)).collect()
        })
    }
}

impl Client {
    /// Enqueues a task in a transaction of your own on the database of the server. The task exists if the transaction
    /// commits, and a server has it milliseconds later; its id is known at once. Set more about it before you await:
    ///
    /// ```no_run
    /// # use windlass::{Client, Priority, TaskResult, task};
    /// # #[task] async fn send_receipt(order: i64) -> TaskResult<()> { Ok(()) }
    /// # async fn example(
    /// #     client: Client, database: &mut tokio_postgres::Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = database.transaction().await?;
    /// transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&7_i64]).await?;
    /// let task = client.enqueue_in::<send_receipt>(&transaction, 7).priority(Priority::High).await?;
    /// transaction.commit().await?;
    /// task.result().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The handle's calls wait for a task that is not there yet, for up to the patience of the client
    /// ([`ClientBuilder::patience`](crate::ClientBuilder::patience)); then the answer is `task_not_found`, as it is for
    /// a transaction that was rolled back.
    ///
    /// What a submit is refused for shows later, under the id: a task that cannot be taken becomes a dead letter that
    /// says why, one whose idempotency key is known a cancelled task that names the other.
    pub fn enqueue_in<'a, T: Task>(
        &self,
        transaction: &'a (impl GenericClient + Sync),
        input: impl Into<T::Input>,
    ) -> EnqueueIn<'a, T::Output> {
        EnqueueIn::new(self.clone(), transaction, Submission::of::<T>(&input.into()))
    }

    /// Like [`Client::enqueue_in`], for a type that this program has no handler for.
    pub fn enqueue_untyped_in<'a>(
        &self,
        transaction: &'a (impl GenericClient + Sync),
        task_type: impl Into<String>,
        parameters: &Value,
    ) -> EnqueueIn<'a, Value> {
        EnqueueIn::new(self.clone(), transaction, Submission::untyped(task_type.into(), parameters))
    }

    /// Like [`Client::enqueue_in`], for any number of tasks of one type.
    pub fn enqueue_many_in<'a, T: Task>(
        &self,
        transaction: &'a (impl GenericClient + Sync),
        inputs: impl IntoIterator<Item = T::Input>,
    ) -> EnqueueManyIn<'a, T::Output> {
        let submissions = inputs.into_iter().map(|input| Submission::of::<T>(&input)).collect();
        EnqueueManyIn {
            client: self.clone(),
            database: transaction,
            submissions,
            max_per_second: None,
            output: PhantomData,
        }
    }
}

/// A task about to be written in a transaction; await it to write. `O` is what its handler returns.
#[must_use = "nothing is written until this is awaited"]
pub struct EnqueueIn<'a, O> {
    client: Client,
    database: &'a dyn Database,
    submission: Result<Submission>,
    output: PhantomData<fn() -> O>,
}

impl<O> std::fmt::Debug for EnqueueIn<'_, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnqueueIn").field("submission", &self.submission).finish_non_exhaustive()
    }
}

impl<'a, O> EnqueueIn<'a, O> {
    fn new(client: Client, database: &'a dyn Database, submission: Result<Submission>) -> Self {
        Self { client, database, submission, output: PhantomData }
    }

    /// Changes how it shall be treated.
    pub fn with(mut self, change: impl FnOnce(crate::Options) -> crate::Options) -> Self {
        self.submission = self.submission.map(|submission| submission.with(change));
        self
    }

    option_setters! {}
}

impl<'a, O: 'static> IntoFuture for EnqueueIn<'a, O> {
    type Output = Result<TaskHandle<O>>;
    type IntoFuture = Later<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, database, submission, .. } = self;
        Box::pin(async move {
            let mut ids = write(&client, database, &[submission?.sealed()]).await?;
            let id = ids.pop().ok_or_else(|| unexpected(0, 1))?;
            Ok(TaskHandle::to_come(client, id))
        })
    }
}

/// Tasks about to be written in a transaction; await it to write.
#[must_use = "nothing is written until this is awaited"]
pub struct EnqueueManyIn<'a, O> {
    client: Client,
    database: &'a dyn Database,
    submissions: Result<Vec<Submission>>,
    max_per_second: Option<f64>,
    output: PhantomData<fn() -> O>,
}

impl<O> std::fmt::Debug for EnqueueManyIn<'_, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnqueueManyIn").field("submissions", &self.submissions).finish_non_exhaustive()
    }
}

impl<O> EnqueueManyIn<'_, O> {
    /// Changes how all of them shall be treated.
    pub fn with(mut self, change: impl Fn(crate::Options) -> crate::Options) -> Self {
        self.submissions = self
            .submissions
            .map(|submissions| submissions.into_iter().map(|submission| submission.with(&change)).collect());
        self
    }

    /// Starts them at this pace instead of all at once: the first without delay (or after its own), the others one by one
    /// after it. From 0.001 to 1,000,000.
    pub fn max_per_second(mut self, rate: f64) -> Self {
        self.max_per_second = Some(rate);
        self
    }
}

impl<'a, O: 'static> IntoFuture for EnqueueManyIn<'a, O> {
    type Output = Result<Vec<TaskHandle<O>>>;
    type IntoFuture = Later<'a, Self::Output>;

    /// Writes. Many tasks are several statements, which the transaction holds together.
    fn into_future(self) -> Self::IntoFuture {
        let Self { client, database, submissions, max_per_second, .. } = self;
        Box::pin(async move {
            let mut submissions: Vec<_> = submissions?.into_iter().map(Submission::sealed).collect();
            if let Some(rate) = max_per_second {
                check_pace(rate, &submissions)?;
                for (index, submission) in submissions.iter_mut().enumerate().skip(1) {
                    submission.options.put_off(place(index, rate));
                }
            }
            let mut handles = Vec::with_capacity(submissions.len());
            let mut rest = &submissions[..];
            while !rest.is_empty() {
                let (batch, later) = rest.split_at(one_call(rest));
                rest = later;
                let ids = write(&client, database, batch).await?;
                handles.extend(ids.into_iter().map(|id| TaskHandle::to_come(client.clone(), id)));
            }
            Ok(handles)
        })
    }
}

/// Writes the tasks into the inbox and gives their ids, in the same order.
async fn write(client: &Client, database: &dyn Database, tasks: &[Submission]) -> Result<Vec<TaskId>> {
    let body = serde_json::to_string(tasks).map_err(Error::json("the tasks"))?;
    let sql = format!("SELECT id::text FROM {}.enqueue_many($1::jsonb) AS id", quoted(client.schema()));
    let ids = database.texts(&sql, &body).await.map_err(|error| refused(error, client.schema()))?;
    if ids.len() != tasks.len() {
        return Err(unexpected(ids.len(), tasks.len()));
    }
    Ok(ids.into_iter().map(TaskId::from).collect())
}

/// A name as SQL wants it, whatever is in it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn unexpected(ids: usize, tasks: usize) -> Error {
    Error::BadAnswer { address: "PostgreSQL".to_owned(), reason: format!("{ids} ids for {tasks} tasks") }
}

/// What the database said, and what to do about it where that is plain.
fn refused(error: tokio_postgres::Error, schema: &str) -> Error {
    let state = error.code().cloned();
    let said = match error.as_db_error() {
        Some(answer) => answer.message().to_owned(),
        None => whole_story(&error),
    };
    let advice = match &state {
        Some(state) if [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME].contains(state) => {
            format!("; no server of Windlass has set up the schema {schema} in this database, or it has another name")
        }
        Some(state) if *state == SqlState::INSUFFICIENT_PRIVILEGE => {
            format!(
                "; GRANT USAGE ON SCHEMA {0} and EXECUTE ON FUNCTION {0}.enqueue_many(jsonb) to this user",
                quoted(schema)
            )
        }
        _ => String::new(),
    };
    Error::Database {
        sql_state: state.map(|state| state.code().to_owned()),
        reason: said + &advice,
        source: Box::new(error),
    }
}

/// An error with all that caused it.
fn whole_story(error: &dyn std::error::Error) -> String {
    let mut story = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !story.contains(&said) {
            story.push_str(": ");
            story.push_str(&said);
        }
        cause = error.source();
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_schema_is_one_name() {
        assert_eq!(quoted("windlass"), "\"windlass\"");
        assert_eq!(quoted("a\"; DROP TABLE b; --"), "\"a\"\"; DROP TABLE b; --\"");
    }
}
