//! Idempotency keys.

use windlass_core::filter::TaskFilter;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::SubmitError;

use crate::fixtures::{completed, failed_for_good, task};
use crate::rig::{Rig, seconds};

const HOUR: u64 = 3600;

pub async fn the_same_key_is_the_same_task(rig: Rig) {
    let first = rig.submitted(task("a").key("k").parameters(r#"{"n":1}"#)).await;
    assert!(!first.is_known());
    rig.advance(seconds(5));
    let again = rig.submitted(task("a").key("k").parameters(r#"{"n":1}"#)).await;
    assert_eq!((again.id, again.is_known(), again.status), (first.id, true, Status::Queued));
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 1);
    assert_eq!(rig.kinds(first.id).await, ["submitted"], "nothing changed");
    let worker = rig.worker().await;
    rig.claim(worker).await;
    assert_eq!(rig.submitted(task("a").key("k").parameters(r#"{"n":1}"#)).await.status, Status::Executing);
}

pub async fn only_type_and_parameters_are_compared(rig: Rig) {
    let first = rig.submit(task("a").key("k").parameters(r#"{"a":1,"b":[1,2]}"#)).await;
    let same = [
        task("a").key("k").parameters(r#"{ "b": [1, 2], "a": 1 }"#),
        task("a").key("k").parameters(r#"{"a":1,"b":[1,2]}"#).delay(seconds(50)),
        task("a").key("k").parameters(r#"{"a":1,"b":[1,2]}"#).priority(Priority::HIGH).max_retries(0).tag("x", "y"),
    ];
    for task in same {
        let answer = rig.submitted(task).await;
        assert_eq!((answer.id, answer.is_known()), (first, true));
    }
    let other = [
        task("a").key("k").parameters(r#"{"a":2,"b":[1,2]}"#),
        task("a").key("k").parameters(r#"{"a":1,"b":[2,1]}"#),
        task("b").key("k").parameters(r#"{"a":1,"b":[1,2]}"#),
    ];
    for task in other {
        let refused = rig.try_submit(vec![task.build()]).await;
        assert_eq!(refused, Err(SubmitError::IdempotencyKeyReused { index: 0, existing: Some(first) }));
    }
    assert_eq!(rig.ids(&TaskFilter::default()).await, vec![first]);
}

pub async fn keys_are_per_tenant_and_queue(rig: Rig) {
    let ids = [
        rig.submit(task("a").key("k")).await,
        rig.submit(task("a").key("k").queue("x")).await,
        rig.submit(task("a").key("k").tenant("acme")).await,
        rig.submit(task("a").key("k").tenant("other")).await,
        rig.submit(task("a").key("k2")).await,
    ];
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 5);
    assert_eq!(rig.submit(task("a").key("k").tenant("acme")).await, ids[2]);
}

pub async fn keys_inside_one_batch_count_too(rig: Rig) {
    let batch = vec![task("a").key("k").build(), task("b").build(), task("a").key("k").build()];
    let answers = rig.try_submit(batch).await.expect("taken");
    assert_eq!(answers[2].id, answers[0].id);
    assert_eq!((answers[0].is_known(), answers[2].is_known()), (false, true));
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 2);
    let batch = vec![task("a").key("n").parameters("[1]").build(), task("a").key("n").parameters("[2]").build()];
    let refused = rig.try_submit(batch).await;
    assert!(matches!(refused, Err(SubmitError::IdempotencyKeyReused { index: 1, .. })), "{refused:?}");
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 2, "none of it was stored");
    assert!(!rig.submitted(task("a").key("n").parameters("[2]")).await.is_known());
}

pub async fn follow_ups_respect_keys(rig: Rig) {
    let known = rig.submit(task("b").queue("next").key("k")).await;
    let (worker, claimed) = rig.started(task("a").priority(Priority::HIGH)).await;
    let follow_ups = vec![task("b").queue("next").key("k").build(), task("b").queue("next").key("n").build()];
    let outcome = windlass_core::store::Outcome::Completed { result: None, follow_ups };
    let finished = rig.finished(worker, &claimed, outcome).await;
    assert_eq!(finished.follow_ups[0], known, "a known key is the task that has it");
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 3);
    assert_eq!(rig.submit(task("b").queue("next").key("n")).await, finished.follow_ups[1]);
}

pub async fn concurrent_submits_with_one_key_make_one_task(rig: Rig) {
    let mut calls = Vec::new();
    for _ in 0..20 {
        let rig = rig.clone();
        calls.push(tokio::spawn(async move { rig.submitted(task("a").key("k")).await }));
    }
    let mut ids = std::collections::BTreeSet::new();
    let mut fresh = 0;
    for call in calls {
        let answer = call.await.expect("no call panics");
        ids.insert(answer.id);
        fresh += usize::from(!answer.is_known());
    }
    assert_eq!((ids.len(), fresh), (1, 1));
}

pub async fn a_key_outlives_the_end_of_its_task_for_a_day(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").key("k")).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.advance(seconds(23 * HOUR));
    rig.prune().await;
    let answer = rig.submitted(task("a").key("k")).await;
    assert_eq!((answer.id, answer.is_known(), answer.status), (claimed.id, true, Status::Completed));
    rig.advance(seconds(2 * HOUR));
    rig.prune().await;
    let answer = rig.submitted(task("a").key("k").parameters("[9]")).await;
    assert!(!answer.is_known(), "after its window the key is free for any task");
    assert_ne!(answer.id, claimed.id);
    assert!(rig.find(claimed.id).await.is_some(), "the task itself is kept longer");
}

pub async fn a_key_is_kept_while_its_task_lives(rig: Rig) {
    let id = rig.submit(task("a").key("k")).await;
    rig.advance(seconds(100 * HOUR));
    rig.prune().await;
    assert_eq!(rig.submit(task("a").key("k")).await, id);
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.advance(seconds(25 * HOUR));
    rig.prune().await;
    assert!(!rig.submitted(task("a").key("k")).await.is_known(), "it ended a day ago");
}

pub async fn a_dead_letter_has_ended_for_its_key(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").key("k")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    assert_eq!(rig.submitted(task("a").key("k")).await.id, claimed.id);
    rig.advance(seconds(25 * HOUR));
    rig.prune().await;
    assert!(!rig.submitted(task("a").key("k")).await.is_known());
}

pub async fn a_key_outlives_a_short_retention(rig: Rig) {
    rig.change_queue("default", r#"{"retention":{"completed_days":0}}"#).await;
    let (worker, claimed) = rig.started(task("a").key("k")).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.advance(seconds(HOUR));
    rig.prune().await;
    let answer = rig.submitted(task("a").key("k")).await;
    assert_eq!((answer.id, answer.is_known()), (claimed.id, true), "a client that retries must not run it twice");
}
