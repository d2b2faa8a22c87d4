//! The `#[task]` attribute of the `windlass` crate.

mod arguments;
mod expand;

use proc_macro::TokenStream;

/// Makes a task of an async function.
///
/// The function stays as it is and can be called as before. Beside it comes a type of the same name that implements
/// `windlass::Task`: `client.enqueue::<send_email>(…)`, `worker.handle::<send_email>()`.
///
/// The function takes its input, a [`Context`](../windlass/struct.Context.html), both in any order, or nothing. It
/// returns nothing, or a `Result` whose error is a `TaskError` or anything that can be shown.
///
/// | argument | |
/// |---|---|
/// | `name = "mail.send"` | the task type; the function's name unless given |
/// | `aliases("send_mail")` | earlier names, still served |
/// | `version = 2` | the version of the input |
/// | `upcast = function` | `fn(serde_json::Value, u32) -> TaskResult<serde_json::Value>`: from earlier versions |
/// | `queue = "mail"`, `priority = "high"`, `max_retries = 5`, `timeout_seconds = 30` | unless a submit says otherwise |
#[proc_macro_attribute]
pub fn task(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = syn::parse_macro_input!(attribute as arguments::Arguments);
    let function = syn::parse_macro_input!(item as syn::ItemFn);
    expand::expand(&arguments, &function).unwrap_or_else(syn::Error::into_compile_error).into()
}
