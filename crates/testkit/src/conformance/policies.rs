//! The order of claims under each policy, through real claims.

use windlass_core::priority::Priority;

use crate::fixtures::{completed, priority, task};
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
