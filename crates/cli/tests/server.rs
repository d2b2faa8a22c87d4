//! The command as a person or a service manager runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str], variables: &[(&str, &str)]) -> Output {
    windlass(args).envs(variables.iter().copied()).output().expect("it runs")
}

#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let output = output(args, &[]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?}");
    for word in words {
        assert!(told.contains(word), "{args:?}: {word} is not in {told}");
    }
}

/// A folder of this test's own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("windlass-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn settings_come_from_flags_then_environment_then_file() {
    let folder = Folder::new("layers");
    let file = folder.path("windlass.toml");
    std::fs::write(&file, "lease_seconds = 60\nmax_connections = 7\n[defaults.high]\nmax_retries = 9\n")
        .expect("written");
    let variables = [("WINDLASS_LEASE_SECONDS", "50"), ("WINDLASS_STRICT_TYPES", "true")];
    let printed = output(&["server", "--print-config", "--config", &file, "--heartbeat-seconds", "0.5"], &variables);
    let text = String::from_utf8_lossy(&printed.stdout);
    for line in [
        "lease_seconds = 50  # WINDLASS_LEASE_SECONDS",
        "heartbeat_seconds = 0.5  # --heartbeat-seconds",
        "strict_types = true  # WINDLASS_STRICT_TYPES",
        "listen = \"127.0.0.1:7070\"  # default",
        "defaults.high.max_retries = 9",
        "max_connections = 7",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new("wrong");
    let file = folder.path("windlass.toml");
    std::fs::write(&file, "leese_seconds = 60\n").expect("written");
    refused(&["server", "--config", &file], &["leese_seconds = 60"]);
    refused(&["server", "--config", "/nowhere.toml"], &["/nowhere.toml"]);
    refused(&["server", "--lease-seconds", "0"], &["lease_seconds = 0", "0.1 to 3600"]);
    refused(&["server", "--heartbeat-seconds", "31"], &["heartbeat_seconds = 31", "shorter than lease_seconds"]);
    refused(&["server", "--log-format", "xml"], &["log_format = xml", "pretty, json"]);
    refused(&["server", "--listen", "nonsense"], &["listen = nonsense"]);
    refused(&["server", "--listen", "0.0.0.0:0"], &["listen = 0.0.0.0:0", "--insecure-listen"]);
    refused(&["server", "--listen", "127.0.0.1:0", "--store", "paper:x"], &["store = paper:x", "sqlite:"]);
    refused(&["server", "--lease", "5"], &["--lease"]);
}

#[test]
fn openapi_is_printed() {
    let printed = output(&["openapi"], &[]);
    let document: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert!(document["paths"]["/api/v1/tasks"]["post"].is_object());
}

fn start(folder: &Folder) -> (Child, String) {
    let store = format!("sqlite:{}", folder.path("data"));
    let mut child = windlass(&["server", "--listen", "127.0.0.1:0", "--store", &store]).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address").to_owned();
    (child, address)
}

fn call(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn it_serves_stops_at_a_signal_and_remembers() {
    let folder = Folder::new("serves");
    let (mut child, address) = start(&folder);
    let body = r#"{"task_type":"t"}"#;
    let length = body.len();
    let answer = call(
        &address,
        &format!(
            "POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    );
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let id = answer.split("\"task_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id").to_owned();
    let signalled = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
    assert!(signalled.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));

    let (mut child, address) = start(&folder);
    let answer = call(&address, &format!("GET /api/v1/tasks/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
    assert!(answer.contains("\"status\":\"queued\""), "{answer}");
    child.kill().expect("killed");
    child.wait().expect("it ends");
}
