//! Which priority is served next: the claim policies as pure functions over lane heads.
//!
//! Inside a priority the order is always first in, first out, so a policy only has to say
//! which priority is next. It sees when the oldest eligible task of every priority became
//! ready and nothing else; nothing about a waiting task is ever rewritten.

use serde::{Deserialize, Serialize};

use crate::priority::Priority;
use crate::time::Timestamp;

/// How a queue orders its priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// By priority, with a guaranteed share for what waited too long.
    #[default]
    Aging,
    /// By priority only.
    Strict,
    /// By weight between bands of priorities, by priority inside a band.
    Weighted,
    /// By weight between tenants, as `aging` inside a tenant.
    Fair,
}

/// Bands of priorities that the weights of a queue are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// 7 to 9.
    High,
    /// 4 to 6.
    Medium,
    /// 0 to 3.
    Low,
}

impl Band {
    /// All bands, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Medium, Self::Low];

    /// The band of a priority.
    pub fn of(priority: Priority) -> Self {
        match priority.level() {
            7.. => Self::High,
            4..=6 => Self::Medium,
            _ => Self::Low,
        }
    }

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Weights of the bands unless set.
pub const DEFAULT_WEIGHTS: [u32; 3] = [70, 20, 10];

/// How far one claim moves a tenant of this weight back behind the others: the smaller the
/// weight, the further.
pub fn stride(weight: u32) -> u64 {
    1_000_000 / u64::from(weight.max(1))
}

/// For every priority, when its oldest eligible task became ready.
pub type Heads = [Option<Timestamp>; Priority::LEVELS];

/// Seconds that a task of each priority (index = level) must wait to count as `high`.
pub const DEFAULT_OFFSETS: [i64; Priority::LEVELS] = [3000, 2400, 2100, 1800, 1500, 1200, 600, 0, -600, -1200];

/// The share of claims that overdue work gets while higher-priority work waits.
pub const DEFAULT_OVERDUE_SHARE: f64 = 0.25;

/// A queue's policy with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Which one.
    pub kind: PolicyKind,
    /// Offsets in seconds by level; never smaller for a lower priority.
    pub offsets: [i64; Priority::LEVELS],
    /// From 0 to 1.
    pub overdue_share: f64,
    /// Of the bands, in the order of [`Band::ALL`]; never zero.
    pub weights: [u32; 3],
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            kind: PolicyKind::default(),
            offsets: DEFAULT_OFFSETS,
            overdue_share: DEFAULT_OVERDUE_SHARE,
            weights: DEFAULT_WEIGHTS,
        }
    }
}

/// Whose turn it is in a queue, or in a tenant of a fair one. It only moves while claims are
/// contested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// How much of a turn the overdue work has saved up.
    saved: f64,
    /// How far each band is ahead of its share or behind it.
    credits: [i64; 3],
}

/// The priority to take the next task from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Take the oldest eligible task of this priority.
    pub priority: Priority,
    /// Set if it goes before this higher priority by the overdue share.
    pub ahead_of: Option<Priority>,
}

impl Policy {
    /// Which priority is served next, if anything waits. Moves the turn.
    pub fn choose(&self, heads: &Heads, turn: &mut Turn, now: Timestamp) -> Option<Choice> {
        if self.kind == PolicyKind::Weighted {
            return self.choose_band(heads, turn);
        }
        let best = Priority::descending().find(|priority| heads[priority.index()].is_some())?;
        if let Some(overdue) = self.most_overdue(heads, best, now) {
            turn.saved += self.overdue_share;
            if turn.saved >= 1.0 {
                turn.saved -= 1.0;
                return Some(Choice { priority: overdue, ahead_of: Some(best) });
            }
        }
        Some(Choice { priority: best, ahead_of: None })
    }

    /// Smooth weighted round robin: every band with work gains its weight, the one with the
    /// most pays for all. A band without work gives its turn away and saves nothing up.
    fn choose_band(&self, heads: &Heads, turn: &mut Turn) -> Option<Choice> {
        let mut best: [Option<Priority>; 3] = [None; 3];
        for priority in Priority::descending().filter(|priority| heads[priority.index()].is_some()) {
            best[Band::of(priority) as usize].get_or_insert(priority);
        }
        let mut total = 0;
        for (band, waiting) in best.iter().enumerate() {
            let weight = i64::from(self.weights[band]);
            if waiting.is_some() {
                turn.credits[band] += weight;
                total += weight;
            } else {
                turn.credits[band] = 0;
            }
        }
        // Of equals the most urgent band goes first.
        let band = (0..best.len()).filter(|band| best[*band].is_some()).rev().max_by_key(|band| turn.credits[*band])?;
        turn.credits[band] -= total;
        best[band].map(|priority| Choice { priority, ahead_of: None })
    }

    /// The priority below `best` whose oldest task is overdue towards it the most.
    fn most_overdue(&self, heads: &Heads, best: Priority, now: Timestamp) -> Option<Priority> {
        match self.kind {
            PolicyKind::Strict | PolicyKind::Weighted => None,
            PolicyKind::Aging | PolicyKind::Fair => Priority::descending()
                .filter(|priority| *priority < best)
                .filter_map(|priority| heads[priority.index()].map(|ready_at| (priority, ready_at)))
                .filter(|(priority, ready_at)| self.is_overdue(*priority, *ready_at, best, now))
                .min_by_key(|(priority, ready_at)| ready_at.as_micros() + self.offset_micros(*priority))
                .map(|(priority, _)| priority),
        }
    }

    /// Whether a task of `priority` has waited long enough to count as `target`.
    fn is_overdue(&self, priority: Priority, ready_at: Timestamp, target: Priority, now: Timestamp) -> bool {
        let bound = self.offset_micros(priority) - self.offset_micros(target);
        now.as_micros() - ready_at.as_micros() >= bound
    }

    /// The best named priority that a waiting task counts as, `high` at most, else its own.
    pub fn effective_priority(&self, priority: Priority, ready_at: Timestamp, now: Timestamp) -> Priority {
        if matches!(self.kind, PolicyKind::Strict | PolicyKind::Weighted) {
            return priority;
        }
        [Priority::HIGH, Priority::MEDIUM, Priority::LOW, Priority::BULK]
            .into_iter()
            .take_while(|target| *target > priority)
            .find(|target| self.is_overdue(priority, ready_at, *target, now))
            .unwrap_or(priority)
    }

    fn offset_micros(&self, priority: Priority) -> i64 {
        self.offsets[priority.index()].saturating_mul(1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const START: Timestamp = Timestamp::EPOCH;

    fn at(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn heads(waiting: &[(Priority, Timestamp)]) -> Heads {
        let mut heads = Heads::default();
        for (priority, ready_at) in waiting {
            heads[priority.index()] = Some(*ready_at);
        }
        heads
    }

    #[test]
    fn nothing_waits_nothing_chosen() {
        assert_eq!(Policy::default().choose(&Heads::default(), &mut Turn::default(), at(1)), None);
    }

    #[test]
    fn fresh_work_goes_by_priority_only() {
        let waiting = heads(&[(Priority::HIGH, at(100)), (Priority::LOW, at(0))]);
        let mut turn = Turn::default();
        for _ in 0..20 {
            let choice = Policy::default().choose(&waiting, &mut turn, at(1799));
            assert_eq!(choice, Some(Choice { priority: Priority::HIGH, ahead_of: None }));
        }
    }

    #[test]
    fn overdue_work_gets_one_claim_in_four_and_strict_none() {
        let waiting = heads(&[(Priority::HIGH, at(1800)), (Priority::MEDIUM, at(700)), (Priority::LOW, at(0))]);
        let mut turn = Turn::default();
        let choices: Vec<Choice> =
            (0..8).filter_map(|_| Policy::default().choose(&waiting, &mut turn, at(1800))).collect();
        let overdue: Vec<usize> =
            choices.iter().enumerate().filter(|(_, choice)| choice.priority == Priority::LOW).map(|(i, _)| i).collect();
        assert_eq!(overdue, [3, 7]);
        assert_eq!(choices[3].ahead_of, Some(Priority::HIGH));
        let strict = Policy { kind: PolicyKind::Strict, ..Policy::default() };
        for _ in 0..20 {
            assert_eq!(strict.choose(&waiting, &mut turn, at(1800)).map(|c| c.priority), Some(Priority::HIGH));
        }
    }

    #[test]
    fn the_most_overdue_is_the_smallest_ready_at_plus_offset() {
        // medium: 500 + 1200 = 1700; low: 0 + 1800 = 1800. Both overdue towards high at 2000.
        let waiting = heads(&[(Priority::HIGH, at(2000)), (Priority::MEDIUM, at(500)), (Priority::LOW, at(0))]);
        let mut turn = Turn { saved: 0.75, ..Turn::default() };
        let choice = Policy::default().choose(&waiting, &mut turn, at(2000));
        assert_eq!(choice.map(|choice| choice.priority), Some(Priority::MEDIUM));
    }

    #[test]
    fn effective_priority_steps_up_to_high() {
        let policy = Policy::default();
        let of = |priority, waited| policy.effective_priority(priority, at(0), at(waited)).to_string();
        assert_eq!(of(Priority::LOW, 599), "low");
        assert_eq!(of(Priority::LOW, 600), "medium");
        assert_eq!(of(Priority::LOW, 1800), "high");
        assert_eq!(of(Priority::MEDIUM, 1200), "high");
        assert_eq!(of(Priority::CRITICAL, 100_000), "critical");
        assert_eq!(of(Priority::BULK, 100_000), "high");
    }

    proptest! {
        /// Over any run of claims in which the same bands have work, each gets its share to
        /// within one claim, and none waits longer than its weight says.
        #[test]
        fn weights_hold_over_any_window(weights in proptest::array::uniform3(1u32..=100), waiting in proptest::array::uniform3(any::<bool>()), skip in 0usize..50) {
            let policy = Policy { kind: PolicyKind::Weighted, weights, ..Policy::default() };
            let mut heads = Heads::default();
            for (band, has_work) in waiting.iter().enumerate() {
                let priority = [Priority::HIGH, Priority::MEDIUM, Priority::LOW][band];
                heads[priority.index()] = has_work.then(|| at(0));
            }
            let total: u32 = (0..3).filter(|band| waiting[*band]).map(|band| weights[band]).sum();
            prop_assume!(total > 0);
            let mut turn = Turn::default();
            for _ in 0..skip {
                policy.choose(&heads, &mut turn, at(1));
            }
            let mut served = [0u32; 3];
            for _ in 0..total {
                let choice = policy.choose(&heads, &mut turn, at(1)).expect("something waits");
                served[Band::of(choice.priority) as usize] += 1;
            }
            for band in 0..3 {
                let share = if waiting[band] { weights[band] } else { 0 };
                prop_assert_eq!(served[band], share, "a whole round is exact whenever it begins");
            }
        }

        /// A band that had no work for a while gets no more than its share afterwards.
        #[test]
        fn idle_bands_save_nothing_up(idle in 1usize..500) {
            let policy = Policy { kind: PolicyKind::Weighted, ..Policy::default() };
            let mut turn = Turn::default();
            let low_only = heads(&[(Priority::LOW, at(0))]);
            for _ in 0..idle {
                policy.choose(&low_only, &mut turn, at(1));
            }
            let both = heads(&[(Priority::LOW, at(0)), (Priority::CRITICAL, at(0))]);
            let low = (0..80).filter(|_| policy.choose(&both, &mut turn, at(1)).map(|c| c.priority) == Some(Priority::LOW)).count();
            prop_assert_eq!(low, 10);
        }

        /// Over any run of contested claims the overdue share is kept to within one claim,
        /// and what goes by priority is always the best that waits.
        #[test]
        fn shares_hold_over_any_window(share in 0.0..=1.0f64, claims in 1usize..400, ready in proptest::collection::vec(proptest::option::of(0u64..5_000), 10)) {
            let policy = Policy { overdue_share: share, ..Policy::default() };
            let mut waiting = Heads::default();
            for (level, seconds) in ready.iter().enumerate() {
                waiting[level] = seconds.map(at);
            }
            let now = at(10_000);
            let mut turn = Turn::default();
            let mut promoted = 0usize;
            let best = Priority::descending().find(|priority| waiting[priority.index()].is_some());
            for _ in 0..claims {
                let choice = policy.choose(&waiting, &mut turn, now);
                match choice {
                    Some(Choice { ahead_of: Some(_), .. }) => promoted += 1,
                    Some(Choice { priority, ahead_of: None }) => prop_assert_eq!(Some(priority), best),
                    None => prop_assert_eq!(best, None),
                }
            }
            prop_assert!(promoted as f64 <= share * claims as f64 + 1e-6);
            let contested = waiting.iter().flatten().count() > 1;
            if contested {
                prop_assert!(promoted as f64 >= (share * claims as f64).floor() - 1.0);
            }
        }
    }
}
