//! Workers as the store knows them.

use windlass_core::ids::WorkerId;
use windlass_core::status::Status;
use windlass_core::store::{Heartbeat, LeaseError, Renewal, WorkerError};
use windlass_core::worker::{Health, WorkerProfile, WorkerStatus};

use crate::fixtures::{able, completed, failed, profile, queue, task, task_type, text};
use crate::rig::{LEASE, Rig, seconds};

fn beat(worker: WorkerId) -> Heartbeat {
    Heartbeat { worker, renewal: Renewal::All, lease: LEASE, unhealthy: false, draining: false, health: None }
}

pub async fn a_registered_worker_is_listed(rig: Rig) {
    let full = WorkerProfile {
        capacity: 7,
        queues: vec![queue("x")],
        task_types: vec![task_type("mail")],
        pool: Some(text("heavy")),
        name: Some(text("w 1")),
        version: Some(text("1.2")),
        host: Some(text("h")),
        ..able(&["gpu"])
    };
    rig.register(full.clone()).await;
    let listed = rig.store.workers().await.expect("workers");
    assert_eq!(listed.len(), 1);
    let worker = &listed[0];
    assert_eq!(worker.profile, full);
    assert_eq!((worker.registered_at, worker.last_seen_at), (rig.now(), rig.now()));
    assert!(!worker.draining && !worker.unhealthy && worker.health.is_none() && worker.current_tasks.is_empty());
    assert_eq!((worker.completed, worker.failed), (0, 0));
}

pub async fn what_a_worker_holds_and_did_is_counted(rig: Rig) {
    rig.submit_all((0..4).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 4).await;
    let mut held = rig.worker_state(worker).await.expect("known").current_tasks;
    held.sort_unstable();
    let mut ids: Vec<_> = claimed.iter().map(|task| task.id).collect();
    ids.sort_unstable();
    assert_eq!(held, ids);
    rig.finished(worker, &claimed[0], completed()).await;
    rig.finish(worker, &claimed[0], completed()).await.expect("repeated");
    rig.finished(worker, &claimed[1], failed()).await;
    rig.finished(worker, &claimed[2], windlass_core::store::Outcome::Released).await;
    let state = rig.worker_state(worker).await.expect("known");
    assert_eq!((state.completed, state.failed, state.current_tasks), (1, 1, vec![claimed[3].id]));
}

pub async fn a_silent_worker_is_shown_as_dead_and_comes_back(rig: Rig) {
    let worker = rig.worker().await;
    let status = |worker: windlass_core::worker::Worker, now| worker.status(now, seconds(10));
    rig.advance(seconds(31));
    assert_eq!(status(rig.worker_state(worker).await.expect("known"), rig.now()), WorkerStatus::Dead);
    rig.claim_nothing(worker).await;
    assert_eq!(
        status(rig.worker_state(worker).await.expect("known"), rig.now()),
        WorkerStatus::Active,
        "any call is a sign of life"
    );
    rig.advance(seconds(31));
    rig.beat(worker).await;
    assert_eq!(rig.worker_state(worker).await.expect("known").last_seen_at, rig.now());
}

pub async fn a_heartbeat_notes_health(rig: Rig) {
    let worker = rig.worker().await;
    let health = Health { memory_percent: Some(91.5), cpu_percent: None };
    rig.store.heartbeat(Heartbeat { unhealthy: true, health: Some(health), ..beat(worker) }).await.expect("known");
    let state = rig.worker_state(worker).await.expect("known");
    assert_eq!((state.unhealthy, state.health), (true, Some(health)));
    rig.store.heartbeat(beat(worker)).await.expect("known");
    assert!(!rig.worker_state(worker).await.expect("known").unhealthy, "it is better");
}

pub async fn a_drained_worker_gets_no_more(rig: Rig) {
    rig.submit_all([task("a"), task("a")]).await;
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    rig.store.drain_worker(worker).await.expect("known");
    rig.claim_nothing(worker).await;
    assert!(rig.worker_state(worker).await.expect("known").draining);
    assert!(rig.beat(worker).await.should_drain);
    rig.finished(worker, &claimed, completed()).await;
    let other = rig.worker().await;
    rig.claim(other).await;
    assert!(!rig.beat(other).await.should_drain);
    assert_eq!(rig.store.drain_worker(WorkerId::random()).await, Err(WorkerError::Unknown));
}

/// A machine that has too much to do makes its worker unhealthy at the second heartbeat in a row that says so.
pub async fn a_worker_under_too_much_load_is_unhealthy(rig: Rig) {
    let worker = rig.worker().await;
    let said = async |cpu_percent: f64| {
        let health = Some(Health { memory_percent: None, cpu_percent: Some(cpu_percent) });
        rig.store.heartbeat(Heartbeat { health, ..beat(worker) }).await.expect("known");
        rig.worker_state(worker).await.expect("known").unhealthy
    };
    assert!(!said(99.0).await, "a moment's peak");
    assert!(said(99.0).await);
    assert!(!said(20.0).await, "it is better");
    assert!(!said(99.0).await && !said(20.0).await && !said(99.0).await, "never two in a row");
}

pub async fn an_unhealthy_worker_gets_no_more_until_it_is_better(rig: Rig) {
    let id = rig.submit(task("a")).await;
    let worker = rig.worker().await;
    rig.store.heartbeat(Heartbeat { unhealthy: true, ..beat(worker) }).await.expect("known");
    rig.claim_nothing(worker).await;
    rig.store.heartbeat(beat(worker)).await.expect("known");
    assert_eq!(rig.claim(worker).await.id, id);
}

pub async fn a_worker_that_says_it_drains_is_shown_so(rig: Rig) {
    rig.submit(task("a")).await;
    let worker = rig.worker().await;
    let beaten = rig.store.heartbeat(Heartbeat { draining: true, ..beat(worker) }).await.expect("known");
    assert!(beaten.should_drain);
    assert!(rig.worker_state(worker).await.expect("known").draining);
    rig.claim_nothing(worker).await;
}

pub async fn a_deregistered_worker_gives_its_tasks_back(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let place = rig.state(claimed.id).await.ready_at;
    rig.advance(seconds(3));
    rig.store.deregister_worker(worker).await.expect("known");
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.crashes, state.ready_at), (Status::Queued, 0, 0, place));
    assert_eq!(rig.kinds(claimed.id).await, ["submitted", "claimed", "released"]);
    assert!(rig.worker_state(worker).await.is_none());
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
    assert_eq!(rig.try_claim(worker, 1).await.expect_err("unknown"), WorkerError::Unknown);
    assert_eq!(rig.try_beat(worker, Renewal::All).await, Err(WorkerError::Unknown));
    assert_eq!(rig.store.deregister_worker(worker).await, Err(WorkerError::Unknown));
    let other = rig.worker().await;
    assert_eq!(rig.claim(other).await.attempt, 1);
}

pub async fn silent_workers_are_forgotten_unless_they_hold_a_lease(rig: Rig) {
    let (holder, claimed) = rig.started(task("a")).await;
    let silent = rig.worker().await;
    rig.advance(seconds(20));
    let fresh = rig.worker().await;
    let sweep = rig.store.forget_workers(rig.now() - seconds(10)).await.expect("maintenance");
    assert_eq!(sweep.changed, 1);
    let mut left: Vec<_> =
        rig.store.workers().await.expect("workers").into_iter().map(|worker| worker.profile.id).collect();
    left.sort_unstable();
    let mut expected = [holder, fresh];
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert_eq!(rig.try_claim(silent, 1).await.expect_err("forgotten"), WorkerError::Unknown);
    rig.finished(holder, &claimed, completed()).await;
}

pub async fn registering_again_keeps_what_the_worker_holds(rig: Rig) {
    let mine = profile();
    let worker = rig.register(mine.clone()).await;
    rig.submit(task("a")).await;
    let claimed = rig.claim(worker).await;
    rig.register(WorkerProfile { capacity: 3, ..mine }).await;
    let state = rig.worker_state(worker).await.expect("known");
    assert_eq!((state.profile.capacity, state.current_tasks), (3, vec![claimed.id]));
    rig.finished(worker, &claimed, completed()).await;
}

pub async fn a_lapsed_task_leaves_its_worker(rig: Rig) {
    let (worker, _) = rig.started(task("a")).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert!(rig.worker_state(worker).await.expect("known").current_tasks.is_empty());
}
