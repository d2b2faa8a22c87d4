//! Labels of the metrics. What users can invent without end is bounded here.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use axum::extract::MatchedPath;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::family::MetricConstructor;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use windlass_core::limits;

/// Names seen so far; after [`limits::METRIC_TYPES`] of them the rest are `other`.
#[derive(Default)]
pub struct Bounded(HashSet<String>);

impl Bounded {
    /// The label of a name.
    pub fn label(&mut self, name: &str) -> String {
        if self.0.contains(name) {
            return name.to_owned();
        }
        if self.0.len() >= limits::METRIC_TYPES {
            return "other".to_owned();
        }
        self.0.insert(name.to_owned());
        name.to_owned()
    }
}

/// Queue and task type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Lane {
    /// The queue.
    pub queue: String,
    /// The task type.
    pub r#type: String,
}

/// Queue, task type and error class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Classed {
    /// The queue.
    pub queue: String,
    /// The task type.
    pub r#type: String,
    /// The class of the failure.
    pub class: &'static str,
}

/// Queue, task type and reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reasoned {
    /// The queue.
    pub queue: String,
    /// The task type.
    pub r#type: String,
    /// Why it ended.
    pub reason: &'static str,
}

/// A reason alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// Why.
    pub reason: &'static str,
}

/// Queue and priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Waiting {
    /// The queue.
    pub queue: String,
    /// The priority.
    pub priority: String,
}

/// Task type, priority and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Run {
    /// The task type.
    pub r#type: String,
    /// The priority.
    pub priority: String,
    /// How it ended.
    pub status: &'static str,
}

/// From which priority to which.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Shift {
    /// The task's own priority.
    pub from: String,
    /// The one it went ahead of.
    pub to: String,
}

/// A verb of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreCall {
    /// Which store.
    pub store: &'static str,
    /// Which verb.
    pub op: &'static str,
}

/// Task type alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TypeLabel {
    /// The task type.
    pub r#type: String,
}

/// A breaker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BreakerLabel {
    /// What it guards: `type` or `worker`.
    pub scope: &'static str,
    /// Which one.
    pub name: String,
}

/// Status alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabel {
    /// The status.
    pub status: &'static str,
}

/// Store alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreLabel {
    /// The store.
    pub store: &'static str,
}

/// The template of a route, such as `/api/v1/tasks/{id}`; shared, not copied per request.
#[derive(Clone, Debug)]
pub struct Route(pub Option<MatchedPath>);

impl Route {
    fn as_str(&self) -> &str {
        self.0.as_ref().map_or("unmatched", MatchedPath::as_str)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Route {}

impl Hash for Route {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

/// Labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's template.
    pub route: Route,
    /// The method.
    pub method: &'static str,
    /// The status of the answer.
    pub status: u16,
}

/// Makes histograms of seconds, from half a millisecond to more than two hours.
#[derive(Clone, Copy, Debug)]
pub struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.000_5, 3.0, 16))
    }
}
