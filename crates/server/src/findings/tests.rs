//! One test per finding.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_core::breaker::{Figures, Forced, Opened, Record, Scope};
use windlass_core::event::FailureNote;
use windlass_core::failure::{DecidedBy, ErrorClass};
use windlass_core::ids::WorkerId;
use windlass_core::lane::LaneKey;
use windlass_core::names::{Capability, CapabilitySet, QueueName};
use windlass_core::policy::PolicyKind;
use windlass_core::priority::Priority;
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::store::{Hindrance, QueueStats};
use windlass_core::worker::WorkerProfile;

use super::failures::CLUSTER;
use super::*;
use crate::outcomes::Latest;

const NOW: Duration = Duration::from_secs(1_000_000);

fn now() -> Timestamp {
    Timestamp::EPOCH + NOW
}

fn ago(seconds: u64) -> Timestamp {
    now() - Duration::from_secs(seconds)
}

fn task_type(name: &str) -> TaskType {
    TaskType::new(name).expect("a name")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

fn capabilities(names: &[&str]) -> CapabilitySet {
    CapabilitySet::new(names.iter().map(|name| Capability::new(name).expect("a name")).collect())
}

/// Facts that own what they are about.
struct World {
    settings: Settings,
    lanes: Vec<LaneStats>,
    stats: Stats,
    workers: Vec<(Worker, WorkerStatus)>,
    breakers: Vec<View>,
    troubles: BTreeMap<String, Trouble>,
    trend: Trend,
}

impl World {
    /// One worker that serves everything, and nothing else.
    fn new() -> Self {
        Self {
            settings: Settings::default(),
            lanes: Vec::new(),
            stats: Stats::default(),
            workers: vec![(worker(&[], &[], &[]), WorkerStatus::Active)],
            breakers: Vec::new(),
            troubles: BTreeMap::new(),
            trend: Trend { seconds: 300, ..Trend::default() },
        }
    }

    fn wait(&mut self, name: &str, required: &[&str], queued: u64, waited: u64) -> &mut LaneStats {
        self.lanes.push(LaneStats {
            lane: LaneKey {
                queue: queue("q"),
                task_type: task_type(name),
                capabilities: capabilities(required),
                priority: Priority::LOW,
                tenant: None,
            },
            queued,
            oldest_ready_at: Some(ago(waited)),
            executing: 0,
            closed_by: None,
        });
        self.lanes.last_mut().expect("pushed")
    }

    fn findings(&self) -> Vec<Finding> {
        findings(&Facts {
            now: now(),
            settings: &self.settings,
            lanes: &self.lanes,
            stats: &self.stats,
            workers: &self.workers,
            breakers: &self.breakers,
            troubles: &self.troubles,
            trend: self.trend,
        })
    }

    #[track_caller]
    fn only(&self, code: &str) -> Finding {
        let mut found = self.findings();
        let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [code]);
        let finding = found.remove(0);
        for text in [&finding.title, &finding.detail, &finding.next_step] {
            assert!(!text.is_empty(), "{finding:?}");
        }
        finding
    }
}

fn worker(queues: &[&str], types: &[&str], able: &[&str]) -> Worker {
    Worker {
        profile: WorkerProfile {
            id: WorkerId::random(),
            capabilities: capabilities(able),
            capacity: 4,
            queues: queues.iter().map(|name| queue(name)).collect(),
            task_types: types.iter().map(|name| task_type(name)).collect(),
            pool: None,
            name: None,
            version: None,
            host: None,
        },
        registered_at: ago(100),
        last_seen_at: now(),
        draining: false,
        unhealthy: false,
        health: None,
        current_tasks: Vec::new(),
        completed: 0,
        failed: 0,
    }
}

fn note(class: ErrorClass, message: &str) -> Latest<Arc<FailureNote>> {
    let (code, message) = (Some("E1".to_owned()), message.to_owned());
    let last = Arc::new(FailureNote { class, decided_by: DecidedBy::Nobody, code, message });
    Latest { last, since: ago(50) }
}

#[test]
fn all_is_well() {
    let mut world = World::new();
    assert_eq!(world.findings(), []);
    world.wait("t", &[], 5, 10);
    assert_eq!(world.findings(), []);
}

#[test]
fn no_workers() {
    let mut world = World::new();
    world.workers[0].1 = WorkerStatus::Dead;
    world.workers.push((worker(&[], &[], &[]), WorkerStatus::Draining));
    assert_eq!(world.findings(), [], "nothing waits");
    world.wait("t", &["gpu"], 5, 10);
    let finding = world.only("no_workers");
    assert_eq!((finding.severity, finding.since), (Severity::Critical, Some(ago(10))));
    assert_eq!(finding.evidence["waiting"], 5);
}

#[test]
fn no_capable_worker() {
    let mut world = World::new();
    world.wait("a", &["gpu"], 5, 10);
    world.wait("b", &["gpu"], 2, 30);
    let finding = world.only("no_capable_worker");
    assert_eq!((finding.severity, finding.since), (Severity::Critical, Some(ago(30))));
    assert_eq!((&finding.evidence["capability"], &finding.evidence["queue"]), (&json!("gpu"), &json!("q")));
    assert_eq!((&finding.evidence["waiting"], &finding.evidence["task_types"]), (&json!(7), &json!(["a", "b"])));
    // A dead worker's capability helps nobody.
    world.workers.push((worker(&[], &[], &["gpu"]), WorkerStatus::Dead));
    world.only("no_capable_worker");
    world.workers.push((worker(&[], &[], &["gpu"]), WorkerStatus::Active));
    assert_eq!(world.findings(), []);
}

#[test]
fn no_worker_has_all_capabilities_at_once() {
    let mut world = World::new();
    world.workers.push((worker(&[], &[], &["eu"]), WorkerStatus::Active));
    world.workers.push((worker(&[], &[], &["gpu"]), WorkerStatus::Active));
    world.wait("a", &["eu", "gpu"], 1, 10);
    assert_eq!(world.only("no_capable_worker").evidence["capability"], "eu+gpu");
}

#[test]
fn no_worker_for_type() {
    let mut world = World::new();
    world.workers = vec![
        (worker(&["other"], &[], &[]), WorkerStatus::Active),
        (worker(&["q"], &["other"], &[]), WorkerStatus::Active),
    ];
    world.wait("t", &[], 5, 10);
    let finding = world.only("no_worker_for_type");
    assert_eq!((&finding.evidence["task_type"], &finding.evidence["queue"]), (&json!("t"), &json!("q")));
    assert_eq!(finding.since, Some(ago(10)));
}

#[test]
fn slots_too_large() {
    let mut world = World::new();
    world.settings.types.insert(task_type("t"), TypeSettings { slots: Some(5), ..TypeSettings::default() });
    assert_eq!(world.findings(), [], "nothing waits");
    world.wait("t", &[], 5, 10);
    let finding = world.only("slots_too_large");
    assert_eq!((&finding.evidence["slots"], &finding.evidence["largest_capacity"]), (&json!(5), &json!(4)));
    world.workers[0].0.profile.capacity = 5;
    assert_eq!(world.findings(), []);
}

fn opened() -> Record {
    let opened = Opened { since: ago(20), until: now() + Duration::from_secs(40), reason: "9 of 10".to_owned() };
    Record { opened: Some(opened), ..Record::default() }
}

#[test]
fn breakers() {
    let mut world = World::new();
    let view = |scope: Scope, record: &Record| View::new(scope, record, Figures::default(), now());
    let of_type = || Scope::Type(task_type("t"));
    world.breakers = vec![view(of_type(), &Record::default())];
    assert_eq!(world.findings(), [], "it is closed");

    world.breakers = vec![view(of_type(), &opened())];
    world.wait("t", &[], 5, 100_000).closed_by = Some(Hindrance::BreakerOpen { until: None });
    let finding = world.only("breaker_open");
    assert_eq!((finding.since, finding.subject.as_str()), (Some(ago(20)), "type t"));
    assert!(finding.detail.contains("5 tasks"), "{}", finding.detail);

    world.breakers = vec![view(Scope::Worker(WorkerId::random()), &opened())];
    assert_eq!(world.only("worker_breaker_open").since, Some(ago(20)));

    for (forced, severity) in [(Forced::Open, Severity::Warning), (Forced::Closed, Severity::Info)] {
        let record = Record { forced: Some(forced), forced_at: Some(ago(7)), ..Record::default() };
        world.breakers = vec![view(of_type(), &record)];
        let finding = world.only("breaker_forced");
        assert_eq!((finding.severity, finding.since), (severity, Some(ago(7))));
    }
}

#[test]
fn poison_pill() {
    let mut world = World::new();
    world.troubles.insert("t".to_owned(), Trouble { poison_pills: 2, ..Trouble::default() });
    let finding = world.only("poison_pill");
    assert_eq!((&finding.evidence["count"], finding.since), (&json!(2), None));
}

#[test]
fn code_bug() {
    let mut world = World::new();
    let code_bug = Some(note(ErrorClass::CodeBug, "no such field"));
    world.troubles.insert("t".to_owned(), Trouble { code_bugs: 3, code_bug, ..Trouble::default() });
    let Finding { evidence, since, .. } = world.only("code_bug");
    assert_eq!(since, Some(ago(50)));
    assert_eq!((&evidence["count"], &evidence["last_message"]), (&json!(3), &json!("no such field")));
}

#[test]
fn unclassified_errors() {
    let mut world = World::new();
    let unclassified_error = Some(note(ErrorClass::Unknown, "odd"));
    world.troubles.insert("t".to_owned(), Trouble { unclassified: 3, unclassified_error, ..Trouble::default() });
    let finding = world.only("unclassified_errors");
    assert_eq!((finding.severity, &finding.evidence["last_code"]), (Severity::Info, &json!("E1")));
}

#[test]
fn dead_letter_cluster() {
    let mut world = World::new();
    for (name, count) in [("a", 6), ("b", 5)] {
        world.stats.dead_letters.insert((queue(name), task_type("t")), count);
    }
    world.stats.dead_letters.insert((queue("a"), task_type("few")), CLUSTER);
    assert_eq!(world.only("dead_letter_cluster").evidence, json!({"task_type": "t", "count": 11}));
}

#[test]
fn waiting_bound() {
    let mut world = World::new();
    // Low counts as high after 1800 s.
    world.wait("t", &[], 5, 1_439);
    assert_eq!(world.findings(), []);
    world.wait("u", &[], 1, 1_440);
    let finding = world.only("waiting_bound");
    assert_eq!((&finding.evidence["bound_seconds"], &finding.evidence["waiting"]), (&json!(1800), &json!(1)));
    assert_eq!((finding.since, finding.subject.as_str()), (Some(ago(1_440)), "q low"));
    let strict = QueueSettings { policy: Some(PolicyKind::Strict), ..QueueSettings::default() };
    world.settings.queues.insert(queue("q"), strict);
    assert_eq!(world.findings(), [], "nothing was promised");
}

#[test]
fn paused_with_work() {
    let mut world = World::new();
    world.settings.queues.insert(queue("q"), QueueSettings { paused: true, ..QueueSettings::default() });
    assert_eq!(world.findings(), [], "nothing waits");
    world.wait("t", &[], 5, 100_000).closed_by = Some(Hindrance::QueuePaused);
    let finding = world.only("paused_with_work");
    assert_eq!((finding.subject.as_str(), finding.since), ("queue q", Some(ago(100_000))));
    world.settings = Settings::default();
    world.settings.types.insert(task_type("t"), TypeSettings { paused: true, ..TypeSettings::default() });
    world.lanes[0].closed_by = Some(Hindrance::TypePaused);
    assert_eq!(world.only("paused_with_work").subject, "task type t");
}

#[test]
fn growing_backlog() {
    let mut world = World::new();
    let mut of_queue = QueueStats::default();
    of_queue.queued[3] = 3_000;
    world.stats.queues.insert(queue("q"), of_queue);
    world.trend = Trend { entered: 600, left: 500, seconds: 300 };
    assert_eq!(world.findings(), [], "that is not clearly more");
    world.trend = Trend { entered: 900, left: 300, seconds: 300 };
    assert_eq!(world.only("growing_backlog").evidence["time_to_drain_seconds"], 3_000);
    world.trend.left = 0;
    assert_eq!(world.only("growing_backlog").evidence["time_to_drain_seconds"], Value::Null);
    world.stats.queues.clear();
    assert_eq!(world.findings(), [], "nothing waits");
}

#[test]
fn the_most_severe_come_first() {
    let mut world = World::new();
    world.troubles.insert("t".to_owned(), Trouble { unclassified: 1, poison_pills: 1, ..Trouble::default() });
    world.wait("t", &["gpu"], 1, 1);
    let codes: Vec<_> = world.findings().iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["no_capable_worker", "poison_pill", "unclassified_errors"]);
}
