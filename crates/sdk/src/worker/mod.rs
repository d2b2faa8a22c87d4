//! The worker: takes tasks, runs their handlers, reports their ends.

pub(crate) mod attempt;
mod calls;
pub(crate) mod common;
mod health;
pub(crate) mod identity;
pub(crate) mod lane;
pub(crate) mod link;
mod load;
mod outbox;
mod pulse;
mod slots;
mod stats;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::breaker::{BreakerSettings, Breakers};
use crate::client::Client;
use crate::context::{Context, States};
use crate::error::{Error, Result};
use crate::stop::{StopReason, StopToken};
use crate::task::Task;
use crate::task_error::{TaskError, TaskResult};
use common::{Common, Handler, Settings};
use lane::Lane;
use pulse::Pulse;

/// Tasks that run at once, unless set.
const CONCURRENCY: usize = 50;
/// What a server takes as a capacity.
const CONCURRENCY_MAX: usize = 10_000;
/// How long the server may be away when the worker starts. Later it may be away for as long as it likes.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Takes tasks and runs their handlers.
///
/// ```no_run
/// # use windlass::{Client, TaskResult, Worker, task};
/// # #[task] async fn greet(name: String) -> TaskResult<String> { Ok(name) }
/// # #[task] async fn render(page: u32) -> TaskResult<()> { Ok(()) }
/// # async fn example() -> windlass::Result<()> {
/// let client = Client::connect("http://127.0.0.1:7070").await?;
/// Worker::new(&client).handle::<greet>().handle_limited::<render>(2).run().await
/// # }
/// ```
pub struct Worker {
    client: Client,
    handlers: HashMap<String, Handler>,
    shared: Vec<String>,
    limited: Vec<(Vec<String>, usize)>,
    concurrency: usize,
    settings: Settings,
    states: States,
    breakers: Breakers,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker without handlers.
    pub fn new(client: &Client) -> Self {
        let settings = Settings {
            queues: Vec::new(),
            capabilities: Vec::new(),
            name: None,
            pool: None,
            version: None,
            shutdown_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
            health_address: None,
            reports_cpu: false,
        };
        Self {
            client: client.clone(),
            handlers: HashMap::new(),
            shared: Vec::new(),
            limited: Vec::new(),
            concurrency: CONCURRENCY,
            settings,
            states: States::default(),
            breakers: Breakers::default(),
        }
    }

    /// Runs tasks of this kind, also those that were submitted under its aliases.
    #[must_use]
    pub fn handle<T: Task>(mut self) -> Self {
        let names = self.add::<T>();
        self.shared.extend(names);
        self
    }

    /// Runs tasks of this kind, at most so many at once, in slots of their own: heavy work neither takes the place of
    /// light work nor waits for it.
    #[must_use]
    pub fn handle_limited<T: Task>(mut self, at_once: usize) -> Self {
        let names = self.add::<T>();
        self.limited.push((names, at_once));
        self
    }

    fn add<T: Task>(&mut self) -> Vec<String> {
        let handler = attempt::handler::<T>();
        let names: Vec<String> =
            std::iter::once(T::NAME).chain(T::ALIASES.iter().copied()).map(str::to_owned).collect();
        for name in &names {
            self.handlers.insert(name.clone(), Arc::clone(&handler));
        }
        names
    }

    /// Runs tasks of a type that is only known by name, with JSON in and out.
    #[must_use]
    pub fn handle_untyped<F, R>(self, task_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Value, Context) -> R + Send + Sync + 'static,
        R: Future<Output = TaskResult<Value>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle_raw(task_type, move |parameters, context| {
            let handler = Arc::clone(&handler);
            async move {
                let parameters = serde_json::from_str(parameters.get())
                    .map_err(|error| TaskError::permanent(format!("the parameters are not JSON: {error}")))?;
                let result = handler(parameters, context).await?;
                serde_json::value::to_raw_value(&result)
                    .map_err(|error| TaskError::permanent(format!("the result has no JSON form: {error}")))
            }
        })
    }

    /// Like [`Worker::handle_untyped`] with the JSON text itself: order of keys and digits of numbers stay as they are.
    #[must_use]
    pub fn handle_raw<F, R>(mut self, task_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Box<RawValue>, Context) -> R + Send + Sync + 'static,
        R: Future<Output = TaskResult<Box<RawValue>>> + Send + 'static,
    {
        let task_type = task_type.into();
        let raw: Handler = Arc::new(move |context: Context| {
            let running = handler(context.attempt.task.parameters.clone(), context);
            Box::pin(async move { running.await.map(Some) })
        });
        self.handlers.insert(task_type.clone(), raw);
        self.shared.push(task_type);
        self
    }

    /// How many tasks run at once, 50 unless set. Handlers that compute without awaiting want about as many as there are
    /// processors.
    #[must_use]
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.concurrency = tasks;
        self
    }

    /// Serves only this queue. May be called for several; all queues unless it is called.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.settings.queues.push(name.into());
        self
    }

    /// Can do this: tasks that require it may come here. May be called for several.
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>) -> Self {
        self.settings.capabilities.push(name.into());
        self
    }

    /// What people see it as.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// The pool it belongs to.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>) -> Self {
        self.settings.pool = Some(name.into());
        self
    }

    /// The version of the program, to tell a new release from the one before.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.settings.version = Some(version.into());
        self
    }

    /// How long what runs may go on at shutdown, 30 seconds unless set. The rest is released.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = timeout;
        self
    }

    /// How long a handler may go on after it was told to stop, 5 seconds unless set. Then it is dropped.
    #[must_use]
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.settings.stop_grace = grace;
        self
    }

    /// Serves `/healthz`, `/readyz` and `/metrics` on this address.
    #[must_use]
    pub fn health_address(mut self, address: SocketAddr) -> Self {
        self.settings.health_address = Some(address);
        self
    }

    /// Also reports processor load with heartbeats. A worker that is above 95 % twice in a row gets no tasks until it is
    /// better: right for handlers that wait, wrong for handlers that compute.
    #[must_use]
    pub fn report_cpu(mut self) -> Self {
        self.settings.reports_cpu = true;
        self
    }

    /// A value that all handlers share, such as a connection pool; see [`Context::state`]. One per type.
    #[must_use]
    pub fn state<S: Any + Send + Sync>(mut self, state: S) -> Self {
        self.states.insert(state);
        self
    }

    /// When the breaker of a dependency opens; see [`Context::breaker`].
    #[must_use]
    pub fn breaker(mut self, name: impl Into<String>, settings: BreakerSettings) -> Self {
        self.breakers.set(name.into(), settings);
        self
    }

    /// Runs until SIGTERM or SIGINT: then no new tasks, what runs may finish within the shutdown timeout, the rest is
    /// released, and this returns. A second signal ends the process at once.
    ///
    /// A handler that has not given its thread back by then would keep the process alive without end. So, where tasks had
    /// to be released, the program has three seconds to end by itself; then it exits with 0.
    pub async fn run(self) -> Result<()> {
        let running = self.begin(true).await?;
        running.stopped().await;
        Ok(())
    }

    /// Starts the worker beside the rest of the application.
    pub async fn start(self) -> Result<RunningWorker> {
        self.begin(false).await
    }

    async fn begin(self, heeds_signals: bool) -> Result<RunningWorker> {
        let mut lanes = Vec::new();
        if !self.shared.is_empty() {
            lanes.push((self.shared, self.concurrency));
        }
        lanes.extend(self.limited);
        if lanes.is_empty() {
            return Err(Error::Worker("it has no handlers; add some with Worker::handle".to_owned()));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = lanes.iter().flat_map(|(types, _)| types).find(|name| !seen.insert(name.as_str())) {
            return Err(Error::Worker(format!("{twice} has two handlers")));
        }
        if let Some((types, tasks)) = lanes.iter().find(|(_, tasks)| !(1..=CONCURRENCY_MAX).contains(tasks)) {
            let message =
                format!("{} may run {tasks} at once; it must be from 1 to {CONCURRENCY_MAX}", types.join(", "));
            return Err(Error::Worker(message));
        }
        let health_page = match self.settings.health_address {
            Some(address) => Some(
                std::net::TcpListener::bind(address)
                    .map_err(|error| Error::Worker(format!("cannot serve the health page on {address}: {error}")))?,
            ),
            None => None,
        };
        attempt::watch_panics();
        let common = Arc::new(Common {
            client: self.client,
            settings: self.settings,
            handlers: self.handlers,
            states: Arc::new(self.states),
            breakers: Arc::new(self.breakers),
            stopping: StopToken::default(),
            pulse: Arc::default(),
            stats: stats::Stats::default(),
        });
        let lanes: Arc<[Arc<Lane>]> = lanes
            .into_iter()
            .map(|(types, capacity)| Arc::new(Lane::new(Arc::clone(&common), types, capacity)))
            .collect();
        for lane in &*lanes {
            register_patiently(lane).await?;
        }
        let (lanes_ended, left) = (StopToken::default(), StopToken::default());
        Pulse {
            common: Arc::clone(&common),
            lanes: Arc::clone(&lanes),
            lanes_ended: lanes_ended.clone(),
            left: left.clone(),
            heeds_signals,
            health_page,
        }
        .start()?;
        let loops: Vec<JoinHandle<()>> = lanes.iter().map(|lane| tokio::spawn(Arc::clone(lane).run())).collect();
        let end = EndOfLanes { stopping: common.stopping.clone(), lanes_ended };
        tokio::spawn(async move {
            let _end = end;
            for each in loops {
                // A loop that panicked has ended, too.
                let _ = each.await;
            }
        });
        Ok(RunningWorker { common, lanes, left })
    }
}

/// However the loops come to their end, also with the runtime they run on: without them the worker must not keep its
/// tasks.
struct EndOfLanes {
    stopping: StopToken,
    lanes_ended: StopToken,
}

impl Drop for EndOfLanes {
    fn drop(&mut self) {
        self.stopping.stop(StopReason::Shutdown);
        self.lanes_ended.stop(StopReason::Shutdown);
    }
}

/// A server that is just starting is waited for; one that is not there is an error while somebody looks.
async fn register_patiently(lane: &Lane) -> Result<()> {
    let begun = Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        match lane.register().await {
            Ok(()) => {
                lane.common.stats.connected();
                return Ok(());
            }
            Err(Error::Refused(problem)) if !problem.is_passing() => return Err(Error::Refused(problem)),
            Err(error) if begun.elapsed() > START_PATIENCE => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "cannot register yet");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// A worker that runs beside the application. Dropping it does not stop it; [`RunningWorker::shutdown`] does.
#[derive(Debug)]
pub struct RunningWorker {
    common: Arc<Common>,
    lanes: Arc<[Arc<Lane>]>,
    left: StopToken,
}

impl RunningWorker {
    /// How many tasks it holds: running, or ended and not yet acknowledged.
    pub fn tasks_held(&self) -> usize {
        self.lanes.iter().map(|lane| lane.attempts().len()).sum()
    }

    /// Takes no new tasks, lets what runs finish within the shutdown timeout, releases the rest, and deregisters.
    pub async fn shutdown(self) {
        self.common.stopping.stop(StopReason::Shutdown);
        self.stopped().await;
    }

    /// Resolves when it has stopped: after a shutdown, a signal, or because an operator drained it.
    pub async fn stopped(&self) {
        self.left.stopped().await;
    }
}
