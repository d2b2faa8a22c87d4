//! Concurrency keys: at most so many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, LeaseError, Outcome};
use windlass_core::task::ClaimedTask;

use super::reading;
use crate::fixtures::{again, completed, failed, failed_for_good, handling, task};
use crate::rig::{LEASE, Rig, seconds};

/// Tasks of one key with limit one, the first of which runs and the second of which was parked.
struct Pool {
    worker: WorkerId,
    first: ClaimedTask,
    second: TaskId,
}

async fn pool(rig: &Rig) -> Pool {
    pool_of(rig, task("a")).await
}

async fn pool_of(rig: &Rig, first: crate::fixtures::TaskBuilder) -> Pool {
    rig.submit(first.at_most(1, "k")).await;
    rig.advance(seconds(1));
    let second = rig.submit(task("a").at_most(1, "k")).await;
    let worker = rig.worker().await;
    let mut claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.len(), 1, "one may run");
    Pool { worker, first: claimed.remove(0), second }
}

async fn started(rig: &Rig, worker: WorkerId) -> Vec<TaskId> {
    rig.claim_up_to(worker, 10).await.into_iter().map(|task| task.id).collect()
}

pub async fn at_most_so_many_of_a_key_run(rig: Rig) {
    let ids = rig.submit_all((0..7).map(|_| task("a").at_most(3, "k"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 100).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), ids[..3], "also inside one large claim");
    rig.claim_nothing(rig.worker().await).await;
    rig.finished(worker, &claimed[1], completed()).await;
    assert_eq!(started(&rig, worker).await, ids[3..4]);
    reading::assert_stats(&rig).await;
}

pub async fn waiting_tasks_of_a_key_take_no_slot(rig: Rig) {
    rig.submit(task("a").delay(seconds(60)).at_most(1, "k")).await;
    let (paused, free) = (task("paused").at_most(1, "k"), task("a").at_most(1, "k"));
    rig.change_type("paused", r#"{"paused":true}"#).await;
    rig.submit(paused).await;
    let id = rig.submit(free).await;
    assert_eq!(started(&rig, rig.worker().await).await, [id]);
}

pub async fn a_success_lets_the_next_start(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, completed()).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_retry_frees_the_slot_while_it_waits(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, failed()).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim_nothing(pool.worker).await;
}

pub async fn a_failure_for_good_frees_the_slot(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, failed_for_good()).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_release_frees_the_slot(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, Outcome::Released).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.first.id], "at its old place it is the first again");
}

pub async fn a_snooze_frees_the_slot(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, Outcome::Snoozed(seconds(60))).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_lapsed_lease_frees_the_slot(rig: Rig) {
    let pool = pool(&rig).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_poison_pill_frees_the_slot(rig: Rig) {
    let pool = pool_of(&rig, task("a").max_crashes(1)).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(rig.status(pool.first.id).await, Status::DeadLetter);
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_timeout_frees_the_slot(rig: Rig) {
    let pool = pool_of(&rig, task("a").timeout(seconds(5))).await;
    rig.advance(seconds(6));
    rig.time_out().await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn a_cancelled_task_keeps_its_slot_until_its_worker_knows(rig: Rig) {
    let pool = pool(&rig).await;
    let other = rig.worker().await;
    rig.cancel(pool.first.id).await.expect("it runs");
    rig.claim_nothing(other).await;
    assert_eq!(rig.finish(pool.worker, &pool.first, completed()).await, Err(LeaseError::Lost));
    assert_eq!(started(&rig, other).await, [pool.second]);
}

pub async fn a_cancelled_task_keeps_its_slot_until_its_lease_ends(rig: Rig) {
    let pool = pool(&rig).await;
    let other = rig.worker().await;
    rig.cancel(pool.first.id).await.expect("it runs");
    rig.advance(LEASE - seconds(1));
    rig.lapse().await;
    rig.claim_nothing(other).await;
    rig.advance(seconds(2));
    rig.lapse().await;
    assert_eq!(started(&rig, other).await, [pool.second]);
}

pub async fn a_replayed_task_takes_a_slot_again(rig: Rig) {
    let pool = pool(&rig).await;
    rig.finished(pool.worker, &pool.first, failed_for_good()).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
    rig.requeue(again(pool.first.id)).await.expect("it is a dead letter");
    rig.claim_nothing(pool.worker).await;
}

pub async fn the_best_parked_task_starts_first(rig: Rig) {
    let pool = pool(&rig).await;
    let low = rig.submit(task("a").priority(Priority::LOW).at_most(1, "k")).await;
    let high = rig.submit(task("b").priority(Priority::HIGH).at_most(1, "k")).await;
    rig.claim_nothing(pool.worker).await;
    rig.finished(pool.worker, &pool.first, completed()).await;
    for expected in [high, pool.second, low] {
        let claimed = rig.claim_up_to(pool.worker, 10).await;
        assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [expected]);
        rig.finished(pool.worker, &claimed[0], completed()).await;
    }
}

pub async fn a_parked_task_is_reached_by_every_change(rig: Rig) {
    let pool = pool(&rig).await;
    let [cancelled, buried, expired, raised, later] = [0, 10, 5, 0, 0].map(|expires: u64| {
        let parked = task("a").at_most(1, "k");
        if expires == 5 { parked.expires_at(rig.now() + seconds(5)) } else { parked }
    });
    let ids = rig.submit_all([cancelled, buried, expired, raised, later]).await;
    rig.claim_nothing(pool.worker).await;
    rig.cancel(ids[0]).await.expect("it waits");
    rig.bury(ids[1], "bad").await.expect("it waits");
    rig.advance(seconds(6));
    rig.expire().await;
    assert_eq!(rig.status(ids[2]).await, Status::Failed);
    rig.amend(ids[3], Amendment { priority: Some(Priority::HIGH), ..Amendment::default() }).await.expect("it waits");
    let run_at = Some(rig.now() + seconds(60));
    rig.amend(ids[4], Amendment { run_at, ..Amendment::default() }).await.expect("it waits");
    assert_eq!(rig.status(ids[4]).await, Status::Scheduled);
    rig.claim_nothing(pool.worker).await;
    reading::assert_stats(&rig).await;
    rig.finished(pool.worker, &pool.first, completed()).await;
    let claimed = rig.claim_up_to(pool.worker, 10).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [ids[3]]);
    rig.finished(pool.worker, &claimed[0], completed()).await;
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn the_limit_of_the_newest_task_applies(rig: Rig) {
    let worker = rig.worker().await;
    rig.submit_all((0..4).map(|_| task("a").at_most(1, "k"))).await;
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 1);
    let newest = rig.submit(task("a").at_most(3, "k").priority(Priority::BULK)).await;
    let claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.len(), 2, "three may run now");
    rig.cancel(newest).await.expect("it waits");
    for task in &claimed {
        rig.finished(worker, task, completed()).await;
    }
    rig.claim_nothing(worker).await;
}

pub async fn a_lowered_limit_ends_nothing_that_runs(rig: Rig) {
    let worker = rig.worker().await;
    rig.submit_all((0..3).map(|_| task("a").at_most(3, "k"))).await;
    let claimed = rig.claim_up_to(worker, 10).await;
    let newest = rig.submit(task("a").at_most(1, "k")).await;
    for task in &claimed {
        rig.claim_nothing(worker).await;
        rig.finished(worker, task, completed()).await;
    }
    assert_eq!(started(&rig, worker).await, [newest]);
}

pub async fn a_parked_task_that_nobody_serves_is_in_nobodys_way(rig: Rig) {
    let pool = pool(&rig).await;
    let gpu = task("a").requires(&["gpu"]).priority(Priority::CRITICAL).at_most(1, "k");
    let unserved = task("unserved").priority(Priority::HIGH).at_most(1, "k");
    rig.submit_all([gpu, unserved]).await;
    let worker = rig.register(handling(&["a"])).await;
    rig.claim_nothing(worker).await;
    rig.finished(pool.worker, &pool.first, completed()).await;
    assert_eq!(started(&rig, worker).await, [pool.second]);
}

pub async fn keys_are_per_queue(rig: Rig) {
    pool(&rig).await;
    let elsewhere = rig.submit(task("a").queue("other").at_most(1, "k")).await;
    let other = rig.submit(task("a").at_most(1, "other")).await;
    let free = rig.submit(task("a")).await;
    let ids: std::collections::BTreeSet<_> = started(&rig, rig.worker().await).await.into_iter().collect();
    assert_eq!(ids, [elsewhere, other, free].into());
}

pub async fn a_key_is_never_exceeded_under_concurrent_claims(rig: Rig) {
    rig.submit_all((0..60).map(|n| task(["a", "b"][n % 2]).at_most(3, "k"))).await;
    let (running, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for _ in 0..8 {
        let (rig, running, done) = (rig.clone(), Arc::clone(&running), Arc::clone(&done));
        workers.push(tokio::spawn(async move {
            let worker = rig.worker().await;
            while done.load(Ordering::SeqCst) < 60 {
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

pub async fn slots_of_a_key_survive_a_restart(rig: Rig) {
    let pool = pool(&rig).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(pool.worker).await;
    rig.cancel(pool.first.id).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(rig.worker().await).await;
    assert_eq!(rig.finish(pool.worker, &pool.first, completed()).await, Err(LeaseError::Lost));
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(started(&rig, pool.worker).await, [pool.second]);
}

pub async fn the_limit_of_the_newest_task_survives_a_restart(rig: Rig) {
    rig.submit_all((0..4).map(|_| task("a").at_most(1, "k"))).await;
    rig.submit(task("a").at_most(2, "k")).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.claim_up_to(rig.worker().await, 10).await.len(), 2);
}
