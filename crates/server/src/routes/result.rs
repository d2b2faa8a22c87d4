//! Results of attempts, one or many.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::ids::{LeaseToken, TaskId, WorkerId};
use windlass_core::json::Json as RawJson;
use windlass_core::names::Text;
use windlass_core::store::{Each, Finish, Finished, LeaseError};

use super::task_actions::only;
use super::worker_id;
use crate::engine::Engine;
use crate::json_body::{JsonBatch, some_json};
use crate::path::Path;
use crate::problem::Problem;
use crate::results::{ErrorBody, Given, ResultAnswer, ResultBody, ResultStatus, check_count, is_lost};
use crate::submit::{Builder, SubmitBody};

/// One result, or `results` with many.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultCall {
    /// Many results; then no other field is given.
    results: Option<Vec<ResultBody>>,
    #[schema(value_type = Option<String>)]
    task_id: Option<Given<TaskId>>,
    #[schema(value_type = Option<String>)]
    lease_token: Option<Given<LeaseToken>>,
    status: Option<ResultStatus>,
    #[serde(default, deserialize_with = "some_json")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<RawJson>,
    error: Option<ErrorBody>,
    snooze_seconds: Option<f64>,
    reason: Option<String>,
    enqueue: Option<Vec<SubmitBody>>,
}

/// The answer to one result, or per item.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ResultReply {
    /// To one result.
    One {
        /// True.
        acknowledged: bool,
        /// Where the result put the task.
        status: &'static str,
        /// Ids of the tasks stored with it.
        #[schema(value_type = Vec<String>)]
        enqueued: Vec<TaskId>,
    },
    /// To many.
    Many {
        /// One answer per result.
        results: Vec<ResultAnswer>,
    },
}

/// Takes the ends of attempts. The same result twice is acknowledged twice and applied once.
#[utoipa::path(post, path = "/internal/workers/{id}/result", tag = "worker calls", params(("id" = String, Path)),
    request_body = ResultCall, responses((status = 200, body = ResultReply)))]
pub async fn result(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBatch(body): JsonBatch<ResultCall>,
) -> Result<Json<ResultReply>, Problem> {
    let worker = worker_id(&id)?;
    if let Some(results) = body.results {
        if body.task_id.is_some() || body.lease_token.is_some() || body.status.is_some() {
            return Err(Problem::invalid_field("results", "cannot be given together with a single result"));
        }
        check_count(&results)?;
        let traces = Traces::of(&engine, &results).await?;
        return Ok(Json(ResultReply::Many { results: finish(&engine, worker, results, &traces).await? }));
    }
    let single = ResultBody {
        task_id: body.task_id.ok_or_else(|| Problem::missing_field("task_id"))?,
        lease_token: body.lease_token.ok_or_else(|| Problem::missing_field("lease_token"))?,
        status: body.status.ok_or_else(|| Problem::missing_field("status"))?,
        result: body.result,
        error: body.error,
        snooze_seconds: body.snooze_seconds,
        reason: body.reason,
        enqueue: body.enqueue,
    };
    let traces = Traces::of(&engine, std::slice::from_ref(&single)).await?;
    let settings = engine.store.settings();
    let builder = traces.builder(&Builder::new(&engine, &settings, None), &single);
    let finish = single.into_finish(&builder, engine.config.max_payload_bytes)?;
    match only(engine.store.finish(worker, vec![finish]).await)? {
        Ok(finished) => Ok(Json(ResultReply::One {
            acknowledged: true,
            status: finished.status.as_str(),
            enqueued: finished.follow_ups,
        })),
        Err(error) => {
            if error == LeaseError::Lost {
                engine.metrics.lease_lost();
            }
            Err(error.into())
        }
    }
}

/// The traces of tasks whose results bring follow-ups: a follow-up belongs to the trace of
/// the task that made it.
#[derive(Default)]
pub struct Traces(BTreeMap<TaskId, Text>);

impl Traces {
    /// Looks the tasks up, if there are any.
    pub async fn of(engine: &Engine, results: &[ResultBody]) -> Result<Self, Problem> {
        let brings_more = |result: &&ResultBody| result.enqueue.as_ref().is_some_and(|tasks| !tasks.is_empty());
        let ids: Vec<_> = results.iter().filter(brings_more).filter_map(|result| result.task_id.0).collect();
        if ids.is_empty() {
            return Ok(Self::default());
        }
        let tasks = engine.store.get(ids).await?;
        let traced = tasks.into_iter().flatten().filter_map(|task| Some((task.id, task.spec.trace_parent?)));
        Ok(Self(traced.collect()))
    }

    fn builder<'a>(&self, builder: &Builder<'a>, result: &ResultBody) -> Builder<'a> {
        builder.in_trace(result.task_id.0.and_then(|id| self.0.get(&id).cloned()))
    }
}

/// Hands results to the store; each is answered for itself.
pub async fn finish(
    engine: &Engine,
    worker: WorkerId,
    results: Vec<ResultBody>,
    traces: &Traces,
) -> Result<Vec<ResultAnswer>, Problem> {
    let settings = engine.store.settings();
    let builder = Builder::new(engine, &settings, None);
    let ids: Vec<_> = results.iter().map(|result| result.task_id.0).collect();
    let (mut sent, mut refused) = (Vec::with_capacity(results.len()), BTreeMap::new());
    for (index, result) in results.into_iter().enumerate() {
        let builder = traces.builder(&builder, &result);
        match result.into_finish(&builder, engine.config.max_payload_bytes) {
            Ok(finish) => sent.push(finish),
            Err(problem) => {
                refused.insert(index, problem);
            }
        }
    }
    let mut answers = send(engine, worker, sent).await?.into_iter();
    let answer = |(index, id)| {
        let outcome = match refused.remove(&index) {
            Some(problem) => Err(problem),
            None => answers.next().unwrap_or(Err(LeaseError::Lost)).map_err(Problem::from),
        };
        if outcome.as_ref().is_err_and(is_lost) {
            engine.metrics.lease_lost();
        }
        ResultAnswer::new(id, outcome)
    };
    Ok(ids.into_iter().enumerate().map(answer).collect())
}

async fn send(engine: &Engine, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
    if results.is_empty() { Ok(Vec::new()) } else { engine.store.finish(worker, results).await }
}
