//! Replays and wishes to run now.

use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{ChangeError, Requeue};

use crate::fixtures::{again, completed, failed, failed_for_good, json, task};
use crate::rig::{LEASE, Rig, seconds};

pub async fn a_dead_letter_runs_again(rig: Rig) {
    let (worker, first) = rig.started(task("a").max_retries(1)).await;
    rig.finished(worker, &first, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    rig.finished(worker, &second, failed()).await;
    let waiting = rig.submit(task("a")).await;
    rig.advance(seconds(5));

    rig.requeue(Requeue { only_dead: true, ..again(first.id) }).await.expect("it is a dead letter");
    let state = rig.state(first.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Queued, 2, 0, 0));
    assert_eq!(state.ready_at, rig.now(), "it joins at the back");
    assert_eq!((state.end_reason, state.ended_at), (None, None));
    assert!(!state.retrying);
    assert_eq!(state.failed_attempts.len(), 2, "its history is kept");
    assert_eq!(rig.claim(worker).await.id, waiting);
    let third = rig.claim(worker).await;
    assert_eq!((third.id, third.attempt), (first.id, 3));
    assert!(third.token.claim() > second.token.claim());
    rig.finished(worker, &third, failed()).await;
    assert_eq!(rig.status(first.id).await, Status::Scheduled, "it has its retries again");
}

pub async fn retries_used_up_can_be_kept(rig: Rig) {
    let (worker, first) = rig.started(task("a").max_retries(1)).await;
    rig.finished(worker, &first, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    rig.finished(worker, &second, failed()).await;
    rig.requeue(Requeue { reset_retries: false, ..again(first.id) }).await.expect("it is a dead letter");
    assert_eq!(rig.state(first.id).await.retries, 1);
    let third = rig.claim(worker).await;
    rig.finished(worker, &third, failed()).await;
    assert_eq!(rig.status(first.id).await, Status::DeadLetter, "no retry was left");
}

pub async fn a_poison_pill_starts_with_no_crashes(rig: Rig) {
    let (_, claimed) = rig.started(task("a").max_crashes(1)).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(rig.status(claimed.id).await, Status::DeadLetter);
    rig.requeue(again(claimed.id)).await.expect("it is a dead letter");
    assert_eq!(rig.state(claimed.id).await.crashes, 0);
}

pub async fn a_failed_task_runs_again_unless_only_dead_ones_are_meant(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").no_dead_letter()).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let refused = rig.requeue(Requeue { only_dead: true, ..again(claimed.id) }).await;
    assert_eq!(refused, Err(ChangeError::WrongStatus(Status::Failed)));
    rig.requeue(again(claimed.id)).await.expect("it failed");
    assert_eq!(rig.status(claimed.id).await, Status::Queued);
}

pub async fn a_scheduled_task_runs_now(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(500))).await;
    rig.advance(seconds(1));
    let refused = rig.requeue(Requeue { only_dead: true, ..again(id) }).await;
    assert_eq!(refused, Err(ChangeError::WrongStatus(Status::Scheduled)));
    rig.requeue(again(id)).await.expect("it waits for its time");
    let state = rig.state(id).await;
    assert_eq!((state.status, state.ready_at), (Status::Queued, rig.now()));
    rig.advance(seconds(500));
    assert_eq!(rig.make_due().await, 0, "its old time means nothing any more");
}

pub async fn a_retry_runs_now_and_keeps_its_retries(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed()).await;
    rig.requeue(Requeue { reset_retries: false, ..again(claimed.id) }).await.expect("it waits for its retry");
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries), (Status::Queued, 1, 1));
}

pub async fn edited_parameters_are_kept_beside_the_original(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").parameters(r#"{"size":1}"#)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let wish = Requeue {
        parameters: Some(json(r#"{"size":2}"#)),
        priority: Some(Priority::HIGH),
        note: Some("wrong size".into()),
        ..again(claimed.id)
    };
    rig.requeue(wish).await.expect("it is a dead letter");
    let edited = rig.task(claimed.id).await;
    assert_eq!((edited.spec.parameters, edited.spec.priority), (json(r#"{"size":2}"#), Priority::HIGH));
    assert_eq!(edited.state.original_parameters, Some(json(r#"{"size":1}"#)));
    let second = rig.claim(worker).await;
    assert_eq!(second.spec.parameters, json(r#"{"size":2}"#));
    rig.finished(worker, &second, failed_for_good()).await;
    rig.requeue(Requeue { parameters: Some(json("[3]")), ..again(claimed.id) }).await.expect("again");
    let edited = rig.task(claimed.id).await;
    assert_eq!(edited.spec.parameters, json("[3]"));
    assert_eq!(edited.state.original_parameters, Some(json(r#"{"size":1}"#)), "the first ones, not the last");
}

pub async fn a_new_priority_moves_it_to_its_lane(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").priority(Priority::LOW)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.submit(task("a")).await;
    rig.requeue(Requeue { priority: Some(Priority::CRITICAL), ..again(claimed.id) }).await.expect("again");
    assert_eq!(rig.claim(worker).await.id, claimed.id);
}

pub async fn what_is_done_or_under_way_does_not_run_again(rig: Rig) {
    let queued = rig.submit(task("a").queue("x")).await;
    assert_eq!(rig.requeue(again(queued)).await, Err(ChangeError::WrongStatus(Status::Queued)));
    rig.cancel(queued).await.expect("cancelled");
    assert_eq!(rig.requeue(again(queued)).await, Err(ChangeError::WrongStatus(Status::Cancelled)));
    let (worker, claimed) = rig.started(task("a")).await;
    assert_eq!(rig.requeue(again(claimed.id)).await, Err(ChangeError::WrongStatus(Status::Executing)));
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.requeue(again(claimed.id)).await, Err(ChangeError::WrongStatus(Status::Completed)));
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    assert_eq!(rig.requeue(again(made_up)).await, Err(ChangeError::UnknownTask));
}

pub async fn old_tokens_stay_worthless_after_a_replay(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.requeue(again(claimed.id)).await.expect("again");
    rig.claim(worker).await;
    let refused = rig.finish(worker, &claimed, completed()).await;
    assert_eq!(refused, Err(windlass_core::store::LeaseError::Lost));
    assert_eq!(rig.status(claimed.id).await, Status::Executing);
}
