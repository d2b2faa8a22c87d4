//! A server of a test's own, and commands run against it.

#![allow(dead_code, reason = "every test program uses its part of this")]

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support;

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        // Ended by a signal it has no code, which no test expects.
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    pub fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.err.contains(word), "{word} is not in {}", self.err);
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["WINDLASS_SERVER", "WINDLASS_API_KEY", "NO_COLOR"] {
        command.env_remove(name);
    }
    command
}

/// Runs a command.
pub fn run(args: &[&str]) -> Ended {
    run_with(args, &[])
}

/// Runs a command with variables.
pub fn run_with(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    Ended::new(&windlass(args).envs(variables.iter().copied()).output().expect("it runs"))
}

/// A server, and commands that talk to it.
pub struct Server {
    server: support::Server,
    pub address: String,
}

impl Server {
    pub fn start() -> Self {
        let server = support::Server::start(&["--log", "error"]);
        Self { address: server.url.clone(), server }
    }

    pub fn path(&self, name: &str) -> String {
        self.server.path(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.server.path(name), text).expect("written");
        self.path(name)
    }

    fn variables(&self) -> [(&str, &str); 1] {
        [("WINDLASS_SERVER", &self.address)]
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        run_with(args, &self.variables())
    }

    /// What a command prints that must do well.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "{args:?}: {}{}", ended.out, ended.err);
        ended.out
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "{args:?}: {}{}", ended.out, ended.err);
        ended.json()
    }

    pub fn piped(&self, args: &[&str], input: &str) -> Ended {
        let mut child = windlass(args).envs(self.variables()).stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input.as_bytes()).expect("written");
        drop(stdin);
        Ended::new(&child.wait_with_output().expect("it ends"))
    }

    /// Runs a command whose reader is gone after the first bytes.
    pub fn run_with_closed_output(&self, args: &[&str]) -> Ended {
        let mut child = windlass(args).envs(self.variables()).spawn().expect("it starts");
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut [0; 10]).expect("a beginning");
        drop(stdout);
        Ended::new(&child.wait_with_output().expect("it ends"))
    }

    /// A call of the API, past the command.
    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.server.api(method, path, &body.map(ToString::to_string).unwrap_or_default())
    }

    pub fn worker(&self, profile: &Value) -> Worker<'_> {
        let answer = self.api("POST", "/internal/workers/register", Some(profile));
        Worker { server: self, id: answer["worker_id"].as_str().expect("an id").to_owned() }
    }
}

/// A worker that does what a test says.
pub struct Worker<'a> {
    server: &'a Server,
    pub id: String,
}

impl Worker<'_> {
    /// The next task.
    pub fn poll(&self) -> Value {
        let path = format!("/internal/workers/{}/poll", self.id);
        let answer = self.server.api("POST", &path, Some(&json!({"available_capacity": 1, "wait_ms": 5_000})));
        answer["tasks"][0].clone()
    }

    /// Says how it went.
    pub fn finish(&self, task: &Value, how: &Value) {
        let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"]});
        for (name, value) in how.as_object().expect("an object") {
            result[name] = value.clone();
        }
        self.server.api("POST", &format!("/internal/workers/{}/result", self.id), Some(&result));
    }
}
