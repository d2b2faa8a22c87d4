//! `windlass dev` as a newcomer meets it: what is on the screen works, and Ctrl-C leaves nothing behind.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");

/// A folder of this test's own, which programs take for the place of temporary files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("windlass-dev-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn entries(&self) -> Vec<PathBuf> {
        self.0.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running `windlass dev`.
struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    screen: Vec<String>,
}

impl Dev {
    fn start(folder: &Folder, flags: &[&str]) -> Self {
        let mut child = Command::new(WINDLASS)
            .args(["dev", "--listen", "127.0.0.1:0"])
            .args(flags)
            .env("TMPDIR", &folder.0)
            .env_remove("WINDLASS_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let screen = lines.by_ref().map(|line| line.expect("a line")).take_while(|line| line != "What happens now:");
        let screen = screen.collect();
        Self { child, lines, screen }
    }

    /// The commands on the screen.
    fn commands(&self) -> impl Iterator<Item = &str> {
        self.screen.iter().filter_map(|line| line.strip_prefix("    "))
    }

    fn command(&self, words: &str) -> &str {
        self.commands().find(|command| command.contains(words)).expect(words)
    }

    /// Reads on until a line has all these words.
    fn tells(&mut self, words: &[&str]) -> String {
        let mut lines = self.lines.by_ref().map(|line| line.expect("a line"));
        lines.find(|line| words.iter().all(|word| line.contains(word))).expect("a line with these words")
    }

    fn address(&self) -> &str {
        self.command("export").split("http://").nth(1).expect("an address")
    }

    /// A command as it would be copied from the screen.
    fn copied(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{}; {command}", self.command("export"))]);
        shell
    }

    fn try_out(&self, words: &str) -> String {
        let output = self.copied(self.command(words)).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}: {told}{}", String::from_utf8_lossy(&output.stderr));
        told
    }

    /// Sends a signal and gives the exit code and what was on standard error.
    fn stop(mut self, signal: &str) -> (Option<i32>, String) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let told = std::io::read_to_string(self.child.stderr.take().expect("piped")).expect("text");
        (self.child.wait().expect("it ends").code(), told)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_is_on_the_screen_works_and_nothing_stays() {
    let folder = Folder::new("screen");
    let mut dev = Dev::start(&folder, &[]);
    assert_eq!(folder.entries().len(), 1);
    dev.tells(&["doomed", "dead_letter", "no_such_customer"]);
    dev.tells(&["flaky", "scheduled", "again in 1s"]);

    assert!(dev.try_out(" list").contains("report"));
    assert!(dev.try_out(" dlq").contains("doomed"));
    assert!(dev.try_out("enqueue greet").contains("Hello, Ada!"));
    assert!(dev.try_out("curl ").contains("task_id"));
    dev.try_out(" cancel ");
    dev.tells(&["slow", "cancelled"]);
    dev.tells(&["flaky", "completed"]);
    let history = dev.try_out(" get ");
    assert!(history.contains("flaky") && history.contains("connection_reset"), "{history}");

    let worker = dev.command("worker --exec");
    let mut worker = dev.copied(&format!("exec {worker}")).stderr(Stdio::null()).spawn().expect("a worker");
    assert!(dev.try_out("enqueue shout").contains("HELLO"));
    worker.kill().expect("killed");
    worker.wait().expect("it ends");
    assert_eq!(dev.commands().count(), 9, "every command on the screen is tried");

    let (code, told) = dev.stop("-INT");
    assert_eq!((code, told.as_str()), (Some(0), ""));
    assert_eq!(folder.entries(), Vec::<PathBuf>::new());
}

#[test]
fn a_store_can_be_kept() {
    let folder = Folder::new("kept");
    let store = folder.0.join("playground");
    let dev = Dev::start(&folder, &["--keep", store.to_str().expect("a path")]);
    assert!(dev.screen[1].contains("playground"), "{:?}", dev.screen);
    let (code, _) = dev.stop("-TERM");
    assert_eq!(code, Some(0));
    assert!(store.join("windlass.db").exists());
    assert_eq!(folder.entries(), [store]);
}

#[test]
fn a_port_in_use_is_told_with_what_to_do() {
    let folder = Folder::new("port");
    let dev = Dev::start(&folder, &[]);
    let second = Command::new(WINDLASS).args(["dev", "--listen", dev.address()]).env("TMPDIR", &folder.0).output();
    let second = second.expect("it runs");
    let told = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(told.contains(&format!("cannot listen on {}", dev.address())), "{told}");
    assert!(told.contains("--listen 127.0.0.1:0"), "{told}");
    assert_eq!(folder.entries().len(), 1, "the second one has left a folder");

    // As when its terminal is closed.
    let (code, _) = dev.stop("-HUP");
    assert_eq!((code, folder.entries()), (Some(0), Vec::new()));
}
