//! Several nodes on one database: whichever is asked, what happened lately is the same, and
//! what the counters of all nodes add up to is what happened.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Client, Server, serve};
use serde_json::{Value, json};
use windlass_cluster::backend::NodeId;
use windlass_cluster::{NodeOptions, open};
use windlass_core::store::Capabilities;
use windlass_server::{Metrics, ServerConfig, Watch};
use windlass_testkit::shared_memory::SharedMemory;
use windlass_testkit::{ManualClock, fixtures};

struct Nodes {
    clock: Arc<ManualClock>,
    servers: Vec<Server>,
    clients: Vec<Client>,
}

impl Nodes {
    async fn start(count: u64) -> Self {
        let clock = Arc::new(ManualClock::new());
        let database = SharedMemory::new(Arc::clone(&clock) as _);
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let config = ServerConfig::default();
            let options = NodeOptions {
                name: "shared",
                capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
                lease: config.lease,
                clock: Some(Arc::clone(&clock) as _),
                node: NodeId(number),
            };
            let metrics = Arc::new(Metrics::default());
            let watch = Watch::new(Arc::clone(&metrics));
            let store = open(Arc::clone(&database) as _, database.archive(), options, watch).await;
            let server = serve(config, store.expect("opens"), metrics).await;
            clients.push(Client::new(&server).await);
            servers.push(server);
        }
        Self { clock, servers, clients }
    }

    /// What every node says, once they agree.
    async fn agreed(&mut self) -> Value {
        let mut said = Vec::new();
        for _ in 0..500 {
            said.clear();
            for client in &mut self.clients {
                said.push(lately(client).await);
            }
            if said.iter().all(|of_node| *of_node == said[0]) {
                return said.remove(0);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the nodes do not agree: {said:#?}");
    }

    /// The sum of a counter over its labels, by node.
    async fn counters(&mut self, name: &str) -> Vec<u64> {
        let mut counts = Vec::new();
        for client in &mut self.clients {
            let text = client.get("/metrics").await.text;
            let samples = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
            counts.push(
                samples.map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("whole")).sum(),
            );
        }
        counts
    }
}

/// All that a node says of the last minutes, hours and days.
async fn lately(client: &mut Client) -> Value {
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    let mut findings = client.get("/api/v1/findings").await.ok(200)["items"].clone();
    for finding in findings.as_array_mut().expect("findings") {
        if finding["code"] == "growing_backlog" {
            // Since it was first asked for.
            finding["since"] = Value::Null;
        }
    }
    json!({
        "throughput": stats["throughput"],
        "wait_seconds": stats["wait_seconds"],
        "recovery": stats["recovery"],
        "retries": client.get("/api/v1/stats/retries").await.ok(200),
        "unclassified": client.get("/api/v1/error-rules").await.ok(200)["unclassified"],
        "findings": findings,
    })
}

fn finding<'a>(said: &'a Value, code: &str) -> &'a Value {
    let found = said["findings"].as_array().expect("findings").iter().find(|finding| finding["code"] == code);
    found.unwrap_or_else(|| panic!("no {code} in {said:#}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_lately_is_the_same_on_every_node() {
    let mut nodes = Nodes::start(2).await;
    let worker = nodes.clients[0].register().await;
    let retry = json!({"strategy": "fixed", "base_delay": 600, "jitter": "none"});
    for task_type in ["good", "good", "good", "again", "broken", "odd", "odd"] {
        let again = if task_type == "again" { 3 } else { 0 };
        let body = json!({"task_type": task_type, "max_retries": again, "retry": retry});
        nodes.clients[0].submit(&body).await;
    }
    nodes.clock.advance(Duration::from_millis(250));
    let polled = nodes.clients[0].poll(&worker, 10).await;
    let tasks = polled["tasks"].as_array().expect("tasks").clone();
    assert_eq!(tasks.len(), 7);
    for (place, task) in tasks.iter().enumerate() {
        let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": "failed"});
        match task["task_type"].as_str() {
            Some("good") => result["status"] = json!("completed"),
            Some("again") => result["error"] = json!({"message": "reset", "retriable": true}),
            Some("broken") => result["error"] = json!({"message": "no field", "code": "panic"}),
            _ => result["error"] = json!({"message": format!("user {place} is gone"), "code": "E7"}),
        }
        nodes.clients[0].json("POST", &format!("/internal/workers/{worker}/result"), &result).await.ok(200);
        nodes.clock.advance(Duration::from_millis(10));
    }

    let said = nodes.agreed().await;
    assert_eq!(
        said["throughput"],
        json!({"completed_last_minute": 3, "failed_last_minute": 4, "enqueued_last_minute": 7})
    );
    assert!(said["wait_seconds"]["p50"].as_f64().is_some_and(|wait| (0.25..0.33).contains(&wait)), "{said:#}");
    assert_eq!(said["retries"]["total"], 6);
    assert_eq!(said["retries"]["by_type"]["again"]["retried"], 1);
    assert_eq!(said["retries"]["by_type"]["good"]["succeeded"], 3);
    assert_eq!((&said["unclassified"][0]["count"], &said["unclassified"][0]["code"]), (&json!(2), &json!("E7")));
    assert_eq!(finding(&said, "code_bug")["evidence"]["last_message"], "no field");
    assert_eq!(finding(&said, "unclassified_errors")["evidence"]["count"], 2);
    for (name, count) in [
        ("windlass_tasks_enqueued_total", 7),
        ("windlass_tasks_completed_total", 3),
        ("windlass_tasks_failed_total", 4),
        ("windlass_tasks_retried_total", 1),
        ("windlass_tasks_dead_lettered_total", 3),
        ("windlass_errors_unclassified_total", 2),
        ("windlass_queue_wait_seconds_count", 7),
        ("windlass_task_duration_seconds_count", 7),
        ("windlass_task_total_seconds_count", 6),
    ] {
        assert_eq!(nodes.counters(name).await, [count, 0], "{name}");
    }

    // Seven claims of the last minute, whoever is asked. The rate is reckoned once a second.
    nodes.clock.advance(Duration::from_secs(1));
    for client in &mut nodes.clients {
        let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "later"})).await.ok(201);
        let position = answer["queue_position"].as_f64().expect("a place");
        let expected = (position / (7.0 / 60.0) * 10.0).round() / 10.0;
        assert_eq!(answer["estimated_wait_seconds"].as_f64(), Some(expected), "{answer}");
    }
    assert_eq!(nodes.counters("windlass_tasks_enqueued_total").await, [8, 1]);

    // More comes than goes, from both.
    let tasks = vec![json!({"task_type": "later"}); 600];
    for client in &mut nodes.clients {
        client.json("POST", "/api/v1/tasks/batch", &json!({"tasks": tasks})).await.ok(201);
    }
    let said = nodes.agreed().await;
    let backlog = &finding(&said, "growing_backlog")["evidence"];
    assert_eq!((&backlog["entered"], &backlog["ended"]), (&json!(1_209), &json!(6)));
    assert_eq!(said["throughput"]["enqueued_last_minute"], 1_209);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_to_be_recovered_is_the_same_on_every_node() {
    let mut nodes = Nodes::start(2).await;
    let lost = fixtures::task("lost").max_crashes(1).timeout(Duration::from_hours(1)).build();
    let slow = fixtures::task("slow").timeout(Duration::from_secs(1)).build();
    let ids = nodes.servers[0].store.submit(vec![lost, slow]).await.expect("stored");
    let worker = nodes.clients[0].register().await;
    assert_eq!(nodes.clients[0].poll(&worker, 2).await["tasks"].as_array().map(Vec::len), Some(2));
    // Whoever leads ends the one attempt when its time is over, and then the other when its lease is.
    nodes.clock.advance(Duration::from_secs(2));
    for _ in 0..500 {
        let said = nodes.agreed().await;
        if said["recovery"] == json!({"lease_expiries_last_hour": 1, "timeouts_last_hour": 1}) {
            break;
        }
        if said["recovery"]["timeouts_last_hour"] == 1 {
            nodes.clock.advance(Duration::from_secs(1));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let said = nodes.agreed().await;
    assert_eq!(said["recovery"], json!({"lease_expiries_last_hour": 1, "timeouts_last_hour": 1}));
    let pill = finding(&said, "poison_pill");
    assert_eq!(pill["evidence"], json!({"task_type": "lost", "count": 1, "sample_task_id": ids[0].id.to_string()}));
    assert_eq!(nodes.counters("windlass_lease_expired_total").await.iter().sum::<u64>(), 1, "counted by one of them");
    assert_eq!(nodes.counters("windlass_tasks_failed_total").await.iter().sum::<u64>(), 2);
}
