//! Randomness for keys and pauses. Nothing secret hangs on it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNTER: AtomicU64 = AtomicU64::new(0);
/// Keyed by the operating system's randomness, once per process.
static KEYED: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);

fn hashed(state: &RandomState, number: u64) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write_u64(number);
    // Processes that share their first random bytes (a restored snapshot) still differ.
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// A number from 0 to 1.
pub(crate) fn fraction() -> f64 {
    let number = hashed(&KEYED[0], COUNTER.fetch_add(1, Ordering::Relaxed));
    (number >> 11) as f64 / (1u64 << 53) as f64
}

/// A text that nobody else makes.
pub(crate) fn unique_key() -> String {
    static PROCESS: LazyLock<String> =
        LazyLock::new(|| format!("sdk-{:016x}{:016x}", hashed(&KEYED[0], u64::MAX), hashed(&KEYED[1], u64::MAX)));
    format!("{}-{:x}", *PROCESS, COUNTER.fetch_add(1, Ordering::Relaxed))
}
