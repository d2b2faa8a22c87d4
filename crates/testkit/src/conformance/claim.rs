//! Work out: who gets which task.

use std::collections::BTreeSet;

use windlass_core::keys::OnFailure;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{ClaimRequest, WorkerError};
use windlass_core::worker::WorkerProfile;

use crate::fixtures::{able, capabilities, completed, failed, handling, priority, profile, serving, task, task_type};
use crate::rig::{LEASE, Rig, seconds};

pub async fn a_claim_starts_an_attempt(rig: Rig) {
    let id = rig.submit(task("a").parameters("[1]").timeout(seconds(40))).await;
    let submitted_at = rig.now();
    rig.advance(seconds(5));
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    assert_eq!((claimed.id, claimed.attempt, claimed.crashes), (id, 1, 0));
    assert_eq!((claimed.created_at, claimed.timeout), (submitted_at, seconds(40)));
    assert_eq!(claimed.lease_expires_at, rig.now() + LEASE);
    assert!(claimed.steps.is_empty());
    let state = rig.state(id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Executing, 1, 0, 0));
    assert_eq!((state.started_at, state.worker), (Some(rig.now()), Some(worker)));
    assert_eq!(state.lease_expires_at, Some(rig.now() + LEASE));
    assert_eq!(state.ready_at, submitted_at, "its place is remembered");
    rig.claim_nothing(worker).await;
}

pub async fn a_claim_is_bounded_by_what_was_asked(rig: Rig) {
    let ids = rig.submit_all((0..5).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let first = rig.claim_up_to(worker, 2).await;
    assert_eq!(first.iter().map(|task| task.id).collect::<Vec<_>>(), ids[..2]);
    let rest = rig.claim_up_to(worker, 100).await;
    assert_eq!(rest.iter().map(|task| task.id).collect::<Vec<_>>(), ids[2..]);
}

pub async fn a_claim_with_nothing_ready_answers_at_once(rig: Rig) {
    let worker = rig.worker().await;
    let claimed = rig.try_claim(worker, 5).await.expect("answered");
    assert!(claimed.tasks.is_empty() && claimed.cancel.is_empty());
}

pub async fn an_unknown_worker_gets_nothing(rig: Rig) {
    let id = rig.submit(task("a")).await;
    let stranger = windlass_core::ids::WorkerId::random();
    assert_eq!(rig.try_claim(stranger, 1).await.expect_err("refused"), WorkerError::Unknown);
    assert_eq!(rig.status(id).await, Status::Queued);
}

pub async fn higher_priorities_go_first_and_equals_in_order(rig: Rig) {
    let mut expected = Vec::new();
    for round in 0..2 {
        for level in [5, 0, 9, 3, 7, 1, 8] {
            expected.push((level, round, rig.submit(task("a").priority(priority(level))).await));
            rig.advance(seconds(1));
        }
    }
    expected.sort_by_key(|(level, round, _)| (std::cmp::Reverse(*level), *round));
    let worker = rig.worker().await;
    for (level, _, id) in expected {
        let claimed = rig.claim(worker).await;
        assert_eq!((claimed.spec.priority.level(), claimed.id), (level as u8, id));
    }
}

pub async fn order_holds_across_types_and_capabilities_of_a_queue(rig: Rig) {
    let mut ids = Vec::new();
    for n in 0..12 {
        let task = task(["a", "b", "c"][n % 3]);
        ids.push(rig.submit(if n % 2 == 0 { task.requires(&["gpu"]) } else { task }).await);
        rig.advance(seconds(1));
    }
    let worker = rig.register(able(&["gpu"])).await;
    let claimed: Vec<_> = rig.claim_up_to(worker, 12).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, ids, "lanes of one priority are one line");
}

pub async fn queues_are_compared_by_priority_then_age(rig: Rig) {
    let old = rig.submit(task("a").queue("x")).await;
    rig.advance(seconds(1));
    let young = rig.submit(task("a").queue("y")).await;
    rig.advance(seconds(1));
    let urgent = rig.submit(task("a").queue("y").priority(Priority::HIGH)).await;
    let worker = rig.worker().await;
    for id in [urgent, old, young] {
        assert_eq!(rig.claim(worker).await.id, id);
    }
}

pub async fn a_worker_gets_only_its_queues(rig: Rig) {
    let x = rig.submit(task("a").queue("x")).await;
    let y = rig.submit(task("a").queue("y").priority(Priority::CRITICAL)).await;
    let worker = rig.register(serving(&["x", "z"])).await;
    assert_eq!(rig.claim(worker).await.id, x);
    rig.claim_nothing(worker).await;
    let all = rig.worker().await;
    assert_eq!(rig.claim(all).await.id, y, "a worker that lists no queue serves every one");
}

pub async fn a_worker_gets_only_its_types(rig: Rig) {
    let mail = rig.submit(task("mail")).await;
    rig.submit(task("report").priority(Priority::CRITICAL)).await;
    let worker = rig.register(handling(&["mail"])).await;
    assert_eq!(rig.claim(worker).await.id, mail);
    rig.claim_nothing(worker).await;
}

pub async fn a_worker_gets_only_what_it_can_do(rig: Rig) {
    let both = rig.submit(task("a").requires(&["gpu", "disk"]).priority(Priority::HIGH)).await;
    let gpu = rig.submit(task("a").requires(&["gpu"])).await;
    let plain = rig.submit(task("a").priority(Priority::LOW)).await;
    let unable = rig.worker().await;
    assert_eq!(rig.claim(unable).await.id, plain);
    rig.claim_nothing(unable).await;
    let with_gpu = rig.register(able(&["gpu"])).await;
    assert_eq!(rig.claim(with_gpu).await.id, gpu);
    rig.claim_nothing(with_gpu).await;
    let able = rig.register(able(&["net", "gpu", "disk"])).await;
    assert_eq!(rig.claim(able).await.id, both);
}

pub async fn a_worker_can_name_other_capabilities_in_a_claim(rig: Rig) {
    let gpu = rig.submit(task("a").requires(&["gpu"])).await;
    let worker = rig.register(able(&["gpu"])).await;
    let request = |names: &[&str]| ClaimRequest {
        worker,
        capabilities: Some(capabilities(names)),
        up_to: 1,
        lease: LEASE,
        wait: false,
    };
    assert!(rig.store.claim(request(&["disk"])).await.unwrap().tasks.is_empty(), "it says that its GPU is gone");
    assert_eq!(rig.store.claim(request(&["disk", "gpu"])).await.unwrap().tasks[0].id, gpu);
}

pub async fn a_paused_queue_is_passed_by(rig: Rig) {
    let paused = rig.submit(task("a").queue("x").priority(Priority::CRITICAL)).await;
    let open = rig.submit(task("a").queue("y")).await;
    rig.change_queue("x", r#"{"paused":true}"#).await;
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, open);
    rig.claim_nothing(worker).await;
    assert_eq!(rig.status(paused).await, Status::Queued);
    rig.submit(task("a").queue("x")).await;
    rig.change_queue("x", r#"{"paused":false}"#).await;
    assert_eq!(rig.claim(worker).await.id, paused);
}

pub async fn a_paused_type_is_passed_by_in_every_queue(rig: Rig) {
    rig.submit(task("mail").queue("x").priority(Priority::CRITICAL)).await;
    rig.submit(task("mail").queue("y")).await;
    let other = rig.submit(task("report").queue("y").priority(Priority::LOW)).await;
    rig.change_type("mail", r#"{"paused":true}"#).await;
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, other);
    rig.claim_nothing(worker).await;
    rig.store.clear_type(task_type("mail")).await.expect("settings are there");
    assert_eq!(rig.claim_up_to(worker, 5).await.len(), 2, "without settings nothing is paused");
}

pub async fn results_of_a_paused_queue_are_taken(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").queue("x")).await;
    rig.change_queue("x", r#"{"paused":true}"#).await;
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.status(claimed.id).await, Status::Completed);
}

pub async fn a_changed_worker_is_served_by_its_new_profile(rig: Rig) {
    let id = rig.submit(task("a").queue("x")).await;
    let first = serving(&["y"]);
    let worker = rig.register(first.clone()).await;
    rig.claim_nothing(worker).await;
    rig.register(WorkerProfile { queues: Vec::new(), ..first }).await;
    assert_eq!(rig.claim(worker).await.id, id);
}

pub async fn tokens_grow_with_every_claim(rig: Rig) {
    let id = rig.submit(task("a").max_retries(9)).await;
    let worker = rig.worker().await;
    let mut last = 0;
    for round in 0..5 {
        let claimed = rig.claim(worker).await;
        assert_eq!(claimed.id, id);
        assert!(claimed.token.claim().0 > last, "round {round}: a later claim has the larger number");
        last = claimed.token.claim().0;
        let outcome = match round {
            0 | 3 => windlass_core::store::Outcome::Released,
            1 => windlass_core::store::Outcome::Snoozed(seconds(5)),
            _ => failed(),
        };
        rig.finished(worker, &claimed, outcome).await;
        rig.advance(seconds(100));
        rig.make_due().await;
    }
}

pub async fn concurrent_claims_never_share_a_task(rig: Rig) {
    let ids: BTreeSet<_> = rig.submit_all((0..60).map(|n| task(["a", "b"][n % 2]))).await.into_iter().collect();
    let mut calls = Vec::new();
    for _ in 0..20 {
        let worker = rig.register(profile()).await;
        let rig = rig.clone();
        calls.push(tokio::spawn(async move { rig.claim_up_to(worker, 4).await }));
    }
    let mut seen = BTreeSet::new();
    for call in calls {
        for task in call.await.expect("no call panics") {
            assert!(seen.insert(task.id), "{} was given twice", task.id);
        }
    }
    assert_eq!(seen, ids, "80 places were free, so all 60 are taken");
}

pub async fn a_claim_tells_no_task_past_its_expiry(rig: Rig) {
    let id = rig.submit(task("a").expires_at(rig.now() + seconds(10))).await;
    rig.advance(seconds(11));
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
    rig.expire().await;
    assert_eq!(rig.status(id).await, Status::Failed);
}

pub async fn the_next_of_a_line_follows_one_that_expired(rig: Rig) {
    let ordered = || task("a").ordered("k", OnFailure::Block);
    rig.submit(ordered().expires_at(rig.now() + seconds(10))).await;
    let next = rig.submit(ordered()).await;
    rig.advance(seconds(11));
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, next, "in the very claim that finds the first expired");
}
