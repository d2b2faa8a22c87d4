//! What a claim costs beside a million tasks that it may not take, and with many lanes.

use std::time::Duration;

use tokio::time::Instant;

use windlass_core::ids::WorkerId;
use windlass_core::names::TaskType;
use windlass_core::task::NewTask;
use windlass_testkit::fixtures::task;

use crate::stage::{Outcomes, Stage, claim, complete, percentile};

const LEASE: Duration = Duration::from_secs(300);
const OPEN: &str = r#"{"depth":{"soft":100000000,"hard":100000000}}"#;

/// Claims of one task and of fifty, in microseconds: median and 99th percentile of each.
struct Cost {
    one: (f64, f64),
    fifty: (f64, f64),
}

/// Times claims only; what is claimed is completed in between.
async fn measure(stage: &Stage, rounds: usize, kind: impl Fn(usize) -> NewTask) -> Outcomes<Cost> {
    let worker = stage.worker(1_000).await?;
    let mut figures = Vec::new();
    for up_to in [1, 50] {
        stage.submit((0..rounds * up_to).map(&kind)).await?;
        let mut micros = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begun = Instant::now();
            let tasks = claim(&*stage.store, worker, up_to, false, LEASE).await?;
            micros.push(begun.elapsed().as_secs_f64() * 1e6);
            if tasks.len() != up_to {
                return Err(format!("a claim of {up_to} got {} tasks", tasks.len()).into());
            }
            complete(&*stage.store, worker, &tasks).await?;
        }
        micros.sort_by(f64::total_cmp);
        figures.push((percentile(&micros, 0.5), percentile(&micros, 0.99)));
    }
    stage.store.deregister_worker(worker).await?;
    Ok(Cost { one: figures[0], fifty: figures[1] })
}

fn show(name: &str, cost: &Cost) {
    println!("  {name:<58} {:7.0} {:7.0}   {:7.0} {:7.0}", cost.one.0, cost.one.1, cost.fifty.0, cost.fifty.1);
}

fn work(_: usize) -> NewTask {
    task("work").queue("work").build()
}

/// Claims beside work that may not be taken.
pub async fn blocked(size: usize, rounds: usize) -> Outcomes {
    println!("Claims, in microseconds with their commit      claim of 1: median     p99   of 50: median     p99");
    let stage = Stage::open()?;
    stage.set_queue("work", OPEN).await?;
    show("nothing else waits", &measure(&stage, rounds, work).await?);
    for (name, task_type, change) in [
        ("a paused type", "paused", r#"{"paused":true}"#),
        ("a type at one start an hour", "slow", r#"{"rate_limit":{"count":1,"per_seconds":3600}}"#),
    ] {
        stage.set_type(task_type, change).await?;
        stage.submit((0..size).map(|_| task(task_type).queue("work").build())).await?;
        show(&format!("beside {size} tasks of {name}"), &measure(&stage, rounds, work).await?);
    }
    stage.submit((0..size).map(|_| task("render").queue("work").requires(&["gpu"]).build())).await?;
    show(&format!("beside {size} more that need a GPU"), &measure(&stage, rounds, work).await?);
    let forced = Some(windlass_core::breaker::Forced::Open);
    stage.store.force_breaker(windlass_core::breaker::Scope::Type(TaskType::new("broken")?), forced).await?;
    stage.submit((0..size).map(|_| task("broken").queue("work").build())).await?;
    show(&format!("beside {size} more whose breaker is open"), &measure(&stage, rounds, work).await?);
    stage.submit((0..size).map(|_| task("keyed").queue("work").at_most(1, "one").build())).await?;
    let holder = stage.worker(1).await?;
    show(&format!("beside {size} more of a full concurrency key"), &full_key(&stage, holder, size, rounds).await?);
    Ok(())
}

/// One task of the key runs, so that all others of it are in the way.
async fn full_key(stage: &Stage, holder: WorkerId, size: usize, rounds: usize) -> Outcomes<Cost> {
    let running = loop {
        let mut tasks = claim(&*stage.store, holder, 1, false, LEASE).await?;
        match tasks.pop() {
            Some(task) if task.spec.flow_key.is_some() => break task,
            Some(task) => complete(&*stage.store, holder, &[task]).await?,
            None => return Err("no task of the key can be claimed".into()),
        }
    };
    let begun = Instant::now();
    // The first claims put the others aside, some at a time.
    for _ in 0..=size / 20_000 {
        claim(&*stage.store, holder, 1, false, LEASE).await?;
    }
    println!("  (putting them aside took {:.1} s once)", begun.elapsed().as_secs_f64());
    let cost = measure(stage, rounds, work).await?;
    complete(&*stage.store, holder, &[running]).await?;
    Ok(cost)
}

/// Claims from a queue with few lanes and with many.
pub async fn lanes(rounds: usize) -> Outcomes {
    println!("Lanes of one queue, in microseconds            claim of 1: median     p99   of 50: median     p99");
    for lanes in [10usize, 100, 1_000, 9_990] {
        let stage = Stage::open()?;
        stage.set_queue("many", OPEN).await?;
        let kind = |n: usize| task(&format!("t{}", n % lanes)).queue("many").build();
        // One task stays in every lane, so that there are as many at the end as at the beginning.
        stage.submit((0..lanes * 2).map(kind)).await?;
        show(&format!("{lanes} lanes, by type"), &measure(&stage, rounds, kind).await?);
    }
    for tenants in [10usize, 9_990] {
        let stage = Stage::open()?;
        stage.set_queue("fair", r#"{"policy":"fair","depth":{"soft":100000000,"hard":100000000}}"#).await?;
        let kind = |n: usize| task("work").queue("fair").tenant(&format!("tenant {}", n % tenants)).build();
        stage.submit((0..tenants * 2).map(kind)).await?;
        show(&format!("{tenants} lanes, by tenant of a fair queue"), &measure(&stage, rounds, kind).await?);
    }
    Ok(())
}
