//! Results in: what each outcome does, and the fence that guards it.

use windlass_core::failure::{EndReason, ErrorClass, ErrorReport};
use windlass_core::filter::TaskFilter;
use windlass_core::retry::Jitter;
use windlass_core::status::Status;
use windlass_core::store::{Finish, LeaseError, Outcome};

use crate::fixtures::{again, completed, completed_with, error, error_code, failed, failed_for_good, json, task};
use crate::rig::{Rig, seconds};

pub async fn success_completes_the_task(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(3));
    let finished = rig.finished(worker, &claimed, completed_with(r#"{ "url": "x" }"#)).await;
    assert_eq!((finished.status, finished.follow_ups.len()), (Status::Completed, 0));
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Completed, 1, 0, 0));
    assert_eq!(state.result, Some(json(r#"{ "url": "x" }"#)));
    assert_eq!((state.ended_at, state.worker), (Some(rig.now()), Some(worker)));
    assert_eq!((state.end_reason, state.lease_expires_at), (None, None));
    rig.claim_nothing(worker).await;
}

pub async fn a_failure_with_retries_left_is_scheduled(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(3));
    let report = ErrorReport {
        code: Some("db".into()),
        stack: Some("at x".into()),
        details: Some(json("[1]")),
        ..error("no answer")
    };
    let finished = rig.finished(worker, &claimed, Outcome::Failed(report.clone())).await;
    assert_eq!(finished.status, Status::Scheduled);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Scheduled, 1, 1, 0));
    assert!(state.retrying);
    let due = rig.now() + seconds(10);
    assert_eq!((state.run_at, state.ready_at), (due, due), "it joins anew after the delay");
    assert_eq!((state.ended_at, state.lease_expires_at), (None, None));
    assert_eq!(state.failed_attempts.len(), 1);
    let attempt = &state.failed_attempts[0];
    assert_eq!((attempt.attempt, attempt.worker, attempt.class), (1, Some(worker), ErrorClass::Unknown));
    assert_eq!((attempt.started_at, attempt.ended_at), (rig.now() - seconds(3), rig.now()));
    assert_eq!(attempt.error, report);
    rig.claim_nothing(worker).await;
}

pub async fn delays_follow_the_policy_of_the_task(rig: Rig) {
    let (worker, first) = rig.started(task("a").max_retries(4)).await;
    rig.finished(worker, &first, failed()).await;
    for (attempt, delay) in [(2, 10), (3, 20), (4, 40)] {
        rig.advance(seconds(delay) - std::time::Duration::from_micros(1));
        assert_eq!(rig.make_due().await, 0, "not a moment too early");
        rig.advance(std::time::Duration::from_micros(1));
        assert_eq!(rig.make_due().await, 1);
        let claimed = rig.claim(worker).await;
        assert_eq!(claimed.attempt, attempt);
        rig.finished(worker, &claimed, failed()).await;
    }
    assert_eq!(rig.state(first.id).await.retries, 4);
}

pub async fn jitter_keeps_delays_in_their_bounds(rig: Rig) {
    let ids = rig.submit_all((0..30).map(|_| task("a").retry(|retry| retry.jitter = Jitter::Equal))).await;
    let worker = rig.worker().await;
    for claimed in rig.claim_up_to(worker, 30).await {
        rig.finished(worker, &claimed, failed()).await;
    }
    let mut delays = std::collections::BTreeSet::new();
    for id in ids {
        let delay = rig.state(id).await.run_at.since(rig.now());
        assert!((seconds(5)..=seconds(10)).contains(&delay), "{delay:?}");
        delays.insert(delay);
    }
    assert!(delays.len() > 10, "what failed together does not return together: {delays:?}");
}

pub async fn the_handlers_delay_wins(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let report = ErrorReport { retry_after_seconds: Some(seconds(77)), ..error_code("rate_limited") };
    rig.finished(worker, &claimed, Outcome::Failed(report)).await;
    let state = rig.state(claimed.id).await;
    assert_eq!(state.run_at, rig.now() + seconds(77));
    assert_eq!(state.failed_attempts[0].class, ErrorClass::RateLimited);
}

pub async fn a_permanent_failure_is_a_dead_letter_at_once(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let finished = rig.finished(worker, &claimed, failed_for_good()).await;
    assert_eq!(finished.status, Status::DeadLetter);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::DeadLetter, 1, 0, 0));
    assert_eq!((state.end_reason, state.ended_at), (Some(EndReason::PermanentError), Some(rig.now())));
    assert_eq!(state.failed_attempts[0].class, ErrorClass::Permanent);
    assert!(!state.retrying);
}

pub async fn codes_of_the_policy_decide_before_the_handler(rig: Rig) {
    let with_codes = || {
        task("a").retry(|retry| {
            retry.retryable_codes = vec!["again".into()];
            retry.non_retryable_codes = vec!["never".into()];
        })
    };
    let (worker, claimed) = rig.started(with_codes()).await;
    let report = ErrorReport { retriable: Some(false), ..error_code("again") };
    assert_eq!(rig.finished(worker, &claimed, Outcome::Failed(report)).await.status, Status::Scheduled);
    let (worker, claimed) = rig.started(with_codes()).await;
    let report = ErrorReport { retriable: Some(true), ..error_code("never") };
    assert_eq!(rig.finished(worker, &claimed, Outcome::Failed(report)).await.status, Status::DeadLetter);
}

pub async fn the_last_retry_ends_in_a_dead_letter(rig: Rig) {
    let (worker, first) = rig.started(task("a").max_retries(1)).await;
    rig.finished(worker, &first, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    assert_eq!(rig.finished(worker, &second, failed()).await.status, Status::DeadLetter);
    let state = rig.state(first.id).await;
    assert_eq!((state.attempt, state.retries, state.crashes), (2, 1, 0), "the last failure uses up no retry");
    assert_eq!(state.end_reason, Some(EndReason::MaxRetries));
    assert_eq!(state.failed_attempts.iter().map(|failed| failed.attempt).collect::<Vec<_>>(), [1, 2]);
}

pub async fn without_retries_the_first_failure_is_the_last(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").max_retries(0)).await;
    rig.finished(worker, &claimed, failed()).await;
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.end_reason, state.retries), (Status::DeadLetter, Some(EndReason::MaxRetries), 0));
}

pub async fn without_dead_letter_giving_up_means_failed(rig: Rig) {
    let (worker, exhausted) = rig.started(task("a").max_retries(0).no_dead_letter()).await;
    assert_eq!(rig.finished(worker, &exhausted, failed()).await.status, Status::Failed);
    let (other, hopeless) = rig.started(task("a").no_dead_letter()).await;
    assert_eq!(rig.finished(other, &hopeless, failed_for_good()).await.status, Status::Failed);
    for (id, reason) in [(exhausted.id, EndReason::MaxRetries), (hopeless.id, EndReason::PermanentError)] {
        let state = rig.state(id).await;
        assert_eq!((state.status, state.end_reason, state.ended_at), (Status::Failed, Some(reason), Some(rig.now())));
    }
}

pub async fn out_of_memory_is_retried_at_most_three_times(rig: Rig) {
    let id = rig.submit(task("a").max_retries(9)).await;
    let worker = rig.worker().await;
    for round in 0..4 {
        let claimed = rig.claim(worker).await;
        rig.finished(worker, &claimed, Outcome::Failed(error_code("oom"))).await;
        assert_eq!(rig.status(id).await == Status::DeadLetter, round == 3, "round {round}");
        rig.advance(seconds(3600));
        rig.make_due().await;
    }
    let state = rig.state(id).await;
    assert_eq!((state.retries, state.end_reason), (3, Some(EndReason::MaxRetries)));
    assert!(state.failed_attempts.iter().all(|failed| failed.class == ErrorClass::Resource));
}

pub async fn errors_are_kept_up_to_a_bound(rig: Rig) {
    let id = rig.submit(task("a").max_retries(100)).await;
    let worker = rig.worker().await;
    let most = windlass_core::limits::ATTEMPTS_KEPT;
    for round in 0..most + 20 {
        let claimed = rig.claim(worker).await;
        rig.finished(worker, &claimed, Outcome::Failed(error_code(&format!("e{round}")))).await;
        if rig.status(id).await == Status::DeadLetter {
            rig.requeue(again(id)).await.expect("dead");
        }
        rig.advance(seconds(3600));
        rig.make_due().await;
    }
    let state = rig.state(id).await;
    let kept: Vec<_> = state.failed_attempts.iter().filter_map(|failed| failed.error.code.as_deref()).collect();
    assert!(kept.len() <= most, "{} errors are kept", kept.len());
    assert_eq!(kept.first(), Some(&"e0"), "the first is kept: what went wrong to begin with");
    let last = format!("e{}", most + 19);
    assert_eq!(kept.last(), Some(&last.as_str()), "and the last");
    assert_eq!(state.attempt as usize, most + 20, "the number of attempts is still told");
}

pub async fn an_old_task_is_given_up(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").retry(|retry| retry.max_elapsed = Some(seconds(60)))).await;
    rig.advance(seconds(51));
    rig.beat(worker).await;
    rig.finished(worker, &claimed, failed()).await;
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.end_reason), (Status::DeadLetter, Some(EndReason::MaxElapsed)));
}

pub async fn released_work_goes_back_to_its_place(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let place = rig.state(claimed.id).await.ready_at;
    rig.advance(seconds(3));
    let younger = rig.submit(task("a")).await;
    let finished = rig.finished(worker, &claimed, Outcome::Released).await;
    assert_eq!(finished.status, Status::Queued);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Queued, 0, 0, 0));
    assert_eq!(state.ready_at, place);
    assert!(state.failed_attempts.is_empty() && !state.retrying && state.lease_expires_at.is_none());
    let again = rig.claim(worker).await;
    assert_eq!((again.id, again.attempt), (claimed.id, 1), "first again, and the attempt did not count");
    assert_eq!(rig.claim(worker).await.id, younger);
}

pub async fn a_snooze_waits_and_uses_nothing_up(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.advance(seconds(3));
    let finished = rig.finished(worker, &claimed, Outcome::Snoozed(seconds(30))).await;
    assert_eq!(finished.status, Status::Scheduled);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Scheduled, 0, 0, 0));
    assert_eq!((state.run_at, state.ready_at), (rig.now() + seconds(30), rig.now() + seconds(30)));
    rig.advance(seconds(29));
    assert_eq!(rig.make_due().await, 0);
    rig.advance(seconds(1));
    assert_eq!(rig.make_due().await, 1);
    assert_eq!(rig.claim(worker).await.attempt, 1);
}

pub async fn a_handler_can_cancel_its_own_task(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let outcome = Outcome::Cancelled { note: Some("the account is closed".to_owned()) };
    let finished = rig.finished(worker, &claimed, outcome).await;
    assert_eq!(finished.status, Status::Cancelled);
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.ended_at, state.end_reason), (Status::Cancelled, Some(rig.now()), None));
    assert!(state.failed_attempts.is_empty() && state.result.is_none() && state.lease_expires_at.is_none());
    assert!(rig.beat(worker).await.cancel.is_empty(), "the worker knows already");
    rig.advance(seconds(100));
    assert_eq!(rig.lapse().await, 0, "its lease is over");
}

pub async fn the_same_result_is_taken_twice_and_applied_once(rig: Rig) {
    let outcomes = [
        completed_with("1"),
        failed(),
        failed_for_good(),
        Outcome::Released,
        Outcome::Snoozed(seconds(5)),
        Outcome::Cancelled { note: None },
    ];
    for outcome in outcomes {
        let (worker, claimed) = rig.started(task("a").queue("q")).await;
        let first = rig.finished(worker, &claimed, outcome.clone()).await;
        let before = rig.task(claimed.id).await;
        rig.advance(seconds(1));
        let second = rig.finish(worker, &claimed, outcome.clone()).await.expect("acknowledged again");
        assert!(second.repeated, "{outcome:?}");
        assert_eq!(second.status, first.status, "{outcome:?}");
        assert_eq!(rig.task(claimed.id).await, before, "{outcome:?}: nothing changed");
        rig.cancel(claimed.id).await.ok();
    }
}

pub async fn a_repeated_failure_is_acknowledged_while_the_next_attempt_runs(rig: Rig) {
    let (worker, first) = rig.started(task("a")).await;
    rig.finished(worker, &first, failed()).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let other = rig.worker().await;
    let second = rig.claim(other).await;
    let before = rig.task(first.id).await;
    let repeated = rig.finish(worker, &first, failed()).await.expect("acknowledged again");
    assert!(repeated.repeated);
    assert_eq!(rig.task(first.id).await, before, "the attempt that runs is not touched");
    rig.finished(other, &second, completed()).await;
}

pub async fn another_result_for_the_same_lease_is_refused(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, completed_with("1")).await;
    let before = rig.task(claimed.id).await;
    for outcome in [completed_with("2"), failed(), Outcome::Released, Outcome::Snoozed(seconds(1))] {
        assert_eq!(rig.finish(worker, &claimed, outcome).await, Err(LeaseError::Lost));
    }
    assert_eq!(rig.task(claimed.id).await, before, "a task ends once");
}

pub async fn an_older_token_is_refused(rig: Rig) {
    let (worker, first) = rig.started(task("a")).await;
    rig.finished(worker, &first, Outcome::Released).await;
    let second = rig.claim(worker).await;
    let before = rig.task(first.id).await;
    assert_eq!(rig.finish(worker, &first, completed()).await, Err(LeaseError::Lost));
    assert_eq!(rig.task(first.id).await, before, "the first attempt cannot end the second, even of the same worker");
    rig.finished(worker, &second, completed()).await;
    assert_eq!(
        rig.finish(worker, &first, Outcome::Released).await,
        Err(LeaseError::Lost),
        "only the last is remembered"
    );
}

pub async fn a_token_is_worth_nothing_to_another_worker(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let thief = rig.worker().await;
    assert_eq!(rig.finish(thief, &claimed, completed()).await, Err(LeaseError::Lost));
    let stranger = windlass_core::ids::WorkerId::random();
    assert_eq!(rig.finish(stranger, &claimed, completed()).await, Err(LeaseError::Lost));
    assert_eq!(rig.status(claimed.id).await, Status::Executing);
    rig.finished(worker, &claimed, completed()).await;
}

pub async fn a_token_is_worth_nothing_for_another_task(rig: Rig) {
    let ids = rig.submit_all([task("a"), task("a")]).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 2).await;
    let crossed = vec![
        Finish::new(ids[0], claimed[1].token, completed()),
        Finish::new(ids[1], claimed[0].token, completed()),
        Finish::new(ids[1], "1.0000000000000001".parse().expect("a token"), completed()),
    ];
    let answers = rig.store.finish(worker, crossed).await.expect("answered");
    assert_eq!(answers, vec![Err(LeaseError::Lost); 3]);
    for id in ids {
        assert_eq!(rig.status(id).await, Status::Executing);
    }
}

pub async fn an_unknown_task_is_said_to_be_unknown(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    let answers =
        rig.store.finish(worker, vec![Finish::new(made_up, claimed.token, completed())]).await.expect("answered");
    assert_eq!(answers, vec![Err(LeaseError::UnknownTask)]);
}

pub async fn many_results_are_answered_one_by_one(rig: Rig) {
    let ids = rig.submit_all((0..6).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 5).await;
    let result = |n: usize, outcome: Outcome| Finish::new(claimed[n].id, claimed[n].token, outcome);
    let results = vec![
        result(0, completed()),
        result(1, failed()),
        Finish::new(ids[5], claimed[4].token, completed()),
        result(2, failed_for_good()),
        result(0, completed()),
        result(0, completed_with("9")),
        result(3, Outcome::Released),
    ];
    let answers = rig.store.finish(worker, results).await.expect("answered");
    let told: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map(|done| (done.status, done.repeated)).map_err(|e| *e)).collect();
    assert_eq!(
        told,
        vec![
            Ok((Status::Completed, false)),
            Ok((Status::Scheduled, false)),
            Err(LeaseError::Lost),
            Ok((Status::DeadLetter, false)),
            Ok((Status::Completed, true)),
            Err(LeaseError::Lost),
            Ok((Status::Queued, false)),
        ]
    );
    let expected =
        [Status::Completed, Status::Scheduled, Status::DeadLetter, Status::Queued, Status::Executing, Status::Queued];
    for (id, status) in ids.into_iter().zip(expected) {
        assert_eq!(rig.status(id).await, status);
    }
}

pub async fn follow_ups_are_stored_with_the_result_and_only_once(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let outcome = Outcome::Completed {
        result: None,
        follow_ups: vec![task("b").queue("next").parameters("[1]").build(), task("c").delay(seconds(60)).build()],
    };
    let first = rig.finished(worker, &claimed, outcome.clone()).await;
    assert_eq!(first.follow_ups.len(), 2);
    let (b, c) = (rig.task(first.follow_ups[0]).await, rig.task(first.follow_ups[1]).await);
    assert_eq!((b.spec.task_type.as_str(), b.spec.queue.as_str(), b.state.status), ("b", "next", Status::Queued));
    assert_eq!((c.spec.task_type.as_str(), c.state.status), ("c", Status::Scheduled));
    let second = rig.finish(worker, &claimed, outcome).await.expect("acknowledged again");
    assert!(second.repeated);
    assert!(second.follow_ups.is_empty() || second.follow_ups == first.follow_ups, "never other ids");
    assert_eq!(rig.ids(&TaskFilter::default()).await.len(), 3, "the follow-ups are there once");
}

pub async fn follow_ups_of_a_refused_result_are_not_stored(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed()).await;
    let outcome = Outcome::Completed { result: None, follow_ups: vec![task("b").build()] };
    assert_eq!(rig.finish(worker, &claimed, outcome).await, Err(LeaseError::Lost));
    assert_eq!(rig.ids(&TaskFilter::default()).await, vec![claimed.id]);
}

pub async fn one_of_many_racing_results_wins(rig: Rig) {
    for _ in 0..10 {
        let (worker, claimed) = rig.started(task("a").queue("race")).await;
        let mut calls = Vec::new();
        for n in 0..8 {
            let (rig, claimed) = (rig.clone(), claimed.clone());
            calls.push(tokio::spawn(async move { rig.finish(worker, &claimed, completed_with(&n.to_string())).await }));
        }
        let mut taken = 0;
        for call in calls {
            match call.await.expect("no call panics") {
                Ok(finished) => {
                    assert!(!finished.repeated);
                    taken += 1;
                }
                Err(refused) => assert_eq!(refused, LeaseError::Lost),
            }
        }
        assert_eq!(taken, 1);
        assert_eq!(rig.kinds(claimed.id).await, ["submitted", "claimed", "completed"]);
    }
}
