//! Encryption, asked of a real server with certificates that were made for it.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::certificates::Root;
use common::server::Server;
use tokio::time::Instant;
use windlass_store_postgres::{OpenError, PostgresBackend, PostgresOptions};

/// Unlike anything that a message could have in it by chance.
const PASSWORD: &str = "mellow-7321-harbour";
/// What the certificate is made out to.
const NAMED: &str = "localhost";
/// The same place by a name that the certificate does not have.
const UNNAMED: &str = "127.0.0.1";

/// A server that offers TLS.
struct Encrypted {
    server: Server,
    root: Root,
    /// Has the same name and signed nothing.
    wrong_root: Root,
}

impl Encrypted {
    fn new() -> Self {
        Self::with(Root::server)
    }

    /// One that shows what is made of the root.
    fn with(make: impl FnOnce(&Root) -> (PathBuf, PathBuf)) -> Self {
        let server = Server::with_password(PASSWORD);
        let root = Root::new(server.folder(), "root");
        let wrong_root = Root::new(server.folder(), "wrong");
        let (certificate, key) = make(&root);
        server.set(&format!(
            "ssl = on\nssl_cert_file = '{}'\nssl_key_file = '{}'",
            certificate.display(),
            key.display()
        ));
        server.start();
        Self { server, root, wrong_root }
    }

    fn url(&self, host: &str, mode: &str) -> String {
        url(&self.server, host, mode)
    }

    fn url_with_root(&self, host: &str, mode: &str, root: &Path) -> String {
        format!("{}&sslrootcert={}", self.url(host, mode), root.display())
    }

    /// How many connections of this name are encrypted, and how many are not.
    async fn connections(&self, name: &str) -> (i64, i64) {
        let sql = "SELECT count(*) FILTER (WHERE s.ssl), count(*) FILTER (WHERE NOT s.ssl)
            FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = $1";
        let row = self.server.client().await.query_one(sql, &[&name]).await.expect("counted");
        (row.get(0), row.get(1))
    }

    /// Connects by this URL and says which connections that made.
    async fn connections_by(&self, name: &str, url: &str) -> (i64, i64) {
        let backend = connect(&format!("{url}&application_name={name}")).await;
        let backend = backend.unwrap_or_else(|error| panic!("{name}: {error}"));
        let made = self.connections(name).await;
        drop(backend);
        made
    }
}

fn url(server: &Server, host: &str, mode: &str) -> String {
    format!("postgres://postgres:{PASSWORD}@{host}:{}/postgres?sslmode={mode}", server.port())
}

async fn connect(url: &str) -> Result<PostgresBackend, OpenError> {
    PostgresBackend::connect(PostgresOptions { listen: false, ..PostgresOptions::new(url) }).await
}

/// Why this URL is refused. Whoever reads it does not learn the password.
async fn refusal(url: &str) -> (OpenError, String) {
    let Err(error) = connect(url).await else { panic!("connected by {url}") };
    let message = error.to_string();
    assert!(!message.contains(PASSWORD) && !format!("{error:?}").contains(PASSWORD), "{error:?}");
    (error, message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_root_is_believed_and_the_connection_is_encrypted() {
    let encrypted = Encrypted::new();
    let root = &encrypted.root.certificate;
    let cases = [
        ("verify_full", encrypted.url_with_root(NAMED, "verify-full", root)),
        ("verify_ca", encrypted.url_with_root(NAMED, "verify-ca", root)),
        ("verify_ca_unnamed", encrypted.url_with_root(UNNAMED, "verify-ca", root)),
        ("require_with_root", encrypted.url_with_root(UNNAMED, "require", root)),
        ("require", encrypted.url(UNNAMED, "require")),
        ("prefer", encrypted.url(UNNAMED, "prefer")),
    ];
    for (name, url) in cases {
        assert_eq!(encrypted.connections_by(name, &url).await, (1, 0), "{name}");
    }
    assert_eq!(encrypted.connections_by("disable", &encrypted.url(UNNAMED, "disable")).await, (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_refused() {
    let encrypted = Encrypted::new();
    let (root, wrong) = (&encrypted.root.certificate, &encrypted.wrong_root.certificate);
    for mode in ["verify-full", "verify-ca", "require"] {
        let (_, message) = refusal(&encrypted.url_with_root(NAMED, mode, wrong)).await;
        assert!(message.contains("invalid peer certificate"), "{mode}: {message}");
        assert!(message.contains(&format!("localhost:{}", encrypted.server.port())), "{mode}: {message}");
    }
    // The roots that come with Windlass did not sign it either.
    for mode in ["verify-full", "verify-ca"] {
        let (_, message) = refusal(&encrypted.url(NAMED, mode)).await;
        assert!(message.contains("invalid peer certificate"), "{mode}: {message}");
    }
    let (_, message) = refusal(&encrypted.url_with_root(UNNAMED, "verify-full", root)).await;
    assert!(message.contains("not valid for name"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_is_not_believed_to_be_a_server() {
    let encrypted = Encrypted::with(|root| (root.certificate.clone(), root.key.clone()));
    for mode in ["verify-full", "verify-ca"] {
        let (_, message) = refusal(&encrypted.url_with_root(NAMED, mode, &encrypted.root.certificate)).await;
        assert!(message.contains("CaUsedAsEndEntity"), "{mode}: {message}");
    }
    assert_eq!(encrypted.connections_by("require", &encrypted.url(NAMED, "require")).await, (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = Server::with_password(PASSWORD);
    server.start();
    for mode in ["require", "verify-ca", "verify-full"] {
        let (_, message) = refusal(&url(&server, UNNAMED, mode)).await;
        assert!(message.contains("server does not support TLS"), "{mode}: {message}");
    }
    for mode in ["prefer", "disable"] {
        connect(&url(&server, UNNAMED, mode)).await.unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_needs_no_encryption() {
    let encrypted = Encrypted::new();
    let (folder, port) = (encrypted.server.folder().display(), encrypted.server.port());
    for mode in ["prefer", "require", "verify-full"] {
        let url = format!("postgres:///postgres?user=postgres&host={folder}&port={port}&sslmode={mode}");
        connect(&url).await.unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (missing, empty, broken) =
        (folder.path().join("missing.pem"), folder.path().join("empty.pem"), folder.path().join("broken.pem"));
    std::fs::write(&empty, "nothing that looks like a certificate").expect("written");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("written");
    for root in [missing.as_path(), &empty, &broken, folder.path()] {
        for mode in ["verify-full", "verify-ca", "require"] {
            // Nobody is asked: the file is read first.
            let url =
                format!("postgres://postgres:{PASSWORD}@db.invalid/x?sslmode={mode}&sslrootcert={}", root.display());
            let (error, message) = refusal(&url).await;
            assert!(matches!(error, OpenError::Certificates { .. }), "{message}");
            assert!(message.contains(&root.display().to_string()), "{message}");
        }
    }
    let url =
        format!("postgres://postgres:{PASSWORD}@db.invalid/x?sslmode=verify-full&sslrootcert={}", missing.display());
    assert!(refusal(&url).await.1.contains("No such file"), "it says why");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_checked_and_never_told() {
    let encrypted = Encrypted::new();
    let right = encrypted.url_with_root(NAMED, "verify-full", &encrypted.root.certificate);
    let sql = "SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'postgres'";
    assert!(encrypted.server.client().await.query_one(sql, &[]).await.expect("read").get::<_, bool>(0));
    // Whoever sits in between with a certificate of their own cannot pass such a login on.
    for binding in ["prefer", "require", "disable"] {
        let bound = connect(&format!("{right}&channel_binding={binding}")).await;
        bound.unwrap_or_else(|error| panic!("{binding}: {error}"));
    }
    let (_, message) = refusal(&format!("{}&channel_binding=require", encrypted.url(NAMED, "disable"))).await;
    assert!(message.contains("channel binding"), "{message}");
    let (_, message) = refusal(&right.replace("postgres:mellow", "postgres:wrong-mellow")).await;
    assert!(message.contains("password authentication failed"), "{message}");
    let (_, message) = refusal(&right.replace("/postgres?", "/nowhere?")).await;
    assert!(message.contains("does not exist"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_arrive_over_tls() {
    let encrypted = Encrypted::new();
    let url = encrypted.url_with_root(NAMED, "verify-full", &encrypted.root.certificate);
    let options = PostgresOptions::new(format!("{url}&application_name=listener"));
    let backend = PostgresBackend::connect(options).await.expect("connects");
    let began = Instant::now();
    while !backend.is_listening() {
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(encrypted.connections("listener").await, (2, 0), "the one that migrated and the one that listens");
}
