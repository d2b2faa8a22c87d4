//! Programs that leave something behind.

use std::future::pending;
use std::time::Duration;

use windlass_exec::{How, Stop};

use crate::support::{Trial, impatient, python, run_to_end, sh};

/// The whole art of becoming a daemon: two forks, a session, no descriptors, an empty environment.
const DAEMON: &str = r#"
import os, sys, time
pids = os.path.join(os.environ["FOLDER"], "pids")
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(pids, "a") as file:
            file.write("%d\n" % os.getpid())
        os.chdir("/")
        os.closerange(0, 3)
        # Close on exec: its end tells the program that the daemon is what it wants to be.
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os.close(write)
os.read(read, 1)
"#;

#[tokio::test]
async fn background_children_go_with_the_program() {
    for script in [
        "sleep 1000 >&- 2>&- & exit 7",
        "nohup sleep 1000 > /dev/null 2>&1 & exit 7",
        "setsid sleep 1000 > /dev/null 2>&1 & exit 7",
        "(setsid sh -c 'sleep 1000 & sleep 1000 & wait' > /dev/null 2>&1 &) ; exit 7",
        "trap '' TERM; sleep 1000 > /dev/null 2>&1 & exit 7",
    ] {
        let ended = run_to_end(&sh(script)).await;
        assert!(matches!(ended.how, How::Exited(7)), "{script}: {}", ended.how);
        // Nobody held the output open, so there was nothing to wait for.
        assert!(ended.wall < Duration::from_millis(400), "{script}: {:?}", ended.wall);
    }
}

#[tokio::test]
async fn daemons_do_not_escape() {
    let trial = Trial::new();
    let ended = trial.run(&python(DAEMON), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{} {}", ended.how, ended.stderr_tail);
    let pids = std::fs::read_to_string(trial.folder.join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 1, "the daemon was there");
}

#[tokio::test]
async fn a_daemon_is_killed_when_the_program_is_stopped() {
    let trial = Trial::new();
    let mut ready = trial.ready();
    let program =
        python(&format!("{DAEMON}\nopen(os.environ['FOLDER'] + '/ready', 'w').write('x\\n')\ntime.sleep(1000)"));
    let stop = async {
        ready.wait().await;
        assert_eq!(trial.left().len(), 3, "keeper, program and daemon");
        Stop::Cancelled
    };
    let ended = trial.run(&program, &impatient(), stop).await;
    assert!(matches!(ended.how, How::Stopped(Stop::Cancelled)), "{} {}", ended.how, ended.stderr_tail);
}

/// Everybody forks and ends at once, each in a session of its own: whoever is found has gone by the time he is hit.
#[tokio::test]
async fn what_keeps_moving_is_caught() {
    let ended = run_to_end(&python(
        "import os, time
end = time.time() + 15
if os.fork():
    time.sleep(0.05)
    os._exit(0)
while time.time() < end:
    if os.fork(): os._exit(0)
    os.setsid()
",
    ))
    .await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert!(ended.wall < Duration::from_secs(3), "{:?}", ended.wall);
}

/// A group is killed in one step, and the keeper must not be in it.
#[tokio::test]
async fn hiding_in_the_keepers_group_does_not_help() {
    let ended = run_to_end(&python(
        "import os, time
keeper = os.getppid()
read, write = os.pipe()
if os.fork() == 0:
    os.setpgid(0, keeper)
    os.write(write, b'x')
    os.closerange(0, 3)
    time.sleep(1000)
os.read(read, 1)
os._exit(9)
",
    ))
    .await;
    assert!(matches!(ended.how, How::Exited(9)), "{} {}", ended.how, ended.stderr_tail);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_side_by_side_do_not_disturb_each_other() {
    let bystander = tokio::spawn(async {
        let trial = Trial::new();
        trial.run(&sh("setsid sleep 1 & wait; echo undisturbed"), &impatient(), pending()).await
    });
    let tasks: Vec<_> = (0..12)
        .map(|_| tokio::spawn(async { Trial::new().run(&python(DAEMON), &impatient(), pending()).await }))
        .collect();
    for task in tasks {
        let ended = task.await.unwrap();
        assert!(matches!(ended.how, How::Exited(0)), "{} {}", ended.how, ended.stderr_tail);
    }
    let ended = bystander.await.unwrap();
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"undisturbed\n");
}
