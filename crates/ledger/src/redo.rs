//! What a transaction did to memory, in a form that another node can follow.
//!
//! A node that follows decides nothing: it is told how every task, lease, limit and worker
//! that was touched stands now, whole and not as a difference. So an entry that is followed
//! twice, or on top of a state that is newer, does no harm as long as all later entries are
//! followed too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use windlass_core::actor::Actor;
use windlass_core::breaker::{self, TypeBreaker, WorkerBreaker};
use windlass_core::error_rules::{ErrorRules, RuleBook};
use windlass_core::event::Change;
use windlass_core::fact::Fact;
use windlass_core::ids::{ClaimNo, LeaseToken, TaskId, TaskKey, WorkerId};
use windlass_core::keys::FlowKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType, Text};
use windlass_core::rate::Bucket;
use windlass_core::settings::{QueueSettings, Settings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_core::worker::Health;

use crate::facts;
use crate::flows::Place;
use crate::index::{Lease, LiveTask, Touched};
use crate::journal::WorkerRow;
use crate::lanes::{LaneIx, TurnOf};
use crate::ledger::Ledger;
use crate::wire::{Damaged, Decoder, Encoder};
use crate::workers::WorkerEntry;

/// The first byte of every entry. A node that meets a higher one is too old to follow. The first format had no facts.
const FORMAT: u8 = 2;
const OLDEST_FORMAT: u8 = 1;

/// A lease that a transaction gave out.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) worker: WorkerId,
    pub(crate) task: TaskId,
    pub(crate) token: LeaseToken,
}

/// A task and what it has to do with its key.
type KeyedWords = (u64, Option<(QueueName, FlowKey, Option<Place>)>);

/// What is rare enough to be told in words.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Words {
    /// The lanes that tasks and leases name by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lanes: Vec<LaneKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keyed: Vec<KeyedWords>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dead: Vec<(QueueName, TaskType, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<SettingsWords>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    types: Vec<TypeWords>,
    /// Tokens that a queue has left, and as of when.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue_levels: Vec<(QueueName, f64, i64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    type_levels: Vec<(TaskType, f64, i64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tenant_levels: Vec<(QueueName, Text, f64, i64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    turns: Vec<TurnOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workers: Vec<(WorkerId, Option<(WorkerRow, breaker::Parts)>)>,
}

#[derive(Serialize, Deserialize)]
struct SettingsWords {
    queues: BTreeMap<QueueName, QueueSettings>,
    types: BTreeMap<TaskType, TypeSettings>,
    error_rules: ErrorRules,
}

#[derive(Serialize, Deserialize)]
struct TypeWords {
    name: TaskType,
    breaker: breaker::Parts,
    successes: [Option<(WorkerId, Timestamp)>; 2],
}

/// The figures that are in every entry: all that is needed of the last one at a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// When the transaction was.
    pub at: Timestamp,
    /// The first free number of tasks, claims and event rows.
    pub next: [u64; 3],
    /// Ended tasks by status, index = [`Status::code`].
    pub ended: [u64; 8],
}

impl Totals {
    fn encode(&self, out: &mut Encoder) {
        out.byte(FORMAT);
        out.signed(self.at.as_micros());
        self.next.iter().chain(&self.ended).for_each(|number| out.number(*number));
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damaged> {
        if !(OLDEST_FORMAT..=FORMAT).contains(&from.byte()?) {
            return Err(Damaged);
        }
        let mut totals = Self { at: Timestamp::from_micros(from.signed()?), ..Self::default() };
        for number in totals.next.iter_mut().chain(&mut totals.ended) {
            *number = from.number()?;
        }
        Ok(totals)
    }

    /// Reads the figures of an entry.
    pub fn of(redo: &[u8]) -> Result<Self, Damaged> {
        Self::decode(&mut Decoder::new(redo))
    }
}

/// A short sign of life of a worker.
struct Beat {
    seen_at: Timestamp,
    unhealthy: bool,
    says_draining: bool,
    health: Option<Health>,
    last_good: Option<ClaimNo>,
    /// How many attempts came to an end in this transaction, well and badly.
    completed: u64,
    failed: u64,
}

/// Numbers for lanes, in the order in which they are met.
#[derive(Default)]
struct LaneNumbers {
    numbers: BTreeMap<LaneIx, u64>,
    lanes: Vec<LaneKey>,
}

impl LaneNumbers {
    fn of(&mut self, ledger: &Ledger, ix: LaneIx) -> u64 {
        *self.numbers.entry(ix).or_insert_with(|| {
            self.lanes.push(LaneKey::clone(ledger.index.lanes.key(ix)));
            self.lanes.len() as u64 - 1
        })
    }
}

impl Ledger {
    /// What the open transaction did to memory; nothing if that is nothing that others must know at once, unless
    /// rows were `written`. To be called when it is otherwise ready to commit.
    pub fn redo(&self, written: bool) -> Option<Vec<u8>> {
        let touched = self.index.touched();
        let words = self.words(&touched);
        let something = written || !touched.is_empty() || !words.is_empty() || self.was_beaten;
        something.then(|| self.encode(&touched, words))
    }

    fn words(&self, touched: &Touched) -> Words {
        let lanes = &self.index.lanes;
        let level = |bucket: Bucket| {
            let (tokens, as_of) = bucket.level();
            (tokens, as_of.as_micros())
        };
        let keyed = touched.keyed.iter().map(|key| {
            let keyed = self.index.keyed(*key).map(|keyed| {
                let (queue, flow_key) = self.index.flows.described(&keyed);
                (queue, flow_key, keyed.place)
            });
            (key.0, keyed)
        });
        let dead = touched.dead.iter().map(|(queue, task_type)| {
            let place = (queue.clone(), task_type.clone());
            let count = self.index.dead_letters().get(&place).copied().unwrap_or(0);
            (place.0, place.1, count)
        });
        let levels = lanes.changed_levels();
        Words {
            lanes: Vec::new(),
            keyed: keyed.collect(),
            dead: dead.collect(),
            settings: self.changed_settings().map(|settings| SettingsWords {
                queues: settings.queues.clone(),
                types: settings.types.clone(),
                error_rules: settings.error_rules.source().clone(),
            }),
            types: lanes
                .changed_types()
                .map(|(name, breaker, successes)| TypeWords { name: name.clone(), breaker: breaker.parts(), successes })
                .collect(),
            queue_levels: levels
                .queues
                .into_iter()
                .map(|(name, bucket)| (name, level(bucket).0, level(bucket).1))
                .collect(),
            type_levels: levels
                .types
                .into_iter()
                .map(|(name, bucket)| (name, level(bucket).0, level(bucket).1))
                .collect(),
            tenant_levels: self
                .changed_tenants()
                .map(|((queue, tenant), bucket)| (queue.clone(), tenant.clone(), level(*bucket).0, level(*bucket).1))
                .collect(),
            turns: lanes.changed_turns().collect(),
            workers: self
                .changed_workers()
                .into_iter()
                .map(|id| {
                    let entry = self.workers.get(&id);
                    (id, entry.map(|entry| (WorkerRow::clone(&entry.row), entry.breaker.parts())))
                })
                .collect(),
        }
    }

    fn encode(&self, touched: &Touched, mut words: Words) -> Vec<u8> {
        let mut out = Encoder::default();
        let totals = Totals { at: self.now, next: self.next_numbers(), ended: self.index.ended_counts() };
        totals.encode(&mut out);
        let now = self.now.as_micros();
        let time = |out: &mut Encoder, at: Timestamp| out.signed(at.as_micros().wrapping_sub(now));
        let mut numbers = LaneNumbers::default();
        out.number(touched.tasks.len() as u64);
        let mut last = 0;
        for key in &touched.tasks {
            out.number(key.0 - last);
            last = key.0;
            out.optional(self.index.task(*key), |out, task| {
                let flags = [task.retrying, task.held, task.keyed, task.unique, task.overlaid];
                let flags = flags.iter().enumerate().fold(0, |all, (bit, set)| all | u8::from(*set) << bit);
                out.number(numbers.of(self, task.lane));
                out.byte(task.status.code());
                out.byte(flags);
                out.byte(task.timeouts);
                out.byte(task.retries);
                out.byte(task.crashes);
                out.number(task.attempt.into());
                out.number(task.version.into());
                time(out, task.created_at);
                time(out, task.ready_at);
                time(out, task.run_at);
            });
        }
        out.number(touched.leases.len() as u64);
        for key in &touched.leases {
            out.number(key.0);
            out.optional(self.index.lease(*key), |out, lease| {
                out.array(*lease.worker.as_uuid().as_bytes());
                out.number(lease.claim.0);
                out.number(lease.claim.0 - lease.claim_row);
                out.number(lease.event_no);
                out.number(numbers.of(self, lease.lane));
                out.number(lease.slots.into());
                out.byte(u8::from(lease.keyed) | u8::from(lease.revoked) << 1 | u8::from(lease.told) << 2);
                for at in [lease.created_at, lease.claimed_at, lease.expires_at, lease.deadline] {
                    time(out, at);
                }
            });
        }
        out.number(touched.expiries.len() as u64);
        for key in &touched.expiries {
            out.number(key.0);
            out.optional(self.index.expiry(*key), time);
        }
        out.number(touched.claims.len() as u64);
        for first in &touched.claims {
            out.number(*first);
            out.number(self.index.open_claim_tasks(*first).into());
        }
        self.encode_beats(&mut out);
        words.lanes = numbers.lanes;
        let words = serde_json::to_vec(&words).expect("words without maps of odd keys can be written");
        out.bytes(&words);
        out.bytes(&facts::encode(self.changes()));
        out.into_bytes()
    }

    fn encode_beats(&self, out: &mut Encoder) {
        let mut ends: BTreeMap<WorkerId, (u64, u64)> = BTreeMap::new();
        for change in self.changes() {
            let Actor::Worker(worker) = change.event.actor else { continue };
            match change.event.change {
                Change::Completed => ends.entry(worker).or_default().0 += 1,
                Change::Retrying { .. } | Change::Failed { .. } | Change::DeadLettered { .. } => {
                    ends.entry(worker).or_default().1 += 1;
                }
                _ => {}
            }
        }
        let seen: BTreeSet<WorkerId> = self.seen_workers.iter().chain(ends.keys()).copied().collect();
        let entries: Vec<_> = seen.iter().filter_map(|id| Some((id, self.workers.get(id)?))).collect();
        out.number(entries.len() as u64);
        for (id, entry) in entries {
            out.array(*id.as_uuid().as_bytes());
            out.signed(entry.last_seen_at.as_micros());
            out.byte(u8::from(entry.unhealthy) | u8::from(entry.says_draining) << 1);
            out.optional(entry.health, |out, health| {
                for figure in [health.memory_percent, health.cpu_percent] {
                    out.optional(figure, Encoder::float);
                }
            });
            out.optional(entry.last_good, |out, claim| out.number(claim.0));
            let (completed, failed) = ends.get(id).copied().unwrap_or_default();
            out.number(completed);
            out.number(failed);
        }
    }

    /// The leases that a transaction gave out which is about to be followed.
    pub(crate) fn granted_by(&self, redo: &[u8]) -> Result<Vec<Granted>, Damaged> {
        let mut from = Decoder::new(redo);
        let totals = Totals::decode(&mut from)?;
        let told = Told::decode(&mut from, totals.at)?;
        let granted = told.leases.into_iter().filter_map(|(key, lease)| {
            let (key, (_, lease)) = (TaskKey(key), lease?);
            // One that is known was only renewed.
            let is_new = self.index.lease(key).is_none_or(|known| known.claim != lease.claim);
            is_new.then(|| Granted {
                worker: lease.worker,
                task: self.ids.task_id(key, lease.created_at),
                token: self.ids.token(key, lease.claim),
            })
        });
        Ok(granted.collect())
    }

    /// Does what another node's transaction did. Returns what statistics need of it.
    pub fn follow(&mut self, redo: &[u8]) -> Result<Vec<Fact>, Damaged> {
        let mut from = Decoder::new(redo);
        let totals = Totals::decode(&mut from)?;
        let told = Told::decode(&mut from, totals.at)?;
        let words: Words = serde_json::from_slice(from.bytes()?).map_err(|_| Damaged)?;
        let facts = if from.is_empty() { Vec::new() } else { facts::decode(from.bytes()?, totals.at)? };
        if !from.is_empty() {
            return Err(Damaged);
        }
        self.now = self.now.max(totals.at);
        self.index.lanes.set_now(self.now);
        self.wake_workers();
        if let Some(told) = words.settings {
            let error_rules = Arc::new(RuleBook::compile(told.error_rules).map_err(|_| Damaged)?);
            self.adopt(Settings { queues: told.queues, types: told.types, error_rules });
        }
        let lanes = self.open_lanes(&words.lanes);
        self.follow_tasks(&told, words.keyed, &lanes)?;
        for (first, tasks) in &told.claims {
            self.index.set_open_claim(*first, *tasks);
        }
        for (queue, task_type, count) in words.dead {
            self.index.set_dead(queue, task_type, count);
        }
        self.index.set_ended_counts(totals.ended);
        self.set_next_numbers(totals.next);
        self.follow_workers(words.workers, told.beats, totals.at);
        self.follow_types(words.types);
        let settings = Arc::clone(&self.settings);
        self.index.lanes.set_levels(words.queue_levels, words.type_levels, &settings);
        self.index.lanes.set_turns(&words.turns);
        self.follow_tenants(words.tenant_levels);
        self.settle_followed();
        for (key, _) in told.tasks.iter().filter(|(_, task)| task.is_none()) {
            self.tell_watchers(TaskKey(*key));
        }
        for (_, lease) in told.leases.iter().filter_map(|(_, lease)| lease.as_ref()) {
            if lease.revoked && !lease.told {
                self.to_tell.insert(lease.worker);
            }
        }
        Ok(facts)
    }

    fn open_lanes(&mut self, keys: &[LaneKey]) -> Vec<LaneIx> {
        let settings = Arc::clone(&self.settings);
        keys.iter()
            .map(|key| {
                let ix = self.index.lanes.open(key, &settings);
                self.index.lanes.forget_if_empty(ix);
                ix
            })
            .collect()
    }

    /// Puts every task in its place. A task with a new key or expiry is taken out in between, so that timers and
    /// lines see it come with both.
    fn follow_tasks(&mut self, told: &Told, keyed: Vec<KeyedWords>, lanes: &[LaneIx]) -> Result<(), Damaged> {
        let lane = |number: u64| lanes.get(usize::try_from(number).ok()?).copied();
        let mut leases: BTreeMap<u64, Option<Lease>> = BTreeMap::new();
        for (key, lease) in &told.leases {
            let lease = match lease {
                Some((number, lease)) => Some(Lease { lane: lane(*number).ok_or(Damaged)?, ..*lease }),
                None => None,
            };
            leases.insert(*key, lease);
        }
        let mut tasks: BTreeMap<u64, Option<LiveTask>> = BTreeMap::new();
        for (key, task) in &told.tasks {
            let task = match task {
                Some((number, task)) => Some(LiveTask { lane: lane(*number).ok_or(Damaged)?, ..*task }),
                None => None,
            };
            tasks.insert(*key, task);
        }
        let expiries: BTreeMap<u64, Option<Timestamp>> = told.expiries.iter().copied().collect();
        let keyed: BTreeMap<u64, _> = keyed.into_iter().collect();
        let all: BTreeSet<u64> =
            tasks.keys().chain(leases.keys()).chain(expiries.keys()).chain(keyed.keys()).copied().collect();
        for number in all {
            let key = TaskKey(number);
            let before = self.index.task(key);
            let rearmed = keyed.contains_key(&number) || expiries.contains_key(&number);
            if rearmed && before.is_some() {
                self.index.set_task(key, None);
            }
            if let Some(expires_at) = expiries.get(&number) {
                self.index.set_expiry(key, *expires_at);
            }
            if let Some(told) = keyed.get(&number) {
                let flow =
                    told.as_ref().map(|(queue, flow_key, place)| self.index.flows.keyed(queue, flow_key, *place));
                self.index.set_keyed(key, flow);
            }
            if let Some(lease) = leases.get(&number) {
                self.index.set_lease(key, *lease);
            }
            match tasks.get(&number) {
                Some(task) => self.index.set_task(key, *task),
                None if rearmed && before.is_some() => self.index.set_task(key, before),
                None => {}
            }
        }
        Ok(())
    }

    fn follow_workers(
        &mut self,
        changed: Vec<(WorkerId, Option<(WorkerRow, breaker::Parts)>)>,
        beats: Vec<(WorkerId, Beat)>,
        at: Timestamp,
    ) {
        for (id, told) in changed {
            match told {
                Some((row, parts)) => {
                    let breaker = WorkerBreaker::from_parts(parts);
                    let serves = Arc::new(row.profile.serves());
                    let row = Arc::new(row);
                    let entry = self.workers.entry(id).or_insert_with(|| WorkerEntry::new(WorkerRow::clone(&row), at));
                    entry.row = row;
                    entry.serves = serves;
                    entry.breaker = breaker;
                }
                None => {
                    self.workers.remove(&id);
                }
            }
            self.await_recovery(id);
            if self.workers.get(&id).is_none_or(|entry| entry.row.draining) {
                self.end_polls_of(id);
            }
        }
        for (id, beat) in beats {
            let Some(entry) = self.workers.get_mut(&id) else { continue };
            entry.last_seen_at = entry.last_seen_at.max(beat.seen_at);
            entry.told_at = entry.told_at.max(beat.seen_at);
            entry.unhealthy = beat.unhealthy;
            entry.says_draining = beat.says_draining;
            entry.health = beat.health;
            entry.last_good = entry.last_good.max(beat.last_good);
            entry.completed += beat.completed;
            entry.failed += beat.failed;
        }
    }

    fn follow_types(&mut self, types: Vec<TypeWords>) {
        let settings = Arc::clone(&self.settings);
        for TypeWords { name, breaker, successes } in types {
            let breaker = TypeBreaker::from_parts(breaker);
            self.index.lanes.change_breaker_of(&name, &settings, |mine| *mine = breaker);
            self.index.lanes.set_successes(&name, successes);
        }
    }
}

impl Words {
    fn is_empty(&self) -> bool {
        self.keyed.is_empty()
            && self.dead.is_empty()
            && self.settings.is_none()
            && self.types.is_empty()
            && self.queue_levels.is_empty()
            && self.type_levels.is_empty()
            && self.tenant_levels.is_empty()
            && self.turns.is_empty()
            && self.workers.is_empty()
    }
}

/// Something that still lacks its lane, and the number of that lane.
type InLane<T> = (u64, T);

/// What an entry tells in numbers.
struct Told {
    tasks: Vec<(u64, Option<InLane<LiveTask>>)>,
    leases: Vec<(u64, Option<InLane<Lease>>)>,
    expiries: Vec<(u64, Option<Timestamp>)>,
    claims: Vec<(u64, u32)>,
    beats: Vec<(WorkerId, Beat)>,
}

impl Told {
    fn decode(from: &mut Decoder<'_>, at: Timestamp) -> Result<Self, Damaged> {
        let now = at.as_micros();
        let time = |from: &mut Decoder<'_>| from.signed().map(|delta| Timestamp::from_micros(now.wrapping_add(delta)));
        let mut last = 0_u64;
        let tasks = from.list(|from| {
            last = last.checked_add(from.number()?).ok_or(Damaged)?;
            Ok((last, from.optional(|from| task(from, time))?))
        })?;
        let leases = from.list(|from| Ok((from.number()?, from.optional(|from| lease(from, time))?)))?;
        let expiries = from.list(|from| Ok((from.number()?, from.optional(time)?)))?;
        let claims = from.list(|from| Ok((from.number()?, from.small()?)))?;
        let beats = from.list(|from| Ok((worker(from)?, beat(from)?)))?;
        Ok(Self { tasks, leases, expiries, claims, beats })
    }
}

fn task(
    from: &mut Decoder<'_>,
    time: impl Fn(&mut Decoder<'_>) -> Result<Timestamp, Damaged>,
) -> Result<InLane<LiveTask>, Damaged> {
    let number = from.number()?;
    let status = Status::from_code(from.byte()?).ok_or(Damaged)?;
    let flags = from.byte()?;
    let (timeouts, retries, crashes) = (from.byte()?, from.byte()?, from.byte()?);
    let (attempt, version) = (from.small()?, from.small()?);
    let (created_at, ready_at, run_at) = (time(from)?, time(from)?, time(from)?);
    let set = |bit: u8| flags & (1 << bit) != 0;
    Ok((
        number,
        LiveTask {
            lane: LaneIx::NONE,
            status,
            retrying: set(0),
            held: set(1),
            keyed: set(2),
            unique: set(3),
            overlaid: set(4),
            timeouts,
            retries,
            crashes,
            attempt,
            version,
            created_at,
            ready_at,
            run_at,
        },
    ))
}

fn lease(
    from: &mut Decoder<'_>,
    time: impl Fn(&mut Decoder<'_>) -> Result<Timestamp, Damaged>,
) -> Result<InLane<Lease>, Damaged> {
    let worker = worker(from)?;
    let claim = from.number()?;
    let claim_row = claim.checked_sub(from.number()?).ok_or(Damaged)?;
    let event_no = from.number()?;
    let number = from.number()?;
    let slots = from.small()?;
    let flags = from.byte()?;
    let (created_at, claimed_at, expires_at, deadline) = (time(from)?, time(from)?, time(from)?, time(from)?);
    Ok((
        number,
        Lease {
            worker,
            claim: ClaimNo(claim),
            claim_row,
            event_no,
            lane: LaneIx::NONE,
            slots,
            keyed: flags & 1 != 0,
            created_at,
            claimed_at,
            expires_at,
            deadline,
            revoked: flags & 2 != 0,
            told: flags & 4 != 0,
        },
    ))
}

fn worker(from: &mut Decoder<'_>) -> Result<WorkerId, Damaged> {
    Ok(WorkerId::from_uuid(Uuid::from_bytes(from.array()?)))
}

fn beat(from: &mut Decoder<'_>) -> Result<Beat, Damaged> {
    let seen_at = Timestamp::from_micros(from.signed()?);
    let flags = from.byte()?;
    let health = from.optional(|from| {
        Ok(Health { memory_percent: from.optional(Decoder::float)?, cpu_percent: from.optional(Decoder::float)? })
    })?;
    let last_good = from.optional(Decoder::number)?.map(ClaimNo);
    let (completed, failed) = (from.number()?, from.number()?);
    Ok(Beat { seen_at, unhealthy: flags & 1 != 0, says_draining: flags & 2 != 0, health, last_good, completed, failed })
}
