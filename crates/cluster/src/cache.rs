//! Rows of live tasks at hand. A row stays right until an entry of the log names its task,
//! so nothing here is ever looked up again to be sure.

use std::collections::HashMap;
use std::sync::Arc;

use windlass_core::ids::TaskKey;

use crate::backend::TaskRecord;

/// Most bytes that are kept, about.
const BYTES_MAX: usize = 64 << 20;
/// What a record takes beside its parameters, about.
const RECORD_BYTES: usize = 600;

/// Records of live tasks.
#[derive(Default)]
pub(crate) struct Cache {
    records: HashMap<TaskKey, Arc<TaskRecord>>,
    bytes: usize,
}

fn size(record: &TaskRecord) -> usize {
    let steps: usize = record.steps.iter().map(|(name, result)| name.len() + result.as_str().len()).sum();
    RECORD_BYTES + record.row.spec.parameters.as_str().len() + steps
}

impl Cache {
    pub(crate) fn get(&self, key: TaskKey) -> Option<&Arc<TaskRecord>> {
        self.records.get(&key)
    }

    /// Keeps a record that was read because somebody is about to want it: others make room.
    pub(crate) fn put(&mut self, key: TaskKey, record: Arc<TaskRecord>) {
        self.remove(key);
        let needed = size(&record);
        while self.bytes + needed > BYTES_MAX {
            let Some(other) = self.records.keys().next().copied() else { break };
            self.remove(other);
        }
        self.bytes += needed;
        self.records.insert(key, record);
    }

    /// Keeps a record that has just been written, if there is room. In a long backlog the newest is wanted last.
    pub(crate) fn put_if_room(&mut self, key: TaskKey, record: Arc<TaskRecord>) {
        if self.bytes + size(&record) <= BYTES_MAX {
            self.put(key, record);
        }
    }

    pub(crate) fn remove(&mut self, key: TaskKey) {
        if let Some(record) = self.records.remove(&key) {
            self.bytes -= size(&record);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
