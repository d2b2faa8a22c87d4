//! Why a task is not running: the one true reason in every situation. And how lanes stand.

use windlass_core::breaker::Forced;
use windlass_core::ids::TaskId;
use windlass_core::keys::OnFailure;
use windlass_core::priority::Priority;
use windlass_core::store::{Hindrance, LaneStats, Waiting};

use crate::fixtures::{completed, failed, failed_for_good, queue, task, task_type};
use crate::rig::{LEASE, Rig, seconds};

async fn closed_by(rig: &Rig, id: TaskId) -> Hindrance {
    match rig.waiting_for(id).await {
        Some(Waiting::Lane(hindrance)) => hindrance,
        other => panic!("its lane should be closed, but {other:?}"),
    }
}

pub async fn only_queued_tasks_wait_for_something(rig: Rig) {
    let scheduled = rig.submit(task("a").delay(seconds(60))).await;
    assert_eq!(rig.waiting_for(scheduled).await, None);
    let (worker, claimed) = rig.started(task("a")).await;
    assert_eq!(rig.waiting_for(claimed.id).await, None);
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.waiting_for(claimed.id).await, None);
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    assert_eq!(rig.waiting_for(made_up).await, None);
}

pub async fn a_free_task_stands_in_its_line(rig: Rig) {
    let ids = rig.submit_all((0..3).map(|_| task("a"))).await;
    rig.submit(task("a").priority(Priority::LOW)).await;
    for (ahead, id) in ids.into_iter().enumerate() {
        assert_eq!(rig.waiting_for(id).await, Some(Waiting::Line { ahead: ahead as u64 }));
    }
}

pub async fn a_held_task_names_who_has_the_turn(rig: Rig) {
    let ids = rig.submit_all((0..3).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    assert_eq!(rig.waiting_for(ids[0]).await, Some(Waiting::Line { ahead: 0 }), "it has the turn");
    let held = |holder, ahead| Some(Waiting::OrderingKey { holder, ahead });
    assert_eq!(rig.waiting_for(ids[1]).await, held(ids[0], 1));
    assert_eq!(rig.waiting_for(ids[2]).await, held(ids[0], 2));
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    assert_eq!(rig.waiting_for(ids[2]).await, held(ids[0], 2));
    rig.finished(worker, &claimed, failed()).await;
    assert_eq!(rig.waiting_for(ids[1]).await, held(ids[0], 1), "also while it waits for its retry");
    rig.cancel(ids[0]).await.expect("it waits");
    assert_eq!(rig.waiting_for(ids[2]).await, held(ids[1], 1));
}

pub async fn a_held_task_names_a_cancelled_one_that_still_runs(rig: Rig) {
    let ids = rig.submit_all((0..2).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    rig.claim(rig.worker().await).await;
    rig.cancel(ids[0]).await.expect("it runs");
    assert_eq!(rig.waiting_for(ids[1]).await, Some(Waiting::OrderingKey { holder: ids[0], ahead: 1 }));
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(rig.waiting_for(ids[1]).await, Some(Waiting::Line { ahead: 0 }));
}

pub async fn a_task_of_a_full_key_names_those_that_run(rig: Rig) {
    let ids = rig.submit_all((0..4).map(|_| task("a").at_most(2, "k"))).await;
    assert!(matches!(rig.waiting_for(ids[3]).await, Some(Waiting::Line { .. })), "nothing runs yet");
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 10).await;
    for id in &ids[2..] {
        let running = ids[..2].to_vec();
        assert_eq!(rig.waiting_for(*id).await, Some(Waiting::ConcurrencyKey { limit: 2, running }));
    }
    rig.cancel(ids[0]).await.expect("it runs");
    assert!(
        matches!(rig.waiting_for(ids[2]).await, Some(Waiting::ConcurrencyKey { running, .. }) if running == ids[..2])
    );
    rig.finished(worker, &claimed[1], completed()).await;
    assert!(matches!(rig.waiting_for(ids[2]).await, Some(Waiting::Line { .. })));
}

pub async fn a_pause_is_named(rig: Rig) {
    let (of_queue, of_type) = (rig.submit(task("a").queue("x")).await, rig.submit(task("b")).await);
    rig.change_queue("x", r#"{"paused":true}"#).await;
    rig.change_type("b", r#"{"paused":true}"#).await;
    assert_eq!(closed_by(&rig, of_queue).await, Hindrance::QueuePaused);
    assert_eq!(closed_by(&rig, of_type).await, Hindrance::TypePaused);
}

pub async fn a_full_queue_or_type_is_named(rig: Rig) {
    rig.change_queue("x", r#"{"concurrency":1}"#).await;
    rig.change_type("b", r#"{"concurrency":1}"#).await;
    rig.submit_all([task("a").queue("x"), task("b")]).await;
    assert_eq!(rig.claim_up_to(rig.worker().await, 10).await.len(), 2);
    let (of_queue, of_type) = (rig.submit(task("a").queue("x")).await, rig.submit(task("b")).await);
    assert_eq!(closed_by(&rig, of_queue).await, Hindrance::QueueConcurrency { limit: 1 });
    assert_eq!(closed_by(&rig, of_type).await, Hindrance::TypeConcurrency { limit: 1 });
}

pub async fn a_used_up_rate_is_named_with_its_next_token(rig: Rig) {
    rig.change_queue("x", r#"{"rate_limit":{"count":1,"per_seconds":10}}"#).await;
    rig.change_type("b", r#"{"rate_limit":{"count":1,"per_seconds":20}}"#).await;
    rig.submit_all([task("a").queue("x"), task("b")]).await;
    assert_eq!(rig.claim_up_to(rig.worker().await, 10).await.len(), 2);
    let (of_queue, of_type) = (rig.submit(task("a").queue("x")).await, rig.submit(task("b")).await);
    let Hindrance::QueueRate { next_token_at } = closed_by(&rig, of_queue).await else { panic!("the queue's rate") };
    assert!((next_token_at.since(rig.now()).as_secs_f64() - 10.0).abs() < 0.001);
    let Hindrance::TypeRate { next_token_at } = closed_by(&rig, of_type).await else { panic!("the type's rate") };
    assert!((next_token_at.since(rig.now()).as_secs_f64() - 20.0).abs() < 0.001);
    rig.advance(seconds(21));
    assert_eq!(rig.waiting_for(of_queue).await, Some(Waiting::Line { ahead: 0 }), "the token is there");
    assert_eq!(rig.waiting_for(of_type).await, Some(Waiting::Line { ahead: 0 }));
}

pub async fn a_breaker_is_named(rig: Rig) {
    let id = rig.submit(task("a")).await;
    rig.force_type("a", Some(Forced::Open)).await;
    assert_eq!(closed_by(&rig, id).await, Hindrance::BreakerOpen { until: None });
}

pub async fn what_a_person_decided_is_named_first(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    rig.started(task("a")).await;
    let id = rig.submit(task("a")).await;
    rig.force_type("a", Some(Forced::Open)).await;
    assert_eq!(closed_by(&rig, id).await, Hindrance::BreakerOpen { until: None });
    rig.change_type("a", r#"{"paused":true}"#).await;
    assert_eq!(closed_by(&rig, id).await, Hindrance::TypePaused);
    rig.change_queue("default", r#"{"paused":true}"#).await;
    assert_eq!(closed_by(&rig, id).await, Hindrance::QueuePaused);
}

pub async fn reasons_are_the_same_after_a_restart(rig: Rig) {
    let ordered = rig.submit_all((0..2).map(|_| task("a").ordered("k", OnFailure::Block))).await;
    let limited = rig.submit_all((0..2).map(|_| task("b").at_most(1, "k"))).await;
    rig.change_type("c", r#"{"paused":true}"#).await;
    let paused = rig.submit(task("c")).await;
    assert_eq!(rig.claim_up_to(rig.worker().await, 10).await.len(), 2);
    rig.cancel(ordered[0]).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.waiting_for(ordered[1]).await, Some(Waiting::OrderingKey { holder: ordered[0], ahead: 1 }));
    let running = vec![limited[0]];
    assert_eq!(rig.waiting_for(limited[1]).await, Some(Waiting::ConcurrencyKey { limit: 1, running }));
    assert_eq!(closed_by(&rig, paused).await, Hindrance::TypePaused);
}

async fn lanes(rig: &Rig) -> Vec<LaneStats> {
    let mut lanes = rig.store.lanes().await.expect("read");
    lanes.sort_by(|one, other| one.lane.cmp(&other.lane));
    lanes
}

pub async fn lanes_tell_how_they_stand(rig: Rig) {
    let oldest = rig.now();
    rig.submit_all((0..3).map(|_| task("a").queue("x").ordered("k", OnFailure::Block))).await;
    rig.advance(seconds(1));
    rig.submit(task("b").queue("y").priority(Priority::HIGH).requires(&["gpu"])).await;
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    rig.change_queue("y", r#"{"paused":true}"#).await;
    let told = lanes(&rig).await;
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].lane.queue.clone(), told[0].lane.task_type.clone()), (queue("x"), task_type("a")));
    assert_eq!((told[0].queued, told[0].executing), (2, 1), "held ones are queued too");
    assert_eq!((told[0].oldest_ready_at, told[0].closed_by.clone()), (Some(oldest), None));
    assert_eq!((told[1].queued, told[1].executing, told[1].lane.priority), (1, 0, Priority::HIGH));
    assert_eq!((told[1].oldest_ready_at, told[1].closed_by.clone()), (Some(rig.now()), Some(Hindrance::QueuePaused)));
    rig.finished(worker, &claimed, failed_for_good()).await;
    for id in rig.ids(&windlass_core::filter::TaskFilter::default()).await {
        if id != claimed.id {
            rig.cancel(id).await.expect("it waits");
        }
    }
    assert!(lanes(&rig).await.is_empty(), "empty lanes vanish");
}

pub async fn lanes_of_a_fair_queue_name_their_tenant(rig: Rig) {
    rig.submit_all([task("a").tenant("t"), task("a").tenant("u")]).await;
    assert_eq!(lanes(&rig).await.len(), 1);
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    let tenants: Vec<_> = lanes(&rig).await.into_iter().map(|lane| lane.lane.tenant.map(|t| t.to_string())).collect();
    assert_eq!(tenants, [Some("t".to_owned()), Some("u".to_owned())]);
    rig.change_queue("default", r#"{"policy":null}"#).await;
    assert_eq!(lanes(&rig).await.len(), 1);
}
