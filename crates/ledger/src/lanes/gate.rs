//! Gates: what decides whether anything may start in a queue or of a type at this moment.

use windlass_core::breaker::TypeBreaker;
use windlass_core::ids::WorkerId;
use windlass_core::names::TaskType;
use windlass_core::rate::{Bucket, RateLimit};
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::store::Hindrance;
use windlass_core::time::Timestamp;

use super::QueueIx;

/// What queues and types have in common: a pause, a concurrency limit, a rate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) paused: bool,
    pub(crate) concurrency: Option<u32>,
    /// Leases, those of cancelled tasks too: until the worker knows, it runs.
    pub(crate) running: u32,
    bucket: Option<Bucket>,
    /// As last looked at; what is closed has no heads.
    pub(crate) open: bool,
    /// When it opens by itself.
    pub(crate) opens_at: Option<Timestamp>,
}

/// Why a gate is closed, whoever's it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Closed {
    Paused,
    Full(u32),
    NoToken(Timestamp),
}

impl Gate {
    /// Takes on settings. `fresh` says that the rate was never in force before, in this life
    /// of the process or an earlier one, so that nothing was taken from it.
    fn configure(
        &mut self,
        paused: bool,
        concurrency: Option<u32>,
        rate: Option<RateLimit>,
        fresh: bool,
        now: Timestamp,
    ) {
        self.paused = paused;
        self.concurrency = concurrency;
        self.bucket = rate.map(|limit| match self.bucket {
            Some(bucket) => bucket.with_limit(limit, now),
            None if fresh => Bucket::full(limit, now),
            None => Bucket::empty(limit, now),
        });
    }

    pub(crate) fn has_rate(&self) -> bool {
        self.bucket.is_some()
    }

    /// Why nothing may start, if nothing may.
    pub(crate) fn closed(&mut self, now: Timestamp) -> Option<Closed> {
        if self.paused {
            return Some(Closed::Paused);
        }
        if let Some(limit) = self.concurrency.filter(|limit| self.running >= *limit) {
            return Some(Closed::Full(limit));
        }
        let bucket = self.bucket.as_mut()?;
        if bucket.has_token(now) { None } else { Some(Closed::NoToken(bucket.next_token_at())) }
    }

    /// What is saved up under its rate.
    pub(crate) fn bucket(&self) -> Option<Bucket> {
        self.bucket
    }

    /// Sets what is saved up, as it was or as another node left it.
    pub(crate) fn set_bucket(&mut self, bucket: Option<Bucket>) {
        self.bucket = bucket;
    }

    /// Another node left so much under the rate that is in force.
    pub(crate) fn set_level(&mut self, tokens: f64, as_of: Timestamp, rate: Option<RateLimit>) {
        self.bucket = rate.map(|limit| Bucket::at_level(limit, tokens, as_of));
    }

    /// Something starts.
    pub(crate) fn take_token(&mut self, now: Timestamp) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(now);
        }
    }
}

/// What is known of a task type while it has tasks, and a while longer.
#[derive(Debug)]
pub(crate) struct TypeState {
    pub(crate) name: TaskType,
    pub(crate) gate: Gate,
    pub(crate) breaker: TypeBreaker,
    /// How much of a worker's capacity one task takes.
    pub(crate) slots: u32,
    /// Lanes of this type.
    pub(crate) lanes: u32,
    /// Queues that have lanes of this type, with how many.
    pub(crate) queues: Vec<(QueueIx, u32)>,
    /// The two workers that last completed a task of this type.
    successes: [Option<(WorkerId, Timestamp)>; 2],
}

impl TypeState {
    pub(crate) fn new(name: TaskType, breaker: TypeBreaker) -> Self {
        Self { name, gate: Gate::default(), breaker, slots: 1, lanes: 0, queues: Vec::new(), successes: [None; 2] }
    }

    pub(crate) fn configure(&mut self, settings: Option<&TypeSettings>, fresh: bool, now: Timestamp) {
        let unset = TypeSettings::default();
        let settings = settings.unwrap_or(&unset);
        self.gate.configure(settings.paused, settings.concurrency, settings.rate_limit, fresh, now);
        self.slots = settings.slots.unwrap_or(1);
    }

    /// Why nothing of the type may start.
    pub(crate) fn hindrance(&mut self, now: Timestamp) -> Option<Hindrance> {
        // What a person decided is named before what comes and goes by itself.
        match self.gate.closed(now) {
            Some(Closed::Paused) => return Some(Hindrance::TypePaused),
            Some(Closed::Full(_) | Closed::NoToken(_)) | None if !self.breaker.admits(now) => {
                let until = self.breaker.admits_at().filter(|until| *until > now);
                return Some(Hindrance::BreakerOpen { until });
            }
            Some(Closed::Full(limit)) => return Some(Hindrance::TypeConcurrency { limit }),
            Some(Closed::NoToken(next_token_at)) => return Some(Hindrance::TypeRate { next_token_at }),
            None => {}
        }
        None
    }

    /// The workers that last completed a task of this type, newest first.
    pub(crate) fn successes(&self) -> [Option<(WorkerId, Timestamp)>; 2] {
        self.successes
    }

    pub(crate) fn set_successes(&mut self, successes: [Option<(WorkerId, Timestamp)>; 2]) {
        self.successes = successes;
    }

    pub(crate) fn succeeded_on(&mut self, worker: WorkerId, now: Timestamp) {
        if self.successes[0].is_none_or(|(latest, _)| latest != worker) {
            self.successes[1] = self.successes[0];
        }
        self.successes[0] = Some((worker, now));
    }

    /// Whether it lately succeeded on a worker other than this one.
    pub(crate) fn succeeds_elsewhere(&self, worker: WorkerId, since: Timestamp) -> bool {
        self.successes.iter().flatten().any(|(other, at)| *other != worker && *at >= since)
    }

    /// Whether forgetting it would change anything.
    pub(crate) fn matters(&self) -> bool {
        self.lanes > 0 || self.gate.has_rate() || !self.breaker.record.is_plain()
    }
}

pub(crate) fn configure_queue(gate: &mut Gate, settings: Option<&QueueSettings>, fresh: bool, now: Timestamp) {
    let unset = QueueSettings::default();
    let settings = settings.unwrap_or(&unset);
    gate.configure(settings.paused, settings.concurrency, settings.rate_limit, fresh, now);
}

pub(crate) fn queue_hindrance(gate: &mut Gate, now: Timestamp) -> Option<Hindrance> {
    gate.closed(now).map(|closed| match closed {
        Closed::Paused => Hindrance::QueuePaused,
        Closed::Full(limit) => Hindrance::QueueConcurrency { limit },
        Closed::NoToken(next_token_at) => Hindrance::QueueRate { next_token_at },
    })
}
