//! Programs that print too much, too late, or not at all, and that do not read what they are given.

use std::future::pending;
use std::time::Duration;

use windlass_exec::{How, Limits};

use crate::support::{Trial, impatient, program, python, run_to_end, sh};

const MEGABYTE: usize = 1 << 20;

#[tokio::test]
async fn nothing_printed_is_nothing_kept() {
    let ended = run_to_end(&program(&["true"])).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert!(ended.stdout.is_empty());
    assert_eq!(ended.stderr_tail, "");
}

#[tokio::test]
async fn stdout_up_to_the_limit_is_kept_and_more_is_an_error() {
    let ended = run_to_end(&sh("head -c 1048576 /dev/zero")).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout.len(), MEGABYTE);

    let ended = run_to_end(&sh("head -c 1048577 /dev/zero")).await;
    assert!(matches!(ended.how, How::TooMuchOutput { limit: MEGABYTE }), "{}", ended.how);
    assert_eq!(ended.stdout.len(), MEGABYTE);
}

#[tokio::test]
async fn endless_output_is_stopped() {
    let limits = Limits { stdout_bytes: 100, ..impatient() };
    for script in ["exec yes", "yes", "trap '' TERM; yes"] {
        let ended = Trial::new().run(&sh(script), &limits, pending()).await;
        assert!(matches!(ended.how, How::TooMuchOutput { limit: 100 }), "{script}: {}", ended.how);
        assert_eq!(ended.stdout.len(), 100);
    }
}

#[tokio::test]
async fn of_stderr_the_end_is_kept() {
    let ended = run_to_end(&sh("yes schön | head -c 3000000 >&2; echo the end >&2")).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert!(ended.stderr_tail.starts_with('…'));
    assert!(ended.stderr_tail.ends_with("the end\n"));
    assert!((8000..=8192).contains(&ended.stderr_tail.len()), "{}", ended.stderr_tail.len());
}

#[tokio::test]
async fn invalid_text_is_no_trouble() {
    let ended = run_to_end(&sh(r"printf '\377\376ok'; printf 'a\377b\303' >&2")).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"\xff\xfeok");
    assert_eq!(ended.stderr_tail, "a\u{fffd}b\u{fffd}");
}

#[tokio::test]
async fn input_that_is_not_read_is_no_error() {
    let input = vec![b'x'; 3 * MEGABYTE];
    for script in ["true", "exec <&-; exec sleep 0.05", "head -c 5 > /dev/null"] {
        let trial = Trial::new().with_input(input.clone());
        let ended = trial.run(&sh(script), &impatient(), pending()).await;
        assert!(matches!(ended.how, How::Exited(0)), "{script}: {}", ended.how);
    }
}

#[tokio::test]
async fn much_input_and_much_output_at_once_do_not_block() {
    let trial = Trial::new().with_input(vec![b'x'; MEGABYTE]);
    let ended = trial.run(&sh("tee /dev/stderr"), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout.len(), MEGABYTE);
}

#[tokio::test]
async fn a_program_may_close_its_output_and_go_on() {
    let ended = run_to_end(&sh("echo before; exec >&- 2>&-; sleep 0.1; exit 3")).await;
    assert!(matches!(ended.how, How::Exited(3)), "{}", ended.how);
    assert_eq!(ended.stdout, b"before\n");
    assert!(ended.wall >= Duration::from_millis(100));
}

#[tokio::test]
async fn a_child_that_holds_the_output_open_is_waited_for_briefly() {
    let ended = run_to_end(&sh("sleep 1000 & echo done")).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"done\n");
    assert!(ended.wall < Duration::from_secs(5), "{:?}", ended.wall);

    let ended = run_to_end(&sh("(sleep 0.1; echo late) & echo early")).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(ended.stdout, b"early\nlate\n");
}

#[tokio::test]
async fn a_child_that_goes_on_printing_does_not_keep_the_run_open() {
    let ended = run_to_end(&python(
        "import os, time\nif os.fork(): os._exit(4)\nwhile True: os.write(2, b'still here\\n'); time.sleep(0.01)",
    ))
    .await;
    assert!(matches!(ended.how, How::Exited(4)), "{}", ended.how);
    assert!(ended.wall < Duration::from_secs(5), "{:?}", ended.wall);
}
