//! Programs that end, in all the ways there are, and programs that never begin.

use std::fs;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use windlass_exec::{How, StartError};

use crate::support::{Trial, impatient, program, python, run_to_end, sh};

#[tokio::test]
async fn exit_codes_are_passed_on() {
    for code in [0, 1, 65, 75, 126, 127, 137, 255] {
        let ended = run_to_end(&sh(&format!("exit {code}"))).await;
        assert!(matches!(ended.how, How::Exited(found) if found == code), "{code}: {}", ended.how);
        assert!(ended.cpu.is_some());
        assert_eq!(ended.peak_memory_bytes, None);
    }
}

#[tokio::test]
async fn signals_that_are_not_ours_are_told() {
    for (name, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("ABRT", 6)] {
        let ended = run_to_end(&sh(&format!("kill -{name} $$"))).await;
        assert!(matches!(ended.how, How::Signalled(found) if found == number), "{name}: {}", ended.how);
    }
}

#[tokio::test]
async fn input_environment_and_streams_reach_the_program() {
    let mut trial = Trial::new().with_input("parameters");
    trial.job.environment.push(("GIVEN".to_owned(), "a b\nc".to_owned()));
    let script = r#"cat; printf '|%s|%s' "$GIVEN" "${PATH:+inherited}"; echo trouble >&2"#;
    let ended = trial.run(&sh(script), &impatient(), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "parameters|a b\nc|inherited");
    assert_eq!(ended.stderr_tail, "trouble\n");
}

#[tokio::test]
async fn the_program_has_a_place_of_its_own() {
    let script = r"
        read -r pid name state parent group session rest < /proc/$$/stat
        [ $group = $$ ] && [ $session = $PPID ] && echo group
        (: < /dev/tty) 2> /dev/null || echo no terminal
        ulimit -c
        cat /proc/$$/oom_score_adj
        # The keeper gives its own score back when it has started the program, which may be a moment later.
        while [ $(cat /proc/$PPID/oom_score_adj) = 1000 ]; do :; done
        cat /proc/$PPID/comm
    ";
    let ended = run_to_end(&sh(script)).await;
    let found = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(found, "group\nno terminal\n0\n1000\njob-keeper\n", "{}", ended.stderr_tail);
}

/// Descriptors and signals that somebody forgot to clear are inherited, and odd things happen much later.
#[tokio::test]
async fn the_program_inherits_what_it_would_without_a_keeper() {
    let script = "import os
print(sorted(fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)))
print([line for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))])
print(os.getcwd(), os.umask(0))";
    let directly =
        tokio::process::Command::new("python3").args(["-c", script]).stdin(Stdio::piped()).output().await.unwrap();
    let ended = run_to_end(&python(script)).await;
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), String::from_utf8(directly.stdout).unwrap());
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let trial = Trial::new();
    let file = |name: &str, content: &str, mode| {
        let path = trial.folder.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let not_executable = file("not-executable", "#!/bin/sh\n", 0o644);
    let no_shebang = file("no-shebang", "echo hello\n", 0o755);
    let no_interpreter = file("no-interpreter", "#!/no/such/shell\n", 0o755);
    let folder = trial.folder.to_str().unwrap();

    for (name, expected) in [
        ("no-such-program-anywhere", "there is no program 'no-such-program-anywhere' in PATH".to_owned()),
        ("/no/such/program", "/no/such/program does not exist".to_owned()),
        (folder, format!("{folder} is not a file")),
        (&not_executable, format!("{not_executable} is not executable (chmod +x?)")),
        (&no_shebang, format!("{no_shebang} is neither a script with a #! line nor a binary for this machine")),
        (&no_interpreter, format!("{no_interpreter} names an interpreter that does not exist (see its #! line)")),
    ] {
        let ended = trial.run(&program(&[name]), &impatient(), pending()).await;
        assert!(
            matches!(&ended.how, How::CouldNotStart(error) if error.to_string() == expected),
            "{name}: {}",
            ended.how
        );
    }
}

#[tokio::test]
async fn a_binary_that_is_no_keeper_is_noticed() {
    for (keeper, expected) in [("/bin/true", "ended without a word"), ("/no/such/keeper", "No such file")] {
        let program = program(&["true"]).kept_by(keeper);
        let ended = run_to_end(&program).await;
        assert!(
            matches!(&ended.how, How::CouldNotStart(error @ StartError::Keeper(_)) if error.to_string().contains(expected)),
            "{keeper}: {}",
            ended.how
        );
    }
}
