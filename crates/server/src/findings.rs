//! What looks wrong: a pure function from what is known to findings in words, each with its
//! evidence and the next step.

mod backlog;
mod capacity;
mod failures;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use windlass_core::breaker::View;
use windlass_core::names::TaskType;
use windlass_core::settings::Settings;
use windlass_core::store::{LaneStats, Stats};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Worker, WorkerStatus};

use crate::number::make_plain;
use crate::outcomes::{Trend, Trouble};

/// Names that the evidence lists; a person needs no more to begin.
const NAMES: usize = 10;
/// Findings of one answer: more are not read.
const FINDINGS: usize = 200;

/// What is known when somebody asks.
pub struct Facts<'a> {
    /// What time it is.
    pub now: Timestamp,
    /// The settings.
    pub settings: &'a Settings,
    /// Lanes that have tasks.
    pub lanes: &'a [LaneStats],
    /// How everything stands.
    pub stats: &'a Stats,
    /// The workers, each with how it stands.
    pub workers: &'a [(Worker, WorkerStatus)],
    /// The breakers.
    pub breakers: &'a [View],
    /// What went wrong lately, by type.
    pub troubles: &'a BTreeMap<String, Trouble>,
    /// What came and went in the last minutes.
    pub trend: Trend,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Work does not get done.
    Critical,
    /// It will not, if nobody looks.
    Warning,
    /// Good to know.
    Info,
}

/// Something that looks wrong.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Finding {
    /// A stable name of the kind.
    pub code: &'static str,
    /// `critical`, `warning` or `info`.
    #[schema(value_type = String)]
    pub severity: Severity,
    /// What it is about; tells findings of one kind apart.
    #[serde(skip)]
    pub subject: String,
    /// What is wrong, in a few words.
    pub title: String,
    /// What is wrong, in a sentence or two.
    pub detail: String,
    /// The figures and names it rests on.
    #[schema(value_type = Object)]
    pub evidence: Value,
    /// What to do about it.
    pub next_step: String,
    /// Since when it is so, as far as this node knows.
    #[schema(value_type = String, format = DateTime)]
    pub since: Option<Timestamp>,
}

/// Everything that looks wrong, the most severe first.
pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(capacity::no_workers(facts));
    let able = capacity::Able::of(facts);
    found.extend(capacity::unserved(facts, &able));
    found.extend(capacity::slots_too_large(facts, &able));
    found.extend(facts.breakers.iter().filter_map(|view| failures::breaker(facts, view)));
    found.extend(failures::troubles(facts));
    found.extend(failures::dead_letter_clusters(facts));
    found.extend(backlog::close_to_bound(facts));
    found.extend(backlog::paused_with_work(facts));
    found.extend(backlog::growing_backlog(facts));
    for finding in &mut found {
        make_plain(&mut finding.evidence);
    }
    // Stable, so that kinds stay in the order above.
    found.sort_by_key(|finding| finding.severity);
    found.truncate(FINDINGS);
    found
}

/// So many of something, which do something: `1 task waits`, `2 tasks wait`.
fn counted(count: u64, noun: &str, of_what: &str, [one, many]: [&str; 2]) -> String {
    if count == 1 { format!("1 {noun}{of_what} {one}") } else { format!("{count} {noun}s{of_what} {many}") }
}

const WAITS: [&str; 2] = ["waits", "wait"];

impl Facts<'_> {
    /// Lanes in which tasks stand ready.
    fn waiting(&self) -> impl Iterator<Item = &LaneStats> {
        self.lanes.iter().filter(|lane| lane.queued > 0)
    }

    /// Workers that take tasks, or will once they are well.
    fn live(&self) -> impl Iterator<Item = &Worker> {
        let takes_work = |status: &WorkerStatus| match status {
            WorkerStatus::Active | WorkerStatus::Unhealthy => true,
            WorkerStatus::Draining | WorkerStatus::Dead => false,
        };
        self.workers.iter().filter(move |(_, status)| takes_work(status)).map(|(worker, _)| worker)
    }
}

/// Tasks that wait for the same thing.
#[derive(Default)]
struct Waiters {
    count: u64,
    oldest: Option<Timestamp>,
    types: BTreeSet<TaskType>,
}

impl Waiters {
    fn add(&mut self, lane: &LaneStats) {
        self.count += lane.queued;
        self.oldest = self.oldest.into_iter().chain(lane.oldest_ready_at).min();
        self.types.insert(lane.lane.task_type.clone());
    }

    fn all<'a>(lanes: impl Iterator<Item = &'a LaneStats>) -> Self {
        let mut waiters = Self::default();
        lanes.for_each(|lane| waiters.add(lane));
        waiters
    }

    fn types(&self) -> Vec<&TaskType> {
        self.types.iter().take(NAMES).collect()
    }
}

#[cfg(test)]
mod tests;
