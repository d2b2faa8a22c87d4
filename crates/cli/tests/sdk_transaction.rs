//! Tasks that the SDK enqueues in a transaction of the caller's own, on a real PostgreSQL with a real server.

mod support;

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::Server;
use tokio_postgres::NoTls;
use windlass::{
    Client, Error, OnFailure, Priority, Retry, RunningWorker, Status, TaskId, TaskResult, Unique, Worker, task,
};

#[task]
async fn double(n: u64) -> TaskResult<u64> {
    Ok(n * 2)
}

#[task(version = 2, max_retries = 7)]
async fn nothing() -> TaskResult<()> {
    Ok(())
}

/// A server on a schema of its own, which is dropped at the end.
struct Windlass {
    server: Server,
    schema: String,
    client: Client,
}

fn url() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES_URL")
        .expect("WINDLASS_TEST_POSTGRES_URL must name a PostgreSQL server for tests")
}

async fn connect() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

impl Windlass {
    async fn start(arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let schema = format!("wsdk_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let server = Server::on(&url(), &[&["--store-schema", &schema], arguments].concat());
        let client = Client::builder(&server.url).postgres_schema(&schema).connect().await.expect("a client");
        Self { server, schema, client }
    }

    async fn worker(&self) -> RunningWorker {
        Worker::new(&self.client).handle::<double>().handle::<nothing>().start().await.expect("a worker")
    }

    /// A client that gives up at once on what is not there.
    async fn impatient(&self) -> Client {
        let client = Client::builder(&self.server.url).postgres_schema(&self.schema).patience(Duration::ZERO);
        client.connect().await.expect("a client")
    }
}

impl Drop for Windlass {
    fn drop(&mut self) {
        self.server.kill();
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.schema);
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { connect().await.batch_execute(&sql).await })
        });
        let _ = dropped.join();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a test that measures real time")]
async fn a_task_comes_with_the_commit_and_only_then() {
    let windlass = Windlass::start(&[]).await;
    let (client, mut database) = (&windlass.client, connect().await);
    let worker = windlass.worker().await;

    let transaction = database.transaction().await.expect("begun");
    let never = windlass.impatient().await.enqueue_in::<double>(&transaction, 1_u64).await.expect("written");
    transaction.rollback().await.expect("rolled back");

    // The first brings the worker's connections up.
    for round in 0..10_u64 {
        let transaction = database.transaction().await.expect("begun");
        let task = client.enqueue_in::<double>(&transaction, round).priority(Priority::High).await.expect("written");
        if round == 0 {
            let early = windlass.impatient().await.task(task.id().clone()).await.expect_err("it is not there yet");
            assert_eq!(early.code(), Some("task_not_found"));
        }
        transaction.commit().await.expect("committed");
        let begun = Instant::now();
        assert_eq!(task.result_within(Duration::from_secs(10)).await.expect("done"), round * 2);
        let took = begun.elapsed();
        println!("from the commit to the result: {took:?}");
        assert!(round == 0 || took < Duration::from_secs(1), "{took:?}");
        let view = task.view().await.expect("there");
        assert_eq!((view.task_id.as_str(), view.priority_level), (task.id().as_str(), 7));
    }

    let error = never.view().await.expect_err("never there");
    assert_eq!(error.code(), Some("task_not_found"), "{error}");
    let error = never.result().await.expect_err("never there");
    assert_eq!(error.code(), Some("task_not_found"), "{error}");
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a test that measures real time")]
async fn many_tasks_and_many_transactions_at_once() {
    let windlass = Windlass::start(&[]).await;
    let (client, mut database) = (&windlass.client, connect().await);

    // Without a worker: how long until all of them are queued.
    let transaction = database.transaction().await.expect("begun");
    let begun = Instant::now();
    let tasks = client.enqueue_many_in::<double>(&transaction, 0..1_000).await.expect("written");
    let wrote = begun.elapsed();
    transaction.commit().await.expect("committed");
    let begun = Instant::now();
    for task in tasks.iter().rev() {
        assert_eq!(task.view().await.expect("there").status, Status::Queued);
        if task.id() == tasks[999].id() {
            println!("1,000 tasks: written in {wrote:?}, the last is queued {:?} after the commit", begun.elapsed());
        }
    }
    assert_eq!(tasks.iter().map(|task| task.id().clone()).collect::<HashSet<_>>().len(), 1_000);

    let worker = windlass.worker().await;
    for (n, task) in tasks.iter().enumerate().step_by(97) {
        assert_eq!(task.result_within(Duration::from_secs(30)).await.expect("done"), 2 * n as u64);
    }
    // The slowest of twenty transactions that commit in any order.
    let at_once = (0..20_u64).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut database = connect().await;
            let transaction = database.transaction().await.expect("begun");
            let task = client.enqueue_in::<double>(&transaction, n).await.expect("written");
            tokio::time::sleep(Duration::from_millis(n * 7 % 20)).await;
            transaction.commit().await.expect("committed");
            assert_eq!(task.result_within(Duration::from_secs(30)).await.expect("done"), n * 2);
        })
    });
    for each in at_once.collect::<Vec<_>>() {
        each.await.expect("no panic");
    }
    // Paced: the later ones are not due.
    let transaction = database.transaction().await.expect("begun");
    let paced = client.enqueue_many_in::<double>(&transaction, [1, 2]).max_per_second(0.01).await.expect("written");
    assert!(client.enqueue_many_in::<double>(&transaction, [1, 2]).max_per_second(0.0).await.is_err());
    assert!(client.enqueue_many_in::<double>(&transaction, []).await.expect("nothing to write").is_empty());
    transaction.commit().await.expect("committed");
    assert_eq!(paced[0].result_within(Duration::from_secs(30)).await.expect("done"), 2);
    assert_eq!(paced[1].view().await.expect("there").status, Status::Scheduled);
    paced[1].cancel().await.expect("cancelled");
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_shows_under_the_id() {
    let windlass = Windlass::start(&["--strict-types"]).await;
    windlass.server.api("PUT", "/api/v1/task-types/double", "{}");
    let (client, mut database) = (&windlass.client, connect().await);
    let first = client.enqueue::<double>(1_u64).idempotency_key("k").await.expect("stored");

    let transaction = database.transaction().await.expect("begun");
    let unknown = client.enqueue_untyped_in(&transaction, "not_set_up", &json!({"a": 1})).await.expect("written");
    let known = client.enqueue_in::<double>(&transaction, 1_u64).idempotency_key("k").await.expect("written");
    let other = client.enqueue_in::<double>(&transaction, 2_u64).idempotency_key("k").await.expect("written");
    let unique = Unique::by(["task_type", "parameters"]);
    let holder = client.enqueue_in::<double>(&transaction, 3_u64).unique(unique.clone()).await.expect("written");
    transaction.commit().await.expect("committed");

    let Err(Error::TaskDidNotSucceed(view)) = unknown.result_within(Duration::from_secs(10)).await else {
        panic!("it cannot succeed")
    };
    assert_eq!((view.status, view.task_type.as_str()), (Status::DeadLetter, "not_set_up"));
    assert_eq!(view.task_id, *unknown.id());
    let events = |id: &TaskId| windlass.server.get(&format!("/api/v1/tasks/{id}?include=history")).to_string();
    let said = events(unknown.id());
    assert!(said.contains("task type not_set_up was not set up"), "{said}");

    let view = client.wait(known.id().clone(), Duration::from_secs(10)).await.expect("there");
    assert_eq!(view.status, Status::Cancelled);
    let said = events(known.id());
    assert!(said.contains(&format!("task {} is there already", first.id())), "{said}");

    let view = client.wait(other.id().clone(), Duration::from_secs(10)).await.expect("there");
    assert_eq!(view.status, Status::DeadLetter);
    let said = events(other.id());
    assert!(said.contains("the idempotency key was used for another task"), "{said}");

    // A later submit meets the task under the id that the transaction was told.
    assert_eq!(holder.view().await.expect("there").status, Status::Queued);
    let met = client.enqueue::<double>(3_u64).unique(unique).await.expect("answered");
    assert_eq!(met.id(), holder.id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_options_arrive_and_what_is_wrong_is_said_at_once() {
    let windlass = Windlass::start(&[]).await;
    let (client, mut database) = (&windlass.client, connect().await);
    let transaction = database.transaction().await.expect("begun");
    let task = client
        .enqueue_in::<nothing>(&transaction, ())
        .queue("mail")
        .priority(Priority::Level(4))
        .requires("gpu")
        .delay(Duration::from_secs(3600))
        .timeout(Duration::from_secs(30))
        .retry(Retry::fixed(Duration::from_millis(1_500)))
        .idempotency_key("once")
        .tenant("acme")
        .tag("customer", "42")
        .ordering_key("customer-42")
        .ordering_on_failure(OnFailure::Skip)
        .unique(Unique::default())
        .await
        .expect("written");
    transaction.commit().await.expect("committed");
    let view = task.view().await.expect("there");
    assert_eq!((view.queue.as_str(), view.priority_level, view.max_retries), ("mail", 4, 7));
    assert_eq!(view.status, Status::Scheduled);
    assert_eq!(view.tags, [("customer", "42"), ("windlass.version", "2")].map(|(k, v)| (k.into(), v.into())).into());
    assert_eq!((view.idempotency_key.as_deref(), view.tenant.as_deref()), (Some("once"), Some("acme")));
    assert_eq!((view.ordering_key.as_deref(), view.ordering_on_failure), (Some("customer-42"), Some(OnFailure::Skip)));
    task.cancel().await.expect("cancelled");

    // A connection without a transaction is one statement, one commit.
    let error = client.enqueue_in::<double>(&database, 1_u64).queue("../etc").await.expect_err("refused");
    assert_eq!(error.sql_state(), Some("22023"));
    assert!(error.to_string().contains("(22023): queue must start with a letter"), "{error}");
    let source = error.source().expect("the error of the database");
    assert!(source.is::<tokio_postgres::Error>());

    let elsewhere = Client::builder(&windlass.server.url).postgres_schema("no such \"schema").connect().await;
    let error =
        elsewhere.expect("a client").enqueue_in::<double>(&database, 1_u64).await.expect_err("there is no schema");
    assert_eq!(error.sql_state(), Some("3F000"));
    assert!(error.to_string().contains("no server of Windlass has set up the schema no such \"schema"), "{error}");

    // No server is needed to write.
    let away =
        Client::builder("http://127.0.0.1:1").postgres_schema(&windlass.schema).connect().await.expect("a client");
    let task = away.enqueue_in::<double>(&database, 1_u64).await.expect("written");
    let there = client.handle::<double>(task.id().clone());
    let begun = tokio::time::Instant::now();
    while there.view().await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it should be there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_holds_up_no_other() {
    let windlass = Windlass::start(&[]).await;
    windlass.server.api("PUT", "/api/v1/queues/full", r#"{"depth": {"soft": 1, "hard": 2}}"#);
    let (client, mut database) = (&windlass.client, connect().await);
    let transaction = database.transaction().await.expect("begun");
    let waiting = client.enqueue_many_in::<double>(&transaction, 0..1_200).with(|options| options.queue("full"));
    let waiting = waiting.await.expect("written");
    let behind = client.enqueue_in::<double>(&transaction, 5_u64).await.expect("written");
    transaction.commit().await.expect("committed");
    assert_eq!(behind.view().await.expect("there").status, Status::Queued);
    // Also what comes while they wait.
    let later = client.enqueue_in::<double>(&database, 6_u64).await.expect("written");
    assert_eq!(later.view().await.expect("there").status, Status::Queued);
    assert_eq!(waiting[0].view().await.expect("there").status, Status::Queued);
    let error = windlass.impatient().await.task(waiting[1].id().clone()).await.expect_err("there is no room");
    assert_eq!(error.code(), Some("task_not_found"));
    // With room they come, in their order.
    windlass.server.api("PUT", "/api/v1/queues/full", r#"{"depth": {"soft": 2000, "hard": 2000}}"#);
    assert_eq!(waiting[1_199].view().await.expect("there").status, Status::Queued);
    assert_eq!(waiting[1].view().await.expect("there").status, Status::Queued);
}
