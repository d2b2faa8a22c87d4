//! The client: hands tasks to Windlass and asks about them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::address;
use crate::backoff::Backoff;
use crate::enqueue::{Enqueue, EnqueueMany};
use crate::error::{Error, Result, Unreachable};
use crate::handle::TaskHandle;
use crate::submission::Submission;
use crate::task::Task;
use crate::transport::{Answer, Call, Method, Transport};
use crate::view::{TaskId, TaskView};

/// How long a call may take, unless set.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to pause after an answer that came too early.
const EARLY_PAUSE: Duration = Duration::from_millis(250);
/// How long trouble is ridden out, unless set.
const PATIENCE: Duration = Duration::from_secs(30);

/// Talks to Windlass. Cheap to clone; all clones share their connections.
///
/// Submits ride out trouble: timeouts, 429 and 503 are tried again for up to 30 seconds (see
/// [`ClientBuilder::patience`]), with an idempotency key of the client's own, so that a submit whose answer got lost
/// does not become two tasks.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Transport,
    patience: Duration,
    timeout: Duration,
    #[cfg(feature = "postgres")]
    schema: String,
}

/// Sets a client up.
#[derive(Clone)]
#[must_use = "nothing is set up until connect is awaited"]
pub struct ClientBuilder {
    addresses: String,
    api_key: Option<String>,
    patience: Duration,
    timeout: Duration,
    #[cfg(feature = "postgres")]
    schema: String,
}

/// Without the key.
impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("addresses", &address::masked(&self.addresses)).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// The API key that calls carry.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// How long calls that can be repeated are repeated while nobody answers, 30 seconds unless set. Zero tries once.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long to wait for one answer, 10 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The schema of Windlass in PostgreSQL, for [`Client::enqueue_in`]: `windlass` unless set, as for the server.
    #[cfg(feature = "postgres")]
    pub fn postgres_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The client. An embedded store is opened now; a server is called when there is something to say.
    pub async fn connect(self) -> Result<Client> {
        let transport = address::open(&self.addresses, self.api_key.as_deref()).await?;
        Ok(Client {
            inner: Arc::new(Inner {
                transport,
                patience: self.patience,
                timeout: self.timeout,
                #[cfg(feature = "postgres")]
                schema: self.schema,
            }),
        })
    }
}

impl Client {
    /// A client of the server at `http://HOST:PORT`, of several separated by commas, or of an embedded store at
    /// `sqlite:FOLDER` (feature `embedded`).
    pub async fn connect(address: impl Into<String>) -> Result<Self> {
        Self::builder(address).connect().await
    }

    /// A client that is set up first.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            addresses: address.into(),
            api_key: None,
            patience: PATIENCE,
            timeout: TIMEOUT,
            #[cfg(feature = "postgres")]
            schema: crate::postgres::SCHEMA.to_owned(),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn over(transport: Transport, patience: Duration, timeout: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                transport,
                patience,
                timeout,
                #[cfg(feature = "postgres")]
                schema: crate::postgres::SCHEMA.to_owned(),
            }),
        }
    }

    /// The same client with connections of its own, for a thread that has a runtime of its own.
    pub(crate) fn for_own_runtime(&self) -> Result<Self> {
        let inner = &self.inner;
        Ok(Self {
            inner: Arc::new(Inner {
                transport: inner.transport.for_own_runtime()?,
                patience: inner.patience,
                timeout: inner.timeout,
                #[cfg(feature = "postgres")]
                schema: inner.schema.clone(),
            }),
        })
    }

    /// How long trouble is ridden out.
    #[cfg(feature = "postgres")]
    pub(crate) fn patience(&self) -> Duration {
        self.inner.patience
    }

    /// The schema of Windlass in PostgreSQL.
    #[cfg(feature = "postgres")]
    pub(crate) fn schema(&self) -> &str {
        &self.inner.schema
    }

    /// Where this client's calls go.
    pub fn addresses(&self) -> Vec<String> {
        self.inner.transport.addresses()
    }

    /// Whether a call whose answer is lost may have happened. In one process no answer gets lost.
    pub(crate) fn answers_can_get_lost(&self) -> bool {
        matches!(self.inner.transport, Transport::Http(_))
    }

    /// Submits a task. Set more about it before you await:
    ///
    /// ```no_run
    /// # use windlass::{Client, Priority, TaskResult, task};
    /// # #[task] async fn greet(name: String) -> TaskResult<String> { Ok(name) }
    /// # async fn example(client: Client) -> windlass::Result<()> {
    /// let task = client.enqueue::<greet>("Ada").priority(Priority::High).max_retries(5).await?;
    /// println!("{} says {}", task.id(), task.result().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue<T: Task>(&self, input: impl Into<T::Input>) -> Enqueue<T::Output> {
        Enqueue::new(self.clone(), Submission::of::<T>(&input.into()))
    }

    /// Submits a task of a type that this program has no handler for.
    pub fn enqueue_untyped(&self, task_type: impl Into<String>, parameters: &Value) -> Enqueue<Value> {
        Enqueue::new(self.clone(), Submission::untyped(task_type.into(), parameters))
    }

    /// Submits up to 1,000 tasks of one type in one call: all or none.
    pub fn enqueue_many<T: Task>(&self, inputs: impl IntoIterator<Item = T::Input>) -> EnqueueMany<T::Output> {
        let tasks = inputs.into_iter().map(|input| Submission::of::<T>(&input)).collect();
        EnqueueMany::new(self.clone(), tasks)
    }

    /// A task that was submitted earlier, by its id.
    pub fn handle<T: Task>(&self, id: impl Into<TaskId>) -> TaskHandle<T::Output> {
        TaskHandle::new(self.clone(), id.into(), None)
    }

    /// How a task stands.
    pub async fn task(&self, id: impl Into<TaskId>) -> Result<TaskView> {
        let id = id.into();
        self.get(&format!("/api/v1/tasks/{}", path_part(id.as_str())), self.inner.timeout).await
    }

    /// How a task stands once it has ended, or when `at_most` is over.
    pub async fn wait(&self, id: impl Into<TaskId>, at_most: Duration) -> Result<TaskView> {
        /// What the server holds a request for, at most.
        const ONE_CALL: Duration = Duration::from_secs(30);
        let id = id.into();
        let begun = tokio::time::Instant::now();
        loop {
            let hold = at_most.saturating_sub(begun.elapsed()).min(ONE_CALL);
            let path = format!("/api/v1/tasks/{}?wait={}", path_part(id.as_str()), hold.as_secs_f64());
            let asked = tokio::time::Instant::now();
            let view: TaskView = self.get(&path, self.inner.timeout + hold).await?;
            if view.status.is_ended() || begun.elapsed() >= at_most {
                return Ok(view);
            }
            // A server that shuts down answers at once: do not spin.
            if asked.elapsed() < hold / 2 {
                tokio::time::sleep(EARLY_PAUSE.min(at_most.saturating_sub(begun.elapsed()))).await;
            }
        }
    }

    /// Cancels a task that has not ended. One that runs is cancelled at once; its worker is told.
    pub async fn cancel(&self, id: impl Into<TaskId>) -> Result<()> {
        let path = format!("/api/v1/tasks/{}", path_part(id.into().as_str()));
        self.call(Method::Delete, &path, None).await.map(|_| ())
    }

    /// Runs a scheduled, failed or dead task now.
    pub async fn retry(&self, id: impl Into<TaskId>) -> Result<()> {
        let path = format!("/api/v1/tasks/{}/retry", path_part(id.into().as_str()));
        self.call(Method::Post, &path, None).await.map(|_| ())
    }

    /// Any call of the API, for what this crate has no method for: see `/openapi.json`. Reads are repeated while nobody
    /// answers; anything else only while it surely did not happen.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(encode).transpose()?;
        let again = if method == Method::Get { Again::Always } else { Again::IfNotDone };
        let call = Call { method, path: path.to_owned(), body, timeout: self.inner.timeout, trace_parent: None };
        let answer = self.patiently(call, again).await?;
        let address = answer.address.clone();
        let body = answer.into_body()?;
        if body.is_empty() { Ok(Value::Null) } else { parse(&body, &address) }
    }

    /// Like [`Client::call`] for a read that the server may hold for a while; the text as it came.
    pub async fn read_text(&self, path: &str, hold: Duration) -> Result<String> {
        let call = Call {
            method: Method::Get,
            path: path.to_owned(),
            body: None,
            timeout: self.inner.timeout + hold,
            trace_parent: None,
        };
        let body = self.patiently(call, Again::Always).await?.into_body()?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, timeout: Duration) -> Result<T> {
        let call = Call { method: Method::Get, path: path.to_owned(), body: None, timeout, trace_parent: None };
        let answer = self.patiently(call, Again::Always).await?;
        let address = answer.address.clone();
        parse(&answer.into_body()?, &address)
    }

    /// A call that may be repeated: it carries keys of its own.
    pub(crate) async fn submit<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        trace_parent: Option<String>,
    ) -> Result<T> {
        let body = Some(encode(body)?);
        let call =
            Call { method: Method::Post, path: path.to_owned(), body, timeout: self.inner.timeout, trace_parent };
        // Without a network there is no key either: then only what surely did not happen is done again.
        let again = if self.answers_can_get_lost() { Again::Always } else { Again::IfNotDone };
        let answer = self.patiently(call, again).await?;
        let address = answer.address.clone();
        parse(&answer.into_body()?, &address)
    }

    /// A worker's call: sent once, the caller decides what follows.
    pub(crate) async fn post_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<T> {
        let call = Call {
            method: Method::Post,
            path: path.to_owned(),
            body: Some(encode(body)?),
            timeout,
            trace_parent: None,
        };
        let answer = self.inner.transport.send(call).await?;
        let address = answer.address.clone();
        parse(&answer.into_body()?, &address)
    }

    /// Like [`Client::post_once`], to leave.
    pub(crate) async fn delete_once(&self, path: &str, timeout: Duration) -> Result<()> {
        let call = Call { method: Method::Delete, path: path.to_owned(), body: None, timeout, trace_parent: None };
        self.inner.transport.send(call).await?.into_body().map(|_| ())
    }

    /// Sends a call until it is answered with something that lasts, or patience ends.
    async fn patiently(&self, call: Call, again: Again) -> Result<Answer> {
        let begun = tokio::time::Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            let failed = match self.inner.transport.send(call.clone()).await {
                Ok(answer) => match passing(&answer) {
                    Some(trouble) => Failed {
                        is_safe: again == Again::Always || trouble.surely_nothing,
                        pause: trouble.pause,
                        how: Ok(answer),
                    },
                    None => return Ok(answer),
                },
                Err(unreachable) => Failed {
                    is_safe: again == Again::Always || !unreachable.may_have_happened,
                    pause: None,
                    how: Err(unreachable),
                },
            };
            let pause = failed.pause.unwrap_or_default().max(backoff.next());
            if !failed.is_safe || begun.elapsed() + pause > self.inner.patience {
                return failed.how.map_err(Error::from);
            }
            tracing::debug!(path = call.path, ?pause, "trying again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Closes an embedded store: what was acknowledged is kept, later calls fail. Nothing to do for a server.
    #[cfg_attr(not(feature = "embedded"), allow(clippy::unused_async, reason = "awaits where there is a store"))]
    pub async fn close(&self) {
        match &self.inner.transport {
            Transport::Http(_) => {}
            #[cfg(feature = "embedded")]
            Transport::Embedded(embedded) => embedded.close().await,
        }
    }
}

/// Whether a call may be sent again after an answer that got lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Always,
    IfNotDone,
}

struct Failed {
    is_safe: bool,
    pause: Option<Duration>,
    how: Result<Answer, Unreachable>,
}

struct Trouble {
    surely_nothing: bool,
    pause: Option<Duration>,
}

/// A refusal that may pass, if it is one.
fn passing(answer: &Answer) -> Option<Trouble> {
    if answer.status < 429 {
        return None;
    }
    let problem: crate::Problem = serde_json::from_slice(&answer.body).unwrap_or_default();
    let problem = crate::Problem { status: answer.status, ..problem };
    problem.is_passing().then(|| Trouble {
        surely_nothing: problem.status == 429 || problem.applied.as_deref() == Some("no"),
        pause: problem.retry_after_seconds.map(Duration::from_secs),
    })
}

fn encode(body: &impl Serialize) -> Result<Bytes> {
    serde_json::to_vec(body).map(Bytes::from).map_err(Error::json("the call"))
}

fn parse<T: DeserializeOwned>(body: &[u8], address: &str) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::BadAnswer { address: address.to_owned(), reason: error.to_string() })
}

/// A text as one part of a path: whatever is not plain is escaped.
pub(crate) fn path_part(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':') {
            path.push(byte as char);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
        path
    })
}
