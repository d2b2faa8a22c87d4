//! The slots of a lane, and the tasks that were claimed ahead of them.
//!
//! Where handlers take a moment only, asking for one task per free slot means that most of the time goes by with asking.
//! So a lane whose handlers are quick claims a little ahead: never more than what its slots should work off within
//! [`AHEAD_SPAN`]. Where that expectation fails, what waits here is given back, so that a task is never kept from idle
//! workers elsewhere. Nobody loses anything by either: a task that was given back has its old place and all its attempts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::context::Attempt;

/// How long a task should wait here, at most.
const AHEAD_SPAN: Duration = Duration::from_millis(20);
/// How long it may.
const AHEAD_STALE: Duration = Duration::from_millis(500);
/// Tasks claimed ahead, however quick the handlers are.
const AHEAD_MAX: usize = 450;
/// Handlers that must have been seen before their pace is believed.
const SEEN_ENOUGH: u32 = 16;
/// How much the latest handler counts in the average.
const SMOOTHING: f64 = 0.1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Tasks that run, wait here, or were asked for.
    taken: usize,
    running: usize,
    ahead: VecDeque<(Instant, Arc<Attempt>)>,
    /// Seconds that a handler takes, on average.
    pace: f64,
    seen: u32,
}

impl Slots {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all the room there is, to ask tasks for it.
    pub(crate) fn reserve(&self) -> usize {
        let mut inner = self.lock();
        let room = (self.capacity + inner.room_ahead(self.capacity)).saturating_sub(inner.taken);
        inner.taken += room;
        room
    }

    /// Room that no task came for, or whose task left.
    pub(crate) fn give_back(&self, count: usize) {
        let mut inner = self.lock();
        inner.taken = inner.taken.saturating_sub(count);
    }

    /// A task arrived: it comes back if it may run at once, and waits otherwise.
    pub(crate) fn admit(&self, attempt: Arc<Attempt>, now: Instant) -> Option<Arc<Attempt>> {
        let mut inner = self.lock();
        if inner.running < self.capacity {
            inner.running += 1;
            return Some(attempt);
        }
        inner.ahead.push_back((now, attempt));
        None
    }

    /// A handler ended; its slot goes to whoever waits.
    pub(crate) fn ended(&self, took: Duration) -> Option<Arc<Attempt>> {
        let mut inner = self.lock();
        inner.taken = inner.taken.saturating_sub(1);
        let weight = if inner.seen == 0 { 1.0 } else { SMOOTHING };
        inner.pace += (took.as_secs_f64() - inner.pace) * weight;
        inner.seen = inner.seen.saturating_add(1);
        let next = inner.ahead.pop_front().map(|(_, attempt)| attempt);
        if next.is_none() {
            inner.running -= 1;
        }
        next
    }

    /// Takes out who has waited too long, and believes no more in the pace that let them in.
    pub(crate) fn take_stale(&self, now: Instant) -> Vec<Arc<Attempt>> {
        let mut inner = self.lock();
        if inner.ahead.front().is_none_or(|(since, _)| *since + AHEAD_STALE > now) {
            return Vec::new();
        }
        (inner.pace, inner.seen) = (0.0, 0);
        inner.take_ahead()
    }

    /// Takes everybody out who waits.
    pub(crate) fn take_ahead(&self) -> Vec<Arc<Attempt>> {
        self.lock().take_ahead()
    }

    /// When somebody will have waited too long.
    pub(crate) fn stale_at(&self) -> Option<Instant> {
        self.lock().ahead.front().map(|(since, _)| *since + AHEAD_STALE)
    }

    /// Whether no task could be taken now.
    pub(crate) fn are_full(&self) -> bool {
        let inner = self.lock();
        inner.taken >= self.capacity + inner.room_ahead(self.capacity)
    }
}

impl Inner {
    /// How many tasks may wait here.
    fn room_ahead(&self, capacity: usize) -> usize {
        const SHORTEST: f64 = 1e-6;
        let span = AHEAD_SPAN.as_secs_f64();
        if self.seen < SEEN_ENOUGH || self.pace > span {
            return 0;
        }
        ((capacity as f64 * span / self.pace.max(SHORTEST)) as usize).min(AHEAD_MAX)
    }

    fn take_ahead(&mut self) -> Vec<Arc<Attempt>> {
        self.taken = self.taken.saturating_sub(self.ahead.len());
        self.ahead.drain(..).map(|(_, attempt)| attempt).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::Breakers;
    use crate::context::States;
    use crate::stop::StopToken;
    use crate::worker::link::Link;

    fn attempt() -> Arc<Attempt> {
        let task = serde_json::json!({
            "task_id": "t", "task_type": "t", "parameters": null, "queue": "q", "attempt": 1, "max_retries": 0,
            "timeout_seconds": 1, "lease_token": "l", "trace_id": null, "traceparent": null, "created_at": "",
            "idempotency_key": null, "crash_count": 0,
        });
        let task = serde_json::from_str(&task.to_string()).expect("a task");
        let (states, breakers) = (Arc::new(States::default()), Arc::new(Breakers::default()));
        Arc::new(Attempt::new(task, Link::Alone, StopToken::default(), states, breakers))
    }

    #[tokio::test]
    async fn quick_handlers_have_tasks_claimed_ahead_and_slow_ones_do_not() {
        let slots = Slots::new(2);
        assert_eq!(slots.reserve(), 2, "nothing ahead before the pace is known");
        let now = Instant::now();
        assert!(slots.admit(attempt(), now).is_some() && slots.admit(attempt(), now).is_some());
        assert!(slots.are_full());
        for _ in 0..40 {
            slots.lock().taken += 1;
            assert!(slots.admit(attempt(), now).is_none(), "both slots are taken");
            assert!(slots.ended(Duration::from_millis(1)).is_some(), "the next one has the slot");
        }
        let room = slots.reserve();
        assert!((38..=42).contains(&room), "2 slots work off about 40 tasks of 1 ms in 20 ms: {room}");
        slots.give_back(room);
        for _ in 0..40 {
            slots.lock().taken += 1;
            slots.admit(attempt(), now);
            slots.ended(Duration::from_millis(100));
        }
        assert_eq!(slots.reserve(), 0);
    }

    #[tokio::test]
    async fn who_waits_too_long_is_given_back() {
        let slots = Slots::new(1);
        let now = Instant::now();
        slots.lock().taken = 3;
        assert!(slots.admit(attempt(), now).is_some());
        assert!(slots.admit(attempt(), now).is_none() && slots.admit(attempt(), now).is_none());
        assert_eq!(slots.take_stale(now + AHEAD_STALE / 2).len(), 0);
        assert_eq!(slots.take_stale(now + AHEAD_STALE).len(), 2);
        assert!(slots.ended(Duration::ZERO).is_none());
        assert_eq!(slots.reserve(), 1, "all room is there again");
    }
}
