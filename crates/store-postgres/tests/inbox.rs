//! Tasks that are enqueued from SQL, in the caller's own transaction.

mod common;

use std::time::Duration;

use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{Backend, Changes, CommitError};
use windlass_core::ids::IdCodec;
use windlass_store_postgres::{PostgresBackend, PostgresOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_come_with_the_commit_of_the_caller_and_are_taken_once() {
    let database = Database::new();
    let options = PostgresOptions { slow_poll_interval: Duration::from_secs(30), ..database.options() };
    let one = PostgresBackend::connect(options).await.expect("connects");
    let began = Instant::now();
    while !one.is_listening() {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    one.inbox_grown().await;
    let mut client = database.client().await;
    let transaction = client.transaction().await.expect("begun");
    let enqueue = format!(
        "SELECT {}.enqueue('send_email', '{{\"to\": \"x\"}}'::jsonb, priority => 'high',
            run_at => '2030-01-01T00:00:00Z', required_capabilities => ARRAY['gpu'])::text",
        database.schema
    );
    let id: String = transaction.query_one(&enqueue, &[]).await.expect("enqueued").get(0);
    assert_eq!(id.len(), 36);
    let many =
        format!("SELECT {}.enqueue_many('[{{\"task_type\":\"a\"}},{{\"task_type\":\"broken\"}}]')", database.schema);
    assert_eq!(transaction.query(&many, &[]).await.expect("enqueued").len(), 2);
    assert!(one.inbox(0, 10).await.expect("read").is_empty(), "nothing is there before the commit");
    transaction.commit().await.expect("committed");
    let began = Instant::now();
    one.inbox_grown().await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    let items = one.inbox(0, 10).await.expect("read");
    assert_eq!(items.len(), 3);
    let body: serde_json::Value = serde_json::from_slice(&items[0].body).expect("JSON");
    let expected = serde_json::json!({
        "task_type": "send_email", "parameters": {"to": "x"}, "priority": "high",
        "run_at": "2030-01-01T00:00:00.000000Z", "required_capabilities": ["gpu"]
    });
    assert_eq!(body, expected);
    // The caller knows the id that the task will have.
    let ids = IdCodec::new(one.secret());
    assert_eq!(id, ids.task_id(items[0].key, items[0].created_at).to_string());
    assert_eq!(ids.task_key(id.parse().expect("an id")), Some(items[0].key));
    assert_eq!(one.inbox(0, 1).await.expect("read").len(), 1);
    let later = one.inbox(items[0].no, 10).await.expect("read");
    assert_eq!(later.iter().map(|item| item.no).collect::<Vec<_>>(), [items[1].no, items[2].no]);

    let taken: Vec<i64> = items.iter().map(|item| item.no).collect();
    let changes = || Changes { taken: taken.clone(), ..Changes::default() };
    commit(&one, 1, changes()).await;
    assert!(one.inbox(0, 10).await.expect("read").is_empty());
    assert_eq!(refused(&one, 2, changes()).await, CommitError::Behind, "somebody else took them");
    assert_eq!(database.number("SELECT count(*) FROM :schema.log").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_at_once() {
    let database = Database::new();
    database.open().await;
    let client = database.client().await;
    let schema = &database.schema;
    for (call, reason) in [
        ("enqueue('')", "task_type must start"),
        ("enqueue('a', queue => '../x')", "queue must start"),
        ("enqueue('a', priority => 'urgent')", "priority must be"),
        ("enqueue('a', jsonb_build_object('x', repeat('y', 1048577)))", "larger than any server takes"),
        ("enqueue_many('{}')", "must be an array"),
        ("enqueue_many('[1]')", "must be an object"),
        ("enqueue_many('[{\"task_type\":\"a\",\"colour\":1}]')", "unknown field 'colour'"),
    ] {
        let error = client.query(&format!("SELECT {schema}.{call}"), &[]).await.expect_err(call);
        let said = error.as_db_error().expect("an answer").message().to_owned();
        assert!(said.contains(reason), "{call}: {said}");
    }
    assert_eq!(database.number("SELECT count(*) FROM :schema.inbox").await, 0);
}
