//! What a worker counts about itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::Outcome;
use crate::worker::lane::Lane;
use crate::worker::outbox::Unsent;

/// Attempts of one type that ended one way.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    count: u64,
    seconds: f64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stats {
    begun: Instant,
    /// Microseconds since `begun` of the last answer of a server.
    answered_at: AtomicU64,
    lost: AtomicU64,
    heartbeats_failed: AtomicU64,
    ended: Mutex<BTreeMap<(String, &'static str), Ended>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            answered_at: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            heartbeats_failed: AtomicU64::new(0),
            ended: Mutex::default(),
        }
    }
}

impl Stats {
    /// A server answered.
    pub(crate) fn connected(&self) {
        self.answered_at.store(self.begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// How long ago a server answered.
    pub(crate) fn silence(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_micros(self.answered_at.load(Ordering::Relaxed)))
    }

    pub(crate) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn heartbeat_failed(&self) {
        self.heartbeats_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A result was acknowledged.
    pub(crate) fn settled(&self, unsent: &Unsent) {
        let how = match unsent.outgoing.outcome {
            Outcome::Completed { .. } => "completed",
            Outcome::Failed { .. } => "failed",
            Outcome::Snoozed { .. } => "snoozed",
            Outcome::Cancelled { .. } => "cancelled",
            Outcome::Released => "released",
        };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (unsent.attempt.task.task_type.clone(), how);
        let entry = ended.entry(key).or_default();
        entry.count += 1;
        entry.seconds += unsent.took.as_secs_f64();
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, lanes: &[std::sync::Arc<Lane>], breakers: &[(String, bool)]) -> String {
        let mut text = String::new();
        let capacity: usize = lanes.iter().map(|lane| lane.capacity).sum();
        let load: usize = lanes.iter().map(|lane| lane.load()).sum();
        let unsent: usize = lanes.iter().map(|lane| lane.unsent_results()).sum();
        let gauges = [
            ("windlass_worker_slots", "Tasks that may run at once", capacity as f64),
            ("windlass_worker_slots_used", "Tasks that run, or were asked for", load as f64),
            ("windlass_worker_results_unsent", "Results that no server has acknowledged yet", unsent as f64),
            ("windlass_worker_silence_seconds", "Since a server answered last", self.silence().as_secs_f64()),
        ];
        for (name, help, value) in gauges {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        let counters = [
            ("windlass_worker_results_lost_total", "Results refused because their lease was lost", &self.lost),
            ("windlass_worker_heartbeats_failed_total", "Heartbeats without an answer", &self.heartbeats_failed),
        ];
        for (name, help, value) in counters {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        let name = "windlass_worker_task_seconds";
        let _ = writeln!(text, "# HELP {name} Attempts by how they ended, and their time\n# TYPE {name} summary");
        for ((task_type, how), ended) in &*self.ended.lock().unwrap_or_else(PoisonError::into_inner) {
            // Task types have no character that would have to be escaped.
            let labels = format!("{{type=\"{task_type}\",status=\"{how}\"}}");
            let _ = writeln!(text, "{name}_count{labels} {}\n{name}_sum{labels} {}", ended.count, ended.seconds);
        }
        let name = "windlass_worker_breaker_open";
        let _ = writeln!(text, "# HELP {name} Whether the breaker of a dependency is open\n# TYPE {name} gauge");
        for (breaker, is_open) in breakers {
            let escaped = breaker.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(text, "{name}{{name=\"{escaped}\"}} {}", u8::from(*is_open));
        }
        text
    }
}
