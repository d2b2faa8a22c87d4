//! Submitting: set up, then awaited.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use serde::Deserialize;

use crate::client::Client;
use crate::error::{Error, Problem, Result};
use crate::handle::TaskHandle;
use crate::keys::DeduplicatedBy;
use crate::random;
use crate::submission::{Batch, Submission};
use crate::view::TaskId;

/// Tasks that one call may carry.
const BATCH: usize = 1_000;
/// And about how many bytes of parameters: well below what a server takes.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A task about to be submitted; await it to submit. `O` is what its handler returns.
#[must_use = "nothing is submitted until this is awaited"]
#[derive(Debug)]
pub struct Enqueue<O> {
    client: Client,
    submission: Result<Submission>,
    trace_parent: Option<String>,
    output: PhantomData<fn() -> O>,
}

impl<O> Enqueue<O> {
    pub(crate) fn new(client: Client, submission: Result<Submission>) -> Self {
        Self { client, submission, trace_parent: None, output: PhantomData }
    }

    /// The trace it belongs to: a W3C `traceparent`.
    pub fn trace_parent(mut self, trace_parent: impl Into<String>) -> Self {
        self.trace_parent = Some(trace_parent.into());
        self
    }

    /// Changes how it shall be treated.
    pub fn with(mut self, change: impl FnOnce(crate::Options) -> crate::Options) -> Self {
        self.submission = self.submission.map(|submission| submission.with(change));
        self
    }
}

/// The setters of [`crate::Options`], straight on a builder that has `with`.
macro_rules! option_setters {
    ($($name:ident($($argument:ident: $kind:ty),*) $doc:literal;)+) => {
        $(#[doc = $doc]
        pub fn $name(self, $($argument: $kind),*) -> Self {
            self.with(|options| options.$name($($argument),*))
        })+
    };
    () => { $crate::enqueue::option_setters! {
        queue(name: impl Into<String>) "Waits in this queue.";
        priority(priority: crate::Priority) "How urgent it is.";
        requires(capability: impl Into<String>) "Only a worker with this capability may run it.";
        delay(delay: std::time::Duration) "Starts this much later.";
        run_at(time: std::time::SystemTime) "Starts at this time.";
        expires_at(time: std::time::SystemTime) "Not started by then, it fails as expired.";
        timeout(timeout: std::time::Duration) "How long one attempt may take.";
        max_retries(retries: u32) "How often a failed attempt is tried again, 0 to 100.";
        retry(retry: crate::Retry) "The delays between attempts.";
        idempotency_key(key: impl Into<String>) "Submitting the same key again within a day gives the same task.";
        tenant(tenant: impl Into<String>) "Whose task it is.";
        tag(key: impl Into<String>, value: impl Into<String>) "What people find it by.";
        ordering_key(key: impl Into<String>) "Tasks with the same key run one at a time, in the order of their submits.";
        ordering_on_failure(on_failure: crate::OnFailure) "What the tasks behind it do while it waits for a retry.";
        concurrency_key(key: impl Into<String>, limit: u32) "At most so many tasks with the same key run at once.";
        unique(unique: crate::Unique) "What counts as the same work, and what happens if it is there already.";
    } };
}
pub(crate) use option_setters;

impl<O> Enqueue<O> {
    option_setters! {}
}

#[derive(Deserialize)]
struct Submitted {
    task_id: TaskId,
    deduplicated: bool,
    #[serde(default)]
    deduplicated_by: Option<DeduplicatedBy>,
}

#[derive(Deserialize)]
struct SubmittedMany {
    task_ids: Vec<TaskId>,
}

impl<O: 'static> IntoFuture for Enqueue<O> {
    type Output = Result<TaskHandle<O>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, submission, trace_parent, .. } = self;
        Box::pin(async move {
            let mut submission = submission?.sealed();
            give_key(&client, &mut submission);
            let submitted: Submitted = client.submit("/api/v1/tasks", &submission, trace_parent).await?;
            let known_by = submitted.deduplicated.then(|| submitted.deduplicated_by.unwrap_or(DeduplicatedBy::Other));
            Ok(TaskHandle::new(client, submitted.task_id, known_by))
        })
    }
}

/// Tasks about to be submitted together; await it to submit.
#[must_use = "nothing is submitted until this is awaited"]
#[derive(Debug)]
pub struct EnqueueMany<O> {
    client: Client,
    submissions: Result<Vec<Submission>>,
    max_per_second: Option<f64>,
    output: PhantomData<fn() -> O>,
}

impl<O> EnqueueMany<O> {
    pub(crate) fn new(client: Client, submissions: Result<Vec<Submission>>) -> Self {
        Self { client, submissions, max_per_second: None, output: PhantomData }
    }

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

impl<O: 'static> IntoFuture for EnqueueMany<O> {
    type Output = Result<Vec<TaskHandle<O>>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Submits. More than 1,000 tasks, or 8 MiB, are several calls: then each call is all or nothing.
    fn into_future(self) -> Self::IntoFuture {
        let Self { client, submissions, max_per_second, .. } = self;
        Box::pin(async move {
            let mut submissions: Vec<_> = submissions?.into_iter().map(Submission::sealed).collect();
            if let Some(rate) = max_per_second {
                // Whatever is wrong with the pace is said before anything is stored.
                check_pace(rate, &submissions)?;
            }
            for submission in &mut submissions {
                give_key(&client, submission);
            }
            let mut handles = Vec::with_capacity(submissions.len());
            let mut rest = &mut submissions[..];
            while !rest.is_empty() {
                let (batch, later) = rest.split_at_mut(one_call(rest));
                rest = later;
                if let Some(rate) = max_per_second {
                    // The server paces the tasks of one call; each call goes on where the one before it ended.
                    let begun = place(handles.len(), rate);
                    for submission in batch.iter_mut() {
                        submission.options.put_off(begun);
                    }
                }
                let body = Batch { tasks: batch, max_per_second };
                let submitted: SubmittedMany = client.submit("/api/v1/tasks/batch", &body, None).await?;
                let client = &client;
                handles.extend(submitted.task_ids.into_iter().map(|id| TaskHandle::new(client.clone(), id, None)));
            }
            Ok(handles)
        })
    }
}

/// How far ahead a task may start: what the server takes.
const AHEAD: Duration = Duration::from_hours(366 * 24);

/// How long the task at this place waits where so many start per second.
pub(crate) fn place(index: usize, per_second: f64) -> Duration {
    Duration::try_from_secs_f64(index as f64 / per_second).unwrap_or(Duration::MAX)
}

/// Refuses a pace as the server would, if it saw all of the tasks at once.
pub(crate) fn check_pace(per_second: f64, submissions: &[Submission]) -> Result<()> {
    let refused = |detail: &str| {
        let detail = format!("max_per_second {detail}");
        let (code, field) = ("invalid_field".to_owned(), Some("max_per_second".to_owned()));
        Err(Error::from(Box::new(Problem { status: 400, code, detail, field, ..Problem::default() })))
    };
    if !(0.001..=1_000_000.0).contains(&per_second) {
        return refused("must be from 0.001 to 1000000");
    }
    let ends = submissions
        .iter()
        .enumerate()
        .map(|(index, submission)| place(index, per_second).saturating_add(submission.options.own_delay()));
    if ends.max().is_some_and(|last| last > AHEAD) {
        return refused("is so slow that the last task would start in more than 366 days");
    }
    Ok(())
}

/// How many of the tasks fit into one call.
pub(crate) fn one_call(submissions: &[Submission]) -> usize {
    let mut bytes = 0;
    let fits = |submission: &&Submission| {
        bytes += submission.parameters.as_ref().map_or(0, |parameters| parameters.get().len());
        bytes <= BATCH_BYTES
    };
    submissions.iter().take(BATCH).take_while(fits).count().max(1)
}

/// A submit may have to be repeated without knowing whether it arrived: then only a key tells that it is the same task.
fn give_key(client: &Client, submission: &mut Submission) {
    if client.answers_can_get_lost() {
        submission.options.idempotency_key.get_or_insert_with(random::unique_key);
    }
}
