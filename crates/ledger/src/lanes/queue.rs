//! One queue: the heads of its lanes, and whose turn it is. A queue that is fair between
//! tenants has a group of lanes per tenant, any other queue has one group.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use windlass_core::ids::TaskKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{CapabilitySet, QueueName, Text};
use windlass_core::policy::{Policy, PolicyKind, Turn, stride};
use windlass_core::priority::Priority;
use windlass_core::settings::{QueueSettings, Settings};
use windlass_core::time::Timestamp;

use crate::slab::Slab;

use super::gate::Gate;
use super::{LaneIx, Standing, TypeIx};

/// The first task of a lane.
pub(super) type Head = (Timestamp, TaskKey, LaneIx);

/// Heads of lanes with the same required capabilities, by priority.
pub(super) type HeadSets = [BTreeSet<Head>; Priority::LEVELS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupIx(u32);

/// Lanes of one tenant, or of all.
#[derive(Debug, Default)]
pub(super) struct Group {
    tenant: Option<Text>,
    pub(super) turn: Turn,
    /// How far it has been served, by weight: the smallest is next.
    pass: u64,
    pub(super) heads: HashMap<CapabilitySet, HeadSets>,
    pub(super) by_type: HashMap<TypeIx, Vec<LaneIx>>,
    lanes: u32,
    ready_lanes: u32,
}

/// Whose turn it is among the lanes of a queue, or of one tenant of a fair one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TurnOf {
    pub(super) queue: QueueName,
    pub(super) tenant: Option<Text>,
    pub(super) turn: Turn,
    /// How far the tenant was served.
    pub(super) pass: u64,
    /// How far the queue was.
    pub(super) served_until: u64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) policy: Policy,
    pub(super) gate: Gate,
    /// Types that have lanes here, with how many.
    pub(super) types: BTreeMap<TypeIx, u32>,
    groups: Slab<Group>,
    by_tenant: HashMap<Option<Text>, GroupIx>,
    /// Groups with heads, by how far they have been served.
    order: BTreeSet<(u64, GroupIx)>,
    served_until: u64,
    /// Tenants without lanes that are further than the others: leaving the line and coming
    /// back gains nothing.
    ahead: HashMap<Option<Text>, u64>,
    tenant_weights: BTreeMap<String, u32>,
    pub(super) lanes: u32,
    pub(super) ready: [u64; Priority::LEVELS],
    pub(super) waiting: [u64; Priority::LEVELS],
    pub(super) running: [u64; Priority::LEVELS],
}

/// Tenants whose place is remembered though they have no lanes.
const REMEMBERED_TENANTS: usize = 10_000;

impl Queue {
    pub(super) fn new(name: QueueName, settings: &Settings) -> Self {
        let mut queue = Self {
            policy: Policy::default(),
            gate: Gate::default(),
            types: BTreeMap::new(),
            groups: Slab::default(),
            by_tenant: HashMap::new(),
            order: BTreeSet::new(),
            served_until: 0,
            ahead: HashMap::new(),
            tenant_weights: BTreeMap::new(),
            lanes: 0,
            ready: [0; Priority::LEVELS],
            waiting: [0; Priority::LEVELS],
            running: [0; Priority::LEVELS],
            name,
        };
        queue.adopt(settings);
        queue
    }

    /// Takes on the policy of changed settings.
    pub(super) fn adopt(&mut self, settings: &Settings) {
        self.policy = settings.claim_policy(&self.name);
        let weights =
            settings.queues.get(&self.name).and_then(|of_queue: &QueueSettings| of_queue.tenant_weights.clone());
        self.tenant_weights = weights.unwrap_or_default();
    }

    pub(super) fn is_fair(&self) -> bool {
        self.policy.kind == PolicyKind::Fair
    }

    pub(super) fn group(&self, ix: GroupIx) -> &Group {
        &self.groups[ix.0]
    }

    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Groups that have heads, in the order of their turns.
    pub(super) fn groups_in_turn(&self) -> impl Iterator<Item = (GroupIx, &Group)> {
        self.order.iter().map(|(_, ix)| (*ix, self.group(*ix)))
    }

    /// The group of a tenant, made if there is none. It vanishes with its last lane.
    pub(super) fn open_group(&mut self, tenant: Option<&Text>) -> GroupIx {
        let tenant = tenant.cloned();
        if let Some(ix) = self.by_tenant.get(&tenant) {
            return *ix;
        }
        let pass = self.ahead.remove(&tenant).unwrap_or(0).max(self.served_until);
        let ix = GroupIx(self.groups.insert(Group { tenant: tenant.clone(), pass, ..Group::default() }));
        self.by_tenant.insert(tenant, ix);
        ix
    }

    pub(super) fn add_lane(&mut self, group: GroupIx, lane: LaneIx, task_type: TypeIx) {
        let group = &mut self.groups[group.0];
        group.lanes += 1;
        group.by_type.entry(task_type).or_default().push(lane);
        self.lanes += 1;
        *self.types.entry(task_type).or_default() += 1;
    }

    pub(super) fn remove_lane(&mut self, group_ix: GroupIx, lane: LaneIx, task_type: TypeIx) {
        self.lanes -= 1;
        if let Some(lanes) = self.types.get_mut(&task_type) {
            *lanes -= 1;
            if *lanes == 0 {
                self.types.remove(&task_type);
            }
        }
        let served_until = self.served_until;
        let group = &mut self.groups[group_ix.0];
        group.lanes -= 1;
        if let Some(lanes) = group.by_type.get_mut(&task_type) {
            lanes.retain(|other| *other != lane);
            if lanes.is_empty() {
                group.by_type.remove(&task_type);
            }
        }
        if group.lanes == 0 {
            let (tenant, pass) = (group.tenant.clone(), group.pass);
            self.groups.remove(group_ix.0);
            self.by_tenant.remove(&tenant);
            if pass > served_until {
                if self.ahead.len() >= REMEMBERED_TENANTS {
                    self.ahead.retain(|_, pass| *pass > served_until);
                    // Where everybody comes once, all are ahead for ever. Forgetting them gives each at most one turn.
                    if self.ahead.len() >= REMEMBERED_TENANTS / 2 {
                        self.ahead.clear();
                    }
                }
                self.ahead.insert(tenant, pass);
            }
        }
    }

    pub(super) fn count(&mut self, standing: Standing, priority: Priority, delta: i64) {
        let counter = match standing {
            Standing::Ready(_) | Standing::Held(_) => &mut self.ready[priority.index()],
            Standing::Waiting => &mut self.waiting[priority.index()],
            Standing::Running => &mut self.running[priority.index()],
        };
        *counter = counter.saturating_add_signed(delta);
    }

    /// Forgets all heads; the lanes put theirs in again.
    pub(super) fn clear_heads(&mut self) {
        self.order.clear();
        for group in self.groups.values_mut() {
            group.heads.clear();
            group.ready_lanes = 0;
        }
    }

    /// Keeps the set of heads in step with one lane.
    pub(super) fn move_head(&mut self, group_ix: GroupIx, key: &LaneKey, old: Option<Head>, new: Option<Head>) {
        if old == new {
            return;
        }
        let group = &mut self.groups[group_ix.0];
        if !group.heads.contains_key(&key.capabilities) {
            group.heads.insert(key.capabilities.clone(), HeadSets::default());
        }
        let Some(sets) = group.heads.get_mut(&key.capabilities) else { return };
        let heads = &mut sets[key.priority.index()];
        let had_heads = group.ready_lanes > 0;
        if old.is_some_and(|head| heads.remove(&head)) {
            group.ready_lanes -= 1;
        }
        if let Some(head) = new
            && heads.insert(head)
        {
            group.ready_lanes += 1;
        }
        if new.is_none() && sets.iter().all(BTreeSet::is_empty) {
            group.heads.remove(&key.capabilities);
        }
        let has_heads = group.ready_lanes > 0;
        if has_heads != had_heads {
            if has_heads {
                // Whoever had nothing waiting saved nothing up.
                group.pass = group.pass.max(self.served_until);
                self.order.insert((group.pass, group_ix));
            } else {
                self.order.remove(&(group.pass, group_ix));
            }
        }
    }

    /// Whose turn it is in a group, if there is such a group.
    pub(super) fn turn_of(&self, ix: GroupIx) -> Option<TurnOf> {
        let group = self.groups.get(ix.0)?;
        Some(TurnOf {
            queue: self.name.clone(),
            tenant: group.tenant.clone(),
            turn: group.turn,
            pass: group.pass,
            served_until: self.served_until,
        })
    }

    /// Sets what [`Queue::turn_of`] told.
    pub(super) fn set_turn(&mut self, told: &TurnOf) {
        self.served_until = told.served_until;
        let Some(ix) = self.by_tenant.get(&told.tenant).copied() else { return };
        let Some(group) = self.groups.get_mut(ix.0) else { return };
        group.turn = told.turn;
        let was_in_line = self.order.remove(&(group.pass, ix));
        group.pass = told.pass;
        if was_in_line {
            self.order.insert((told.pass, ix));
        }
    }

    /// A group had its turn.
    pub(super) fn advance(&mut self, group_ix: GroupIx, turn: Turn) {
        let fair = self.is_fair();
        let group = &mut self.groups[group_ix.0];
        group.turn = turn;
        if !fair {
            return;
        }
        let weight = group.tenant.as_ref().and_then(|tenant| self.tenant_weights.get(tenant.as_str()).copied());
        let was_in_line = self.order.remove(&(group.pass, group_ix));
        self.served_until = self.served_until.max(group.pass);
        group.pass += stride(weight.unwrap_or(1));
        if was_in_line {
            self.order.insert((group.pass, group_ix));
        }
    }

    pub(super) fn has_heads(&self) -> bool {
        !self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::policy::Turn;

    use super::*;

    #[test]
    fn tenants_that_come_once_are_not_remembered_for_ever() {
        let settings: QueueSettings = serde_json::from_str(r#"{"policy":"fair"}"#).expect("settings");
        let name = QueueName::new("q").expect("a name");
        let settings = Settings { queues: [(name.clone(), settings)].into(), ..Settings::default() };
        let mut queue = Queue::new(name, &settings);
        for n in 0..5 * REMEMBERED_TENANTS as u32 {
            let tenant = Text::new(&format!("t{n}")).expect("a text");
            let group = queue.open_group(Some(&tenant));
            queue.add_lane(group, LaneIx(n), TypeIx(0));
            queue.advance(group, Turn::default());
            queue.remove_lane(group, LaneIx(n), TypeIx(0));
            assert!(queue.ahead.len() <= REMEMBERED_TENANTS, "after {n} tenants");
        }
    }
}
