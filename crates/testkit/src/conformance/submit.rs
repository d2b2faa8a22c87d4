//! Tasks in.

use std::collections::BTreeSet;

use windlass_core::filter::TaskFilter;
use windlass_core::limits;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{SubmitError, Waiting};

use crate::fixtures::{again, completed, failed, failed_for_good, profile, queue, task};
use crate::rig::{Rig, seconds};

pub async fn a_new_task_is_queued_now(rig: Rig) {
    let answer = rig.submitted(task("resize")).await;
    assert_eq!((answer.status, answer.is_known()), (Status::Queued, false));
    let state = rig.state(answer.id).await;
    assert_eq!(state.status, Status::Queued);
    assert_eq!((state.attempt, state.retries, state.crashes, state.version), (0, 0, 0, 1));
    assert_eq!((state.created_at, state.ready_at, state.run_at), (rig.now(), rig.now(), rig.now()));
    assert_eq!((state.started_at, state.ended_at, state.worker, state.lease_expires_at), (None, None, None, None));
    assert!(!state.retrying && state.progress.is_none() && state.result.is_none() && state.end_reason.is_none());
    assert_eq!(state.timeout, seconds(600));
}

pub async fn a_task_is_kept_as_it_was_given(rig: Rig) {
    let full = task("resize")
        .queue("images")
        .priority(Priority::HIGH)
        .requires(&["gpu", "disk"])
        .parameters(r#"{ "b" : 1.0,  "a": "größe \u0000 1e400" , "n": 123456789012345678901234567890 }"#)
        .key("k-1")
        .tenant("acme")
        .tag("customer", "42 {x} '\"")
        .expires_at(rig.now() + seconds(3600))
        .max_retries(7)
        .max_crashes(2)
        .timeout(seconds(77))
        .no_dead_letter()
        .retry(|retry| {
            retry.max_elapsed = Some(seconds(5000));
            retry.retryable_codes = vec!["again".into()];
            retry.non_retryable_codes = vec!["never".into()];
        })
        .trace_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .build();
    let id = rig.submit(full.clone()).await;
    assert_eq!(rig.task(id).await.spec, full.spec);
    let worker = rig
        .register(windlass_core::worker::WorkerProfile {
            queues: vec![queue("images")],
            ..crate::fixtures::able(&["disk", "gpu", "net"])
        })
        .await;
    let claimed = rig.claim(worker).await;
    assert_eq!(claimed.spec, full.spec);
    assert_eq!(claimed.spec.parameters.as_str(), full.spec.parameters.as_str(), "carried byte by byte");
}

pub async fn a_delayed_task_is_scheduled(rig: Rig) {
    let delayed = rig.submitted(task("a").delay(seconds(60))).await;
    let timed = rig.submitted(task("b").run_at(rig.now() + seconds(90))).await;
    for (answer, due) in [(delayed, 60), (timed, 90)] {
        assert_eq!(answer.status, Status::Scheduled);
        let state = rig.state(answer.id).await;
        assert_eq!(state.status, Status::Scheduled);
        assert_eq!((state.run_at, state.ready_at), (rig.now() + seconds(due), rig.now() + seconds(due)));
        assert!(!state.retrying, "it waits for its first attempt");
    }
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
}

pub async fn a_time_that_has_passed_means_now(rig: Rig) {
    rig.advance(seconds(100));
    let past = rig.submitted(task("a").run_at(rig.now() - seconds(50))).await;
    let zero = rig.submitted(task("a").delay(seconds(0))).await;
    assert_eq!((past.status, zero.status), (Status::Queued, Status::Queued));
    assert_eq!(rig.state(past.id).await.ready_at, rig.now(), "nobody gets ahead by naming an old time");
    let worker = rig.worker().await;
    assert_eq!(rig.claim_up_to(worker, 9).await.len(), 2);
}

pub async fn a_batch_is_stored_in_order(rig: Rig) {
    let ids = rig.submit_all((0..50).map(|_| task("a"))).await;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 50, "ids are unique");
    let worker = rig.worker().await;
    let claimed: Vec<_> = rig.claim_up_to(worker, 100).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, ids, "first in, first out inside a batch");
}

pub async fn an_empty_batch_is_answered_with_nothing(rig: Rig) {
    assert_eq!(rig.try_submit(Vec::new()).await, Ok(Vec::new()));
}

pub async fn a_refused_batch_stores_nothing(rig: Rig) {
    let first = rig.submit(task("a").key("taken").parameters(r#"{"n":1}"#)).await;
    let batch = vec![
        task("a").build(),
        task("a").key("fresh").build(),
        task("a").key("taken").parameters(r#"{"n":2}"#).build(),
        task("a").build(),
    ];
    let refused = rig.try_submit(batch).await;
    assert_eq!(refused, Err(SubmitError::IdempotencyKeyReused { index: 2, existing: Some(first) }));
    assert_eq!(rig.store.stats().await.unwrap().by_status[Status::Queued.code() as usize], 1);
    assert_eq!(rig.ids(&TaskFilter::default()).await, vec![first]);
    let answer = rig.submitted(task("a").key("fresh")).await;
    assert!(!answer.is_known(), "a key of a refused batch was not taken");
}

pub async fn a_batch_over_several_queues_follows_the_capability(rig: Rig) {
    let batch = vec![task("a").queue("x").build(), task("a").queue("x").build(), task("a").queue("y").build()];
    let answer = rig.try_submit(batch).await;
    if rig.store.capabilities().batches_span_queues {
        assert_eq!(answer.expect("the batch is taken").len(), 3);
    } else {
        assert_eq!(answer, Err(SubmitError::BatchSpansQueues { index: 2 }));
        assert!(rig.ids(&TaskFilter::default()).await.is_empty(), "none of it was stored");
    }
}

pub async fn ids_carry_their_time_and_never_repeat(rig: Rig) {
    let mut seen = BTreeSet::new();
    let mut last = None;
    for _ in 0..20 {
        let id = rig.submit(task("a")).await;
        assert!(seen.insert(id), "an id was given twice");
        assert_eq!(id.as_uuid().get_version_num(), 7);
        if let Some(last) = last {
            assert!(id > last, "a task of a later millisecond has a larger id");
        }
        last = Some(id);
        rig.advance(seconds(1));
    }
}

pub async fn position_counts_those_ahead(rig: Rig) {
    for _ in 0..3 {
        rig.submit(task("a")).await;
    }
    rig.submit(task("a").priority(Priority::HIGH)).await;
    rig.submit(task("a").priority(Priority::LOW)).await;
    let medium = rig.submitted(task("a")).await;
    assert_eq!(medium.position, 4, "three of its own priority and one above are ahead, the low one is not");
    assert_eq!(rig.store.waiting_for(medium.id).await, Ok(Some(Waiting::Line { ahead: 4 })));
    let high = rig.submitted(task("a").priority(Priority::HIGH)).await;
    assert_eq!(high.position, 1);
    let delayed = rig.submit(task("a").delay(seconds(9))).await;
    assert_eq!(rig.store.waiting_for(delayed).await, Ok(None), "a scheduled task has no place yet");
}

pub async fn a_full_queue_takes_only_urgent_work_and_then_nothing(rig: Rig) {
    rig.change_queue("q", r#"{"depth":{"soft":5,"hard":8}}"#).await;
    rig.submit_all((0..5).map(|_| task("a").queue("q"))).await;
    let medium = rig.try_submit(vec![task("a").queue("q").build()]).await;
    assert_eq!(medium, Err(SubmitError::QueueFull { index: 0, queue: queue("q"), depth: 5, bound: 5 }));
    rig.submit(task("a").queue("other")).await;
    for _ in 0..3 {
        rig.submit(task("a").queue("q").priority(Priority::HIGH)).await;
    }
    let high = rig.try_submit(vec![task("a").queue("q").priority(Priority::CRITICAL).build()]).await;
    assert_eq!(high, Err(SubmitError::QueueFull { index: 0, queue: queue("q"), depth: 8, bound: 8 }));

    let worker = rig.register(crate::fixtures::serving(&["q"])).await;
    assert_eq!(rig.claim_up_to(worker, 4).await.len(), 4, "what runs does not wait");
    rig.submit(task("a").queue("q")).await;
}

pub async fn a_batch_that_does_not_fit_is_refused_whole(rig: Rig) {
    rig.change_queue("q", r#"{"depth":{"soft":3,"hard":3}}"#).await;
    let refused = rig.try_submit((0..4).map(|_| task("a").queue("q").build()).collect()).await;
    assert!(matches!(refused, Err(SubmitError::QueueFull { index: 3, bound: 3, .. })), "{refused:?}");
    assert!(rig.ids(&TaskFilter::default()).await.is_empty(), "none of it was stored");
    assert_eq!(rig.submit_all((0..3).map(|_| task("a").queue("q"))).await.len(), 3);
}

pub async fn accepted_work_is_never_refused_by_a_full_queue(rig: Rig) {
    rig.change_queue("default", r#"{"depth":{"soft":3,"hard":3}}"#).await;
    let ids = rig.submit_all([task("dead"), task("retried"), task("parent")]).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 3).await;
    rig.submit_all((0..3).map(|_| task("filler"))).await;
    assert!(rig.try_submit(vec![task("a").build()]).await.is_err(), "the queue is full again");

    rig.finished(worker, &claimed[0], failed_for_good()).await;
    rig.requeue(again(ids[0])).await.expect("a replay is not refused");
    rig.finished(worker, &claimed[1], failed()).await;
    rig.advance(seconds(11));
    rig.make_due().await;
    assert_eq!(rig.status(ids[1]).await, Status::Queued, "a retry is not refused");
    let follow_ups = vec![task("child").build()];
    let outcome = windlass_core::store::Outcome::Completed { result: None, follow_ups };
    let finished = rig.finished(worker, &claimed[2], outcome).await;
    assert_eq!(rig.status(finished.follow_ups[0]).await, Status::Queued, "a follow-up is not refused");
}

pub async fn a_known_key_is_answered_by_a_full_queue(rig: Rig) {
    rig.change_queue("default", r#"{"depth":{"soft":1,"hard":1}}"#).await;
    let id = rig.submit(task("a").key("k")).await;
    let answer = rig.submitted(task("a").key("k")).await;
    assert_eq!((answer.id, answer.is_known()), (id, true), "a retried submit adds nothing, so nothing is full");
}

pub async fn lanes_are_bounded(rig: Rig) {
    let lanes = limits::LANES_PER_QUEUE;
    for first in (0..lanes).step_by(1000) {
        let batch = (first..first + 1000).map(|n| task(&format!("t{n}")).queue("q").build()).collect();
        rig.try_submit(batch).await.expect("up to the bound all are taken");
    }
    let refused = rig.try_submit(vec![task("t0").queue("q").build(), task("one-more").queue("q").build()]).await;
    assert_eq!(refused, Err(SubmitError::TooManyLanes { index: 1, queue: queue("q") }));
    rig.submit(task("t5").queue("q")).await;
    rig.submit(task("one-more").queue("r")).await;
    let worker = rig.register(crate::fixtures::handling(&["t1"])).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.submit(task("one-more").queue("q")).await;
}

pub async fn a_batch_that_needs_too_many_lanes_is_refused_whole(rig: Rig) {
    let lanes = limits::LANES_PER_QUEUE;
    for first in (0..lanes).step_by(1000) {
        let count = if first + 1000 == lanes { 999 } else { 1000 };
        rig.submit_all((first..first + count).map(|n| task(&format!("t{n}")).queue("q"))).await;
    }
    let batch = vec![task("t0").queue("q").build(), task("new-1").queue("q").build(), task("new-2").queue("q").build()];
    let refused = rig.try_submit(batch).await;
    assert_eq!(refused, Err(SubmitError::TooManyLanes { index: 2, queue: queue("q") }), "one lane was left");
    rig.submit_all((0..3).map(|_| task("new-1").queue("q"))).await;
}

pub async fn concurrent_submits_all_arrive(rig: Rig) {
    let mut calls = Vec::new();
    for n in 0..40 {
        let rig = rig.clone();
        calls.push(tokio::spawn(async move { rig.submit(task(&format!("t{}", n % 4))).await }));
    }
    let mut ids = BTreeSet::new();
    for call in calls {
        ids.insert(call.await.expect("no call panics"));
    }
    assert_eq!(ids.len(), 40);
    let worker = rig.register(profile()).await;
    let claimed: BTreeSet<_> = rig.claim_up_to(worker, 100).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, ids);
}
