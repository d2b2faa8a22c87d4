//! A store of several nodes that share one database: every call goes to the next node, so
//! that nothing can rely on being called by whoever was called before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use crate::front::prelude::*;
use crate::pass_on;

/// Several nodes as one store.
pub struct Hopping {
    nodes: Vec<Arc<dyn Store>>,
    calls: AtomicUsize,
}

impl Hopping {
    /// A store that goes round these nodes.
    pub fn new(nodes: Vec<Arc<dyn Store>>) -> Self {
        assert!(!nodes.is_empty(), "a store has at least one node");
        Self { nodes, calls: AtomicUsize::new(0) }
    }

    fn first(&self) -> &dyn Store {
        self.nodes[0].as_ref()
    }

    fn next(&self) -> &dyn Store {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.nodes[call % self.nodes.len()].as_ref()
    }

    /// Settings reach other nodes a moment later. A read makes each of them look.
    async fn let_all_see<T>(&self, change: impl Future<Output = T>) -> T {
        let answer = change.await;
        for node in &self.nodes {
            node.lanes().await.expect("the store reads");
        }
        answer
    }
}

#[async_trait]
impl Store for Hopping {
    fn name(&self) -> &'static str {
        self.first().name()
    }

    fn capabilities(&self) -> Capabilities {
        self.first().capabilities()
    }

    fn now(&self) -> Timestamp {
        self.first().now()
    }

    fn settings(&self) -> Arc<Settings> {
        self.first().settings()
    }

    pass_on! {
        (Self::next)
            submit inbox inbox_grown take_in claim finish heartbeat record_progress record_steps cancel amend
            requeue bury discard make_due lapse_leases time_out expire prune settle_intents forgive get list history
            events until_ended waiting_for lanes stats register_worker workers drain_worker deregister_worker
            forget_workers breakers force_breaker replay_settled check
    }
    pass_on! { (Self::next, Self::let_all_see) change_queue change_type clear_queue clear_type change_error_rules }
    pass_on! { (Self::first) lead resign }

    async fn close(&self) {
        for node in &self.nodes {
            node.close().await;
        }
    }
}
