//! What the benchmark tells its processes to do, and what they answer: one line of JSON each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::figures::Percentiles;

/// A queue takes this many tasks before the next one is used, so that no limit of a queue is measured.
pub const QUEUE_TASKS: u64 = 50_000;
/// Tasks of the pickup stage that are not measured: they open the connections.
pub const PICKUP_WARM_UPS: u64 = 5;

/// The name of a queue of a stage.
pub fn queue_name(stage: &str, number: u64) -> String {
    format!("{stage}-{number}")
}

/// All queues that so many tasks of a stage are in.
pub fn queue_names(stage: &str, tasks: u64) -> Vec<String> {
    (0..tasks.div_ceil(QUEUE_TASKS).max(1)).map(|number| queue_name(stage, number)).collect()
}

/// Something to do. Every order is answered once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Submit as fast as possible for a while.
    Submit(Submit),
    /// Put so many tasks into the queues of a stage.
    Fill {
        /// What queue names begin with.
        stage: String,
        /// How many.
        tasks: u64,
    },
    /// Submit one task after the other with pauses.
    Pace {
        /// What queue names begin with.
        stage: String,
        /// How many are measured.
        tasks: u64,
        /// From one to the next.
        every: Duration,
    },
    /// Start a worker.
    Work {
        /// The queues that it serves.
        queues: Vec<String>,
        /// Tasks at once, where it is not what the SDK does by itself.
        concurrency: Option<u32>,
    },
    /// Stop the worker when it has run so many tasks and all their results are acknowledged.
    Settle {
        /// How many.
        tasks: u64,
    },
}

/// See [`Order::Submit`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submit {
    /// What queue names begin with.
    pub stage: String,
    /// Calls in flight.
    pub in_flight: u32,
    /// Tasks per call; 1 uses the call for single tasks.
    pub per_call: u64,
    /// How long to submit before the clock starts.
    pub warm_up: Duration,
    /// For how long the clock runs.
    pub span: Duration,
    /// At most so many tasks, with those of the warm-up.
    pub tasks_max: u64,
}

/// How an order went.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The process can take orders.
    Ready,
    /// To [`Order::Submit`].
    Submitted(Submitted),
    /// To [`Order::Fill`].
    Filled,
    /// To [`Order::Pace`].
    Paced {
        /// How long the submits took.
        latency: Percentiles,
    },
    /// To [`Order::Work`].
    Working,
    /// To [`Order::Settle`].
    Settled(Settled),
    /// It did not go well.
    Failed {
        /// Why.
        reason: String,
    },
}

/// See [`Answer::Submitted`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Submitted {
    /// Tasks of calls that began after the warm-up.
    pub tasks: u64,
    /// From the first of these calls to the last of their answers.
    pub took: Duration,
    /// Of the calls.
    pub latency: Percentiles,
    /// Tasks that are in the queues now, with those of the warm-up.
    pub left: u64,
}

/// See [`Answer::Settled`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Settled {
    /// From the start of the first handler to the last acknowledged result.
    pub took: Duration,
    /// From submit to handler, where that was measured.
    pub pickup: Percentiles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_as_many_as_tasks_need() {
        assert_eq!(queue_names("s", 0), ["s-0"]);
        assert_eq!(queue_names("s", QUEUE_TASKS), ["s-0"]);
        assert_eq!(queue_names("s", QUEUE_TASKS + 1), ["s-0", "s-1"]);
    }

    #[test]
    fn orders_and_answers_are_one_line_each() {
        let order = Order::Pace { stage: "pickup".to_owned(), tasks: 5, every: Duration::from_millis(50) };
        let line = serde_json::to_string(&order).expect("JSON");
        assert!(
            !line.contains('\n') && matches!(serde_json::from_str(&line), Ok(Order::Pace { tasks: 5, .. })),
            "{line}"
        );
        let line = serde_json::to_string(&Answer::Failed { reason: "a\nb".to_owned() }).expect("JSON");
        assert!(!line.contains('\n'), "{line}");
    }
}
