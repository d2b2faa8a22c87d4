//! Tasks in: submits and their idempotency keys.

use std::collections::BTreeMap;

use windlass_core::json::digest;
use windlass_core::store::SubmitError;
use windlass_core::task::{NewTask, Start};

use super::{Driver, QUEUE_NAMES, TYPE_NAMES, Verdict};
use crate::fixtures::{priority, task};
use crate::model::operation::Draft;

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
        let mut new = built.build();
        new.start = if draft.delay.is_zero() { Start::Now } else { Start::After(draft.delay) };
        new
    }

    pub(super) async fn submit(&mut self, queue: u64, mut drafts: Vec<Draft>) -> Verdict {
        let scope = |draft: &Draft| draft.key.map(|key| (QUEUE_NAMES[queue as usize].to_owned(), format!("k{key}")));
        let meaning = |draft: &Draft| digest(&[draft.task_type.to_le_bytes(), draft.parameters.to_le_bytes()].concat());
        for draft in &mut drafts {
            // A key past its window may be kept or forgotten.
            if scope(draft).and_then(|scope| self.reference.key(&scope)).is_some_and(|(_, surely)| !surely) {
                draft.key = None;
            }
        }
        let answer = self.rig.try_submit(drafts.iter().map(|draft| self.spec_of(queue, draft)).collect()).await;
        let mut in_batch: BTreeMap<(String, String), (usize, u64)> = BTreeMap::new();
        let mut known = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            let Some(scope) = scope(draft) else {
                known.push(None);
                continue;
            };
            let (earlier, of_task) = (in_batch.get(&scope).copied(), self.reference.key(&scope));
            let (had, existing) = match (earlier, of_task) {
                (_, Some((key, _))) => (Some(key.meaning), Some(self.reference.items[key.item].id)),
                (Some((_, had)), None) => (Some(had), None),
                (None, None) => (None, None),
            };
            if had.is_some_and(|had| had != meaning(draft)) {
                same!(answer, Err(SubmitError::IdempotencyKeyReused { index, existing }), "submit");
                self.count("refused submits", 1);
                return Ok(());
            }
            known.push(match (earlier, of_task) {
                (_, Some((key, _))) => Some(Err(key.item)),
                (Some((first, _)), None) => Some(Ok(first)),
                (None, None) => None,
            });
            in_batch.entry(scope).or_insert((index, meaning(draft)));
        }
        let answers = answer.map_err(|refused| format!("submit was refused: {refused}"))?;
        same!(answers.len(), drafts.len(), "answers of submit");
        for (index, draft) in drafts.iter().enumerate() {
            let told = answers[index];
            let expected = match known[index] {
                Some(Ok(first)) => Some(answers[first].id),
                Some(Err(item)) => Some(self.reference.items[item].id),
                None => None,
            };
            if let Some(id) = expected {
                same!((told.id, told.deduplicated), (id, true), "item {index} of submit");
                let known = &self.reference.items[self.reference.by_id[&id]];
                if !known.gone {
                    same!(told.status, known.status, "item {index} of submit");
                }
                continue;
            }
            if told.deduplicated || self.reference.by_id.contains_key(&told.id) {
                return Err(format!("item {index} of submit is new, but the store says {told:?}"));
            }
            let name = self.new_name();
            let item = self.reference.submit(name, told.id, self.spec_of(queue, draft).spec, draft.delay);
            if let Some(scope) = scope(draft) {
                self.reference.take_key(scope, item, meaning(draft));
            }
            same!(told.status, self.reference.items[item].status, "item {index} of submit");
            self.touched.insert(item);
            self.count("submitted", 1);
        }
        Ok(())
    }
}
