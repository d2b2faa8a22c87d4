//! Ordering keys under failures and lost workers: the order of a key is never broken and no key is ever stuck.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use windlass_core::failure::ErrorReport;
use windlass_core::ids::WorkerId;
use windlass_core::json::digest;
use windlass_core::keys::OnFailure;
use windlass_core::status::Status;
use windlass_core::store::{Finish, Outcome, Store};
use windlass_core::task::ClaimedTask;
use windlass_testkit::fixtures::task;

use crate::stage::{Outcomes, Stage, claim};
use crate::upkeep::Upkeep;

/// Short, so that the tasks of a lost worker come back while the run goes on.
const LEASE: Duration = Duration::from_secs(2);
const WORKERS: usize = 8;

/// What is known of one key from outside.
#[derive(Default)]
struct Key {
    /// Every task before this one has ended.
    next: u64,
    /// Somebody has the next one and has not said that it is over.
    in_flight: bool,
}

#[derive(Default)]
struct Ledger {
    keys: HashMap<u64, Key>,
    broken: Vec<String>,
}

#[derive(Default)]
struct Counts {
    ended: AtomicUsize,
    failed: AtomicUsize,
    lost: AtomicUsize,
    dead: AtomicUsize,
}

fn number(claimed: &ClaimedTask, field: &str) -> u64 {
    let parameters: serde_json::Value = serde_json::from_str(claimed.spec.parameters.as_str()).unwrap_or_default();
    parameters[field].as_u64().unwrap_or(u64::MAX)
}

/// What becomes of an attempt: the same for the same attempt in every run.
enum Fate {
    Done,
    Fails,
    Dies,
    WorkerLost,
}

fn fate(key: u64, n: u64, attempt: u32) -> Fate {
    let roll = digest(&[key.to_le_bytes(), n.to_le_bytes(), u64::from(attempt).to_le_bytes()].concat()) % 1_000;
    match roll {
        0..=29 => Fate::Fails,
        30..=39 => Fate::WorkerLost,
        40..=44 => Fate::Dies,
        _ => Fate::Done,
    }
}

async fn work(
    store: Arc<dyn Store>,
    worker: WorkerId,
    total: usize,
    ledger: Arc<Mutex<Ledger>>,
    counts: Arc<Counts>,
) -> Outcomes {
    while counts.ended.load(Ordering::Relaxed) < total {
        let claimed = tokio::time::timeout(Duration::from_secs(1), claim(&*store, worker, 50, true, LEASE)).await;
        let Ok(claimed) = claimed else { continue };
        let claimed = claimed?;
        let mut results = Vec::with_capacity(claimed.len());
        {
            let mut ledger = ledger.lock().await;
            for task in &claimed {
                let (key, n) = (number(task, "key"), number(task, "n"));
                let known = ledger.keys.entry(key).or_default();
                if known.next != n || known.in_flight {
                    let (next, in_flight) = (known.next, known.in_flight);
                    ledger.broken.push(format!("key {key}: {n} starts, but {next} is next (in flight: {in_flight})"));
                    continue;
                }
                known.in_flight = true;
                let outcome = match fate(key, n, task.attempt) {
                    Fate::Done => Outcome::Completed { result: None, follow_ups: Vec::new() },
                    Fate::Fails => Outcome::Failed(ErrorReport::internal("flaky", "not this time".into())),
                    Fate::Dies => {
                        let mut report = ErrorReport::internal("bad_input", "never".into());
                        report.retriable = Some(false);
                        Outcome::Failed(report)
                    }
                    Fate::WorkerLost => {
                        // Nobody ever says anything about it: its lease must lapse.
                        known.in_flight = false;
                        counts.lost.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                };
                results.push((key, Finish::new(task.id, task.token, outcome)));
            }
            // Said before the store is: the next of the key may start the moment the store knows.
            for (key, finish) in &results {
                let known = ledger.keys.entry(*key).or_default();
                known.in_flight = false;
                match &finish.outcome {
                    Outcome::Failed(report) if report.retriable.is_none() => {
                        counts.failed.fetch_add(1, Ordering::Relaxed);
                    }
                    Outcome::Failed(_) => {
                        counts.dead.fetch_add(1, Ordering::Relaxed);
                        known.next += 1;
                    }
                    _ => known.next += 1,
                }
            }
        }
        let finishes: Vec<Finish> = results.into_iter().map(|(_, finish)| finish).collect();
        for answer in store.finish(worker, finishes).await? {
            let done = answer?;
            counts.ended.fetch_add(usize::from(done.status.is_ended()), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// So many keys with so many tasks each.
pub async fn run(keys: u64, per_key: u64) -> Outcomes {
    let total = (keys * per_key) as usize;
    let stage = Stage::open()?;
    stage.set_queue("ordered", r#"{"depth":{"soft":100000000,"hard":100000000}}"#).await?;
    stage.set_type("ordered", r#"{"breaker":{"min_attempts":100000}}"#).await?;
    let begun = Instant::now();
    stage
        .submit((0..per_key).flat_map(|n| (0..keys).map(move |key| (key, n))).map(|(key, n)| {
            task("ordered")
                .queue("ordered")
                .parameters(&format!("{{\"key\":{key},\"n\":{n}}}"))
                .max_retries(100)
                .max_crashes(100)
                .retry(|retry| {
                    (retry.base_delay, retry.max_delay) = (Duration::from_millis(50), Duration::from_millis(200));
                })
                .ordered(&format!("key {key}"), OnFailure::Block)
                .build()
        }))
        .await?;
    let submitted = begun.elapsed();
    println!(
        "Ordering: {keys} keys with {per_key} tasks each, {WORKERS} workers, 3 % failures, 1 % lost, 0.5 % given up"
    );
    println!(
        "  submitted in {:.1} s, {:.0} per second",
        submitted.as_secs_f64(),
        total as f64 / submitted.as_secs_f64()
    );
    let upkeep = Upkeep::start(&stage.store);
    let (ledger, counts) = (Arc::new(Mutex::new(Ledger::default())), Arc::new(Counts::default()));
    let begun = Instant::now();
    let mut crew = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let worker = stage.worker(10_000).await?;
        crew.spawn(work(Arc::clone(&stage.store), worker, total, Arc::clone(&ledger), Arc::clone(&counts)));
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    let took = begun.elapsed().as_secs_f64();
    drop(upkeep);
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "  {} ended in {took:.1} s, {:.0} per second; {} failed attempts, {} lost, {} dead letters",
        count(&counts.ended),
        total as f64 / took,
        count(&counts.failed),
        count(&counts.lost),
        count(&counts.dead)
    );
    let stats = stage.store.stats().await?;
    let of = |status: Status| stats.by_status[usize::from(status.code())];
    let (completed, dead) = (of(Status::Completed), of(Status::DeadLetter));
    let ledger = ledger.lock().await;
    let stuck = ledger.keys.values().filter(|key| key.next != per_key).count();
    println!(
        "  order broken {} times, {stuck} keys not at their end; the store has {completed} completed, {dead} dead",
        ledger.broken.len()
    );
    for broken in ledger.broken.iter().take(5) {
        println!("    {broken}");
    }
    if !ledger.broken.is_empty() || stuck > 0 || completed + dead != total as u64 {
        return Err("the order of a key was broken, or a key is stuck".into());
    }
    Ok(())
}
