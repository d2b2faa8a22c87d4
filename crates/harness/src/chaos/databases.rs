//! The databases under test: where they are, how they are killed and started again, and what rows they have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::clock::Clock;
use crate::error::HarnessError;

/// A failover that has not happened after this long does not happen.
const FAILOVER_WITHIN: Duration = Duration::from_secs(30);
/// How often the Sentinels are asked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How the database numbers the ends of tasks.
const ENDS: [(&str, &str); 4] = [("4", "completed"), ("5", "failed"), ("6", "cancelled"), ("7", "dead_letter")];

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// One Redis.
    Redis,
    /// One Valkey.
    Valkey,
    /// A Redis Cluster.
    Cluster,
    /// Redis with replicas and Sentinels.
    Sentinel,
}

impl Database {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Database::Postgres => "postgres",
            Database::Redis => "redis",
            Database::Valkey => "valkey",
            Database::Cluster => "cluster",
            Database::Sentinel => "sentinel",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Database::Postgres => "WINDLASS_TEST_POSTGRES_URL",
            Database::Redis => "WINDLASS_TEST_REDIS_URL",
            Database::Valkey => "WINDLASS_TEST_VALKEY_URL",
            Database::Cluster => "WINDLASS_TEST_REDIS_CLUSTER_URL",
            Database::Sentinel => "WINDLASS_TEST_REDIS_SENTINEL_URL",
        }
    }

    /// Whether writes that were acknowledged may be gone after it was broken.
    pub fn forgets(self) -> bool {
        self == Database::Sentinel
    }
}

/// The database of one run.
#[derive(Debug)]
pub struct Place {
    database: Database,
    /// What the tables or keys of the run are under.
    name: String,
    url: String,
    /// The folder of the test servers, which only a run that breaks them needs.
    servers: Option<PathBuf>,
}

impl Place {
    /// A place of its own for a run in the database that the environment names.
    pub fn new(database: Database, run: u64) -> Result<Self, HarnessError> {
        let variable = database.variable();
        let url = std::env::var(variable);
        let url = url.map_err(|_| HarnessError::Argument(format!("{variable} is not set: start the test servers")))?;
        let servers = std::env::var_os("WINDLASS_TEST_SERVERS").map(PathBuf::from);
        Ok(Self { database, name: format!("chaos_{run:x}"), url, servers })
    }

    /// What kind of database it is.
    pub fn database(&self) -> Database {
        self.database
    }

    /// The address of the store, for a server.
    pub fn store(&self) -> String {
        match self.database {
            Database::Postgres => self.url.clone(),
            Database::Redis | Database::Valkey | Database::Cluster | Database::Sentinel => {
                format!("{}?prefix={}", self.url, self.name)
            }
        }
    }

    /// The schema of the tables, for PostgreSQL.
    pub fn schema(&self) -> Option<String> {
        (self.database == Database::Postgres).then(|| self.name.clone())
    }

    fn servers(&self) -> Result<&Path, HarnessError> {
        let missing = || HarnessError::Argument("WINDLASS_TEST_SERVERS is not set: start the test servers".into());
        self.servers.as_deref().ok_or_else(missing)
    }

    fn read(&self, file: &str) -> Result<String, HarnessError> {
        let path = self.servers()?.join(file);
        let text = std::fs::read_to_string(&path).map_err(|source| HarnessError::File { path, source })?;
        Ok(text.trim().to_owned())
    }

    /// Which server is killed next.
    pub async fn victim(&self, number: u64) -> Result<String, HarnessError> {
        match self.database {
            Database::Postgres | Database::Redis | Database::Valkey => Ok(self.database.name().to_owned()),
            Database::Cluster => Ok(format!("cluster-{}", 1 + number % 3)),
            Database::Sentinel => self.primary().await,
        }
    }

    /// Kills a server of the database without mercy.
    pub async fn kill(&self, server: &str) -> Result<(), HarnessError> {
        let pid = self.read(&format!("pids/{server}.pid"))?;
        output(Command::new("kill").args(["-KILL", &pid])).await.map(drop)
    }

    /// Starts a killed server again. Where another one takes over, waits for that first.
    pub async fn restart(&self, server: &str) -> Result<(), HarnessError> {
        if self.database == Database::Sentinel {
            let clock = Clock::start();
            while self.primary().await? == server {
                if clock.elapsed() > FAILOVER_WITHIN {
                    return Err(HarnessError::Server(format!("no failover within {FAILOVER_WITHIN:?}")));
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        }
        let script = self.servers()?.join(format!("restart-{server}"));
        output(&mut Command::new(script)).await.map(drop)
    }

    /// The name of the server that the Sentinels call the primary.
    async fn primary(&self) -> Result<String, HarnessError> {
        let port = self.read("ports/sentinel-1")?;
        let asked = ["-p", &port, "sentinel", "get-master-addr-by-name", "windlass"];
        let answer = output(Command::new("redis-cli").args(["-h", "127.0.0.1"]).args(asked)).await?;
        let primary = answer.lines().nth(1).unwrap_or_default().trim();
        for name in ["redis-primary", "redis-replica-1", "redis-replica-2"] {
            if self.read(&format!("ports/{name}"))? == primary {
                return Ok(name.to_owned());
            }
        }
        Err(HarnessError::Server(format!("the Sentinels name a primary that is none of ours: {answer}")))
    }

    /// The rows of the run's tasks, by status.
    pub async fn rows(&self, queues: &[&str]) -> Result<BTreeMap<String, u64>, HarnessError> {
        match self.database {
            Database::Postgres => self.rows_of_tables().await,
            Database::Redis | Database::Valkey | Database::Cluster | Database::Sentinel => {
                self.rows_of_keys(queues).await
            }
        }
    }

    async fn rows_of_tables(&self) -> Result<BTreeMap<String, u64>, HarnessError> {
        let schema = &self.name;
        let query = format!(
            "SELECT status, count(*) FROM {schema}.ended GROUP BY status; SELECT 'live', count(*) FROM {schema}.live"
        );
        let answer = output(Command::new("psql").args(["-XqAt", "-F", " ", &self.url, "-c", &query])).await?;
        let mut rows = BTreeMap::new();
        for line in answer.lines() {
            let pair = line.split_once(' ').and_then(|(name, count)| Some((name, count.parse::<u64>().ok()?)));
            let (name, count) = pair.ok_or_else(|| HarnessError::call("psql", format!("no count: {line}")))?;
            let name = ENDS.iter().find(|(number, _)| *number == name).map_or(name, |(_, name)| name);
            rows.insert(name.to_owned(), count);
        }
        Ok(rows)
    }

    async fn rows_of_keys(&self, queues: &[&str]) -> Result<BTreeMap<String, u64>, HarnessError> {
        let port = match self.database {
            Database::Sentinel => self.read(&format!("ports/{}", self.primary().await?))?,
            Database::Postgres | Database::Redis | Database::Valkey | Database::Cluster => {
                let port = self.url.rsplit(':').next().unwrap_or_default();
                port.split('/').next().unwrap_or_default().to_owned()
            }
        };
        let mut rows = BTreeMap::new();
        for (queue, name) in queues.iter().flat_map(|queue| [(queue, "live"), (queue, "ended")]) {
            let key = format!("{}:{{q:{queue}}}:{name}", self.name);
            let answer =
                output(Command::new("redis-cli").args(["-c", "-h", "127.0.0.1", "-p", &port, "hlen", &key])).await?;
            let count: u64 = answer.trim().parse().map_err(|_| HarnessError::call("redis-cli hlen", answer.clone()))?;
            *rows.entry(name.to_owned()).or_default() += count;
        }
        Ok(rows)
    }
}

/// Runs a program that has to succeed, and answers what it wrote.
async fn output(command: &mut Command) -> Result<String, HarnessError> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let ended = ended.map_err(|error| HarnessError::Server(format!("{name} does not start: {error}")))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(HarnessError::call(name, format!("{} {said}", ended.status)));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
