//! What a run costs, for whoever wants to know: `cargo test --release -p windlass-exec -- --ignored cost --nocapture`.

use std::future::pending;
use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;
use windlass_exec::{Job, Limits, run};

use crate::support::program;

const RUNS: usize = 500;

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_a_run() {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        let child = tokio::process::Command::new("true").stdin(Stdio::null()).output();
        assert!(child.await.unwrap().status.success());
        times.push(began.elapsed());
    }
    print("started directly", times);

    let limited = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
    for (name, limits) in [("with a keeper", Limits::default()), ("with a keeper and a memory limit", limited)] {
        let mut times = Vec::new();
        for _ in 0..RUNS {
            times.push(run(&program(&["true"]), Job::default(), &limits, pending()).await.wall);
        }
        print(name, times);
    }
}

#[cfg(test)]
fn print(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("true, {name}: median {:?}, fastest tenth {:?}", times[RUNS / 2], times[RUNS / 10]);
}
