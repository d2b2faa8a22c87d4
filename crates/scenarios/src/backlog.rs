//! What submits and claims cost in front of a growing backlog, on any store: time, and what the database touches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::event::NoObserver;
use windlass_core::ids::WorkerId;
use windlass_core::store::Store;
use windlass_core::task::NewTask;
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_store_redis::{RedisOptions, RedisStore};
use windlass_store_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::fixtures::task;

use crate::plot::{self, Line};
use crate::stage::{Outcomes, claim, complete, percentile, submit};

const LEASE: Duration = Duration::from_secs(300);
/// Figures of the database lag behind by up to this.
const FIGURES_LAG: Duration = Duration::from_millis(1_500);

/// What to measure.
pub struct Plan {
    /// Where: an address as `windlass server --store` takes it.
    pub address: String,
    /// Backlogs to fill up to, in order.
    pub sizes: Vec<usize>,
    /// How many tasks of a paused type wait beside.
    pub paused: usize,
    /// Whether somebody holds a transaction open all the while (PostgreSQL).
    pub hold_open: bool,
    /// Calls per figure.
    pub rounds: usize,
}

/// A database of its own for the run.
enum Place {
    Folder(tempfile::TempDir),
    Schema { url: String, schema: String, held: Option<tokio_postgres::Client> },
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
    async fn open(address: &str) -> Outcomes<(Self, Arc<dyn Store>)> {
        if address.starts_with("postgres") {
            let (url, schema) = (address.to_owned(), own_name());
            let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::new(&url) };
            let store = PostgresStore::open(options, LEASE, None, Arc::new(NoObserver)).await?;
            return Ok((Self::Schema { url, schema, held: None }, store));
        }
        if address.starts_with("redis") {
            let (url, prefix) = (address.to_owned(), own_name());
            let options = RedisOptions::new(format!("{url}?prefix={prefix}"));
            let (store, _) = RedisStore::open(options, LEASE, None, Arc::new(NoObserver)).await?;
            return Ok((Self::Prefix { url, prefix }, store));
        }
        let folder = tempfile::tempdir()?;
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("data")), Arc::new(NoObserver))?;
        Ok((Self::Folder(folder), store))
    }

    /// Begins a transaction that sees the present and keeps it from being cleared away.
    async fn hold_open(&mut self) -> Outcomes {
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

    /// What the database counts: rows and pages, or commands.
    async fn figures(&self) -> Outcomes<BTreeMap<&'static str, f64>> {
        match self {
            Self::Folder(_) => Ok(BTreeMap::new()),
            Self::Schema { url, schema, .. } => {
                tokio::time::sleep(FIGURES_LAG).await;
                let sql = "SELECT sum(t.seq_scan)::float8,
                        sum(coalesce(t.idx_tup_fetch, 0) + t.seq_tup_read)::float8,
                        sum(s.heap_blks_hit + s.heap_blks_read + coalesce(s.idx_blks_hit, 0)
                            + coalesce(s.idx_blks_read, 0))::float8
                    FROM pg_stat_user_tables t JOIN pg_statio_user_tables s USING (relid) WHERE t.schemaname = $1";
                let row = client(url).await?.query_one(sql, &[schema]).await?;
                Ok([("scans of a whole table", row.get(0)), ("rows read", row.get(1)), ("pages", row.get(2))].into())
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
                Ok([("commands", sum("calls=")), ("microseconds in Redis", sum("usec="))].into())
            }
        }
    }

    async fn clear(self) -> Outcomes {
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

fn work(n: usize) -> NewTask {
    let filler = "x".repeat(160);
    task("work").queue("work").parameters(&format!(r#"{{"number":{n},"filler":"{filler}"}}"#)).build()
}

/// Median and 99th percentile of one kind of call, and what one call touched on average.
struct Cost {
    median: f64,
    p99: f64,
    touched: BTreeMap<&'static str, f64>,
}

async fn timed<F: Future<Output = Outcomes<f64>>>(
    place: &Place,
    rounds: usize,
    mut call: impl FnMut(usize) -> F,
) -> Outcomes<Cost> {
    let before = place.figures().await?;
    let mut micros = Vec::with_capacity(rounds);
    for round in 0..rounds {
        micros.push(call(round).await?);
    }
    let after = place.figures().await?;
    micros.sort_by(f64::total_cmp);
    let touched = after.iter().map(|(name, value)| (*name, (value - before[name]) / rounds as f64)).collect();
    Ok(Cost { median: percentile(&micros, 0.5), p99: percentile(&micros, 0.99), touched })
}

async fn submits(place: &Place, store: &dyn Store, rounds: usize) -> Outcomes<Cost> {
    timed(place, rounds, |round| async move {
        let begun = Instant::now();
        store.submit(vec![work(round)]).await?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    })
    .await
}

/// Claims and completes; only the claim is timed, and both are counted.
async fn claims(place: &Place, store: &dyn Store, worker: WorkerId, rounds: usize, up_to: usize) -> Outcomes<Cost> {
    timed(place, rounds, |_| async move {
        let begun = Instant::now();
        let tasks = claim(store, worker, up_to, false, LEASE).await?;
        let micros = begun.elapsed().as_secs_f64() * 1e6;
        if tasks.len() != up_to {
            return Err(format!("a claim of {up_to} got {} tasks", tasks.len()).into());
        }
        complete(store, worker, &tasks).await?;
        Ok(micros)
    })
    .await
}

fn show(what: &str, cost: &Cost) {
    let touched: Vec<String> = cost.touched.iter().map(|(name, value)| format!("{value:.1} {name}")).collect();
    println!("    {what:<34} {:7.0} {:7.0}   {}", cost.median, cost.p99, touched.join(", "));
}

/// Measures at every size.
pub async fn run(plan: &Plan, picture: Option<&Path>) -> Outcomes {
    let (mut place, store) = Place::open(&plan.address).await?;
    let kind = store.name();
    let change = serde_json::from_str(r#"{"depth":{"soft":100000000,"hard":100000000}}"#)?;
    store.change_queue(windlass_core::names::QueueName::new("work")?, change).await?;
    println!("{kind}: microseconds with the commit, one call at a time    median     p99   touched per call");
    if plan.paused > 0 {
        let paused = serde_json::from_str(r#"{"paused":true}"#)?;
        store.change_type(windlass_core::names::TaskType::new("paused")?, paused).await?;
        submit(&*store, (0..plan.paused).map(|_| task("paused").queue("work").build())).await?;
        println!("  beside {} tasks of a paused type", plan.paused);
    }
    if plan.hold_open {
        place.hold_open().await?;
        println!("  beside a transaction that is held open");
    }
    let profile = windlass_testkit::fixtures::profile();
    let worker = profile.id;
    store.register_worker(profile).await?;
    let (mut lines, mut waiting) = ([Vec::new(), Vec::new(), Vec::new()], 0);
    for size in &plan.sizes {
        let begun = Instant::now();
        let added = submit(&*store, (waiting..*size).map(work)).await?;
        waiting += added;
        println!("  backlog of {size} ({added} submitted in {:.1} s)", begun.elapsed().as_secs_f64());
        let costs = [
            submits(&place, &*store, plan.rounds).await?,
            claims(&place, &*store, worker, plan.rounds, 1).await?,
            claims(&place, &*store, worker, plan.rounds / 5, 50).await?,
        ];
        waiting = waiting + plan.rounds - plan.rounds - plan.rounds / 5 * 50;
        let names = ["submit of 1", "claim of 1 (and its result)", "claim of 50 (and their results)"];
        for ((name, cost), line) in names.iter().zip(&costs).zip(&mut lines) {
            show(name, cost);
            line.push((*size as f64, cost.median));
        }
    }
    if let Some(path) = picture {
        let [submit, one, fifty] = lines;
        let lines = [
            Line { name: "submit of 1", colour: "#1b9e77", points: submit },
            Line { name: "claim of 1", colour: "#d95f02", points: one },
            Line { name: "claim of 50", colour: "#7570b3", points: fifty },
        ];
        let title = format!("{kind}: median microseconds by tasks that wait");
        std::fs::write(path, plot::svg(&title, "tasks", "µs", &lines))?;
    }
    store.close().await;
    place.clear().await
}
