//! Limits of queues and types: concurrency, rates, lanes and slots.

use std::time::Duration;

use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::priority::Priority;
use windlass_core::store::{ClaimRequest, LeaseError, Outcome, SubmitError};
use windlass_core::task::NewTask;
use windlass_core::worker::WorkerProfile;

use super::waiting::{only, settle};
use crate::fixtures::{TaskBuilder, completed, failed, failed_for_good, handling, profile, queue, task, text};
use crate::rig::{LEASE, Rig, seconds};

async fn started(rig: &Rig, worker: WorkerId) -> Vec<TaskId> {
    rig.claim_up_to(worker, 100).await.into_iter().map(|task| task.id).collect()
}

pub async fn a_type_runs_at_most_so_many(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":2}"#).await;
    rig.submit_all((0..3).flat_map(|n| [task("a").queue(&format!("q{n}")), task("b").queue(&format!("q{n}"))])).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 100).await;
    let of_a: Vec<_> = claimed.iter().filter(|task| task.spec.task_type.as_str() == "a").collect();
    assert_eq!((of_a.len(), claimed.len()), (2, 5), "over all queues, also inside one large claim");
    rig.claim_nothing(rig.register(handling(&["a"])).await).await;
    rig.finished(worker, of_a[0], failed()).await;
    assert_eq!(started(&rig, worker).await.len(), 1);
}

pub async fn a_queue_runs_at_most_so_many(rig: Rig) {
    rig.change_queue("x", r#"{"concurrency":2}"#).await;
    rig.submit_all((0..3).map(|n| task(&format!("t{n}")).queue("x"))).await;
    rig.submit_all((0..3).map(|_| task("a").queue("y"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 100).await;
    let of_x: Vec<_> = claimed.iter().filter(|task| task.spec.queue == queue("x")).collect();
    assert_eq!((of_x.len(), claimed.len()), (2, 5));
    rig.finished(worker, of_x[0], Outcome::Snoozed(seconds(60))).await;
    assert_eq!(started(&rig, worker).await.len(), 1);
}

pub async fn a_cancelled_task_counts_until_its_worker_knows(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    rig.change_queue("x", r#"{"concurrency":1}"#).await;
    let (other, by_type) = (rig.worker().await, rig.started(task("a")).await);
    let by_queue = rig.started(task("b").queue("x")).await;
    rig.submit_all([task("a"), task("a")]).await;
    rig.submit_all([task("b").queue("x"), task("b").queue("x")]).await;
    for (worker, claimed) in [by_type, by_queue] {
        rig.cancel(claimed.id).await.expect("it runs");
        rig.claim_nothing(other).await;
        assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
        let next = rig.claim_up_to(other, 100).await;
        assert_eq!(next.len(), 1);
    }
}

pub async fn a_lapsed_lease_makes_room(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    rig.submit_all((0..2).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let first = rig.claim(worker).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_ne!(rig.claim(worker).await.id, first.id);
    rig.claim_nothing(worker).await;
}

pub async fn every_end_of_an_attempt_makes_room(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    rig.change_queue("default", r#"{"concurrency":1}"#).await;
    let worker = rig.worker().await;
    let released = [completed(), failed(), failed_for_good(), Outcome::Snoozed(seconds(60)), Outcome::Released];
    for outcome in released.into_iter().chain([Outcome::Cancelled { note: None }]) {
        rig.submit_all([task("a"), task("a")]).await;
        let claimed = rig.claim_up_to(worker, 10).await;
        assert_eq!(claimed.len(), 1);
        rig.finished(worker, &claimed[0], outcome).await;
        let next = rig.claim_up_to(worker, 10).await;
        assert_eq!(next.len(), 1);
        rig.finished(worker, &next[0], completed()).await;
    }
    let id = rig.submit(task("b").priority(Priority::HIGH).timeout(seconds(5))).await;
    assert_eq!(rig.claim(worker).await.id, id);
    rig.advance(seconds(6));
    rig.time_out().await;
    rig.claim(worker).await;
    rig.claim_nothing(worker).await;
    rig.store.deregister_worker(worker).await.expect("known");
    rig.claim(rig.worker().await).await;
}

pub async fn a_changed_concurrency_applies_at_once(rig: Rig) {
    rig.submit_all((0..10).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    rig.change_type("a", r#"{"concurrency":3}"#).await;
    let claimed = rig.claim_up_to(worker, 100).await;
    assert_eq!(claimed.len(), 3);
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    for task in &claimed[..2] {
        rig.finished(worker, task, completed()).await;
        rig.claim_nothing(worker).await;
    }
    rig.change_type("a", r#"{"concurrency":null}"#).await;
    assert_eq!(started(&rig, worker).await.len(), 7);
}

pub async fn a_concurrency_holds_over_a_restart(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":2}"#).await;
    rig.submit_all((0..5).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 100).await;
    rig.cancel(claimed[0].id).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(rig.worker().await).await;
    rig.finished(worker, &claimed[1], completed()).await;
    assert_eq!(started(&rig, worker).await.len(), 1);
}

/// Claims all it can, again and again; no window has more than the rate and the burst.
async fn assert_rate(rig: &Rig, per_second: f64, burst: f64) {
    let worker = rig.worker().await;
    let mut starts: Vec<f64> = Vec::new();
    let mut pick = 7_u64;
    let begin = rig.now();
    for _ in 0..150 {
        pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        rig.advance(Duration::from_millis(pick >> 55));
        let at = rig.now().since(begin).as_secs_f64();
        for claimed in rig.claim_up_to(worker, 100).await {
            starts.push(at);
            rig.finished(worker, &claimed, completed()).await;
        }
    }
    for (i, first) in starts.iter().enumerate() {
        for (j, last) in starts.iter().enumerate().skip(i) {
            let allowed = burst + (last - first) * per_second + 1e-3;
            assert!((j - i + 1) as f64 <= allowed, "{} starts in {} s", j - i + 1, last - first);
        }
    }
    let fair = rig.now().since(begin).as_secs_f64() * per_second;
    assert!(starts.len() as f64 >= fair * 0.8, "{} starts where {fair} were allowed: nothing is wasted", starts.len());
}

pub async fn a_type_starts_no_faster_than_its_rate(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":10,"per_seconds":1,"burst":4}}"#).await;
    rig.submit_all((0..500).map(|n| task("a").queue(["x", "y"][n % 2]))).await;
    assert_rate(&rig, 10.0, 4.0).await;
}

pub async fn a_queue_starts_no_faster_than_its_rate(rig: Rig) {
    rig.change_queue("default", r#"{"rate_limit":{"count":10,"per_seconds":1,"burst":4}}"#).await;
    rig.submit_all((0..500).map(|n| task(["x", "y"][n % 2]))).await;
    assert_rate(&rig, 10.0, 4.0).await;
}

pub async fn a_rate_holds_up_nobody_else(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":60}}"#).await;
    rig.submit_all((0..5).map(|_| task("a").priority(Priority::CRITICAL))).await;
    rig.submit_all((0..3).map(|_| task("b").priority(Priority::BULK))).await;
    assert_eq!(started(&rig, rig.worker().await).await.len(), 4);
}

pub async fn a_token_is_there_when_it_was_promised(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":6,"per_seconds":60}}"#).await;
    rig.submit_all((0..3).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    assert_eq!(started(&rig, worker).await.len(), 1);
    rig.advance(Duration::from_millis(9_999));
    rig.claim_nothing(worker).await;
    rig.advance(Duration::from_millis(2));
    assert_eq!(started(&rig, worker).await.len(), 1);
}

pub async fn a_waiting_claim_wakes_when_the_token_comes(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":10}}"#).await;
    rig.change_queue("x", r#"{"rate_limit":{"count":1,"per_seconds":10}}"#).await;
    for built in [task("a"), task("b").queue("x")] {
        let ids = rig.submit_all([built.clone(), built]).await;
        let worker = rig.worker().await;
        assert_eq!(rig.claim(worker).await.id, ids[0]);
        let waiting = rig.claim_waiting(worker);
        settle().await;
        assert!(!waiting.is_finished());
        rig.advance(seconds(11));
        rig.make_due().await;
        assert_eq!(only(waiting).await.id, ids[1]);
    }
}

pub async fn maintenance_is_told_when_the_token_comes(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":10}}"#).await;
    rig.submit_all((0..2).map(|_| task("a"))).await;
    rig.claim(rig.worker().await).await;
    let sweep = rig.store.make_due(10).await.expect("maintenance runs");
    assert!(sweep.next_at.is_some_and(|at| at <= rig.now() + seconds(11)), "{sweep:?}");
}

pub async fn a_token_is_taken_by_a_start_only(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":60}}"#).await;
    let worker = rig.worker().await;
    for _ in 0..5 {
        rig.claim_nothing(worker).await;
    }
    let expired = rig.submit(task("a").expires_at(rig.now() + seconds(1))).await;
    rig.advance(seconds(2));
    let id = rig.submit(task("a")).await;
    assert_eq!(started(&rig, worker).await, [id], "what expired took nothing");
    assert_ne!(expired, id);
}

pub async fn a_changed_rate_refills_nothing(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":60,"burst":3}}"#).await;
    rig.submit_all((0..10).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    assert_eq!(started(&rig, worker).await.len(), 3);
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":1,"burst":5}}"#).await;
    rig.claim_nothing(worker).await;
    rig.advance(seconds(2));
    assert_eq!(started(&rig, worker).await.len(), 2);
    rig.change_type("a", r#"{"rate_limit":null}"#).await;
    assert_eq!(started(&rig, worker).await.len(), 5);
}

pub async fn a_restart_refills_no_rate(rig: Rig) {
    rig.change_type("a", r#"{"rate_limit":{"count":1,"per_seconds":10,"burst":3}}"#).await;
    rig.change_queue("x", r#"{"rate_limit":{"count":1,"per_seconds":10,"burst":3}}"#).await;
    rig.submit_all((0..10).map(|_| task("a"))).await;
    rig.submit_all((0..10).map(|_| task("b").queue("x"))).await;
    let worker = rig.worker().await;
    assert_eq!(started(&rig, worker).await.len(), 6);
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(worker).await;
    rig.advance(seconds(11));
    assert_eq!(started(&rig, worker).await.len(), 2);
}

fn of(tenant: &str, count: usize) -> Vec<NewTask> {
    (0..count).map(|_| task("a").tenant(tenant).build()).collect()
}

async fn refused(rig: &Rig, tasks: Vec<NewTask>) -> Duration {
    match rig.try_submit(tasks).await {
        Err(SubmitError::RateLimited { queue: of_queue, retry_after, .. }) => {
            assert_eq!(of_queue, queue("default"));
            retry_after
        }
        other => panic!("it should be too fast, but {other:?}"),
    }
}

pub async fn a_tenant_submits_no_faster_than_its_queue_allows(rig: Rig) {
    rig.change_queue("default", r#"{"tenant_rate_limit":{"count":10,"per_seconds":1,"burst":10}}"#).await;
    rig.try_submit(of("t", 10)).await.expect("the burst");
    let answer = rig.try_submit(of("t", 1)).await;
    let Err(SubmitError::RateLimited { index, tenant, .. }) = answer else { panic!("too fast: {answer:?}") };
    assert_eq!((index, tenant), (0, text("t")));
    rig.try_submit(of("other", 10)).await.expect("each tenant has a rate of its own");
    rig.try_submit((0..50).map(|_| task("a").build()).collect()).await.expect("work of nobody is not counted");
    rig.try_submit((0..50).map(|_| task("a").queue("x").tenant("t").build()).collect()).await.expect("another queue");
    rig.advance(Duration::from_millis(500));
    rig.try_submit(of("t", 5)).await.expect("half a second later");
    refused(&rig, of("t", 1)).await;
}

pub async fn the_time_to_wait_is_told_honestly(rig: Rig) {
    for (tenant, limit, count) in [
        ("one", r#"{"tenant_rate_limit":{"count":300,"per_seconds":1,"burst":1}}"#, 1),
        ("two", r#"{"tenant_rate_limit":{"count":7,"per_seconds":3,"burst":5}}"#, 3),
        ("three", r#"{"tenant_rate_limit":{"count":10,"per_seconds":1,"burst":10}}"#, 40),
    ] {
        rig.change_queue("default", limit).await;
        rig.try_submit(of(tenant, count)).await.expect("the burst");
        while rig.try_submit(of(tenant, 1)).await.is_ok() {}
        let wait = refused(&rig, of(tenant, count)).await;
        rig.advance(wait.saturating_sub(Duration::from_millis(1)));
        refused(&rig, of(tenant, count)).await;
        rig.advance(Duration::from_millis(1));
        rig.try_submit(of(tenant, count)).await.expect("the promised time has come");
    }
}

pub async fn a_submit_that_is_too_fast_stores_and_takes_nothing(rig: Rig) {
    rig.change_queue("default", r#"{"tenant_rate_limit":{"count":10,"per_seconds":1,"burst":10}}"#).await;
    rig.try_submit(of("t", 6)).await.expect("room");
    let mut batch = of("other", 5);
    batch.extend(of("t", 5));
    refused(&rig, batch).await;
    rig.try_submit(of("other", 10)).await.expect("it was not charged");
    rig.try_submit(of("t", 4)).await.expect("nor was this");
    assert_eq!(rig.store.stats().await.expect("stats").by_status.iter().sum::<u64>(), 20);
}

pub async fn accepted_work_is_never_too_fast(rig: Rig) {
    rig.change_queue("default", r#"{"tenant_rate_limit":{"count":1,"per_seconds":60,"burst":1}}"#).await;
    let (worker, claimed) = rig.started(task("a").tenant("t").key("k")).await;
    assert!(rig.submitted(task("a").tenant("t").key("k")).await.is_known(), "a known key is answered");
    let follow_ups = vec![task("b").tenant("t").build(), task("b").tenant("t").build()];
    let finished = rig.finished(worker, &claimed, Outcome::Completed { result: None, follow_ups }).await;
    assert_eq!(finished.follow_ups.len(), 2);
}

pub async fn the_number_of_lanes_is_a_setting(rig: Rig) {
    rig.change_queue("q", r#"{"max_lanes":2}"#).await;
    rig.submit_all([task("a").queue("q"), task("b").queue("q")]).await;
    let answer = rig.try_submit(vec![task("c").queue("q").build()]).await;
    assert_eq!(answer, Err(SubmitError::TooManyLanes { index: 0, queue: queue("q") }));
    let answer = rig.try_submit(vec![task("a").queue("q").priority(Priority::HIGH).build()]).await;
    assert_eq!(answer, Err(SubmitError::TooManyLanes { index: 0, queue: queue("q") }));
    rig.submit(task("a").queue("q")).await;
    rig.change_queue("q", r#"{"max_lanes":3}"#).await;
    rig.submit(task("c").queue("q")).await;
}

pub async fn tenants_of_a_fair_queue_are_lanes(rig: Rig) {
    rig.change_queue("q", r#"{"max_lanes":2,"policy":"fair"}"#).await;
    rig.submit_all([task("a").queue("q").tenant("t"), task("a").queue("q").tenant("u")]).await;
    rig.try_submit(vec![task("a").queue("q").tenant("v").build()]).await.expect_err("a third lane");
}

async fn worker_of(rig: &Rig, capacity: u32) -> WorkerId {
    rig.register(WorkerProfile { capacity, ..profile() }).await
}

fn heavy() -> TaskBuilder {
    task("heavy").priority(Priority::HIGH)
}

pub async fn two_heavy_tasks_do_not_land_on_one_small_worker(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":3}"#).await;
    rig.submit_all([heavy(), heavy()]).await;
    let (small, large) = (worker_of(&rig, 4).await, worker_of(&rig, 6).await);
    assert_eq!(rig.claim_up_to(small, 4).await.len(), 1);
    assert!(rig.claim_up_to(small, 3).await.is_empty(), "of its three free places two are taken by the first");
    assert_eq!(rig.claim_up_to(large, 6).await.len(), 1);
}

pub async fn a_large_worker_takes_several_heavy_tasks(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":3}"#).await;
    rig.submit_all((0..4).map(|_| heavy())).await;
    rig.submit_all((0..4).map(|_| task("light"))).await;
    let large = worker_of(&rig, 10).await;
    let claimed = rig.claim_up_to(large, 10).await;
    assert_eq!(claimed.len(), 3, "nine of ten, and the next heavy one has to wait");
    rig.finished(large, &claimed[0], completed()).await;
    assert_eq!(rig.claim_up_to(large, 8).await.len(), 2, "the last heavy one and one that is light");
}

pub async fn a_task_too_large_for_a_worker_holds_it_up_not(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":5}"#).await;
    let heavy = rig.submit_all([heavy(), heavy()]).await;
    let light = rig.submit_all((0..3).map(|_| task("light"))).await;
    let small = worker_of(&rig, 4).await;
    let claimed: Vec<_> = rig.claim_up_to(small, 4).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, light);
    let large = worker_of(&rig, 5).await;
    let claimed: Vec<_> = rig.claim_up_to(large, 5).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, heavy[..1]);
}

pub async fn a_heavy_task_is_not_starved_by_light_ones(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":4}"#).await;
    let worker = worker_of(&rig, 4).await;
    rig.submit_all((0..4).map(|_| task("light"))).await;
    let running = rig.claim_up_to(worker, 4).await;
    let heavy = rig.submit(heavy()).await;
    rig.submit_all((0..9).map(|_| task("light"))).await;
    for (n, done) in running.iter().enumerate() {
        rig.finished(worker, done, completed()).await;
        let claimed = rig.claim_up_to(worker, n + 1).await;
        let expected = if n == 3 { vec![heavy] } else { Vec::new() };
        assert_eq!(claimed.into_iter().map(|task| task.id).collect::<Vec<_>>(), expected, "room is saved for it");
    }
}

pub async fn a_waiting_claim_takes_a_heavy_task_when_it_has_room(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":4}"#).await;
    let (small, large) = (worker_of(&rig, 2).await, worker_of(&rig, 4).await);
    let request = |worker, up_to| ClaimRequest { worker, capabilities: None, up_to, lease: LEASE, wait: true };
    let wait = |worker, up_to| {
        let store = std::sync::Arc::clone(&rig.store);
        tokio::spawn(async move { store.claim(request(worker, up_to)).await.expect("answered") })
    };
    let (waits_small, waits_large) = (wait(small, 2), wait(large, 4));
    settle().await;
    let id = rig.submit(heavy()).await;
    assert_eq!(only(waits_large).await.id, id);
    assert!(!waits_small.is_finished());
    let light = rig.submit(task("light")).await;
    assert_eq!(only(waits_small).await.id, light);
}

pub async fn slots_survive_a_restart(rig: Rig) {
    rig.change_type("heavy", r#"{"slots":3}"#).await;
    rig.submit_all([heavy(), heavy()]).await;
    let worker = worker_of(&rig, 4).await;
    assert_eq!(rig.claim_up_to(worker, 4).await.len(), 1);
    let Some(rig) = rig.reopen().await else { return };
    assert!(rig.claim_up_to(worker, 3).await.is_empty());
}

pub async fn limits_are_never_exceeded_under_concurrent_claims(rig: Rig) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    rig.change_type("a", r#"{"concurrency":3}"#).await;
    rig.submit_all((0..80).map(|n| task("a").queue(["x", "y"][n % 2]))).await;
    let (running, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for _ in 0..8 {
        let (rig, running, done) = (rig.clone(), Arc::clone(&running), Arc::clone(&done));
        workers.push(tokio::spawn(async move {
            let worker = rig.worker().await;
            while done.load(Ordering::SeqCst) < 80 {
                for task in rig.claim_up_to(worker, 2).await {
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 3, "more than three run");
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    rig.finished(worker, &task, completed()).await;
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    for worker in workers {
        crate::rig::soon(worker).await.expect("no panic");
    }
}
