//! Keys of tasks: order, how many at once, what counts as the same work, and batches at a pace.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use serde_json::{Value, json};
use windlass::testing::{Manual, in_memory};
use windlass::{Client, DeduplicatedBy, Error, Method, OnFailure, Retry, Status, TaskError, TaskResult, Unique, task};

#[task]
async fn note(text: String) -> TaskResult<String> {
    if text == "fails" { Err(TaskError::retry("not today")) } else { Ok(text) }
}

async fn seconds_ahead(client: &Client, id: &windlass::TaskId) -> f64 {
    let path = format!("/api/v1/tasks/{id}");
    let task = client.call(Method::Get, &path, None).await.unwrap();
    let micros = |name: &str| micros_of(task[name].as_str().unwrap());
    (micros("run_at") - micros("created_at")) / 1e6
}

/// Microseconds within a month, from an RFC 3339 time: enough to subtract two of a test.
fn micros_of(time: &str) -> f64 {
    let number = |from: usize, to: usize| time[from..to].parse::<f64>().unwrap();
    let seconds = ((number(8, 10) * 24.0 + number(11, 13)) * 60.0 + number(14, 16)) * 60.0 + number(17, 19);
    seconds * 1e6 + number(20, 26)
}

#[tokio::test]
async fn tasks_of_an_ordering_key_run_in_order() {
    let mut windlass = Manual::new().handle::<note>();
    let client = windlass.client().clone();
    let submit = |text: &str, on_failure| {
        client
            .enqueue::<note>(text)
            .ordering_key("order-7")
            .ordering_on_failure(on_failure)
            .retry(Retry::fixed(Duration::from_secs(60)).without_jitter())
    };
    let first = submit("fails", OnFailure::Block).max_retries(1).await.unwrap();
    let second = submit("second", OnFailure::Block).await.unwrap();
    windlass.drain().await;
    assert_eq!(first.view().await.unwrap().status, Status::Scheduled);
    let view = second.view().await.unwrap();
    assert_eq!(view.status, Status::Queued, "it waits with the one before it");
    assert_eq!((view.ordering_key.as_deref(), view.ordering_on_failure), (Some("order-7"), Some(OnFailure::Block)));
    windlass.advance(Duration::from_secs(61)).await;
    windlass.drain().await;
    assert_eq!(first.view().await.unwrap().status, Status::DeadLetter);
    assert_eq!(second.view().await.unwrap().status, Status::Completed);

    let third = submit("fails", OnFailure::Skip).await.unwrap();
    let fourth = submit("fourth", OnFailure::Skip).await.unwrap();
    windlass.drain().await;
    assert_eq!(third.view().await.unwrap().status, Status::Scheduled);
    assert_eq!(fourth.view().await.unwrap().status, Status::Completed, "it went on without the one before it");
}

#[tokio::test]
async fn a_concurrency_key_has_a_limit() {
    let client = in_memory();
    for text in ["a", "b", "c"] {
        client.enqueue::<note>(text).concurrency_key("customer-7", 2).await.unwrap();
    }
    let register = json!({"capacity": 5});
    let worker = client.call(Method::Post, "/internal/workers/register", Some(&register)).await.unwrap();
    let poll = format!("/internal/workers/{}/poll", worker["worker_id"].as_str().unwrap());
    let polled = client.call(Method::Post, &poll, Some(&json!({"available_capacity": 5}))).await.unwrap();
    assert_eq!(polled["tasks"].as_array().unwrap().len(), 2);
    let task = polled["tasks"][0]["task_id"].as_str().unwrap();
    let view = client.task(task).await.unwrap();
    assert_eq!((view.concurrency_key.as_deref(), view.concurrency_limit), (Some("customer-7"), Some(2)));
    let both = client.enqueue::<note>("x").concurrency_key("k", 1).ordering_key("k").await;
    assert_eq!(both.unwrap_err().code(), Some("invalid_field"));
}

#[tokio::test]
async fn the_same_work_is_kept_replaced_put_off_or_refused() {
    let client = in_memory();
    let submit = |number: u32, unique: Unique| {
        let parameters = json!({"customer": 7, "number": number});
        client.enqueue_untyped("report", &parameters).delay(Duration::from_secs(3600)).unique(unique)
    };
    let by = || Unique::by(["task_type", "parameters.customer"]);
    let first = submit(1, by()).await.unwrap();
    assert_eq!((first.was_there_before(), first.deduplicated_by()), (false, None));
    let number =
        async || first.view().await.unwrap().parameters.unwrap().get().parse::<Value>().unwrap()["number"].clone();

    let kept = submit(2, by().keep()).await.unwrap();
    assert_eq!((kept.id(), kept.deduplicated_by()), (first.id(), Some(DeduplicatedBy::UniqueKept)));
    assert!(kept.was_there_before());
    assert_eq!(number().await, 1);

    let put_off = submit(3, by().reschedule()).delay(Duration::from_secs(7200)).await.unwrap();
    assert_eq!((put_off.id(), put_off.deduplicated_by()), (first.id(), Some(DeduplicatedBy::UniqueRescheduled)));
    assert!(seconds_ahead(&client, first.id()).await >= 7200.0);
    assert_eq!(number().await, 1);

    let replaced = submit(4, by().replace()).await.unwrap();
    assert_eq!((replaced.id(), replaced.deduplicated_by()), (first.id(), Some(DeduplicatedBy::UniqueReplaced)));
    assert_eq!(number().await, 4);

    let refused = submit(5, by().error()).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(problem) if problem.status == 409), "{refused}");
    assert_eq!(refused.code(), Some("unique_conflict"));
    let nothing = submit(6, Unique::by::<String>([])).await.unwrap_err();
    assert_eq!(
        (nothing.code(), nothing.problem().unwrap().field.as_deref()),
        (Some("invalid_field"), Some("unique.by"))
    );

    let keyed = async || client.enqueue::<note>("once").idempotency_key("k").await.unwrap();
    keyed().await;
    assert_eq!(keyed().await.deduplicated_by(), Some(DeduplicatedBy::IdempotencyKey));
}

#[tokio::test]
async fn a_key_is_held_as_long_as_said() {
    let mut windlass = Manual::new().handle::<note>();
    let client = windlass.client().clone();
    let throttled = async || {
        let unique = Unique::by(["task_type"]).keep().for_at_least(Duration::from_secs(600));
        client.enqueue::<note>("hello").unique(unique).await.unwrap()
    };
    let first = throttled().await;
    windlass.drain().await;
    assert_eq!(throttled().await.id(), first.id(), "although it has completed");
    windlass.advance(Duration::from_secs(601)).await;
    assert!(!throttled().await.was_there_before());
}

#[tokio::test]
async fn a_batch_keeps_its_pace_over_several_calls() {
    let client = in_memory();
    let texts = (0..2_500).map(|number| number.to_string());
    let tasks = client.enqueue_many::<note>(texts).max_per_second(100.0).await.unwrap();
    for (index, least) in [(1, 0.01), (999, 9.99), (1_000, 10.0), (1_001, 10.01), (2_499, 24.99)] {
        let ahead = seconds_ahead(&client, tasks[index].id()).await;
        assert!((ahead - least).abs() < 1e-4, "task {index} starts {ahead} s after its submit");
    }
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        let refused = client.enqueue_many::<note>(["a".to_owned()]).max_per_second(rate).await.unwrap_err();
        assert_eq!(refused.code(), Some("invalid_field"), "{rate}");
    }
    let texts = (0..40_000).map(|number| number.to_string());
    let refused = client.enqueue_many::<note>(texts).max_per_second(0.001).await.unwrap_err();
    assert!(refused.to_string().contains("366 days"), "{refused}");
}

#[tokio::test]
async fn a_tenant_that_is_too_fast_is_waited_for() {
    let client = in_memory();
    let limit = json!({"tenant_rate_limit": {"count": 1, "per_seconds": 1, "burst": 1}});
    client.call(Method::Put, "/api/v1/queues/default", Some(&limit)).await.unwrap();
    let begun = tokio::time::Instant::now();
    for text in ["a", "b"] {
        client.enqueue::<note>(text).tenant("t").await.unwrap();
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "the second was refused for a second");
}
