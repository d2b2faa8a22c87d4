//! A tiny benchmark from end to end: real processes, real stores, real figures; and nothing is left behind.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Most things take milliseconds; this is for a machine on its knees.
const PATIENCE: Duration = Duration::from_secs(60);

const FIGURES: [&str; 14] = [
    "submit_x1",
    "submit_x32",
    "bulk_100",
    "bulk_100_x32",
    "bulk_1000",
    "drain",
    "pickup_p50",
    "pickup_p99",
    "submit_latency_p50",
    "submit_latency_p99",
    "memory_server",
    "memory_worker",
    "memory",
    "idle_cpu",
];

fn bench(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg("bench").args(arguments).current_dir(folder).stdin(Stdio::null());
    // Settings of somebody's own server are none of the benchmark's business.
    command.env("WINDLASS_STRICT_TYPES", "true");
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_tiny_run_gives_every_figure_and_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
    let tiny = ["--seconds", "0.1", "--tasks", "200", "--pickups", "3", "--json"];
    let output = bench(folder.path(), &tiny).output().expect("it runs");
    assert!(output.status.success(), "{}", told(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for figure in FIGURES {
        // Of all figures only this one may be nothing.
        let least = if figure == "idle_cpu" { -1.0 } else { 0.0 };
        let value = |way: &str| document[way][figure]["median"].as_f64().filter(|value| *value > least);
        assert!(value("http").is_some(), "{figure} over HTTP: {document:#}");
        // One process is no server and no worker alone.
        let is_part = matches!(figure, "memory_server" | "memory_worker");
        assert!(is_part != value("embedded").is_some(), "{figure} embedded: {document:#}");
    }
    assert!(document["syncs_per_second"]["median"].as_f64() > Some(0.0), "{document:#}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "something is left");
}

#[test]
fn other_machines_are_left_alone() {
    let folder = TempDir::new().expect("a folder");
    let output = bench(folder.path(), &["--server", "http://192.0.2.1:7070"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("not on this machine"), "{}", told(&output));
}

/// A long benchmark of which all processes run.
fn started(folder: &Path) -> (Child, Vec<u32>) {
    let mut command = bench(folder, &["--seconds", "60", "--only", "submit-x1", "--way", "http"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut processes = Vec::new();
    until("server, producer and worker run", || {
        processes = children(child.id());
        processes.len() == 3
    });
    (child, processes)
}

fn children(parent: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).expect("it runs").flatten();
    let of_thread = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    of_thread.flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

fn are_gone(processes: &[u32]) -> bool {
    let is_alive =
        |id: &u32| std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    !processes.iter().any(is_alive)
}

fn kill(signal: &str, process: u32) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().expect("kill runs");
    assert!(status.success());
}

#[allow(clippy::disallowed_methods, reason = "tests of real processes wait in real time")]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn interrupted_it_takes_everything_away() {
    let folder = TempDir::new().expect("a folder");
    let (mut child, processes) = started(folder.path());
    kill("-INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    let mut told = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
    assert!(told.contains("interrupted"), "{told}");
    assert!(are_gone(&processes));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "something is left");
}

#[test]
fn killed_it_leaves_no_processes() {
    let folder = TempDir::new().expect("a folder");
    let (mut child, processes) = started(folder.path());
    kill("-KILL", child.id());
    child.wait().expect("it ends");
    until("its processes have ended", || are_gone(&processes));
}
