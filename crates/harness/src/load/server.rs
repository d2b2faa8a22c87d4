//! The server process under test: start, wait until it is ready, kill without mercy.

use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::clock::Clock;
use crate::error::HarnessError;
use crate::http::Client;

/// A server that is not ready after this long never will be; recovery of a small store takes milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How often readiness is asked for while the server starts.
const READY_EVERY: Duration = Duration::from_millis(5);
/// How much of the server's log is shown when it dies by itself.
const LOG_LINES_SHOWN: usize = 30;

/// How to start the server.
#[derive(Clone, Debug)]
pub struct ServerSetup {
    /// The `windlass` program.
    pub binary: PathBuf,
    /// The file of its log.
    pub log: PathBuf,
    /// The address of its store.
    pub store: String,
    /// The schema of its tables, for PostgreSQL.
    pub schema: Option<String>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Lease given to workers, in seconds.
    pub lease_seconds: f64,
    /// Heartbeat interval told to workers, in seconds.
    pub heartbeat_seconds: f64,
}

/// A loopback address that was free a moment ago.
pub fn free_address() -> Result<SocketAddr, HarnessError> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_err(|error| HarnessError::Server(format!("no free port on loopback: {error}")))
}

/// A running server.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts the server and waits until it says that it is ready. Answers how long that took, too.
    pub async fn start(setup: &ServerSetup) -> Result<(Self, Duration), HarnessError> {
        let log = setup.log.clone();
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let (out, err) = open().and_then(|out: File| Ok((out.try_clone()?, out))).map_err(|source| {
            let path = log.clone();
            HarnessError::File { path, source }
        })?;
        let clock = Clock::start();
        let mut command = Command::new(&setup.binary);
        if let Some(schema) = &setup.schema {
            command.args(["server", "--store-schema", schema]);
        } else {
            command.arg("server");
        }
        let child = command
            .args(["--listen", &setup.address.to_string()])
            .args(["--store", &setup.store])
            .args(["--lease-seconds", &setup.lease_seconds.to_string()])
            .args(["--heartbeat-seconds", &setup.heartbeat_seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| HarnessError::Server(format!("{} does not start: {error}", setup.binary.display())))?;
        let mut server = Self { child, log };
        server.wait_until_ready(setup.address, clock).await?;
        Ok((server, clock.elapsed()))
    }

    async fn wait_until_ready(&mut self, address: SocketAddr, clock: Clock) -> Result<(), HarnessError> {
        let mut client = Client::new(address, Duration::from_secs(5));
        loop {
            if let Ok((200, _)) = client.call("GET", "/readyz", b"").await {
                return Ok(());
            }
            self.still_running()?;
            if clock.elapsed() > READY_WITHIN {
                let log = self.log_tail();
                return Err(HarnessError::Server(format!("the server is not ready after {READY_WITHIN:?}\n{log}")));
            }
            tokio::time::sleep(READY_EVERY).await;
        }
    }

    /// An error if the server has ended by itself.
    pub fn still_running(&mut self) -> Result<(), HarnessError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let log = self.log_tail();
                Err(HarnessError::Server(format!("the server ended by itself ({status})\n{log}")))
            }
            Err(error) => Err(HarnessError::Server(format!("the server cannot be watched: {error}"))),
        }
    }

    /// SIGKILL, and waits until the process is gone. It is an error if it had ended before.
    pub async fn kill(mut self) -> Result<(), HarnessError> {
        self.still_running()?;
        let killed = self.child.kill().await;
        killed.map_err(|error| HarnessError::Server(format!("the server cannot be killed: {error}")))
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let text = text.unwrap_or_else(|error| format!("(no log: {error})"));
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

/// Makes the folder of a run; it must not exist, so that no run sees the tasks of another.
pub fn make_folder(folder: &Path) -> Result<(), HarnessError> {
    std::fs::create_dir_all(folder.parent().unwrap_or(folder))
        .and_then(|()| std::fs::create_dir(folder))
        .map_err(|source| HarnessError::File { path: folder.to_owned(), source })
}
