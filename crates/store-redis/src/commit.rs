//! Appending an entry: one script on the log's tag. Where one server has all keys it changes
//! the rows too; in a cluster it notes what is to be done in other tags, and that is carried
//! out after the caller was answered.

use std::time::Duration;

use redis::Value;
use windlass_cluster::backend::{BackendError, Changes, CommitError, Entry, NodeId, Was};
use windlass_core::ids::TaskKey;
use windlass_core::json::digest;

use crate::changes::{self, Nowhere, Prepared, Whereabouts};
use crate::error::Failure;
use crate::events;
use crate::inner::Inner;
use crate::intents::Job;
use crate::keys::log;
use crate::link::Link;
use crate::scripts::Script;
use crate::sheet::text;

/// How soon a commit whose answer was lost is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How long a commit waits for replicas: a caller is told within two seconds in any case.
const WAIT_FOR_REPLICAS: Duration = Duration::from_secs(1);

/// What tells an entry from any other with the same number.
pub(crate) fn fingerprint(no: u64, node: NodeId, redo: &[u8]) -> u64 {
    let head = [no.to_be_bytes(), node.0.to_be_bytes()].concat();
    digest(&head) ^ digest(redo).rotate_left(1)
}

/// A fingerprint as it stands in the log.
pub(crate) fn hex(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

enum Answer {
    /// Appended now; what was last in each tag that it touches.
    Appended(Vec<String>),
    /// Appended by an earlier try whose answer was lost.
    Known,
    /// Not next.
    Behind,
}

fn answer(value: Value) -> Result<Answer, Failure> {
    let odd = || Failure::odd("the commit was answered with something else");
    let Value::Array(items) = value else { return Err(odd()) };
    let mut items = items.into_iter();
    match items.next() {
        Some(Value::Int(0)) => Ok(Answer::Behind),
        Some(Value::Int(2)) => Ok(Answer::Known),
        Some(Value::Int(1)) => {
            let befores = items.map(|item| match item {
                Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| odd()),
                _ => Err(odd()),
            });
            Ok(Answer::Appended(befores.collect::<Result<_, _>>()?))
        }
        _ => Err(odd()),
    }
}

impl Inner {
    pub(crate) async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError> {
        let has_new = changes.tasks.iter().any(|change| change.was == Was::Absent);
        if has_new && let Some(reason) = self.pressure.full() {
            return Err(CommitError::Refused(BackendError::new(reason)));
        }
        let refused = |failure: Failure| CommitError::Refused(failure.into());
        let whereabouts = self.whereabouts(changes).await.map_err(refused)?;
        let spread = self.writes.is_cluster();
        let prepared = changes::prepare(&self.keys, spread, changes, &whereabouts).map_err(|Nowhere(task)| {
            let reason = format!("the task with key {} is to change and is nowhere", task.0);
            CommitError::Refused(BackendError { reason, item_at_fault: true })
        })?;
        let own = fingerprint(entry.no, entry.node, &entry.redo);
        let (keys, args) = self.call(entry, own, changes, &prepared);
        let script = if has_new { &self.scripts.commit_new } else { &self.scripts.commit };
        let answer = self.append(script, &keys, &args).await?;
        if matches!(answer, Answer::Behind) {
            return Err(CommitError::Behind);
        }
        self.known.note(entry.no, own);
        let new = changes.tasks.iter().filter_map(|change| {
            let queue = &change.row.as_ref()?.spec.queue;
            Some((change.key, *whereabouts.numbers.get(queue)?))
        });
        self.places.remember(new);
        if spread {
            let befores = if let Answer::Appended(befores) = answer { Some(befores) } else { None };
            self.touch(entry.no, prepared.tags.iter().map(|(tag, _)| tag.as_str()));
            self.apply_later(Job {
                no: entry.no,
                own: format!("{}:{}", entry.no, hex(own)),
                befores,
                tags: prepared.tags,
            })
            .await;
        }
        self.replicated().await.map_err(CommitError::Unsafe)
    }

    fn commit_link(&self) -> &Link {
        self.commits.as_ref().unwrap_or(&self.writes)
    }

    /// Runs the script until it is known what has become of the entry, or time is up.
    async fn append(&self, script: &Script, keys: &[String], args: &[Vec<u8>]) -> Result<Answer, CommitError> {
        let mut lost: Option<Failure> = None;
        let asking = async {
            loop {
                match self.commit_link().script(script, keys, args).await.and_then(answer) {
                    Ok(answer) => return Ok(answer),
                    Err(failure) if failure.refused && lost.is_none() => {
                        return Err(CommitError::Refused(failure.into()));
                    }
                    // The entry says who it is, so asking again tells whether it is in; if it is not, it may go in now.
                    Err(failure) => lost = Some(failure),
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        if let Ok(answer) = tokio::time::timeout(self.options.timeout, asking).await {
            return answer;
        }
        let reason = lost.map_or_else(|| "the server did not answer in time".to_owned(), |lost| lost.reason);
        Err(CommitError::Unknown(BackendError::new(reason)))
    }

    fn call(&self, entry: &Entry, own: u64, changes: &Changes, prepared: &Prepared) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys: Vec<String> =
            [log::LOG, log::META, log::BELL, log::TURN, log::EVENTS, log::TOUCHED, log::INTENTS]
                .map(|name| self.keys.log(name))
                .to_vec();
        keys.extend_from_slice(&prepared.log.keys);
        let before = self.known.get(entry.no - 1).map(hex).unwrap_or_default();
        let (event_no, packed) = match &changes.events {
            Some(row) => (text(row.no), events::pack(row)),
            None => (Vec::new(), Vec::new()),
        };
        let mut args = vec![
            text(entry.no),
            text(entry.no - 1),
            hex(own).into_bytes(),
            before.into_bytes(),
            hex(entry.node.0).into_bytes(),
            entry.redo.clone(),
            self.take_turn().unwrap_or_default(),
            event_no,
            packed,
            text(prepared.tags.len()),
        ];
        for (tag, sheet) in &prepared.tags {
            args.extend([tag.as_bytes().to_vec(), sheet.pack()]);
        }
        args.extend_from_slice(&prepared.log.args);
        (keys, args)
    }

    /// Where the tasks of a transaction are.
    async fn whereabouts(&self, changes: &Changes) -> Result<Whereabouts, Failure> {
        let without_row = changes.tasks.iter().filter(|change| change.row.is_none()).map(|change| change.key);
        let with_row: std::collections::HashSet<TaskKey> =
            changes.tasks.iter().filter(|change| change.row.is_some()).map(|change| change.key).collect();
        let attempts = changes.attempts.iter().map(|(task, _)| *task);
        let steps = changes.steps.iter().map(|(task, _, _)| *task);
        let others = attempts.chain(steps).chain(changes.progress.keys().copied());
        let tasks = without_row.chain(others.filter(|task| !with_row.contains(task)));
        let queues = self.places.find(&self.reads, &self.keys, tasks).await?;
        let own = changes.tasks.iter().filter_map(|change| change.row.as_ref()).map(|row| &row.spec.queue);
        // A queue that has nothing but idempotency keys is looked through for them as well.
        let of_keys = changes.idempotency.keys().map(|scope| &scope.queue);
        let all = own.chain(queues.values()).chain(of_keys);
        let numbers = self.places.numbers(&self.writes, &self.keys, &self.scripts, all).await?;
        Ok(Whereabouts { queues, numbers })
    }

    /// Waits until replicas have what was written, if that is wanted.
    async fn replicated(&self) -> Result<(), BackendError> {
        let (replicas, span) = (self.wait_replicas, WAIT_FOR_REPLICAS);
        if replicas == 0 {
            return Ok(());
        }
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(span.as_millis() as u64);
        // On the connection of the commit: the server looks at what that has written.
        let have: usize = self.commit_link().at_log(&wait).await?;
        if have < replicas {
            let reason = format!("written, but only {have} of {replicas} replicas have it after {span:?}");
            return Err(BackendError::new(reason));
        }
        Ok(())
    }
}
