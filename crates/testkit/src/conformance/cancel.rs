//! Cancelling tasks.

use windlass_core::actor::Actor;
use windlass_core::status::Status;
use windlass_core::store::{Cancelled, ChangeError, LeaseError, ProgressReport, Renewal};
use windlass_core::task::Progress;
use windlass_core::time::Timestamp;

use crate::fixtures::{completed, failed, failed_for_good, task};
use crate::rig::{LEASE, Rig, seconds, soon};

pub async fn a_waiting_task_is_cancelled(rig: Rig) {
    let queued = rig.submit(task("a")).await;
    let scheduled = rig.submit(task("a").delay(seconds(60))).await;
    for id in [queued, scheduled] {
        assert_eq!(rig.cancel(id).await, Ok(Cancelled { was_executing: false }));
        let state = rig.state(id).await;
        assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Cancelled, 0, 0, 0));
        assert_eq!((state.ended_at, state.end_reason), (Some(rig.now()), None));
    }
    rig.advance(seconds(61));
    assert_eq!(rig.make_due().await, 0);
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
}

pub async fn a_task_between_attempts_is_cancelled(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed()).await;
    assert_eq!(rig.cancel(claimed.id).await, Ok(Cancelled { was_executing: false }));
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries), (Status::Cancelled, 1, 1));
}

pub async fn a_running_task_is_cancelled_at_once(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(1));
    assert_eq!(rig.cancel(claimed.id).await, Ok(Cancelled { was_executing: true }));
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Cancelled, 1, 0, 0));
    assert_eq!((state.ended_at, state.worker), (Some(rig.now()), Some(worker)));
    let stats = rig.store.stats().await.expect("stats");
    assert_eq!(stats.by_status[usize::from(Status::Executing.code())], 0);
}

pub async fn the_worker_is_told_by_heartbeat(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let other = rig.worker().await;
    rig.cancel(claimed.id).await.expect("cancelled");
    assert_eq!(rig.beat(worker).await.cancel, vec![claimed.id]);
    assert_eq!(
        rig.beat(worker).await.cancel,
        vec![claimed.id],
        "an answer can be lost, so it is told until it is acknowledged"
    );
    assert!(rig.beat(other).await.cancel.is_empty());
    let named = Renewal::Named(vec![(claimed.id, claimed.token)]);
    let beaten = rig.try_beat(worker, named).await.expect("known");
    assert_eq!(beaten.cancel, vec![claimed.id]);
    assert!(beaten.lost.is_empty() || beaten.lost == vec![claimed.id]);
}

pub async fn the_worker_is_told_by_its_next_claim(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.cancel(claimed.id).await.expect("cancelled");
    let answer = rig.try_claim(worker, 1).await.expect("answered");
    assert_eq!((answer.tasks.len(), answer.cancel), (0, vec![claimed.id]));
}

pub async fn a_waiting_claim_wakes_to_tell_it(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let waiting = rig.claim_waiting(worker);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    rig.cancel(claimed.id).await.expect("cancelled");
    let answer = soon(waiting).await.expect("no panic");
    assert_eq!((answer.tasks.len(), answer.cancel), (0, vec![claimed.id]));
}

pub async fn the_late_result_of_a_cancelled_task_is_refused(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.cancel(claimed.id).await.expect("cancelled");
    let before = rig.task(claimed.id).await;
    rig.advance(seconds(1));
    let progress =
        Progress { percent: 1.0, message: None, step: None, steps: None, metadata: None, at: Timestamp::EPOCH };
    let report = ProgressReport { task: claimed.id, token: claimed.token, progress };
    assert_eq!(rig.store.record_progress(worker, vec![report]).await.expect("answered"), vec![Err(LeaseError::Lost)]);
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
    let after = rig.task(claimed.id).await;
    assert_eq!(after.state.status, Status::Cancelled);
    assert_eq!(
        (after.state.ended_at, after.state.result, after.state.version),
        (before.state.ended_at, None, before.state.version)
    );
}

pub async fn a_refused_result_acknowledges_the_cancellation(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.cancel(claimed.id).await.expect("cancelled");
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
    assert!(rig.beat(worker).await.cancel.is_empty(), "the worker knows");
    assert!(rig.worker_state(worker).await.expect("known").current_tasks.is_empty());
}

pub async fn a_revoked_lease_ends_quietly(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.cancel(claimed.id).await.expect("cancelled");
    let before = rig.task(claimed.id).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.time_out().await;
    let after = rig.task(claimed.id).await;
    assert_eq!(after.state.status, Status::Cancelled, "ended stays ended");
    assert_eq!((after.state.crashes, after.state.version), (0, before.state.version));
    assert!(rig.beat(worker).await.cancel.is_empty(), "a lease that ended needs no word");
}

pub async fn what_ended_is_not_cancelled(rig: Rig) {
    let (worker, done) = rig.started(task("a")).await;
    rig.finished(worker, &done, completed()).await;
    let (worker, dead) = rig.started(task("a")).await;
    rig.finished(worker, &dead, failed_for_good()).await;
    let cancelled = rig.submit(task("a")).await;
    rig.cancel(cancelled).await.expect("cancelled");
    let (worker, failed) = rig.started(task("a").no_dead_letter()).await;
    rig.finished(worker, &failed, failed_for_good()).await;
    for (id, status) in [
        (done.id, Status::Completed),
        (dead.id, Status::DeadLetter),
        (cancelled, Status::Cancelled),
        (failed.id, Status::Failed),
    ] {
        let before = rig.task(id).await;
        assert_eq!(rig.cancel(id).await, Err(ChangeError::WrongStatus(status)));
        assert_eq!(rig.task(id).await, before);
    }
}

pub async fn many_cancellations_are_answered_one_by_one(rig: Rig) {
    let ids = rig.submit_all([task("a"), task("a")]).await;
    rig.cancel(ids[1]).await.expect("cancelled");
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    let answers = rig.store.cancel(vec![made_up, ids[0], ids[1]], Actor::Api).await.expect("answered");
    assert_eq!(
        answers,
        vec![
            Err(ChangeError::UnknownTask),
            Ok(Cancelled { was_executing: false }),
            Err(ChangeError::WrongStatus(Status::Cancelled))
        ]
    );
}

pub async fn a_result_and_a_cancellation_have_one_winner(rig: Rig) {
    for _ in 0..20 {
        let (worker, claimed) = rig.started(task("a").queue("race")).await;
        let (finisher, canceller, task) = (rig.clone(), rig.clone(), claimed.clone());
        let result = tokio::spawn(async move { finisher.finish(worker, &task, completed()).await });
        let id = claimed.id;
        let cancel = tokio::spawn(async move { canceller.cancel(id).await });
        let (result, cancel) = (result.await.expect("no panic"), cancel.await.expect("no panic"));
        let expected = if result.is_ok() { Status::Completed } else { Status::Cancelled };
        assert_ne!(result.is_ok(), cancel.is_ok(), "exactly one wins");
        assert_eq!(rig.status(id).await, expected);
    }
}
