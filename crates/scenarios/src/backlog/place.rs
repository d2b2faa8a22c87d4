//! A database of its own for a run, and what it says it did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::NoObserver;
use windlass_core::store::Store;
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_store_redis::{RedisOptions, RedisStore};
use windlass_store_sqlite::{SqliteOptions, SqliteStore};

use super::LEASE;
use crate::stage::Outcomes;

/// A session of PostgreSQL that is idle tells what it did after ten seconds at the latest.
const TOLD_AFTER: Duration = Duration::from_millis(10_500);

/// What the database counts of itself, since it was made.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// By name.
    pub totals: BTreeMap<&'static str, f64>,
    /// Pages that were looked at, by table with its indexes.
    pub pages: BTreeMap<String, f64>,
}

impl Figures {
    /// What one of so many calls did on average since `before`.
    pub fn per_call(&self, before: &Self, calls: usize) -> Self {
        let each = |now: f64, then: Option<&f64>| (now - then.copied().unwrap_or_default()) / calls.max(1) as f64;
        Self {
            totals: self.totals.iter().map(|(name, now)| (*name, each(*now, before.totals.get(name)))).collect(),
            pages: self.pages.iter().map(|(name, now)| (name.clone(), each(*now, before.pages.get(name)))).collect(),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let totals: Vec<String> = self.totals.iter().map(|(name, value)| format!("{value:.2} {name}")).collect();
        f.write_str(&totals.join(", "))?;
        let mut pages: Vec<_> = self.pages.iter().filter(|(_, pages)| **pages >= 0.5).collect();
        pages.sort_by(|a, b| b.1.total_cmp(a.1));
        let pages: Vec<String> = pages.iter().map(|(table, pages)| format!("{table} {pages:.1}")).collect();
        if pages.is_empty() { Ok(()) } else { write!(f, " ({})", pages.join(", ")) }
    }
}

/// A database of its own for the run.
pub enum Place {
    /// A folder.
    Folder(tempfile::TempDir),
    /// A schema of PostgreSQL, and who holds a transaction open beside.
    Schema { url: String, schema: String, held: Option<tokio_postgres::Client> },
    /// Keys of Redis.
    Prefix { url: String, prefix: String },
}

async fn client(url: &str) -> Outcomes<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn own_name() -> String {
    format!("backlog_{}", std::process::id())
}

impl Place {
    /// Opens a store in a place of its own.
    pub async fn open(address: &str) -> Outcomes<(Self, Arc<dyn Store>)> {
        if address.starts_with("postgres") {
            let (url, schema) = (address.to_owned(), own_name());
            let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::new(&url) };
            let store = PostgresStore::open(options, LEASE, None, Arc::new(NoObserver)).await?;
            return Ok((Self::Schema { url, schema, held: None }, store));
        }
        if address.starts_with("redis") {
            let (url, prefix) = (address.to_owned(), own_name());
            let more = if url.contains('?') { '&' } else { '?' };
            let options = RedisOptions::new(format!("{url}{more}prefix={prefix}"));
            let (store, _) = RedisStore::open(options, LEASE, None, Arc::new(NoObserver)).await?;
            return Ok((Self::Prefix { url, prefix }, store));
        }
        let folder = tempfile::tempdir()?;
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("data")), Arc::new(NoObserver))?;
        Ok((Self::Folder(folder), store))
    }

    /// Begins a transaction that sees the present and keeps it from being cleared away.
    pub async fn hold_open(&mut self) -> Outcomes {
        let Self::Schema { url, schema, held } = self else {
            return Err("only PostgreSQL has transactions to hold open".into());
        };
        let holder = client(url).await?;
        holder
            .batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.log"))
            .await?;
        *held = Some(holder);
        Ok(())
    }

    /// Waits until everything that was done is counted.
    pub async fn settle(&self) {
        if matches!(self, Self::Schema { .. }) {
            tokio::time::sleep(TOLD_AFTER).await;
        }
    }

    /// Ends the transaction that is held open.
    pub fn let_go(&mut self) {
        if let Self::Schema { held, .. } = self {
            *held = None;
        }
    }

    /// What the database has counted so far. Asks for nothing that is not told yet: see [`Place::settle`].
    pub async fn figures(&self) -> Outcomes<Figures> {
        match self {
            Self::Folder(_) => Ok(Figures::default()),
            Self::Schema { url, schema, .. } => {
                let sql = "SELECT CASE WHEN t.relname LIKE 'ended%' THEN 'ended' ELSE t.relname END,
                        sum(t.seq_scan)::float8,
                        sum(coalesce(t.idx_tup_fetch, 0) + t.seq_tup_read)::float8,
                        sum(s.heap_blks_hit + s.heap_blks_read + coalesce(s.idx_blks_hit, 0)
                            + coalesce(s.idx_blks_read, 0))::float8,
                        sum(t.n_dead_tup)::float8,
                        sum(t.vacuum_count + t.autovacuum_count)::float8
                    FROM pg_stat_user_tables t JOIN pg_statio_user_tables s USING (relid)
                    WHERE t.schemaname = $1 GROUP BY 1";
                let mut figures = Figures::default();
                for row in client(url).await?.query(sql, &[schema]).await? {
                    let pages: f64 = row.get(3);
                    figures.pages.insert(row.get(0), pages);
                    let counted: [(&'static str, f64); 4] = [
                        ("scans of a whole table", row.get(1)),
                        ("rows read", row.get(2)),
                        ("pages", pages),
                        ("cleanings", row.get(5)),
                    ];
                    for (name, value) in counted {
                        *figures.totals.entry(name).or_default() += value;
                    }
                }
                Ok(figures)
            }
            Self::Prefix { url, .. } => {
                let client = redis::Client::open(url.as_str())?;
                let mut connection = client.get_multiplexed_async_connection().await?;
                let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
                let field = |line: &str, name: &str| -> f64 {
                    let value = line.split([':', ',']).find_map(|part| part.strip_prefix(name));
                    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
                };
                let sum = |name: &str| info.lines().map(|line| field(line, name)).sum::<f64>();
                let totals = [("commands", sum("calls=")), ("microseconds in Redis", sum("usec="))].into();
                Ok(Figures { totals, ..Figures::default() })
            }
        }
    }

    /// Leaves nothing behind.
    pub async fn clear(self) -> Outcomes {
        match self {
            Self::Folder(folder) => folder.close()?,
            Self::Schema { url, schema, held } => {
                drop(held);
                client(&url).await?.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
            }
            Self::Prefix { url, prefix } => {
                let client = redis::Client::open(url.as_str())?;
                let mut connection = client.get_multiplexed_async_connection().await?;
                let keys: Vec<String> =
                    redis::cmd("KEYS").arg(format!("{prefix}:*")).query_async(&mut connection).await?;
                for chunk in keys.chunks(1_000) {
                    redis::cmd("UNLINK").arg(chunk).query_async::<()>(&mut connection).await?;
                }
            }
        }
        Ok(())
    }
}
