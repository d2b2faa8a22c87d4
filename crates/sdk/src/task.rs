//! What a task is to the program that runs it.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::context::Context;
use crate::submission::Options;
use crate::task_error::{TaskError, TaskResult};

/// A kind of work: its name, what goes in, what comes out, and how it is done.
///
/// The attribute [`task`](crate::task) makes one of an async function. By hand it is a few lines:
///
/// ```
/// use windlass::{Context, Task, TaskResult};
///
/// struct Greet;
///
/// impl Task for Greet {
///     const NAME: &'static str = "greet";
///     type Input = String;
///     type Output = String;
///     async fn run(name: String, _: Context) -> TaskResult<String> {
///         Ok(format!("Hello, {name}!"))
///     }
/// }
/// ```
pub trait Task: Sized + 'static {
    /// The type under which tasks are submitted.
    const NAME: &'static str;
    /// Earlier names, so that a rename does not strand what was submitted under them.
    const ALIASES: &'static [&'static str] = &[];
    /// The version of `Input`. Raise it with every change that older parameters do not fit, and let
    /// [`Task::upcast`] turn those into the present form.
    const VERSION: u32 = 1;
    /// What the handler gets.
    type Input: Serialize + DeserializeOwned + Send + 'static;
    /// What the handler returns.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The work. Returning is control flow: see [`TaskError`].
    fn run(input: Self::Input, context: Context) -> impl Future<Output = TaskResult<Self::Output>> + Send;

    /// Turns parameters of an earlier version into the present form.
    fn upcast(parameters: Value, version: u32) -> TaskResult<Value> {
        let _ = version;
        Ok(parameters)
    }

    /// How tasks of this kind are treated unless a submit says otherwise.
    fn options() -> Options {
        Options::default()
    }
}

/// Reads parameters, of whichever version they are.
pub(crate) fn decode<T: Task>(parameters: &str, version: u32) -> TaskResult<T::Input> {
    let unreadable = |error: serde_json::Error| {
        TaskError::permanent(format!("the parameters do not fit {}: {error}", T::NAME)).code("invalid_parameters")
    };
    if version < T::VERSION {
        let older = serde_json::from_str(parameters).map_err(unreadable)?;
        return serde_json::from_value(T::upcast(older, version)?).map_err(unreadable);
    }
    match serde_json::from_str(parameters) {
        // A task without input can be submitted without parameters, which arrives as `{}`.
        Err(error) if parameters == "{}" => serde_json::from_str("null").map_err(|_| unreadable(error)),
        read => read.map_err(unreadable),
    }
}
