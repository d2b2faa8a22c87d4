//! The routes: one file per thing that people talk about. The OpenAPI document is made
//! from the same registrations that serve.

mod attempt;
mod breakers;
mod bulk;
mod dlq;
mod dlq_analysis;
mod error_rules;
mod filters;
mod findings;
mod poll;
mod queues;
mod result;
mod retry_stats;
mod settings_body;
mod stats;
mod system;
mod task_actions;
mod tasks;
mod types;
mod worker_calls;
mod workers;

pub use stats::WorkerCounts;

use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass_core::ids::{TaskId, WorkerId};

use crate::edge;
use crate::engine::Engine;
use crate::problem::{Problem, ProblemDocument};

/// The routes with their description.
fn described() -> OpenApiRouter<Arc<Engine>> {
    OpenApiRouter::with_openapi(OpenApi::default())
        .routes(routes!(tasks::submit, tasks::list))
        .routes(routes!(tasks::submit_batch))
        .routes(routes!(bulk::cancel_many))
        .routes(routes!(bulk::dead_letter_many))
        .routes(routes!(tasks::get, task_actions::cancel, task_actions::amend))
        .routes(routes!(task_actions::retry))
        .routes(routes!(task_actions::dead_letter))
        .routes(routes!(task_actions::progress))
        .routes(routes!(task_actions::explain))
        .routes(routes!(worker_calls::register))
        .routes(routes!(poll::poll))
        .routes(routes!(result::result))
        .routes(routes!(worker_calls::heartbeat))
        .routes(routes!(attempt::progress))
        .routes(routes!(attempt::step))
        .routes(routes!(worker_calls::drain))
        .routes(routes!(worker_calls::deregister))
        .routes(routes!(workers::list))
        .routes(routes!(workers::drain))
        .routes(routes!(stats::queue_stats))
        .routes(routes!(retry_stats::retry_stats))
        .routes(routes!(findings::findings))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get, queues::change, queues::clear))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(types::list))
        .routes(routes!(types::get, types::change, types::clear))
        .routes(routes!(types::pause))
        .routes(routes!(types::resume))
        .routes(routes!(error_rules::get, error_rules::replace))
        .routes(routes!(error_rules::test))
        .routes(routes!(breakers::list))
        .routes(routes!(breakers::force))
        .routes(routes!(dlq::list))
        .routes(routes!(dlq_analysis::analysis))
        .routes(routes!(bulk::replay_many))
        .routes(routes!(bulk::discard_many))
        .routes(routes!(dlq::get, dlq::discard))
        .routes(routes!(dlq::replay))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .routes(routes!(system::openapi_json))
        .routes(routes!(system::root))
}

/// The description of the API (OpenAPI 3.1).
pub fn openapi() -> OpenApi {
    let mut document = described().into_openapi();
    document.info = InfoBuilder::new()
        .title("Windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Background jobs over HTTP. Every error is a problem document with a stable code."))
        .build();
    complete(&mut document);
    document
}

/// Calls that describe a body and can do without one.
const BODY_IS_OPTIONAL: [&str; 4] = [
    "/internal/workers/register",
    "/internal/workers/{id}/heartbeat",
    "/api/v1/tasks/{id}/retry",
    "/api/v1/dlq/{id}/replay",
];

/// What holds for every call: its name, and that it can be refused with a problem document.
fn complete(document: &mut OpenApi) {
    use utoipa::{PartialSchema, ToSchema};
    let components = document.components.get_or_insert_default();
    let name = ProblemDocument::name().into_owned();
    components.schemas.insert(name.clone(), ProblemDocument::schema());
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
    let response =
        ResponseBuilder::new().description("Refused; see `code`.").content("application/problem+json", content).build();
    for (path, item) in &mut document.paths.paths {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten();
        for operation in operations {
            // Handlers are named within their file; the whole document needs more than that.
            let tag = operation.tags.iter().flatten().next().map(|tag| tag.replace(' ', "_")).unwrap_or_default();
            operation.operation_id = operation.operation_id.take().map(|name| format!("{tag}_{name}"));
            if let Some(RefOr::T(body)) = &mut operation.request_body
                && BODY_IS_OPTIONAL.contains(&path.as_str())
            {
                body.required = Some(Required::False);
            }
            operation.responses.responses.insert("default".to_owned(), RefOr::T(response.clone()));
        }
    }
}

/// What serves.
pub fn router(engine: &Arc<Engine>) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .method_not_allowed_fallback(edge::no_method)
        .fallback(edge::no_route)
        .layer(from_fn_with_state(Arc::clone(engine), edge::edge))
        .with_state(Arc::clone(engine))
}

/// A task id from a path. One that is no id at all names no task either.
fn task_id(text: &str) -> Result<TaskId, Problem> {
    TaskId::from_str(text).map_err(|_| Problem::no_such_task(text.escape_debug()))
}

/// A worker id from a path.
fn worker_id(text: &str) -> Result<WorkerId, Problem> {
    WorkerId::from_str(text).map_err(|_| Problem::no_such_worker(text.escape_debug()))
}
