//! What happened, as seen from outside the server: every call with its outcome, and what the handlers ran.
//!
//! One call can touch several tasks (a batch, a poll); it then has one record per task, and the records share the
//! number of the call. Times are microseconds on the harness's own clock.

use serde::Serialize;

/// What is known about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The server said that it did it.
    Ok,
    /// The server said that it did not, or never saw it.
    Fail,
    /// No answer: it may have been done or not. Never to be taken for a failure.
    Unknown,
}

impl Outcome {
    /// Whether the server may have done it.
    pub fn possible(self) -> bool {
        matches!(self, Outcome::Ok | Outcome::Unknown)
    }
}

/// What a worker reports about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The handler succeeded.
    Completed,
    /// The handler failed and may be tried again.
    FailedRetriable,
    /// The handler failed for good.
    FailedFinal,
    /// Given back without having been tried.
    Released,
    /// Not now, later.
    Snoozed,
}

impl Verdict {
    /// Whether the attempt gives the task back without using up an attempt.
    pub fn is_free(self) -> bool {
        matches!(self, Verdict::Released | Verdict::Snoozed)
    }
}

/// What was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A submit of one task.
    Submit,
    /// One task of a batch.
    Batch,
    /// A task stored together with a result; `nonce` is that of the result.
    FollowUp,
    /// One task given by a poll; without a task id, a poll that got no answer.
    Claim,
    /// A result.
    Result(Verdict),
    /// One task named in a heartbeat.
    Heartbeat,
    /// A cancel.
    Cancel,
    /// A look at one task.
    Read,
}

/// One call, as far as it concerns one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Position in the history.
    pub seq: u64,
    /// Records of one call share this number.
    pub call: u64,
    /// Who called.
    pub client: u32,
    /// What was called.
    pub op: Op,
    /// The idempotency key, where one is known.
    pub key: Option<String>,
    /// The task, where one is known.
    pub task_id: Option<String>,
    /// The lease token, for claims, results and heartbeats.
    pub token: Option<String>,
    /// Names the content of a result: the same nonce means the same result sent again.
    pub nonce: Option<String>,
    /// The task's status as the answer gave it.
    pub status: Option<String>,
    /// How many tasks of the submit call were there before, as the answer gave it.
    pub deduplicated: Option<u64>,
    /// When the call began.
    pub t_invoke_us: u64,
    /// When its answer was there, or given up on.
    pub t_complete_us: u64,
    /// What is known about it.
    pub outcome: Outcome,
}

/// One run of a handler: the ground truth of what ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Who ran it.
    pub client: u32,
    /// The task.
    pub task_id: String,
    /// Its idempotency key as given to the handler.
    pub key: Option<String>,
    /// The lease it ran under.
    pub token: String,
    /// When the handler began.
    pub t_start_us: u64,
    /// When it ended, if it did.
    pub t_end_us: Option<u64>,
}

/// The history while it is being written.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Every call so far.
    pub records: Vec<Record>,
    /// Every run so far.
    pub runs: Vec<Run>,
    calls: u64,
}

impl Recorder {
    /// The number of a new call.
    pub fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Adds a record and gives it its position.
    pub fn add(&mut self, mut record: Record) {
        record.seq = self.records.len() as u64;
        self.records.push(record);
    }

    /// Notes that a handler began; the answer names the run for [`Recorder::end_run`].
    pub fn start_run(&mut self, run: Run) -> usize {
        self.runs.push(run);
        self.runs.len() - 1
    }

    /// Notes that a handler ended.
    pub fn end_run(&mut self, run: usize, t_end_us: u64) {
        if let Some(run) = self.runs.get_mut(run) {
            run.t_end_us = Some(t_end_us);
        }
    }
}
