//! Servers that a test starts for itself.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use windlass_store_redis::{RedisBackend, RedisOptions};

use super::certificates::{Authority, Identity};
use super::soon;

/// A server, until it is dropped.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    fn start(command: &mut Command, port: u16) -> Self {
        let child = command.stdout(Stdio::null()).spawn().expect("redis-server is installed");
        Self { child, port }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub async fn listens(&self) {
        soon("the server listens", || async { TcpStream::connect(self.address()).is_ok() }).await;
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the servers of a test have their files, and whether they are talked to in TLS and in nothing else.
pub struct Site {
    folder: TempDir,
    tls: Option<(Authority, Identity)>,
}

impl Site {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), tls: None }
    }

    /// Servers have a certificate for 127.0.0.1, and for no name.
    pub fn with_tls() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new(folder.path(), "authority");
        let identity = authority.certify(folder.path(), "server", "IP:127.0.0.1");
        Self { folder, tls: Some((authority, identity)) }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The option of a URL that names the authority of the servers.
    pub fn root(&self) -> String {
        let (authority, _) = self.tls.as_ref().expect("a site with TLS");
        format!("sslrootcert={}", authority.certificate.display())
    }

    pub fn server(&self, port: u16, more: &[&str]) -> Server {
        let folder = self.folder().join(port.to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut command = Command::new("redis-server");
        for (name, value) in self.listening(port) {
            command.arg(format!("--{name}")).arg(value);
        }
        command.args(["--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--dir"]);
        Server::start(command.arg(&folder).args(more), port)
    }

    /// A sentinel that watches over the server at a port and calls it main.
    pub fn sentinel(&self, port: u16, master: u16, more: &str) -> Server {
        let listening = self.listening(port).into_iter().map(|(name, value)| format!("{name} {value}\n"));
        let text = format!(
            "{}sentinel monitor main 127.0.0.1 {master} 1\nsentinel down-after-milliseconds main 500\n\
            sentinel failover-timeout main 2000\n{more}\n",
            listening.collect::<String>()
        );
        let file = self.folder().join(format!("sentinel-{port}.conf"));
        std::fs::write(&file, text).expect("a file");
        Server::start(Command::new("redis-server").arg(&file).arg("--sentinel"), port)
    }

    /// A cluster of so many servers, each master with so many replicas.
    pub async fn cluster(&self, servers: usize, replicas: usize) -> Vec<Server> {
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let servers: Vec<Server> = (0..servers).map(|_| self.server(free_port(), &settings)).collect();
        for server in &servers {
            server.listens().await;
        }
        let mut command = Command::new("redis-cli");
        if let Some((authority, _)) = &self.tls {
            command.args(["--tls", "--cacert"]).arg(&authority.certificate);
        }
        command.args(["--cluster", "create"]).args(servers.iter().map(Server::address));
        command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        let made = command.stdout(Stdio::null()).status().expect("redis-cli is installed");
        assert!(made.success());
        servers
    }

    fn listening(&self, port: u16) -> Vec<(&'static str, String)> {
        let mut settings = vec![("bind", "127.0.0.1".to_owned())];
        match &self.tls {
            None => settings.push(("port", port.to_string())),
            Some((authority, identity)) => settings.extend([
                ("port", "0".to_owned()),
                ("tls-port", port.to_string()),
                ("tls-cert-file", identity.certificate.display().to_string()),
                ("tls-key-file", identity.key.display().to_string()),
                ("tls-ca-cert-file", authority.certificate.display().to_string()),
                ("tls-auth-clients", "no".to_owned()),
                ("tls-replication", "yes".to_owned()),
                ("tls-cluster", "yes".to_owned()),
            ]),
        }
        settings
    }
}

pub fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        // The bus of a cluster has a port of its own, 10,000 above.
        if port < 55_000 {
            return port;
        }
    }
}

/// Opens the backend as soon as the servers are there.
pub async fn open(options: RedisOptions) -> RedisBackend {
    let mut last = None;
    for _ in 0..400 {
        match RedisBackend::open(options.clone()).await {
            Ok(backend) => return backend,
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the servers did not start: {last:?}");
}

/// A connection to a server without TLS.
pub async fn connection(port: u16) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL");
    for _ in 0..200 {
        if let Ok(connection) = client.get_multiplexed_async_connection().await {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the server did not start");
}
