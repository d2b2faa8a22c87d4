//! What survives a restart: everything that was acknowledged. A store that keeps nothing
//! says so in its capabilities and has nothing to show here.

use std::collections::BTreeMap;

use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{LeaseError, ProgressReport, StepReport};
use windlass_core::task::{Progress, Task};
use windlass_core::time::Timestamp;

use super::{events, reading};
use crate::fixtures::{able, completed, completed_with, failed, failed_for_good, json, task};
use crate::rig::{LEASE, Rig, seconds};

/// Every task with all its attempts.
async fn tasks(rig: &Rig) -> BTreeMap<TaskId, Task> {
    let mut all = BTreeMap::new();
    for id in rig.ids(&TaskFilter::default()).await {
        all.insert(id, rig.task(id).await);
    }
    all
}

pub async fn everything_is_equal_after_a_restart(rig: Rig) {
    events::busy(&rig).await;
    rig.submit_all((0..5).map(|n| task("more").delay(seconds(n * 100)).tag("n", &n.to_string()))).await;
    let before = tasks(&rig).await;
    let (feed, _) = rig.feed(None, 100).await;
    let stats = rig.store.stats().await.expect("stats");
    let Some(rig) = rig.reopen().await else { return };
    let mut after = tasks(&rig).await;
    for (id, task) in &mut after {
        // A restart may give running attempts a fresh lease, never a shorter one.
        if let Some(was) = before.get(id).and_then(|before| before.state.lease_expires_at) {
            assert!(task.state.lease_expires_at >= Some(was));
            task.state.lease_expires_at = Some(was);
        }
    }
    assert_eq!(after, before);
    assert_eq!(rig.feed(None, 100).await.0, feed);
    let again = rig.store.stats().await.expect("stats");
    assert_eq!((again.by_status, again.dead_letters), (stats.by_status, stats.dead_letters));
    reading::assert_stats(&rig).await;
    events::assert_events(&rig).await;
}

pub async fn leases_and_tokens_live_on(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.status(claimed.id).await, Status::Executing);
    assert_eq!(rig.worker_state(worker).await.expect("known").current_tasks, vec![claimed.id]);
    assert_eq!(rig.beat(worker).await.lost, Vec::<TaskId>::new());
    rig.finished(worker, &claimed, completed_with("1")).await;
    let Some(rig) = rig.reopen().await else { return };
    assert!(rig.finish(worker, &claimed, completed_with("1")).await.expect("the same result").repeated);
    assert_eq!(rig.finish(worker, &claimed, completed_with("2")).await, Err(LeaseError::Lost));
}

pub async fn a_task_that_cancelled_itself_is_nobodys_after_a_restart(rig: Rig) {
    rig.submit_all([task("a"), task("a")]).await;
    let worker = rig.worker().await;
    // Both in one claim, which stays open for the other.
    let claimed = rig.claim_up_to(worker, 2).await;
    rig.finished(worker, &claimed[0], windlass_core::store::Outcome::Cancelled { note: None }).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.beat(worker).await.cancel, Vec::<TaskId>::new(), "the worker knows already");
    assert_eq!(rig.worker_state(worker).await.expect("known").current_tasks, vec![claimed[1].id]);
}

pub async fn nothing_lapses_for_one_lease_after_a_start(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").timeout(seconds(600))).await;
    let (_, lost) = rig.started(task("b")).await;
    rig.advance(seconds(3600));
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!((rig.lapse().await, rig.time_out().await), (0, 0), "Windlass was away, not the workers");
    rig.advance(LEASE - seconds(1));
    assert_eq!((rig.lapse().await, rig.time_out().await), (0, 0));
    rig.finished(worker, &claimed, completed()).await;
    rig.advance(seconds(2));
    assert_eq!(rig.lapse().await + rig.time_out().await, 1);
    assert_eq!(rig.status(lost.id).await, Status::Scheduled);
}

pub async fn a_repeated_failure_is_known_after_a_restart(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed()).await;
    let Some(rig) = rig.reopen().await else { return };
    assert!(rig.finish(worker, &claimed, failed()).await.expect("the same result").repeated);
    assert_eq!(rig.state(claimed.id).await.retries, 1);
}

pub async fn keys_and_claims_are_never_given_twice(rig: Rig) {
    let mut ids = rig.submit_all((0..5).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let mut claims: Vec<_> = rig.claim_up_to(worker, 3).await.iter().map(|task| task.token.claim()).collect();
    let (mut rig, fresh) = (rig, 4);
    for _ in 0..3 {
        let Some(next) = rig.reopen().await else { return };
        rig = next;
        ids.extend(rig.submit_all((0..fresh).map(|_| task("a"))).await);
        claims.extend(rig.claim_up_to(worker, 2).await.iter().map(|task| task.token.claim()));
    }
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    assert!(claims.windows(2).all(|pair| pair[0] < pair[1]), "claim numbers only grow: {claims:?}");
}

pub async fn the_order_of_claims_is_the_same(rig: Rig) {
    let mut expected = Vec::new();
    for n in 0..30_u64 {
        let level = crate::fixtures::priority(n * 7 % 10);
        let built = task(["a", "b"][(n % 2) as usize]).priority(level);
        expected.push((
            std::cmp::Reverse(level),
            rig.now(),
            n,
            rig.submit(if n % 3 == 0 { built.requires(&["gpu"]) } else { built }).await,
        ));
        rig.advance(seconds(1));
    }
    expected.sort_unstable_by_key(|(level, at, n, _)| (*level, *at, *n));
    let Some(rig) = rig.reopen().await else { return };
    let worker = rig.register(able(&["gpu"])).await;
    let claimed: Vec<_> = rig.claim_up_to(worker, 100).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, expected.into_iter().map(|(_, _, _, id)| id).collect::<Vec<_>>());
}

pub async fn times_are_kept(rig: Rig) {
    let due = rig.submit(task("a").delay(seconds(60))).await;
    let expiring = rig.submit(task("a").expires_at(rig.now() + seconds(30))).await;
    let (worker, crashed) = rig.started(task("z").queue("q").priority(Priority::CRITICAL)).await;
    let place = rig.state(crashed.id).await.ready_at;
    rig.advance(LEASE + seconds(1));
    rig.expire().await;
    rig.lapse().await;
    let (other, retried) = rig.started(task("y").queue("q").priority(Priority::CRITICAL)).await;
    rig.finished(other, &retried, failed()).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.status(expiring).await, Status::Failed);
    rig.advance(seconds(60));
    assert_eq!(rig.make_due().await, 3);
    assert_eq!(rig.status(due).await, Status::Queued);
    assert_eq!(rig.state(crashed.id).await.ready_at, place, "the old place of a crashed task survives");
    assert_eq!(rig.claim(worker).await.id, crashed.id);
}

pub async fn idempotency_keys_are_kept(rig: Rig) {
    let (worker, done) = rig.started(task("a").key("k").parameters("[1]")).await;
    rig.finished(worker, &done, completed()).await;
    let Some(rig) = rig.reopen().await else { return };
    let answer = rig.submitted(task("a").key("k").parameters("[1]")).await;
    assert_eq!((answer.id, answer.is_known(), answer.status), (done.id, true, Status::Completed));
    rig.try_submit(vec![task("a").key("k").parameters("[2]").build()]).await.expect_err("other parameters");
    rig.advance(seconds(25 * 3600));
    rig.prune().await;
    assert!(!rig.submitted(task("a").key("k")).await.is_known());
}

pub async fn settings_and_workers_are_kept(rig: Rig) {
    rig.change_queue("x", r#"{"paused":true,"depth":{"soft":1,"hard":1}}"#).await;
    rig.change_queue("gone", r#"{"paused":true}"#).await;
    rig.change_type("mail", r#"{"max_retries":9,"retry":{"base_delay":3},"timeout_seconds":1.5}"#).await;
    rig.store.clear_queue(crate::fixtures::queue("gone")).await.expect("it has settings");
    let worker = rig.register(able(&["gpu"])).await;
    rig.submit(task("a").queue("y")).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, completed()).await;
    let drained = rig.worker().await;
    rig.store.drain_worker(drained).await.expect("known");
    rig.submit(task("a").queue("x")).await;
    let (settings, profile) = (rig.store.settings(), rig.worker_state(worker).await.expect("known").profile);
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.store.settings(), settings);
    let known = rig.worker_state(worker).await.expect("known");
    assert_eq!(known.profile, profile);
    rig.claim_nothing(worker).await;
    rig.claim_nothing(drained).await;
    assert!(rig.beat(drained).await.should_drain, "a drained worker stays drained");
    rig.try_submit(vec![task("a").queue("x").build()]).await.expect_err("the bound holds, and what waits is counted");
}

pub async fn steps_and_progress_are_kept(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let progress = Progress {
        percent: 40.0,
        message: Some("x".into()),
        step: None,
        steps: None,
        metadata: None,
        at: Timestamp::EPOCH,
    };
    let report = ProgressReport { task: claimed.id, token: claimed.token, progress };
    rig.store.record_progress(worker, vec![report]).await.expect("taken")[0].expect("live");
    let step = StepReport { task: claimed.id, token: claimed.token, name: "charge".into(), result: json("[7]") };
    rig.store.record_steps(worker, vec![step]).await.expect("taken")[0].expect("live");
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.state(claimed.id).await.progress.map(|progress| progress.percent), Some(40.0));
    rig.finished(worker, &claimed, failed()).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.advance(seconds(10));
    rig.make_due().await;
    assert_eq!(rig.claim(worker).await.steps.get("charge"), Some(&json("[7]")));
}

pub async fn a_revoked_lease_is_still_told(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.cancel(claimed.id).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.status(claimed.id).await, Status::Cancelled);
    assert_eq!(rig.beat(worker).await.cancel, vec![claimed.id]);
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
}

pub async fn what_was_deleted_stays_deleted(rig: Rig) {
    let (worker, done) = rig.started(task("a")).await;
    rig.finished(worker, &done, completed()).await;
    let (worker, dead) = rig.started(task("a")).await;
    rig.finished(worker, &dead, failed_for_good()).await;
    rig.advance(seconds(8 * 24 * 3600));
    rig.prune().await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.find(done.id).await, None);
    assert_eq!(rig.ids(&TaskFilter::default()).await, vec![dead.id]);
    reading::assert_stats(&rig).await;
}

pub async fn a_closed_store_answers_with_an_error(rig: Rig) {
    rig.submit(task("a")).await;
    rig.store.close().await;
    rig.try_submit(vec![task("a").build()]).await.expect_err("later calls fail");
}
