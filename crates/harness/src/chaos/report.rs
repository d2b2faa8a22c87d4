//! What a chaos test found: a table for people, and the same as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::Database;
use crate::checker::loss::Loss;
use crate::checker::{Evidence, Violation, is_ended};
use crate::error::HarnessError;
use crate::history::{Op, Outcome, Record};
use crate::load::is_expected;

/// More than this many violations are only counted: the first ones tell the story.
const VIOLATIONS_SHOWN: usize = 40;
/// A pause counts for a fault if it begins before the fault is mended or this long after it.
const AFTERMATH_US: u64 = 3_000_000;

/// Something that was broken.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// What was killed.
    pub what: String,
    /// How many of our servers that were; none if it was the database.
    pub servers_killed: u64,
    /// When.
    pub at_us: u64,
    /// When it was there again.
    pub healed_us: u64,
    /// The longest time without an acknowledged write by anybody during it.
    pub pause_seconds: f64,
}

impl Fault {
    /// Finds out how long nothing was written.
    pub fn measure(&mut self, records: &[Record], load_end_us: u64) {
        let end_us = load_end_us.min(self.healed_us + AFTERMATH_US);
        self.pause_seconds = longest_pause(records, self.at_us, end_us).as_secs_f64();
    }
}

/// The longest time without an acknowledged write by anybody, as far as it lies after `from_us` and begins before `to_us`.
pub fn longest_pause(records: &[Record], from_us: u64, to_us: u64) -> Duration {
    let writes = |record: &&Record| record.outcome == Outcome::Ok && record.op != Op::Read;
    let mut times: Vec<u64> = records.iter().filter(writes).map(|record| record.t_complete_us).collect();
    times.sort_unstable();
    let mut longest_us = 0;
    let mut last_us = from_us;
    for time_us in times.into_iter().filter(|time_us| *time_us > from_us) {
        longest_us = longest_us.max(time_us - last_us);
        last_us = time_us;
        if last_us > to_us {
            break;
        }
    }
    Duration::from_micros(longest_us)
}

/// The outcome of a chaos test on one database.
#[derive(Debug)]
pub struct Report {
    /// The database.
    pub database: Database,
    /// The seed of the run.
    pub seed: u64,
    /// How many servers.
    pub nodes: u32,
    /// How many workers.
    pub workers: u32,
    /// What was broken.
    pub faults: Vec<Fault>,
    /// Whether everything ended in time.
    pub drained: bool,
    /// How long tasks were submitted.
    pub load_took: Duration,
    /// How long the rest took.
    pub drain_took: Duration,
    /// How long both took.
    pub elapsed: Duration,
    /// The longest time without an acknowledged write by anybody.
    pub pause: Duration,
    /// Refusals by operation and code.
    pub refusals: BTreeMap<String, u64>,
    /// Calls without an answer by operation and reason.
    pub failures: BTreeMap<String, u64>,
    /// What a replica that took over has lost.
    pub loss: Loss,
    /// What was recorded.
    pub evidence: Evidence,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// Where the servers' logs are, if they were kept.
    pub folder: Option<PathBuf>,
}

impl Report {
    /// Whether every promise was kept and no answer given that should not be.
    pub fn passed(&self) -> bool {
        self.drained && self.violations.is_empty() && self.unexpected().next().is_none()
    }

    fn unexpected(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.refusals.iter().filter(|(what, _)| !is_expected(what))
    }

    fn servers_killed(&self) -> u64 {
        self.faults.iter().map(|fault| fault.servers_killed).sum()
    }

    fn database_kills(&self) -> u64 {
        self.faults.iter().filter(|fault| fault.servers_killed == 0).count() as u64
    }

    fn database_pause(&self) -> f64 {
        let pauses = self.faults.iter().filter(|fault| fault.servers_killed == 0).map(|fault| fault.pause_seconds);
        pauses.fold(0.0, f64::max)
    }

    fn ended(&self) -> u64 {
        self.evidence.tasks.iter().filter(|task| is_ended(&task.status)).count() as u64
    }

    fn ended_per_second(&self) -> u64 {
        (self.ended() as f64 / self.elapsed.as_secs_f64().max(0.001)) as u64
    }

    fn rows(&self) -> Vec<(&'static str, u64)> {
        let records = &self.evidence.records;
        let count = |wanted: &dyn Fn(&Record) -> bool| records.iter().filter(|record| wanted(record)).count() as u64;
        let submits = |record: &Record| matches!(record.op, Op::Submit | Op::Batch);
        let results = |record: &Record| matches!(record.op, Op::Result(_));
        let status = |wanted: &str| self.evidence.tasks.iter().filter(|task| task.status == wanted).count() as u64;
        vec![
            ("servers killed", self.servers_killed()),
            ("database killed", self.database_kills()),
            ("operations checked", records.len() as u64),
            ("submits acknowledged", count(&|record| submits(record) && record.outcome == Outcome::Ok)),
            ("submits without an answer", count(&|record| submits(record) && record.outcome == Outcome::Unknown)),
            ("follow-ups acknowledged", count(&|record| record.op == Op::FollowUp && record.outcome == Outcome::Ok)),
            ("claims", count(&|record| record.op == Op::Claim && record.outcome == Outcome::Ok)),
            ("results acknowledged", count(&|record| results(record) && record.outcome == Outcome::Ok)),
            ("results refused", count(&|record| results(record) && record.outcome == Outcome::Fail)),
            ("results without an answer", count(&|record| results(record) && record.outcome == Outcome::Unknown)),
            ("cancels accepted", count(&|record| record.op == Op::Cancel && record.outcome == Outcome::Ok)),
            ("lapsed leases", self.evidence.tasks.iter().map(|task| task.crash_count).sum()),
            ("tasks with a key or limit", self.evidence.shared.len() as u64),
            ("tasks at the end", self.evidence.tasks.len() as u64),
            ("  completed", status("completed")),
            ("  dead_letter", status("dead_letter")),
            ("  cancelled", status("cancelled")),
            ("ended per second", self.ended_per_second()),
        ]
    }

    fn figures(&self) -> Value {
        let rows: serde_json::Map<String, Value> =
            self.rows().into_iter().map(|(name, value)| (name.trim().replace(' ', "_"), json!(value))).collect();
        json!({
            "database": self.database,
            "seed": self.seed,
            "nodes": self.nodes,
            "workers": self.workers,
            "passed": self.passed(),
            "figures": rows,
            "load_seconds": self.load_took.as_secs_f64(),
            "drain_seconds": self.drain_took.as_secs_f64(),
            "pause_seconds": self.pause.as_secs_f64(),
            "faults": self.faults,
            "loss": self.loss,
            "refusals": self.refusals,
            "failures": self.failures,
            "drained": self.drained,
            "violations": self.violations,
        })
    }

    /// Writes records, runs and tasks as JSON lines.
    pub fn write_history(&self, path: &Path) -> Result<(), HarnessError> {
        self.evidence.write(path)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, seed, nodes, workers, .. } = self;
        writeln!(f, "chaos test, {}, {nodes} servers, {workers} workers, seed {seed}", database.name())?;
        for (name, value) in self.rows() {
            writeln!(f, "  {name:<32} {value:>9}")?;
        }
        let seconds = [
            ("load", self.load_took.as_secs_f64()),
            ("drain", self.drain_took.as_secs_f64()),
            ("longest pause of all writes", self.pause.as_secs_f64()),
        ];
        for (name, value) in seconds {
            writeln!(f, "  {name:<32} {value:>9.3} s")?;
        }
        for fault in &self.faults {
            let down = fault.healed_us.saturating_sub(fault.at_us) as f64 / 1e6;
            let Fault { what, pause_seconds, .. } = fault;
            writeln!(f, "  killed: {what:<24} {pause_seconds:>9.3} s pause, {down:.3} s until it was there again")?;
        }
        for (what, count) in &self.refusals {
            writeln!(f, "  refused: {what:<40} {count:>9}")?;
        }
        for (what, count) in &self.failures {
            writeln!(f, "  failed: {what:<41} {count:>9}")?;
        }
        if !self.evidence.doubts.is_empty() {
            let Loss { submits, results, consequences } = &self.loss;
            writeln!(f, "  lost by the failovers: {submits} acknowledged submits, {results} acknowledged results")?;
            for (rule, count) in consequences {
                writeln!(f, "    so it came to: {rule:<30} {count:>9}")?;
            }
        }
        if !self.drained {
            writeln!(f, "NOT DRAINED: tasks were still waiting or running when the time was over")?;
        }
        for (what, count) in self.unexpected() {
            writeln!(f, "UNEXPECTED ANSWER ({count} times): {what}")?;
        }
        for violation in self.violations.iter().take(VIOLATIONS_SHOWN) {
            writeln!(f, "VIOLATION {violation}")?;
        }
        if self.violations.len() > VIOLATIONS_SHOWN {
            writeln!(f, "… and {} more", self.violations.len() - VIOLATIONS_SHOWN)?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "the servers' logs are in {}", folder.display())?;
        }
        let verdict = if self.passed() { "PASSED" } else { "FAILED" };
        writeln!(f, "{verdict}: {} violations", self.violations.len())
    }
}

/// The outcomes of a chaos test on several databases.
#[derive(Debug)]
pub struct Reports {
    /// One per database.
    pub reports: Vec<Report>,
}

impl Reports {
    /// Whether all passed.
    pub fn passed(&self) -> bool {
        self.reports.iter().all(Report::passed)
    }

    /// Writes the figures as JSON.
    pub fn write(&self, path: &Path) -> Result<(), HarnessError> {
        let figures: Vec<Value> = self.reports.iter().map(Report::figures).collect();
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(std::fs::File::create(path)?);
            serde_json::to_writer_pretty(&mut file, &figures)?;
            writeln!(file)?;
            file.flush()
        };
        write().map_err(|source| HarnessError::File { path: path.to_owned(), source })
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head =
            ["database", "servers", "tasks", "ended/s", "kills", "breaks", "pause s", "lost", "operations", "wrong"];
        let [database, servers, tasks, speed, kills, breaks, pause, lost, operations, wrong] = head;
        writeln!(
            f,
            "{database:<10}{servers:>8}{tasks:>9}{speed:>9}{kills:>7}{breaks:>8}{pause:>9}{lost:>7}{operations:>12}{wrong:>7}"
        )?;
        for report in &self.reports {
            let pause = if report.database_kills() > 0 { report.database_pause() } else { report.pause.as_secs_f64() };
            writeln!(
                f,
                "{:<10}{:>8}{:>9}{:>9}{:>7}{:>8}{pause:>9.2}{:>7}{:>12}{:>7}",
                report.database.name(),
                report.nodes,
                report.ended(),
                report.ended_per_second(),
                report.servers_killed(),
                report.database_kills(),
                report.loss.submits + report.loss.results,
                report.evidence.records.len(),
                report.violations.len(),
            )?;
        }
        write!(f, "{}", if self.passed() { "PASSED" } else { "FAILED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Verdict;

    fn write_at(t_complete_us: u64, op: Op, outcome: Outcome) -> Record {
        Record {
            seq: 0,
            call: 0,
            client: 0,
            op,
            key: None,
            task_id: None,
            token: None,
            nonce: None,
            status: None,
            deduplicated: None,
            t_invoke_us: 0,
            t_complete_us,
            outcome,
        }
    }

    #[test]
    fn a_pause_is_the_longest_time_without_an_acknowledged_write() {
        let result = Op::Result(Verdict::Completed);
        let records = [
            write_at(100, Op::Submit, Outcome::Ok),
            write_at(900, result, Outcome::Ok),
            write_at(500, Op::Read, Outcome::Ok),
            write_at(600, result, Outcome::Unknown),
            write_at(2_900, Op::Claim, Outcome::Ok),
            write_at(9_000, Op::Claim, Outcome::Ok),
        ];
        assert_eq!(longest_pause(&records, 0, 500), Duration::from_micros(800));
        assert_eq!(longest_pause(&records, 0, 2_000), Duration::from_micros(2_000));
        assert_eq!(longest_pause(&records, 1_000, 2_000), Duration::from_micros(1_900));
        assert_eq!(longest_pause(&records, 0, 8_000), Duration::from_micros(6_100));
    }
}
