//! How to reach the database.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::error::OpenError;

/// How to open the store.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?sslmode=…`. Besides what PostgreSQL's own tools know it may say
    /// `pgbouncer=true`: there is a pooler in between that hands out connections by the transaction.
    pub url: String,
    /// The schema that everything is in.
    pub schema: String,
    /// Where to listen for hints: a way to the server itself, around a pooler. The main URL unless given; nobody
    /// listens if that leads to a pooler.
    pub listen_url: Option<String>,
    /// Where lists, histories and statistics are looked up: a replica, which may lag behind. The main URL unless given,
    /// and while the replica cannot be read.
    pub read_url: Option<String>,
    /// Whether to listen at all.
    pub listen: bool,
    /// Connections for reads beside the one that writes.
    pub readers: usize,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a statement may take.
    pub statement_timeout: Duration,
    /// How long a transaction may wait for another, and how long a node that vanished in the middle of one may hold
    /// others up.
    pub lock_timeout: Duration,
    /// How often to look for entries of others while nobody gives hints.
    pub poll_interval: Duration,
    /// How often to look while hints are given.
    pub slow_poll_interval: Duration,
    /// Whether to bring the schema up to date. If not, it must be: then the role needs no right to make tables.
    pub migrate: bool,
    /// Whether statements are prepared once per connection. A pooler that hands out connections by the transaction
    /// cannot have it; `None` decides by the URL.
    pub prepare: Option<bool>,
}

impl PostgresOptions {
    /// The usual options for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "windlass".to_owned(),
            listen_url: None,
            read_url: None,
            listen: true,
            readers: 4,
            connect_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            poll_interval: Duration::from_millis(50),
            slow_poll_interval: Duration::from_millis(250),
            migrate: true,
            prepare: None,
        }
    }

    pub(crate) fn check_schema(&self) -> Result<(), OpenError> {
        let fits = (1..=40).contains(&self.schema.len())
            && self.schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && self.schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if fits && !self.schema.starts_with("pg_") { Ok(()) } else { Err(OpenError::Schema(self.schema.clone())) }
    }
}

/// How much TLS is asked for, as PostgreSQL's own tools mean it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// None.
    Disable,
    /// If the server offers it; whoever it is.
    Prefer,
    /// Surely; whoever the server is, unless there is a file of roots.
    Require,
    /// The certificate must come from a known root.
    VerifyCa,
    /// And be made out to the host.
    VerifyFull,
}

/// A URL, taken apart.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) encryption: Encryption,
    pub(crate) roots: Option<PathBuf>,
    /// Connections are handed out by the transaction: nothing may be left in the session.
    pub(crate) pooled: bool,
    /// Host, port and database, for messages.
    pub(crate) name: String,
}

/// What the URL may say that the client library does not know.
struct Own {
    encryption: Encryption,
    roots: Option<PathBuf>,
    pooled: bool,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, OpenError> {
        let bad = |reason: String| OpenError::Url(reason);
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("it must begin with postgres://".into()));
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut own = Own { encryption: Encryption::Prefer, roots: None, pooled: false };
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if !own.take(pair)? {
                rest.push(pair);
            }
        }
        let plain = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
        // The library's message names the parameter and never the password.
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| bad(reason(&error)))?;
        config.ssl_mode(match own.encryption {
            // Nobody listens in on a socket of this machine, and servers offer no TLS on one.
            _ if is_socket(&config) => SslMode::Disable,
            Encryption::Disable => SslMode::Disable,
            Encryption::Prefer => SslMode::Prefer,
            Encryption::Require | Encryption::VerifyCa | Encryption::VerifyFull => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("windlass");
        }
        let name = name(&config);
        Ok(Self { config, encryption: own.encryption, roots: own.roots, pooled: own.pooled, name })
    }
}

impl Own {
    /// Takes what is ours; false if it is not.
    fn take(&mut self, pair: &str) -> Result<bool, OpenError> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "sslmode" => {
                self.encryption = match value {
                    "disable" => Encryption::Disable,
                    "allow" | "prefer" => Encryption::Prefer,
                    "require" => Encryption::Require,
                    "verify-ca" => Encryption::VerifyCa,
                    "verify-full" => Encryption::VerifyFull,
                    _ => return Err(OpenError::Url(format!("sslmode={value} is none of PostgreSQL's"))),
                }
            }
            "sslrootcert" => {
                self.roots = Some(decoded(value).into()).filter(|path: &PathBuf| !path.as_os_str().is_empty());
            }
            "pgbouncer" => {
                self.pooled = match value {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(OpenError::Url("pgbouncer must be true or false".into())),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Percent signs decoded, as a path in a URL has them.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        if let Some(byte) = hex.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the only way is a socket of this machine.
fn is_socket(config: &Config) -> bool {
    let hosts = config.get_hosts();
    // An address counts for more than the host beside it.
    !hosts.is_empty() && config.get_hostaddrs().is_empty() && !hosts.iter().any(|host| matches!(host, Host::Tcp(_)))
}

fn name(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{host}:{port}/{}", config.get_dbname().or(config.get_user()).unwrap_or_default())
}

/// An error with its cause: the library's own text leaves it out.
pub(crate) fn reason(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let target = Target::parse(
            "postgres://ann:secret@db.example:6432/jobs?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&pgbouncer=true",
        )
        .expect("a URL");
        assert_eq!(target.name, "db.example:6432/jobs");
        assert_eq!(target.encryption, Encryption::VerifyFull);
        assert_eq!(target.roots, Some("/etc/ca.pem".into()));
        assert!(target.pooled);
        assert_eq!(target.config.get_ssl_mode(), SslMode::Require);
        let target = Target::parse("postgresql:///jobs?host=/run/postgresql&user=ann").expect("a URL");
        assert_eq!(target.name, "/run/postgresql:5432/jobs");
        assert_eq!(target.encryption, Encryption::Prefer);
    }

    #[test]
    fn only_a_socket_does_without_the_tls_that_is_asked_for() {
        for (place, mode) in [
            ("/jobs?host=/run/postgresql", SslMode::Disable),
            ("%2Frun%2Fpostgresql/jobs", SslMode::Disable),
            ("%2Frun%2Fpostgresql,db.example/jobs", SslMode::Require),
            ("/jobs?host=/run/postgresql&hostaddr=10.0.0.1", SslMode::Require),
            ("/jobs?hostaddr=10.0.0.1", SslMode::Require),
            ("/jobs", SslMode::Require),
            ("localhost/jobs", SslMode::Require),
        ] {
            let mark = if place.contains('?') { '&' } else { '?' };
            let target = Target::parse(&format!("postgres://{place}{mark}sslmode=verify-full"));
            assert_eq!(target.expect(place).config.get_ssl_mode(), mode, "{place}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "mysql://x",
            "postgres://a:secret@h/d?sslmode=maybe",
            "postgres://a:secret@h/d?sslcert=mine.pem",
            "postgres://a:secret@h/d?nonsense=1",
        ] {
            let Err(error) = Target::parse(url) else { panic!("{url} was taken") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn names_of_schemas() {
        for (schema, fits) in
            [("windlass", true), ("_a1", true), ("A", false), ("a-b", false), ("", false), ("pg_x", false)]
        {
            let options = PostgresOptions { schema: schema.to_owned(), ..PostgresOptions::new("") };
            assert_eq!(options.check_schema().is_ok(), fits, "{schema}");
        }
    }
}
