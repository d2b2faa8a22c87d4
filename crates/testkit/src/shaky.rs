//! A store that can be made to fail, and a lead that several nodes fight for: what tests of outages and of many nodes
//! stand on.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::front::prelude::*;
use crate::pass_on;

/// How a shaky store takes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As the store within.
    #[default]
    Serves,
    /// Every call fails, and nothing was done. Calls that wait fail, too.
    Refuses,
    /// Every call is carried out, and its answer gets lost.
    LosesAnswers,
    /// No call is ever answered; whoever calls has to give up. Nothing is done.
    Hangs,
}

/// Switches the mood of a store, also while somebody waits for it.
#[derive(Clone, Debug)]
pub struct Switch(watch::Sender<Mood>);

impl Switch {
    /// From now on.
    pub fn set(&self, mood: Mood) {
        self.0.send_replace(mood);
    }
}

/// The lead of several nodes: at most one has it at a time, by the clock of the runtime.
#[derive(Debug, Default)]
pub struct SharedLead(Mutex<Option<(u32, Instant)>>);

impl SharedLead {
    /// Who leads now.
    pub fn leader(&self) -> Option<u32> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.filter(|(_, until)| *until > Instant::now()).map(|(node, _)| node)
    }

    /// Lets a node lead, whoever did so far.
    pub fn give(&self, node: u32, span: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((node, Instant::now() + span));
    }

    fn take(&self, node: u32, span: Duration) -> bool {
        let is_free = self.leader().is_none_or(|leader| leader == node);
        if is_free {
            self.give(node, span);
        }
        is_free
    }

    fn leave(&self, node: u32) {
        if self.leader() == Some(node) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// A store that does as its switch says. Several on one store are several nodes.
pub struct ShakyStore {
    inner: Arc<dyn Store>,
    switch: Switch,
    seat: Option<(Arc<SharedLead>, u32)>,
}

impl ShakyStore {
    /// A store that serves, until it is told otherwise.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, switch: Switch(watch::Sender::default()), seat: None })
    }

    /// The store of one of several nodes that share a lead.
    pub fn of_node(inner: Arc<dyn Store>, lead: &Arc<SharedLead>, node: u32) -> Arc<Self> {
        Arc::new(Self { inner, switch: Switch(watch::Sender::default()), seat: Some((Arc::clone(lead), node)) })
    }

    /// The switch.
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }

    fn inner(&self) -> &dyn Store {
        self.inner.as_ref()
    }

    async fn pass<T, E: From<StoreError>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut mood = self.switch.0.subscribe();
        let now = *mood.borrow_and_update();
        let then = match now {
            Mood::Serves => tokio::select! {
                biased;
                answer = call => return answer,
                then = mood.wait_for(|mood| *mood != Mood::Serves) => then.map_or(Mood::Refuses, |mood| *mood),
            },
            Mood::LosesAnswers => {
                // Done, whatever came of it.
                let _ = call.await;
                Mood::LosesAnswers
            }
            Mood::Refuses | Mood::Hangs => now,
        };
        match then {
            Mood::Hangs => std::future::pending().await,
            Mood::LosesAnswers => Err(StoreError::unknown("the answer got lost").into()),
            Mood::Serves | Mood::Refuses => Err(StoreError::not_applied("switched off").into()),
        }
    }
}

#[async_trait]
impl Store for ShakyStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn settings(&self) -> Arc<Settings> {
        self.inner.settings()
    }

    pass_on! {
        (Self::inner, Self::pass)
            submit inbox take_in claim finish heartbeat record_progress record_steps cancel amend requeue bury
            discard make_due lapse_leases time_out expire prune settle_intents forgive get list history events
            until_ended waiting_for lanes stats register_worker workers drain_worker deregister_worker
            forget_workers change_queue change_type clear_queue clear_type change_error_rules breakers force_breaker
            replay_settled check
    }
    pass_on! { (Self::inner) inbox_grown close }

    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.pass(async {
            match &self.seat {
                Some((lead, node)) => Ok(lead.take(*node, span)),
                None => self.inner.lead(span).await,
            }
        })
        .await
    }

    async fn resign(&self) {
        match &self.seat {
            Some((lead, node)) => lead.leave(*node),
            None => self.inner.resign().await,
        }
    }
}
