//! A dependency that fails every time for a while: the breaker opens, attempts are not used up, other work keeps its
//! speed, and afterwards everything completes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::failure::ErrorReport;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Finish, Outcome};
use windlass_core::task::ClaimedTask;
use windlass_testkit::fixtures::task;

use crate::stage::{Outcomes, Stage, claim};
use crate::upkeep::Upkeep;

const LEASE: Duration = Duration::from_secs(30);
const WORKERS: usize = 4;
/// How long one task takes its worker.
const TAKES: Duration = Duration::from_millis(2);

#[derive(Default)]
struct World {
    down: AtomicBool,
    over: AtomicBool,
    steady: AtomicUsize,
    flaky_attempts: AtomicUsize,
    flaky_done: AtomicUsize,
}

impl World {
    fn outcome(&self, task: &ClaimedTask) -> Outcome {
        let done = Outcome::Completed { result: None, follow_ups: Vec::new() };
        if task.spec.task_type.as_str() == "steady" {
            self.steady.fetch_add(1, Ordering::Relaxed);
            return done;
        }
        self.flaky_attempts.fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) {
            let mut report = ErrorReport::internal("connection_refused", "payments does not answer".into());
            report.retriable = Some(true);
            return Outcome::Failed(report);
        }
        self.flaky_done.fetch_add(1, Ordering::Relaxed);
        done
    }
}

/// Steady tasks done a second over a while.
async fn speed(world: &World, span: Duration) -> f64 {
    let (before, begun) = (world.steady.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(span).await;
    (world.steady.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
}

/// The outage, each phase this long.
pub async fn run(flaky: usize, phase: Duration) -> Outcomes {
    let stage = Stage::open()?;
    stage.set_queue("default", r#"{"depth":{"soft":100000000,"hard":100000000}}"#).await?;
    stage.set_type("flaky", r#"{"breaker":{"recovery_seconds":1}}"#).await?;
    let steady = (WORKERS as f64 / TAKES.as_secs_f64() * phase.as_secs_f64() * 4.0) as usize;
    stage.submit((0..steady).map(|_| task("steady").build())).await?;
    let (world, upkeep) = (Arc::new(World::default()), Upkeep::start(&stage.store));
    let mut crew = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (store, worker, world) = (Arc::clone(&stage.store), stage.worker(10).await?, Arc::clone(&world));
        crew.spawn(async move {
            while !world.over.load(Ordering::Relaxed) {
                let waiting = claim(&*store, worker, 1, true, LEASE);
                let Ok(tasks) = tokio::time::timeout(Duration::from_millis(200), waiting).await else { continue };
                for task in tasks? {
                    tokio::time::sleep(TAKES).await;
                    let finish = Finish::new(task.id, task.token, world.outcome(&task));
                    for answer in store.finish(worker, vec![finish]).await? {
                        answer?;
                    }
                }
            }
            Outcomes::Ok(())
        });
    }
    let before = speed(&world, phase).await;
    world.down.store(true, Ordering::Relaxed);
    let of_flaky = task("flaky")
        .priority(Priority::HIGH)
        .max_retries(5)
        .retry(|retry| retry.base_delay = Duration::from_millis(200));
    stage.submit((0..flaky).map(|_| of_flaky.clone().build())).await?;
    let during = speed(&world, phase).await;
    let attempts = world.flaky_attempts.load(Ordering::Relaxed);
    let open =
        stage.store.breakers().await?.iter().filter(|view| view.state != windlass_core::breaker::State::Closed).count();
    world.down.store(false, Ordering::Relaxed);
    let recovered = Instant::now();
    while world.flaky_done.load(Ordering::Relaxed) < flaky && recovered.elapsed() < Duration::from_secs(120) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = recovered.elapsed().as_secs_f64();
    world.over.store(true, Ordering::Relaxed);
    while let Some(done) = crew.join_next().await {
        done??;
    }
    drop(upkeep);
    let done = world.flaky_done.load(Ordering::Relaxed);
    let dead = stage.store.stats().await?.by_status[usize::from(Status::DeadLetter.code())];
    println!(
        "Outage: {flaky} tasks of a type whose every attempt fails for {} s, beside steady work, {WORKERS} workers",
        phase.as_secs_f64()
    );
    println!("  breaker open at the end of the outage: {}", open == 1);
    println!("  attempts of the type during the outage: {attempts} ({:.3} per task)", attempts as f64 / flaky as f64);
    println!("  steady work per second: {before:.0} before, {during:.0} during the outage");
    println!("  after the dependency is back: {done} of {flaky} completed in {took:.1} s, {dead} dead letters");
    if open != 1 || attempts > 20 + WORKERS * 2 + phase.as_secs() as usize * 2 {
        return Err("the breaker did not keep the attempts back".into());
    }
    if during < before * 0.7 {
        return Err("other work lost its speed".into());
    }
    if done != flaky || dead > 0 {
        return Err("not everything completed after the outage".into());
    }
    Ok(())
}
