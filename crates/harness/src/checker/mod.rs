//! Decides from a recorded history whether the server kept its promises.
//!
//! Pure: evidence in, violations out, no I/O and no clock (evidence can be written to a file, for people), so that every rule is tested with made-up histories
//! (`tests.rs` seeds the bugs each rule is there to catch). The rules never take an unknown outcome for a failure, and
//! compare two moments only when one surely came before the other.

mod agreement;
mod ends;
mod leases;
pub mod loss;
mod order;
mod submits;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::HarnessError;
use crate::history::{Op, Outcome, Record, Run};

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// An acknowledged task is gone.
    Lost,
    /// Something exists or ran that nobody can have submitted.
    Ghost,
    /// One idempotency key, two tasks.
    Idempotency,
    /// A batch was stored in part.
    TornBatch,
    /// A follow-up task exists without its result, or a result without its follow-up.
    TornFollowUp,
    /// A result was accepted under a token that was not the task's newest.
    StaleToken,
    /// A result was accepted under a token that was never given for this task.
    ForgedToken,
    /// Tokens of one task do not grow, or one was given twice.
    TokenOrder,
    /// A task was given away while somebody else surely held its lease.
    LeaseExclusivity,
    /// Two different ends, or two different results of one attempt, were accepted.
    DoubleEnd,
    /// Something happened to a task after it had ended.
    EndedStaysEnded,
    /// The task did not end the way the accepted result says.
    WrongEnd,
    /// The task ended and nothing that was sent can have caused it.
    UnexplainedEnd,
    /// A task is completed that no handler ran to its end.
    AtLeastOnce,
    /// More retries, crashes or runs than allowed.
    Attempts,
    /// More tasks of one type or key ran at once than allowed.
    AtOnce,
    /// Two tasks of one ordering key ran at once, or a later one before an earlier one.
    Order,
    /// A task did not end although everything was healthy again.
    Liveness,
    /// Two ways to ask give different numbers.
    Agreement,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Lost => "lost",
            Rule::Ghost => "ghost",
            Rule::Idempotency => "idempotency",
            Rule::TornBatch => "torn batch",
            Rule::TornFollowUp => "torn follow-up",
            Rule::StaleToken => "stale token",
            Rule::ForgedToken => "forged token",
            Rule::TokenOrder => "token order",
            Rule::LeaseExclusivity => "lease exclusivity",
            Rule::DoubleEnd => "double end",
            Rule::EndedStaysEnded => "ended stays ended",
            Rule::WrongEnd => "wrong end",
            Rule::UnexplainedEnd => "unexplained end",
            Rule::AtLeastOnce => "at least once",
            Rule::Attempts => "attempts",
            Rule::AtOnce => "at once",
            Rule::Order => "order",
            Rule::Liveness => "liveness",
            Rule::Agreement => "agreement",
        })
    }
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise.
    pub rule: Rule,
    /// The task it is about, if it is about one.
    pub task_id: Option<String>,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.task_id {
            Some(task_id) => write!(f, "{}: task {task_id}: {}", self.rule, self.detail),
            None => write!(f, "{}: {}", self.rule, self.detail),
        }
    }
}

/// A task as the server shows it at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FinalTask {
    /// Its id.
    pub task_id: String,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Its status.
    pub status: String,
    /// Its attempt number.
    pub attempt: u64,
    /// Failures that used up a retry.
    pub retry_count: u64,
    /// Lapsed leases.
    pub crash_count: u64,
    /// The nonce inside its stored result.
    pub nonce: Option<String>,
}

/// The same quantities, asked for in three ways at one moment at which no client was active.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// When, in words.
    pub moment: String,
    /// Nothing waits and nothing runs any more, so that no clock can change a status between two questions.
    pub settled: bool,
    /// Tasks by status, counted from the list.
    pub listed: BTreeMap<String, u64>,
    /// Tasks by status, from the metrics.
    pub metrics: BTreeMap<String, u64>,
    /// Waiting tasks, from the statistics.
    pub stats_depth: u64,
    /// Executing tasks, from the statistics.
    pub stats_executing: u64,
}

/// A group of tasks of which only some may run at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AtMost {
    /// Its name.
    pub group: String,
    /// How many.
    pub at_once: u64,
}

/// What a task shares with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Shared {
    /// A limit.
    AtMost(AtMost),
    /// An ordering key: one at a time, in the order of the submits.
    Line {
        /// Its name.
        line: String,
        /// The line goes on past a task that is to be tried again.
        skips: bool,
    },
}

/// The limits under which the run was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// `max_retries` of every task.
    pub max_retries: u64,
    /// Lapsed leases after which a task is dead-lettered.
    pub max_crashes: u64,
    /// How long a lease lasts.
    pub lease_us: u64,
    /// How much earlier than its lease says a task may be given away, for clocks that are slewed.
    pub lease_slack_us: u64,
}

/// Everything the checker looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Every call.
    pub records: Vec<Record>,
    /// Every run of a handler.
    pub runs: Vec<Run>,
    /// Every task at the end.
    pub tasks: Vec<FinalTask>,
    /// Counters at quiet moments.
    pub counts: Vec<Counts>,
    /// The limits of the run.
    pub limits: Limits,
    /// What tasks share with others, by idempotency key.
    pub shared: HashMap<String, Shared>,
    /// The rows of the database at the end, by status; what has not ended is together under `live`, and where the
    /// database does not tell the statuses apart, what has ended under `ended`.
    pub rows: Option<BTreeMap<String, u64>>,
    /// Spans of time, from and to in microseconds, whose acknowledged writes may be gone: a replica that lags took over.
    pub doubts: Vec<(u64, u64)>,
}

impl Evidence {
    /// Writes records, runs and tasks as JSON lines.
    pub fn write(&self, path: &Path) -> Result<(), HarnessError> {
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(std::fs::File::create(path)?);
            let Evidence { records, runs, tasks, counts, .. } = self;
            let records = records.iter().map(|record| serde_json::json!({ "record": record }));
            let runs = runs.iter().map(|run| serde_json::json!({ "run": run }));
            let tasks = tasks.iter().map(|task| serde_json::json!({ "task": task }));
            let counts = counts.iter().map(|counts| serde_json::json!({ "counts": counts }));
            for line in records.chain(runs).chain(tasks).chain(counts) {
                writeln!(file, "{line}")?;
            }
            file.flush()
        };
        write().map_err(|source| HarnessError::File { path: path.to_owned(), source })
    }
}

/// Every violation in the evidence, by rule and task.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let index = Index::new(evidence);
    let mut found = Findings::default();
    submits::check(&index, &mut found);
    leases::check(&index, &mut found);
    ends::check(&index, &mut found);
    order::check(&index, &mut found);
    agreement::check(&index, &mut found);
    found.violations.sort_by(|a, b| (a.rule, &a.task_id, &a.detail).cmp(&(b.rule, &b.task_id, &b.detail)));
    found.violations.dedup();
    found.violations
}

/// Whether a status is an end.
pub fn is_ended(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled" | "dead_letter")
}

#[derive(Debug, Default)]
struct Findings {
    violations: Vec<Violation>,
}

impl Findings {
    fn add(&mut self, rule: Rule, task_id: Option<&str>, detail: impl Into<String>) {
        self.violations.push(Violation { rule, task_id: task_id.map(str::to_owned), detail: detail.into() });
    }
}

/// What is known about one task.
#[derive(Debug, Default)]
struct TaskView<'a> {
    claims: Vec<&'a Record>,
    results: Vec<&'a Record>,
    heartbeats: Vec<&'a Record>,
    cancels: Vec<&'a Record>,
    reads: Vec<&'a Record>,
    runs: Vec<&'a Run>,
    last: Option<&'a FinalTask>,
}

/// The evidence, sorted by task and by key.
#[derive(Debug)]
struct Index<'a> {
    evidence: &'a Evidence,
    tasks: HashMap<&'a str, TaskView<'a>>,
    /// Submits of any kind, by key.
    submits: HashMap<&'a str, Vec<&'a Record>>,
    /// Tasks at the end, by key.
    last_by_key: HashMap<&'a str, Vec<&'a FinalTask>>,
}

impl<'a> Index<'a> {
    fn new(evidence: &'a Evidence) -> Self {
        let mut tasks: HashMap<&str, TaskView> = HashMap::new();
        let mut submits: HashMap<&str, Vec<&Record>> = HashMap::new();
        let mut last_by_key: HashMap<&str, Vec<&FinalTask>> = HashMap::new();
        for record in &evidence.records {
            if matches!(record.op, Op::Submit | Op::Batch | Op::FollowUp) {
                if let Some(key) = &record.key {
                    submits.entry(key).or_default().push(record);
                }
                continue;
            }
            let Some(task_id) = &record.task_id else { continue };
            let view = tasks.entry(task_id).or_default();
            match record.op {
                Op::Claim => view.claims.push(record),
                Op::Result(_) => view.results.push(record),
                Op::Heartbeat => view.heartbeats.push(record),
                Op::Cancel => view.cancels.push(record),
                Op::Read => view.reads.push(record),
                Op::Submit | Op::Batch | Op::FollowUp => {}
            }
        }
        for run in &evidence.runs {
            tasks.entry(&run.task_id).or_default().runs.push(run);
        }
        for task in &evidence.tasks {
            tasks.entry(&task.task_id).or_default().last = Some(task);
            if let Some(key) = &task.key {
                last_by_key.entry(key).or_default().push(task);
            }
        }
        Self { evidence, tasks, submits, last_by_key }
    }
}

/// Whether an accepted result is only the repetition of one that may have been applied before `moment_us`: the server
/// acknowledges the same result twice and applies it once.
fn repeats_earlier(result: &Record, results: &[&Record], moment_us: u64) -> bool {
    results.iter().any(|earlier| {
        earlier.seq != result.seq
            && earlier.nonce == result.nonce
            && earlier.token == result.token
            && earlier.outcome.possible()
            && earlier.t_invoke_us < moment_us
            && earlier.t_invoke_us < result.t_invoke_us
    })
}

fn accepted<'a, 'r>(results: &'r [&'a Record]) -> impl Iterator<Item = &'a Record> + 'r {
    results.iter().copied().filter(|result| result.outcome == Outcome::Ok)
}
