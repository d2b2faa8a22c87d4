//! What happened lately, for people who look now: windows over the last minutes, hours and
//! days. Fed with what this node committed and with what it followed of others, so that it is
//! the same whichever node is asked; begins with the start of the process.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::fact::{Fact, Happened};
use windlass_core::failure::{DecidedBy, ErrorClass};
use windlass_core::time::Timestamp;

use crate::outcomes::{Outcomes, Tally, Trend, Trouble};
use crate::recent::{Flow, Recoveries, Waits, Window, percentiles};
use crate::unclassified::{Unclassified, UnclassifiedError};

/// The windows of counts and waiting times, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recent {
    /// Counts of the last minute.
    pub flow: Flow,
    /// Counts of the last hour.
    pub recoveries: Recoveries,
    /// p50, p95 and p99 of the time from ready to claimed, over five minutes.
    pub wait_seconds: [Option<f64>; 3],
}

/// All windows.
pub struct Lately {
    flow: Window<Flow>,
    recoveries: Window<Recoveries>,
    waits: Window<Waits>,
    outcomes: Outcomes,
    unclassified: Unclassified,
}

impl Default for Lately {
    fn default() -> Self {
        Self {
            flow: Window::new(60, 1),
            recoveries: Window::new(60, 60),
            waits: Window::new(10, 30),
            outcomes: Outcomes::default(),
            unclassified: Unclassified::default(),
        }
    }
}

impl Lately {
    /// Counts changes of tasks whose type has this label.
    pub fn count(&mut self, label: &str, fact: &Fact) {
        self.outcomes.count(label, fact);
        match fact.happened {
            Happened::Submitted => self.flow.slot(fact.at).enqueued += fact.count,
            Happened::Claimed { waited } => {
                self.flow.slot(fact.at).claimed += fact.count;
                self.waits.slot(fact.at).add(waited.as_secs_f64());
            }
            Happened::Completed => self.flow.slot(fact.at).completed += fact.count,
            Happened::Retried(class) | Happened::Failed(class) | Happened::Poisoned(class, _) => {
                self.count_failures(fact, class);
            }
            Happened::Other => {}
        }
        if let Some(note) = fact.failure.as_deref().filter(|note| note.decided_by == DecidedBy::Nobody) {
            self.unclassified.add(&fact.task_type, note, fact.count, fact.at);
        }
    }

    fn count_failures(&mut self, fact: &Fact, class: ErrorClass) {
        self.flow.slot(fact.at).failed += fact.count;
        match class {
            ErrorClass::WorkerLost => self.recoveries.slot(fact.at).lease_expiries += fact.count,
            ErrorClass::Timeout => self.recoveries.slot(fact.at).timeouts += fact.count,
            ErrorClass::Transient
            | ErrorClass::RateLimited
            | ErrorClass::Resource
            | ErrorClass::Permanent
            | ErrorClass::CodeBug
            | ErrorClass::Unknown => {}
        }
    }

    /// Counts and waiting times.
    pub fn recent(&self, now: Timestamp) -> Recent {
        let mut recent = Recent::default();
        for flow in self.flow.recent(now) {
            recent.flow.enqueued += flow.enqueued;
            recent.flow.claimed += flow.claimed;
            recent.flow.completed += flow.completed;
            recent.flow.failed += flow.failed;
        }
        for recoveries in self.recoveries.recent(now) {
            recent.recoveries.lease_expiries += recoveries.lease_expiries;
            recent.recoveries.timeouts += recoveries.timeouts;
        }
        recent.wait_seconds = percentiles(self.waits.recent(now), [0.5, 0.95, 0.99]);
        recent
    }

    /// Claims per second over the last minute.
    pub fn drain_rate(&self, now: Timestamp) -> f64 {
        self.flow.recent(now).map(|flow| flow.claimed).sum::<u64>() as f64 / 60.0
    }

    /// How tasks ended within a window, by type.
    pub fn tallies(&self, window: Duration, now: Timestamp) -> BTreeMap<String, Tally> {
        self.outcomes.tallies(window, now)
    }

    /// Types in trouble.
    pub fn troubles(&self, now: Timestamp) -> BTreeMap<String, Trouble> {
        self.outcomes.troubles(now)
    }

    /// What came and went in the last minutes.
    pub fn trend(&self, now: Timestamp) -> Trend {
        self.outcomes.trend(now)
    }

    /// Errors that nothing put in a class, the most frequent first.
    pub fn unclassified(&self) -> Vec<UnclassifiedError> {
        self.unclassified.list()
    }
}
