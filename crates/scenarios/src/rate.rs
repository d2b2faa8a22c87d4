//! A dispatch rate with several workers: when tasks start, and that no window has too many.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use windlass_core::task::ClaimedTask;
use windlass_testkit::fixtures::task;

use crate::stage::{Outcomes, Stage, claim, complete};
use crate::upkeep::Upkeep;

const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_secs(60);

/// So many a minute, for so long.
pub async fn run(per_minute: u32, burst: Option<u32>, span: Duration) -> Outcomes {
    let stage = Stage::open()?;
    let burst_text = burst.map(|burst| format!(",\"burst\":{burst}")).unwrap_or_default();
    let limit = format!("{{\"rate_limit\":{{\"count\":{per_minute},\"per_seconds\":60{burst_text}}}}}");
    stage.set_type("limited", &limit).await?;
    let wanted = (f64::from(per_minute) * span.as_secs_f64() / 60.0) as usize * 2 + 100;
    stage.submit((0..wanted).map(|_| task("limited").build())).await?;
    let upkeep = Upkeep::start(&stage.store);
    let starts = Arc::new(Mutex::new(Vec::new()));
    let (begun, opened) = (Instant::now(), stage.store.now());
    let mut crew = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (store, worker, starts) = (Arc::clone(&stage.store), stage.worker(10).await?, Arc::clone(&starts));
        crew.spawn(async move {
            while let Some(left) = span.checked_sub(begun.elapsed()) {
                let Ok(tasks) = tokio::time::timeout(left, claim(&*store, worker, 10, true, LEASE)).await else {
                    break;
                };
                let tasks = tasks?;
                // By the store's clock, which the rate is about: when a worker notices is another matter.
                let started = |task: &ClaimedTask| (task.lease_expires_at - LEASE).since(opened).as_secs_f64();
                starts.lock().await.extend(tasks.iter().map(started));
                complete(&*store, worker, &tasks).await?;
            }
            Outcomes::Ok(())
        });
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    drop(upkeep);
    let mut starts = starts.lock().await.clone();
    starts.sort_by(f64::total_cmp);
    report(&starts, per_minute, burst.unwrap_or(1), span)
}

fn report(starts: &[f64], per_minute: u32, burst: u32, span: Duration) -> Outcomes {
    println!(
        "Rate: {per_minute} a minute, burst {burst}, {WORKERS} workers, {} s: {} started",
        span.as_secs(),
        starts.len()
    );
    let slot = span.as_secs_f64() / 18.0;
    for index in 0..18 {
        let (from, to) = (slot * f64::from(index), slot * f64::from(index + 1));
        let count = starts.iter().filter(|at| (from..to).contains(*at)).count();
        println!("  {from:5.0} to {to:3.0} s  {count:4}  {}", "#".repeat(count.min(100)));
    }
    let mut worst = (0usize, 0.0);
    let mut excess = 0;
    for (first, from) in starts.iter().enumerate() {
        let in_minute = starts[first..].iter().take_while(|at| **at < from + 60.0).count();
        if in_minute > worst.0 {
            worst = (in_minute, *from);
        }
        for (count, at) in starts[first..].iter().enumerate() {
            let allowed = f64::from(burst) + (at - from) * f64::from(per_minute) / 60.0;
            excess += usize::from((count + 1) as f64 > allowed + 1e-3);
        }
    }
    let most = per_minute as usize + burst as usize;
    println!(
        "  most starts in any 60 s: {} (from {:.1} s on); allowed {most}; windows of any length above rate plus burst: {excess}",
        worst.0, worst.1
    );
    let expected = f64::from(per_minute) / 60.0 * span.as_secs_f64();
    if worst.0 > most || excess > 0 {
        return Err("a window has more starts than the rate and its burst".into());
    }
    if (starts.len() as f64) < expected * 0.95 {
        return Err("the rate was not used".into());
    }
    Ok(())
}
