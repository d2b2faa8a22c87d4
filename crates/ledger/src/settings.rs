//! Changes of settings: written, then applied to every lane at once.

use std::sync::Arc;

use windlass_core::error_rules::{ErrorRules, RuleBook};
use windlass_core::ids::TaskKey;
use windlass_core::limits;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
use windlass_core::store::SettingsError;

use crate::index::{Lease, LiveTask};
use crate::journal::{Journal, JournalResult};
use crate::ledger::Ledger;

impl Ledger {
    pub(crate) fn adopt(&mut self, settings: Settings) {
        self.settings = Arc::new(settings);
        self.index.lanes.apply(&self.settings, true);
        self.lanes_changed = true;
    }

    /// A queue that becomes fair between tenants, or is so no longer, has other lanes: its tasks move. Rare, and in
    /// proportion to what waits, because only the rows know whose the tasks are.
    fn move_lanes(&mut self, journal: &mut dyn Journal, queue: &QueueName, was_fair: bool) -> JournalResult<()> {
        if self.settings.is_fair(queue) == was_fair {
            return Ok(());
        }
        let all = TaskKey(u64::MAX);
        let of_queue = |task: &LiveTask| self.index.lanes.key(task.lane).queue == *queue;
        let keys: Vec<TaskKey> =
            self.index.newest_below(all).filter(|(_, task)| of_queue(task)).map(|(key, _)| key).collect();
        for key in keys {
            let (Some(task), Some(row)) = (self.index.task(key), journal.task(key)?) else { continue };
            let lane = self.lane_of(&row);
            self.index.set_task(key, Some(LiveTask { lane, ..task }));
            if let Some(lease) = self.index.lease(key) {
                self.index.set_lease(key, Some(Lease { lane, ..lease }));
            }
        }
        Ok(())
    }

    /// See [`windlass_core::store::Store::change_error_rules`].
    pub fn change_error_rules(
        &mut self,
        journal: &mut dyn Journal,
        rules: &ErrorRules,
    ) -> JournalResult<Result<(), SettingsError>> {
        let book = match RuleBook::compile(rules.clone()) {
            Ok(book) => book,
            Err(refused) => return Ok(Err(refused.into())),
        };
        journal.put_error_rules(rules)?;
        self.settings = Arc::new(Settings { error_rules: Arc::new(book), ..Settings::clone(&self.settings) });
        Ok(Ok(()))
    }

    /// See [`windlass_core::store::Store::change_queue`].
    pub fn change_queue(
        &mut self,
        journal: &mut dyn Journal,
        queue: &QueueName,
        change: &QueueChange,
    ) -> JournalResult<Result<QueueSettings, SettingsError>> {
        let mut settings = Settings::clone(&self.settings);
        let was_fair = settings.is_fair(queue);
        let known = settings.queues.get(queue);
        if known.is_none() && settings.queues.len() >= limits::SETTINGS {
            return Ok(Err(SettingsError::TooMany));
        }
        let next = match known.cloned().unwrap_or_default().changed(change) {
            Ok(next) => next,
            Err(refused) => return Ok(Err(refused.into())),
        };
        journal.put_queue(queue, Some(&next))?;
        settings.queues.insert(queue.clone(), next.clone());
        self.adopt(settings);
        self.move_lanes(journal, queue, was_fair)?;
        Ok(Ok(next))
    }

    /// See [`windlass_core::store::Store::change_type`].
    pub fn change_type(
        &mut self,
        journal: &mut dyn Journal,
        task_type: &TaskType,
        change: &TypeChange,
    ) -> JournalResult<Result<TypeSettings, SettingsError>> {
        let mut settings = Settings::clone(&self.settings);
        let known = settings.types.get(task_type);
        if known.is_none() && settings.types.len() >= limits::SETTINGS {
            return Ok(Err(SettingsError::TooMany));
        }
        let next = match known.cloned().unwrap_or_default().changed(change) {
            Ok(next) => next,
            Err(refused) => return Ok(Err(refused.into())),
        };
        journal.put_type(task_type, Some(&next))?;
        settings.types.insert(task_type.clone(), next.clone());
        self.adopt(settings);
        Ok(Ok(next))
    }

    /// See [`windlass_core::store::Store::clear_queue`].
    pub fn clear_queue(
        &mut self,
        journal: &mut dyn Journal,
        queue: &QueueName,
    ) -> JournalResult<Result<(), SettingsError>> {
        let mut settings = Settings::clone(&self.settings);
        if settings.queues.remove(queue).is_none() {
            return Ok(Err(SettingsError::Unknown));
        }
        journal.put_queue(queue, None)?;
        let was_fair = self.settings.is_fair(queue);
        self.adopt(settings);
        self.move_lanes(journal, queue, was_fair)?;
        Ok(Ok(()))
    }

    /// See [`windlass_core::store::Store::clear_type`].
    pub fn clear_type(
        &mut self,
        journal: &mut dyn Journal,
        task_type: &TaskType,
    ) -> JournalResult<Result<(), SettingsError>> {
        let mut settings = Settings::clone(&self.settings);
        if settings.types.remove(task_type).is_none() {
            return Ok(Err(SettingsError::Unknown));
        }
        journal.put_type(task_type, None)?;
        self.adopt(settings);
        Ok(Ok(()))
    }
}
