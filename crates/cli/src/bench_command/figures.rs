//! The figures and their arithmetic.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The two ways to use Windlass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Way {
    /// A server, a producer and a worker, each in a process of its own
    Http,
    /// One process with the store, the producer and the worker in it
    Embedded,
}

impl Way {
    /// Both, in the order of the columns.
    pub const ALL: [Self; 2] = [Self::Http, Self::Embedded];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Embedded => "embedded",
        }
    }
}

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    SubmitX1,
    SubmitX32,
    Bulk100,
    Bulk100X32,
    Bulk1000,
    Drain,
    PickupP50,
    PickupP99,
    SubmitP50,
    SubmitP99,
    MemoryServer,
    MemoryWorker,
    MemoryAll,
    IdleCpu,
}

impl Figure {
    /// All of them, in the order of the rows.
    pub const ALL: [Self; 14] = [
        Self::SubmitX1,
        Self::SubmitX32,
        Self::Bulk100,
        Self::Bulk100X32,
        Self::Bulk1000,
        Self::Drain,
        Self::PickupP50,
        Self::PickupP99,
        Self::SubmitP50,
        Self::SubmitP99,
        Self::MemoryServer,
        Self::MemoryWorker,
        Self::MemoryAll,
        Self::IdleCpu,
    ];

    /// Its name in JSON, for people, and its unit.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::SubmitX1 => ("submit_x1", "submit x1", "tasks/s"),
            Self::SubmitX32 => ("submit_x32", "submit x32", "tasks/s"),
            Self::Bulk100 => ("bulk_100", "bulk 100", "tasks/s"),
            Self::Bulk100X32 => ("bulk_100_x32", "bulk 100 x32", "tasks/s"),
            Self::Bulk1000 => ("bulk_1000", "bulk 1000", "tasks/s"),
            Self::Drain => ("drain", "drain", "tasks/s"),
            Self::PickupP50 => ("pickup_p50", "pickup p50", "µs"),
            Self::PickupP99 => ("pickup_p99", "pickup p99", "µs"),
            Self::SubmitP50 => ("submit_latency_p50", "submit latency p50", "µs"),
            Self::SubmitP99 => ("submit_latency_p99", "submit latency p99", "µs"),
            Self::MemoryServer => ("memory_server", "memory, server", "MB"),
            Self::MemoryWorker => ("memory_worker", "memory, worker", "MB"),
            Self::MemoryAll => ("memory", "memory, together", "MB"),
            Self::IdleCpu => ("idle_cpu", "idle CPU", "% of a core"),
        }
    }

    /// Its name in JSON.
    pub const fn key(self) -> &'static str {
        self.words().0
    }

    /// Its name for people.
    pub const fn title(self) -> &'static str {
        self.words().1
    }

    /// What it is measured in.
    pub const fn unit(self) -> &'static str {
        self.words().2
    }

    /// Digits after the point that say something.
    pub const fn digits(self) -> usize {
        match self {
            Self::IdleCpu => 2,
            Self::MemoryServer | Self::MemoryWorker | Self::MemoryAll => 1,
            _ => 0,
        }
    }
}

/// Everything that was measured, run by run.
#[derive(Debug, Default)]
pub struct Measured(BTreeMap<(Way, Figure), Vec<f64>>);

impl Measured {
    /// Notes what a run gave, without digits that say nothing.
    pub fn add(&mut self, way: Way, figure: Figure, value: f64) {
        self.0.entry((way, figure)).or_default().push((value * 1_000.0).round() / 1_000.0);
    }

    /// All runs together, if there were any.
    pub fn get(&self, way: Way, figure: Figure) -> Option<Series> {
        Series::of(self.0.get(&(way, figure))?.clone())
    }

    /// Whether anything was measured this way.
    pub fn has(&self, way: Way) -> bool {
        self.0.keys().any(|(measured, _)| *measured == way)
    }
}

/// The same figure of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Half of the runs are below.
    pub median: f64,
    /// The lowest run.
    pub lowest: f64,
    /// The highest run.
    pub highest: f64,
    /// All runs, in their order.
    pub runs: Vec<f64>,
}

impl Series {
    /// None without runs.
    pub fn of(runs: Vec<f64>) -> Option<Self> {
        let mut sorted = runs.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, lowest, highest, runs })
    }
}

/// Tasks per second; zero if no time passed.
pub fn rate(tasks: u64, took: Duration) -> f64 {
    let seconds = took.as_secs_f64();
    if seconds > 0.0 { tasks as f64 / seconds } else { 0.0 }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half are faster.
    pub p50_us: u64,
    /// One in a hundred is slower.
    pub p99_us: u64,
}

impl Percentiles {
    /// Percentiles by nearest rank; zeros when nothing was measured.
    pub fn of(mut latencies_us: Vec<u64>) -> Self {
        latencies_us.sort_unstable();
        let rank = |percent: usize| {
            let position = (latencies_us.len() * percent).div_ceil(100).saturating_sub(1);
            latencies_us.get(position).copied().unwrap_or_default()
        };
        Self { p50_us: rank(50), p99_us: rank(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        assert_eq!(Percentiles::of(vec![]), Percentiles::default());
        assert_eq!(Percentiles::of(vec![7]), Percentiles { p50_us: 7, p99_us: 7 });
        assert_eq!(Percentiles::of((1..=100).rev().collect()), Percentiles { p50_us: 50, p99_us: 99 });
        assert_eq!(Percentiles::of((1..=200).collect()), Percentiles { p50_us: 100, p99_us: 198 });
    }

    #[test]
    fn rates_are_tasks_over_time() {
        assert!((rate(300, Duration::from_millis(1_500)) - 200.0).abs() < 1e-9);
        assert!(rate(300, Duration::ZERO).abs() < 1e-9);
    }

    #[test]
    fn medians_have_a_middle() {
        assert_eq!(Series::of(vec![]), None);
        let odd = Series::of(vec![9.0, 1.0, 4.0]).expect("runs");
        assert_eq!(odd, Series { median: 4.0, lowest: 1.0, highest: 9.0, runs: vec![9.0, 1.0, 4.0] });
        let even = Series::of(vec![4.0, 1.0]).expect("runs");
        assert!((even.median - 2.5).abs() < 1e-9);
    }

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let keys: std::collections::BTreeSet<_> = Figure::ALL.iter().map(|figure| figure.key()).collect();
        assert_eq!(keys.len(), Figure::ALL.len());
    }
}
