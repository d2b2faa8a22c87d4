//! Rates: how many in how long, as a token bucket on the store's clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A rate with a burst: in any window there are at most `burst` more than the rate allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// How many.
    pub count: u32,
    /// In how many seconds.
    #[serde(default = "one_second")]
    pub per_seconds: f64,
    /// How many may go at once after a pause; what a twentieth of a second allows, and at
    /// least one, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

fn one_second() -> f64 {
    1.0
}

/// Largest count or burst.
const COUNT_MAX: u32 = 1_000_000;
/// Longest period: a day.
const PERIOD_MAX: f64 = 86_400.0;

impl RateLimit {
    /// Checks the bounds that types alone cannot.
    pub fn validate(&self) -> Result<(), &'static str> {
        if self.count == 0 || self.count > COUNT_MAX {
            return Err("count must be from 1 to 1000000");
        }
        if !(0.001..=PERIOD_MAX).contains(&self.per_seconds) {
            return Err("per_seconds must be from 0.001 to 86400");
        }
        if self.burst.is_some_and(|burst| burst == 0 || burst > COUNT_MAX) {
            return Err("burst must be from 1 to 1000000");
        }
        Ok(())
    }

    /// Tokens per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.count) / self.per_seconds
    }

    /// The most tokens that can be saved up.
    pub fn capacity(&self) -> f64 {
        self.burst.map_or_else(|| (self.per_second() / 20.0).floor().max(1.0), f64::from)
    }
}

/// Tokens saved up under a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    limit: RateLimit,
    tokens: f64,
    as_of: Timestamp,
}

/// Rounding must not lose a token that is due.
const NEARLY: f64 = 1e-6;

impl Bucket {
    /// A bucket that is full: nothing was taken before.
    pub fn full(limit: RateLimit, now: Timestamp) -> Self {
        Self { limit, tokens: limit.capacity(), as_of: now }
    }

    /// A bucket of which nobody knows what was taken before.
    pub fn empty(limit: RateLimit, now: Timestamp) -> Self {
        Self { limit, tokens: 0.0, as_of: now }
    }

    /// A bucket as it was told by [`Bucket::level`].
    pub fn at_level(limit: RateLimit, tokens: f64, as_of: Timestamp) -> Self {
        Self { limit, tokens, as_of }
    }

    /// How many tokens there were, and when that was.
    pub fn level(&self) -> (f64, Timestamp) {
        (self.tokens, self.as_of)
    }

    /// The same bucket under a changed rate.
    #[must_use]
    pub fn with_limit(mut self, limit: RateLimit, now: Timestamp) -> Self {
        self.refill(now);
        Self { limit, tokens: self.tokens.min(limit.capacity()), as_of: now }
    }

    fn refill(&mut self, now: Timestamp) {
        let gained = now.since(self.as_of).as_secs_f64() * self.limit.per_second();
        self.tokens = (self.tokens + gained).min(self.limit.capacity());
        self.as_of = self.as_of.max(now);
    }

    /// Whether there is a token; takes nothing.
    pub fn has_token(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.tokens + NEARLY >= 1.0
    }

    /// Takes one token, if there is one.
    pub fn take(&mut self, now: Timestamp) -> bool {
        let has_token = self.has_token(now);
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
    }

    /// Takes many at once for a call that cannot be cut in pieces: more than the burst puts
    /// the bucket in debt, so that the rate holds over time. Refused without effect if the
    /// tokens are not there.
    pub fn take_many(&mut self, count: u64, now: Timestamp) -> Result<(), Duration> {
        self.refill(now);
        let needed = (count as f64).min(self.limit.capacity());
        if self.tokens + NEARLY < needed {
            // Rounded up: on a clock of whole microseconds anything less is too early.
            let micros = ((needed - self.tokens) / self.limit.per_second() * 1e6).ceil();
            return Err(Duration::from_micros(micros as u64));
        }
        self.tokens -= count as f64;
        Ok(())
    }

    /// When the next token is there: now or earlier if there is one.
    pub fn next_token_at(&self) -> Timestamp {
        let missing = (1.0 - self.tokens).max(0.0);
        // A microsecond more, so that it is there when the clock says so.
        let wait = Duration::from_secs_f64(missing / self.limit.per_second());
        if missing == 0.0 { self.as_of } else { self.as_of + wait + Duration::from_micros(1) }
    }

    /// Whether it is as full as it can be, so that forgetting it changes nothing.
    pub fn is_full(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.tokens + NEARLY >= self.limit.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limit(count: u32, per_seconds: f64, burst: Option<u32>) -> RateLimit {
        RateLimit { count, per_seconds, burst }
    }

    #[test]
    fn empty_and_endless_rates_are_refused() {
        for bad in [
            limit(0, 1.0, None),
            limit(1, 0.0, None),
            limit(1, -1.0, None),
            limit(1, f64::NAN, None),
            limit(1, 1e9, None),
            limit(1, 1.0, Some(0)),
            limit(2_000_000, 1.0, None),
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
        assert!(limit(100, 60.0, Some(10)).validate().is_ok());
    }

    #[test]
    fn the_burst_is_small_unless_given() {
        assert!((limit(100, 60.0, None).capacity() - 1.0).abs() < f64::EPSILON);
        assert!((limit(1_000, 1.0, None).capacity() - 50.0).abs() < f64::EPSILON);
        assert!((limit(1_000, 1.0, Some(7)).capacity() - 7.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_token_is_there_when_it_was_promised() {
        let mut now = Timestamp::from_micros(1_000_000);
        let mut bucket = Bucket::full(limit(100, 60.0, None), now);
        for _ in 0..1_000 {
            assert!(bucket.take(now));
            assert!(!bucket.take(now));
            let next = bucket.next_token_at();
            assert!(next.since(now) <= Duration::from_micros(600_002), "{:?}", next.since(now));
            now = next;
        }
    }

    #[test]
    fn a_large_call_puts_the_bucket_in_debt() {
        let now = Timestamp::from_micros(1_000_000);
        let mut bucket = Bucket::full(limit(10, 1.0, Some(10)), now);
        assert_eq!(bucket.take_many(30, now), Ok(()));
        let wait = bucket.take_many(1, now).expect_err("in debt");
        assert!((wait.as_secs_f64() - 2.1).abs() < 0.01, "{wait:?}");
        assert_eq!(bucket.take_many(1, now + wait + Duration::from_micros(1)), Ok(()));
    }

    proptest! {
        /// However the tries come, no window has more than the rate and the burst.
        #[test]
        fn no_window_exceeds_rate_plus_burst(
            count in 1u32..200, per_seconds in 0.5..100.0f64, burst in 1u32..20,
            gaps in proptest::collection::vec(0u64..3_000_000, 1..300),
        ) {
            let limit = limit(count, per_seconds, Some(burst));
            let mut now = Timestamp::from_micros(1_000_000);
            let mut bucket = Bucket::full(limit, now);
            let mut taken: Vec<Timestamp> = Vec::new();
            for gap in gaps {
                now = now + Duration::from_micros(gap);
                while bucket.take(now) {
                    taken.push(now);
                }
            }
            for (i, first) in taken.iter().enumerate() {
                for (j, last) in taken.iter().enumerate().skip(i) {
                    let allowed = f64::from(burst) + last.since(*first).as_secs_f64() * limit.per_second();
                    prop_assert!((j - i + 1) as f64 <= allowed + 1e-3);
                }
            }
        }
    }
}
