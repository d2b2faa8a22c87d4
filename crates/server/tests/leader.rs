//! Several nodes on one store: one of them runs maintenance, and another takes over when it is gone.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::memory_store;
use tokio::time::{Instant, sleep};
use windlass_core::ids::TaskId;
use windlass_core::status::Status;
use windlass_core::store::{ClaimRequest, Store};
use windlass_server::{App, MaintenanceLoops, Metrics, ServerConfig};
use windlass_testkit::{Mood, ShakyStore, SharedLead, Switch, fixtures};

/// What the death of a leader may cost.
const PASSES_ON_WITHIN: Duration = Duration::from_secs(3);

struct Node {
    app: App,
    loops: MaintenanceLoops,
    switch: Switch,
}

struct Nodes {
    store: Arc<dyn Store>,
    lead: Arc<SharedLead>,
}

impl Nodes {
    fn new() -> Self {
        Self { store: memory_store(&Arc::default()), lead: Arc::default() }
    }

    fn start(&self, number: u32) -> Node {
        let store = ShakyStore::of_node(Arc::clone(&self.store), &self.lead, number);
        let switch = store.switch();
        let app = App::new(ServerConfig::default(), store, Arc::new(Metrics::default()));
        Node { loops: app.start_maintenance(), app, switch }
    }

    async fn submit_delayed(&self, seconds: u64) -> TaskId {
        let task = fixtures::task("t").delay(Duration::from_secs(seconds)).build();
        self.store.submit(vec![task]).await.expect("stored")[0].id
    }

    async fn status(&self, id: TaskId) -> Status {
        self.store.get(vec![id]).await.expect("read")[0].as_ref().expect("there").state.status
    }
}

/// How long it takes until it is so.
async fn until(is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_mins(1), "it should have been so long ago");
        sleep(Duration::from_millis(10)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn one_node_leads_and_does_the_work_of_all() {
    let nodes = Nodes::new();
    let first = nodes.start(1);
    until(|| first.app.is_leader()).await;
    let second = nodes.start(2);
    let due = nodes.submit_delayed(5).await;
    sleep(Duration::from_secs(10)).await;
    assert!(first.app.is_leader() && !second.app.is_leader());
    assert_eq!(nodes.status(due).await, Status::Queued);
}

#[tokio::test(start_paused = true)]
async fn another_node_leads_when_the_leader_is_gone() {
    for mood in [Mood::Hangs, Mood::Refuses] {
        let nodes = Nodes::new();
        let first = nodes.start(1);
        until(|| first.app.is_leader()).await;
        let second = nodes.start(2);
        // At any point between two renewals.
        sleep(Duration::from_millis(7_777)).await;
        first.switch.set(mood);
        let due = nodes.submit_delayed(2).await;
        let first_gave_up = async {
            until(|| !first.app.is_leader()).await;
            assert!(!second.app.is_leader(), "never two at once");
        };
        let ((), took) = tokio::join!(first_gave_up, until(|| second.app.is_leader()));
        assert!(took <= PASSES_ON_WITHIN, "{mood:?}: {took:?}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(nodes.status(due).await, Status::Queued);
        // What comes back finds another leader.
        first.switch.set(Mood::Serves);
        sleep(Duration::from_secs(10)).await;
        assert!(!first.app.is_leader() && second.app.is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_lets_another_lead_at_once() {
    let nodes = Nodes::new();
    let first = nodes.start(1);
    until(|| first.app.is_leader()).await;
    let second = nodes.start(2);
    sleep(Duration::from_secs(5)).await;
    first.loops.stop().await;
    assert!(!first.app.is_leader());
    let took = until(|| second.app.is_leader()).await;
    assert!(took <= Duration::from_millis(510), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_lead_leaves_everything_alone() {
    let nodes = Nodes::new();
    let node = nodes.start(1);
    until(|| node.app.is_leader()).await;
    let due = nodes.submit_delayed(20).await;
    nodes.lead.give(2, Duration::from_mins(1));
    sleep(Duration::from_secs(40)).await;
    assert!(!node.app.is_leader());
    assert_eq!(nodes.status(due).await, Status::Scheduled);
    sleep(Duration::from_secs(22)).await;
    assert!(node.app.is_leader());
    assert_eq!(nodes.status(due).await, Status::Queued);
}

#[tokio::test(start_paused = true)]
async fn after_a_change_of_leaders_nothing_lapses_for_one_lease() {
    let nodes = Nodes::new();
    let first = nodes.start(1);
    until(|| first.app.is_leader()).await;
    let second = nodes.start(2);
    // What the start of the first gave is over by then.
    sleep(Duration::from_secs(60)).await;
    let profile = fixtures::profile();
    let (worker, lease) = (profile.id, ServerConfig::default().lease);
    nodes.store.register_worker(profile).await.expect("registered");
    let id = nodes.store.submit(vec![fixtures::task("t").build()]).await.expect("stored")[0].id;
    let request = ClaimRequest { worker, capabilities: None, up_to: 1, lease, wait: false };
    nodes.store.claim(request).await.expect("claimed");
    sleep(Duration::from_secs(20)).await;
    first.switch.set(Mood::Hangs);
    until(|| second.app.is_leader()).await;
    let led = Instant::now();
    sleep(lease.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(nodes.status(id).await, Status::Executing, "the worker has until then to come back");
    while nodes.status(id).await == Status::Executing {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(led.elapsed() <= lease + Duration::from_secs(2), "{:?}", led.elapsed());
}
