//! Two servers in processes of their own on one database: what one did, the other knows.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, text, until};
use tokio::time::Instant;
use tokio_postgres::NoTls;

/// Two servers on a schema of their own, which is dropped at the end.
struct Nodes {
    servers: [Server; 2],
    schema: String,
}

fn url() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES_URL")
        .expect("WINDLASS_TEST_POSTGRES_URL must name a PostgreSQL server for tests")
}

impl Nodes {
    fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let schema = format!("wnodes_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let server = || Server::on(&url(), &["--store-schema", &schema]);
        Self { servers: [server(), server()], schema }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.schema);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let dropped = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url(), NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(&sql).await
        });
        assert!(dropped.is_ok() || std::thread::panicking(), "{dropped:?}");
    }
}

/// What a node says of the last hours.
fn lately(server: &Server) -> Value {
    let stats = server.get("/api/v1/queue/stats");
    json!({
        "throughput": stats["throughput"],
        "wait_seconds": stats["wait_seconds"],
        "retries": server.get("/api/v1/stats/retries"),
        "unclassified": server.get("/api/v1/error-rules")["unclassified"],
        "findings": server.get("/api/v1/findings"),
    })
}

/// The lines of a counter that say that something was counted.
fn counted(server: &Server, name: &str) -> Vec<String> {
    let metrics = text(&server.url, "/metrics");
    metrics.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0")).map(str::to_owned).collect()
}

#[test]
fn statistics_are_of_all_nodes_and_counters_of_one() {
    let nodes = Nodes::start();
    let [first, second] = &nodes.servers;
    let worker = first.api("POST", "/internal/workers/register", &json!({"capacity": 10}).to_string());
    let worker = worker["worker_id"].as_str().expect("an id").to_owned();
    for _ in 0..3 {
        first.submit("good", json!({}));
    }
    first.submit_body(&json!({"task_type": "odd", "max_retries": 0}));
    let polled = first.api("POST", &format!("/internal/workers/{worker}/poll"), r#"{"available_capacity": 10}"#);
    let tasks = polled["tasks"].as_array().expect("tasks");
    assert_eq!(tasks.len(), 4);
    for task in tasks {
        let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": "completed"});
        if task["task_type"] == "odd" {
            result["status"] = json!("failed");
            result["error"] = json!({"message": "user 7 is gone"});
        }
        first.api("POST", &format!("/internal/workers/{worker}/result"), &result.to_string());
    }
    until("both say the same", || lately(first) == lately(second));
    let said = lately(second);
    assert_eq!(said["retries"]["total"], 4, "{said:#}");
    assert_eq!(said["retries"]["by_type"]["good"]["succeeded"], 3);
    assert_eq!(said["unclassified"][0]["message"], "user 7 is gone");
    assert_eq!(said["findings"]["items"][0]["code"], "unclassified_errors");
    let estimate = || second.api("POST", "/api/v1/tasks", r#"{"task_type": "good"}"#)["estimated_wait_seconds"].clone();
    until("the second node knows how fast tasks go", || estimate().is_f64() || estimate().is_u64());
    for name in ["windlass_tasks_completed_total", "windlass_tasks_failed_total", "windlass_errors_unclassified_total"]
    {
        assert_eq!(counted(first, name).len(), 1, "{name}");
        assert_eq!(counted(second, name), Vec::<String>::new(), "{name}");
    }
}

/// A task that is submitted on one node reaches a poll that waits on the other.
fn polls_wake([first, second]: &[Server; 2]) {
    const ROUNDS: usize = 21;
    let body = json!({"capacity": 10, "queues": ["wake"]}).to_string();
    let worker = first.api("POST", "/internal/workers/register", &body)["worker_id"].clone();
    let worker = worker.as_str().expect("an id");
    let poll = || {
        let body = r#"{"available_capacity": 1, "wait_ms": 10000}"#;
        let polled = first.api("POST", &format!("/internal/workers/{worker}/poll"), body);
        (polled, Instant::now())
    };
    let mut waits = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(poll);
            // Long enough for the poll to wait; if it does not yet, it is answered all the same.
            std::thread::sleep(Duration::from_millis(30));
            second.submit_body(&json!({"task_type": "t", "queue": "wake"}));
            let submitted = Instant::now();
            let (polled, woken) = waiting.join().expect("no panic");
            assert_eq!(polled["tasks"].as_array().map(Vec::len), Some(1), "{polled}");
            waits.push(woken.saturating_duration_since(submitted));
        });
    }
    waits.sort_unstable();
    let median = waits[ROUNDS / 2];
    println!("a poll on another node wakes after {median:?}, at worst {:?}", waits[ROUNDS - 1]);
    // Without hints it would be the interval of polling. Other tests share the processor with this one.
    assert!(waits[ROUNDS / 4] < Duration::from_millis(50) && median < Duration::from_millis(250), "{waits:?}");
}

/// A setting that is changed on one node applies on the other.
fn settings_reach([first, second]: &[Server; 2]) {
    for (verb, paused) in [("pause", true), ("resume", false)] {
        second.api("POST", &format!("/api/v1/queues/wake/{verb}"), "{}");
        let changed = Instant::now();
        until("the other node knows", || first.get("/api/v1/queues/wake")["paused"] == paused);
        assert!(changed.elapsed() < Duration::from_secs(2), "{:?}", changed.elapsed());
    }
}

#[test]
fn nodes_on_postgres_wake_each_other() {
    let nodes = Nodes::start();
    polls_wake(&nodes.servers);
    settings_reach(&nodes.servers);
}

#[test]
fn nodes_on_a_redis_cluster_wake_each_other() {
    let url = std::env::var("WINDLASS_TEST_REDIS_CLUSTER_URL")
        .expect("WINDLASS_TEST_REDIS_CLUSTER_URL must name a Redis Cluster for tests");
    // Keys of their own: the cluster goes with the test run.
    let url = format!("{url}?prefix=wnodes{}", std::process::id());
    let servers = [Server::on(&url, &[]), Server::on(&url, &[])];
    polls_wake(&servers);
    settings_reach(&servers);
}
