//! Rows of live tasks at hand. A row stays right until an entry of the log names its task,
//! so nothing here is ever looked up again to be sure.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use windlass_core::ids::TaskKey;

use crate::backend::TaskRecord;

/// Most bytes that are kept, about.
const BYTES_MAX: usize = 64 << 20;
/// What a record takes beside its parameters, about.
const RECORD_BYTES: usize = 600;

/// Records of live tasks.
pub(crate) struct Cache {
    records: HashMap<TaskKey, Kept>,
    /// In which order they came, with some that are gone.
    order: VecDeque<(TaskKey, u64)>,
    /// How many came so far.
    came: u64,
    bytes: usize,
    bytes_max: usize,
}

struct Kept {
    record: Arc<TaskRecord>,
    /// When it came: a key may come again.
    number: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self::of_size(BYTES_MAX)
    }
}

fn size(record: &TaskRecord) -> usize {
    let steps: usize = record.steps.iter().map(|(name, result)| name.len() + result.as_str().len()).sum();
    RECORD_BYTES + record.row.spec.parameters.as_str().len() + steps
}

impl Cache {
    fn of_size(bytes_max: usize) -> Self {
        Self { records: HashMap::new(), order: VecDeque::new(), came: 0, bytes: 0, bytes_max }
    }

    pub(crate) fn get(&self, key: TaskKey) -> Option<&Arc<TaskRecord>> {
        self.records.get(&key).map(|kept| &kept.record)
    }

    /// Keeps a record that was read because somebody is about to want it. Those that came first make room: had anybody
    /// wanted them, they would be gone.
    pub(crate) fn put(&mut self, key: TaskKey, record: Arc<TaskRecord>) {
        self.remove(key);
        let needed = size(&record);
        while self.bytes + needed > self.bytes_max {
            let Some((oldest, number)) = self.order.pop_front() else { break };
            if self.records.get(&oldest).is_some_and(|kept| kept.number == number) {
                self.remove(oldest);
            }
        }
        self.came += 1;
        self.bytes += needed;
        self.order.push_back((key, self.came));
        self.records.insert(key, Kept { record, number: self.came });
        // Most go because their task has ended, and leave their place in the order.
        if self.order.len() > 2 * self.records.len() + 64 {
            let Self { records, order, .. } = self;
            order.retain(|(key, number)| records.get(key).is_some_and(|kept| kept.number == *number));
        }
    }

    /// Keeps a record that has just been written, if there is room. In a long backlog the newest is wanted last.
    pub(crate) fn put_if_room(&mut self, key: TaskKey, record: Arc<TaskRecord>) {
        if self.bytes + size(&record) <= self.bytes_max {
            self.put(key, record);
        }
    }

    pub(crate) fn remove(&mut self, key: TaskKey) {
        if let Some(kept) = self.records.remove(&key) {
            self.bytes -= size(&kept.record);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::of_size(self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use windlass_core::time::Timestamp;
    use windlass_ledger::journal::TaskRow;
    use windlass_testkit::fixtures::task;

    use super::*;

    fn record() -> Arc<TaskRecord> {
        let time = Timestamp::EPOCH;
        let row = TaskRow {
            spec: task("a").build().spec,
            created_at: time,
            run_at: time,
            event_no: 1,
            original_parameters: None,
            auto_replayed: false,
        };
        Arc::new(TaskRecord { row: Arc::new(row), overlay: None, ended: None, steps: BTreeMap::new() })
    }

    fn kept(cache: &Cache, keys: std::ops::RangeInclusive<u64>) -> Vec<u64> {
        keys.filter(|key| cache.get(TaskKey(*key)).is_some()).collect()
    }

    #[test]
    fn what_was_read_last_goes_last() {
        let mut cache = Cache::of_size(10 * size(&record()));
        for key in 1..=12 {
            cache.put_if_room(TaskKey(key), record());
        }
        assert_eq!(kept(&cache, 1..=12), (1..=10).collect::<Vec<_>>(), "what is just written pushes nobody out");
        for key in 101..=104 {
            cache.put(TaskKey(key), record());
        }
        cache.put(TaskKey(5), record());
        cache.put(TaskKey(105), record());
        assert_eq!(kept(&cache, 1..=200), [5, 7, 8, 9, 10, 101, 102, 103, 104, 105], "6 came before 5 came again");
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing_behind() {
        let mut cache = Cache::of_size(10 * size(&record()));
        for key in 1..=100_000 {
            cache.put(TaskKey(key), record());
            cache.remove(TaskKey(key));
        }
        assert_eq!(cache.bytes, 0);
        assert!(cache.order.len() <= 64);
    }
}
