//! What the loader measured, as a table for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::latency::Percentiles;

/// Tasks per second of one stage.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Tasks acknowledged.
    pub tasks: u64,
    /// How long it took.
    pub seconds: f64,
    /// The one divided by the other.
    pub tasks_per_second: f64,
    /// Of the calls, where they were measured.
    pub latency: Option<Percentiles>,
}

impl Rate {
    /// The rate of so many tasks in this time.
    pub fn new(tasks: u64, took: std::time::Duration, latency: Option<Percentiles>) -> Self {
        let seconds = took.as_secs_f64();
        let tasks_per_second = if seconds > 0.0 { tasks as f64 / seconds } else { 0.0 };
        Self { tasks, seconds, tasks_per_second, latency }
    }
}

/// Everything that was measured; what was not asked for is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// One call per task, one at a time.
    pub submit_x1: Option<Rate>,
    /// One call per task, 32 in flight.
    pub submit_x32: Option<Rate>,
    /// Calls of 100 tasks.
    pub bulk_100: Option<Rate>,
    /// Calls of 100 tasks, 32 in flight.
    pub bulk_100_x32: Option<Rate>,
    /// Calls of 1,000 tasks.
    pub bulk_1000: Option<Rate>,
    /// Waiting tasks worked off.
    pub drain: Option<Rate>,
    /// From the start of the submit to the worker.
    pub pickup: Option<Percentiles>,
    /// The submits of the pickup stage, on an idle server.
    pub idle_submit: Option<Percentiles>,
    /// Processor use without calls, in percent of one core.
    pub idle_cpu_percent: Option<f64>,
    /// Memory (PSS) before the first stage.
    pub pss_bytes_before: Option<u64>,
    /// Largest memory (PSS) during the drain.
    pub pss_bytes_drain_max: Option<u64>,
    /// Memory (PSS) at the end.
    pub pss_bytes_after: Option<u64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:>12} {:>10} {:>8} {:>10} {:>10}", "", "tasks/s", "tasks", "s", "p50 µs", "p99 µs")?;
        let rates = [
            ("submit x1", self.submit_x1),
            ("submit x32", self.submit_x32),
            ("bulk 100", self.bulk_100),
            ("bulk 100 x32", self.bulk_100_x32),
            ("bulk 1000", self.bulk_1000),
            ("drain", self.drain),
        ];
        for (name, rate) in rates {
            let Some(rate) = rate else { continue };
            write!(f, "{name:<16} {:>12.0} {:>10} {:>8.2}", rate.tasks_per_second, rate.tasks, rate.seconds)?;
            match rate.latency {
                Some(latency) => writeln!(f, " {:>10} {:>10}", latency.p50_us, latency.p99_us)?,
                None => writeln!(f)?,
            }
        }
        for (name, latency) in [("pickup", self.pickup), ("submit, idle", self.idle_submit)] {
            let Some(latency) = latency else { continue };
            writeln!(f, "{name:<16} {:>12} {:>10} {:>8} {:>10} {:>10}", "", "", "", latency.p50_us, latency.p99_us)?;
        }
        if let Some(percent) = self.idle_cpu_percent {
            writeln!(f, "{:<16} {percent:>11.2}%", "idle CPU")?;
        }
        let memory = [
            ("PSS before", self.pss_bytes_before),
            ("PSS drain max", self.pss_bytes_drain_max),
            ("PSS after", self.pss_bytes_after),
        ];
        for (name, bytes) in memory {
            let Some(bytes) = bytes else { continue };
            writeln!(f, "{name:<16} {:>9.1} MB", bytes as f64 / 1e6)?;
        }
        Ok(())
    }
}
