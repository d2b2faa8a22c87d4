//! A server, a worker and a folder of a test's own, and a look at what is left running.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass::{Client, TaskView};

use crate::server::Server;

/// Long enough for anything to happen on a busy machine. Nobody waits that long unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");

/// Looks again and again until something holds.
pub async fn until(at_most: Duration, mut holds: impl FnMut() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(at_most, waited).await.expect("it never comes to that");
}

/// A test with all that it needs. Everything is gone when it is dropped.
pub struct Trial {
    /// In the environment of all programs, and in the paths of all scripts.
    mark: String,
    server: Server,
    pub client: Client,
}

impl Trial {
    pub fn new() -> Self {
        Self::with_server(&[])
    }

    pub fn with_server(flags: &[&str]) -> Self {
        let server = Server::start(flags);
        let client = at_once(Client::builder(&*server.url).connect()).expect("a client");
        Self { mark: server.folder().display().to_string(), server, client }
    }

    pub fn start_server(&mut self) {
        self.server.start_again();
    }

    pub fn kill_server(&mut self) {
        self.server.kill();
    }

    pub fn url(&self) -> String {
        self.server.url.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.server.path(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect(name);
    }

    pub fn link(&self, target: &str, name: &str) {
        std::os::unix::fs::symlink(target, self.path(name)).expect(name);
    }

    fn append(&self, name: &str) -> File {
        File::options().create(true).append(true).open(self.path(name)).expect(name)
    }

    /// Waits for a file that a program makes.
    pub async fn file(&self, name: &str) {
        until(PATIENCE, || self.path(name).exists()).await;
    }

    /// What the worker runs for tasks of this type.
    pub fn script(&self, task_type: &str, script: &str) {
        self.write(&format!("{task_type}.sh"), script);
    }

    /// A worker for these scripts.
    pub fn worker(&self, types: &[&str], flags: &[&str]) -> Worker {
        let exec = types.iter().map(|name| format!("--exec={name}=sh {}", self.path(&format!("{name}.sh")).display()));
        let exec: Vec<String> = exec.collect();
        self.worker_with(&exec.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    pub fn worker_with(&self, flags: &[&str]) -> Worker {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = format!("worker-{}.log", NUMBER.fetch_add(1, Ordering::Relaxed));
        let child = self.worker_command(flags).stderr(self.append(&log)).spawn().expect("a worker");
        Worker { child, log: self.path(&log) }
    }

    fn worker_command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(WINDLASS);
        command.args(["worker", "--server", &self.url()]).args(flags);
        command.env("TRIAL", &self.mark).env("FOLDER", self.server.folder()).env("WINDLASS_LOG", "info");
        command
    }

    /// What a worker says that does not start.
    pub fn refused(&self, flags: &[&str]) -> String {
        let output = self.worker_command(flags).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Submits a task without retries.
    pub async fn submit(&self, task_type: &str) -> String {
        let task = self.client.enqueue_untyped(task_type, &Value::Null).max_retries(0).await.expect("submitted");
        task.id().to_string()
    }

    /// Submits a body as it is.
    pub fn post(&self, body: &str) -> String {
        self.server.submit_text(body)
    }

    /// The task when it has ended.
    pub async fn ended(&self, id: &str) -> TaskView {
        let task = self.client.wait(id, PATIENCE).await.expect("an answer");
        assert!(task.status.is_ended(), "{task:?}\n{}", self.logs());
        task
    }

    /// Runs a task to its end.
    pub async fn run(&self, task_type: &str) -> TaskView {
        self.ended(&self.submit(task_type).await).await
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.server.folder()).expect("a folder").map(|entry| entry.expect("an entry").path());
        let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let texts = logs.map(|path| format!("{}:\n{}", path.display(), fs::read_to_string(&path).expect("a log")));
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Processes of programs, and their keepers; the server and the workers aside.
    pub fn left(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").expect("/proc").filter_map(|entry| Some(entry.ok()?.path()));
        processes.filter_map(|process| self.described(&process)).collect()
    }

    fn described(&self, process: &Path) -> Option<String> {
        process.file_name()?.to_str()?.parse::<u32>().ok()?;
        // Who ends in this moment has neither.
        let command = fs::read(process.join("cmdline")).ok()?;
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let has_mark = command.contains(&self.mark) || String::from_utf8_lossy(&environment).contains(&self.mark);
        let is_ours = command.starts_with(&format!("{WINDLASS} "));
        (has_mark && !is_ours).then(|| format!("{} {command}", process.display()))
    }

    /// Waits for the end of the last program, where it is not told.
    pub async fn nothing_is_left(&self) {
        until(PATIENCE, || self.left().is_empty()).await;
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}left: {:?}", self.logs(), self.left());
        }
    }
}

/// Connecting to a server waits for nothing.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// A worker process.
pub struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for its end.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        until(PATIENCE, || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        })
        .await;
        status.and_then(|status| status.code())
    }

    /// Waits until it has said something.
    pub async fn log_has(&self, words: &str) {
        until(PATIENCE, || fs::read_to_string(&self.log).expect("a log").contains(words)).await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
