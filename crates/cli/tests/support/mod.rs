//! A real server in a process of its own, and the few words tests speak to it.

#![allow(dead_code, reason = "every test program uses its part of this")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Most things take milliseconds; this is for a machine on its knees.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
#[allow(clippy::disallowed_methods, reason = "tests of real processes wait in real time")]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port()
}

/// A server with a store of its own; both are gone when it is dropped.
pub struct Server {
    pub url: String,
    folder: TempDir,
    store: String,
    arguments: Vec<String>,
    process: Option<Child>,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = format!("sqlite:{}", folder.path().join("data").display());
        Self::start_on(store, folder, arguments)
    }

    /// A server on a store that others may use, too.
    pub fn on(store: &str, arguments: &[&str]) -> Self {
        Self::start_on(store.to_owned(), tempfile::tempdir().expect("a folder"), arguments)
    }

    fn start_on(store: String, folder: TempDir, arguments: &[&str]) -> Self {
        let url = format!("http://127.0.0.1:{}", free_port());
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut server = Self { url, folder, store, arguments, process: None };
        server.start_again();
        server
    }

    /// Starts it on the same port and store.
    pub fn start_again(&mut self) {
        let listen = self.url.trim_start_matches("http://");
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["server", "--listen", listen, "--store", &self.store]).args(&self.arguments);
        let log = File::options().create(true).append(true).open(self.path("server.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().expect("a server"));
        until("the server is ready", || status(&self.url, "/readyz") == Some(200));
    }

    /// Kills it without a warning.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("killed");
        process.wait().expect("gone");
    }

    /// Stops it as an operator would.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("it runs");
        let status = Command::new("kill").args(["-TERM", &process.id().to_string()]).status().expect("kill");
        assert!(status.success() && process.wait().expect("gone").success());
    }

    /// The folder of the test, which has the store and the log in it, too.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A call of the API that must do well.
    #[track_caller]
    pub fn api(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, text) = call(&self.url, method, path, body).expect("the server answers");
        assert!((200..300).contains(&status), "{method} {path}: {text}");
        json_of(&text)
    }

    pub fn get(&self, path: &str) -> Value {
        self.api("GET", path, "")
    }

    pub fn delete(&self, path: &str) -> Value {
        self.api("DELETE", path, "")
    }

    pub fn task(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/tasks/{id}"))
    }

    /// Submits a task and gives its id.
    #[allow(clippy::needless_pass_by_value, reason = "reads better at the call")]
    pub fn submit(&self, task_type: &str, parameters: Value) -> String {
        self.submit_body(&json!({"task_type": task_type, "parameters": parameters}))
    }

    pub fn submit_body(&self, body: &Value) -> String {
        self.submit_text(&body.to_string())
    }

    /// Submits a body as it is.
    pub fn submit_text(&self, body: &str) -> String {
        self.api("POST", "/api/v1/tasks", body)["task_id"].as_str().expect("an id").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The status of a GET, if anybody answers.
pub fn status(url: &str, path: &str) -> Option<u16> {
    call(url, "GET", path, "").map(|(status, _)| status)
}

/// The body of a GET.
pub fn text(url: &str, path: &str) -> String {
    call(url, "GET", path, "").expect("an answer").1
}

/// One request over a connection of its own.
fn call(url: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
