//! Settings that operators change at run time.

use windlass_core::policy::PolicyKind;
use windlass_core::settings::{Depth, QueueChange, TypeChange};
use windlass_core::store::SettingsError;

use crate::fixtures::{queue, task, task_type};
use crate::rig::{Rig, seconds};

pub async fn a_change_is_seen_at_once(rig: Rig) {
    assert!(rig.store.settings().queues.is_empty() && rig.store.settings().types.is_empty());
    let answered =
        rig.change_queue("x", r#"{"policy":"strict","depth":{"soft":1,"hard":2},"overdue_share":0.5}"#).await;
    assert_eq!(answered.policy, Some(PolicyKind::Strict));
    assert_eq!(rig.store.settings().queues.get(&queue("x")), Some(&answered));
    let answered = rig.change_queue("x", r#"{"policy":null,"paused":true}"#).await;
    assert_eq!((answered.policy, answered.paused, answered.depth), (None, true, Some(Depth { soft: 1, hard: 2 })));
    assert_eq!(rig.store.settings().queues.get(&queue("x")), Some(&answered));
    let of_type =
        rig.change_type("mail", r#"{"timeout_seconds":5,"max_retries":9,"queue":"x","priority":"high"}"#).await;
    assert_eq!((of_type.timeout_seconds, of_type.max_retries), (Some(seconds(5)), Some(9)));
    assert_eq!(rig.store.settings().types.get(&task_type("mail")), Some(&of_type));
}

pub async fn an_unsound_change_is_refused_whole(rig: Rig) {
    let before = rig.change_queue("x", r#"{"depth":{"soft":1,"hard":2}}"#).await;
    let change: QueueChange = serde_json::from_str(r#"{"paused":true,"depth":{"soft":3,"hard":2}}"#).expect("a change");
    let refused = rig.store.change_queue(queue("x"), change).await;
    assert!(matches!(&refused, Err(SettingsError::Bad(bad)) if bad.field == "depth"), "{refused:?}");
    assert_eq!(rig.store.settings().queues.get(&queue("x")), Some(&before));
    let change: TypeChange = serde_json::from_str(r#"{"max_crashes":0}"#).expect("a change");
    let refused = rig.store.change_type(task_type("mail"), change).await;
    assert!(matches!(&refused, Err(SettingsError::Bad(bad)) if bad.field == "max_crashes"), "{refused:?}");
    assert!(rig.store.settings().types.is_empty());
}

pub async fn cleared_settings_follow_the_defaults(rig: Rig) {
    rig.change_queue("x", r#"{"paused":true}"#).await;
    rig.change_type("mail", r#"{"paused":true}"#).await;
    let id = rig.submit(task("mail").queue("x")).await;
    rig.store.clear_queue(queue("x")).await.expect("it has settings");
    rig.store.clear_type(task_type("mail")).await.expect("it has settings");
    assert!(rig.store.settings().queues.is_empty() && rig.store.settings().types.is_empty());
    let worker = rig.worker().await;
    assert_eq!(rig.claim(worker).await.id, id, "its tasks stay");
    assert_eq!(rig.store.clear_queue(queue("x")).await, Err(SettingsError::Unknown));
    assert_eq!(rig.store.clear_type(task_type("mail")).await, Err(SettingsError::Unknown));
}

pub async fn a_snapshot_of_settings_does_not_change(rig: Rig) {
    let before = rig.store.settings();
    rig.change_queue("x", r#"{"paused":true}"#).await;
    assert!(before.queues.is_empty(), "who holds settings decides by one state of them");
    assert!(rig.store.settings().is_queue_paused(&queue("x")));
}
