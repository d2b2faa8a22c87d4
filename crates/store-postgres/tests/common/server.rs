//! Private servers in temporary folders, to be set up, stopped and killed as a test likes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::NoTls;

/// A server in a temporary folder.
pub struct Server {
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

/// PostgreSQL refuses to run as root, and to use files of others.
pub fn unprivileged(program: impl AsRef<Path>) -> Command {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0"));
    if is_root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program.as_ref());
        command
    } else {
        Command::new(program.as_ref())
    }
}

/// Runs a program that must be there and must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

impl Server {
    /// One that runs and asks nobody for a password.
    pub fn new() -> Self {
        let server = Self::prepared();
        server.initialize(&["-A", "trust"]);
        server.start();
        server
    }

    /// One that asks for a password when it is reached by TCP. It does not run yet.
    pub fn with_password(password: &str) -> Self {
        let server = Self::prepared();
        let file = server.folder().join("password");
        std::fs::write(&file, password).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("readable for the server");
        let file = file.display().to_string();
        server.initialize(&["--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile", &file]);
        server
    }

    /// One that runs and follows another.
    pub fn standby_of(primary: &Self) -> Self {
        let server = Self::prepared();
        run(unprivileged(server.programs.join("pg_basebackup"))
            .args(["-R", "-c", "fast", "-X", "stream", "-U", "postgres", "-h"])
            .arg(primary.folder())
            .args(["-p", &primary.port.to_string(), "-D"])
            .arg(server.data()));
        server.start();
        server
    }

    /// A folder and a port, and nothing in it.
    fn prepared() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        // For the user that the server runs as.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).expect("open for the server");
        Self { folder, programs: programs(), port }
    }

    fn initialize(&self, how: &[&str]) {
        run(unprivileged(self.programs.join("initdb"))
            .args(["-U", "postgres", "-E", "UTF8", "--locale=C"])
            .args(how)
            .arg("-D")
            .arg(self.data()));
    }

    /// Adds to the settings; they count from the next start.
    pub fn set(&self, settings: &str) {
        let file = std::fs::OpenOptions::new().append(true).open(self.data().join("postgresql.conf"));
        writeln!(file.expect("the settings"), "{settings}").expect("written");
    }

    /// Where everything of this server is, its socket too.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    pub fn start(&self) {
        let options = format!("-p {} -c listen_addresses=127.0.0.1 -k {}", self.port, self.folder().display());
        let began = Instant::now();
        loop {
            let started = unprivileged(self.programs.join("pg_ctl"))
                .args(["-w", "-o", &options, "-l"])
                .arg(self.folder().join("log"))
                .arg("-D")
                .arg(self.data())
                .arg("start")
                .output()
                .expect("pg_ctl runs");
            if started.status.success() {
                return;
            }
            // Processes of the one that was killed may still hold the shared memory.
            assert!(began.elapsed() < Duration::from_secs(20), "{}\n{}", text(&started.stderr), self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn kill(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).expect("a running server");
        let id = file.lines().next().expect("a process id").to_owned();
        run(Command::new("kill").args(["-9", &id]));
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        text(&std::fs::read(self.folder().join("log")).unwrap_or_default())
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// A plain connection by the socket, which asks for nothing.
    pub async fn client(&self) -> tokio_postgres::Client {
        let place = format!("host={} port={} user=postgres dbname=postgres", self.folder().display(), self.port);
        let (client, connection) = tokio_postgres::connect(&place, NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = unprivileged(self.programs.join("pg_ctl"))
            .args(["-m", "immediate", "-D"])
            .arg(self.data())
            .arg("stop")
            .output();
    }
}
