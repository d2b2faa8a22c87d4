//! A breaker for what handlers depend on: while it is open, calls fail fast and their tasks wait without using up an
//! attempt.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::random;
use crate::task_error::{IntoTaskError, TaskError, TaskResult};

/// Calls that are remembered at most.
const REMEMBERED: usize = 1_000;
/// Breakers that a worker has at most; beyond that names were made up as they went.
const BREAKERS: usize = 1_000;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// It does not open before this many calls within the window.
    pub min_calls: usize,
    /// It opens when this share of them failed.
    pub failure_ratio: f64,
    /// How long calls are remembered.
    pub window: Duration,
    /// After this time one call is let through as a trial.
    pub recovery: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { min_calls: 10, failure_ratio: 0.5, window: Duration::from_mins(1), recovery: Duration::from_secs(30) }
    }
}

#[derive(Debug)]
enum State {
    Closed,
    Open {
        until: Instant,
    },
    /// One call is on its way; the others wait for what it finds.
    Trial {
        since: Instant,
    },
}

#[derive(Debug)]
struct Inner {
    settings: BreakerSettings,
    state: State,
    /// When, and whether it failed.
    calls: VecDeque<(Instant, bool)>,
}

/// The breaker of one dependency, shared by all handlers of a worker.
#[derive(Clone, Debug)]
pub struct Breaker {
    name: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

impl Breaker {
    fn new(name: &str, settings: BreakerSettings) -> Self {
        let inner = Inner { settings, state: State::Closed, calls: VecDeque::new() };
        Self { name: name.into(), inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls fail fast now.
    pub fn is_open(&self) -> bool {
        !matches!(self.lock().state, State::Closed)
    }

    /// Calls the dependency. Errors that [permit a retry](TaskError::retry) count against it, others do not. While the breaker is open nothing is called and the task is put off until the next trial,
    /// which uses up no attempt.
    pub async fn call<T, E, F>(&self, call: impl FnOnce() -> F) -> TaskResult<T>
    where
        F: Future<Output = Result<T, E>>,
        E: IntoTaskError,
    {
        match self.admit(Instant::now()) {
            Ok(permit) => permit.watch(call()).await,
            Err(wait) => Err(TaskError::snooze(wait)),
        }
    }

    /// Calls the dependency, or the fallback while the breaker is open.
    pub async fn call_or<T, E, F, G>(&self, call: impl FnOnce() -> F, fallback: impl FnOnce() -> G) -> TaskResult<T>
    where
        F: Future<Output = Result<T, E>>,
        G: Future<Output = Result<T, E>>,
        E: IntoTaskError,
    {
        match self.admit(Instant::now()) {
            Ok(permit) => permit.watch(call()).await,
            Err(_) => fallback().await.map_err(IntoTaskError::into_task_error),
        }
    }

    /// Lets a call through, or says how long to wait.
    fn admit(&self, now: Instant) -> Result<Permit<'_>, Duration> {
        let mut inner = self.lock();
        let recovery = inner.settings.recovery;
        let wait = match inner.state {
            State::Closed => return Ok(Permit { breaker: self, is_trial: false, is_settled: false }),
            State::Open { until } => until.saturating_duration_since(now),
            // A trial that never came back (its handler was dropped) must not keep the breaker open for ever.
            State::Trial { since } => (since + recovery).saturating_duration_since(now),
        };
        if wait.is_zero() {
            inner.state = State::Trial { since: now };
            return Ok(Permit { breaker: self, is_trial: true, is_settled: false });
        }
        // Spread out, so that not everything comes back for the first trial.
        Err(wait.max(Duration::from_millis(100)).mul_f64(1.0 + random::fraction() / 2.0))
    }

    fn settle(&self, is_trial: bool, failed: bool, now: Instant) {
        let mut inner = self.lock();
        let settings = inner.settings;
        match inner.state {
            // A call that began before it opened says nothing about how things are now.
            State::Trial { .. } if !is_trial => {}
            State::Trial { .. } if failed => inner.state = State::Open { until: now + settings.recovery },
            State::Trial { .. } => {
                tracing::info!(breaker = &*self.name, "the breaker closes: a trial call succeeded");
                inner.state = State::Closed;
                inner.calls.clear();
            }
            State::Open { .. } => {}
            State::Closed => {
                inner.calls.push_back((now, failed));
                while inner.calls.len() > REMEMBERED
                    || inner.calls.front().is_some_and(|(at, _)| *at + settings.window < now)
                {
                    inner.calls.pop_front();
                }
                let failures = inner.calls.iter().filter(|(_, failed)| *failed).count();
                let share = failures as f64 / inner.calls.len() as f64;
                if failed && inner.calls.len() >= settings.min_calls && share >= settings.failure_ratio {
                    tracing::warn!(breaker = &*self.name, failures, calls = inner.calls.len(), "the breaker opens");
                    inner.state = State::Open { until: now + settings.recovery };
                    inner.calls.clear();
                }
            }
        }
    }
}

/// A call that was let through. Dropped unsettled (its handler was stopped) it says nothing.
struct Permit<'a> {
    breaker: &'a Breaker,
    is_trial: bool,
    is_settled: bool,
}

impl Permit<'_> {
    async fn watch<T, E: IntoTaskError>(mut self, call: impl Future<Output = Result<T, E>>) -> TaskResult<T> {
        let outcome = call.await.map_err(IntoTaskError::into_task_error);
        // That a customer does not exist is an answer; only trouble that may pass speaks against the dependency.
        let failed = outcome.as_ref().is_err_and(TaskError::is_trouble);
        self.is_settled = true;
        self.breaker.settle(self.is_trial, failed, Instant::now());
        outcome
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let mut inner = self.breaker.lock();
        if self.is_trial && matches!(inner.state, State::Trial { .. }) {
            // The trial told nothing; the next call is the next trial.
            inner.state = State::Open { until: Instant::now() };
        }
    }
}

/// The breakers of a worker, by name.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    settings: HashMap<String, BreakerSettings>,
    breakers: Mutex<HashMap<String, Breaker>>,
}

impl Breakers {
    pub(crate) fn set(&mut self, name: String, settings: BreakerSettings) {
        self.settings.insert(name, settings);
    }

    pub(crate) fn get(&self, name: &str) -> Breaker {
        let mut breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(breaker) = breakers.get(name) {
            return breaker.clone();
        }
        if breakers.len() >= BREAKERS {
            tracing::error!(BREAKERS, "too many breakers: name them by dependency, not by task");
            breakers.clear();
        }
        let settings = self.settings.get(name).copied().unwrap_or_default();
        breakers.entry(name.to_owned()).or_insert_with(|| Breaker::new(name, settings)).clone()
    }

    /// Name and whether it is open.
    pub(crate) fn states(&self) -> Vec<(String, bool)> {
        let breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        breakers.iter().map(|(name, breaker)| (name.clone(), breaker.is_open())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        let settings = BreakerSettings { min_calls: 4, ..BreakerSettings::default() };
        Breaker::new("payments", settings)
    }

    fn outcome(breaker: &Breaker, failed: bool, now: Instant) {
        let mut permit = breaker.admit(now).expect("let through");
        permit.is_settled = true;
        breaker.settle(permit.is_trial, failed, now);
    }

    #[tokio::test]
    async fn it_opens_tries_once_and_closes() {
        let breaker = breaker();
        let start = Instant::now();
        for failed in [false, true, false] {
            outcome(&breaker, failed, start);
        }
        assert!(!breaker.is_open(), "too few calls");
        outcome(&breaker, true, start);
        assert!(breaker.is_open());
        let wait = breaker.admit(start).err().expect("refused");
        assert!((30.0..=45.0).contains(&wait.as_secs_f64()), "{wait:?}");

        let later = start + Duration::from_secs(31);
        let mut trial = breaker.admit(later).expect("a trial");
        assert!(breaker.admit(later).is_err(), "one trial at a time");
        breaker.settle(false, false, later);
        assert!(breaker.is_open(), "a call from before it opened decides nothing");
        trial.is_settled = true;
        breaker.settle(true, true, later);
        assert!(breaker.admit(later + Duration::from_secs(1)).is_err(), "the trial failed");
        outcome(&breaker, false, later + Duration::from_secs(31));
        assert!(!breaker.is_open());
    }

    #[tokio::test]
    async fn old_failures_are_forgotten() {
        let breaker = breaker();
        let start = Instant::now();
        for _ in 0..3 {
            outcome(&breaker, true, start);
        }
        outcome(&breaker, true, start + Duration::from_secs(61));
        assert!(!breaker.is_open());
    }

    #[tokio::test]
    async fn open_it_puts_the_task_off_or_falls_back() {
        let breaker = breaker();
        for _ in 0..4 {
            let failed: TaskResult<()> = breaker.call(|| async { Err("down") }).await;
            assert_eq!(failed.expect_err("failed").message(), "down");
        }
        let put_off: TaskResult<()> = breaker.call(|| async { Ok::<_, String>(()) }).await;
        assert!(put_off.expect_err("put off").snoozed_for().is_some());
        let fallen_back = breaker.call_or(|| async { Ok::<_, String>("called") }, || async { Ok("fallback") }).await;
        assert_eq!(fallen_back.expect("fine"), "fallback");
    }
}
