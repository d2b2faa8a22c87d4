//! Unique keys: what counts as the same work.

use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::keys::{HELD_WHILE, OnConflict};
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, ChangeError, KnownBy, Outcome, Requeue, SubmitError};

use crate::fixtures::{TaskBuilder, able, again, completed, failed, failed_for_good, handling, json, task};
use crate::rig::{LEASE, Rig, seconds};

fn one(on_conflict: OnConflict) -> TaskBuilder {
    task("a").unique(on_conflict)
}

/// Whether a submit meets this task.
async fn assert_held(rig: &Rig, id: TaskId) {
    let answer = rig.submitted(one(OnConflict::Keep)).await;
    assert_eq!((answer.id, answer.known_by), (id, Some(KnownBy::UniqueKept)), "the key is held");
}

/// Whether the key is there for another task; takes it.
async fn assert_free(rig: &Rig) {
    assert_eq!(rig.submitted(one(OnConflict::Error)).await.known_by, None, "the key is free");
}

fn conflict(existing: TaskId, status: Status) -> SubmitError {
    SubmitError::UniqueConflict { index: 0, existing: Some(existing), status }
}

pub async fn a_submit_that_meets_its_like_is_answered_with_it(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep).priority(Priority::LOW)).await;
    let before = rig.task(id).await;
    rig.advance(seconds(1));
    let answer = rig.submitted(one(OnConflict::Keep).priority(Priority::HIGH)).await;
    assert_eq!((answer.id, answer.status, answer.known_by), (id, Status::Queued, Some(KnownBy::UniqueKept)));
    assert_eq!(rig.task(id).await, before, "nothing changed");
    assert_eq!(rig.ids(&TaskFilter::default()).await, [id]);
}

pub async fn other_parameters_are_other_work(rig: Rig) {
    let id = rig.submit(task("a").parameters("[1]").unique(OnConflict::Keep)).await;
    assert_ne!(rig.submit(task("a").parameters("[2]").unique(OnConflict::Keep)).await, id);
    assert_ne!(rig.submit(task("b").parameters("[1]").unique(OnConflict::Keep)).await, id);
    assert_ne!(rig.submit(task("a").parameters("[1]")).await, id, "one that does not ask meets nobody");
}

pub async fn keys_are_per_queue_and_tenant(rig: Rig) {
    let id = rig.submit(one(OnConflict::Error)).await;
    for other in [task("a").queue("other"), task("a").tenant("t")] {
        let answer = rig.submitted(other.unique(OnConflict::Error)).await;
        assert_eq!(answer.known_by, None);
        assert_ne!(answer.id, id);
    }
}

pub async fn a_conflict_is_refused_if_asked_for(rig: Rig) {
    let id = rig.submit(one(OnConflict::Error)).await;
    let batch = vec![task("b").build(), one(OnConflict::Error).build()];
    let refused = rig.try_submit(batch).await;
    assert_eq!(refused, Err(SubmitError::UniqueConflict { index: 1, existing: Some(id), status: Status::Queued }));
    assert_eq!(rig.ids(&TaskFilter::default()).await, [id], "a refused batch stores nothing");
}

pub async fn a_waiting_task_is_replaced(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep).priority(Priority::LOW).tag("old", "1")).await;
    let created_at = rig.state(id).await.created_at;
    rig.advance(seconds(5));
    let new = one(OnConflict::Replace)
        .priority(Priority::HIGH)
        .tag("new", "1")
        .max_retries(7)
        .timeout(seconds(77))
        .expires_at(rig.now() + seconds(500));
    let answer = rig.submitted(new).await;
    assert_eq!((answer.id, answer.known_by), (id, Some(KnownBy::UniqueReplaced)));
    let now = rig.task(id).await;
    assert_eq!((now.state.created_at, now.state.status), (created_at, Status::Queued));
    assert_eq!((now.spec.priority, now.spec.tags.len()), (Priority::HIGH, 1));
    assert_eq!((now.spec.policy.max_retries, now.spec.policy.timeout), (7, seconds(77)));
    assert_eq!(now.spec.expires_at, Some(rig.now() + seconds(500)));
    assert_eq!(rig.kinds(id).await, ["submitted", "replaced"]);
    let claimed = rig.claim(rig.worker().await).await;
    assert_eq!((claimed.id, claimed.timeout), (id, seconds(77)));
    rig.claim_nothing(rig.worker().await).await;
}

pub async fn a_replaced_task_expires_by_its_new_time(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep).expires_at(rig.now() + seconds(10))).await;
    rig.submit(one(OnConflict::Replace).expires_at(rig.now() + seconds(100))).await;
    rig.advance(seconds(50));
    rig.expire().await;
    assert_eq!(rig.status(id).await, Status::Queued);
    rig.advance(seconds(51));
    rig.expire().await;
    assert_eq!(rig.status(id).await, Status::Failed);
}

pub async fn a_replaced_task_takes_on_what_it_requires(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep)).await;
    rig.submit(one(OnConflict::Replace).requires(&["gpu"])).await;
    rig.claim_nothing(rig.worker().await).await;
    assert_eq!(rig.claim(rig.register(able(&["gpu"])).await).await.id, id);
}

pub async fn a_replaced_task_takes_on_its_time(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep)).await;
    rig.submit(one(OnConflict::Replace).delay(seconds(60))).await;
    assert_eq!((rig.status(id).await, rig.state(id).await.run_at), (Status::Scheduled, rig.now() + seconds(60)));
    rig.submit(one(OnConflict::Replace)).await;
    rig.make_due().await;
    assert_eq!(rig.claim(rig.worker().await).await.id, id);
}

pub async fn a_waiting_task_is_rescheduled(rig: Rig) {
    let worker = rig.worker().await;
    let id = rig.submit(one(OnConflict::Reschedule).delay(seconds(10))).await;
    for _ in 0..3 {
        rig.advance(seconds(8));
        let answer = rig.submitted(one(OnConflict::Reschedule).delay(seconds(10)).priority(Priority::HIGH)).await;
        assert_eq!((answer.id, answer.known_by), (id, Some(KnownBy::UniqueRescheduled)));
        rig.make_due().await;
        rig.claim_nothing(worker).await;
    }
    assert_eq!(rig.state(id).await.run_at, rig.now() + seconds(10), "a debounce");
    assert_eq!(rig.task(id).await.spec.priority, Priority::MEDIUM, "only its time changes");
    rig.advance(seconds(10));
    rig.make_due().await;
    assert_eq!(rig.claim(worker).await.id, id);
}

pub async fn a_queued_task_is_rescheduled_too(rig: Rig) {
    let id = rig.submit(one(OnConflict::Reschedule)).await;
    rig.submit(one(OnConflict::Reschedule).delay(seconds(10))).await;
    assert_eq!(rig.status(id).await, Status::Scheduled);
    rig.claim_nothing(rig.worker().await).await;
}

pub async fn a_running_task_is_neither_replaced_nor_rescheduled(rig: Rig) {
    let (_, claimed) = rig.started(one(OnConflict::Keep)).await;
    let before = rig.task(claimed.id).await;
    for on_conflict in [OnConflict::Replace, OnConflict::Reschedule, OnConflict::Error] {
        let refused = rig.try_submit(vec![one(on_conflict).build()]).await;
        assert_eq!(refused, Err(conflict(claimed.id, Status::Executing)));
    }
    assert_held(&rig, claimed.id).await;
    assert_eq!(rig.task(claimed.id).await, before);
}

pub async fn the_key_is_kept_from_submit_to_claim(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep).delay(seconds(10))).await;
    assert_held(&rig, id).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    assert_held(&rig, id).await;
    rig.claim(rig.worker().await).await;
    assert_held(&rig, id).await;
}

pub async fn a_success_frees_the_key(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, completed()).await;
    assert_free(&rig).await;
}

pub async fn a_retry_keeps_the_key(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed()).await;
    assert_held(&rig, claimed.id).await;
}

pub async fn a_failure_for_good_frees_the_key(rig: Rig) {
    for quietly in [false, true] {
        let built = one(OnConflict::Keep).queue(if quietly { "quiet" } else { "dead" });
        let built = if quietly { built.no_dead_letter() } else { built };
        let built = built.unique(OnConflict::Error);
        let (worker, claimed) = rig.started(built.clone()).await;
        rig.finished(worker, &claimed, failed_for_good()).await;
        assert_eq!(rig.submitted(built).await.known_by, None);
        rig.claim(worker).await;
    }
}

pub async fn release_and_snooze_keep_the_key(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, Outcome::Released).await;
    assert_held(&rig, claimed.id).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, Outcome::Snoozed(seconds(60))).await;
    assert_held(&rig, claimed.id).await;
}

pub async fn a_lapsed_lease_keeps_the_key_and_a_poison_pill_frees_it(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep).max_crashes(2)).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_held(&rig, claimed.id).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim(worker).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(rig.status(claimed.id).await, Status::DeadLetter);
    assert_free(&rig).await;
}

pub async fn a_timeout_keeps_the_key_while_a_retry_is_left(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep).timeout(seconds(5)).max_retries(1)).await;
    rig.advance(seconds(6));
    rig.time_out().await;
    assert_held(&rig, claimed.id).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim(worker).await;
    rig.advance(seconds(20));
    rig.time_out().await;
    assert_eq!(rig.status(claimed.id).await, Status::DeadLetter);
    assert_free(&rig).await;
}

pub async fn a_cancellation_frees_the_key_at_once(rig: Rig) {
    let waiting = rig.submit(one(OnConflict::Keep)).await;
    rig.cancel(waiting).await.expect("it waits");
    let (_, claimed) = rig.started(one(OnConflict::Error)).await;
    rig.cancel(claimed.id).await.expect("it runs");
    assert_free(&rig).await;
}

pub async fn expiry_and_burial_free_the_key(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep).expires_at(rig.now() + seconds(5))).await;
    rig.advance(seconds(6));
    rig.expire().await;
    assert_eq!(rig.status(id).await, Status::Failed);
    let id = rig.submit(one(OnConflict::Error)).await;
    rig.bury(id, "bad").await.expect("it waits");
    assert_free(&rig).await;
}

pub async fn a_replay_takes_the_key_again(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.requeue(again(claimed.id)).await.expect("the key is free");
    assert_held(&rig, claimed.id).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, completed()).await;
    assert_free(&rig).await;
}

pub async fn a_replay_that_meets_its_like_is_refused(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let other = rig.submit(one(OnConflict::Error)).await;
    let before = rig.task(claimed.id).await;
    for wish in [again(claimed.id), Requeue { delay: seconds(5), ..again(claimed.id) }] {
        assert_eq!(rig.requeue(wish).await, Err(ChangeError::UniqueConflict(other)));
    }
    assert_eq!(rig.task(claimed.id).await, before);
    rig.cancel(other).await.expect("it waits");
    rig.requeue(again(claimed.id)).await.expect("the key is free again");
}

pub async fn a_paced_replay_takes_the_key_at_once(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.requeue(Requeue { delay: seconds(60), ..again(claimed.id) }).await.expect("the key is free");
    assert_held(&rig, claimed.id).await;
}

pub async fn a_discarded_task_leaves_the_key_alone(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let other = rig.submit(one(OnConflict::Error)).await;
    rig.discard(claimed.id).await.expect("it is a dead letter");
    assert_held(&rig, other).await;
}

pub async fn an_amended_task_keeps_the_key(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep)).await;
    let run_at = Some(rig.now() + seconds(60));
    rig.amend(id, Amendment { priority: Some(Priority::HIGH), run_at, tags: None }).await.expect("it waits");
    assert_held(&rig, id).await;
}

pub async fn edited_parameters_change_no_key(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let wish = Requeue { parameters: Some(json("[1]")), ..again(claimed.id) };
    rig.requeue(wish).await.expect("the key is free");
    assert_held(&rig, claimed.id).await;
}

fn until_started(on_conflict: OnConflict) -> TaskBuilder {
    task("a").unique_while(on_conflict, &[Status::Scheduled, Status::Queued], None)
}

pub async fn a_key_is_held_only_in_the_statuses_asked_for(rig: Rig) {
    let first = rig.submit(until_started(OnConflict::Keep)).await;
    assert_eq!(rig.submit(until_started(OnConflict::Keep)).await, first);
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    let second = rig.submitted(until_started(OnConflict::Error)).await;
    assert_eq!(second.known_by, None, "the first has started");
    rig.finished(worker, &claimed, failed()).await;
    assert_eq!(rig.submit(until_started(OnConflict::Keep)).await, second.id, "a retry does not take it back");
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim_up_to(worker, 10).await;
    assert_eq!(rig.submitted(until_started(OnConflict::Error)).await.known_by, None);
}

pub async fn a_key_that_was_given_back_is_not_given_back_again(rig: Rig) {
    rig.submit(until_started(OnConflict::Keep)).await;
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    let second = rig.submit(until_started(OnConflict::Error)).await;
    let rig = rig.reopen().await.unwrap_or(rig);
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.submit(until_started(OnConflict::Keep)).await, second);
}

fn throttled(on_conflict: OnConflict) -> TaskBuilder {
    task("a").unique_while(on_conflict, &HELD_WHILE, Some(seconds(60)))
}

pub async fn a_throttled_key_outlives_its_task(rig: Rig) {
    let (worker, claimed) = rig.started(throttled(OnConflict::Keep)).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.prune().await;
    let answer = rig.submitted(throttled(OnConflict::Keep)).await;
    assert_eq!((answer.id, answer.status), (claimed.id, Status::Completed));
    let refused = rig.try_submit(vec![throttled(OnConflict::Error).build()]).await;
    assert_eq!(refused, Err(conflict(claimed.id, Status::Completed)));
    rig.advance(seconds(59));
    assert_eq!(rig.submit(throttled(OnConflict::Keep)).await, claimed.id);
    rig.advance(seconds(1));
    assert_eq!(rig.submitted(throttled(OnConflict::Keep)).await.known_by, None, "the minute is over");
}

pub async fn a_throttled_key_is_held_while_its_task_lives(rig: Rig) {
    let id = rig.submit(throttled(OnConflict::Keep)).await;
    rig.advance(seconds(3600));
    rig.prune().await;
    assert_eq!(rig.submit(throttled(OnConflict::Keep)).await, id);
}

pub async fn keys_inside_one_batch_count_too(rig: Rig) {
    let other = |on_conflict| task("a").parameters("[2]").priority(Priority::HIGH).unique(on_conflict);
    let batch = vec![one(OnConflict::Keep).build(), other(OnConflict::Keep).build(), one(OnConflict::Keep).build()];
    let answers = rig.try_submit(batch).await.expect("taken");
    assert_eq!((answers[2].id, answers[2].known_by), (answers[0].id, Some(KnownBy::UniqueKept)));
    assert_ne!(answers[1].id, answers[0].id);
    let new = task("a").parameters("[3]");
    let batch = vec![
        new.clone().unique(OnConflict::Replace).build(),
        new.clone().priority(Priority::CRITICAL).unique(OnConflict::Replace).build(),
    ];
    let answers = rig.try_submit(batch).await.expect("taken");
    assert_eq!((answers[1].id, answers[1].known_by), (answers[0].id, Some(KnownBy::UniqueReplaced)));
    assert_eq!(rig.task(answers[0].id).await.spec.priority, Priority::CRITICAL);
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 3);
}

pub async fn a_conflict_inside_one_batch_refuses_it_whole(rig: Rig) {
    let refused = rig.try_submit(vec![one(OnConflict::Error).build(), one(OnConflict::Error).build()]).await;
    let expected = SubmitError::UniqueConflict { index: 1, existing: None, status: Status::Queued };
    assert_eq!(refused, Err(expected));
    assert!(rig.ids(&TaskFilter::default()).await.is_empty());
    assert_free(&rig).await;
}

pub async fn a_follow_up_that_meets_its_like_is_never_refused(rig: Rig) {
    let standing = rig.submit(one(OnConflict::Keep).requires(&["nobody"])).await;
    for on_conflict in [OnConflict::Keep, OnConflict::Error, OnConflict::Replace] {
        let (worker, claimed) = rig.started(task("parent")).await;
        let next = task("a").requires(&["nobody"]).priority(Priority::HIGH).unique(on_conflict).build();
        let outcome = Outcome::Completed { result: None, follow_ups: vec![next] };
        assert_eq!(rig.finished(worker, &claimed, outcome).await.follow_ups, [standing]);
        let expected = if on_conflict == OnConflict::Replace { Priority::HIGH } else { Priority::MEDIUM };
        assert_eq!(rig.task(standing).await.spec.priority, expected);
    }
}

pub async fn a_follow_up_may_take_the_key_of_its_parent(rig: Rig) {
    let (worker, claimed) = rig.started(one(OnConflict::Keep)).await;
    let outcome = Outcome::Completed { result: None, follow_ups: vec![one(OnConflict::Error).build()] };
    let next = rig.finished(worker, &claimed, outcome).await.follow_ups;
    assert_ne!(next[0], claimed.id, "the parent has ended with the result");
    assert_held(&rig, next[0]).await;
}

pub async fn a_full_queue_answers_for_its_like(rig: Rig) {
    rig.change_queue("default", r#"{"depth":{"soft":1,"hard":1}}"#).await;
    let id = rig.submit(one(OnConflict::Keep)).await;
    assert_held(&rig, id).await;
}

pub async fn concurrent_submits_of_the_same_work_make_one_task(rig: Rig) {
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let rig = rig.clone();
            tokio::spawn(async move { rig.submit(one(OnConflict::Keep)).await })
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for call in calls {
        ids.insert(call.await.expect("no panic"));
    }
    assert_eq!(ids.len(), 1);
}

pub async fn keys_survive_a_restart(rig: Rig) {
    let throttled = task("a").queue("t").unique_while(OnConflict::Keep, &HELD_WHILE, Some(seconds(60)));
    let (worker, done) = rig.started(throttled).await;
    rig.finished(worker, &done, completed()).await;
    let id = rig.submit(one(OnConflict::Keep)).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_held(&rig, id).await;
    let again = task("a").queue("t").unique(OnConflict::Keep);
    assert_eq!(rig.submit(again.clone()).await, done.id);
    let worker = rig.register(handling(&["a"])).await;
    let claimed = rig.claim(worker).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_held(&rig, id).await;
    rig.finished(worker, &claimed, completed()).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_free(&rig).await;
    rig.advance(seconds(60));
    assert_ne!(rig.submit(again).await, done.id);
}

pub async fn a_replaced_task_survives_a_restart(rig: Rig) {
    let id = rig.submit(one(OnConflict::Keep)).await;
    rig.advance(seconds(1));
    rig.submit(one(OnConflict::Replace).max_retries(7).priority(Priority::HIGH).delay(seconds(60))).await;
    let before = rig.task(id).await;
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.task(id).await, before);
    rig.advance(seconds(60));
    rig.make_due().await;
    assert_eq!(rig.claim(rig.worker().await).await.id, id);
}

pub async fn a_replaced_task_joins_the_line_of_its_new_key(rig: Rig) {
    use windlass_core::keys::OnFailure;
    let holder = rig.submit(task("b").ordered("k", OnFailure::Block)).await;
    let id = rig.submit(one(OnConflict::Keep)).await;
    rig.submit(task("a").ordered("k", OnFailure::Block).unique(OnConflict::Replace)).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [holder], "it is held by its new key");
    rig.finished(worker, &claimed[0], completed()).await;
    assert_eq!(rig.claim(worker).await.id, id);
}

pub async fn a_replaced_task_holds_its_key_as_the_new_one_asks(rig: Rig) {
    rig.submit(one(OnConflict::Keep)).await;
    rig.submit(until_started(OnConflict::Replace)).await;
    rig.claim(rig.worker().await).await;
    assert_free(&rig).await;
}

pub async fn a_replaced_key_survives_a_restart(rig: Rig) {
    use windlass_core::keys::OnFailure;
    let holder = rig.submit(task("b").ordered("k", OnFailure::Block)).await;
    let id = rig.submit(task("a").at_most(1, "old").unique(OnConflict::Keep)).await;
    rig.submit(task("a").ordered("k", OnFailure::Block).unique(OnConflict::Replace)).await;
    rig.advance(seconds(1));
    let last = rig.submit(task("b").ordered("k", OnFailure::Block)).await;
    let Some(rig) = rig.reopen().await else { return };
    let worker = rig.worker().await;
    for expected in [holder, id, last] {
        let claimed = rig.claim_up_to(worker, 10).await;
        assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [expected]);
        rig.finished(worker, &claimed[0], completed()).await;
    }
}

pub async fn a_replaced_task_leaves_the_line_of_its_old_key(rig: Rig) {
    use windlass_core::keys::OnFailure;
    let id = rig.submit(task("a").requires(&["gpu"]).ordered("k", OnFailure::Block).unique(OnConflict::Keep)).await;
    let behind = rig.submit(task("b").ordered("k", OnFailure::Block)).await;
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
    rig.submit(task("a").unique(OnConflict::Replace)).await;
    let claimed: std::collections::BTreeSet<_> =
        rig.claim_up_to(worker, 10).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, [id, behind].into());
}

pub async fn a_submit_that_is_sent_again_changes_its_like_once(rig: Rig) {
    let worker = rig.worker().await;
    for on_conflict in [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule] {
        let id = rig.submit(one(OnConflict::Keep)).await;
        let key = format!("{on_conflict:?}");
        assert_eq!(rig.submitted(one(on_conflict).key(&key)).await.id, id);
        let claimed = rig.claim(worker).await;
        let repeated = rig.submitted(one(on_conflict).key(&key)).await;
        assert_eq!((repeated.id, repeated.known_by), (id, Some(KnownBy::IdempotencyKey)), "while it runs");
        rig.finished(worker, &claimed, completed()).await;
        let repeated = rig.submitted(one(on_conflict).key(&key)).await;
        assert_eq!((repeated.id, repeated.known_by), (id, Some(KnownBy::IdempotencyKey)), "when it is done");
    }
}
