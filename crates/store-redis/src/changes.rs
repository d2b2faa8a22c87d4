//! From changes of rows to prepared changes of keys.

use std::collections::{BTreeMap, HashMap};

use windlass_cluster::backend::{Changes, Is, KeyChange, OverlayChange, TaskChange, Was};
use windlass_core::ids::TaskKey;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::QueueName;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::Ended;

use crate::keys::{Keys, SEGMENT_TASKS, log, queue, queue_tag, unique_tag};
use crate::places::Place;
use crate::rows;
use crate::sheet::{Sheet, text};

/// Places that one operation writes.
const PLACES_AT_ONCE: usize = 500;

/// The document of all error rules.
pub(crate) const ERROR_RULES: &str = "error_rules";

/// What is done to one tag, by kind, so that one command does it for many tasks.
#[derive(Default)]
struct Tag {
    /// Operations that stand alone and go first.
    single: Vec<(&'static str, String, Vec<Vec<u8>>)>,
    /// Idempotency keys that must not be there.
    new_keys: Vec<Vec<u8>>,
    end: Vec<Vec<u8>>,
    again: Vec<Vec<u8>>,
    revive: Vec<Vec<u8>>,
    set: BTreeMap<&'static str, Vec<Vec<u8>>>,
    unset: BTreeMap<&'static str, Vec<Vec<u8>>>,
    rank: BTreeMap<&'static str, Vec<Vec<u8>>>,
    unrank: BTreeMap<&'static str, Vec<Vec<u8>>>,
    unlink: Vec<String>,
}

impl Tag {
    fn set(&mut self, key: &'static str, field: Vec<u8>, value: Vec<u8>) {
        self.set.entry(key).or_default().extend([field, value]);
    }

    fn unset(&mut self, key: &'static str, field: Vec<u8>) {
        self.unset.entry(key).or_default().push(field);
    }

    /// Stores a value under a field, or deletes it.
    fn put(&mut self, key: &'static str, field: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.set(key, field, value),
            None => self.unset(key, field),
        }
    }

    /// Gives a member of a sorted set its time, or takes the member out.
    fn rank(&mut self, key: &'static str, member: Vec<u8>, time: Option<Timestamp>) {
        match time {
            Some(time) => self.rank.entry(key).or_default().extend([text(time.as_micros()), member]),
            None => self.unrank.entry(key).or_default().push(member),
        }
    }

    fn write(self, sheet: &mut Sheet, key: impl Fn(&str) -> String) {
        for (op, key, args) in self.single {
            sheet.add(op, key, args);
        }
        sheet.add_many("new", &key(queue::KEYS), None, self.new_keys, 1);
        if !self.end.is_empty() {
            let ended = sheet.number(key(queue::ENDED));
            sheet.add_many("end", &key(queue::LIVE), Some(ended), self.end, 2);
        }
        sheet.add_many("again", &key(queue::ENDED), None, self.again, 2);
        if !self.revive.is_empty() {
            let live = sheet.number(key(queue::LIVE));
            sheet.add_many("revive", &key(queue::ENDED), Some(live), self.revive, 1);
        }
        for (op, by_key, width) in
            [("HSET", self.set, 2), ("HDEL", self.unset, 1), ("ZADD", self.rank, 2), ("ZREM", self.unrank, 1)]
        {
            for (name, items) in by_key {
                sheet.add_many(op, &key(name), None, items, width);
            }
        }
        for name in self.unlink {
            sheet.add("UNLINK", name, []);
        }
    }
}

/// Where tasks are, as far as the changes need it.
pub(crate) struct Whereabouts {
    /// Queues of tasks whose rows are not among the changes.
    pub(crate) queues: HashMap<TaskKey, QueueName>,
    /// Numbers of all queues that are touched.
    pub(crate) numbers: HashMap<QueueName, u32>,
}

impl Whereabouts {
    fn queue<'a>(&'a self, change: &'a TaskChange) -> Option<&'a QueueName> {
        change.row.as_ref().map(|row| &row.spec.queue).or_else(|| self.queues.get(&change.key))
    }
}

/// Prepared changes of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// What is done in the log's tag.
    pub(crate) log: Sheet,
    /// What is done in other tags.
    pub(crate) tags: Vec<(String, Sheet)>,
}

/// A task has neither a row here nor a place in the directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nowhere(pub(crate) TaskKey);

/// Prepares a transaction. Unless tags are spread over servers, everything goes in the log's sheet.
pub(crate) fn prepare(
    keys: &Keys,
    spread: bool,
    changes: &Changes,
    whereabouts: &Whereabouts,
) -> Result<Prepared, Nowhere> {
    let mut tags: BTreeMap<String, Tag> = BTreeMap::new();
    let mut own = Tag::default();
    let mut places: BTreeMap<u64, BTreeMap<u64, u32>> = BTreeMap::new();
    satellites(keys, changes, whereabouts, &mut tags);
    for change in &changes.tasks {
        let queue = whereabouts.queue(change).ok_or(Nowhere(change.key))?;
        let tag_name = queue_tag(queue);
        let tag = tags.entry(tag_name.clone()).or_default();
        task(keys, &tag_name, tag, change);
        dead_letter(&mut own, change);
        let number = whereabouts.numbers.get(queue).copied().unwrap_or_default();
        let place = match &change.is {
            Is::Live => Place::new(number, None).0,
            Is::Ended(ended) => Place::new(number, Some(ended.status)).0,
            Is::Gone => 0,
        };
        let is_new = match (change.was, &change.is) {
            (Was::Live, Is::Live) => false,
            (Was::Absent | Was::Ended, _) | (Was::Live, Is::Ended(_) | Is::Gone) => true,
        };
        if is_new {
            let segment = places.entry(change.key.0 / SEGMENT_TASKS).or_default();
            segment.insert(change.key.0 % SEGMENT_TASKS, place);
        }
    }
    small(changes, &mut own);
    let mut prepared = Prepared::default();
    own.write(&mut prepared.log, |name| keys.log(name));
    for (segment, places) in places {
        directory(&mut prepared.log, keys, segment, &places);
    }
    for (name, tag) in tags {
        if !spread {
            tag.write(&mut prepared.log, |key| keys.of(&name, key));
            continue;
        }
        let mut sheet = Sheet::default();
        tag.write(&mut sheet, |key| keys.of(&name, key));
        if !sheet.is_empty() {
            prepared.tags.push((name, sheet));
        }
    }
    Ok(prepared)
}

/// What belongs to a task or queue beside its row.
fn satellites(keys: &Keys, changes: &Changes, whereabouts: &Whereabouts, tags: &mut BTreeMap<String, Tag>) {
    let rows: HashMap<TaskKey, &QueueName> =
        changes.tasks.iter().filter_map(|change| Some((change.key, &change.row.as_ref()?.spec.queue))).collect();
    // A task that is nowhere has nothing to add to: it was deleted.
    let queue_of = |task: TaskKey| rows.get(&task).copied().or_else(|| whereabouts.queues.get(&task)).map(queue_tag);
    for (task, attempt) in &changes.attempts {
        let Some(name) = queue_of(*task) else { continue };
        let key = keys.of_task(&name, queue::ATTEMPTS, *task);
        let args = vec![text(ATTEMPTS_KEPT), rows::encode(attempt)];
        tags.entry(name).or_default().single.push(("attempt", key, args));
    }
    for (task, step, result) in &changes.steps {
        let Some(name) = queue_of(*task) else { continue };
        let key = keys.of_task(&name, queue::STEPS, *task);
        let args = vec![step.as_bytes().to_vec(), result.as_str().as_bytes().to_vec()];
        tags.entry(name).or_default().single.push(("HSETNX", key, args));
    }
    for (task, progress) in &changes.progress {
        let Some(name) = queue_of(*task) else { continue };
        tags.entry(name).or_default().put(queue::PROGRESS, text(task.0), progress.as_ref().map(rows::encode));
    }
    for (scope, change) in &changes.idempotency {
        let row = change.row();
        let tag = tags.entry(queue_tag(&scope.queue)).or_default();
        let field = rows::key_field(scope);
        if matches!(change, KeyChange::New(_)) {
            tag.new_keys.push(field.clone());
        }
        tag.put(queue::KEYS, field.clone(), row.as_ref().map(rows::pack_key));
        tag.rank(queue::KEYS_KEPT, field, row.map(|row| row.forget_at));
    }
    for (key, row) in &changes.uniques {
        let tag = tags.entry(unique_tag(*key)).or_default();
        let field = key.0.to_be_bytes().to_vec();
        tag.put(queue::UNIQUES, field.clone(), row.as_ref().map(rows::pack_unique));
        let forget_at = row.filter(|row| !row.held).map(|row| row.keep_until.unwrap_or(Timestamp::EPOCH));
        tag.rank(queue::UNIQUES_KEPT, field, forget_at);
    }
}

/// An ended task's value when its row is at hand.
fn whole(ended: &Ended, row: &windlass_ledger::journal::TaskRow) -> Vec<u8> {
    let mut value = rows::pack_ended(ended);
    value.extend(rows::pack_task(row));
    value
}

fn task(keys: &Keys, tag_name: &str, tag: &mut Tag, change: &TaskChange) {
    let field = || text(change.key.0);
    match (change.was, &change.is, &change.row) {
        (Was::Absent | Was::Live, Is::Live, Some(row)) => tag.set(queue::LIVE, field(), rows::pack_task(row)),
        (Was::Absent | Was::Live, Is::Live, None) | (Was::Absent, Is::Ended(_), None) | (Was::Absent, Is::Gone, _) => {}
        (Was::Ended, Is::Live, row) => {
            match row {
                Some(row) => {
                    tag.set(queue::LIVE, field(), rows::pack_task(row));
                    tag.unset(queue::ENDED, field());
                }
                None => tag.revive.push(field()),
            }
            tag.rank(queue::KEPT, field(), None);
        }
        (was, Is::Ended(ended), row) => {
            match (was, row) {
                (Was::Absent | Was::Ended, Some(row)) => tag.set(queue::ENDED, field(), whole(ended, row)),
                (Was::Live, Some(row)) => {
                    tag.set(queue::ENDED, field(), whole(ended, row));
                    tag.unset(queue::LIVE, field());
                }
                (Was::Live, None) => tag.end.extend([field(), rows::pack_ended(ended)]),
                (Was::Absent | Was::Ended, None) => tag.again.extend([field(), rows::pack_ended(ended)]),
            }
            if ended.keep_until.is_some() || was == Was::Ended {
                tag.rank(queue::KEPT, field(), ended.keep_until);
            }
        }
        (was @ (Was::Live | Was::Ended), Is::Gone, _) => {
            tag.unset(if was == Was::Live { queue::LIVE } else { queue::ENDED }, field());
            if was == Was::Ended {
                tag.rank(queue::KEPT, field(), None);
            }
            tag.unset(queue::PROGRESS, field());
            for name in [queue::ATTEMPTS, queue::STEPS] {
                tag.unlink.push(keys.of_task(tag_name, name, change.key));
            }
        }
    }
    match (&change.is, &change.overlay) {
        (Is::Live, OverlayChange::Put(overlay)) => tag.set(queue::OVERLAYS, field(), rows::encode(overlay)),
        (Is::Live | Is::Ended(_), OverlayChange::Drop) => tag.unset(queue::OVERLAYS, field()),
        (Is::Gone, _) if change.was == Was::Live => tag.unset(queue::OVERLAYS, field()),
        (Is::Ended(_), OverlayChange::Put(_)) | (_, OverlayChange::Keep) | (Is::Gone, _) => {}
    }
}

/// The list of dead letters is short and looked at often: it has an index of its own.
fn dead_letter(own: &mut Tag, change: &TaskChange) {
    let is_dead = matches!(&change.is, Is::Ended(ended) if ended.status == Status::DeadLetter);
    let member = text(change.key.0);
    if is_dead {
        own.rank.entry(log::DEAD).or_default().extend([member.clone(), member]);
    } else if change.was == Was::Ended {
        own.unrank.entry(log::DEAD).or_default().push(member);
    }
}

/// What there is little of.
fn small(changes: &Changes, own: &mut Tag) {
    for (first, row) in &changes.claims {
        own.put(log::CLAIMS, text(first), row.as_ref().map(rows::encode));
    }
    for (id, row) in &changes.workers {
        own.put(log::WORKERS, id.as_uuid().as_bytes().to_vec(), row.as_ref().map(rows::encode));
    }
    for (name, settings) in &changes.queues {
        own.put(log::QUEUES, name.as_str().as_bytes().to_vec(), settings.as_ref().map(rows::encode));
    }
    for (name, settings) in &changes.types {
        own.put(log::TYPES, name.as_str().as_bytes().to_vec(), settings.as_ref().map(rows::encode));
    }
    for (scope, record) in &changes.breakers {
        own.put(log::BREAKERS, rows::encode(scope), record.as_ref().map(rows::encode));
    }
    if let Some(rules) = &changes.error_rules {
        own.set(log::DOCUMENTS, ERROR_RULES.as_bytes().to_vec(), rows::encode(rules));
    }
}

/// Writes places into a segment: neighbours in one piece, scattered ones by number.
fn directory(sheet: &mut Sheet, keys: &Keys, segment: u64, places: &BTreeMap<u64, u32>) {
    let key = keys.segment(segment);
    let all = places.iter().map(|(at, place)| (*at, *place));
    let gone: Vec<(u64, u32)> = all.clone().filter(|(_, place)| *place == 0).collect();
    let set: Vec<(u64, u32)> = all.filter(|(_, place)| *place != 0).collect();
    let fields = |items: &[(u64, u32)]| -> Vec<Vec<u8>> {
        let field =
            |(at, place): &(u64, u32)| [b"SET".to_vec(), b"u32".to_vec(), format!("#{at}").into_bytes(), text(place)];
        items.iter().flat_map(field).collect()
    };
    let segments = sheet.number(keys.log(log::SEGMENTS));
    let head = || [text(segments), text(segment)];
    let last_offset = text((SEGMENT_TASKS - 1) * 4);
    if let (Some((first, _)), Some((last, _))) = (set.first(), set.last())
        && last - first + 1 == set.len() as u64
    {
        let bytes: Vec<u8> = set.iter().flat_map(|(_, place)| place.to_be_bytes()).collect();
        let write = [last_offset, b"SETRANGE".to_vec(), text(first * 4), bytes];
        sheet.add("place", key.clone(), head().into_iter().chain(write));
    } else {
        for set in set.chunks(PLACES_AT_ONCE) {
            let write = [last_offset.clone(), b"BITFIELD".to_vec()];
            sheet.add("place", key.clone(), head().into_iter().chain(write).chain(fields(set)));
        }
    }
    for gone in gone.chunks(PLACES_AT_ONCE) {
        sheet.add("clear", key.clone(), head().into_iter().chain(fields(gone)));
    }
}
