//! Problem documents (RFC 9457): how every refusal looks on the wire.
//!
//! A handler returns a [`Problem`]; the edge writes it out, because only the edge knows
//! the id of the request.

use std::borrow::Cow;
use std::fmt::Write;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::error_rules::BadRule;
use windlass_core::store::{
    Applied, BreakerError, ChangeError, LeaseError, ListError, SettingsError, StoreError, WorkerError,
};

macro_rules! codes {
    ($($code:ident, $name:literal, $status:ident, $title:literal, $meaning:literal;)*) => {
        /// Every stable error code of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $meaning] $code,)*
        }

        impl Code {
            /// All codes, by status.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            /// The HTTP status that it comes with.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status,)* }
            }

            /// What is always true of it.
            pub fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }

            /// What it means and what to do, for the documentation.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => $meaning,)* }
            }
        }
    };
}

codes! {
    InvalidJson, "invalid_json", BAD_REQUEST, "The body is not acceptable JSON",
        "The body is not JSON, or has something that JSON allows and Windlass refuses: bytes that are not UTF-8, a lone surrogate, `\\u0000`, a number beyond 64-bit floats. `detail` names the byte.";
    UnknownField, "unknown_field", BAD_REQUEST, "A field or query parameter is unknown",
        "`field` is none that the call knows. It is refused so that a typo is not silently ignored.";
    InvalidField, "invalid_field", BAD_REQUEST, "A field or query parameter has a bad value",
        "`field` has a wrong type or a value out of its range; `detail` says what it must be.";
    MissingField, "missing_field", BAD_REQUEST, "A required field is missing",
        "`field` is required.";
    PayloadTooDeep, "payload_too_deep", BAD_REQUEST, "The JSON is nested too deeply",
        "The body has more than 64 levels of arrays and objects.";
    TaskNotFound, "task_not_found", NOT_FOUND, "There is no such task",
        "No task has this id, or it is past its retention, or (under `/api/v1/dlq`) it is no dead letter.";
    WorkerNotFound, "worker_not_found", NOT_FOUND, "There is no such worker",
        "The worker never registered, deregistered, or was forgotten after a long silence. Register again.";
    QueueNotFound, "queue_not_found", NOT_FOUND, "There is no such queue",
        "The queue has neither settings nor live tasks.";
    TaskTypeNotFound, "task_type_not_found", NOT_FOUND, "There is no such task type",
        "The task type has no settings.";
    BreakerNotFound, "breaker_not_found", NOT_FOUND, "There is no such breaker",
        "A breaker is named by its scope (`type` or `worker`) and the name of the type or the id of the worker, and takes the verbs `open`, `close` and `auto`.";
    NotFound, "not_found", NOT_FOUND, "There is no such route",
        "The path is none of this API. See `/openapi.json`.";
    MethodNotAllowed, "method_not_allowed", METHOD_NOT_ALLOWED, "The route does not know this method",
        "The `Allow` header lists the methods it knows.";
    LeaseLost, "lease_lost", CONFLICT, "The lease of this task is lost",
        "The lease lapsed, was given back, was revoked by a cancellation, or belongs to another worker. Nothing changed; drop the result.";
    NotCancellable, "not_cancellable", CONFLICT, "The task has already ended",
        "Only a task that has not ended can be cancelled.";
    NotRetryable, "not_retryable", CONFLICT, "The task cannot be run again now",
        "Only scheduled, failed and dead tasks can be retried by hand.";
    NotAmendable, "not_amendable", CONFLICT, "The task cannot be changed any more",
        "Only a task that waits can be changed or dead-lettered by hand.";
    NotDead, "not_dead", CONFLICT, "The task is not a dead letter",
        "Only dead letters can be replayed or discarded.";
    IdempotencyKeyReused, "idempotency_key_reused", CONFLICT, "The idempotency key belongs to another task",
        "The same key was used for another task type or other parameters.";
    UniqueConflict, "unique_conflict", CONFLICT, "Another task has the same unique key",
        "The task that `detail` names holds the unique key: it is there already, and the submit or the replay would make it twice. With `on_conflict` other than `error` a submit can stand for it, unless it would have to change a task that runs.";
    TooManySteps, "too_many_steps", CONFLICT, "The task has too many durable steps",
        "A task keeps at most 1,000 durable steps.";
    PayloadTooLarge, "payload_too_large", PAYLOAD_TOO_LARGE, "The body or a part of it is too large",
        "`detail` names the limit and the size. Keep large data elsewhere and pass a reference.";
    UnknownTaskType, "unknown_task_type", UNPROCESSABLE_ENTITY, "The task type was not set up",
        "The server runs with `strict_types`: set the type up first with `PUT /api/v1/task-types/{type}`.";
    BatchSpansQueues, "batch_spans_queues", UNPROCESSABLE_ENTITY, "The batch spans several queues",
        "This store writes a batch to one queue only. Send one batch per queue.";
    RateLimited, "rate_limited", TOO_MANY_REQUESTS, "Too many submits",
        "The tenant submits faster than the queue's `tenant_rate_limit` allows. Nothing was stored; try again after `Retry-After`.";
    QueueFull, "queue_full", TOO_MANY_REQUESTS, "The queue is full",
        "As many tasks wait as the queue's depth allows for this priority. Try again after `Retry-After`.";
    TooManyLanes, "too_many_lanes", TOO_MANY_REQUESTS, "The queue has too many lanes",
        "Too many combinations of type, capabilities and priority wait in one queue.";
    TooManyWorkers, "too_many_workers", TOO_MANY_REQUESTS, "Too many workers are registered",
        "Deregister workers that are gone, or wait until they are forgotten.";
    TooManySettings, "too_many_settings", TOO_MANY_REQUESTS, "Too many queues or types have settings",
        "At most 10,000 queues and types can have settings of their own.";
    TooManyBreakers, "too_many_breakers", TOO_MANY_REQUESTS, "Too many breakers are forced",
        "Leave breakers to themselves that need not be forced any more (`POST /api/v1/breakers/{scope}/{name}/auto`).";
    StoreUnavailable, "store_unavailable", SERVICE_UNAVAILABLE, "The store cannot serve now",
        "Try again after `Retry-After`. `applied` says whether a write may have happened (`no` or `unknown`).";
    Draining, "draining", SERVICE_UNAVAILABLE, "The server is shutting down",
        "A worker cannot register with a node that is about to stop. Another node, or the next start of this one, will serve it.";
}

/// A refusal on its way to the client.
#[derive(Clone, Debug)]
pub struct Problem(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    code: Code,
    detail: Cow<'static, str>,
    field: Option<String>,
    index: Option<usize>,
    retry_after_seconds: Option<u64>,
    applied: Option<&'static str>,
}

/// A problem document (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument<'a> {
    /// Identifies the kind of problem: `urn:windlass:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The kind of problem in words.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// What was wrong with this request.
    detail: &'a str,
    /// The stable code.
    code: &'a str,
    /// The field or query parameter at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// The item of a batch at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// When to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    /// Whether a write may have happened: `no` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<&'a str>,
    /// The id of the request, as in the `x-request-id` header.
    request_id: &'a str,
}

impl Problem {
    /// A problem with its detail.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            detail: detail.into(),
            field: None,
            index: None,
            retry_after_seconds: None,
            applied: None,
        }))
    }

    /// A field with a bad value; the rule reads on from its name.
    pub fn invalid_field(field: impl Into<String>, rule: impl std::fmt::Display) -> Self {
        let field = field.into();
        Self::new(Code::InvalidField, format!("{field} {rule}")).on_field(field)
    }

    /// A field that is required.
    pub fn missing_field(field: &str) -> Self {
        Self::new(Code::MissingField, format!("{field} is required")).on_field(field)
    }

    /// A field that the call does not know.
    pub fn unknown_field(field: &str) -> Self {
        Self::new(Code::UnknownField, format!("{field} is not known here")).on_field(field)
    }

    /// A part of the body above its limit.
    pub fn too_large(field: &str, limit: usize, size: usize) -> Self {
        Self::new(Code::PayloadTooLarge, format!("{field} has {size} bytes and the limit is {limit}")).on_field(field)
    }

    /// An unknown or malformed task id.
    pub fn no_such_task(id: impl std::fmt::Display) -> Self {
        Self::new(Code::TaskNotFound, format!("there is no task {id}"))
    }

    /// An unknown or malformed worker id.
    pub fn no_such_worker(id: impl std::fmt::Display) -> Self {
        Self::new(Code::WorkerNotFound, format!("there is no worker {id}; register first"))
    }

    /// Names the field at fault.
    #[must_use]
    pub fn on_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Names the item of a batch at fault.
    #[must_use]
    pub fn at_index(mut self, index: usize) -> Self {
        self.0.index = Some(index);
        self
    }

    /// Puts a path before the field: the item of a list that it is in.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        if let Some(field) = &mut self.0.field {
            field.insert(0, '.');
            field.insert_str(0, prefix);
        }
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after_seconds = Some(seconds);
        self
    }

    /// A part of what was asked for was done before this went wrong.
    #[must_use]
    pub fn maybe_applied(mut self) -> Self {
        self.0.applied = self.0.applied.map(|_| "unknown");
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What was wrong.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The field at fault.
    #[cfg(test)]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The response with its document.
    pub fn render(&self, request_id: &str) -> Response {
        let inner = &*self.0;
        let document = ProblemDocument {
            kind: format!("urn:windlass:problem:{}", inner.code.as_str()),
            title: inner.code.title(),
            status: inner.code.status().as_u16(),
            detail: &inner.detail,
            code: inner.code.as_str(),
            field: inner.field.as_deref(),
            index: inner.index,
            retry_after_seconds: inner.retry_after_seconds,
            applied: inner.applied,
            request_id,
        };
        // Plain strings and numbers always have a JSON form.
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = (inner.code.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = inner.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// An empty response that carries the problem to the edge, which writes it out.
    fn into_response(self) -> Response {
        let mut response = self.0.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        const TRY_AGAIN_SECONDS: u64 = 1;
        let applied = match error.applied {
            Applied::No => "no",
            Applied::Unknown => "unknown",
        };
        let mut problem = Self::new(Code::StoreUnavailable, error.to_string()).retry_after(TRY_AGAIN_SECONDS);
        problem.0.applied = Some(applied);
        problem
    }
}

impl From<ListError> for Problem {
    fn from(error: ListError) -> Self {
        match error {
            ListError::BadCursor => Self::invalid_field("cursor", "must be a next_cursor that this list gave"),
            ListError::Store(error) => error.into(),
        }
    }
}

impl From<WorkerError> for Problem {
    fn from(error: WorkerError) -> Self {
        const WORKERS_COME_AND_GO_SECONDS: u64 = 60;
        match error {
            WorkerError::Unknown => Self::new(Code::WorkerNotFound, "there is no such worker; register first"),
            WorkerError::TooMany => {
                Self::new(Code::TooManyWorkers, error.to_string()).retry_after(WORKERS_COME_AND_GO_SECONDS)
            }
            WorkerError::Store(error) => error.into(),
        }
    }
}

impl From<LeaseError> for Problem {
    fn from(error: LeaseError) -> Self {
        let code = match error {
            LeaseError::Lost => Code::LeaseLost,
            LeaseError::UnknownTask => Code::TaskNotFound,
            LeaseError::TooManySteps => Code::TooManySteps,
        };
        Self::new(code, error.to_string())
    }
}

impl From<BadRule> for Problem {
    fn from(bad: BadRule) -> Self {
        Self::invalid_field(bad.field, bad.rule)
    }
}

impl From<BreakerError> for Problem {
    fn from(error: BreakerError) -> Self {
        const BREAKERS_CLOSE_SECONDS: u64 = 60;
        match error {
            BreakerError::UnknownWorker => Self::new(Code::WorkerNotFound, error.to_string()),
            BreakerError::TooMany => {
                Self::new(Code::TooManyBreakers, error.to_string()).retry_after(BREAKERS_CLOSE_SECONDS)
            }
            BreakerError::Store(error) => error.into(),
        }
    }
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Self {
        const SETTINGS_CHANGE_SELDOM_SECONDS: u64 = 60;
        match error {
            SettingsError::Bad(bad) => Self::invalid_field(bad.field, bad.rule),
            SettingsError::BadRule(bad) => bad.into(),
            SettingsError::Unknown => Self::new(Code::NotFound, error.to_string()),
            SettingsError::TooMany => {
                Self::new(Code::TooManySettings, error.to_string()).retry_after(SETTINGS_CHANGE_SELDOM_SECONDS)
            }
            SettingsError::Store(error) => error.into(),
        }
    }
}

/// A refused change of a task, with the code that this change has for a wrong status.
pub fn refused_change(error: ChangeError, wrong_status: Code) -> Problem {
    match error {
        ChangeError::UnknownTask => Problem::new(Code::TaskNotFound, error.to_string()),
        ChangeError::WrongStatus(_) | ChangeError::ReplayedBefore => Problem::new(wrong_status, error.to_string()),
        ChangeError::UniqueConflict(_) => Problem::new(Code::UniqueConflict, error.to_string()),
    }
}

/// The table of all codes, as the documentation shows it.
pub fn markdown() -> String {
    let mut table = String::from("| status | code | meaning |\n|---|---|---|\n");
    for code in Code::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | `{}` | {} |", code.status().as_u16(), code.as_str(), code.meaning());
    }
    table
}
