//! Leases: who owns an attempt, and what is lost with it.

use windlass_core::failure::{EndReason, ErrorClass};
use windlass_core::status::Status;
use windlass_core::store::{LeaseError, ProgressReport, Renewal, StepReport};
use windlass_core::task::Progress;
use windlass_core::time::Timestamp;

use crate::fixtures::{completed, failed, json, task};
use crate::rig::{LEASE, Rig, seconds};

fn progress(percent: f64) -> Progress {
    Progress {
        percent,
        message: Some("half".into()),
        step: Some(1),
        steps: Some(2),
        metadata: Some(json(r#"{"x":1}"#)),
        at: Timestamp::EPOCH,
    }
}

pub async fn a_lease_lapses_when_it_is_not_renewed(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let place = rig.state(claimed.id).await.ready_at;
    rig.advance(LEASE - seconds(1));
    assert_eq!(rig.lapse().await, 0, "not before its time");
    rig.advance(seconds(2));
    assert_eq!(rig.lapse().await, 1);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Scheduled, 1, 0, 1));
    assert_eq!(state.run_at, rig.now() + seconds(10), "delayed by its retry policy");
    assert!(state.lease_expires_at.is_none());
    assert_eq!(state.failed_attempts.len(), 1);
    assert_eq!(
        (state.failed_attempts[0].class, state.failed_attempts[0].worker),
        (ErrorClass::WorkerLost, Some(worker))
    );

    let younger = rig.submit(task("a")).await;
    rig.advance(seconds(10));
    assert_eq!(rig.make_due().await, 1);
    assert_eq!(rig.state(claimed.id).await.ready_at, place, "after the delay it stands where it stood");
    let other = rig.worker().await;
    let again = rig.claim(other).await;
    assert_eq!((again.id, again.attempt, again.crashes), (claimed.id, 2, 1));
    assert_eq!(rig.claim(other).await.id, younger);
}

pub async fn a_late_result_is_refused_and_changes_nothing(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    let before = rig.task(claimed.id).await;
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
    assert_eq!(rig.finish(worker, &claimed, failed()).await, Err(LeaseError::Lost));
    assert_eq!(rig.task(claimed.id).await, before);
}

pub async fn a_result_at_the_moment_of_expiry_has_one_winner(rig: Rig) {
    for _ in 0..20 {
        let (worker, claimed) = rig.started(task("a").queue("race")).await;
        rig.advance(LEASE);
        let (finisher, lapser, task) = (rig.clone(), rig.clone(), claimed.clone());
        let result = tokio::spawn(async move { finisher.finish(worker, &task, completed()).await });
        let lapse = tokio::spawn(async move { lapser.lapse().await });
        let (result, _) = (result.await.expect("no panic"), lapse.await.expect("no panic"));
        let kinds = rig.kinds(claimed.id).await;
        match result {
            Ok(_) => assert_eq!(kinds, ["submitted", "claimed", "completed"]),
            Err(refused) => {
                assert_eq!(refused, LeaseError::Lost);
                rig.advance(seconds(1));
                rig.lapse().await;
                assert_eq!(rig.kinds(claimed.id).await, ["submitted", "claimed", "lapsed"]);
                rig.cancel(claimed.id).await.expect("it waits");
            }
        }
    }
}

pub async fn crashes_end_in_a_poison_pill(rig: Rig) {
    let (_, first) = rig.started(task("a").max_crashes(3).max_retries(9)).await;
    for crash in 1..=3 {
        rig.advance(LEASE + seconds(1));
        assert_eq!(rig.lapse().await, 1);
        let state = rig.state(first.id).await;
        assert_eq!((state.attempt, state.crashes, state.retries), (crash, crash, 0), "crashes have their own budget");
        if crash < 3 {
            assert_eq!(state.status, Status::Scheduled);
            rig.advance(seconds(3600));
            rig.make_due().await;
            let worker = rig.worker().await;
            assert_eq!(rig.claim(worker).await.crashes, crash);
        }
    }
    let state = rig.state(first.id).await;
    assert_eq!((state.status, state.end_reason), (Status::DeadLetter, Some(EndReason::PoisonPill)));
    assert_eq!(state.ended_at, Some(rig.now()));
    assert_eq!(state.failed_attempts.len(), 3);
}

pub async fn a_task_without_retries_crashes_once(rig: Rig) {
    let (_, claimed) = rig.started(task("a").max_retries(0).max_crashes(3)).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.end_reason, state.crashes), (Status::DeadLetter, Some(EndReason::PoisonPill), 1));
}

pub async fn a_poison_pill_without_dead_letter_fails(rig: Rig) {
    let (_, claimed) = rig.started(task("a").max_crashes(1).no_dead_letter()).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.end_reason, state.crashes), (Status::Failed, Some(EndReason::PoisonPill), 1));
}

pub async fn failures_and_crashes_are_counted_apart(rig: Rig) {
    let (worker, first) = rig.started(task("a")).await;
    rig.finished(worker, &first, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim(worker).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    let state = rig.state(first.id).await;
    assert_eq!((state.attempt, state.retries, state.crashes), (2, 1, 1));
}

pub async fn a_heartbeat_renews_every_lease_of_the_worker(rig: Rig) {
    rig.submit_all((0..3).map(|_| task("a"))).await;
    let (worker, other) = (rig.worker().await, rig.worker().await);
    let claimed = rig.claim_up_to(worker, 2).await;
    let foreign = rig.claim(other).await;
    rig.advance(seconds(20));
    let beaten = rig.beat(worker).await;
    assert_eq!(beaten.lease_expires_at, rig.now() + LEASE);
    assert!(beaten.cancel.is_empty() && beaten.lost.is_empty() && !beaten.should_drain);
    assert_eq!(rig.state(claimed[0].id).await.lease_expires_at, Some(rig.now() + LEASE));
    rig.advance(seconds(20));
    assert_eq!(rig.lapse().await, 1);
    assert_eq!(rig.status(foreign.id).await, Status::Scheduled, "another worker's lease was not renewed");
    for task in &claimed {
        rig.finished(worker, task, completed()).await;
    }
}

pub async fn a_heartbeat_that_names_tasks_renews_only_those(rig: Rig) {
    let ids = rig.submit_all((0..2).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 2).await;
    rig.advance(seconds(20));
    let named = Renewal::Named(vec![(claimed[0].id, claimed[0].token)]);
    let beaten = rig.try_beat(worker, named).await.expect("known");
    assert!(beaten.lost.is_empty());
    rig.advance(seconds(20));
    assert_eq!(rig.lapse().await, 1);
    assert_eq!((rig.status(ids[0]).await, rig.status(ids[1]).await), (Status::Executing, Status::Scheduled));
}

pub async fn a_heartbeat_with_a_forged_token_renews_nothing(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let token = claimed.token.to_string();
    let (claim, check) = token.split_once('.').expect("a claim and its check");
    let forged = format!("{claim}.{:x}", u64::from_str_radix(check, 16).expect("hex") ^ 1);
    let forged = forged.parse().expect("the form of a token");
    rig.advance(seconds(20));
    let beaten = rig.try_beat(worker, Renewal::Named(vec![(claimed.id, forged)])).await.expect("known");
    assert_eq!(beaten.lost, [claimed.id]);
    rig.advance(seconds(11));
    assert_eq!(rig.lapse().await, 1, "the lease was not renewed");
}

pub async fn a_heartbeat_tells_which_named_leases_are_lost(rig: Rig) {
    let (worker, first) = rig.started(task("a")).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    let before = rig.state(first.id).await;
    rig.advance(seconds(1));
    let beaten = rig.try_beat(worker, Renewal::Named(vec![(first.id, first.token)])).await.expect("known");
    assert_eq!(beaten.lost, vec![first.id], "the old token is lost even though the same worker has the new one");
    assert_eq!(rig.state(first.id).await.lease_expires_at, before.lease_expires_at, "nothing was renewed by it");
    let thief = rig.worker().await;
    let beaten = rig.try_beat(thief, Renewal::Named(vec![(second.id, second.token)])).await.expect("known");
    assert_eq!(beaten.lost, vec![second.id], "another worker's token renews nothing");
    let beaten = rig.try_beat(worker, Renewal::Named(vec![(second.id, second.token)])).await.expect("known");
    assert!(beaten.lost.is_empty());
}

pub async fn a_lapsed_lease_is_not_renewed(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.beat(worker).await;
    assert_eq!(
        rig.status(claimed.id).await,
        Status::Scheduled,
        "a worker that calls again is back; its leases stay lost"
    );
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
}

pub async fn a_renewal_never_shortens_a_lease_of_another_length(rig: Rig) {
    rig.submit(task("a")).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_for(worker, seconds(5)).await;
    assert_eq!(claimed.lease_expires_at, rig.now() + seconds(5), "a lease lasts as long as was asked");
    rig.beat(worker).await;
    rig.advance(seconds(6));
    assert_eq!(rig.lapse().await, 0, "the heartbeat said how long from then on");
    rig.advance(LEASE);
    assert_eq!(rig.lapse().await, 1);
}

pub async fn nothing_lapses_or_times_out_while_forgiven(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").timeout(seconds(20))).await;
    rig.advance(seconds(3600));
    rig.store.forgive(LEASE).await.expect("the store forgives");
    assert_eq!((rig.lapse().await, rig.time_out().await), (0, 0), "Windlass was away, not the worker");
    rig.advance(LEASE - seconds(1));
    assert_eq!((rig.lapse().await, rig.time_out().await), (0, 0));
    let (_, late) = rig.started(task("b")).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.advance(seconds(2));
    assert_eq!(rig.lapse().await, 0, "the lease of a later claim has its own time");
    assert_eq!(rig.status(late.id).await, Status::Executing);
}

pub async fn forgiveness_ends(rig: Rig) {
    let (_, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(3600));
    rig.store.forgive(LEASE).await.expect("the store forgives");
    rig.advance(LEASE + seconds(1));
    assert_eq!(rig.lapse().await, 1);
    assert_eq!(rig.status(claimed.id).await, Status::Scheduled);
}

pub async fn an_attempt_times_out_even_if_its_worker_beats(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").timeout(seconds(100))).await;
    for _ in 0..4 {
        rig.advance(seconds(24));
        rig.beat(worker).await;
        assert_eq!(rig.time_out().await, 0);
    }
    rig.advance(seconds(5));
    assert_eq!(rig.time_out().await, 1);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Scheduled, 1, 1, 0));
    assert_eq!((state.run_at, state.ready_at), (rig.now() + seconds(10), rig.now() + seconds(10)));
    assert_eq!(state.failed_attempts[0].class, ErrorClass::Timeout);
    assert_eq!(rig.finish(worker, &claimed, completed()).await, Err(LeaseError::Lost));
}

pub async fn a_timeout_gives_the_next_attempt_more_time(rig: Rig) {
    let (worker, first) = rig.started(task("a").timeout(seconds(20)).max_retries(9)).await;
    rig.advance(seconds(21));
    rig.time_out().await;
    assert_eq!(rig.state(first.id).await.timeout, seconds(30));
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    assert_eq!(second.timeout, seconds(30));
    rig.finished(worker, &second, failed()).await;
    assert_eq!(rig.state(first.id).await.timeout, seconds(30), "a plain failure adds nothing");
    rig.advance(seconds(20));
    rig.make_due().await;
    let third = rig.claim(worker).await;
    rig.finished(worker, &third, windlass_core::store::Outcome::Failed(crate::fixtures::error_code("oom"))).await;
    assert_eq!(rig.state(first.id).await.timeout, seconds(45), "out of memory does");
}

pub async fn a_timeout_with_no_retry_left_gives_up(rig: Rig) {
    let (_, claimed) = rig.started(task("a").timeout(seconds(20)).max_retries(0)).await;
    rig.advance(seconds(21));
    assert_eq!(rig.time_out().await, 1);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.end_reason, state.crashes), (Status::DeadLetter, Some(EndReason::MaxRetries), 0));
}

pub async fn progress_is_kept_under_its_lease(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(2));
    let report = |percent| ProgressReport { task: claimed.id, token: claimed.token, progress: progress(percent) };
    let answers = rig.store.record_progress(worker, vec![report(10.0), report(50.0)]).await.expect("taken");
    assert_eq!(answers, vec![Ok(()), Ok(())]);
    let kept = rig.state(claimed.id).await.progress.expect("progress");
    assert_eq!((kept.percent, kept.step, kept.steps), (50.0, Some(1), Some(2)));
    assert_eq!((kept.message.as_deref(), kept.metadata), (Some("half"), Some(json(r#"{"x":1}"#))));
    assert_eq!(kept.at, rig.now(), "the store says when");

    let thief = rig.worker().await;
    let refused = rig.store.record_progress(thief, vec![report(90.0)]).await.expect("answered");
    assert_eq!(refused, vec![Err(LeaseError::Lost)]);
    rig.finished(worker, &claimed, failed()).await;
    let refused = rig.store.record_progress(worker, vec![report(90.0)]).await.expect("answered");
    assert_eq!(refused, vec![Err(LeaseError::Lost)]);
}

pub async fn a_retry_starts_with_no_progress(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let report = ProgressReport { task: claimed.id, token: claimed.token, progress: progress(50.0) };
    rig.store.record_progress(worker, vec![report]).await.expect("taken")[0].expect("live");
    rig.finished(worker, &claimed, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim(worker).await;
    assert_eq!(rig.state(claimed.id).await.progress, None);
}

pub async fn finished_steps_reach_later_attempts(rig: Rig) {
    let (worker, first) = rig.started(task("a")).await;
    let step = |token, name: &str, result: &str| StepReport {
        task: first.id,
        token,
        name: name.to_owned(),
        result: json(result),
    };
    let reports =
        vec![step(first.token, "charge", "1"), step(first.token, "mail", "[2]"), step(first.token, "charge", "9")];
    assert_eq!(rig.store.record_steps(worker, reports).await.expect("taken"), vec![Ok(()); 3]);
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    let late = rig.store.record_steps(worker, vec![step(first.token, "late", "1")]).await.expect("answered");
    assert_eq!(late, vec![Err(LeaseError::Lost)], "a step is fenced like a result");
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    let steps: Vec<_> = second.steps.iter().map(|(name, result)| (name.as_str(), result.as_str())).collect();
    assert_eq!(steps, [("charge", "1"), ("mail", "[2]")], "a step recorded twice keeps its first result");
    rig.store.record_steps(worker, vec![step(second.token, "charge", "7")]).await.expect("taken")[0].expect("live");
    rig.finished(worker, &second, windlass_core::store::Outcome::Released).await;
    assert_eq!(rig.claim(worker).await.steps["charge"], json("1"));
}

pub async fn steps_are_bounded(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let step =
        |n: usize| StepReport { task: claimed.id, token: claimed.token, name: format!("s{n}"), result: json("1") };
    let most = windlass_core::limits::STEPS;
    let answers = rig.store.record_steps(worker, (0..most).map(step).collect()).await.expect("taken");
    assert!(answers.iter().all(Result::is_ok));
    let answers = rig.store.record_steps(worker, vec![step(most), step(0)]).await.expect("answered");
    assert_eq!(answers, vec![Err(LeaseError::TooManySteps), Ok(())]);
}
