//! Background tasks that are never silently lost.
//!
//! Write an async function, put [`#[task]`](macro@task) on it, enqueue it, run it:
//!
//! ```no_run
//! use windlass::{Client, TaskResult, Worker, task};
//!
//! #[task]
//! async fn greet(name: String) -> TaskResult<String> {
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> windlass::Result<()> {
//!     let client = Client::connect("sqlite:jobs").await?; // or "http://127.0.0.1:7070"
//!     let worker = Worker::new(&client).handle::<greet>().start().await?;
//!     println!("{}", client.enqueue::<greet>("Ada").await?.result().await?);
//!     worker.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! - [`Client`] enqueues and asks; the address says whether it talks to a server or to a store in this process (feature
//!   `embedded`).
//! - [`Worker`] runs handlers: [`Context`] is what they know, [`TaskError`] how they end when they do not return a value.
//! - `Client::enqueue_in` (feature `postgres`) enqueues in your own PostgreSQL transaction.
//! - `windlass::testing` (feature `testing`) runs handlers in tests: inline, by hand, with a clock to move.

mod address;
mod backoff;
mod breaker;
mod client;
mod context;
#[cfg(feature = "embedded")]
mod embedded;
mod enqueue;
mod error;
mod handle;
mod http;
mod keys;
#[cfg(feature = "postgres")]
mod postgres;
mod progress;
mod protocol;
mod random;
mod stop;
mod submission;
mod task;
mod task_error;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod view;
mod worker;

pub use breaker::{Breaker, BreakerSettings};
pub use client::{Client, ClientBuilder};
pub use context::Context;
pub use enqueue::{Enqueue, EnqueueMany};
pub use error::{Error, Problem, Result, Unreachable};
pub use handle::TaskHandle;
pub use keys::{DeduplicatedBy, OnFailure, Unique};
#[cfg(feature = "postgres")]
pub use postgres::{EnqueueIn, EnqueueManyIn};
pub use progress::Progress;
pub use stop::{StopReason, StopToken};
pub use submission::{Options, Priority, Retry};
pub use task::Task;
pub use task_error::{IntoTaskError, TaskError, TaskResult};
pub use transport::Method;
pub use view::{FailureView, ProgressView, Status, TaskId, TaskView};
pub use windlass_macros::task;
pub use worker::{RunningWorker, Worker};

/// The guide, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sdk.md")]
struct Guide;

/// What the code that `#[task]` writes refers to.
#[doc(hidden)]
pub mod __private {
    pub use serde_json::Value;

    use crate::{IntoTaskError, TaskResult};

    /// A result of a handler, whatever its error.
    #[diagnostic::on_unimplemented(
        message = "a task returns a `Result`, or nothing",
        label = "not a `Result` whose error is a `TaskError` or can be shown",
        note = "return `TaskResult<{Self}>` and wrap the value in `Ok`"
    )]
    pub trait Outcome {
        /// What comes out when it goes well.
        type Value;
        /// The result as the worker wants it.
        fn into_task_result(self) -> TaskResult<Self::Value>;
    }

    impl<T, E: IntoTaskError> Outcome for Result<T, E> {
        type Value = T;
        fn into_task_result(self) -> TaskResult<T> {
            self.map_err(IntoTaskError::into_task_error)
        }
    }
}
