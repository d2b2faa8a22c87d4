//! What a crash test found, as a table for people.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checker::{Evidence, Violation};
use crate::error::HarnessError;
use crate::history::{Op, Outcome, Record};
use crate::load::is_expected;

/// More than this many violations are only counted: the first ones tell the story.
const VIOLATIONS_SHOWN: usize = 40;

/// The outcome of a crash test.
#[derive(Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// How often the server was killed.
    pub kills: u64,
    /// The longest that a start took until the server was ready.
    pub startup_max: Duration,
    /// Whether everything ended in time.
    pub drained: bool,
    /// How long the drain took.
    pub drain_took: Duration,
    /// How long everything took.
    pub elapsed: Duration,
    /// Refusals by operation and code.
    pub refusals: BTreeMap<String, u64>,
    /// What was recorded.
    pub evidence: Evidence,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// Where the store and the log are, if they were kept.
    pub folder: Option<PathBuf>,
}

impl Report {
    /// Whether the server kept every promise and gave no answer it should not give.
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.unexpected().next().is_none()
    }

    fn unexpected(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.refusals.iter().filter(|(what, _)| !is_expected(what))
    }

    /// Writes records, runs and tasks as JSON lines.
    pub fn write_history(&self, path: &Path) -> Result<(), HarnessError> {
        self.evidence.write(path)
    }

    fn rows(&self) -> Vec<(&'static str, u64)> {
        let records = &self.evidence.records;
        let count = |wanted: &dyn Fn(&Record) -> bool| records.iter().filter(|record| wanted(record)).count() as u64;
        let submits = |record: &Record| matches!(record.op, Op::Submit | Op::Batch);
        let results = |record: &Record| matches!(record.op, Op::Result(_));
        let calls: HashSet<u64> = records.iter().map(|record| record.call).collect();
        let status = |wanted: &str| self.evidence.tasks.iter().filter(|task| task.status == wanted).count() as u64;
        let mut seen = HashSet::new();
        let repeated = count_repeats(records, &mut seen);
        vec![
            ("kills", self.kills),
            ("calls recorded", calls.len() as u64),
            ("records", records.len() as u64),
            ("submits acknowledged", count(&|record| submits(record) && record.outcome == Outcome::Ok)),
            ("  in calls that found them there", count(&|record| submits(record) && record.deduplicated > Some(0))),
            ("submits without an answer", count(&|record| submits(record) && record.outcome == Outcome::Unknown)),
            ("follow-ups acknowledged", count(&|record| record.op == Op::FollowUp && record.outcome == Outcome::Ok)),
            ("claims", count(&|record| record.op == Op::Claim && record.outcome == Outcome::Ok)),
            ("polls without an answer", count(&|record| record.op == Op::Claim && record.outcome == Outcome::Unknown)),
            ("results acknowledged", count(&|record| results(record) && record.outcome == Outcome::Ok)),
            ("  of these sent again", repeated),
            ("results refused (lease_lost)", count(&|record| results(record) && record.outcome == Outcome::Fail)),
            ("results without an answer", count(&|record| results(record) && record.outcome == Outcome::Unknown)),
            ("cancels accepted", count(&|record| record.op == Op::Cancel && record.outcome == Outcome::Ok)),
            ("handler runs", self.evidence.runs.len() as u64),
            ("lapsed leases", self.evidence.tasks.iter().map(|task| task.crash_count).sum()),
            ("tasks at the end", self.evidence.tasks.len() as u64),
            ("  completed", status("completed")),
            ("  dead_letter", status("dead_letter")),
            ("  cancelled", status("cancelled")),
        ]
    }
}

fn count_repeats<'a>(records: &'a [Record], seen: &mut HashSet<&'a str>) -> u64 {
    let accepted = records.iter().filter(|record| matches!(record.op, Op::Result(_)) && record.outcome == Outcome::Ok);
    accepted.filter_map(|record| record.nonce.as_deref()).filter(|nonce| !seen.insert(nonce)).count() as u64
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash test, seed {}, {:.1} s", self.seed, self.elapsed.as_secs_f64())?;
        for (name, value) in self.rows() {
            writeln!(f, "  {name:<32} {value:>9}")?;
        }
        writeln!(f, "  {:<32} {:>9.3} s", "slowest start", self.startup_max.as_secs_f64())?;
        writeln!(f, "  {:<32} {:>9.3} s", "drain", self.drain_took.as_secs_f64())?;
        for (what, count) in &self.refusals {
            writeln!(f, "  refused: {what:<23} {count:>9}")?;
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
            writeln!(f, "the store and the server's log are in {}", folder.display())?;
        }
        let verdict = if self.passed() { "PASSED" } else { "FAILED" };
        write!(f, "{verdict}: {} violations", self.violations.len())
    }
}
