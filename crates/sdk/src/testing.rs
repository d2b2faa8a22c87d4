//! Helpers for your tests: no server, no files, no waiting.
//!
//! - [`Inline`] runs one handler, alone, with the context you give it.
//! - [`Manual`] is a whole Windlass in memory in which nothing happens by itself: look at what was enqueued, run it when
//!   you say so, move the clock.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use windlass_core::event::NoObserver;
use windlass_core::time::Timestamp;
use windlass_server::{App, Metrics, ServerConfig};
use windlass_store_sqlite::SlewedClock;
use windlass_testkit::{ManualClock, MemoryStore};

use crate::breaker::Breakers;
use crate::client::Client;
use crate::context::{Attempt, Context, States};
use crate::embedded::Embedded;
use crate::protocol::{Claimed, Outcome, Outgoing, Poll, Polled, Register, Registered};
use crate::stop::{StopReason, StopToken};
use crate::submission::Submission;
use crate::task::{Task, decode};
use crate::task_error::TaskResult;
use crate::transport::Transport;
use crate::view::{Status, TaskId, TaskView};
use crate::worker::attempt::{handler, outcome_of, run_alone};
use crate::worker::common::Handler;
use crate::worker::identity::Identity;
use crate::worker::link::Link;

/// Runs one handler without a store.
///
/// ```
/// use windlass::testing::Inline;
/// use windlass::{Context, TaskError, TaskResult, task};
///
/// #[task]
/// async fn charge(context: &Context, cents: u32) -> TaskResult<String> {
///     let receipt = context.step("charge", || async { Ok::<_, TaskError>(format!("receipt for {cents}")) }).await?;
///     if context.attempt() > 3 {
///         return Err(TaskError::permanent("the bank does not answer"));
///     }
///     Ok(receipt)
/// }
///
/// # #[tokio::main]
/// # async fn main() {
/// assert_eq!(Inline::new().run::<charge>(500u32).await.unwrap(), "receipt for 500");
/// // As a later attempt would see it: the step was done, and is not done again.
/// let paid = Inline::new().attempt(2).step_done("charge", "receipt for 500").run::<charge>(500u32).await;
/// assert_eq!(paid.unwrap(), "receipt for 500");
/// assert!(Inline::new().attempt(4).run::<charge>(500u32).await.unwrap_err().is_permanent());
/// # }
/// ```
#[derive(Debug)]
pub struct Inline {
    attempt: u32,
    max_retries: u32,
    timeout: Duration,
    tags: BTreeMap<String, String>,
    steps: BTreeMap<String, Box<RawValue>>,
    states: States,
    stop: Option<StopReason>,
}

impl Default for Inline {
    fn default() -> Self {
        Self {
            attempt: 1,
            max_retries: 3,
            timeout: Duration::from_mins(10),
            tags: BTreeMap::new(),
            steps: BTreeMap::new(),
            states: States::default(),
            stop: None,
        }
    }
}

impl Inline {
    /// A first attempt.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which attempt it is.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// A tag of the task.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// A durable step that an earlier attempt finished.
    #[must_use]
    pub fn step_done(mut self, name: impl Into<String>, result: impl Serialize) -> Self {
        let result = serde_json::value::to_raw_value(&result).expect("the result of a step has a JSON form");
        self.steps.insert(name.into(), result);
        self
    }

    /// A value that handlers share; see [`Context::state`].
    #[must_use]
    pub fn state<S: Any + Send + Sync>(mut self, state: S) -> Self {
        self.states.insert(state);
        self
    }

    /// The handler is told to stop from the beginning.
    #[must_use]
    pub fn stopped(mut self, reason: StopReason) -> Self {
        self.stop = Some(reason);
        self
    }

    /// Runs the handler. The input goes through JSON as it would in earnest.
    pub async fn run<T: Task>(self, input: impl Into<T::Input>) -> TaskResult<T::Output> {
        let submission = Submission::of::<T>(&input.into())?;
        let parameters =
            submission.parameters.map_or_else(|| "{}".to_owned(), |parameters| parameters.get().to_owned());
        let task = Claimed {
            task_id: TaskId::from("inline"),
            task_type: T::NAME.to_owned(),
            parameters: RawValue::from_string(parameters.clone())?,
            queue: "default".to_owned(),
            attempt: self.attempt,
            max_retries: self.max_retries,
            timeout_seconds: self.timeout.as_secs_f64(),
            lease_token: String::new(),
            trace_id: None,
            traceparent: None,
            created_at: "2023-11-14T22:13:20.000000Z".to_owned(),
            idempotency_key: None,
            ordering_key: None,
            crash_count: 0,
            tags: self.tags,
            steps: self.steps,
        };
        let (states, breakers) = (Arc::new(self.states), Arc::new(Breakers::default()));
        let attempt = Arc::new(Attempt::new(task, Link::Alone, StopToken::default(), states, breakers));
        if let Some(reason) = self.stop {
            attempt.stop.stop(reason);
        }
        T::run(decode::<T>(&parameters, T::VERSION)?, Context { attempt }).await
    }
}

/// What a [drain](Manual::drain) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Attempts that succeeded.
    pub completed: usize,
    /// Attempts that failed; their tasks wait for a retry or are dead letters.
    pub failed: usize,
    /// Attempts that were put off, or cancelled their task.
    pub other: usize,
}

/// A whole Windlass in memory in which nothing happens by itself.
///
/// ```
/// use std::time::Duration;
/// use windlass::testing::Manual;
/// use windlass::{Client, Status, TaskError, TaskResult, task};
///
/// #[task]
/// async fn send_email(to: String) -> TaskResult<()> {
///     if to.contains('@') { Ok(()) } else { Err(TaskError::permanent("no such address")) }
/// }
///
/// // The code under test.
/// async fn sign_up(client: &Client, email: &str) -> windlass::Result<()> {
///     client.enqueue::<send_email>(email).delay(Duration::from_secs(3600)).await?;
///     Ok(())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> windlass::Result<()> {
/// let mut windlass = Manual::new().handle::<send_email>();
/// sign_up(windlass.client(), "ada@example.com").await?;
/// windlass.assert_enqueued::<send_email>(|to| to == "ada@example.com").await;
///
/// // It is due in an hour: nothing to run yet.
/// assert_eq!(windlass.drain().await.completed, 0);
/// windlass.advance(Duration::from_secs(3600)).await;
/// assert_eq!(windlass.drain().await.completed, 1);
///
/// let bad = windlass.client().enqueue::<send_email>("nobody").await?;
/// windlass.drain().await;
/// assert_eq!(bad.view().await?.status, Status::DeadLetter);
/// # Ok(())
/// # }
/// ```
pub struct Manual {
    client: Client,
    app: App,
    clock: Arc<ManualClock>,
    handlers: HashMap<String, Handler>,
    states: Arc<States>,
    breakers: Arc<Breakers>,
}

impl Default for Manual {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for Manual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manual").finish_non_exhaustive()
    }
}

impl Manual {
    /// An empty one.
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = MemoryStore::new(Arc::clone(&clock) as Arc<_>, Arc::new(NoObserver));
        let app = App::new(ServerConfig::default(), store, Arc::new(Metrics::default()));
        let transport = Transport::Embedded(Embedded::by_hand(app.clone()));
        let client = Client::over(transport, Duration::ZERO, Duration::from_secs(10));
        Self { client, app, clock, handlers: HashMap::new(), states: Arc::default(), breakers: Arc::default() }
    }

    /// The client to hand to the code under test.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs tasks of this kind when it [drains](Manual::drain).
    #[must_use]
    pub fn handle<T: Task>(mut self) -> Self {
        for name in std::iter::once(&T::NAME).chain(T::ALIASES) {
            self.handlers.insert((*name).to_owned(), handler::<T>());
        }
        self
    }

    /// A value that handlers share; see [`Context::state`].
    #[must_use]
    pub fn state<S: Any + Send + Sync>(mut self, state: S) -> Self {
        Arc::get_mut(&mut self.states).expect("no handler runs yet").insert(state);
        self
    }

    /// Moves the clock, and does what then falls due: scheduled tasks become ready, leases lapse, time runs out.
    pub async fn advance(&self, span: Duration) {
        self.clock.advance(span);
        self.app.run_maintenance_once().await.expect("a store in memory does not fail");
    }

    /// Every task of this kind that has not ended, oldest first.
    pub async fn waiting(&self, task_type: &str) -> Vec<TaskView> {
        #[derive(serde::Deserialize)]
        struct Page {
            items: Vec<TaskView>,
        }
        let mut tasks = Vec::new();
        for status in ["blocked", "scheduled", "queued", "executing"] {
            let path = format!("/api/v1/tasks?task_type={task_type}&status={status}&limit=1000&include=parameters");
            let page: Page = self.client.get(&path, Duration::from_secs(10)).await.expect("the list is served");
            tasks.extend(page.items);
        }
        tasks.sort_by(|a, b| (&a.created_at, &a.task_id).cmp(&(&b.created_at, &b.task_id)));
        tasks
    }

    /// The inputs of every task of this kind that has not ended, oldest first.
    pub async fn enqueued<T: Task>(&self) -> Vec<T::Input> {
        let waiting = self.waiting(T::NAME).await;
        let input = |task: &TaskView| {
            let parameters = task.parameters.as_ref().map_or("{}", |parameters| parameters.get());
            decode::<T>(parameters, T::VERSION).unwrap_or_else(|error| panic!("{}", error.message()))
        };
        waiting.iter().map(input).collect()
    }

    /// Fails unless a task of this kind waits whose input is as wanted.
    pub async fn assert_enqueued<T: Task>(&self, is_wanted: impl Fn(&T::Input) -> bool) {
        let inputs = self.enqueued::<T>().await;
        if !inputs.iter().any(is_wanted) {
            let seen: Vec<String> =
                inputs.iter().map(|input| serde_json::to_string(input).unwrap_or_default()).collect();
            panic!("no {} that was wanted is enqueued; there are {}: {}", T::NAME, seen.len(), seen.join(", "));
        }
    }

    /// Fails if a task of this kind waits.
    pub async fn refute_enqueued<T: Task>(&self) {
        let count = self.waiting(T::NAME).await.len();
        assert_eq!(count, 0, "{count} {} are enqueued and none was wanted", T::NAME);
    }

    /// Runs everything that is ready now, one after another, also what the handlers enqueue meanwhile. What fails waits
    /// for its retry: [advance](Manual::advance) the clock and drain again.
    pub async fn drain(&mut self) -> Drained {
        let types: Vec<String> = self.handlers.keys().cloned().collect();
        let register = Register {
            capacity: 1,
            task_types: &types,
            queues: &[],
            capabilities: &[],
            name: Some("test"),
            pool: None,
            version: None,
        };
        let worker: Registered = self.call("/internal/workers/register", &register).await;
        let identity = Arc::new(Identity::default());
        identity.registered(&worker);
        let mut drained = Drained::default();
        let mut results: Vec<Outgoing> = Vec::new();
        loop {
            let carried: Vec<&Outgoing> = results.iter().collect();
            let poll = Poll { available_capacity: 1, wait_ms: None, results: &carried };
            let polled: Polled = self.call(&identity.path("poll"), &poll).await;
            if let Some(refused) = polled.results.iter().find(|taken| !taken.acknowledged) {
                panic!("a result was refused: {}", refused.detail.as_deref().unwrap_or_default());
            }
            results.clear();
            let Some(task) = polled.tasks.into_iter().next() else { break };
            let outgoing = self.run_one(task, &identity).await;
            match &outgoing.outcome {
                Outcome::Completed { .. } => drained.completed += 1,
                Outcome::Failed { .. } => drained.failed += 1,
                Outcome::Snoozed { .. } | Outcome::Cancelled { .. } | Outcome::Released => drained.other += 1,
            }
            results.push(outgoing);
        }
        self.client
            .delete_once(&format!("/internal/workers/{}", worker.worker_id), Duration::from_secs(10))
            .await
            .expect("the worker leaves");
        drained
    }

    async fn run_one(&self, task: Claimed, identity: &Arc<Identity>) -> Outgoing {
        let (task_id, lease_token) = (task.task_id.clone(), task.lease_token.clone());
        let handler = self.handlers.get(&task.task_type).expect("only types with handlers are asked for");
        let (states, breakers) = (Arc::clone(&self.states), Arc::clone(&self.breakers));
        let link = Link::Live { client: self.client.clone(), identity: Arc::clone(identity), pulse: Arc::default() };
        let attempt = Arc::new(Attempt::new(task, link, StopToken::default(), states, breakers));
        let ended = run_alone(handler, &attempt).await;
        Outgoing { task_id, lease_token, outcome: outcome_of(ended, &attempt) }
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> T {
        self.client.post_once(path, body, Duration::from_secs(10)).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The result of a task that has completed.
    pub async fn result<O: DeserializeOwned>(&self, task: &crate::TaskHandle<O>) -> O {
        let view = task.view().await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(view.status, Status::Completed, "{}", view.how_it_ended());
        view.result_as().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A client of a whole Windlass in memory that runs by itself, on the real clock: for tests with a real
/// [`Worker`](crate::Worker).
pub fn in_memory() -> Client {
    let clock = Arc::new(SlewedClock::starting_at(Timestamp::EPOCH));
    let store = MemoryStore::new(clock, Arc::new(NoObserver));
    let embedded = Embedded::on(store).unwrap_or_else(|error| panic!("{error}"));
    Client::over(Transport::Embedded(embedded), Duration::from_secs(30), Duration::from_secs(10))
}
