//! Changes of settings: written, then applied to every lane at once.

use std::sync::Arc;

use windlass_core::limits;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
use windlass_core::store::SettingsError;

use crate::journal::{Journal, JournalResult};
use crate::ledger::Ledger;

impl Ledger {
    fn adopt(&mut self, settings: Settings) {
        self.settings = Arc::new(settings);
        self.index.lanes.apply(&self.settings);
        self.lanes_changed = true;
    }

    /// See [`windlass_core::store::Store::change_queue`].
    pub fn change_queue(
        &mut self,
        journal: &mut dyn Journal,
        queue: &QueueName,
        change: &QueueChange,
    ) -> JournalResult<Result<QueueSettings, SettingsError>> {
        let mut settings = Settings::clone(&self.settings);
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
        self.adopt(settings);
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
