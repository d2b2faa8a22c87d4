//! Who runs maintenance: of all nodes that share a store, the one that leads.
//!
//! A node leads for a term. It asks the store for [`SPAN`] and asks again every [`RENEWAL`]; the term is over, and every
//! loop with it, as soon as the store says no, fails, or has not said yes when the span is over. The span is counted
//! from before the call was sent and on this node's own monotonic clock, so that it is over here before the store gives
//! it to another node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass_core::store::StoreError;

use crate::engine::Engine;
use crate::maintenance;

/// How long one yes of the store lasts.
pub const SPAN: Duration = Duration::from_millis(2_500);
/// How often the leader asks for more.
pub const RENEWAL: Duration = Duration::from_secs(1);
/// How often the others ask whether they may. With the span it adds up to the 3 seconds that the death of a leader may
/// cost.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// At shutdown the store has this long to take the lead back. If it does not, the span ends by itself.
const RESIGN_WITHIN: Duration = Duration::from_secs(1);

/// The time in which this node leads. Dropping it ends it, and all loops at once.
struct Term {
    engine: Arc<Engine>,
    until: watch::Sender<Instant>,
    #[expect(dead_code, reason = "held for its drop")]
    loops: JoinSet<()>,
}

impl Term {
    fn begin(engine: &Arc<Engine>, until: Instant, was_away: bool) -> Self {
        let (until, ends) = watch::channel(until);
        engine.set_leader(true);
        tracing::info!("this node leads maintenance");
        Self { engine: Arc::clone(engine), until, loops: maintenance::start(engine, &ends, was_away) }
    }

    fn is_over(&self) -> bool {
        *self.until.borrow() <= Instant::now()
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.engine.set_leader(false);
    }
}

/// Leads whenever the store lets this node lead, for ever.
pub async fn lead(engine: Arc<Engine>) {
    // Workers that live in this process cannot have outlived it, so at the start, and only then, none of them needs the
    // time to come back.
    let mut was_away = !engine.config.workers_share_process;
    let mut term: Option<Term> = None;
    loop {
        if term.as_ref().is_some_and(Term::is_over) {
            // The process stood still: another node may have led meanwhile.
            end(&mut term, "the time to lead is over");
        }
        let asked = Instant::now();
        let answer_by = term.as_ref().map_or(asked + SPAN, |term| *term.until.borrow());
        match tokio::time::timeout_at(answer_by, engine.upkeep.lead(SPAN)).await {
            Ok(Ok(true)) => match &term {
                Some(term) => drop(term.until.send_replace(asked + SPAN)),
                None => term = Some(Term::begin(&engine, asked + SPAN, std::mem::replace(&mut was_away, true))),
            },
            Ok(Ok(false)) => end(&mut term, "another node leads"),
            Ok(Err(StoreError { reason, .. })) => end(&mut term, &reason),
            Err(_) => end(&mut term, "the store did not answer in time"),
        }
        tokio::time::sleep_until(asked + if term.is_some() { RENEWAL } else { LOOK_AGAIN }).await;
    }
}

fn end(term: &mut Option<Term>, why: &str) {
    if term.take().is_some() {
        tracing::warn!(why, "this node does not lead maintenance any more");
    }
}

/// Gives the lead back, so that another node need not wait for the end of the span.
pub async fn resign(engine: &Engine) {
    if tokio::time::timeout(RESIGN_WITHIN, engine.upkeep.resign()).await.is_err() {
        tracing::warn!("the store did not take the lead back; another node leads in a few seconds");
    }
}
