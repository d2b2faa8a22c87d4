//! The keeper and the worker are processes, too: killed, signalled, stopped.

use std::future::pending;
use std::process::Stdio;
use std::time::Duration;

use windlass_exec::How;

use crate::support::{PROBE, Trial, impatient, sh};

#[tokio::test]
async fn a_killed_worker_takes_its_program_along() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let mut worker = tokio::process::Command::new(PROBE)
        .arg(r#"sh -c "trap '' TERM HUP; setsid sleep 1000 & echo ready > $FOLDER/ready; sleep 1000; sleep 1000""#)
        .envs(trial.job.environment.clone())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    ready.wait().await;
    assert!(trial.left().len() >= 4, "worker, keeper, program and child: {:?}", trial.left());
    worker.kill().await.unwrap();
    trial.nothing_is_left_soon().await;
}

/// The probe has itself as keeper, as the real worker has.
#[tokio::test]
async fn a_binary_can_be_its_own_keeper() {
    let output = tokio::process::Command::new(PROBE)
        .arg("sh -c 'echo result; exit 75'")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "result\nthe program exited with code 75\n");
}

#[tokio::test]
async fn signals_to_the_keeper_do_not_reach_the_program() {
    let trial = Trial::new();
    let script = "kill -TERM $PPID; kill -INT $PPID; kill -HUP $PPID; sleep 0.1; echo alive";
    let ended = trial.run(&sh(script), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"alive\n");
}

#[tokio::test]
async fn a_program_that_kills_its_keeper_is_cleaned_up_by_the_worker() {
    let trial = Trial::new();
    let script = "setsid sleep 1000 & sleep 1000 & kill -KILL $PPID; sleep 1000";
    let ended = trial.run(&sh(script), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::KeeperLost), "{}", ended.how);
}

#[tokio::test]
async fn a_program_that_stops_its_keeper_still_times_out() {
    let trial = Trial::new().with_timeout(Duration::from_millis(100));
    let ended = trial.run(&sh("kill -STOP $PPID; sleep 1000"), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::TimedOut), "{}", ended.how);
}
