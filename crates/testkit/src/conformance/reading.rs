//! Reading tasks: single, lists with every filter, statistics.

use windlass_core::failure::{EndReason, ErrorClass};
use windlass_core::filter::TaskFilter;
use windlass_core::names::TagKey;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Cursor, ListError, Outcome, QueueStats, Waiting};

use crate::fixtures::{completed, error_code, failed, failed_for_good, queue, task, task_type, text};
use crate::rig::{LEASE, Rig, seconds, soon};

pub async fn tasks_are_answered_in_the_order_asked_for(rig: Rig) {
    let ids = rig.submit_all([task("a"), task("b")]).await;
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    let found = rig.store.get(vec![ids[1], made_up, ids[0], ids[1]]).await.expect("read");
    let found: Vec<_> = found.iter().map(|task| task.as_ref().map(|task| task.id)).collect();
    assert_eq!(found, [Some(ids[1]), None, Some(ids[0]), Some(ids[1])]);
    assert!(rig.history(made_up).await.is_empty());
    assert_eq!(rig.store.waiting_for(made_up).await, Ok(None));
}

pub async fn lists_show_the_newest_first_in_pages(rig: Rig) {
    let mut ids = Vec::new();
    for n in 0..23 {
        ids.push(rig.submit(task(["a", "b"][n % 2])).await);
        if n % 3 == 0 {
            rig.advance(seconds(1));
        }
    }
    let worker = rig.worker().await;
    for claimed in rig.claim_up_to(worker, 9).await {
        rig.finished(worker, &claimed, completed()).await;
    }
    ids.reverse();
    for page in [1, 5, 23, 100] {
        let found: Vec<_> = rig.list_by(&TaskFilter::default(), page).await.into_iter().map(|task| task.id).collect();
        assert_eq!(found, ids, "pages of {page}");
    }
}

pub async fn a_list_goes_on_where_it_stopped_whatever_came_since(rig: Rig) {
    let ids = rig.submit_all((0..10).map(|_| task("a"))).await;
    let first = rig.store.list(TaskFilter::default(), 4, None).await.expect("listed");
    let mut seen: Vec<_> = first.items.iter().map(|task| task.id).collect();
    rig.submit_all((0..10).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    rig.claim_up_to(worker, 3).await;
    let mut after = first.next;
    while let Some(cursor) = after {
        let page = rig.store.list(TaskFilter::default(), 4, Some(cursor)).await.expect("listed");
        seen.extend(page.items.iter().map(|task| task.id));
        after = page.next;
    }
    let expected: Vec<_> = ids.into_iter().rev().collect();
    assert_eq!(seen, expected, "nothing twice, nothing left out, nothing that came later");
}

pub async fn a_made_up_cursor_is_refused(rig: Rig) {
    rig.submit(task("a")).await;
    for made_up in ["", "x", "../..", "\u{0}", "99999999999999999999999999"] {
        let list = rig.store.list(TaskFilter::default(), 5, Some(Cursor(made_up.into()))).await;
        assert_eq!(list.map(|_| ()), Err(ListError::BadCursor), "{made_up:?}");
        let feed = rig.store.events(Some(Cursor(made_up.into())), 5).await;
        assert_eq!(feed.map(|_| ()), Err(ListError::BadCursor), "{made_up:?}");
    }
}

/// Tasks that differ in everything a filter can ask for.
async fn varied(rig: &Rig) {
    for n in 0..24_u64 {
        let name = ["mail", "report", "resize"][(n % 3) as usize];
        let built = task(name)
            .queue(["x", "y"][(n % 2) as usize])
            .priority([Priority::HIGH, Priority::LOW][(n / 2 % 2) as usize])
            .tenant(["acme", "other"][(n / 3 % 2) as usize])
            .tag("customer", &(n % 5).to_string())
            .parameters(&format!(r#"{{"user":{{"id":{n}}}}}"#));
        let built = match n % 8 {
            6 => built.no_dead_letter(),
            7 => built.delay(seconds(500)),
            _ => built,
        };
        let id = rig.submit(built).await;
        rig.advance(seconds(10));
        if n % 8 == 7 || n % 8 == 0 {
            continue;
        }
        if n % 8 == 1 {
            rig.cancel(id).await.expect("cancelled");
            continue;
        }
        let worker = rig
            .register(windlass_core::worker::WorkerProfile {
                queues: vec![queue(["x", "y"][(n % 2) as usize])],
                ..crate::fixtures::handling(&[name])
            })
            .await;
        let mut claimed = rig.claim_up_to(worker, 9).await;
        let ours = claimed.iter().position(|task| task.id == id).expect("it was ready");
        let ours = claimed.remove(ours);
        for other in claimed {
            rig.finished(worker, &other, Outcome::Released).await;
        }
        match n % 8 {
            2 => {}
            3 => drop(rig.finished(worker, &ours, completed()).await),
            4 => drop(rig.finished(worker, &ours, failed()).await),
            _ => drop(
                rig.finished(
                    worker,
                    &ours,
                    if n > 12 {
                        failed_for_good()
                    } else {
                        Outcome::Failed(windlass_core::failure::ErrorReport {
                            retriable: Some(false),
                            ..error_code("db")
                        })
                    },
                )
                .await,
            ),
        }
    }
}

pub async fn every_filter_shows_exactly_what_matches(rig: Rig) {
    varied(&rig).await;
    let all = rig.list_by(&TaskFilter::default(), 100).await;
    assert_eq!(all.len(), 24);
    let middle = all[12].state.created_at;
    let worker = all.iter().find_map(|task| task.state.worker).expect("somebody worked");
    let some_id = all[3].id.to_string();
    let of = TaskFilter::default;
    let mut filters = vec![
        TaskFilter { queue: Some(queue("x")), ..of() },
        TaskFilter { task_type: Some(task_type("mail")), ..of() },
        TaskFilter { priority: Some(Priority::LOW), ..of() },
        TaskFilter { tenant: Some(text("acme")), ..of() },
        TaskFilter { tag: Some((TagKey::new("customer").unwrap(), text("3"))), ..of() },
        TaskFilter { worker: Some(worker), ..of() },
        TaskFilter { created_after: Some(middle), ..of() },
        TaskFilter { created_before: Some(middle), ..of() },
        TaskFilter { ended_after: Some(middle), ..of() },
        TaskFilter { ended_before: Some(middle), ..of() },
        TaskFilter { error_code: Some("db".into()), ..of() },
        TaskFilter { class: Some(ErrorClass::Permanent), ..of() },
        TaskFilter { class: Some(ErrorClass::Unknown), ..of() },
        TaskFilter { end_reason: Some(EndReason::PermanentError), ..of() },
        TaskFilter { parameter: Some("user.id:gt:17".parse().unwrap()), ..of() },
        TaskFilter { text: Some("repo".into()), ..of() },
        TaskFilter { text: Some(some_id), ..of() },
        TaskFilter { text: Some("went wrong".into()), ..of() },
        TaskFilter {
            queue: Some(queue("x")),
            task_type: Some(task_type("mail")),
            statuses: vec![Status::DeadLetter, Status::Failed],
            ..of()
        },
        TaskFilter { queue: Some(queue("y")), statuses: vec![Status::Queued], priority: Some(Priority::HIGH), ..of() },
        TaskFilter {
            tenant: Some(text("acme")),
            statuses: vec![Status::Completed],
            tag: Some((TagKey::new("customer").unwrap(), text("1"))),
            ..of()
        },
    ];
    filters.extend(Status::ALL.into_iter().map(|status| TaskFilter { statuses: vec![status], ..of() }));
    let mut matched = 0;
    for filter in filters {
        let expected: Vec<_> = all.iter().filter(|task| filter.matches(task)).map(|task| task.id).collect();
        matched += expected.len();
        for page in [2, 100] {
            let found: Vec<_> = rig.list_by(&filter, page).await.into_iter().map(|task| task.id).collect();
            assert_eq!(found, expected, "pages of {page} of {filter:?}");
        }
    }
    assert!(matched > 60, "the filters do find something");
    let nobody = TaskFilter { queue: Some(queue("nobody")), ..of() };
    assert!(rig.ids(&nobody).await.is_empty());
}

pub async fn a_listed_task_says_what_the_task_says(rig: Rig) {
    varied(&rig).await;
    for listed in rig.list_by(&TaskFilter::default(), 10).await {
        let mut single = rig.task(listed.id).await;
        let last = single.state.failed_attempts.pop();
        single.state.failed_attempts = last.into_iter().collect();
        assert_eq!(listed, single);
    }
}

pub async fn statistics_agree_with_the_lists(rig: Rig) {
    varied(&rig).await;
    rig.advance(LEASE + seconds(1));
    rig.lapse().await;
    rig.make_due().await;
    assert_stats(&rig).await;
}

/// Checks that the store's statistics are what counting its tasks gives.
pub async fn assert_stats(rig: &Rig) {
    let stats = rig.store.stats().await.expect("stats");
    let mut by_status = [0_u64; 8];
    let mut queues = std::collections::BTreeMap::<_, QueueStats>::new();
    let mut dead = std::collections::BTreeMap::new();
    for found in rig.list_by(&TaskFilter::default(), 1000).await {
        by_status[usize::from(found.state.status.code())] += 1;
        let level = found.spec.priority.index();
        let of_queue = found.spec.queue.clone();
        match found.state.status {
            Status::Queued => {
                let entry = queues.entry(of_queue).or_default();
                entry.queued[level] += 1;
                let oldest = entry.oldest_ready_at[level].get_or_insert(found.state.ready_at);
                *oldest = (*oldest).min(found.state.ready_at);
            }
            Status::Executing => queues.entry(of_queue).or_default().executing[level] += 1,
            Status::Scheduled => queues.entry(of_queue).or_default().scheduled[level] += 1,
            Status::DeadLetter => *dead.entry((of_queue, found.spec.task_type.clone())).or_insert(0) += 1,
            Status::Blocked | Status::Completed | Status::Failed | Status::Cancelled => {}
        }
    }
    assert_eq!(stats.by_status, by_status);
    let mut told = stats.queues;
    told.retain(|_, queue| *queue != QueueStats::default());
    assert_eq!(told, queues);
    let mut told = stats.dead_letters;
    told.retain(|_, count| *count > 0);
    assert_eq!(told, dead);
}

pub async fn waiting_for_an_end_resolves_with_it(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    let store = std::sync::Arc::clone(&rig.store);
    let id = claimed.id;
    // It may resolve early, so those who wait look again.
    let waiting = tokio::spawn(async move {
        loop {
            store.until_ended(id).await.expect("the store serves");
            let task = store.get(vec![id]).await.expect("read").remove(0).expect("there");
            if task.state.status.is_ended() {
                return task.state.status;
            }
            tokio::task::yield_now().await;
        }
    });
    rig.finished(worker, &claimed, completed()).await;
    assert_eq!(soon(waiting).await.expect("no panic"), Status::Completed);
    soon(rig.store.until_ended(id)).await.expect("ended long ago");
    let made_up = "018bcfe5-6800-7000-8000-000000000000".parse().expect("an id");
    soon(rig.store.until_ended(made_up)).await.expect("never there");
}

pub async fn tasks_ahead_shrink_as_work_is_taken(rig: Rig) {
    rig.submit_all((0..4).map(|_| task("a"))).await;
    let last = rig.submit(task("a")).await;
    assert_eq!(rig.store.waiting_for(last).await, Ok(Some(Waiting::Line { ahead: 4 })));
    let worker = rig.worker().await;
    rig.claim_up_to(worker, 3).await;
    assert_eq!(rig.store.waiting_for(last).await, Ok(Some(Waiting::Line { ahead: 1 })));
    rig.claim_up_to(worker, 2).await;
    assert_eq!(rig.store.waiting_for(last).await, Ok(None), "it is not waiting any more");
}
