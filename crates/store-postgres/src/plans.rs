//! What the server does for every statement that runs often: never a look through a whole table.

use std::time::Duration;

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_cluster::backend::Changes;

use crate::backend::PostgresBackend;
use crate::batch::Batch;
use crate::options::PostgresOptions;
use crate::pieces::{Piece, Pieces};
use crate::pool::{Connection, Param};
use crate::read::Query;
use crate::sql::{Sql, Statements};

/// Rows in the tables, for the quick test and for the one that shows what a backlog costs.
const FEW: i64 = 20_000;
const MANY: i64 = 1_000_000;

/// Fills the tables: as many ended tasks as live ones, over a few days and the dead letters.
fn fill(rows: i64) -> String {
    format!(
        "SELECT :schema.make_ended_partition(day) FROM generate_series(20000, 20002) day;
        INSERT INTO :schema.live (key, created_at, run_at, event_no, timeout_us, priority, max_retries, max_crashes,
            dead_letter, queue, task_type, parameters)
        SELECT key, key, key, key, 1, 5, 3, 3, true, 'default', 'resize', convert_to(repeat('x', 200), 'UTF8')
        FROM generate_series({rows} + 1, 2 * {rows}) key;
        INSERT INTO :schema.ended (key, created_at, run_at, event_no, timeout_us, priority, max_retries, max_crashes,
            dead_letter, auto_replayed, queue, task_type, parameters, drop_day, status, version, attempt, retries,
            crashes, timeouts, ready_at, last_run_at, ended_at, event_nos, keep_until)
        SELECT key, key, key, key, 1, 5, 3, 3, true, false, 'default', 'resize', convert_to(repeat('x', 200), 'UTF8'),
            CASE key % 5 WHEN 4 THEN -1 WHEN 3 THEN 0 ELSE 20000 + key % 5 END, CASE key % 5 WHEN 4 THEN 7 ELSE 4 END, 3, 1, 0,
            0, 0, key, key, key, '', key
        FROM generate_series(1, {rows}) key;
        INSERT INTO :schema.overlays SELECT key, convert_to(repeat('x', 200), 'UTF8')
        FROM generate_series({rows} + 1, 2 * {rows}, 2) key;
        INSERT INTO :schema.claims SELECT no, 1, 1, gen_random_uuid(), repeat('x', 160)::bytea
        FROM generate_series(1, {rows} / 10) no;
        INSERT INTO :schema.log SELECT no, 1, 1, repeat('x', 200)::bytea FROM generate_series(1, {rows}) no;
        INSERT INTO :schema.events SELECT no, 1, 1, repeat('x', 200)::bytea FROM generate_series(1, {rows}) no;
        INSERT INTO :schema.attempts SELECT key, 1, '' FROM generate_series(1, {rows}) key;
        INSERT INTO :schema.steps SELECT key, '', '' FROM generate_series(1, {rows}) key;
        INSERT INTO :schema.progress SELECT key, '' FROM generate_series(1, {rows}) key;
        INSERT INTO :schema.idempotency_keys SELECT md5('key-' || key)::uuid, key, 1, 1, key, 'default', '', 'key-' || key
        FROM generate_series(1, {rows}) key;
        INSERT INTO :schema.unique_keys SELECT gen_random_uuid(), key, 1, key, key % 2 = 0
        FROM generate_series(1, {rows}) key;"
    )
}

struct Plans {
    backend: PostgresBackend,
    schema: String,
}

impl Plans {
    async fn open(rows: i64) -> Self {
        let url = std::env::var("WINDLASS_TEST_POSTGRES_URL")
            .expect("WINDLASS_TEST_POSTGRES_URL must name a PostgreSQL server for tests");
        let schema = format!("wp_{}_{rows}", std::process::id());
        let mut options = PostgresOptions::new(url);
        options.schema.clone_from(&schema);
        options.statement_timeout = Duration::from_secs(600);
        let backend = PostgresBackend::connect(options).await.expect("connects");
        Self { backend, schema }
    }

    async fn batch(&self, sql: &str) {
        let connection = self.backend.readers.get().await.expect("a connection");
        connection.batch(&sql.replace(":schema", &self.schema)).await.expect("ran");
        connection.give_back();
    }
}

/// A statement of the work, prepared on one connection as the work does: with one plan for whatever it is asked.
struct Prepared {
    name: String,
    /// What carries it out.
    execute: String,
}

impl Prepared {
    /// Prepares it, and has its plan made, by what is in the tables now.
    async fn new(connection: &Connection, number: usize, name: String, (sql, params): &Query<'_>) -> Self {
        let types: Vec<&str> = params.iter().map(|(_, of)| of.name()).collect();
        let types = if types.is_empty() { String::new() } else { format!("({})", types.join(", ")) };
        connection.batch(&format!("PREPARE plan_{number} {types} AS {}", sql.text)).await.expect(&sql.text);
        // A statement that is carried out by name takes no parameters from outside: the server writes them out for us.
        let mut values = Vec::new();
        for (value, of) in params {
            let written = connection.client().query_typed("SELECT $1::text", &[(*value, of.clone())]).await;
            let written: Option<String> = written.expect("a value as text")[0].get(0);
            let written = written.map_or("NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")));
            values.push(format!("{written}::{}", of.name()));
        }
        let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
        let prepared = Self { name, execute: format!("EXECUTE plan_{number} {values}") };
        connection.batch(&format!("EXPLAIN {}", prepared.execute)).await.expect("a plan");
        prepared
    }

    /// What the server does for it; nothing of it stays.
    async fn explain(&self, connection: &Connection) -> String {
        connection.batch("BEGIN").await.expect("begun");
        let plan = explained(connection, &self.execute, &[]).await;
        connection.batch("ROLLBACK").await.expect("rolled back");
        plan
    }
}

async fn explained(connection: &Connection, sql: &str, params: &[Param<'_>]) -> String {
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {sql}");
    let rows = connection.client().query_typed(&sql, params).await.expect(&sql);
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

/// Pages that a plan looked at.
fn pages(plan: &str) -> u64 {
    plan.lines()
        .find(|line| line.trim_start().starts_with("Buffers:"))
        .into_iter()
        .flat_map(|line| line.split([' ', ',']))
        .filter_map(|part| part.strip_prefix("hit=").or_else(|| part.strip_prefix("read=")))
        .filter_map(|pages| pages.parse::<u64>().ok())
        .sum()
}

/// A row of a table for people: how the rows are found, how many pages are looked at, how long it takes.
fn summary(name: &str, plan: &str) -> String {
    let after = |line: &str, mark: &str| line.split_once(mark).map(|(_, rest)| rest.to_owned());
    let word = |rest: String| rest.split([' ', ')']).next().unwrap_or_default().to_owned();
    let indexes: std::collections::BTreeSet<String> = plan
        .lines()
        .filter_map(|line| after(line, "Scan using ").or_else(|| after(line, "Bitmap Index Scan on ")))
        .map(word)
        .collect();
    let time = plan.lines().find_map(|line| after(line, "Execution Time: ")).unwrap_or_default();
    let indexes: Vec<String> = indexes.into_iter().collect();
    format!("| {name} | {} | {} | {time} |", indexes.join(", "), pages(plan))
}

/// More pages than any statement needs for the few hundred rows that it is asked for here. A table of a million rows has
/// ten times as many, so a look through a whole index is noticed, too.
const MOST_PAGES: u64 = 5_000;

/// Rows of one slice, and the most that anything may sort: what was found, never what waits.
const SLICE: i64 = 1_000;

/// A look through a whole table or index, or a sort of one.
fn is_bad(plan: &str) -> bool {
    const SMALL: [&str; 2] = ["inbox", "days_over"];
    let sorted = |line: &str| line.split_once("rows=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    let scans = plan.lines().any(|line| {
        let line = line.trim_start_matches([' ', '-', '>']);
        (line.starts_with("Seq Scan on") && !SMALL.iter().any(|name| line.contains(name)))
            || (line.starts_with("Sort (") && sorted(line).is_none_or(|rows: i64| rows > SLICE))
            || line.starts_with("Parallel")
    });
    scans || pages(plan) > MOST_PAGES
}

async fn look(rows: i64, print: bool) {
    let plans = Plans::open(rows).await;
    let sql = Statements::new(&plans.schema);
    let live: Vec<i64> = (0..200).map(|index| rows + 1 + index * (rows / 300)).collect();
    let old: Vec<i64> = (0..200).map(|index| 1 + index * (rows / 300)).collect();
    let claims: Vec<i64> = (1..50).collect();
    let ids: Vec<Uuid> = (0..50).map(Uuid::from_u128).collect();
    let (limit, late, next) = (SLICE, rows - 100, rows + 1);
    let (many, none, half) = (i64::MAX, 0_i64, rows / 2);
    let day = 20_001_i32;
    let redo: &[u8] = b"redo";
    let keys = |keys: &'static str| -> String { keys.to_owned() };
    let changes = changes(&live, &old);
    let batch = Batch::new(&changes).expect("encodes");
    let mut all: Vec<(String, Query<'_>)> = vec![
        (keys("tail"), (&sql.tail, vec![(&late, Type::INT8), (&limit, Type::INT8)])),
        (keys("read_tasks"), (&sql.read_tasks, vec![(&live, Type::INT8_ARRAY)])),
        (keys("read_tasks, old"), (&sql.read_tasks, vec![(&old, Type::INT8_ARRAY)])),
        (keys("read_steps"), (&sql.read_steps, vec![(&old, Type::INT8_ARRAY)])),
        (keys("read_progress"), (&sql.read_progress, vec![(&old, Type::INT8_ARRAY)])),
        (keys("read_claims"), (&sql.read_claims, vec![(&claims, Type::INT8_ARRAY)])),
        (keys("read_idempotency"), (&sql.read_idempotency, vec![(&ids, Type::UUID_ARRAY)])),
        (keys("read_uniques"), (&sql.read_uniques, vec![(&ids, Type::UUID_ARRAY)])),
        (
            keys("expired_tasks"),
            (
                &sql.expired_tasks,
                vec![(&none, Type::INT8), (&half, Type::INT8), (&limit, Type::INT8), (&day, Type::INT4)],
            ),
        ),
        (keys("count_day"), (&sql.count_day, vec![(&day, Type::INT4), (&none, Type::INT8), (&limit, Type::INT8)])),
        (keys("clear_day"), (&sql.clear_day, vec![(&day, Type::INT4), (&none, Type::INT8), (&limit, Type::INT8)])),
        (keys("expired_keys"), (&sql.expired_keys, vec![(&half, Type::INT8), (&limit, Type::INT8)])),
        (keys("expired_uniques"), (&sql.expired_uniques, vec![(&half, Type::INT8), (&limit, Type::INT8)])),
        (keys("events_in"), (&sql.events_in, vec![(&claims, Type::INT8_ARRAY)])),
        (keys("events_from"), (&sql.events_from, vec![(&late, Type::INT8), (&limit, Type::INT8)])),
        (keys("known_tasks"), (&sql.known_tasks, vec![(&live, Type::INT8_ARRAY)])),
        (
            keys("prune_log"),
            (
                &sql.prune_log,
                vec![(&none, Type::INT8), (&limit, Type::INT8), (&limit, Type::INT8), (&limit, Type::INT8)],
            ),
        ),
    ];
    let pieces = Pieces::new(&plans.schema);
    let mut steps: Vec<(&Piece, Vec<Param<'_>>)> = vec![
        (&pieces.fence, vec![(&next, Type::INT8), (&none, Type::INT8), (&redo, Type::BYTEA), (&none, Type::INT8)]),
        (&pieces.delete_idempotency, vec![(&ids, Type::UUID_ARRAY)]),
        (&pieces.delete_claims, vec![(&claims, Type::INT8_ARRAY)]),
    ];
    steps.extend(batch.steps(&pieces).into_iter().map(|step| (step.piece, step.params)));
    let alone: Vec<Sql> = steps.iter().map(|(piece, _)| Sql { id: 0, text: piece.alone() }).collect();
    for (sql, (piece, params)) in alone.iter().zip(steps) {
        all.push((piece.name().to_owned(), (sql, params)));
    }
    // Planned while the tables are empty, as after the first start. Filled, it must still be the right plan; and also the
    // one that is made once there are statistics.
    let connection = plans.backend.readers.get().await.expect("a connection");
    let mut prepared = Vec::new();
    for (number, (name, query)) in all.into_iter().enumerate() {
        prepared.push(Prepared::new(&connection, number, name, &query).await);
    }
    plans.batch(&fill(rows)).await;
    let (mut bad, mut summaries) = (Vec::new(), Vec::new());
    for statistics in [false, true] {
        if statistics {
            // Apart: what analyses cannot run in a transaction with the rest.
            plans.batch("VACUUM ANALYZE").await;
        }
        for statement in &prepared {
            let plan = statement.explain(&connection).await;
            if is_bad(&plan) {
                bad.push(statement.name.clone());
            }
            if statistics {
                summaries.push(summary(&statement.name, &plan));
            }
            if print && statistics || is_bad(&plan) {
                println!("{}, statistics: {statistics}\n{plan}", statement.name);
            }
        }
    }
    connection.give_back();
    let archive = plans.backend.archive();
    for look in archive.looks(&many) {
        let connection = archive.pool().get().await.expect("a connection");
        let plan = explained(&connection, &look.0, &look.1).await;
        connection.give_back();
        if print || is_bad(&plan) {
            println!("{}\n{plan}", look.0);
        }
        let shape: String = look.0.split_whitespace().collect::<Vec<_>>().join(" ");
        let condition = shape.split_once("WHERE ").map_or(shape.as_str(), |(_, condition)| condition);
        summaries.push(summary(&format!("list: {}", condition.replace(&plans.schema, "windlass")), &plan));
        assert!(!is_bad(&plan), "a list looks through everything");
    }
    if print {
        println!("| statement | found by | pages | time |\n|---|---|---|---|\n{}", summaries.join("\n"));
    }
    plans.batch("DROP SCHEMA :schema CASCADE").await;
    assert!(bad.is_empty(), "these look through everything: {bad:?}");
}

/// Live tasks that end, ended ones that end otherwise or live again.
fn changes(live: &[i64], old: &[i64]) -> Changes {
    use windlass_cluster::backend::{Is, OverlayChange, TaskChange, Was};
    use windlass_core::ids::TaskKey;
    use windlass_core::status::Status;
    use windlass_core::time::Timestamp;
    use windlass_ledger::journal::Ended;
    let time = Timestamp::from_micros(20_001 * 86_400_000_000);
    let ended = Ended {
        status: Status::Completed,
        reason: None,
        version: 1,
        attempt: 1,
        retries: 0,
        crashes: 0,
        timeouts: 0,
        ready_at: time,
        run_at: time,
        started_at: None,
        ended_at: time,
        worker: None,
        result: None,
        applied: None,
        event_nos: Vec::new(),
        keep_until: Some(time),
    };
    let change =
        |key: i64, was, is| TaskChange { key: TaskKey(key as u64), was, is, row: None, overlay: OverlayChange::Keep };
    let (again, back) = old.split_at(old.len() / 2);
    let (back, gone) = back.split_at(back.len() / 2);
    let mut tasks: Vec<TaskChange> =
        live.iter().map(|key| change(*key, Was::Live, Is::Ended(Box::new(ended.clone())))).collect();
    tasks.extend(again.iter().map(|key| change(*key, Was::Ended, Is::Ended(Box::new(ended.clone())))));
    tasks.extend(back.iter().map(|key| change(*key, Was::Ended, Is::Live)));
    tasks.extend(gone.iter().map(|key| change(*key, Was::Ended, Is::Gone)));
    Changes { tasks, ..Changes::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hot_statement_looks_through_a_whole_table() {
    Box::pin(look(FEW, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: prints what every hot statement costs at a million rows"]
async fn plans_at_a_million_rows() {
    Box::pin(look(MANY, true)).await;
}
