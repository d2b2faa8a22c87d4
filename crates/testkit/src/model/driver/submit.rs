//! Tasks in: submits, their idempotency keys and their unique keys.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::json::digest;
use windlass_core::keys::{OnConflict, OnFailure, Unique, UniqueKey, unique_key};
use windlass_core::status::Status;
use windlass_core::store::{KnownBy, SubmitError, Submitted};
use windlass_core::task::{NewTask, Start, TaskSpec};

use super::{Driver, QUEUE_NAMES, TYPE_NAMES, Verdict};
use crate::fixtures::{priority, task};
use crate::model::operation::{Draft, Flow, Sole};

/// What must become of one item of a batch.
#[derive(Clone, Copy)]
enum Fate {
    New,
    /// The same idempotency key as an earlier item of the batch, or as a task.
    SameAs(usize),
    Known(usize),
    /// A task has its unique key, or an earlier item of the batch that is new.
    Meets(Holder),
}

#[derive(Clone, Copy)]
enum Holder {
    Task(usize),
    InBatch(usize),
}

/// What the earlier items of a batch have taken.
#[derive(Default)]
struct Batch {
    keys: BTreeMap<(String, String), (usize, u64)>,
    uniques: BTreeMap<UniqueKey, usize>,
}

fn scope(queue: u64, draft: &Draft) -> Option<(String, String)> {
    draft.key.map(|key| (QUEUE_NAMES[queue as usize].to_owned(), format!("k{key}")))
}

fn meaning(draft: &Draft) -> u64 {
    digest(&[draft.task_type.to_le_bytes(), draft.parameters.to_le_bytes()].concat())
}

fn unique(spec: &TaskSpec, sole: &Sole) -> Unique {
    let key = unique_key(spec, &["task_type".to_owned()]).expect("a field that every task has");
    let mut held_while = vec![Status::Blocked, Status::Scheduled, Status::Queued];
    held_while.extend(sole.executing.then_some(Status::Executing));
    Unique { key, held_while, for_seconds: sole.span, on_conflict: sole.on_conflict }
}

impl Driver {
    pub(super) fn spec_of(&self, queue: u64, draft: &Draft) -> NewTask {
        let mut built = task(TYPE_NAMES[draft.task_type as usize])
            .queue(QUEUE_NAMES[queue as usize])
            .priority(priority(draft.priority))
            .parameters(&format!(r#"{{"n":{}}}"#, draft.parameters))
            .max_retries(draft.max_retries)
            .max_crashes(draft.max_crashes)
            .timeout(draft.timeout)
            .retry(|retry| {
                retry.max_elapsed = draft.max_elapsed;
                retry.non_retryable_codes = vec!["never".into()];
            });
        if draft.gpu {
            built = built.requires(&["gpu"]);
        }
        if !draft.dead_letter {
            built = built.no_dead_letter();
        }
        if let Some(span) = draft.expires_in {
            built = built.expires_at(self.reference.now + span);
        }
        if let Some(key) = draft.key {
            built = built.key(&format!("k{key}"));
        }
        match &draft.flow {
            Some(Flow::Ordered { key, skip }) => {
                let on_failure = if *skip { OnFailure::Skip } else { OnFailure::Block };
                built = built.ordered(&format!("f{key}"), on_failure);
            }
            Some(Flow::AtMost { key, limit }) => built = built.at_most(*limit, &format!("f{key}")),
            None => {}
        }
        let mut new = built.build();
        new.spec.unique = draft.sole.as_ref().map(|sole| unique(&new.spec, sole));
        new.start = if draft.delay.is_zero() { Start::Now } else { Start::After(draft.delay) };
        new
    }

    pub(super) async fn submit(&mut self, queue: u64, mut drafts: Vec<Draft>) -> Verdict {
        for draft in &mut drafts {
            // A key past its window may be kept or forgotten.
            if scope(queue, draft).and_then(|scope| self.reference.key(&scope)).is_some_and(|(_, surely)| !surely) {
                draft.key = None;
            }
        }
        let news: Vec<NewTask> = drafts.iter().map(|draft| self.spec_of(queue, draft)).collect();
        let answer = self.rig.try_submit(news.clone()).await;
        let mut batch = Batch::default();
        let mut fates = Vec::new();
        for index in 0..drafts.len() {
            match self.fate(queue, index, &drafts, &news, &mut batch) {
                Ok(fate) => fates.push(fate),
                Err(refused) => {
                    same!(answer, Err(refused), "submit");
                    self.count("refused submits", 1);
                    return Ok(());
                }
            }
        }
        let answers = answer.map_err(|refused| format!("submit was refused: {refused}"))?;
        same!(answers.len(), drafts.len(), "answers of submit");
        for (index, (fate, new)) in fates.into_iter().zip(news).enumerate() {
            self.submit_one(queue, index, fate, new, &drafts[index], &answers)?;
        }
        Ok(())
    }

    fn fate(
        &self,
        queue: u64,
        index: usize,
        drafts: &[Draft],
        news: &[NewTask],
        batch: &mut Batch,
    ) -> Result<Fate, SubmitError> {
        let draft = &drafts[index];
        if let Some(scope) = scope(queue, draft) {
            let of_task = self.reference.key(&scope).map(|(key, _)| (key.item, key.meaning));
            let earlier = batch.keys.get(&scope).copied();
            if of_task.or(earlier).is_some_and(|(_, had)| had != meaning(draft)) {
                let existing = of_task.map(|(item, _)| self.reference.items[item].id);
                return Err(SubmitError::IdempotencyKeyReused { index, existing });
            }
            match (of_task, earlier) {
                (Some((item, _)), _) => return Ok(Fate::Known(item)),
                (None, Some((first, _))) => return Ok(Fate::SameAs(first)),
                (None, None) => batch.keys.insert(scope, (index, meaning(draft))),
            };
        }
        let Some(unique) = &news[index].spec.unique else { return Ok(Fate::New) };
        if let Some(earlier) = batch.uniques.get(&unique.key) {
            let status = if drafts[*earlier].delay.is_zero() { Status::Queued } else { Status::Scheduled };
            return match unique.on_conflict {
                OnConflict::Error => Err(SubmitError::UniqueConflict { index, existing: None, status }),
                OnConflict::Keep | OnConflict::Replace | OnConflict::Reschedule => {
                    Ok(Fate::Meets(Holder::InBatch(*earlier)))
                }
            };
        }
        let fate = self.meeting(index, unique)?;
        if matches!(fate, Fate::New) {
            batch.uniques.insert(unique.key, index);
        }
        Ok(fate)
    }

    /// What becomes of a submit because of the task that has its unique key.
    fn meeting(&self, index: usize, unique: &Unique) -> Result<Fate, SubmitError> {
        let Some(item) = self.reference.unique_holder(unique) else { return Ok(Fate::New) };
        let known = &self.reference.items[item];
        // What is gone had ended, nobody knows how.
        let status = if known.gone { Status::Completed } else { known.status };
        let refused = Err(SubmitError::UniqueConflict { index, existing: Some(known.id), status });
        match unique.on_conflict {
            OnConflict::Error => refused,
            OnConflict::Replace | OnConflict::Reschedule if status == Status::Executing => refused,
            // Only time keeps the key of what has ended: there is nothing to change.
            OnConflict::Replace | OnConflict::Reschedule if status.is_ended() => Ok(Fate::New),
            OnConflict::Keep | OnConflict::Replace | OnConflict::Reschedule => Ok(Fate::Meets(Holder::Task(item))),
        }
    }

    fn submit_one(
        &mut self,
        queue: u64,
        index: usize,
        fate: Fate,
        new: NewTask,
        draft: &Draft,
        answers: &[Submitted],
    ) -> Verdict {
        let told = answers[index];
        let (item, known_by) = match fate {
            Fate::New => return self.submit_new(queue, index, new, draft, told),
            Fate::SameAs(first) => (self.item(answers[first].id)?, KnownBy::IdempotencyKey),
            Fate::Known(item) => (item, KnownBy::IdempotencyKey),
            Fate::Meets(holder) => {
                let item = match holder {
                    Holder::Task(item) => item,
                    Holder::InBatch(first) => self.item(answers[first].id)?,
                };
                (item, self.meet(item, new, draft.delay))
            }
        };
        let known = &self.reference.items[item];
        same!((told.id, told.known_by), (known.id, Some(known_by)), "item {index} of submit");
        // Of an item of the same batch the answer says how it stood when it was stored.
        if !known.gone && !matches!(fate, Fate::SameAs(_)) {
            same!(told.status, known.status, "item {index} of submit");
        }
        self.touched.insert(item);
        Ok(())
    }

    fn submit_new(&mut self, queue: u64, index: usize, new: NewTask, draft: &Draft, told: Submitted) -> Verdict {
        if told.is_known() || self.reference.by_id.contains_key(&told.id) {
            return Err(format!("item {index} of submit is new, but the store says {told:?}"));
        }
        let name = self.new_name();
        let item = self.reference.submit(name, told.id, new.spec, draft.delay);
        if let Some(scope) = scope(queue, draft) {
            self.reference.take_key(scope, item, meaning(draft));
        }
        same!(told.status, self.reference.items[item].status, "item {index} of submit");
        self.touched.insert(item);
        self.count("submitted", 1);
        Ok(())
    }

    /// A submit meets a task with its unique key.
    pub(super) fn meet(&mut self, item: usize, new: NewTask, delay: Duration) -> KnownBy {
        self.count("unique conflicts", 1);
        let on_conflict = new.spec.unique.as_ref().map(|unique| unique.on_conflict);
        let waits = super::WAITING.contains(&self.reference.items[item].status);
        match on_conflict.filter(|_| waits) {
            Some(OnConflict::Replace) => {
                self.reference.replace(item, new.spec, delay);
                KnownBy::UniqueReplaced
            }
            Some(OnConflict::Reschedule) => {
                self.reference.reschedule(item, delay);
                KnownBy::UniqueRescheduled
            }
            Some(OnConflict::Keep | OnConflict::Error) | None => KnownBy::UniqueKept,
        }
    }
}
