//! A server on a free port over the in-memory store, and a client that can send any bytes.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use windlass_core::store::Store;
use windlass_core::time::{Clock, Timestamp};
use windlass_server::{Metrics, ServerConfig, Watch, run};
use windlass_testkit::{MemoryStore, ShakyStore, Switch};

/// Time that runs, from a fixed start.
struct RunningClock(Instant);

impl Clock for RunningClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + self.0.elapsed()
    }
}

pub struct Server {
    pub address: String,
    pub store: Arc<dyn Store>,
    pub stop: Option<oneshot::Sender<()>>,
    pub stopped: JoinHandle<std::io::Result<()>>,
}

pub async fn start() -> Server {
    start_with(ServerConfig::default()).await
}

pub async fn start_with(config: ServerConfig) -> Server {
    start_on(config, |store| store).await
}

/// A server whose store has a switch.
pub async fn start_shaky(config: ServerConfig) -> (Server, Switch) {
    let mut switch = None;
    let shaky = |store| {
        let shaky = ShakyStore::new(store);
        switch = Some(shaky.switch());
        shaky as Arc<dyn Store>
    };
    let server = start_on(config, shaky).await;
    (server, switch.expect("a switch"))
}

/// An empty store on a clock that runs, or stands still with that of the runtime.
pub fn memory_store(metrics: &Arc<Metrics>) -> Arc<dyn Store> {
    MemoryStore::new(Arc::new(RunningClock(Instant::now())), Watch::new(Arc::clone(metrics)))
}

async fn start_on(config: ServerConfig, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Server {
    let metrics = Arc::new(Metrics::default());
    let store = wrap(memory_store(&metrics));
    serve(config, store, metrics).await
}

/// A server on this store, which tells these metrics.
pub async fn serve(config: ServerConfig, store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (stop, stopping) = oneshot::channel();
    let shutdown = async {
        let _ = stopping.await;
    };
    let stopped = tokio::spawn(run(config, Arc::clone(&store), metrics, listener, shutdown));
    Server { address, store, stop: Some(stop), stopped }
}

pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Value,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Checks that this is a whole problem document with this code, and says its field.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> Option<&str> {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.body["status"], u64::from(status));
        assert_eq!(self.body["request_id"].as_str(), self.header("x-request-id"));
        for key in ["type", "title", "detail"] {
            assert!(self.body[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {}", self.text);
        }
        self.body["field"].as_str()
    }

    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert!(self.header("x-request-id").is_some());
        self.body
    }
}

/// One connection, kept open.
pub struct Client(TcpStream);

impl Client {
    pub async fn new(server: &Server) -> Self {
        Self(TcpStream::connect(&server.address).await.expect("a connection"))
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("written");
    }

    pub async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.call_with(method, path, "", body).await
    }

    pub async fn call_with(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n", body.len());
        self.send(&[head.as_bytes(), body].concat()).await;
        self.read().await
    }

    pub async fn json(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        self.call(method, path, body.to_string().as_bytes()).await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.call("GET", path, b"").await
    }

    /// Reads one answer and nothing of the next.
    pub async fn read(&mut self) -> Answer {
        tokio::time::timeout(Duration::from_secs(20), self.read_all()).await.expect("an answer in time")
    }

    async fn read_all(&mut self) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("more of the head"));
        }
        let headers = String::from_utf8(head).expect("text");
        let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut answer = Answer { status, headers, body: Value::Null, text: String::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("the body");
        answer.text = String::from_utf8(body).expect("text");
        answer.body = serde_json::from_str(&answer.text).unwrap_or(Value::Null);
        answer
    }

    pub async fn submit(&mut self, body: &Value) -> String {
        let body = self.json("POST", "/api/v1/tasks", body).await.ok(201);
        body["task_id"].as_str().expect("an id").to_owned()
    }

    pub async fn register(&mut self) -> String {
        let body = self.json("POST", "/internal/workers/register", &serde_json::json!({"capacity": 10})).await.ok(201);
        body["worker_id"].as_str().expect("an id").to_owned()
    }

    /// Polls once without waiting.
    pub async fn poll(&mut self, worker: &str, capacity: u32) -> Value {
        let body = serde_json::json!({"available_capacity": capacity});
        self.json("POST", &format!("/internal/workers/{worker}/poll"), &body).await.ok(200)
    }
}
