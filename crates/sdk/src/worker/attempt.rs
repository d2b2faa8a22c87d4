//! One attempt: the handler runs, and whatever it does there is an end to report.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;
use tracing::Instrument;

use crate::context::{Attempt, Context};
use crate::protocol::Outcome;
use crate::stop::StopReason;
use crate::submission::VERSION_TAG;
use crate::task::{Task, decode};
use crate::task_error::{Ending, TaskError, TaskResult};
use crate::worker::common::Handler;
use crate::worker::lane::Lane;

/// A newer version than this program knows: another worker will know it, soon.
const NEWER_VERSION_SNOOZE: Duration = Duration::from_secs(15);

/// What a log line shows of an error.
const LOGGED_CHARS: usize = 200;

/// The handler of a typed task.
pub(crate) fn handler<T: Task>() -> Handler {
    Arc::new(|context: Context| {
        Box::pin(async move {
            let version = version(&context)?;
            if version > T::VERSION {
                tracing::warn!(
                    version,
                    known = T::VERSION,
                    "the parameters are of a newer version than this worker knows; left for a newer worker"
                );
                return Err(TaskError::snooze(NEWER_VERSION_SNOOZE));
            }
            let input = decode::<T>(context.attempt.task.parameters.get(), version)?;
            let output = T::run(input, context).await?;
            let result = serde_json::value::to_raw_value(&output).map_err(|error| {
                TaskError::permanent(format!("the result has no JSON form: {error}")).code("code_bug")
            })?;
            Ok(Some(result))
        })
    })
}

fn version(context: &Context) -> TaskResult<u32> {
    let Some(tag) = context.tags().get(VERSION_TAG) else { return Ok(1) };
    tag.parse().map_err(|_| {
        TaskError::permanent(format!("the tag {VERSION_TAG} is {tag:?} and not a version")).code("invalid_parameters")
    })
}

/// Runs the handler of an attempt and reports its end; then goes on with whoever waits for the slot.
pub(crate) async fn supervise(lane: Arc<Lane>, first: Arc<Attempt>) {
    let mut next = Some(first);
    while let Some(attempt) = next.take() {
        let mut end = End { lane: &lane, attempt: Some(Arc::clone(&attempt)) };
        let begun = Instant::now();
        let outcome = run_and_tell(&lane, &attempt).await;
        end.attempt = None;
        next = lane.ended(attempt, outcome, begun.elapsed());
        // Handlers that never wait must not keep others of this runtime waiting.
        tokio::task::coop::consume_budget().await;
    }
}

async fn run_and_tell(lane: &Lane, attempt: &Arc<Attempt>) -> Outcome {
    let task = &attempt.task;
    if attempt.stop.is_stopped() {
        // While it waited for a slot.
        return Outcome::Released;
    }
    let span = tracing::info_span!(
        "task",
        task_id = %task.task_id,
        task_type = task.task_type,
        attempt = task.attempt,
        trace_id = task.trace_id,
    );
    async {
        let outcome = match lane.common.handlers.get(&task.task_type) {
            Some(handler) => run(begin(handler, attempt), lane, attempt).await,
            // Registered types have handlers: this server gave what was not asked for.
            None => {
                Err(TaskError::retry(format!("this worker has no handler for {}", task.task_type)).code("no_handler"))
            }
        };
        outcome_of(outcome, attempt)
    }
    .instrument(span)
    .await
}

/// Whatever happens, an attempt has an end: a panic where nobody catches it, a runtime that goes away.
struct End<'a> {
    lane: &'a Arc<Lane>,
    attempt: Option<Arc<Attempt>>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let Some(attempt) = self.attempt.take() else { return };
        let outcome = if std::thread::panicking() {
            outcome_of(Err(panicked(&"a panic while the handler was dropped")), &attempt)
        } else {
            Outcome::Released
        };
        let next = self.lane.ended(attempt, outcome, Duration::ZERO);
        if let (Some(next), Ok(runtime)) = (next, tokio::runtime::Handle::try_current()) {
            runtime.spawn(supervise(Arc::clone(self.lane), next));
        }
    }
}

/// The handler's future. Making it runs the handler's own code, which may panic.
fn begin(handler: &Handler, attempt: &Arc<Attempt>) -> Running {
    let context = Context { attempt: Arc::clone(attempt) };
    match catch_unwind(AssertUnwindSafe(|| handler(context))) {
        Ok(running) => running,
        Err(payload) => Box::pin(std::future::ready(Err(panicked(&*payload)))),
    }
}

/// The handler without a worker around it: no deadline, nobody to stop it.
#[cfg(feature = "testing")]
pub(crate) async fn run_alone(handler: &Handler, attempt: &Arc<Attempt>) -> TaskResult<Option<Box<RawValue>>> {
    CatchPanic(begin(handler, attempt)).await
}

/// The handler against its deadline and whoever wants it stopped.
async fn run(handler: Running, lane: &Lane, attempt: &Attempt) -> TaskResult<Option<Box<RawValue>>> {
    let mut handler = CatchPanic(handler);
    let reason = tokio::select! {
        biased;
        ended = &mut handler => return ended,
        reason = attempt.stop.stopped() => reason,
        () = tokio::time::sleep_until(attempt.deadline) => {
            attempt.stop.stop(StopReason::TimedOut);
            StopReason::TimedOut
        }
    };
    let grace = match reason {
        StopReason::Cancelled | StopReason::TimedOut | StopReason::LeaseLost => lane.common.settings.stop_grace,
        // It had the whole shutdown timeout.
        StopReason::Shutdown => Duration::ZERO,
    };
    if let Ok(ended) = tokio::time::timeout(grace, &mut handler).await {
        return ended;
    }
    tracing::warn!(?reason, "the handler did not stop and is dropped");
    // What it leaves behind may panic while it is dropped.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
        return Err(panicked(&*payload));
    }
    match reason {
        StopReason::TimedOut => {
            let ran = attempt.started.elapsed();
            Err(TaskError::retry(format!("the handler was stopped after {:.1} s", ran.as_secs_f64())).code("timeout"))
        }
        StopReason::Cancelled | StopReason::LeaseLost | StopReason::Shutdown => Err(TaskError::release()),
    }
}

/// What the end of a handler means for its task.
pub(crate) fn outcome_of(ended: TaskResult<Option<Box<RawValue>>>, attempt: &Attempt) -> Outcome {
    let error = match ended {
        Ok(result) => return Outcome::Completed { result, enqueue: attempt.take_follow_ups() },
        Err(error) => error,
    };
    match error.into_ending() {
        Ending::Failed(error) => {
            // The whole of it is kept with the task; a log line is a line.
            let first_line: String =
                error.message.lines().next().unwrap_or_default().chars().take(LOGGED_CHARS).collect();
            tracing::warn!(code = error.code, retriable = error.retriable, "the attempt failed: {first_line}");
            Outcome::Failed { error }
        }
        Ending::Snoozed(span) => Outcome::Snoozed { snooze_seconds: span.as_secs_f64() },
        Ending::Cancelled(reason) => Outcome::Cancelled { reason },
        Ending::Released => Outcome::Released,
    }
}

thread_local! {
    /// Where the panic that is unwinding on this thread began.
    static PANIC_PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the place of every panic, then does what was done before.
pub(crate) fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(ToString::to_string);
            PANIC_PLACE.with_borrow_mut(|noted| *noted = place);
            before(panic);
        }));
    });
}

type Running = Pin<Box<dyn Future<Output = TaskResult<Option<Box<RawValue>>>> + Send>>;

/// A handler whose panics are ends like others.
struct CatchPanic(Running);

impl Future for CatchPanic {
    type Output = TaskResult<Option<Box<RawValue>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        // A future that panicked is not polled again, so nobody sees what it left half-done.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(payload) => Poll::Ready(Err(panicked(&*payload))),
        }
    }
}

fn panicked(payload: &(dyn Any + Send)) -> TaskError {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is not a text".to_owned());
    let place = PANIC_PLACE.with_borrow_mut(Option::take);
    let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
    TaskError::permanent(format!("the handler panicked{place}: {message}")).code("panic")
}
