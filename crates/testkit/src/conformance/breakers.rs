//! Breakers of types and workers.

use windlass_core::breaker::{Forced, Scope, State, WORKER_RECOVERY, WORKER_STREAK};
use windlass_core::ids::WorkerId;
use windlass_core::status::Status;
use windlass_core::store::{BreakerError, Hindrance, LeaseError, Outcome, Waiting};
use windlass_core::task::ClaimedTask;

use super::waiting::{only, settle};
use crate::fixtures::{completed, error_code, failed, handling, serving, task, task_type};
use crate::rig::{LEASE, Rig, seconds};

/// Opens after three failures of three, for a minute.
const QUICK: &str = r#"{"breaker":{"min_attempts":3,"recovery_seconds":60}}"#;

/// A task that only the worker of its breaker test takes.
async fn fail_once(rig: &Rig, worker: WorkerId) {
    let id = rig.submit(task("a").max_retries(0)).await;
    let claimed = rig.claim(worker).await;
    assert_eq!(claimed.id, id);
    rig.finished(worker, &claimed, failed()).await;
}

/// One worker, and the breaker of type `a` open.
async fn opened(rig: &Rig) -> WorkerId {
    rig.change_type("a", QUICK).await;
    let worker = rig.worker().await;
    for _ in 0..3 {
        fail_once(rig, worker).await;
    }
    assert_eq!(state(rig).await, State::Open);
    worker
}

/// The breaker open, its time over, and the trial running beside another task that waits.
async fn on_trial(rig: &Rig) -> (WorkerId, ClaimedTask) {
    let worker = opened(rig).await;
    rig.submit_all((0..2).map(|_| task("a"))).await;
    rig.advance(seconds(60));
    let mut claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.len(), 1, "one task is tried");
    (worker, claimed.remove(0))
}

async fn state(rig: &Rig) -> State {
    rig.breaker("a").await.map_or(State::Closed, |view| view.state)
}

pub async fn a_breaker_opens_in_the_call_that_reports(rig: Rig) {
    rig.change_type("a", QUICK).await;
    let worker = rig.worker().await;
    fail_once(&rig, worker).await;
    fail_once(&rig, worker).await;
    let view = rig.breaker("a").await.expect("it counts");
    assert_eq!((view.state, view.figures.attempts, view.figures.failures), (State::Closed, 2, 2));
    fail_once(&rig, worker).await;
    let view = rig.breaker("a").await.expect("it is open");
    assert_eq!((view.state, view.forced), (State::Open, None));
    assert_eq!((view.since, view.until), (Some(rig.now()), Some(rig.now() + seconds(60))));
    assert!(view.reason.is_some());
    rig.submit(task("a")).await;
    rig.claim_nothing(worker).await;
}

pub async fn few_attempts_and_few_failures_open_nothing(rig: Rig) {
    rig.change_type("a", r#"{"breaker":{"min_attempts":5,"failure_ratio":0.5}}"#).await;
    let worker = rig.worker().await;
    for n in 0..20 {
        let (_, claimed) = (rig.submit(task("a")).await, rig.claim(worker).await);
        rig.finished(worker, &claimed, if n % 2 == 0 { completed() } else { failed() }).await;
    }
    assert_eq!(state(&rig).await, State::Closed, "half of them is not more than half");
    for _ in 0..4 {
        let (_, claimed) = (rig.submit(task("b")).await, rig.claim(worker).await);
        rig.finished(worker, &claimed, failed()).await;
    }
    rig.submit(task("b")).await;
    assert_eq!(rig.claim(worker).await.spec.task_type, task_type("b"), "four of four say nothing yet");
}

pub async fn old_attempts_are_forgotten(rig: Rig) {
    rig.change_type("a", r#"{"breaker":{"min_attempts":3,"window_seconds":60}}"#).await;
    let worker = rig.worker().await;
    for _ in 0..6 {
        fail_once(&rig, worker).await;
        rig.advance(seconds(40));
    }
    assert_eq!(state(&rig).await, State::Closed, "never three in a minute");
}

pub async fn being_asked_to_slow_down_is_no_outage(rig: Rig) {
    rig.change_type("a", QUICK).await;
    let worker = rig.worker().await;
    for _ in 0..10 {
        let (_, claimed) = (rig.submit(task("a").max_retries(0)).await, rig.claim(worker).await);
        rig.finished(worker, &claimed, Outcome::Failed(error_code("rate_limited"))).await;
    }
    assert_eq!(state(&rig).await, State::Closed);
}

pub async fn lapses_and_timeouts_count_as_failures(rig: Rig) {
    rig.change_type("a", r#"{"breaker":{"min_attempts":4}}"#).await;
    let worker = rig.worker().await;
    rig.submit_all((0..2).map(|_| task("a").timeout(seconds(5)).max_retries(0))).await;
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 2);
    rig.advance(seconds(6));
    rig.time_out().await;
    rig.submit_all((0..2).map(|_| task("a").max_crashes(1))).await;
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 2);
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(state(&rig).await, State::Open);
}

pub async fn one_sick_worker_opens_nothing_for_all(rig: Rig) {
    rig.change_type("a", QUICK).await;
    let (sick, other) = (rig.worker().await, rig.worker().await);
    for _ in 0..10 {
        fail_once(&rig, sick).await;
    }
    assert_eq!(state(&rig).await, State::Closed, "two are live and one failed");
    fail_once(&rig, other).await;
    assert_eq!(state(&rig).await, State::Open, "now two did");
}

pub async fn workers_that_are_silent_or_serve_others_do_not_count(rig: Rig) {
    rig.change_type("a", QUICK).await;
    rig.worker().await;
    rig.advance(seconds(120));
    rig.register(serving(&["elsewhere"])).await;
    rig.register(handling(&["b"])).await;
    let worker = rig.worker().await;
    for _ in 0..3 {
        fail_once(&rig, worker).await;
    }
    assert_eq!(state(&rig).await, State::Open);
}

pub async fn tasks_of_an_open_breaker_wait_and_use_nothing_up(rig: Rig) {
    let worker = opened(&rig).await;
    let id = rig.submit(task("a")).await;
    for _ in 0..5 {
        rig.advance(seconds(10));
        rig.claim_nothing(worker).await;
    }
    let state = rig.state(id).await;
    assert_eq!((state.status, state.attempt, state.retries), (Status::Queued, 0, 0));
}

pub async fn other_types_are_unaffected(rig: Rig) {
    let worker = opened(&rig).await;
    rig.submit(task("a")).await;
    let other = rig.submit(task("b")).await;
    assert_eq!(rig.claim(worker).await.id, other);
    rig.claim_nothing(worker).await;
}

pub async fn what_runs_when_it_opens_may_end(rig: Rig) {
    rig.change_type("a", QUICK).await;
    let worker = rig.worker().await;
    rig.submit(task("a").priority(windlass_core::priority::Priority::HIGH)).await;
    let running = rig.claim(worker).await;
    for _ in 0..3 {
        fail_once(&rig, worker).await;
    }
    rig.finished(worker, &running, completed()).await;
    assert_eq!(state(&rig).await, State::Open, "only a trial closes it");
}

pub async fn one_task_is_tried(rig: Rig) {
    let worker = opened(&rig).await;
    rig.submit_all((0..5).map(|n| task("a").queue(["x", "y"][n % 2]))).await;
    rig.advance(seconds(59));
    rig.claim_nothing(worker).await;
    rig.advance(seconds(1));
    assert_eq!(state(&rig).await, State::HalfOpen);
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 1);
    rig.claim_nothing(rig.worker().await).await;
    assert_eq!(state(&rig).await, State::HalfOpen);
}

pub async fn a_trial_that_succeeds_closes_it(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(state(&rig).await, State::Closed);
    rig.submit_all((0..3).map(|_| task("a"))).await;
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 4);
}

pub async fn a_closed_breaker_starts_counting_anew(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, completed()).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed()).await;
    assert_eq!(state(&rig).await, State::Closed, "the failures of before are forgotten");
}

pub async fn a_trial_that_fails_opens_it_again(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, failed()).await;
    let view = rig.breaker("a").await.expect("it is open");
    assert_eq!((view.state, view.until), (State::Open, Some(rig.now() + seconds(60))));
    assert!(view.since < Some(rig.now()), "it has not been closed since the first time");
    rig.claim_nothing(worker).await;
    rig.advance(seconds(60));
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 1);
}

pub async fn a_trial_that_is_given_back_lets_another_start(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, Outcome::Released).await;
    let mut claimed = rig.claim_up_to(worker, 10).await;
    assert_eq!(claimed.len(), 1);
    let trial = claimed.remove(0);
    rig.finished(worker, &trial, Outcome::Snoozed(seconds(60))).await;
    let trial = rig.claim(worker).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(state(&rig).await, State::Closed);
}

pub async fn a_trial_that_is_cancelled_lets_another_start(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.cancel(trial.id).await.expect("it runs");
    rig.claim_nothing(worker).await;
    assert_eq!(rig.finish(worker, &trial, completed()).await, Err(LeaseError::Lost));
    let trial = rig.claim(worker).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(state(&rig).await, State::Closed);
}

pub async fn a_trial_whose_worker_is_lost_opens_it_again(rig: Rig) {
    let (worker, _) = on_trial(&rig).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(state(&rig).await, State::Open);
    rig.claim_nothing(worker).await;
}

pub async fn a_trial_that_is_slowed_down_lets_another_start(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, Outcome::Failed(error_code("rate_limited"))).await;
    assert_eq!(state(&rig).await, State::HalfOpen);
    assert_eq!(rig.claim_up_to(worker, 10).await.len(), 1);
}

pub async fn a_breaker_is_forced_open(rig: Rig) {
    let worker = rig.worker().await;
    rig.submit(task("a")).await;
    let view = rig.force_type("a", Some(Forced::Open)).await;
    assert_eq!(
        (view.state, view.forced, view.since, view.until),
        (State::Open, Some(Forced::Open), Some(rig.now()), None)
    );
    rig.advance(seconds(100_000));
    rig.claim_nothing(worker).await;
    assert_eq!(rig.breaker("a").await, Some(view));
    rig.force_type("a", None).await;
    assert_eq!(state(&rig).await, State::Closed);
    rig.claim(worker).await;
}

pub async fn a_breaker_is_forced_closed(rig: Rig) {
    let worker = opened(&rig).await;
    rig.force_type("a", Some(Forced::Closed)).await;
    for _ in 0..10 {
        fail_once(&rig, worker).await;
    }
    assert_eq!(state(&rig).await, State::Closed, "it never opens");
    rig.force_type("a", None).await;
    for _ in 0..2 {
        fail_once(&rig, worker).await;
        assert_eq!(state(&rig).await, State::Closed, "what came before is forgotten");
    }
    fail_once(&rig, worker).await;
    assert_eq!(state(&rig).await, State::Open);
}

pub async fn a_type_without_tasks_can_be_forced(rig: Rig) {
    rig.force_type("a", Some(Forced::Open)).await;
    rig.submit(task("a")).await;
    rig.claim_nothing(rig.worker().await).await;
}

pub async fn only_known_workers_are_forced(rig: Rig) {
    let scope = Scope::Worker(WorkerId::random());
    assert_eq!(rig.store.force_breaker(scope, Some(Forced::Open)).await, Err(BreakerError::UnknownWorker));
}

pub async fn breakers_survive_a_restart(rig: Rig) {
    let worker = opened(&rig).await;
    rig.submit(task("a")).await;
    rig.force_type("forced", Some(Forced::Open)).await;
    let sick = rig.worker().await;
    rig.store.force_breaker(Scope::Worker(sick), Some(Forced::Open)).await.expect("known");
    let mut before = rig.store.breakers().await.expect("read");
    let Some(rig) = rig.reopen().await else { return };
    let after = rig.store.breakers().await.expect("read");
    for view in &mut before {
        // The figures of the window live in memory.
        view.figures = windlass_core::breaker::Figures::default();
    }
    assert_eq!(after, before);
    rig.claim_nothing(worker).await;
    rig.advance(seconds(60));
    rig.claim_nothing(sick).await;
    let trial = rig.claim(worker).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(state(&rig).await, State::Closed);
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(state(&rig).await, State::Closed);
    assert_eq!(rig.breaker("forced").await.map(|view| view.state), Some(State::Open));
}

pub async fn the_reason_to_wait_is_told(rig: Rig) {
    let worker = opened(&rig).await;
    let ids = rig.submit_all((0..2).map(|_| task("a"))).await;
    let until = Some(rig.now() + seconds(60));
    assert_eq!(rig.waiting_for(ids[0]).await, Some(Waiting::Lane(Hindrance::BreakerOpen { until })));
    rig.advance(seconds(60));
    rig.claim(worker).await;
    let told = rig.waiting_for(ids[1]).await;
    assert_eq!(told, Some(Waiting::Lane(Hindrance::BreakerOpen { until: None })), "the trial runs");
}

pub async fn waiting_claims_wake_when_it_half_opens(rig: Rig) {
    let worker = opened(&rig).await;
    let id = rig.submit(task("a")).await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    assert!(!waiting.is_finished());
    rig.advance(seconds(60));
    rig.make_due().await;
    assert_eq!(only(waiting).await.id, id);
}

pub async fn waiting_claims_wake_when_the_trial_closes_it(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    let waiting = rig.claim_waiting(rig.worker().await);
    settle().await;
    assert!(!waiting.is_finished());
    rig.finished(worker, &trial, completed()).await;
    assert_ne!(only(waiting).await.id, trial.id);
}

pub async fn a_fair_queue_waits_for_a_breaker_too(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    let worker = opened(&rig).await;
    let ids = rig.submit_all([task("a").tenant("t"), task("a").tenant("u")]).await;
    let other = rig.submit(task("b").tenant("t")).await;
    assert_eq!(rig.claim(worker).await.id, other);
    let waiting = rig.claim_waiting(worker);
    settle().await;
    assert!(!waiting.is_finished());
    rig.advance(seconds(60));
    rig.make_due().await;
    let trial = only(waiting).await;
    assert!(ids.contains(&trial.id));
    rig.claim_nothing(worker).await;
    rig.finished(worker, &trial, completed()).await;
    rig.claim(worker).await;
}

pub async fn a_time_out_of_a_trial_opens_it_again(rig: Rig) {
    let worker = opened(&rig).await;
    rig.submit_all((0..2).map(|_| task("a").timeout(seconds(5)))).await;
    rig.advance(seconds(60));
    rig.claim(worker).await;
    rig.advance(seconds(6));
    rig.time_out().await;
    assert_eq!(state(&rig).await, State::Open);
    rig.claim_nothing(worker).await;
}

pub async fn only_one_trial_runs_over_a_restart(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.claim_nothing(worker).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(state(&rig).await, State::Closed);
}

pub async fn waiting_claims_wake_when_it_is_forced_closed(rig: Rig) {
    let worker = opened(&rig).await;
    let id = rig.submit(task("a")).await;
    let waiting = rig.claim_waiting(worker);
    settle().await;
    rig.force_type("a", Some(Forced::Closed)).await;
    assert_eq!(only(waiting).await.id, id);
}

/// A worker on which everything of type `a` breaks, though it succeeds on another.
async fn sick_worker(rig: &Rig) -> (WorkerId, WorkerId) {
    let (sound, sick) = (rig.worker().await, rig.worker().await);
    rig.submit(task("a")).await;
    let claimed = rig.claim(sound).await;
    rig.finished(sound, &claimed, completed()).await;
    for n in 0..WORKER_STREAK {
        assert_eq!(worker_state(rig, sick).await, State::Closed, "after {n}");
        break_once(rig, sick).await;
    }
    (sound, sick)
}

async fn break_once(rig: &Rig, worker: WorkerId) {
    rig.submit(task("a")).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, Outcome::Failed(error_code("panic"))).await;
}

async fn worker_state(rig: &Rig, worker: WorkerId) -> State {
    rig.breaker_of(&Scope::Worker(worker)).await.map_or(State::Closed, |view| view.state)
}

pub async fn a_sick_worker_is_left_alone(rig: Rig) {
    let (sound, sick) = sick_worker(&rig).await;
    assert_eq!(worker_state(&rig, sick).await, State::Open);
    assert!(rig.worker_state(sick).await.expect("known").unhealthy);
    let id = rig.submit(task("b")).await;
    rig.claim_nothing(sick).await;
    assert_eq!(rig.claim(sound).await.id, id);
}

pub async fn a_worker_is_not_blamed_for_what_fails_everywhere(rig: Rig) {
    let worker = rig.worker().await;
    for _ in 0..2 * WORKER_STREAK {
        break_once(&rig, worker).await;
    }
    assert_eq!(worker_state(&rig, worker).await, State::Closed);
}

pub async fn one_task_in_between_that_goes_well_ends_the_streak(rig: Rig) {
    let (sound, other) = (rig.worker().await, rig.worker().await);
    rig.submit(task("a")).await;
    let claimed = rig.claim(sound).await;
    rig.finished(sound, &claimed, completed()).await;
    for n in 0..3 * WORKER_STREAK {
        if n % WORKER_STREAK == WORKER_STREAK - 1 {
            rig.submit(task("b")).await;
            let claimed = rig.claim(other).await;
            rig.finished(other, &claimed, completed()).await;
        } else {
            break_once(&rig, other).await;
        }
    }
    assert_eq!(worker_state(&rig, other).await, State::Closed);
}

pub async fn lost_leases_count_against_their_worker(rig: Rig) {
    let (sound, sick) = (rig.worker().await, rig.worker().await);
    rig.submit_all((0..=WORKER_STREAK).map(|_| task("a"))).await;
    let claimed = rig.claim(sound).await;
    rig.finished(sound, &claimed, completed()).await;
    assert_eq!(rig.claim_up_to(sick, 10).await.len(), WORKER_STREAK);
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    assert_eq!(worker_state(&rig, sick).await, State::Open);
}

pub async fn a_sick_worker_is_tried_with_one_task(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    rig.submit_all((0..3).map(|_| task("b"))).await;
    rig.advance(WORKER_RECOVERY);
    let trial = rig.claim_up_to(sick, 10).await;
    assert_eq!(trial.len(), 1);
    rig.claim_nothing(sick).await;
    rig.finished(sick, &trial[0], completed()).await;
    assert_eq!(worker_state(&rig, sick).await, State::Closed);
    assert_eq!(rig.claim_up_to(sick, 10).await.len(), 2);
}

pub async fn a_worker_whose_trial_breaks_is_left_alone_again(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    rig.advance(WORKER_RECOVERY);
    break_once(&rig, sick).await;
    assert_eq!(worker_state(&rig, sick).await, State::Open);
    rig.submit(task("b")).await;
    rig.claim_nothing(sick).await;
}

pub async fn a_released_trial_of_a_worker_lets_another_start(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    rig.submit(task("b")).await;
    rig.advance(WORKER_RECOVERY);
    let trial = rig.claim(sick).await;
    rig.finished(sick, &trial, Outcome::Released).await;
    rig.claim(sick).await;
}

pub async fn registering_anew_is_no_cure(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    let profile = rig.worker_state(sick).await.expect("known").profile;
    rig.register(profile).await;
    rig.submit(task("b")).await;
    rig.claim_nothing(sick).await;
}

pub async fn a_worker_is_forced(rig: Rig) {
    let worker = rig.worker().await;
    let scope = Scope::Worker(worker);
    rig.submit(task("a")).await;
    rig.store.force_breaker(scope.clone(), Some(Forced::Open)).await.expect("known");
    rig.claim_nothing(worker).await;
    rig.store.force_breaker(scope.clone(), None).await.expect("known");
    rig.claim(worker).await;
    assert_eq!(rig.breaker_of(&scope).await, None);
}

pub async fn a_waiting_claim_of_a_sick_worker_wakes_for_its_trial(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    let id = rig.submit(task("b")).await;
    let waiting = rig.claim_waiting(sick);
    settle().await;
    assert!(!waiting.is_finished());
    rig.advance(WORKER_RECOVERY);
    rig.make_due().await;
    assert_eq!(only(waiting).await.id, id);
}

pub async fn a_sick_worker_stays_sick_over_a_restart(rig: Rig) {
    let (_, sick) = sick_worker(&rig).await;
    let Some(rig) = rig.reopen().await else { return };
    rig.submit(task("b")).await;
    rig.claim_nothing(sick).await;
    rig.advance(WORKER_RECOVERY);
    assert_eq!(rig.claim_up_to(sick, 10).await.len(), 1);
}

const REPLAYS: &str = r#"{"breaker":{"min_attempts":3,"recovery_seconds":60},"auto_replay":{"classes":["unknown"],"rate_per_second":10}}"#;

pub async fn an_outage_that_is_over_is_marked_for_replay(rig: Rig) {
    let worker = opened(&rig).await;
    rig.change_type("a", REPLAYS).await;
    let since = rig.breaker("a").await.expect("open").since;
    rig.submit_all((0..2).map(|_| task("a"))).await;
    rig.advance(seconds(60));
    let trial = rig.claim(worker).await;
    assert_eq!(rig.breaker("a").await.expect("half open").replay_since, None, "the outage is not over");
    rig.finished(worker, &trial, completed()).await;
    let view = rig.breaker("a").await.expect("it is marked");
    assert_eq!((view.state, view.replay_since), (State::Closed, since));
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.breaker("a").await.expect("marked").replay_since, since, "until it is settled");
    let rig = rig.reopen().await.unwrap_or(rig);
    assert_eq!(rig.breaker("a").await.expect("marked").replay_since, since);
    let marked = since.expect("it has opened");
    rig.store.replay_settled(task_type("a"), marked + seconds(1)).await.expect("taken");
    assert_eq!(rig.breaker("a").await.expect("marked").replay_since, since, "another outage was settled");
    rig.store.replay_settled(task_type("a"), marked).await.expect("taken");
    assert_eq!(rig.breaker("a").await.and_then(|view| view.replay_since), None);
    let rig = rig.reopen().await.unwrap_or(rig);
    assert_eq!(rig.breaker("a").await.and_then(|view| view.replay_since), None);
}

pub async fn an_outage_without_a_rule_is_not_marked(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.finished(worker, &trial, completed()).await;
    assert_eq!(rig.breaker("a").await.and_then(|view| view.replay_since), None);
}

pub async fn a_new_outage_takes_the_mark_away(rig: Rig) {
    let (worker, trial) = on_trial(&rig).await;
    rig.change_type("a", REPLAYS).await;
    rig.finished(worker, &trial, completed()).await;
    assert!(rig.breaker("a").await.expect("marked").replay_since.is_some());
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed()).await;
    for _ in 0..2 {
        fail_once(&rig, worker).await;
    }
    let view = rig.breaker("a").await.expect("open");
    assert_eq!((view.state, view.replay_since), (State::Open, None));
}

pub async fn leases_that_lapse_together_do_not_make_a_sound_worker_sick(rig: Rig) {
    let (worker, other) = (rig.worker().await, rig.worker().await);
    rig.submit_all((0..8).map(|_| task("a").max_crashes(10))).await;
    let lost = rig.claim_up_to(worker, 8).await;
    assert_eq!(lost.len(), 8);
    // It goes on with newer tasks while nothing is heard of the old ones.
    rig.submit_all([task("a"), task("a")]).await;
    for id in [worker, other] {
        let claimed = rig.claim(id).await;
        rig.finished(id, &claimed, completed()).await;
    }
    rig.advance(LEASE);
    assert_eq!(rig.lapse().await, 8);
    rig.submit(task("a")).await;
    rig.claim(worker).await;
}
