//! Stopping a program: timeout, cancel, shutdown, a dropped run.

use std::future::pending;
use std::time::Duration;

use windlass_exec::{How, Limits, Stop, run};

use crate::support::{Trial, impatient, sh};

/// A grace that no test waits for.
fn patient() -> Limits {
    Limits { kill_grace: Duration::from_secs(60), ..Limits::default() }
}

#[tokio::test]
async fn a_timeout_stops_with_sigterm_first() {
    let trial = Trial::new().with_timeout(Duration::from_millis(200));
    let script = "trap 'echo cleaned up; exit 0' TERM; sleep 1000 & wait";
    let ended = trial.run(&sh(script), &patient(), pending()).await;
    assert!(matches!(ended.how, How::TimedOut), "{}", ended.how);
    assert_eq!(ended.stdout, b"cleaned up\n");
    assert!(ended.wall >= Duration::from_millis(200) && ended.wall < Duration::from_secs(10), "{:?}", ended.wall);
}

#[tokio::test]
async fn sigterm_goes_to_the_whole_group() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let script = r#"
        trap 'wait; echo parent; exit' TERM
        (trap 'echo child; exit' TERM; echo ready > "$FOLDER/ready"; sleep 1000 & wait) &
        wait
    "#;
    let stop = async {
        ready.wait().await;
        Stop::Cancelled
    };
    let ended = trial.run(&sh(script), &patient(), stop).await;
    assert!(matches!(ended.how, How::Stopped(Stop::Cancelled)), "{}", ended.how);
    assert_eq!(ended.stdout, b"child\nparent\n");
}

#[tokio::test]
async fn who_ignores_sigterm_is_killed_after_the_grace() {
    for how in [Stop::Cancelled, Stop::Shutdown] {
        let trial = Trial::new();
        let mut ready = trial.ready();
        let script = r#"trap '' TERM INT HUP; echo ready > "$FOLDER/ready"; sleep 1000; sleep 1000"#;
        let stop = async {
            ready.wait().await;
            how
        };
        let ended = trial.run(&sh(script), &impatient(), stop).await;
        assert!(matches!(ended.how, How::Stopped(found) if found == how), "{}", ended.how);
        assert!(ended.wall >= Duration::from_millis(300) && ended.wall < Duration::from_secs(5), "{:?}", ended.wall);
    }
}

#[tokio::test]
async fn a_timeout_may_have_a_shorter_grace() {
    let mut trial = Trial::new().with_timeout(Duration::from_millis(300));
    trial.job.timeout_grace = Some(Duration::from_millis(200));
    let ended = trial.run(&sh("trap '' TERM; echo busy >&2; sleep 1000; sleep 1000"), &patient(), pending()).await;
    assert!(matches!(ended.how, How::TimedOut), "{}", ended.how);
    assert_eq!(ended.stderr_tail, "busy\n");
    assert!(ended.wall >= Duration::from_millis(500) && ended.wall < Duration::from_secs(10), "{:?}", ended.wall);
}

#[tokio::test]
async fn a_program_that_stopped_itself_hears_sigterm() {
    let trial = Trial::new().with_timeout(Duration::from_millis(200));
    let ended = trial.run(&sh("trap 'echo woken; exit' TERM; kill -STOP $$; sleep 1000"), &patient(), pending()).await;
    assert!(matches!(ended.how, How::TimedOut), "{}", ended.how);
    assert_eq!(ended.stdout, b"woken\n");
}

#[tokio::test]
async fn a_stop_before_the_start_is_obeyed() {
    let trial = Trial::new();
    let ended = trial.run(&sh("sleep 1000"), &patient(), async { Stop::Shutdown }).await;
    assert!(matches!(ended.how, How::Stopped(Stop::Shutdown)), "{}", ended.how);
}

#[tokio::test]
async fn dropping_the_run_kills() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let program = sh(r#"trap '' TERM; setsid sleep 1000 & echo ready > "$FOLDER/ready"; sleep 1000; sleep 1000"#);
    let limits = patient();
    tokio::select! {
        ended = run(&program, trial.job.clone(), &limits, pending()) => panic!("ended: {}", ended.how),
        _ = ready.wait() => {}
    }
    trial.nothing_is_left_soon().await;
}

#[tokio::test]
async fn aborting_the_task_kills() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let job = trial.job.clone();
    let task = tokio::spawn(async move {
        run(&sh(r#"echo ready > "$FOLDER/ready"; sleep 1000"#), job, &patient(), pending()).await
    });
    ready.wait().await;
    assert!(!trial.left().is_empty());
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    trial.nothing_is_left_soon().await;
}

/// A runtime moves a run from thread to thread, and ends threads. A parent-death signal would kill the program then.
#[tokio::test]
async fn a_run_outlives_the_thread_that_started_it() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let job = trial.job.clone();
    let program = sh(r#"echo ready > "$FOLDER/ready"; sleep 0.2; echo alive"#);
    let mut running = Box::pin(async move { run(&program, job, &impatient(), pending()).await });
    let runtime = tokio::runtime::Handle::current();
    let running = tokio::task::spawn_blocking(move || {
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    ended = &mut running => panic!("ended: {}", ended.how),
                    _ = ready.wait() => {}
                }
            });
            running
        })
        .join()
        .unwrap()
    })
    .await
    .unwrap();
    let ended = running.await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"alive\n");
    assert!(trial.left().is_empty());
}
