//! Error rules: data that puts a failure in its class.

use windlass_core::failure::{EndReason, ErrorClass, ErrorReport};
use windlass_core::ids::TaskId;
use windlass_core::status::Status;
use windlass_core::store::{Outcome, SettingsError};

use crate::fixtures::{TaskBuilder, error, error_code, task};
use crate::rig::{Rig, seconds};

/// Lets a task fail and says what became of it.
async fn fail(rig: &Rig, task: TaskBuilder, error: ErrorReport) -> (TaskId, Status, ErrorClass) {
    let (worker, claimed) = rig.started(task).await;
    let status = rig.finished(worker, &claimed, Outcome::Failed(error)).await.status;
    let class = rig.state(claimed.id).await.last_failure().expect("it failed").class;
    (claimed.id, status, class)
}

async fn class_of(rig: &Rig, task_type: &str, error: ErrorReport) -> ErrorClass {
    fail(rig, task(task_type), error).await.2
}

pub async fn a_rule_decides_the_class_and_what_follows(rig: Rig) {
    rig.change_error_rules(r#"{"rules":[{"code":"card_*","class":"permanent"}]}"#).await.expect("sound");
    let (id, status, class) = fail(&rig, task("a"), error_code("card_stolen")).await;
    assert_eq!((status, class), (Status::DeadLetter, ErrorClass::Permanent));
    assert_eq!(rig.state(id).await.end_reason, Some(EndReason::PermanentError));
    let (_, status, class) = fail(&rig, task("a"), error_code("bank_closed")).await;
    assert_eq!((status, class), (Status::Scheduled, ErrorClass::Unknown));
}

pub async fn rules_of_a_type_go_before_global_ones(rig: Rig) {
    let rules = r#"{"rules":[{"code":"x","class":"permanent"},{"task_type":"a","code":"x","class":"transient"}]}"#;
    rig.change_error_rules(rules).await.expect("sound");
    assert_eq!(class_of(&rig, "a", error_code("x")).await, ErrorClass::Transient);
    assert_eq!(class_of(&rig, "b", error_code("x")).await, ErrorClass::Permanent);
}

pub async fn rules_go_before_what_is_built_in_and_what_the_handler_says(rig: Rig) {
    let rules = r#"{"rules":[{"http_status":"5xx","class":"permanent"},{"code":"oom","class":"transient"},
        {"message":"try later","class":"rate_limited"}]}"#;
    rig.change_error_rules(rules).await.expect("sound");
    let by_status = ErrorReport { http_status: Some(503), ..error("x") };
    assert_eq!(class_of(&rig, "a", by_status).await, ErrorClass::Permanent);
    assert_eq!(class_of(&rig, "a", error_code("oom")).await, ErrorClass::Transient);
    let by_handler = ErrorReport { retriable: Some(false), ..error("please try later") };
    assert_eq!(class_of(&rig, "a", by_handler).await, ErrorClass::RateLimited);
    assert_eq!(class_of(&rig, "a", error_code("panic")).await, ErrorClass::CodeBug, "what no rule names is built in");
}

pub async fn codes_of_the_task_go_before_rules(rig: Rig) {
    rig.change_error_rules(r#"{"rules":[{"code":"x","class":"permanent"}]}"#).await.expect("sound");
    let stubborn = task("a").retry(|retry| retry.retryable_codes = vec!["x".into()]);
    assert_eq!(fail(&rig, stubborn, error_code("x")).await.1, Status::Scheduled);
}

pub async fn changed_rules_apply_at_once(rig: Rig) {
    let (worker, claimed) = rig.started(task("a")).await;
    rig.change_error_rules(r#"{"rules":[{"code":"x","class":"permanent"}]}"#).await.expect("sound");
    let finished = rig.finished(worker, &claimed, Outcome::Failed(error_code("x"))).await;
    assert_eq!(finished.status, Status::DeadLetter, "also to what runs");
    assert_eq!(rig.store.settings().error_rules.source().rules.len(), 1);
    rig.change_error_rules(r#"{"rules":[]}"#).await.expect("sound");
    assert_eq!(class_of(&rig, "a", error_code("x")).await, ErrorClass::Unknown);
}

pub async fn bad_rules_are_refused_and_change_nothing(rig: Rig) {
    rig.change_error_rules(r#"{"rules":[{"code":"x","class":"permanent"}],"unknown_max_retries":1}"#)
        .await
        .expect("sound");
    let before = rig.store.settings();
    for (rules, field) in [
        (r#"{"rules":[{"code":"y","class":"transient"},{"message":"(","class":"transient"}]}"#, "rules[1].message"),
        (r#"{"rules":[{"class":"transient"}]}"#, "rules[0]"),
        (r#"{"unknown_max_retries":101}"#, "unknown_max_retries"),
    ] {
        match rig.change_error_rules(rules).await {
            Err(SettingsError::BadRule(refused)) => assert_eq!(refused.field, field),
            other => panic!("{rules} should be refused, but {other:?}"),
        }
    }
    assert_eq!(rig.store.settings(), before);
    assert_eq!(class_of(&rig, "a", error_code("x")).await, ErrorClass::Permanent);
}

pub async fn failures_of_no_class_can_be_given_up_sooner(rig: Rig) {
    rig.change_error_rules(r#"{"unknown_max_retries":1}"#).await.expect("sound");
    let (worker, claimed) = rig.started(task("a")).await;
    assert_eq!(rig.finished(worker, &claimed, Outcome::Failed(error("what?"))).await.status, Status::Scheduled);
    rig.advance(seconds(10));
    rig.make_due().await;
    let claimed = rig.claim(worker).await;
    assert_eq!(rig.finished(worker, &claimed, Outcome::Failed(error("what?"))).await.status, Status::DeadLetter);
    assert_eq!(rig.state(claimed.id).await.end_reason, Some(EndReason::MaxRetries));
    let known = ErrorReport { retriable: Some(true), ..error("known") };
    let (worker, mut claimed) = rig.started(task("a")).await;
    for _ in 0..3 {
        assert_eq!(rig.finished(worker, &claimed, Outcome::Failed(known.clone())).await.status, Status::Scheduled);
        rig.advance(seconds(100));
        rig.make_due().await;
        claimed = rig.claim(worker).await;
    }
}

pub async fn rules_survive_a_restart(rig: Rig) {
    let rules = r#"{"rules":[{"name":"cards","code":"card_*","http_status":["4xx",503],"class":"permanent"},
        {"task_type":"a","message":"(?i)busy","class":"rate_limited"}],"unknown_max_retries":2}"#;
    rig.change_error_rules(rules).await.expect("sound");
    let before = rig.store.settings();
    let Some(rig) = rig.reopen().await else { return };
    assert_eq!(rig.store.settings(), before);
    assert_eq!(class_of(&rig, "a", error("Busy")).await, ErrorClass::RateLimited);
}
