//! Dead letters: burying, finding and giving up.

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::failure::{EndReason, ErrorClass};
use windlass_core::filter::TaskFilter;
use windlass_core::status::Status;
use windlass_core::store::{ChangeError, Outcome, Requeue};

use crate::fixtures::{again, completed, error_code, failed_for_good, queue, task, task_type};
use crate::rig::{Rig, seconds};

pub async fn a_person_takes_a_waiting_task_out(rig: Rig) {
    let queued = rig.submit(task("a")).await;
    let scheduled = rig.submit(task("a").delay(seconds(60))).await;
    let answers = rig.store.bury(vec![queued, scheduled], "bad data".into(), Actor::Api).await.expect("answered");
    assert_eq!(answers, vec![Ok(()), Ok(())]);
    for id in [queued, scheduled] {
        let state = rig.state(id).await;
        assert_eq!((state.status, state.end_reason), (Status::DeadLetter, Some(EndReason::RejectedByOperator)));
        assert_eq!((state.ended_at, state.attempt, state.retries), (Some(rig.now()), 0, 0));
        let last = rig.history(id).await.pop().expect("events");
        assert!(
            matches!(&last.change, Change::DeadLettered { note: Some(note), .. } if note == "bad data"),
            "{last:?}"
        );
    }
    let worker = rig.worker().await;
    rig.advance(seconds(61));
    rig.make_due().await;
    rig.claim_nothing(worker).await;
    rig.requeue(again(queued)).await.expect("it can be replayed");
}

pub async fn what_runs_or_ended_is_not_buried(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    assert_eq!(rig.bury(claimed.id, "x").await, Err(ChangeError::WrongStatus(Status::Executing)));
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.bury(claimed.id, "x").await, Err(ChangeError::WrongStatus(Status::Completed)));
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    assert_eq!(rig.bury(made_up, "x").await, Err(ChangeError::UnknownTask));
}

pub async fn a_dead_letter_is_given_up(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.discard(claimed.id).await.expect("it is a dead letter");
    let state = rig.state(claimed.id).await;
    assert_eq!((state.status, state.attempt, state.retries, state.crashes), (Status::Failed, 1, 0, 0));
    assert_eq!(state.end_reason, Some(EndReason::Discarded));
    assert_eq!(state.failed_attempts.len(), 1, "what happened to it is kept");
    assert_eq!(rig.discard(claimed.id).await, Err(ChangeError::WrongStatus(Status::Failed)));
    let waiting = rig.submit(task("a")).await;
    assert_eq!(rig.discard(waiting).await, Err(ChangeError::WrongStatus(Status::Queued)));
}

pub async fn dead_letters_are_counted_and_found(rig: Rig) {
    for (name, of_queue, code) in [("a", "x", "db"), ("a", "y", "db"), ("b", "x", "oom")] {
        let (worker, claimed) = rig.started(task(name).queue(of_queue).max_retries(0)).await;
        rig.finished(worker, &claimed, Outcome::Failed(error_code(code))).await;
    }
    let stats = rig.store.stats().await.expect("stats");
    assert_eq!(stats.by_status[usize::from(Status::DeadLetter.code())], 3);
    assert_eq!(stats.dead_letters.get(&(queue("x"), task_type("a"))), Some(&1));
    let dead = TaskFilter { statuses: vec![Status::DeadLetter], ..TaskFilter::default() };
    let by_code = TaskFilter { error_code: Some("db".into()), ..dead.clone() };
    assert_eq!(rig.ids(&by_code).await.len(), 2);
    let by_class = TaskFilter { class: Some(ErrorClass::Resource), ..dead.clone() };
    assert_eq!(rig.ids(&by_class).await.len(), 1);
    let id = rig.ids(&by_class).await[0];
    rig.discard(id).await.expect("given up");
    let stats = rig.store.stats().await.expect("stats");
    assert_eq!(stats.dead_letters.get(&(queue("x"), task_type("b"))).copied().unwrap_or(0), 0);
    assert_eq!(rig.ids(&dead).await.len(), 2);
}

pub async fn an_entry_keeps_every_attempt(rig: Rig) {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (worker, first) = rig.started(task("a").max_retries(2).trace_parent(parent)).await;
    let mut claimed = first.clone();
    for code in ["one", "two", "three"] {
        rig.advance(seconds(1));
        rig.finished(worker, &claimed, Outcome::Failed(error_code(code))).await;
        if code != "three" {
            rig.advance(seconds(100));
            rig.make_due().await;
            claimed = rig.claim(worker).await;
        }
    }
    let entry = rig.task(first.id).await;
    assert_eq!(entry.state.status, Status::DeadLetter);
    let codes: Vec<_> =
        entry.state.failed_attempts.iter().map(|failed| failed.error.code.as_deref().unwrap_or("")).collect();
    assert_eq!(codes, ["one", "two", "three"]);
    for failed in &entry.state.failed_attempts {
        assert_eq!(failed.worker, Some(worker));
        assert_eq!(failed.ended_at.since(failed.started_at), seconds(1));
    }
    assert_eq!(entry.spec.trace_id(), Some("0af7651916cd43dd8448eb211c80319c"));
    let listed = rig.list_by(&TaskFilter::default(), 10).await;
    assert_eq!(listed[0].state.failed_attempts.len(), 1, "lists carry only the last");
    assert_eq!(listed[0].state.last_failure().and_then(|failed| failed.error.code.as_deref()), Some("three"));
}

pub async fn a_rule_replays_a_task_once(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let by_rule = Requeue { only_dead: true, by_rule: true, ..again(claimed.id) };
    assert!(!rig.state(claimed.id).await.auto_replayed);
    rig.requeue(by_rule.clone()).await.expect("the first time");
    assert!(rig.state(claimed.id).await.auto_replayed);
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    let before = rig.task(claimed.id).await;
    let rig = rig.reopen().await.unwrap_or(rig);
    assert_eq!(rig.requeue(by_rule.clone()).await, Err(ChangeError::ReplayedBefore));
    assert_eq!(rig.task(claimed.id).await, before);
    rig.requeue(again(claimed.id)).await.expect("a person may");
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    assert_eq!(rig.requeue(by_rule).await, Err(ChangeError::ReplayedBefore), "a person's replay gives it no other");
}

pub async fn a_person_does_not_use_up_the_replay_of_a_rule(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.requeue(again(claimed.id)).await.expect("it is a dead letter");
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed_for_good()).await;
    rig.requeue(Requeue { by_rule: true, ..again(claimed.id) }).await.expect("the rule's first");
}

pub async fn a_paced_replay_waits_for_its_time(rig: Rig) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (worker, claimed) = rig.started(task("a")).await;
        rig.finished(worker, &claimed, failed_for_good()).await;
        ids.push(claimed.id);
    }
    let wishes = ids.iter().zip(1..).map(|(id, n)| Requeue { delay: seconds(n * 10), ..again(*id) }).collect();
    let answers = rig.store.requeue(wishes, Actor::Api).await.expect("answered");
    assert_eq!(answers, vec![Ok(()); 3]);
    let state = rig.state(ids[2]).await;
    assert_eq!((state.status, state.run_at, state.retries), (Status::Scheduled, rig.now() + seconds(30), 0));
    assert_eq!(rig.store.stats().await.expect("stats").by_status[usize::from(Status::DeadLetter.code())], 0);
    let worker = rig.worker().await;
    for id in ids {
        rig.claim_nothing(worker).await;
        rig.advance(seconds(10));
        rig.make_due().await;
        assert_eq!(rig.claim(worker).await.id, id);
    }
}
