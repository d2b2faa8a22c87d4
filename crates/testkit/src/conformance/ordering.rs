//! Ordering keys: one at a time, in the order of submits.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::keys::OnFailure;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, LeaseError, Outcome, Requeue};
use windlass_core::task::ClaimedTask;

use super::reading;
use crate::fixtures::{again, completed, failed, failed_for_good, handling, task};
use crate::rig::{LEASE, Rig, seconds};

/// A line of tasks that came a second apart, the first of which runs.
struct Line {
    worker: WorkerId,
    first: ClaimedTask,
    rest: Vec<TaskId>,
}

async fn line(rig: &Rig, count: usize, on_failure: OnFailure) -> Line {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(rig.submit(task("a").ordered("k", on_failure)).await);
        rig.advance(seconds(1));
    }
    let worker = rig.worker().await;
    let first = next(rig, worker, ids[0]).await;
    Line { worker, first, rest: ids.split_off(1) }
}

/// Takes the one task that may run.
async fn next(rig: &Rig, worker: WorkerId, id: TaskId) -> ClaimedTask {
    let mut claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), vec![id], "it and nothing else has the turn");
    claimed.remove(0)
}

/// Lets these run one after the other, and nothing after them.
async fn run_in_turn(rig: &Rig, worker: WorkerId, ids: &[TaskId]) {
    for id in ids {
        let claimed = next(rig, worker, *id).await;
        rig.advance(seconds(1));
        rig.finished(worker, &claimed, completed()).await;
    }
    rig.claim_nothing(worker).await;
}

async fn due_after(rig: &Rig, span: u64) {
    rig.advance(seconds(span));
    rig.make_due().await;
}

pub async fn a_line_runs_one_at_a_time_in_submit_order(rig: Rig) {
    let line = line(&rig, 4, OnFailure::Block).await;
    rig.claim_nothing(rig.worker().await).await;
    rig.finished(line.worker, &line.first, completed()).await;
    run_in_turn(&rig, line.worker, &line.rest).await;
}

pub async fn a_batch_joins_its_line_in_order(rig: Rig) {
    let ids = rig.submit_all((0..5).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    let worker = rig.worker().await;
    run_in_turn(&rig, worker, &ids).await;
}

pub async fn a_line_goes_over_types_priorities_and_workers(rig: Rig) {
    let first = rig.submit(task("a").priority(Priority::BULK).ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(1));
    let second = rig.submit(task("b").priority(Priority::CRITICAL).ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(1));
    let third = rig.submit(task("a").requires(&["gpu"]).ordered("k", OnFailure::Block)).await;
    let (of_a, of_b) = (rig.register(handling(&["a"])).await, rig.register(handling(&["b"])).await);
    let able = rig.register(crate::fixtures::able(&["gpu"])).await;
    rig.claim_nothing(of_b).await;
    let claimed = next(&rig, of_a, first).await;
    rig.claim_nothing(able).await;
    rig.finished(of_a, &claimed, completed()).await;
    rig.claim_nothing(of_a).await;
    let claimed = next(&rig, of_b, second).await;
    rig.finished(of_b, &claimed, completed()).await;
    next(&rig, able, third).await;
}

pub async fn lines_do_not_wait_for_each_other(rig: Rig) {
    line(&rig, 2, OnFailure::Block).await;
    let other = rig.submit(task("a").ordered("other", OnFailure::Block)).await;
    let free = rig.submit(task("a")).await;
    let claimed = rig.claim_up_to(rig.worker().await, 10).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [other, free]);
}

pub async fn keys_are_per_queue(rig: Rig) {
    line(&rig, 2, OnFailure::Block).await;
    let elsewhere = rig.submit(task("a").queue("other").ordered("k", OnFailure::Block)).await;
    let limited = rig.submit(task("a").at_most(1, "k")).await;
    let claimed = rig.claim_up_to(rig.worker().await, 10).await;
    let ids: BTreeSet<_> = claimed.iter().map(|task| task.id).collect();
    assert_eq!(ids, [elsewhere, limited].into(), "kinds of keys are apart too");
}

pub async fn held_tasks_are_queued_and_counted(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    for id in line.rest {
        assert_eq!(rig.status(id).await, Status::Queued);
    }
    reading::assert_stats(&rig).await;
}

pub async fn a_delayed_task_joins_its_line_when_it_is_due(rig: Rig) {
    let delayed = rig.submit(task("a").delay(seconds(10)).ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(1));
    let ids = rig.submit_all((0..2).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    let worker = rig.worker().await;
    let first = next(&rig, worker, ids[0]).await;
    due_after(&rig, 10).await;
    let late = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    rig.finished(worker, &first, completed()).await;
    run_in_turn(&rig, worker, &[ids[1], delayed, late]).await;
}

pub async fn delayed_tasks_join_in_the_order_of_their_due_times(rig: Rig) {
    let later = rig.submit(task("a").delay(seconds(20)).ordered("k", OnFailure::Block)).await;
    let sooner = rig.submit(task("a").delay(seconds(10)).ordered("k", OnFailure::Block)).await;
    due_after(&rig, 30).await;
    run_in_turn(&rig, rig.worker().await, &[sooner, later]).await;
}

pub async fn a_success_passes_the_turn_on(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, completed()).await;
    next(&rig, line.worker, line.rest[0]).await;
}

pub async fn a_retry_keeps_the_turn(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed()).await;
    rig.claim_nothing(line.worker).await;
    due_after(&rig, 10).await;
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0], line.rest[1]]).await;
}

pub async fn a_retry_that_skips_steps_to_the_back(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Skip).await;
    rig.finished(line.worker, &line.first, failed()).await;
    let second = next(&rig, line.worker, line.rest[0]).await;
    due_after(&rig, 10).await;
    rig.claim_nothing(line.worker).await;
    rig.finished(line.worker, &second, completed()).await;
    run_in_turn(&rig, line.worker, &[line.rest[1], line.first.id]).await;
}

pub async fn each_task_says_itself_what_its_retry_does(rig: Rig) {
    let skips = rig.submit(task("a").ordered("k", OnFailure::Skip)).await;
    rig.advance(seconds(1));
    let blocks = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(1));
    let last = rig.submit(task("a").ordered("k", OnFailure::Skip)).await;
    rig.advance(seconds(1));
    let worker = rig.worker().await;
    let claimed = next(&rig, worker, skips).await;
    rig.finished(worker, &claimed, failed()).await;
    let claimed = next(&rig, worker, blocks).await;
    rig.finished(worker, &claimed, failed()).await;
    rig.claim_nothing(worker).await;
    due_after(&rig, 10).await;
    run_in_turn(&rig, worker, &[blocks, last, skips]).await;
}

pub async fn a_retry_that_runs_now_keeps_the_turn(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed()).await;
    rig.requeue(again(line.first.id)).await.expect("it is scheduled");
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0]]).await;
}

pub async fn a_failure_for_good_passes_the_turn_on(rig: Rig) {
    for quietly in [false, true] {
        let key = if quietly { "quiet" } else { "dead" };
        let first = task("a").ordered(key, OnFailure::Block);
        let first = rig.submit(if quietly { first.no_dead_letter() } else { first }).await;
        let second = rig.submit(task("a").ordered(key, OnFailure::Block)).await;
        let worker = rig.worker().await;
        let claimed = next(&rig, worker, first).await;
        rig.finished(worker, &claimed, failed_for_good()).await;
        run_in_turn(&rig, worker, &[second]).await;
    }
}

pub async fn a_release_keeps_the_turn(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Skip).await;
    rig.finished(line.worker, &line.first, Outcome::Released).await;
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0]]).await;
}

pub async fn a_deregistered_worker_keeps_the_turn_of_its_task(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Skip).await;
    rig.store.deregister_worker(line.worker).await.expect("known");
    run_in_turn(&rig, rig.worker().await, &[line.first.id, line.rest[0]]).await;
}

pub async fn a_snooze_keeps_the_turn(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, Outcome::Snoozed(seconds(30))).await;
    rig.claim_nothing(line.worker).await;
    due_after(&rig, 30).await;
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0]]).await;
}

pub async fn a_snooze_that_skips_steps_to_the_back(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Skip).await;
    rig.finished(line.worker, &line.first, Outcome::Snoozed(seconds(30))).await;
    due_after(&rig, 30).await;
    run_in_turn(&rig, line.worker, &[line.rest[0], line.rest[1], line.first.id]).await;
}

pub async fn a_lapsed_lease_keeps_the_turn(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Skip).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.claim_nothing(line.worker).await;
    due_after(&rig, 10).await;
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0]]).await;
}

pub async fn a_poison_pill_passes_the_turn_on(rig: Rig) {
    let first = rig.submit(task("a").max_crashes(1).ordered("k", OnFailure::Block)).await;
    let second = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    let worker = rig.worker().await;
    next(&rig, worker, first).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(rig.status(first).await, Status::DeadLetter);
    run_in_turn(&rig, worker, &[second]).await;
}

pub async fn a_timeout_is_a_failure_for_the_line_too(rig: Rig) {
    for (key, on_failure) in [("blocks", OnFailure::Block), ("skips", OnFailure::Skip)] {
        let first = rig.submit(task("a").timeout(seconds(5)).ordered(key, on_failure)).await;
        rig.advance(seconds(1));
        let second = rig.submit(task("a").ordered(key, on_failure)).await;
        let worker = rig.worker().await;
        next(&rig, worker, first).await;
        rig.advance(seconds(6));
        rig.time_out().await;
        if on_failure == OnFailure::Block {
            rig.claim_nothing(worker).await;
        }
        due_after(&rig, 10).await;
        let expected = if on_failure == OnFailure::Block { [first, second] } else { [second, first] };
        run_in_turn(&rig, worker, &expected).await;
    }
}

pub async fn a_timeout_for_good_passes_the_turn_on(rig: Rig) {
    let first = rig.submit(task("a").timeout(seconds(5)).max_retries(0).ordered("k", OnFailure::Block)).await;
    let second = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    let worker = rig.worker().await;
    next(&rig, worker, first).await;
    rig.advance(seconds(6));
    rig.time_out().await;
    run_in_turn(&rig, worker, &[second]).await;
}

pub async fn a_waiting_task_that_is_cancelled_passes_the_turn_on(rig: Rig) {
    let ids = rig.submit_all((0..4).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    rig.cancel(ids[0]).await.expect("it waits");
    let worker = rig.worker().await;
    let second = next(&rig, worker, ids[1]).await;
    rig.finished(worker, &second, failed()).await;
    rig.claim_nothing(worker).await;
    rig.cancel(ids[1]).await.expect("it waits for its retry");
    rig.cancel(ids[2]).await.expect("it is held");
    run_in_turn(&rig, worker, &[ids[3]]).await;
}

pub async fn a_cancelled_task_keeps_the_turn_until_its_worker_knows(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    let other = rig.worker().await;
    rig.cancel(line.first.id).await.expect("it runs");
    rig.claim_nothing(other).await;
    rig.beat(line.worker).await;
    rig.claim_nothing(other).await;
    assert_eq!(rig.finish(line.worker, &line.first, completed()).await, Err(LeaseError::Lost));
    run_in_turn(&rig, other, &line.rest).await;
}

pub async fn a_cancelled_task_keeps_the_turn_until_its_lease_ends(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    let other = rig.worker().await;
    rig.cancel(line.first.id).await.expect("it runs");
    rig.advance(LEASE - seconds(1));
    rig.lapse().await;
    rig.claim_nothing(other).await;
    rig.advance(seconds(2));
    rig.lapse().await;
    run_in_turn(&rig, other, &line.rest).await;
}

pub async fn a_task_that_cancels_itself_passes_the_turn_on(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, Outcome::Cancelled { note: None }).await;
    run_in_turn(&rig, line.worker, &line.rest).await;
}

pub async fn an_expired_task_passes_the_turn_on(rig: Rig) {
    let first = rig.submit(task("a").expires_at(rig.now() + seconds(10)).ordered("k", OnFailure::Block)).await;
    let second = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    let held = rig.submit(task("a").expires_at(rig.now() + seconds(10)).ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(11));
    rig.expire().await;
    assert_eq!((rig.status(first).await, rig.status(held).await), (Status::Failed, Status::Failed));
    run_in_turn(&rig, rig.worker().await, &[second]).await;
}

pub async fn an_expired_first_does_not_hold_up_a_claim(rig: Rig) {
    for _ in 0..3 {
        rig.submit(task("a").expires_at(rig.now() + seconds(10)).ordered("k", OnFailure::Block)).await;
    }
    let last = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    rig.advance(seconds(11));
    // Maintenance has not seen it yet.
    run_in_turn(&rig, rig.worker().await, &[last]).await;
}

pub async fn a_replayed_task_joins_at_the_back(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed_for_good()).await;
    let second = next(&rig, line.worker, line.rest[0]).await;
    rig.requeue(again(line.first.id)).await.expect("it is a dead letter");
    rig.advance(seconds(1));
    let late = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    rig.finished(line.worker, &second, completed()).await;
    run_in_turn(&rig, line.worker, &[line.rest[1], line.first.id, late]).await;
}

pub async fn a_paced_replay_joins_when_it_is_due(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed_for_good()).await;
    rig.requeue(Requeue { delay: seconds(10), ..again(line.first.id) }).await.expect("it is a dead letter");
    assert_eq!(rig.status(line.first.id).await, Status::Scheduled);
    rig.advance(seconds(1));
    let late = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    let second = next(&rig, line.worker, line.rest[0]).await;
    due_after(&rig, 10).await;
    rig.finished(line.worker, &second, completed()).await;
    run_in_turn(&rig, line.worker, &[late, line.first.id]).await;
}

pub async fn a_discarded_task_leaves_its_line_alone(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed_for_good()).await;
    let second = next(&rig, line.worker, line.rest[0]).await;
    rig.discard(line.first.id).await.expect("it is a dead letter");
    rig.claim_nothing(line.worker).await;
    rig.finished(line.worker, &second, completed()).await;
    run_in_turn(&rig, line.worker, &[line.rest[1]]).await;
}

pub async fn a_new_priority_keeps_the_place_in_line(rig: Rig) {
    let ids = rig.submit_all((0..3).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    rig.amend(ids[0], Amendment { priority: Some(Priority::BULK), ..Amendment::default() }).await.expect("it waits");
    rig.amend(ids[2], Amendment { priority: Some(Priority::HIGH), ..Amendment::default() }).await.expect("it is held");
    assert_eq!(rig.task(ids[2]).await.spec.priority, Priority::HIGH);
    reading::assert_stats(&rig).await;
    run_in_turn(&rig, rig.worker().await, &ids).await;
}

pub async fn a_new_time_keeps_the_place_in_line(rig: Rig) {
    let ids = rig.submit_all((0..3).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    rig.amend(ids[1], Amendment { run_at: Some(rig.now() + seconds(60)), ..Amendment::default() })
        .await
        .expect("it is held");
    let worker = rig.worker().await;
    run_in_turn(&rig, worker, &ids[..1]).await;
    due_after(&rig, 60).await;
    run_in_turn(&rig, worker, &ids[1..]).await;
}

pub async fn a_buried_task_leaves_its_line(rig: Rig) {
    let ids = rig.submit_all((0..4).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    rig.bury(ids[0], "bad").await.expect("it waits");
    rig.bury(ids[2], "bad").await.expect("it is held");
    run_in_turn(&rig, rig.worker().await, &[ids[1], ids[3]]).await;
}

pub async fn a_follow_up_joins_the_line_of_its_key(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    let follow_ups = vec![task("a").ordered("k", OnFailure::Block).build()];
    let finished =
        rig.finished(line.worker, &line.first, Outcome::Completed { result: None, follow_ups }).await.follow_ups;
    run_in_turn(&rig, line.worker, &[line.rest[0], finished[0]]).await;
}

pub async fn a_paused_first_holds_its_line_up(rig: Rig) {
    let paused = rig.submit(task("paused").ordered("k", OnFailure::Block)).await;
    let second = rig.submit(task("a").ordered("k", OnFailure::Block)).await;
    rig.change_type("paused", r#"{"paused":true}"#).await;
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
    rig.change_type("paused", r#"{"paused":false}"#).await;
    run_in_turn(&rig, worker, &[paused, second]).await;
}

/// Claims, checks and ends tasks of many lines until all are done.
async fn work(rig: Rig, turns: Arc<Mutex<HashMap<String, (bool, u64)>>>, left: Arc<std::sync::atomic::AtomicUsize>) {
    use std::sync::atomic::Ordering;
    let worker = rig.worker().await;
    let mut pick = 1_u64;
    while left.load(Ordering::SeqCst) > 0 {
        for claimed in rig.claim_up_to(worker, 3).await {
            let key = claimed.spec.flow_key.as_ref().expect("a key").key().to_string();
            let number: u64 = claimed.spec.parameters.as_str().parse().expect("a number");
            pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number | 1);
            let released = pick >> 62 == 0;
            {
                let mut turns = turns.lock().expect("no test panics here");
                let (busy, expected) = turns.entry(key.clone()).or_default();
                assert!(!*busy, "two of one line run");
                assert_eq!(number, *expected, "out of order");
                *busy = true;
            }
            tokio::task::yield_now().await;
            {
                let mut turns = turns.lock().expect("no test panics here");
                turns.insert(key, (false, number + u64::from(!released)));
            }
            if released {
                rig.finished(worker, &claimed, Outcome::Released).await;
            } else {
                left.fetch_sub(1, Ordering::SeqCst);
                rig.finished(worker, &claimed, completed()).await;
            }
        }
        tokio::task::yield_now().await;
    }
}

pub async fn no_line_is_in_flight_twice_under_concurrent_claims(rig: Rig) {
    let (keys, each) = (8, 10);
    for number in 0..each {
        let batch = (0..keys)
            .map(|key| task("a").parameters(&number.to_string()).ordered(&format!("k{key}"), OnFailure::Block));
        rig.submit_all(batch).await;
    }
    let turns = Arc::new(Mutex::new(HashMap::new()));
    let left = Arc::new(std::sync::atomic::AtomicUsize::new(keys * each));
    let workers: Vec<_> =
        (0..6).map(|_| tokio::spawn(work(rig.clone(), Arc::clone(&turns), Arc::clone(&left)))).collect();
    for worker in workers {
        crate::rig::soon(worker).await.expect("no panic");
    }
}

pub async fn a_line_stands_as_it_stood_after_a_restart(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(line.worker).await;
    rig.finished(line.worker, &line.first, failed()).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(line.worker).await;
    due_after(&rig, 10).await;
    let Some(rig) = rig.reopen().await else { return };
    run_in_turn(&rig, line.worker, &[line.first.id, line.rest[0], line.rest[1]]).await;
}

pub async fn a_step_to_the_back_survives_a_restart(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Skip).await;
    rig.finished(line.worker, &line.first, failed()).await;
    rig.advance(seconds(1));
    let late = rig.submit(task("a").ordered("k", OnFailure::Skip)).await;
    let Some(rig) = rig.reopen().await else { return };
    let second = next(&rig, line.worker, line.rest[0]).await;
    due_after(&rig, 10).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(line.worker).await;
    rig.finished(line.worker, &second, completed()).await;
    run_in_turn(&rig, line.worker, &[line.rest[1], line.first.id, late]).await;
}

pub async fn a_place_at_the_back_survives_a_restart(rig: Rig) {
    let line = line(&rig, 3, OnFailure::Block).await;
    rig.finished(line.worker, &line.first, failed_for_good()).await;
    rig.requeue(again(line.first.id)).await.expect("it is a dead letter");
    rig.amend(line.rest[0], Amendment { priority: Some(Priority::LOW), ..Amendment::default() })
        .await
        .expect("it waits");
    let Some(rig) = rig.reopen().await else { return };
    run_in_turn(&rig, line.worker, &[line.rest[0], line.rest[1], line.first.id]).await;
}

pub async fn a_cancelled_task_keeps_the_turn_over_a_restart(rig: Rig) {
    let line = line(&rig, 2, OnFailure::Block).await;
    rig.cancel(line.first.id).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    let other = rig.worker().await;
    rig.claim_nothing(other).await;
    assert_eq!(rig.finish(line.worker, &line.first, completed()).await, Err(LeaseError::Lost));
    run_in_turn(&rig, other, &line.rest).await;
}
