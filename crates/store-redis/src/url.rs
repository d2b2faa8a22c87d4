//! Which servers a URL names.

use std::path::PathBuf;

/// Where the database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    /// One server.
    Standalone,
    /// The master that sentinels know by this name.
    Sentinel {
        /// The name.
        master: String,
        /// How to log in to the sentinels themselves.
        login: Login,
    },
    /// A cluster.
    Cluster,
}

/// A user and a password, where they are needed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

/// A URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) servers: Servers,
    pub(crate) tls: bool,
    /// The file of the certificates to believe, instead of those of the system.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) login: Login,
    pub(crate) db: i64,
    pub(crate) prefix: String,
    /// Replicas that must have a commit before it is acknowledged.
    pub(crate) wait_replicas: usize,
}

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// What may stand behind the `?`.
const OPTIONS: [&str; 5] = ["prefix", "wait_replicas", "sslrootcert", "sentinel_user", "sentinel_password"];
/// Does not quote it: a password that is not written with %40, %2F and the like is taken apart in the wrong places.
const NO_PORT: &str = "a port must be a number; in a password, special characters are written as % and two digits";
/// More than anybody has.
const MOST_REPLICAS: usize = 100;
const DEFAULT_PREFIX: &str = "windlass";

/// Reads `redis://`, `rediss://`, and each with `+sentinel` or `+cluster`.
pub(crate) fn parse(url: &str) -> Result<Target, String> {
    let (scheme, rest) = url.split_once("://").ok_or("must begin with redis:// or rediss://")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let tls = match base {
        "redis" => false,
        "rediss" => true,
        _ => {
            return Err(format!(
                "the scheme {scheme} is not known; take redis, rediss, redis+sentinel or redis+cluster"
            ));
        }
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let options = Options::parse(query)?;
    if options.roots.is_some() && !tls {
        // Whoever names certificates believes that the way is encrypted.
        let other = scheme.replacen("redis", "rediss", 1);
        return Err(format!("has the option sslrootcert, but {scheme}:// goes without TLS; take {other}://"));
    }
    let (servers, port) = match kind {
        "" => (Servers::Standalone, DEFAULT_PORT),
        "cluster" => (Servers::Cluster, DEFAULT_PORT),
        "sentinel" => {
            let master = parts.next().ok_or("must name the master, as in redis+sentinel://host:26379/mymaster")?;
            (Servers::Sentinel { master: decode(master)?, login: options.sentinel }, SENTINEL_PORT)
        }
        _ => return Err(format!("the scheme {scheme} is not known; take redis+sentinel or redis+cluster")),
    };
    let db = parts.next().map_or(Ok(0), str::parse).map_err(|_| "the database must be a number")?;
    if servers == Servers::Cluster && db != 0 {
        return Err("a cluster has no databases".into());
    }
    let hosts: Vec<(String, u16)> = hosts.split(',').map(|part| host(part, port)).collect::<Result<_, _>>()?;
    if servers == Servers::Standalone && hosts.len() != 1 {
        return Err("must name one server; for several take redis+sentinel or redis+cluster".into());
    }
    let Options { prefix, wait_replicas, roots, .. } = options;
    Ok(Target { servers, tls, roots, hosts, login: parse_login(login)?, db, prefix, wait_replicas })
}

/// What stands behind the question mark.
struct Options {
    prefix: String,
    wait_replicas: usize,
    roots: Option<PathBuf>,
    /// How to log in to sentinels.
    sentinel: Login,
}

impl Options {
    fn parse(query: &str) -> Result<Self, String> {
        let sentinel = Login::default();
        let mut options = Self { prefix: DEFAULT_PREFIX.to_owned(), wait_replicas: 0, roots: None, sentinel };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.take(name, decode(value)?)?;
        }
        Ok(options)
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "prefix" if is_prefix(&value) => self.prefix = value,
            "prefix" => return Err("the prefix may have letters, digits and . _ : - only".into()),
            "wait_replicas" => {
                self.wait_replicas = value
                    .parse()
                    .ok()
                    .filter(|count| *count <= MOST_REPLICAS)
                    .ok_or_else(|| format!("wait_replicas must be a number from 0 to {MOST_REPLICAS}"))?;
            }
            "sslrootcert" if value.is_empty() => return Err("has the option sslrootcert, but names no file".into()),
            "sslrootcert" => self.roots = Some(value.into()),
            "sentinel_user" => self.sentinel.user = Some(value),
            "sentinel_password" => self.sentinel.password = Some(value),
            // What looks like a name may be the rest of a password.
            _ => return Err(format!("an option is not known; there are {}", OPTIONS.join(", "))),
        }
        Ok(())
    }
}

fn is_prefix(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
}

fn parse_login(text: &str) -> Result<Login, String> {
    if text.is_empty() {
        return Ok(Login::default());
    }
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let some = |text: &str| decode(text).map(|text| (!text.is_empty()).then_some(text));
    Ok(Login { user: some(user)?, password: some(password)? })
}

fn host(text: &str, default_port: u16) -> Result<(String, u16), String> {
    // The colons of an IPv6 address stand in brackets.
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().map_err(|_| NO_PORT)?),
        _ => (text, default_port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() { Err("must name a server".into()) } else { Ok((name.to_owned(), port)) }
}

fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("a % must be followed by two digits".into());
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "must be UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let plain = parse("redis://localhost").expect("plain");
        assert_eq!(plain.hosts, [("localhost".to_owned(), 6379)]);
        assert_eq!(
            (plain.servers, plain.tls, plain.db, plain.prefix.as_str()),
            (Servers::Standalone, false, 0, "windlass")
        );
        let full = parse("rediss://me:p%40ss@[::1]:7000/3?prefix=jobs").expect("full");
        assert_eq!(full.hosts, [("::1".to_owned(), 7000)]);
        assert_eq!(full.login.password.as_deref(), Some("p@ss"));
        assert_eq!((full.tls, full.db, full.prefix.as_str()), (true, 3, "jobs"));
        let sentinel = parse("redis+sentinel://:secret@a:1,b/main/2?sentinel_password=x").expect("sentinel");
        assert_eq!(sentinel.hosts, [("a".to_owned(), 1), ("b".to_owned(), 26379)]);
        assert_eq!((sentinel.db, sentinel.login.user), (2, None));
        assert!(
            matches!(sentinel.servers, Servers::Sentinel { master, login } if master == "main" && login.password.is_some())
        );
        let cluster = parse("redis+cluster://a:1,b:2?wait_replicas=2").expect("cluster");
        assert_eq!((plain.wait_replicas, cluster.wait_replicas), (0, 2));
        assert_eq!((cluster.servers, cluster.hosts.len()), (Servers::Cluster, 2));
    }

    #[test]
    fn certificates_are_for_tls() {
        for scheme in ["redis://a", "redis+sentinel://a/main", "redis+cluster://a"] {
            let (name, rest) = scheme.split_once("://").expect("a scheme");
            let secure = format!("{}://{rest}", name.replacen("redis", "rediss", 1));
            let target = parse(&format!("{secure}?sslrootcert=%2Fetc%2Fca.pem")).expect("a URL");
            assert_eq!((target.tls, target.roots), (true, Some("/etc/ca.pem".into())), "{secure}");
            assert_eq!(parse(&secure).expect("a URL").roots, None);
            let refused = parse(&format!("{scheme}?sslrootcert=/etc/ca.pem")).expect_err("no TLS");
            assert!(refused.contains("without TLS") && refused.contains("rediss"), "{refused}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "localhost",
            "http://a",
            "redis+ring://a",
            "redis://a,b",
            "redis://a:port",
            "redis://a/x",
            "redis+sentinel://a",
            "redis+cluster://a/1",
            "redis://a?colour=red",
            "redis://a?prefix={x}",
            "redis://a?wait_replicas=some",
            "redis://a?wait_replicas=101",
            "rediss://a?sslrootcert=",
            "redis://u:%zz@a",
            "redis://",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
