//! Long polls: claims that wait.

use std::pin::pin;
use std::task::Poll;

use windlass_core::keys::OnFailure;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, ClaimRequest, Claimed, Outcome};
use windlass_core::worker::WorkerProfile;

use crate::fixtures::{again, completed, failed_for_good, profile, serving, task};
use crate::rig::{LEASE, Rig, seconds, soon};

/// Lets everything that can run do so. Nothing is assumed about how long it takes: tests
/// only rely on what must not happen afterwards, never on what has happened.
pub(super) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Lets a claim take its place in line before the next. A store too slow for it makes the test easier, not wrong.
async fn settle_in_order() {
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
}

pub(super) async fn only(waiting: tokio::task::JoinHandle<Claimed>) -> windlass_core::task::ClaimedTask {
    let mut claimed = soon(waiting).await.expect("no panic");
    assert_eq!(claimed.tasks.len(), 1);
    claimed.tasks.remove(0)
}

pub async fn a_waiting_claim_takes_what_is_ready_at_once(rig: Rig) {
    let id = rig.submit(task("a")).await;
    let worker = rig.worker().await;
    assert_eq!(only(rig.claim_waiting(worker)).await.id, id);
}

pub async fn a_waiting_claim_wakes_on_submit(rig: Rig) {
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    assert!(!waiting.is_finished(), "nothing to say yet");
    let id = rig.submit(task("a")).await;
    let claimed = only(waiting).await;
    assert_eq!((claimed.id, claimed.attempt), (id, 1));
}

pub async fn a_waiting_claim_wakes_when_a_task_is_due(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(60))).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.advance(seconds(60));
    rig.make_due().await;
    assert_eq!(only(waiting).await.id, id);
}

pub async fn a_waiting_claim_wakes_on_release(rig: Rig) {
    let (holder, claimed) = rig.started(task("a")).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.finished(holder, &claimed, Outcome::Released).await;
    assert_eq!(only(waiting).await.id, claimed.id);
}

pub async fn a_waiting_claim_wakes_on_resume(rig: Rig) {
    rig.change_queue("x", r#"{"paused":true}"#).await;
    rig.change_type("b", r#"{"paused":true}"#).await;
    let of_queue = rig.submit(task("a").queue("x")).await;
    let of_type = rig.submit(task("b").queue("y")).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    assert!(!waiting.is_finished());
    rig.change_queue("x", r#"{"paused":false}"#).await;
    assert_eq!(only(waiting).await.id, of_queue);
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.change_type("b", r#"{"paused":false}"#).await;
    assert_eq!(only(waiting).await.id, of_type);
}

pub async fn a_waiting_claim_wakes_on_replay_and_run_now(rig: Rig) {
    let (holder, dead) = rig.started(task("a")).await;
    rig.finished(holder, &dead, failed_for_good()).await;
    let later = rig.submit(task("a").delay(seconds(500))).await;
    let worker = rig.worker().await;
    for id in [dead.id, later] {
        let waiting = rig.claim_waiting(worker);
        settle().await;
        rig.requeue(again(id)).await.expect("it can run");
        assert_eq!(only(waiting).await.id, id);
    }
}

pub async fn a_waiting_claim_wakes_on_a_follow_up(rig: Rig) {
    let (holder, claimed) = rig.started(task("a")).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    let outcome = Outcome::Completed { result: None, follow_ups: vec![task("b").build()] };
    let finished = rig.finished(holder, &claimed, outcome).await;
    assert_eq!(only(waiting).await.id, finished.follow_ups[0]);
}

pub async fn a_waiting_claim_wakes_when_a_worker_is_deregistered(rig: Rig) {
    let (holder, claimed) = rig.started(task("a")).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.store.deregister_worker(holder).await.expect("known");
    assert_eq!(only(waiting).await.id, claimed.id);
}

pub async fn a_worker_that_gets_no_more_work_stops_waiting(rig: Rig) {
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    // Nobody knows when the claim begins to wait, so it is drained until it is noticed.
    soon(async {
        while !waiting.is_finished() {
            rig.store.drain_worker(worker).await.expect("known");
            settle().await;
        }
    })
    .await;
    assert!(waiting.await.expect("no panic").tasks.is_empty());
}

pub async fn one_task_wakes_one_waiter(rig: Rig) {
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let worker = rig.worker().await;
        waiting.push(rig.claim_waiting(worker));
    }
    settle().await;
    for left in (0..5).rev() {
        let id = rig.submit(task("a")).await;
        let claimed = soon(async {
            loop {
                if let Some(done) = waiting.iter().position(tokio::task::JoinHandle::is_finished) {
                    break waiting.remove(done).await.expect("no panic");
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(claimed.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [id]);
        settle().await;
        assert_eq!(waiting.iter().filter(|waiter| !waiter.is_finished()).count(), left, "the others still wait");
    }
}

pub async fn only_who_can_take_it_is_woken(rig: Rig) {
    let (of_x, of_y) = (rig.register(serving(&["x"])).await, rig.register(serving(&["y"])).await);
    let (waits_x, waits_y) = (rig.claim_waiting(of_x), rig.claim_waiting(of_y));
    settle().await;
    let id = rig.submit(task("a").queue("y")).await;
    assert_eq!(only(waits_y).await.id, id);
    assert!(!waits_x.is_finished());
    let id = rig.submit(task("a").queue("x")).await;
    assert_eq!(only(waits_x).await.id, id);
}

pub async fn no_wake_is_lost_among_many(rig: Rig) {
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let worker = rig.worker().await;
        let rig = rig.clone();
        waiting.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 10 {
                let claimed = soon(rig.claim_waiting(worker)).await.expect("no panic");
                for task in claimed.tasks {
                    rig.finished(worker, &task, completed()).await;
                    done += 1;
                }
            }
        }));
    }
    for _ in 0..40 {
        rig.submit_all((0..5).map(|_| task("a"))).await;
        tokio::task::yield_now().await;
    }
    for waiter in waiting {
        soon(waiter).await.expect("no panic");
    }
    assert_eq!(rig.store.stats().await.expect("stats").by_status[usize::from(Status::Completed.code())], 200);
}

pub async fn a_dropped_wait_loses_nothing(rig: Rig) {
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    let id = rig.submit(task("a")).await;
    let other = rig.worker().await;
    assert_eq!(only(rig.claim_waiting(other)).await.id, id);
}

pub async fn what_was_claimed_and_not_received_is_given_back(rig: Rig) {
    let (first, second) = (rig.worker().await, rig.worker().await);
    {
        let request = ClaimRequest { worker: first, capabilities: None, up_to: 1, lease: LEASE, wait: true };
        let mut claim = pin!(rig.store.claim(request));
        let polled = std::future::poll_fn(|context| Poll::Ready(claim.as_mut().poll(context).is_pending())).await;
        assert!(polled, "nothing is ready yet");
        rig.submit(task("a")).await;
        settle().await;
        // Dropped after the task came and before anybody looked.
    }
    let claimed = only(rig.claim_waiting(second)).await;
    assert_eq!(claimed.attempt, 1, "the attempt that nobody received does not count");
    rig.finished(second, &claimed, completed()).await;
}

pub async fn many_dropped_waits_lose_nothing(rig: Rig) {
    for round in 0..40 {
        let worker = rig.worker().await;
        let waiting = rig.claim_waiting(worker);
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        let submitter = rig.clone();
        let submit = tokio::spawn(async move { submitter.submit(task("a")).await });
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        let received = waiting.await.ok();
        let id = submit.await.expect("no panic");
        if let Some(claimed) = received {
            assert_eq!(claimed.tasks[0].id, id);
            rig.finished(worker, &claimed.tasks[0], completed()).await;
        } else {
            let other = rig.worker().await;
            let claimed = only(rig.claim_waiting(other)).await;
            assert_eq!((claimed.id, claimed.attempt), (id, 1), "round {round}");
            rig.finished(other, &claimed, completed()).await;
        }
    }
}

pub async fn an_amended_time_wakes_a_waiting_claim(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(500))).await;
    let worker = rig.worker().await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.advance(seconds(5));
    rig.amend(id, Amendment { run_at: Some(rig.now()), ..Amendment::default() }).await.expect("it waits");
    rig.make_due().await;
    assert_eq!(only(waiting).await.id, id);
}

pub async fn a_claim_without_room_is_in_nobodys_way(rig: Rig) {
    let full = rig.worker().await;
    let request = ClaimRequest { worker: full, capabilities: None, up_to: 0, lease: LEASE, wait: true };
    let store = std::sync::Arc::clone(&rig.store);
    let without_room = tokio::spawn(async move { store.claim(request).await });
    settle().await;
    let waiting = rig.claim_waiting(rig.worker().await);
    settle().await;
    let id = rig.submit(task("a")).await;
    assert_eq!(only(waiting).await.id, id);
    assert!(!without_room.is_finished(), "it has nothing to be told");
    without_room.abort();
}

pub async fn a_cancellation_ends_one_wait_only(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.store.cancel(vec![claimed.id], windlass_core::actor::Actor::Api).await.expect("taken");
    let told = soon(rig.claim_waiting(worker)).await.expect("no panic");
    assert_eq!(told.cancel, vec![claimed.id]);
    let waiting = rig.claim_waiting(worker);
    settle().await;
    assert!(!waiting.is_finished(), "told once, it may wait in peace");
    let id = rig.submit(task("b")).await;
    let next = soon(waiting).await.expect("no panic");
    assert_eq!(next.tasks.first().map(|task| task.id), Some(id));
    assert_eq!(next.cancel, vec![claimed.id], "beside work it is named again");
}

/// Two tasks of one line, the first of which runs, and a claim that waits for the second.
async fn behind_another(rig: &Rig, built: crate::fixtures::TaskBuilder) -> Behind {
    let ids = rig.submit_all([built.clone(), built]).await;
    let holder = rig.worker().await;
    let running = rig.claim(holder).await;
    assert_eq!(running.id, ids[0]);
    let waiting = rig.claim_waiting(rig.worker().await);
    settle().await;
    assert!(!waiting.is_finished(), "it has to wait");
    Behind { holder, running, second: ids[1], waiting }
}

struct Behind {
    holder: windlass_core::ids::WorkerId,
    running: windlass_core::task::ClaimedTask,
    second: windlass_core::ids::TaskId,
    waiting: tokio::task::JoinHandle<Claimed>,
}

pub async fn a_waiting_claim_wakes_when_a_turn_is_passed_on(rig: Rig) {
    let behind = behind_another(&rig, task("a").ordered("k", OnFailure::Block)).await;
    rig.finished(behind.holder, &behind.running, completed()).await;
    assert_eq!(only(behind.waiting).await.id, behind.second);
}

pub async fn a_waiting_claim_wakes_when_the_first_of_a_line_steps_back(rig: Rig) {
    let behind = behind_another(&rig, task("a").ordered("k", OnFailure::Skip)).await;
    rig.advance(seconds(1));
    rig.finished(behind.holder, &behind.running, crate::fixtures::failed()).await;
    assert_eq!(only(behind.waiting).await.id, behind.second);
}

pub async fn a_waiting_claim_wakes_when_a_key_has_room(rig: Rig) {
    let behind = behind_another(&rig, task("a").at_most(1, "k")).await;
    rig.finished(behind.holder, &behind.running, completed()).await;
    assert_eq!(only(behind.waiting).await.id, behind.second);
}

pub async fn a_waiting_claim_wakes_when_a_limit_has_room(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    rig.change_queue("x", r#"{"concurrency":1}"#).await;
    for built in [task("a"), task("b").queue("x")] {
        let behind = behind_another(&rig, built).await;
        rig.finished(behind.holder, &behind.running, completed()).await;
        assert_eq!(only(behind.waiting).await.id, behind.second);
    }
}

pub async fn a_waiting_claim_wakes_when_a_limit_is_raised(rig: Rig) {
    rig.change_type("a", r#"{"concurrency":1}"#).await;
    let behind = behind_another(&rig, task("a")).await;
    rig.change_type("a", r#"{"concurrency":2}"#).await;
    assert_eq!(only(behind.waiting).await.id, behind.second);
}

pub async fn a_waiting_claim_wakes_when_the_worker_of_a_cancelled_task_knows(rig: Rig) {
    rig.change_type("c", r#"{"concurrency":1}"#).await;
    for built in [task("a").ordered("k", OnFailure::Block), task("b").at_most(1, "k"), task("c")] {
        let behind = behind_another(&rig, built).await;
        rig.cancel(behind.running.id).await.expect("it runs");
        settle().await;
        assert!(!behind.waiting.is_finished());
        rig.finish(behind.holder, &behind.running, completed()).await.expect_err("it was cancelled");
        assert_eq!(only(behind.waiting).await.id, behind.second);
    }
}

pub async fn a_waiting_claim_wakes_when_the_lease_of_a_cancelled_task_ends(rig: Rig) {
    let behind = behind_another(&rig, task("a").ordered("k", OnFailure::Block)).await;
    rig.cancel(behind.running.id).await.expect("it runs");
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(only(behind.waiting).await.id, behind.second);
}

pub async fn a_waiting_claim_wakes_when_the_first_of_a_line_leaves_it(rig: Rig) {
    // Nobody can take the first of each line, so that it waits.
    for way in ["cancel", "bury", "expire"] {
        let first = task("a").requires(&["nobody"]).expires_at(rig.now() + seconds(10)).ordered(way, OnFailure::Block);
        let ids = rig.submit_all([first, task("a").ordered(way, OnFailure::Block)]).await;
        let waiting = rig.claim_waiting(rig.worker().await);
        settle().await;
        assert!(!waiting.is_finished());
        match way {
            "cancel" => {
                rig.cancel(ids[0]).await.expect("it waits");
            }
            "bury" => rig.bury(ids[0], "bad").await.expect("it waits"),
            _ => {
                rig.advance(seconds(11));
                rig.expire().await;
            }
        }
        assert_eq!(only(waiting).await.id, ids[1]);
    }
}

pub async fn a_waiting_claim_wakes_when_its_worker_has_room(rig: Rig) {
    rig.change_type("big", r#"{"slots":2}"#).await;
    let small = rig.submit(task("a")).await;
    let worker = rig.register(WorkerProfile { capacity: 2, ..profile() }).await;
    let running = rig.claim(worker).await;
    assert_eq!(running.id, small);
    let waiting = rig.claim_waiting(worker);
    settle().await;
    let big = rig.submit(task("big")).await;
    settle().await;
    assert!(!waiting.is_finished(), "it has one slot left");
    rig.finished(worker, &running, completed()).await;
    assert_eq!(only(waiting).await.id, big);
}

pub async fn a_waiting_claim_gets_what_is_behind_a_task_that_another_took(rig: Rig) {
    rig.change_type("big", r#"{"slots":2}"#).await;
    rig.submit(task("a")).await;
    let busy = rig.register(WorkerProfile { capacity: 2, ..profile() }).await;
    rig.claim(busy).await;
    let has_one_slot = rig.claim_waiting(busy);
    settle_in_order().await;
    let idle = rig.register(WorkerProfile { capacity: 2, ..profile() }).await;
    let has_two_slots = rig.claim_waiting(idle);
    settle_in_order().await;
    let ids = rig.submit_all([task("big"), task("a")]).await;
    assert_eq!(only(has_two_slots).await.id, ids[0]);
    assert_eq!(only(has_one_slot).await.id, ids[1]);
}
