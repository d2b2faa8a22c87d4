//! Events: every change is one, and they tell the whole story.

use std::collections::BTreeMap;

use windlass_core::actor::Actor;
use windlass_core::event::{Change, Event};
use windlass_core::failure::{EndReason, ErrorClass};
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, Outcome, Requeue};

use crate::fixtures::{again, completed, error_code, failed, failed_for_good, json, task};
use crate::rig::{LEASE, Rig, seconds};

/// The status after an event, given the one before.
pub fn status_after(before: Option<Status>, event: &Event) -> Status {
    match &event.change {
        Change::Submitted { status, .. } => *status,
        Change::Retrying { .. }
        | Change::Snoozed { .. }
        | Change::Lapsed { .. }
        | Change::Replayed { run_at: Some(_), .. } => Status::Scheduled,
        Change::Due | Change::Released | Change::Replayed { .. } => Status::Queued,
        Change::Claimed { .. } => Status::Executing,
        Change::Completed => Status::Completed,
        Change::Failed { .. } | Change::Discarded { .. } => Status::Failed,
        Change::DeadLettered { .. } => Status::DeadLetter,
        Change::Cancelled { .. } => Status::Cancelled,
        Change::Amended { run_at: Some(run_at), .. } | Change::Replaced { run_at } if *run_at > event.at => {
            Status::Scheduled
        }
        Change::Amended { .. } | Change::Replaced { .. } => before.expect("a task is amended after it was submitted"),
    }
}

/// Checks that the events of every task are dense and lead to its status.
pub async fn assert_events(rig: &Rig) {
    let (feed, _) = rig.feed(None, 100).await;
    let mut seen: BTreeMap<TaskId, Vec<Event>> = BTreeMap::new();
    for event in feed {
        seen.entry(event.task_id).or_default().push(event);
    }
    let tasks = rig.list_by(&TaskFilter::default(), 1000).await;
    assert_eq!(seen.len(), tasks.len(), "events of exactly the tasks that are there");
    for task in tasks {
        let history = rig.history(task.id).await;
        assert_eq!(Some(&history), seen.get(&task.id), "the feed shows the history");
        let versions: Vec<_> = history.iter().map(|event| event.version).collect();
        assert_eq!(versions, (1..=task.state.version).collect::<Vec<_>>(), "dense from 1");
        assert!(history.windows(2).all(|pair| pair[0].at <= pair[1].at), "times never run backwards");
        let replayed = history.iter().fold(None, |status, event| Some(status_after(status, event)));
        assert_eq!(replayed, Some(task.state.status), "{history:?}");
    }
}

/// Takes tasks through every kind of change.
pub async fn busy(rig: &Rig) {
    let worker = rig.worker().await;
    let ids = rig.submit_all((0..12).map(|_| task("a").timeout(seconds(300)))).await;
    rig.submit(task("late").delay(seconds(20))).await;
    rig.submit(task("never").delay(seconds(5000)).expires_at(rig.now() + seconds(15))).await;
    let claimed = rig.claim_up_to(worker, 9).await;
    rig.advance(seconds(2));
    rig.finished(worker, &claimed[0], completed()).await;
    rig.finished(worker, &claimed[1], failed()).await;
    rig.finished(worker, &claimed[2], failed_for_good()).await;
    rig.finished(worker, &claimed[3], Outcome::Released).await;
    rig.finished(worker, &claimed[4], Outcome::Snoozed(seconds(9))).await;
    rig.finished(worker, &claimed[5], failed_for_good()).await;
    rig.cancel(claimed[6].id).await.expect("cancelled");
    rig.cancel(ids[9]).await.expect("cancelled");
    rig.bury(ids[10], "out").await.expect("it waits");
    rig.amend(ids[11], Amendment { run_at: Some(rig.now() + seconds(30)), ..Amendment::default() })
        .await
        .expect("it waits");
    rig.requeue(again(claimed[2].id)).await.expect("dead");
    rig.discard(claimed[5].id).await.expect("dead");
    rig.advance(seconds(18));
    rig.expire().await;
    rig.make_due().await;
    rig.advance(seconds(30));
    rig.lapse().await;
    rig.make_due().await;
    let follow_up = task("child").build();
    for claimed in rig.claim_up_to(worker, 3).await {
        rig.finished(worker, &claimed, Outcome::Completed { result: None, follow_ups: vec![follow_up.clone()] }).await;
    }
    let running = rig.claim(worker).await;
    for _ in 0..11 {
        rig.advance(seconds(28));
        rig.beat(worker).await;
    }
    rig.time_out().await;
    assert_ne!(rig.status(running.id).await, Status::Executing);
}

pub async fn every_change_is_one_event(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").max_retries(1)).await;
    rig.finished(worker, &claimed, Outcome::Released).await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, Outcome::Snoozed(seconds(5))).await;
    rig.advance(seconds(5));
    rig.make_due().await;
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed()).await;
    rig.amend(claimed.id, Amendment { priority: Some(Priority::LOW), ..Amendment::default() }).await.expect("it waits");
    rig.advance(seconds(10));
    rig.make_due().await;
    rig.claim(worker).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.requeue(Requeue { reset_retries: false, ..again(claimed.id) }).await.expect("it waits");
    let claimed = rig.claim(worker).await;
    rig.finished(worker, &claimed, failed()).await;
    rig.requeue(again(claimed.id)).await.expect("dead");
    rig.bury(claimed.id, "enough").await.expect("it waits");
    rig.discard(claimed.id).await.expect("dead");
    rig.requeue(again(claimed.id)).await.expect("failed");
    let claimed = rig.claim(worker).await;
    rig.cancel(claimed.id).await.expect("it runs");
    assert_eq!(
        rig.kinds(claimed.id).await,
        [
            "submitted",
            "claimed",
            "released",
            "claimed",
            "snoozed",
            "due",
            "claimed",
            "retrying",
            "amended",
            "due",
            "claimed",
            "lapsed",
            "replayed",
            "claimed",
            "dead_lettered",
            "replayed",
            "dead_lettered",
            "discarded",
            "replayed",
            "claimed",
            "cancelled"
        ]
    );
    assert_events(&rig).await;
}

pub async fn events_say_what_happened_and_who_did_it(rig: Rig) {
    let (worker, first) = rig.started(task("a").max_retries(1)).await;
    rig.finished(worker, &first, Outcome::Failed(error_code("db"))).await;
    rig.advance(seconds(10));
    rig.make_due().await;
    let second = rig.claim(worker).await;
    rig.advance(seconds(1));
    rig.finished(worker, &second, Outcome::Failed(error_code("db"))).await;
    let wish = Requeue {
        priority: Some(Priority::HIGH),
        parameters: Some(json("[1]")),
        note: Some("fixed".into()),
        ..again(first.id)
    };
    rig.requeue(wish).await.expect("dead");
    let history = rig.history(first.id).await;
    let start = crate::clock::ManualClock::start();
    let (by, attempt) = (Actor::Worker(worker), |attempt, token: windlass_core::ids::LeaseToken| Change::Claimed {
        worker,
        attempt,
        claim: token.claim().0,
    });
    let dead = Change::DeadLettered {
        reason: EndReason::MaxRetries,
        class: Some(ErrorClass::Unknown),
        code: Some("db".into()),
        crashes: 0,
        note: None,
    };
    let replayed = Change::Replayed {
        retries: 0,
        crashes: 0,
        edited: true,
        priority: Some(Priority::HIGH),
        run_at: None,
        note: Some("fixed".into()),
    };
    let expected = [
        (0, Actor::Api, Change::Submitted { status: Status::Queued, run_at: start }),
        (0, by, attempt(1, first.token)),
        (0, by, Change::Retrying { class: ErrorClass::Unknown, code: Some("db".into()), run_at: start + seconds(10) }),
        (10, Actor::System, Change::Due),
        (10, by, attempt(2, second.token)),
        (11, by, dead),
        (11, Actor::Api, replayed),
    ];
    assert_eq!(history.len(), expected.len());
    for (version, (event, (at, actor, change))) in (1..).zip(history.iter().zip(expected)) {
        let wanted = Event { task_id: first.id, version, at: start + seconds(at), actor, change };
        assert_eq!(event, &wanted);
    }
}

pub async fn events_replay_to_the_status_after_busy_work(rig: Rig) {
    busy(&rig).await;
    assert_events(&rig).await;
}

pub async fn refused_calls_and_repeats_leave_no_event(rig: Rig) {
    let (worker, claimed) = rig.started(task("a").key("k")).await;
    rig.submit(task("a").key("k")).await;
    rig.finished(worker, &claimed, completed()).await;
    rig.finish(worker, &claimed, completed()).await.expect("repeated");
    rig.finish(worker, &claimed, failed()).await.expect_err("refused");
    rig.cancel(claimed.id).await.expect_err("ended");
    rig.requeue(again(claimed.id)).await.expect_err("ended");
    rig.beat(worker).await;
    assert_eq!(rig.kinds(claimed.id).await, ["submitted", "claimed", "completed"]);
}

pub async fn the_feed_pages_without_skipping(rig: Rig) {
    busy(&rig).await;
    let (all, _) = rig.feed(None, 1000).await;
    for page in [1, 3, 7] {
        assert_eq!(rig.feed(None, page).await.0, all, "pages of {page}");
    }
    let mut last: BTreeMap<TaskId, u32> = BTreeMap::new();
    for event in &all {
        let version = last.entry(event.task_id).or_default();
        assert_eq!(event.version, *version + 1, "no later event before an earlier one");
        *version = event.version;
    }
}

pub async fn the_feed_can_be_followed(rig: Rig) {
    busy(&rig).await;
    let (before, cursor) = rig.feed(None, 10).await;
    assert!(cursor.is_some(), "there is a place to go on from");
    let id = rig.submit(task("new")).await;
    rig.cancel(id).await.expect("cancelled");
    let (after, cursor) = rig.feed(cursor, 10).await;
    let fresh: Vec<_> = after.iter().filter(|event| !before.contains(event)).collect();
    assert_eq!(fresh.iter().map(|event| event.change.kind()).collect::<Vec<_>>(), ["submitted", "cancelled"]);
    assert_eq!(after.len(), 2, "and nothing is told again");
    assert!(rig.feed(cursor, 10).await.0.is_empty());
}

pub async fn the_feed_misses_nothing_under_concurrent_writes(rig: Rig) {
    let mut writers = Vec::new();
    for n in 0..4 {
        let rig = rig.clone();
        writers.push(tokio::spawn(async move {
            for _ in 0..25 {
                let id = rig.submit(task(&format!("w{n}"))).await;
                rig.cancel(id).await.expect("it waits");
            }
        }));
    }
    let (mut seen, mut cursor) = (Vec::new(), None);
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let (events, next) = rig.feed(cursor, 5).await;
        seen.extend(events);
        cursor = next;
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.expect("no writer panics");
    }
    seen.extend(rig.feed(cursor, 5).await.0);
    assert_eq!(seen, rig.feed(None, 1000).await.0, "whoever followed saw what is there");
    assert_eq!(seen.len(), 200);
}

pub async fn the_observer_is_told_every_event_once_in_order(rig: Rig) {
    busy(&rig).await;
    let (feed, _) = rig.feed(None, 1000).await;
    let seen = rig.witness.seen();
    assert_eq!(seen.len(), feed.len());
    let mut told: BTreeMap<TaskId, Vec<Event>> = BTreeMap::new();
    let mut status: BTreeMap<TaskId, Status> = BTreeMap::new();
    for committed in seen {
        let before = status.insert(committed.event.task_id, committed.to);
        assert_eq!(committed.from, before, "{:?}", committed.event);
        assert_eq!(committed.to, status_after(before, &committed.event));
        told.entry(committed.event.task_id).or_default().push(committed.event);
    }
    for (id, events) in told {
        assert_eq!(events, rig.history(id).await);
    }
}

pub async fn the_observer_is_told_what_it_takes_to_measure(rig: Rig) {
    rig.submit_all((0..2).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(1801));
    rig.submit_all((0..6).map(|_| task("new").queue("default").priority(Priority::HIGH))).await;
    rig.advance(seconds(5));
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 4).await;
    rig.advance(seconds(7));
    rig.finished(worker, &claimed[0], completed()).await;
    let seen = rig.witness.seen();
    let claims: Vec<_> = seen.iter().filter(|told| told.to == Status::Executing).collect();
    assert_eq!(
        claims.iter().filter_map(|told| told.waited).collect::<Vec<_>>(),
        [seconds(5), seconds(5), seconds(5), seconds(1806)]
    );
    assert_eq!(
        claims.iter().filter_map(|told| told.ahead_of).collect::<Vec<_>>(),
        [Priority::HIGH],
        "the fourth went ahead"
    );
    assert_eq!((claims[3].lane.priority, claims[3].lane.task_type.as_str()), (Priority::LOW, "old"));
    let ended = seen.last().expect("told");
    assert_eq!((ended.to, ended.ran, ended.age), (Status::Completed, Some(seconds(7)), seconds(12)));
}
