//! What submits and claims cost in front of a growing backlog, on any store: time, and what the database touches.

mod held_open;
mod place;

use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::ids::WorkerId;
use windlass_core::store::Store;
use windlass_core::task::NewTask;
use windlass_testkit::fixtures::task;

use crate::plot::{self, Line};
use crate::stage::{Outcomes, claim, complete, percentile, submit};
use place::{Figures, Place};

const LEASE: Duration = Duration::from_secs(300);

/// What to measure.
pub struct Plan {
    /// Where: an address as `windlass server --store` takes it.
    pub address: String,
    /// Backlogs to fill up to, in order.
    pub sizes: Vec<usize>,
    /// How many tasks of a paused type wait beside.
    pub paused: usize,
    /// For how long somebody holds a transaction open beside, in the end (PostgreSQL).
    pub hold_open: Option<Duration>,
    /// Calls per figure.
    pub rounds: usize,
}

fn work(n: usize) -> NewTask {
    let filler = "x".repeat(160);
    task("work").queue("work").parameters(&format!(r#"{{"number":{n},"filler":"{filler}"}}"#)).build()
}

/// Median and 99th percentile of one kind of call, and what one call touched on average.
struct Cost {
    median: f64,
    p99: f64,
    touched: Figures,
}

async fn timed<F: Future<Output = Outcomes<f64>>>(
    place: &Place,
    rounds: usize,
    mut call: impl FnMut(usize) -> F,
) -> Outcomes<Cost> {
    place.settle().await;
    let before = place.figures().await?;
    let mut micros = Vec::with_capacity(rounds);
    for round in 0..rounds {
        micros.push(call(round).await?);
    }
    place.settle().await;
    let touched = place.figures().await?.per_call(&before, rounds);
    micros.sort_by(f64::total_cmp);
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
    println!("    {what:<34} {:7.0} {:7.0}   {}", cost.median, cost.p99, cost.touched);
}

/// Measures at every size, and leaves nothing behind whatever comes of it.
pub async fn run(plan: &Plan, picture: Option<&Path>) -> Outcomes {
    let (mut place, store) = Place::open(&plan.address).await?;
    let measured = measure(plan, picture, &mut place, &*store).await;
    store.close().await;
    let cleared = place.clear().await;
    measured.and(cleared)
}

async fn measure(plan: &Plan, picture: Option<&Path>, place: &mut Place, store: &dyn Store) -> Outcomes {
    let kind = store.name();
    let change = serde_json::from_str(r#"{"depth":{"soft":100000000,"hard":100000000}}"#)?;
    store.change_queue(windlass_core::names::QueueName::new("work")?, change).await?;
    println!("{kind}: microseconds with the commit, one call at a time    median     p99   touched per call");
    if plan.paused > 0 {
        let paused = serde_json::from_str(r#"{"paused":true}"#)?;
        store.change_type(windlass_core::names::TaskType::new("paused")?, paused).await?;
        submit(store, (0..plan.paused).map(|_| task("paused").queue("work").build())).await?;
        println!("  beside {} tasks of a paused type", plan.paused);
    }
    let profile = windlass_testkit::fixtures::profile();
    let worker = profile.id;
    store.register_worker(profile).await?;
    let (mut lines, mut waiting) = ([Vec::new(), Vec::new(), Vec::new()], 0);
    for size in &plan.sizes {
        let begun = Instant::now();
        let added = submit(store, (waiting..*size).map(work)).await?;
        waiting += added;
        println!("  backlog of {size} ({added} submitted in {:.1} s)", begun.elapsed().as_secs_f64());
        let costs = [
            submits(place, store, plan.rounds).await?,
            claims(place, store, worker, plan.rounds, 1).await?,
            claims(place, store, worker, plan.rounds / 5, 50).await?,
        ];
        waiting = waiting + plan.rounds - plan.rounds - plan.rounds / 5 * 50;
        let names = ["submit of 1", "claim of 1 (and its result)", "claim of 50 (and their results)"];
        for ((name, cost), line) in names.iter().zip(&costs).zip(&mut lines) {
            show(name, cost);
            line.push((*size as f64, cost.median));
        }
    }
    if let Some(span) = plan.hold_open {
        held_open::run(place, store, worker, span).await?;
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
    Ok(())
}
