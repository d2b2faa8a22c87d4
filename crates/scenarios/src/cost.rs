//! What each limit and key costs: submits and a drain with it against without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::keys::{OnConflict, OnFailure};
use windlass_core::task::NewTask;
use windlass_testkit::fixtures::{TaskBuilder, task};

use crate::stage::{Outcomes, Stage, claim, complete};

const LEASE: Duration = Duration::from_secs(60);
const WORKERS: usize = 4;

struct Variant {
    name: &'static str,
    queue: &'static str,
    of_type: &'static str,
    make: fn(usize, TaskBuilder) -> TaskBuilder,
}

fn plain(_: usize, task: TaskBuilder) -> TaskBuilder {
    task
}

const VARIANTS: &[Variant] = &[
    Variant { name: "nothing", queue: "{}", of_type: "{}", make: plain },
    Variant {
        name: "concurrency of queue and type",
        queue: r#"{"concurrency":100000}"#,
        of_type: r#"{"concurrency":100000}"#,
        make: plain,
    },
    Variant {
        name: "rate of queue and type",
        queue: r#"{"rate_limit":{"count":1000000,"per_seconds":1,"burst":100000}}"#,
        of_type: r#"{"rate_limit":{"count":1000000,"per_seconds":1,"burst":100000}}"#,
        make: plain,
    },
    Variant { name: "policy weighted", queue: r#"{"policy":"weighted"}"#, of_type: "{}", make: plain },
    Variant {
        name: "policy fair, 1,000 tenants",
        queue: r#"{"policy":"fair"}"#,
        of_type: "{}",
        make: |n, task| task.tenant(&format!("t{}", n % 1_000)),
    },
    Variant {
        name: "tenant submit rate",
        queue: r#"{"tenant_rate_limit":{"count":1000000,"burst":1000000}}"#,
        of_type: "{}",
        make: |n, task| task.tenant(&format!("t{}", n % 1_000)),
    },
    Variant {
        name: "ordering key, each task its own",
        queue: "{}",
        of_type: "{}",
        make: |n, task| task.ordered(&format!("k{n}"), OnFailure::Block),
    },
    Variant {
        name: "ordering key, 1,000 keys",
        queue: "{}",
        of_type: "{}",
        make: |n, task| task.ordered(&format!("k{}", n % 1_000), OnFailure::Block),
    },
    Variant {
        name: "concurrency key of 10, 1,000 keys",
        queue: "{}",
        of_type: "{}",
        make: |n, task| task.at_most(10, &format!("k{}", n % 1_000)),
    },
    Variant {
        name: "unique key",
        queue: "{}",
        of_type: "{}",
        make: |n, task| task.parameters(&n.to_string()).unique(OnConflict::Keep),
    },
    Variant { name: "slots of 2", queue: "{}", of_type: r#"{"slots":2}"#, make: plain },
];

async fn measure(variant: &Variant, tasks: usize) -> Outcomes<(f64, f64)> {
    let stage = Stage::open()?;
    stage.set_queue("q", r#"{"depth":{"soft":100000000,"hard":100000000}}"#).await?;
    stage.set_queue("q", variant.queue).await?;
    stage.set_type("work", variant.of_type).await?;
    let all: Vec<NewTask> = (0..tasks).map(|n| (variant.make)(n, task("work").queue("q")).build()).collect();
    let begun = Instant::now();
    stage.submit(all).await?;
    let submits = tasks as f64 / begun.elapsed().as_secs_f64();
    let (begun, ended) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut crew = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (store, worker, ended) = (Arc::clone(&stage.store), stage.worker(1_000).await?, Arc::clone(&ended));
        crew.spawn(async move {
            while ended.load(Ordering::Relaxed) < tasks {
                let waiting = claim(&*store, worker, 100, true, LEASE);
                let Ok(got) = tokio::time::timeout(Duration::from_millis(100), waiting).await else { continue };
                let got = got?;
                complete(&*store, worker, &got).await?;
                ended.fetch_add(got.len(), Ordering::Relaxed);
            }
            Outcomes::Ok(())
        });
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    Ok((submits, tasks as f64 / begun.elapsed().as_secs_f64()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Every variant, in turns, so that what the machine does meanwhile hits all of them.
pub async fn run(tasks: usize, repeat: usize) -> Outcomes {
    let mut figures: Vec<(Vec<f64>, Vec<f64>)> = VARIANTS.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for _ in 0..repeat.max(1) {
        for (variant, figures) in VARIANTS.iter().zip(&mut figures) {
            let (submits, drain) = measure(variant, tasks).await?;
            figures.0.push(submits);
            figures.1.push(drain);
        }
    }
    let medians: Vec<(f64, f64)> =
        figures.into_iter().map(|(submits, drain)| (median(submits), median(drain))).collect();
    let Some(base) = medians.first().copied() else { return Ok(()) };
    println!("| with | submits per second | of without | drained per second | of without |");
    println!("|---|---|---|---|---|");
    for (variant, (submits, drain)) in VARIANTS.iter().zip(medians) {
        println!(
            "| {} | {submits:.0} | {:.0} % | {drain:.0} | {:.0} % |",
            variant.name,
            submits / base.0 * 100.0,
            drain / base.1 * 100.0
        );
    }
    Ok(())
}
