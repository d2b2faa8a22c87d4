//! The maintenance verbs: due, lapse, timeout, expiry, retention.

use windlass_core::failure::EndReason;
use windlass_core::filter::TaskFilter;
use windlass_core::status::Status;
use windlass_core::store::{ChangeError, Outcome};

use crate::fixtures::{again, completed, failed_for_good, task};
use crate::rig::{LEASE, Rig, seconds};

const DAY: u64 = 24 * 3600;

pub async fn a_task_is_due_at_its_time(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(60))).await;
    let due = rig.now() + seconds(60);
    rig.advance(seconds(59));
    assert_eq!(rig.make_due().await, 0);
    rig.advance(seconds(11));
    assert_eq!(rig.make_due().await, 1);
    let state = rig.state(id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Queued, 0, 0, 0));
    assert_eq!(state.ready_at, due, "its place is its due time, not when somebody looked");
    assert_eq!(rig.make_due().await, 0);
}

pub async fn due_tasks_stand_by_their_due_time(rig: Rig) {
    let late = rig.submit(task("a").delay(seconds(30))).await;
    let early = rig.submit(task("a").delay(seconds(10))).await;
    rig.advance(seconds(20));
    let fresh = rig.submit(task("a")).await;
    rig.advance(seconds(20));
    assert_eq!(rig.make_due().await, 2);
    let worker = rig.worker().await;
    for id in [early, fresh, late] {
        assert_eq!(rig.claim(worker).await.id, id);
    }
}

pub async fn slices_are_bounded_and_tell_whether_there_is_more(rig: Rig) {
    rig.submit_all((0..25).map(|n| task("a").delay(seconds(n + 1)))).await;
    rig.advance(seconds(20));
    let first = rig.store.make_due(8).await.expect("maintenance");
    assert_eq!((first.changed, first.more), (8, true));
    assert_eq!(rig.make_due_by(8).await, 12);
    let idle = rig.store.make_due(8).await.expect("maintenance");
    assert_eq!((idle.changed, idle.more), (0, false));
    if let Some(next) = idle.next_at {
        assert_eq!(next, rig.now() + seconds(1), "the next one falls due then");
    }
}

pub async fn the_next_time_is_never_told_too_late(rig: Rig) {
    let far = rig.submit(task("a").delay(seconds(100))).await;
    rig.submit(task("a").delay(seconds(50))).await;
    let (_, claimed) = rig.started(task("b").timeout(seconds(70))).await;
    let due = rig.store.make_due(10).await.expect("maintenance");
    let lapse = rig.store.lapse_leases(10).await.expect("maintenance");
    let timeout = rig.store.time_out(10).await.expect("maintenance");
    for (sweep, latest) in [(due, 50), (lapse, 30), (timeout, 70)] {
        assert_eq!((sweep.changed, sweep.more), (0, false));
        assert!(sweep.next_at.is_none_or(|next| next <= rig.now() + seconds(latest)), "{sweep:?}");
    }
    rig.cancel(far).await.expect("cancelled");
    assert_eq!(rig.status(claimed.id).await, Status::Executing);
}

pub async fn a_task_that_never_started_expires(rig: Rig) {
    let at = rig.now() + seconds(60);
    let queued = rig.submit(task("a").expires_at(at)).await;
    let scheduled = rig.submit(task("a").delay(seconds(100)).expires_at(at)).await;
    let quiet = rig.submit(task("a").no_dead_letter().expires_at(at)).await;
    let forever = rig.submit(task("a")).await;
    rig.advance(seconds(59));
    assert_eq!(rig.expire().await, 0);
    rig.advance(seconds(2));
    assert_eq!(rig.expire().await, 3);
    for id in [queued, scheduled, quiet] {
        let state = rig.state(id).await;
        assert_eq!((state.status, state.end_reason), (Status::Failed, Some(EndReason::Expired)));
        assert_eq!((state.attempt, state.retries, state.crashes), (0, 0, 0));
        assert_eq!(state.ended_at, Some(rig.now()));
    }
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, forever);
    rig.claim_nothing(worker).await;
}

pub async fn a_task_that_runs_does_not_expire(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").expires_at(rig.now() + seconds(10))).await;
    rig.advance(seconds(20));
    assert_eq!(rig.expire().await, 0);
    rig.finished(worker, &claimed, completed()).await;
}

pub async fn ended_tasks_go_after_their_retention(rig: Rig) {
    let (worker, done) = rig.started(task("a")).await;
    rig.finished(worker, &done, completed()).await;
    let cancelled = rig.submit(task("a")).await;
    rig.cancel(cancelled).await.expect("cancelled");
    let (other, failed) = rig.started(task("a").no_dead_letter()).await;
    rig.finished(other, &failed, failed_for_good()).await;
    let waiting = rig.submit(task("a").queue("x")).await;
    let until = rig.kept_until(seconds(7 * DAY));
    rig.advance(until.since(rig.now()) - seconds(1));
    rig.prune().await;
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 4, "nothing goes too early");
    rig.advance(seconds(2));
    assert_eq!(rig.prune().await, 3);
    assert_eq!(rig.ids(&TaskFilter::default()).await, vec![waiting], "live tasks never go");
    for id in [done.id, cancelled, failed.id] {
        assert_eq!(rig.find(id).await, None);
        assert!(rig.history(id).await.is_empty(), "its history goes with it");
    }
    let stats = rig.store.stats().await.expect("stats");
    assert_eq!(stats.by_status, [0, 0, 1, 0, 0, 0, 0, 0]);
}

pub async fn dead_letters_are_kept(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.change_queue("default", r#"{"retention":{"completed_days":0,"dead_letter_days":0}}"#).await;
    rig.advance(seconds(1000 * DAY));
    assert_eq!(rig.prune().await, 0, "without an archive a dead letter waits for a person");
    rig.discard(claimed.id).await.expect("a dead letter");
    rig.advance(seconds(1));
    assert_eq!(rig.prune().await, 1, "given up, it goes like any other");
}

pub async fn retention_follows_type_then_queue(rig: Rig) {
    rig.change_queue("short", r#"{"retention":{"completed_days":1}}"#).await;
    rig.change_type("keep", r#"{"retention":{"completed_days":3}}"#).await;
    let mut ids = Vec::new();
    for (name, of_queue) in [("a", "short"), ("keep", "short"), ("a", "long")] {
        let (worker, claimed) = rig.started(task(name).queue(of_queue)).await;
        rig.finished(worker, &claimed, completed()).await;
        ids.push(claimed.id);
    }
    let ends = [(1, 2), (3, 1), (7, 0)].map(|(days, left)| (days, rig.kept_until(seconds(days * DAY)), left));
    for (days, until, left) in ends {
        rig.advance((until + seconds(60)).since(rig.now()));
        rig.prune().await;
        assert_eq!(rig.ids(&TaskFilter::default()).await.len(), left, "after {days} days");
    }
}

pub async fn the_history_of_what_is_kept_is_never_deleted(rig: Rig) {
    let live = rig.submit(task("a").queue("x")).await;
    let (worker, dead) = rig.started(task("b")).await;
    rig.finished(worker, &dead, failed_for_good()).await;
    let (worker, done) = rig.started(task("c")).await;
    rig.finished(worker, &done, completed()).await;
    for _ in 0..20 {
        rig.advance(seconds(2 * DAY));
        rig.prune().await;
    }
    assert_eq!(rig.kinds(live).await, ["submitted"]);
    assert_eq!(rig.kinds(dead.id).await, ["submitted", "claimed", "dead_lettered"]);
    super::events::assert_events(&rig).await;
    rig.requeue(again(dead.id)).await.expect("dead");
    assert_eq!(rig.kinds(dead.id).await.len(), 4);
}

pub async fn a_replayed_task_is_not_deleted(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").no_dead_letter()).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.advance(seconds(6 * DAY));
    rig.requeue(again(claimed.id)).await.expect("it failed");
    rig.advance(seconds(2 * DAY));
    assert_eq!(rig.prune().await, 0, "it lives again");
    let second = rig.claim(worker).await;
    rig.finished(worker, &second, completed()).await;
    rig.advance(seconds(6 * DAY));
    assert_eq!(rig.prune().await, 0, "its retention counts from its last end");
    rig.advance(seconds(2 * DAY));
    assert_eq!(rig.prune().await, 1);
}

pub async fn what_is_past_its_retention_is_not_replayed(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").no_dead_letter()).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let until = rig.kept_until(seconds(7 * DAY));
    rig.advance(until.since(rig.now()));
    assert_eq!(rig.requeue(again(claimed.id)).await, Err(ChangeError::UnknownTask), "whether it was deleted or not");
    assert_eq!(rig.prune().await, 1);
    assert_eq!(rig.store.stats().await.expect("stats").by_status, [0; 8]);
}

pub async fn an_idle_store_has_nothing_to_do(rig: Rig) {
    rig.submit(task("a")).await;
    let (_, claimed) = rig.started(task("b").queue("z").priority(windlass_core::priority::Priority::HIGH)).await;
    assert_eq!((rig.make_due().await, rig.lapse().await, rig.time_out().await), (0, 0, 0));
    assert_eq!((rig.expire().await, rig.prune().await), (0, 0));
    assert_eq!(rig.store.settle_intents(10).await.expect("maintenance").changed, 0);
    assert_eq!(rig.status(claimed.id).await, Status::Executing);
    rig.store.check().await.expect("the store serves");
}

pub async fn many_leases_lapse_in_slices(rig: Rig) {
    rig.submit_all((0..30).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 30).await;
    rig.finished(worker, &claimed[0], Outcome::Released).await;
    rig.advance(LEASE + seconds(1));
    let slice = rig.store.lapse_leases(10).await.expect("maintenance");
    assert_eq!((slice.changed, slice.more), (10, true));
    assert_eq!(rig.lapse().await, 19);
    let stats = rig.store.stats().await.expect("stats");
    assert_eq!(stats.by_status, [0, 29, 1, 0, 0, 0, 0, 0]);
}
