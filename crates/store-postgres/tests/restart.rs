//! A server of our own that is killed in the middle of work.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{Backend, CommitError, Tail};

/// A server in a temporary folder.
struct Server {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
}

/// Where `initdb` and its like are: in the path, or where Debian puts them.
fn programs() -> PathBuf {
    let debian = (13..=18).rev().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    debian
        .chain(std::env::split_paths(&path))
        .find(|folder| folder.join("initdb").exists())
        .expect("initdb of PostgreSQL")
}

/// PostgreSQL refuses to run as root.
fn unprivileged(program: &Path) -> Command {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0"));
    if is_root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

impl Server {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        // Readable for the user that the server runs as.
        Command::new("chmod").arg("0777").arg(folder.path()).status().expect("chmod");
        let server = Self { folder, programs: programs(), port };
        let made = unprivileged(&server.programs.join("initdb"))
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"])
            .arg(server.data())
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.start();
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn start(&self) {
        let options = format!("-p {} -c listen_addresses=127.0.0.1 -k {}", self.port, self.folder.path().display());
        let began = Instant::now();
        loop {
            let started = unprivileged(&self.programs.join("pg_ctl"))
                .args(["-w", "-o", &options, "-l"])
                .arg(self.folder.path().join("log"))
                .arg("-D")
                .arg(self.data())
                .arg("start")
                .output()
                .expect("pg_ctl runs");
            if started.status.success() {
                return;
            }
            // Processes of the one that was killed may still hold the shared memory.
            assert!(began.elapsed() < Duration::from_secs(20), "{}", String::from_utf8_lossy(&started.stderr));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn kill(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).expect("a running server");
        let id = file.lines().next().expect("a process id").to_owned();
        assert!(Command::new("kill").args(["-9", &id]).status().expect("kill runs").success());
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = unprivileged(&self.programs.join("pg_ctl"))
            .args(["-m", "immediate", "-D"])
            .arg(self.data())
            .arg("stop")
            .output();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_is_found_again_and_has_lost_nothing() {
    let server = Server::new();
    let database = Database::at(&server.url());
    let backend = database.open().await;
    let (mut seen, mut acknowledged, mut errors) = (0u64, 0u64, 0);
    let mut killed = false;
    let began = Instant::now();
    while acknowledged < 300 {
        assert!(began.elapsed() < Duration::from_secs(60), "{acknowledged} of 300");
        if acknowledged == 100 && !killed {
            server.kill();
            killed = true;
        }
        match backend.commit(&entry(seen + 1), &tasks(vec![new_task(acknowledged + 1)])).await {
            Ok(()) => (seen, acknowledged) = (seen + 1, acknowledged + 1),
            Err(CommitError::Behind) => panic!("nobody else writes"),
            Err(CommitError::Refused(error) | CommitError::Unknown(error) | CommitError::Unsafe(error)) => {
                assert!(error.reason.contains("127.0.0.1"), "{error}");
                if errors == 0 {
                    server.start();
                }
                errors += 1;
                // Whether it was written: as a node does, look.
                let began = Instant::now();
                seen = loop {
                    match backend.tail(seen, 10).await {
                        Ok(Tail::Entries(entries)) => {
                            acknowledged += entries.len() as u64;
                            break seen + entries.len() as u64;
                        }
                        Ok(Tail::Gone) => panic!("the log is gone"),
                        Err(_) => assert!(began.elapsed() < Duration::from_secs(20)),
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
            }
        }
    }
    assert!(errors > 0);
    let mut snapshot = backend.load().await.expect("loaded");
    assert_eq!(snapshot.version, 300);
    assert_eq!(live(&mut snapshot).await.len(), 300);
    backend.close().await;
}
