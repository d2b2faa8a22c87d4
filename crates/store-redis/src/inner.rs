//! What all parts of the backend share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::RedisOptions;
use crate::intents::Job;
use crate::keys::Keys;
use crate::link::Link;
use crate::memory::Pressure;
use crate::places::Places;
use crate::scripts::Scripts;

/// Entries whose fingerprints are remembered.
const KNOWN_ENTRIES: usize = 1_024;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fingerprints of entries that this node has seen: a log that has others under the same
/// numbers is not the one that we followed.
#[derive(Default)]
pub(crate) struct Known(Mutex<BTreeMap<u64, u64>>);

impl Known {
    pub(crate) fn note(&self, no: u64, fingerprint: u64) {
        let mut known = lock(&self.0);
        known.insert(no, fingerprint);
        while known.len() > KNOWN_ENTRIES {
            known.pop_first();
        }
    }

    pub(crate) fn get(&self, no: u64) -> Option<u64> {
        lock(&self.0).get(&no).copied()
    }

    pub(crate) fn forget(&self) {
        lock(&self.0).clear();
    }
}

pub(crate) struct Inner {
    pub(crate) options: RedisOptions,
    /// Replicas that must have a commit before it is acknowledged.
    pub(crate) wait_replicas: usize,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    /// Commits, of the one thread that makes them; in a cluster they go with the other writes.
    pub(crate) commits: Option<Link>,
    /// Whatever must not wait behind a reader.
    pub(crate) writes: Link,
    /// Everything else.
    pub(crate) reads: Link,
    pub(crate) places: Places,
    pub(crate) known: Known,
    /// The last entry that touched each tag, as far as this node has followed the log.
    pub(crate) touched: Mutex<HashMap<String, u64>>,
    pub(crate) turn: Mutex<Option<Vec<u8>>>,
    /// The last entry that is known to be in the log.
    pub(crate) bell: watch::Sender<u64>,
    /// The last entry that this node was told of.
    pub(crate) told: AtomicU64,
    pub(crate) bell_works: AtomicBool,
    pub(crate) pressure: Pressure,
    pub(crate) lost_entries: AtomicU64,
    pub(crate) jobs: mpsc::Sender<Job>,
    /// The last entry of this node that was handed over to be applied, and the last that was.
    pub(crate) handed_over: AtomicU64,
    pub(crate) applied: watch::Sender<u64>,
    /// Where the next look through old events begins.
    pub(crate) prune_from: Mutex<u64>,
    pub(crate) secret: [u8; 16],
}

impl Inner {
    /// Notes which tags an entry touches.
    pub(crate) fn touch<'a>(&self, no: u64, tags: impl Iterator<Item = &'a str>) {
        let mut touched = lock(&self.touched);
        for tag in tags {
            match touched.get_mut(tag) {
                Some(last) => *last = no.max(*last),
                None => {
                    touched.insert(tag.to_owned(), no);
                }
            }
        }
    }

    /// The turn that this node holds, given up by taking it.
    pub(crate) fn take_turn(&self) -> Option<Vec<u8>> {
        lock(&self.turn).take()
    }

    /// What this node knows belongs to a log that is no more.
    pub(crate) fn forget(&self) {
        self.known.forget();
        self.places.forget();
        lock(&self.touched).clear();
    }
}
