//! Request bodies: collected up to a limit, scanned, parsed once, and refused with the
//! name of the field at fault.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::engine::Engine;
use crate::json_scan::{self, Refusal};
use crate::problem::{Code, Problem};

/// The body of a call about one thing.
pub struct JsonBody<T>(pub T);

/// The body of a call that may carry many items and be larger for it.
pub struct JsonBatch<T>(pub T);

/// The body of a call that can do without one; an empty body counts as `{}`.
pub struct OptionalBody<T>(pub T);

/// The body of a call that may carry many items and can do without any.
pub struct OptionalBatch<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Engine>> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Problem> {
        let bytes = collect(request, engine, engine.config.max_single_bytes()).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Engine>> for JsonBatch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Problem> {
        let bytes = collect(request, engine, engine.config.max_batch_bytes).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Engine>> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Problem> {
        let bytes = collect(request, engine, engine.config.max_single_bytes()).await?;
        parse(if bytes.is_empty() { b"{}" } else { &bytes }).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Engine>> for OptionalBatch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Problem> {
        let bytes = collect(request, engine, engine.config.max_batch_bytes).await?;
        parse(if bytes.is_empty() { b"{}" } else { &bytes }).map(Self)
    }
}

async fn collect(request: Request<Body>, engine: &Engine, limit: usize) -> Result<Bytes, Problem> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if let Some(size) = announced
        && size > limit
    {
        return Err(Problem::too_large("body", limit, size));
    }
    let body = Limited::new(request.into_body(), limit).collect();
    let Ok(collected) = tokio::time::timeout(engine.config.body_timeout, body).await else {
        return Err(Problem::new(Code::InvalidJson, "the body did not arrive in time"));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Problem::new(Code::PayloadTooLarge, format!("the body has more than the limit of {limit} bytes")))
        }
        Err(error) => Err(Problem::new(Code::InvalidJson, format!("the body could not be read: {error}"))),
    }
}

/// Parses a body. The second parse, which tracks where it is, runs only to explain a failure.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let text = json_scan::scan(bytes).map_err(refused)?;
    if !text.trim_start().starts_with('{') {
        return Err(no_object(text));
    }
    serde_json::from_str(text).map_err(|error| explain::<T>(text, &error))
}

/// The problem of a body that is no object: serde would take an array for one, field by field.
fn no_object(text: &str) -> Problem {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Problem::invalid_field("body", "must be a JSON object"),
        Err(error) => not_json(text, &error),
    }
}

fn not_json(text: &str, error: &serde_json::Error) -> Problem {
    let at = byte_position(text, error.line(), error.column());
    Problem::new(Code::InvalidJson, format!("the body is not JSON at byte {at}: {}", message_of(error)))
}

fn refused(refusal: Refusal) -> Problem {
    let (at, what) = match refusal {
        Refusal::NotUtf8(at) => (at, "the body is not UTF-8"),
        Refusal::HugeNumber(at) => (at, "a number is beyond what a 64-bit float can hold"),
        Refusal::LoneSurrogate(at) => (at, "a string has half of a surrogate pair"),
        Refusal::Nul(at) => (at, "a string has \\u0000, which cannot be stored everywhere"),
        Refusal::TooDeep(at) => {
            let limit = windlass_core::limits::JSON_DEPTH;
            let detail = format!("the body is nested deeper than {limit} levels at byte {at}");
            return Problem::new(Code::PayloadTooDeep, detail);
        }
    };
    Problem::new(Code::InvalidJson, format!("{what} at byte {at}"))
}

fn explain<T: DeserializeOwned>(text: &str, error: &serde_json::Error) -> Problem {
    if error.classify() != Category::Data {
        return not_json(text, error);
    }
    let deserializer = &mut serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(deserializer) {
        Err(error) => explain_field(&error.path().to_string(), &message_of(error.inner())),
        // The two parses disagree only on trailing characters, which are no data error.
        Ok(_) => Problem::new(Code::InvalidJson, message_of(error)),
    }
}

/// The problem of a value that has another form than the call wants.
pub fn explain_value<'de, T: Deserialize<'de>>(value: serde_json::Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error: serde_path_to_error::Error<serde_json::Error>| {
        explain_field(&error.path().to_string(), &message_of(error.inner()))
    })
}

fn explain_field(path: &str, message: &str) -> Problem {
    let path = if path == "." { "" } else { path };
    let join = |name: &str| {
        // Some errors are noticed at the field, some at what contains it.
        let is_there = path == name || path.ends_with(&format!(".{name}"));
        match path {
            "" => name.to_owned(),
            _ if is_there => path.to_owned(),
            _ => format!("{path}.{name}"),
        }
    };
    let named = |prefix: &str| message.strip_prefix(prefix).and_then(|rest| rest.split('`').next());
    let problem = if let Some(name) = named("unknown field `") {
        Problem::unknown_field(&join(name))
    } else if let Some(name) = named("missing field `") {
        Problem::missing_field(&join(name))
    } else if let Some(name) = named("duplicate field `") {
        Problem::invalid_field(join(name), "is given twice")
    } else if path.is_empty() {
        Problem::invalid_field("body", format_args!("is not what this call wants: {}", in_words(message)))
    } else if message.starts_with("must ") || message.starts_with("is not supported") {
        Problem::invalid_field(path, message)
    } else {
        Problem::invalid_field(path, format_args!("is not valid: {}", in_words(message)))
    };
    match batch_index(path) {
        Some(index) => problem.at_index(index),
        None => problem,
    }
}

/// The message without the names that types have in this program.
fn in_words(message: &str) -> String {
    const NAMES: [(&str, &str); 7] = [
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number that is not negative"),
        ("u64", "a whole number that is not negative"),
        ("usize", "a whole number that is not negative"),
        ("i64", "a whole number"),
        ("f64", "a number"),
        ("a sequence", "an array"),
    ];
    let Some((given, expected)) = message.split_once(", expected ") else { return message.to_owned() };
    let word = NAMES.iter().find(|(name, _)| *name == expected).map(|(_, word)| *word);
    let word = word.or_else(|| expected.starts_with("struct ").then_some("an object"));
    format!("{given}, expected {}", word.unwrap_or(expected))
}

/// The index in a path such as `tasks[3].priority`.
fn batch_index(path: &str) -> Option<usize> {
    let rest = path.strip_prefix("tasks[").or_else(|| path.strip_prefix("results["))?;
    rest.split(']').next()?.parse().ok()
}

/// The message without the position that `serde_json` appends.
fn message_of(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

fn byte_position(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    before + column.saturating_sub(1)
}

/// Reads any JSON value, `null` too, as given.
pub fn some_json<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<windlass_core::json::Json>, D::Error> {
    windlass_core::json::Json::deserialize(deserializer).map(Some)
}

/// A field of a later version: `null` says nothing and is fine, a value is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotYet;

impl<'de> Deserialize<'de> for NotYet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<serde::de::IgnoredAny>::deserialize(deserializer)? {
            None => Ok(Self),
            Some(_) => Err(serde::de::Error::custom("is not supported by this version yet")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only the parse is of interest")]
    struct Inner {
        count: u32,
        #[serde(default)]
        later: NotYet,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only the parse is of interest")]
    struct Outer {
        tasks: Vec<Inner>,
        #[serde(default, deserialize_with = "some_json")]
        parameters: Option<windlass_core::json::Json>,
    }

    #[test]
    fn failures_name_code_field_and_item() {
        for (body, code, field) in [
            (r"{", Code::InvalidJson, None),
            ("", Code::InvalidJson, None),
            (r#"{"tasks":[]} x"#, Code::InvalidJson, None),
            (r#"{"parameters":{"a":tru}}"#, Code::InvalidJson, None),
            (r"{}", Code::MissingField, Some("tasks")),
            (r"[]", Code::InvalidField, Some("body")),
            (r#"{"tasks":[],"x":1}"#, Code::UnknownField, Some("x")),
            (r#"{"tasks":[{"count":1},{"count":1,"x":1}]}"#, Code::UnknownField, Some("tasks[1].x")),
            (r#"{"tasks":[{}]}"#, Code::MissingField, Some("tasks[0].count")),
            (r#"{"tasks":[{"count":-1}]}"#, Code::InvalidField, Some("tasks[0].count")),
            (r#"{"tasks":[{"count":1,"later":2}]}"#, Code::InvalidField, Some("tasks[0].later")),
            (r#"{"tasks":[],"tasks":[]}"#, Code::InvalidField, Some("tasks")),
        ] {
            let problem = parse::<Outer>(body.as_bytes()).expect_err(body);
            assert_eq!((problem.code(), problem.field()), (code, field), "{body}: {}", problem.detail());
        }
        let parsed: Outer = parse(br#"{"tasks":[{"count":1,"later":null}],"parameters":null}"#).expect("valid");
        assert!(parsed.parameters.is_some_and(|parameters| parameters.is_null()));
    }
}
