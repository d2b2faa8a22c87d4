//! Changes of tasks that wait.

use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, ChangeError};

use crate::fixtures::{completed, failed, task};
use crate::rig::{Rig, seconds};

pub async fn a_new_priority_keeps_the_place(rig: Rig) {
    let first = rig.submit(task("a").priority(Priority::LOW)).await;
    rig.advance(seconds(1));
    let second = rig.submit(task("a").priority(Priority::HIGH)).await;
    rig.advance(seconds(1));
    let place = rig.state(first).await.ready_at;
    rig.amend(first, Amendment { priority: Some(Priority::HIGH), ..Amendment::default() }).await.expect("it waits");
    let amended = rig.task(first).await;
    assert_eq!(
        (amended.spec.priority, amended.state.ready_at, amended.state.status),
        (Priority::HIGH, place, Status::Queued)
    );
    assert_eq!((amended.state.attempt, amended.state.retries, amended.state.crashes), (0, 0, 0));
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, first, "it is older than the other one of its new priority");
    assert_eq!(rig.claim(worker).await.id, second);
}

pub async fn a_lower_priority_steps_back(rig: Rig) {
    let first = rig.submit(task("a")).await;
    let second = rig.submit(task("a")).await;
    rig.amend(first, Amendment { priority: Some(Priority::BULK), ..Amendment::default() }).await.expect("it waits");
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, second);
    assert_eq!(rig.claim(worker).await.id, first);
    rig.claim_nothing(worker).await;
}

pub async fn a_scheduled_task_gets_another_time(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(100))).await;
    let sooner = rig.now() + seconds(10);
    rig.amend(id, Amendment { run_at: Some(sooner), ..Amendment::default() }).await.expect("it waits");
    let state = rig.state(id).await;
    assert_eq!((state.status, state.run_at, state.ready_at), (Status::Scheduled, sooner, sooner));
    let later = rig.now() + seconds(50);
    rig.amend(id, Amendment { run_at: Some(later), ..Amendment::default() }).await.expect("it waits");
    rig.advance(seconds(11));
    assert_eq!(rig.make_due().await, 0, "the time before the last change means nothing");
    rig.advance(seconds(39));
    assert_eq!(rig.make_due().await, 1);
    assert_eq!(rig.state(id).await.ready_at, later);
    rig.advance(seconds(60));
    assert_eq!(rig.make_due().await, 0, "nor does the first one");
}

pub async fn a_time_that_has_passed_gets_nobody_ahead(rig: Rig) {
    let start = rig.now();
    rig.advance(seconds(50));
    let waiting = rig.submit(task("a")).await;
    let id = rig.submit(task("a").delay(seconds(100))).await;
    rig.advance(seconds(10));
    rig.amend(id, Amendment { run_at: Some(start), ..Amendment::default() }).await.expect("it waits");
    rig.make_due().await;
    let state = rig.state(id).await;
    assert_eq!((state.status, state.ready_at), (Status::Queued, rig.now()), "an old time means now, as at submit");
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, waiting);
}

pub async fn a_queued_task_given_a_later_time_is_scheduled_again(rig: Rig) {
    let id = rig.submit(task("a")).await;
    let later = rig.now() + seconds(30);
    rig.amend(id, Amendment { run_at: Some(later), ..Amendment::default() }).await.expect("it waits");
    let state = rig.state(id).await;
    assert_eq!((state.status, state.run_at, state.attempt), (Status::Scheduled, later, 0));
    let worker = rig.worker().await;
    rig.claim_nothing(worker).await;
    rig.advance(seconds(30));
    assert_eq!(rig.make_due().await, 1);
    assert_eq!(rig.claim(worker).await.id, id);
}

pub async fn a_scheduled_task_keeps_its_new_priority_when_due(rig: Rig) {
    let id = rig.submit(task("a").delay(seconds(10))).await;
    rig.amend(id, Amendment { priority: Some(Priority::CRITICAL), ..Amendment::default() }).await.expect("it waits");
    rig.submit(task("a").priority(Priority::HIGH)).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let worker = rig.worker().await;
    let claimed = rig.claim(worker).await;
    assert_eq!((claimed.id, claimed.spec.priority), (id, Priority::CRITICAL));
}

pub async fn tags_are_replaced(rig: Rig) {
    let id = rig.submit(task("a").tag("customer", "1").tag("region", "eu")).await;
    let tags = task("a").tag("customer", "2").build().spec.tags;
    rig.amend(id, Amendment { tags: Some(tags.clone()), ..Amendment::default() }).await.expect("it waits");
    assert_eq!(rig.task(id).await.spec.tags, tags);
    assert_eq!(rig.kinds(id).await, ["submitted", "amended"]);
}

pub async fn what_runs_or_ended_is_not_amended(rig: Rig) {
    let change = || Amendment { priority: Some(Priority::HIGH), ..Amendment::default() };
    let (worker, claimed) = rig.started(task("a")).await;
    assert_eq!(rig.amend(claimed.id, change()).await, Err(ChangeError::WrongStatus(Status::Executing)));
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(rig.amend(claimed.id, change()).await, Err(ChangeError::WrongStatus(Status::Completed)));
    assert_eq!(rig.task(claimed.id).await.spec.priority, Priority::MEDIUM);
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    assert_eq!(rig.amend(made_up, change()).await, Err(ChangeError::UnknownTask));
}

pub async fn a_task_between_attempts_can_be_amended(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.finished(worker, &claimed, failed()).await;
    let later = rig.now() + seconds(500);
    let change = Amendment { priority: Some(Priority::LOW), run_at: Some(later), tags: None };
    rig.amend(claimed.id, change).await.expect("it waits");
    let amended = rig.task(claimed.id).await;
    assert_eq!((amended.spec.priority, amended.state.run_at, amended.state.retries), (Priority::LOW, later, 1));
    rig.advance(seconds(499));
    assert_eq!(rig.make_due().await, 0);
    rig.advance(seconds(1));
    assert_eq!(rig.make_due().await, 1);
}
