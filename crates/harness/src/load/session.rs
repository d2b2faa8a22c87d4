//! What the stages share: a connection whose calls have to succeed, names of queues, bodies of tasks, the worker's side
//! of the protocol.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::HarnessError;
use crate::http::{Answer, Connection, write_request};

/// The task type of every task the loader makes.
pub const TASK_TYPE: &str = "load.noop";

/// A queue takes this many tasks in one stage before the next one is used, so that no depth limit is measured.
pub const TASKS_PER_QUEUE: u64 = 50_000;

/// The server that is measured, and the run.
#[derive(Clone, Debug)]
pub struct Session {
    /// Where it listens.
    pub address: SocketAddr,
    /// A name for this run; queues of another run have other names.
    pub run: String,
}

impl Session {
    /// The name of a queue of this run.
    pub fn queue(&self, stage: &str) -> String {
        format!("load-{}-{stage}", self.run)
    }

    /// A new connection.
    pub async fn connect(&self) -> Result<Line, HarnessError> {
        let opened = Connection::open(self.address).await;
        let connection =
            opened.map_err(|error| HarnessError::call(format!("connect {}", self.address), error.to_string()))?;
        Ok(Line { connection, request: Vec::new() })
    }

    /// Registers a worker of these queues.
    pub async fn register(&self, queues: &[String], capacity: usize) -> Result<Worker, HarnessError> {
        let body =
            serde_json::json!({"capabilities": [], "capacity": capacity, "queues": queues, "name": "windlass-load"});
        let mut line = self.connect().await?;
        let answer = line.call("POST", "/internal/workers/register", body.to_string().as_bytes()).await?;
        let registered: Value = parse("register", answer.body)?;
        let worker_id = registered.get("worker_id").and_then(Value::as_str);
        let worker_id = worker_id.ok_or_else(|| HarnessError::call("register", "there is no worker_id"))?;
        Ok(Worker { worker_id: worker_id.to_owned(), poll_path: format!("/internal/workers/{worker_id}/poll") })
    }

    /// Deregisters a worker.
    pub async fn deregister(&self, worker: &Worker) -> Result<(), HarnessError> {
        let path = format!("/internal/workers/{}", worker.worker_id);
        self.connect().await?.call("DELETE", &path, b"").await?;
        Ok(())
    }

    /// Tasks of these queues that wait or run, from the statistics.
    pub async fn live_tasks(&self, queues: &[String]) -> Result<u64, HarnessError> {
        let mut line = self.connect().await?;
        let answer = line.call("GET", "/api/v1/queue/stats", b"").await?;
        let stats: Value = parse("stats", answer.body)?;
        let by_queue = stats.get("by_queue").and_then(Value::as_object);
        let by_queue = by_queue.ok_or_else(|| HarnessError::call("stats", "there is no `by_queue`"))?;
        let number = |queue: &Value, field: &str| queue.get(field).and_then(Value::as_u64).unwrap_or(0);
        let live = queues.iter().filter_map(|queue| by_queue.get(queue));
        Ok(live.map(|queue| number(queue, "depth") + number(queue, "executing")).sum())
    }
}

/// A connection whose calls have to succeed.
#[derive(Debug)]
pub struct Line {
    connection: Connection,
    request: Vec<u8>,
}

impl Line {
    /// One call that must be answered with a 2xx.
    pub async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer<'_>, HarnessError> {
        write_request(&mut self.request, method, path, body);
        accepted(path, self.connection.exchange(&self.request).await)
    }

    /// The same with a request that was written before.
    pub async fn send(&mut self, path: &str, request: &[u8]) -> Result<Answer<'_>, HarnessError> {
        accepted(path, self.connection.exchange(request).await)
    }
}

fn accepted<'a>(path: &str, answer: std::io::Result<Answer<'a>>) -> Result<Answer<'a>, HarnessError> {
    let answer = answer.map_err(|error| HarnessError::call(path, error.to_string()))?;
    if !(200..300).contains(&answer.status) {
        let text = String::from_utf8_lossy(answer.body).into_owned();
        return Err(HarnessError::call(path, format!("{} {text}", answer.status)));
    }
    Ok(answer)
}

/// Parses an answer.
pub fn parse<'a, T: Deserialize<'a>>(call: &str, body: &'a [u8]) -> Result<T, HarnessError> {
    serde_json::from_slice(body).map_err(|error| HarnessError::call(call, format!("unexpected answer: {error}")))
}

/// Parameters of about 200 bytes, as a small mail job has them.
pub fn parameters(number: u64) -> String {
    format!(
        r#"{{"seq":{number},"user_id":48213377,"template":"order-confirmation","locale":"en-GB","to":"somebody@mail.example","order":{{"id":"A-2291-77","total_cents":12995,"currency":"EUR","items":3}},"trace":"5c1d9f02"}}"#
    )
}

/// One task as JSON.
pub fn task(queue: &str, number: u64) -> String {
    format!(r#"{{"task_type":"{TASK_TYPE}","queue":"{queue}","parameters":{}}}"#, parameters(number))
}

/// A batch of tasks as JSON.
pub fn batch(queue: &str, count: u64) -> String {
    let mut body = String::from(r#"{"tasks":["#);
    for number in 0..count {
        if number > 0 {
            body.push(',');
        }
        body.push_str(&task(queue, number));
    }
    body.push_str("]}");
    body
}

/// A registered worker.
#[derive(Clone, Debug)]
pub struct Worker {
    worker_id: String,
    poll_path: String,
}

/// One poller of a worker: every poll brings the results of the tasks before.
#[derive(Debug)]
pub struct Poller {
    worker: Worker,
    line: Line,
    body: String,
    /// The results to send next, as JSON items.
    results: String,
    unsent: u64,
}

/// What a poll brought.
#[derive(Debug, Default)]
pub struct Polled {
    /// Results that are acknowledged now.
    pub acknowledged: u64,
    /// Tasks that were given.
    pub tasks: u64,
    /// The `seq` of each task, if it was asked for.
    pub numbers: Vec<u64>,
}

#[derive(Deserialize)]
struct PollAnswer<'a> {
    #[serde(borrow)]
    tasks: Vec<GivenTask<'a>>,
    #[serde(default)]
    results: Vec<ResultAnswer>,
}

#[derive(Deserialize)]
struct GivenTask<'a> {
    #[serde(borrow)]
    task_id: &'a RawValue,
    #[serde(borrow)]
    lease_token: &'a RawValue,
    #[serde(borrow)]
    parameters: &'a RawValue,
}

#[derive(Deserialize)]
struct ResultAnswer {
    acknowledged: bool,
}

#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

impl Poller {
    /// A poller with a connection of its own.
    pub async fn new(session: &Session, worker: &Worker) -> Result<Self, HarnessError> {
        let line = session.connect().await?;
        Ok(Self { worker: worker.clone(), line, body: String::new(), results: String::new(), unsent: 0 })
    }

    /// Polls, sends the results of the last tasks with it, and "works" on what it gets, which takes no time.
    pub async fn poll(&mut self, most: usize, wait: Duration, numbered: bool) -> Result<Polled, HarnessError> {
        self.body.clear();
        let wait_ms = wait.as_millis();
        let written = write!(self.body, r#"{{"available_capacity":{most},"wait_ms":{wait_ms}"#);
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
        if self.unsent > 0 {
            self.body.push_str(r#","results":["#);
            self.body.push_str(&self.results);
            self.body.push(']');
        }
        self.body.push('}');
        let sent = std::mem::take(&mut self.unsent);
        self.results.clear();
        let answer = self.line.call("POST", &self.worker.poll_path, self.body.as_bytes()).await?;
        let answer: PollAnswer<'_> = parse("poll", answer.body)?;
        let acknowledged = answer.results.iter().filter(|result| result.acknowledged).count() as u64;
        if acknowledged != sent {
            return Err(HarnessError::call("poll", format!("{sent} results were sent, {acknowledged} acknowledged")));
        }
        let mut polled = Polled { acknowledged, tasks: answer.tasks.len() as u64, numbers: Vec::new() };
        for task in &answer.tasks {
            if numbered {
                polled.numbers.push(parse::<Numbered>("poll", task.parameters.get().as_bytes())?.seq);
            }
            if self.unsent > 0 {
                self.results.push(',');
            }
            self.unsent += 1;
            let (id, token) = (task.task_id.get(), task.lease_token.get());
            let item =
                write!(self.results, r#"{{"task_id":{id},"lease_token":{token},"status":"completed","result":null}}"#);
            debug_assert!(item.is_ok(), "writing to a string cannot fail");
        }
        Ok(polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_the_promised_size() {
        let length = parameters(12_345).len();
        assert!((190..=210).contains(&length), "{length}");
        let body: Value = serde_json::from_str(&batch("q", 3)).unwrap();
        assert_eq!(body["tasks"].as_array().unwrap().len(), 3);
        assert_eq!(body["tasks"][2]["parameters"]["seq"], 2);
        assert_eq!(body["tasks"][0]["queue"], "q");
    }

    #[test]
    fn poll_answers_are_read_whatever_else_is_in_them() {
        let body =
            br#"{"tasks":[{"task_id":"a","task_type":"x","lease_token":"1.f","parameters":{"seq":4}}],"cancel":[],
            "results":[{"task_id":"b","acknowledged":true,"status":"completed"}]}"#;
        let answer: PollAnswer<'_> = parse("poll", body).unwrap();
        assert_eq!(answer.tasks[0].lease_token.get(), "\"1.f\"");
        assert!(answer.results[0].acknowledged);
    }
}
