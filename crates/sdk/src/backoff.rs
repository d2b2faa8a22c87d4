//! Pauses that grow and vary, so that many clients do not come back at the same moment.

use std::time::Duration;

use crate::random;

/// The pauses between attempts at one thing.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, first, longest }
    }

    /// The next pause: from half of it to all of it.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.longest);
        whole.mul_f64(0.5 + random::fraction() / 2.0)
    }

    /// It went well: begin anew.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_vary() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let pauses: Vec<_> = (0..8).map(|_| backoff.next()).collect();
        assert!((50..=100).contains(&(pauses[0].as_millis() as u64)), "{pauses:?}");
        assert!(pauses[4..].iter().all(|pause| (500..=1000).contains(&(pause.as_millis() as u64))), "{pauses:?}");
        assert_ne!(pauses[5], pauses[6]);
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
