//! The order of claims under each policy, through real claims.

use std::collections::BTreeMap;

use windlass_core::filter::TaskFilter;
use windlass_core::ids::WorkerId;
use windlass_core::priority::Priority;
use windlass_core::status::Status;

use super::reading;
use crate::fixtures::{TaskBuilder, completed, failed, handling, priority, task};
use crate::rig::{LEASE, Rig, seconds};

pub async fn overdue_work_gets_one_claim_in_four(rig: Rig) {
    rig.submit_all((0..20).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(1801));
    rig.submit_all((0..60).map(|_| task("new").priority(Priority::HIGH))).await;
    let worker = rig.worker().await;
    let mut low_at = Vec::new();
    for n in 0..40 {
        let claimed = rig.claim(worker).await;
        if claimed.spec.priority == Priority::LOW {
            low_at.push(n);
        }
        rig.finished(worker, &claimed, completed()).await;
    }
    assert_eq!(low_at.len(), 10, "one in four: {low_at:?}");
    assert!(low_at.windows(2).all(|pair| pair[1] - pair[0] == 4), "evenly: {low_at:?}");
}

pub async fn the_share_holds_inside_one_large_claim(rig: Rig) {
    rig.submit_all((0..50).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(1801));
    rig.submit_all((0..50).map(|_| task("new").priority(Priority::HIGH))).await;
    let worker = rig.worker().await;
    let claimed = rig.claim_up_to(worker, 40).await;
    let low = claimed.iter().filter(|task| task.spec.priority == Priority::LOW).count();
    assert_eq!((claimed.len(), low), (40, 10));
}

pub async fn fresh_work_waits_for_its_bound(rig: Rig) {
    rig.submit_all((0..5).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(1799));
    rig.submit_all((0..12).map(|_| task("new").priority(Priority::HIGH))).await;
    let worker = rig.worker().await;
    for claimed in rig.claim_up_to(worker, 12).await {
        assert_eq!(claimed.spec.priority, Priority::HIGH);
    }
    assert_eq!(rig.claim(worker).await.spec.priority, Priority::LOW, "alone it needs no share");
}

pub async fn the_most_overdue_goes_by_ready_time_and_offset(rig: Rig) {
    let low = rig.submit(task("a").priority(Priority::LOW)).await;
    rig.advance(seconds(500));
    let medium = rig.submit(task("a").priority(Priority::MEDIUM)).await;
    rig.advance(seconds(1500));
    rig.submit_all((0..20).map(|_| task("a").priority(Priority::HIGH))).await;
    let worker = rig.worker().await;
    let claimed: Vec<_> = rig.claim_up_to(worker, 8).await.into_iter().map(|task| task.id).collect();
    let places: Vec<_> = [medium, low].iter().map(|id| claimed.iter().position(|found| found == id)).collect();
    assert_eq!(places, [Some(3), Some(7)], "medium 500 s + 1200 s is before low 0 s + 1800 s");
}

pub async fn strict_never_promotes(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"strict"}"#).await;
    rig.submit_all((0..5).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(100_000));
    rig.submit_all((0..20).map(|_| task("new").priority(Priority::MEDIUM))).await;
    let worker = rig.worker().await;
    for claimed in rig.claim_up_to(worker, 20).await {
        assert_eq!(claimed.spec.priority, Priority::MEDIUM);
    }
    assert_eq!(rig.claim_up_to(worker, 9).await.len(), 5);
}

pub async fn a_changed_policy_applies_at_once(rig: Rig) {
    rig.submit_all((0..9).map(|_| task("old").priority(Priority::LOW))).await;
    rig.advance(seconds(1801));
    rig.submit_all((0..30).map(|_| task("new").priority(Priority::HIGH))).await;
    let worker = rig.worker().await;
    rig.change_queue("default", r#"{"overdue_share":1.0}"#).await;
    for claimed in rig.claim_up_to(worker, 4).await {
        assert_eq!(claimed.spec.priority, Priority::LOW);
    }
    rig.change_queue("default", r#"{"overdue_share":0.0}"#).await;
    for claimed in rig.claim_up_to(worker, 8).await {
        assert_eq!(claimed.spec.priority, Priority::HIGH);
    }
    rig.change_queue(
        "default",
        r#"{"overdue_share":0.5,"offsets":{"low":1000000,"2":1000000,"bulk":1000000,"0":1000000}}"#,
    )
    .await;
    for claimed in rig.claim_up_to(worker, 8).await {
        assert_eq!(claimed.spec.priority, Priority::HIGH, "by its new offset low is not overdue");
    }
}

pub async fn order_inside_a_priority_is_by_ready_time_over_random_arrivals(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"strict"}"#).await;
    let mut expected = Vec::new();
    let mut pick = 12_345_u64;
    for _ in 0..120 {
        pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (level, delay) = ((pick >> 33) % 10, (pick >> 40) % 50);
        let name = format!("t{}", (pick >> 50) % 5);
        let id = rig.submit(task(&name).priority(priority(level)).delay(seconds(delay))).await;
        expected.push((std::cmp::Reverse(level), rig.now() + seconds(delay), expected.len(), id));
        rig.advance(seconds(pick >> 62));
    }
    rig.advance(seconds(60));
    rig.make_due().await;
    expected.sort_unstable_by_key(|(level, ready_at, number, _)| (*level, *ready_at, *number));
    let worker = rig.worker().await;
    for (level, ready_at, _, id) in expected {
        assert_eq!(rig.claim(worker).await.id, id, "level {} ready at {ready_at}", level.0);
    }
}

pub async fn work_in_lanes_a_worker_cannot_take_does_not_hold_it_up(rig: Rig) {
    rig.submit_all((0..500).map(|_| task("gpu").requires(&["gpu"]).priority(Priority::CRITICAL))).await;
    rig.submit_all((0..500).map(|_| task("paused").priority(Priority::HIGH))).await;
    rig.change_type("paused", r#"{"paused":true}"#).await;
    rig.advance(seconds(100_000));
    let plain = rig.submit_all((0..3).map(|_| task("a").priority(Priority::BULK))).await;
    let worker = rig.worker().await;
    let claimed: Vec<_> = rig.claim_up_to(worker, 5).await.into_iter().map(|task| task.id).collect();
    assert_eq!(claimed, plain);
}

pub async fn work_flows_while_urgent_work_keeps_coming(rig: Rig) {
    let low = rig.submit_all((0..10).map(|_| task("old").priority(Priority::LOW))).await;
    let worker = rig.worker().await;
    let mut served = 0;
    for _ in 0..300 {
        rig.advance(seconds(20));
        rig.submit_all((0..2).map(|_| task("new").priority(Priority::HIGH))).await;
        let claimed = rig.claim_for(worker, LEASE).await;
        served += usize::from(low.contains(&claimed.id));
        rig.finished(worker, &claimed, completed()).await;
    }
    assert_eq!(served, 10, "nothing starves");
}

pub async fn no_turn_is_spent_on_what_waits_for_its_key(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted","weights":{"high":70,"medium":20}}"#).await;
    // Each in a lane of its own, so that all of them are met by a claim.
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        rig.submit(task(name).priority(Priority::HIGH).at_most(1, "k")).await;
    }
    let worker = rig.worker().await;
    rig.claim(worker).await;
    rig.advance(seconds(1));
    for _ in 0..20 {
        rig.submit_all([task("plain").priority(Priority::HIGH), task("plain").priority(Priority::MEDIUM)]).await;
    }
    let mut high = 0;
    for _ in 0..9 {
        high += usize::from(rig.claim(worker).await.spec.priority == Priority::HIGH);
    }
    assert_eq!(high, 7, "seven of nine, though seven others of the band wait for their key");
}

/// How many of the next claims, one by one, went to each priority.
async fn served_by_priority(rig: &Rig, worker: WorkerId, claims: usize) -> BTreeMap<u8, usize> {
    let mut served = BTreeMap::new();
    for _ in 0..claims {
        let claimed = rig.claim(worker).await;
        *served.entry(claimed.spec.priority.level()).or_default() += 1;
        rig.finished(worker, &claimed, completed()).await;
    }
    served
}

fn of_priorities(levels: &[u64], each: usize) -> Vec<TaskBuilder> {
    levels.iter().flat_map(|level| vec![task("a").priority(priority(*level)); each]).collect()
}

pub async fn bands_are_served_by_weight(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted"}"#).await;
    rig.submit_all(of_priorities(&[8, 5, 2], 100)).await;
    let worker = rig.worker().await;
    for _ in 0..2 {
        let served = served_by_priority(&rig, worker, 50).await;
        assert_eq!(served, BTreeMap::from([(8, 35), (5, 10), (2, 5)]));
    }
}

pub async fn weights_hold_inside_one_large_claim(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted","weights":{"high":2,"medium":1,"low":1}}"#).await;
    rig.submit_all(of_priorities(&[8, 5, 2], 40)).await;
    let mut served = BTreeMap::<u8, usize>::new();
    for claimed in rig.claim_up_to(rig.worker().await, 40).await {
        *served.entry(claimed.spec.priority.level()).or_default() += 1;
    }
    assert_eq!(served, BTreeMap::from([(8, 20), (5, 10), (2, 10)]));
}

pub async fn a_band_is_served_by_priority(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted","weights":{"low":1000,"high":1}}"#).await;
    rig.submit_all(of_priorities(&[0, 3, 1], 2)).await;
    rig.advance(seconds(100_000));
    rig.submit_all(of_priorities(&[2], 2)).await;
    let worker = rig.worker().await;
    let levels: Vec<u8> = rig.claim_up_to(worker, 10).await.iter().map(|task| task.spec.priority.level()).collect();
    assert_eq!(levels, [3, 3, 2, 2, 1, 1, 0, 0], "however long it waited");
}

pub async fn a_band_without_work_gives_its_turn_away(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted"}"#).await;
    rig.submit_all(of_priorities(&[5, 2], 30)).await;
    let worker = rig.worker().await;
    assert_eq!(served_by_priority(&rig, worker, 30).await, BTreeMap::from([(5, 20), (2, 10)]));
    rig.submit_all(of_priorities(&[8], 70)).await;
    let served = served_by_priority(&rig, worker, 20).await;
    assert_eq!(served.get(&8), Some(&14), "and saves nothing up");
}

pub async fn changed_weights_apply_at_once(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"weighted"}"#).await;
    rig.submit_all(of_priorities(&[8, 2], 100)).await;
    let worker = rig.worker().await;
    assert_eq!(served_by_priority(&rig, worker, 16).await, BTreeMap::from([(8, 14), (2, 2)]));
    rig.change_queue("default", r#"{"weights":{"high":10,"low":30}}"#).await;
    assert_eq!(served_by_priority(&rig, worker, 40).await, BTreeMap::from([(8, 10), (2, 30)]));
}

fn of_tenant(tenant: &str, count: usize) -> Vec<TaskBuilder> {
    vec![task("a").tenant(tenant); count]
}

/// How many of the next claims, one by one, went to each tenant.
async fn served(rig: &Rig, worker: WorkerId, claims: usize) -> BTreeMap<String, usize> {
    let mut served = BTreeMap::new();
    for _ in 0..claims {
        let claimed = rig.claim(worker).await;
        let tenant = claimed.spec.tenant.as_ref().map_or("nobody", |tenant| tenant.as_str()).to_owned();
        *served.entry(tenant).or_default() += 1;
        rig.finished(worker, &claimed, completed()).await;
    }
    served
}

fn shares(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(tenant, count)| ((*tenant).to_owned(), *count)).collect()
}

pub async fn tenants_take_turns(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(of_tenant("large", 200)).await;
    rig.advance(seconds(100));
    rig.submit_all(of_tenant("small", 10)).await;
    rig.submit_all((0..10).map(|_| task("a"))).await;
    let worker = rig.worker().await;
    let turns = served(&rig, worker, 30).await;
    assert_eq!(turns, shares(&[("large", 10), ("small", 10), ("nobody", 10)]), "work of nobody has its turn too");
    assert_eq!(served(&rig, worker, 20).await, shares(&[("large", 20)]));
}

pub async fn turns_hold_inside_one_large_claim(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(of_tenant("one", 50)).await;
    rig.submit_all(of_tenant("two", 50)).await;
    let claimed = rig.claim_up_to(rig.worker().await, 40).await;
    let of_one = claimed.iter().filter(|task| task.spec.tenant.as_ref().is_some_and(|t| t.as_str() == "one")).count();
    assert_eq!((claimed.len(), of_one), (40, 20));
}

pub async fn tenants_have_weights(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair","tenant_weights":{"gold":3}}"#).await;
    for tenant in ["gold", "plain"] {
        rig.submit_all(of_tenant(tenant, 200)).await;
    }
    let worker = rig.worker().await;
    assert_eq!(served(&rig, worker, 40).await, shares(&[("gold", 30), ("plain", 10)]));
    rig.change_queue("default", r#"{"tenant_weights":{"plain":4}}"#).await;
    let turns = served(&rig, worker, 50).await;
    let plain = turns.get("plain").copied().unwrap_or(0);
    assert!((38..=42).contains(&plain), "changed weights apply at once: {turns:?}");
}

pub async fn a_tenant_that_comes_and_goes_gains_nothing(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(of_tenant("steady", 300)).await;
    let worker = rig.worker().await;
    let mut turns = BTreeMap::<String, usize>::new();
    for _ in 0..50 {
        // One task at a time, so that it leaves the line each time it is served.
        rig.submit(task("a").tenant("restless")).await;
        for (tenant, count) in served(&rig, worker, 2).await {
            *turns.entry(tenant).or_default() += count;
        }
    }
    let restless = turns.get("restless").copied().unwrap_or(0);
    assert!((49..=50).contains(&restless), "its share and no more: {turns:?}");
}

pub async fn a_tenant_that_was_away_saved_nothing_up(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(of_tenant("steady", 300)).await;
    rig.submit_all(of_tenant("away", 1)).await;
    let worker = rig.worker().await;
    served(&rig, worker, 100).await;
    rig.submit_all(of_tenant("away", 100)).await;
    let turns = served(&rig, worker, 20).await;
    assert!((9..=11).contains(&turns.get("away").copied().unwrap_or(0)), "{turns:?}");
}

pub async fn a_tenant_is_served_by_aging(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(vec![task("a").tenant("t").priority(Priority::LOW); 20]).await;
    rig.advance(seconds(1801));
    rig.submit_all(vec![task("a").tenant("t").priority(Priority::HIGH); 60]).await;
    rig.submit_all(vec![task("a").tenant("u").priority(Priority::BULK); 60]).await;
    let worker = rig.worker().await;
    let mut counts = BTreeMap::<(String, u8), usize>::new();
    for claimed in rig.claim_up_to(worker, 80).await {
        let tenant = claimed.spec.tenant.as_ref().expect("a tenant").to_string();
        *counts.entry((tenant, claimed.spec.priority.level())).or_default() += 1;
    }
    let of = |tenant: &str, level| counts.get(&(tenant.to_owned(), level)).copied().unwrap_or(0);
    assert_eq!((of("t", 7), of("t", 3), of("u", 1)), (30, 10, 40), "urgency counts inside a tenant only");
}

pub async fn fair_turns_are_for_what_a_worker_can_take(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(vec![task("b").tenant("one"); 50]).await;
    rig.submit_all(vec![task("a").tenant("two"); 10]).await;
    rig.submit_all(vec![task("paused").tenant("three"); 10]).await;
    rig.change_type("paused", r#"{"paused":true}"#).await;
    let worker = rig.register(handling(&["a"])).await;
    assert_eq!(served(&rig, worker, 10).await, shares(&[("two", 10)]));
    rig.claim_nothing(worker).await;
    assert_eq!(served(&rig, rig.worker().await, 50).await, shares(&[("one", 50)]));
}

/// Everything that waits or runs, of two tenants, some of it held by keys.
async fn mixed(rig: &Rig) -> (WorkerId, Vec<windlass_core::task::ClaimedTask>) {
    let worker = rig.worker().await;
    rig.submit_all(of_tenant("one", 2)).await;
    let mut running = rig.claim_up_to(worker, 10).await;
    rig.submit(task("a").tenant("one")).await;
    let cancelled = rig.claim(worker).await;
    rig.cancel(cancelled.id).await.expect("it runs");
    running.push(cancelled);
    rig.submit_all(of_tenant("one", 40)).await;
    rig.advance(seconds(1));
    rig.submit_all(of_tenant("two", 40)).await;
    rig.submit_all(vec![task("a").tenant("two").delay(seconds(60)); 3]).await;
    (worker, running)
}

pub async fn a_queue_becomes_fair_at_once(rig: Rig) {
    let (worker, running) = mixed(&rig).await;
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    reading::assert_stats(&rig).await;
    assert_eq!(served(&rig, worker, 20).await, shares(&[("one", 10), ("two", 10)]));
    rig.finished(worker, &running[0], completed()).await;
    rig.finished(worker, &running[1], failed()).await;
    rig.finish(worker, &running[2], completed()).await.expect_err("it was cancelled");
    rig.advance(seconds(60));
    assert_eq!(rig.make_due().await, 4);
    assert_eq!(served(&rig, worker, 64).await, shares(&[("one", 31), ("two", 33)]), "nothing is lost");
    rig.claim_nothing(worker).await;
}

pub async fn a_queue_ceases_to_be_fair_at_once(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    let (worker, running) = mixed(&rig).await;
    rig.change_queue("default", r#"{"policy":"aging"}"#).await;
    reading::assert_stats(&rig).await;
    assert_eq!(served(&rig, worker, 40).await, shares(&[("one", 40)]), "first come, first served");
    rig.finished(worker, &running[0], completed()).await;
    rig.finished(worker, &running[1], failed()).await;
    rig.finish(worker, &running[2], completed()).await.expect_err("it was cancelled");
    rig.advance(seconds(60));
    assert_eq!(rig.make_due().await, 4);
    assert_eq!(served(&rig, worker, 44).await, shares(&[("one", 1), ("two", 43)]), "nothing is lost");
    rig.claim_nothing(worker).await;
}

pub async fn keys_hold_while_a_queue_becomes_fair(rig: Rig) {
    use windlass_core::keys::OnFailure;
    let ordered = rig.submit_all(vec![task("a").tenant("t").ordered("k", OnFailure::Block); 3]).await;
    let limited = rig.submit_all(vec![task("b").tenant("u").at_most(1, "k"); 3]).await;
    rig.change_type("c", r#"{"concurrency":1}"#).await;
    rig.submit_all(vec![task("c").tenant("t"); 2]).await;
    let worker = rig.worker().await;
    let mut running = rig.claim_up_to(worker, 10).await;
    assert_eq!(running.len(), 3);
    for policy in [r#"{"policy":"fair"}"#, r#"{"policy":null}"#] {
        rig.change_queue("default", policy).await;
        rig.claim_nothing(worker).await;
        for claimed in running {
            rig.finished(worker, &claimed, completed()).await;
        }
        running = rig.claim_up_to(worker, 10).await;
    }
    let ids: std::collections::BTreeSet<_> = running.iter().map(|task| task.id).collect();
    assert_eq!(ids, [ordered[2], limited[2]].into());
}

pub async fn clearing_a_fair_queue_loses_nothing(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair"}"#).await;
    rig.submit_all(of_tenant("one", 5)).await;
    rig.submit_all(of_tenant("two", 5)).await;
    rig.store.clear_queue(crate::fixtures::queue("default")).await.expect("it has settings");
    assert_eq!(rig.claim_up_to(rig.worker().await, 100).await.len(), 10);
}

pub async fn a_fair_queue_is_fair_after_a_restart(rig: Rig) {
    rig.change_queue("default", r#"{"policy":"fair","tenant_weights":{"two":3}}"#).await;
    rig.submit_all(of_tenant("one", 40)).await;
    rig.submit_all(of_tenant("two", 40)).await;
    let worker = rig.worker().await;
    let running = rig.claim_up_to(worker, 4).await;
    rig.cancel(running[0].id).await.expect("it runs");
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(served(&rig, worker, 40).await, shares(&[("one", 10), ("two", 30)]));
    for claimed in &running[1..] {
        rig.finished(worker, claimed, completed()).await;
    }
    reading::assert_stats(&rig).await;
    let done = TaskFilter { statuses: vec![Status::Completed], ..TaskFilter::default() };
    assert_eq!(rig.ids(&done).await.len(), 43);
}
