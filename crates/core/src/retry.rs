//! When a failed attempt is tried again. The delay is a pure function of the policy, the
//! number of the retry and a seed; it is bounded for every input.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits;
use crate::priority::Priority;

/// How delays grow from one retry to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Always `base_delay`.
    Fixed,
    /// `base_delay` times the number of the retry.
    Linear,
    /// `base_delay` times a power of `factor`.
    #[default]
    Exponential,
    /// `base_delay` times a Fibonacci number.
    Fibonacci,
    /// The explicit `delays`, the last one repeated.
    List,
}

/// How a delay is spread, so that what failed together does not return together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Jitter {
    /// Not at all.
    None,
    /// Anywhere from zero to the delay.
    Full,
    /// From half the delay to the delay.
    #[default]
    Equal,
    /// Plus or minus this share of the delay.
    Factor(f64),
}

impl Serialize for Jitter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Full => serializer.serialize_str("full"),
            Self::Equal => serializer.serialize_str("equal"),
            Self::Factor(factor) => serializer.serialize_f64(*factor),
        }
    }
}

impl<'de> Deserialize<'de> for Jitter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const RULE: &str = "must be none, full, equal or a number from 0 to 1";
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Name(String),
            Factor(f64),
        }
        match Raw::deserialize(deserializer).map_err(|_| de::Error::custom(RULE))? {
            Raw::Name(name) => match name.as_str() {
                "none" => Ok(Self::None),
                "full" => Ok(Self::Full),
                "equal" => Ok(Self::Equal),
                _ => Err(de::Error::custom(RULE)),
            },
            Raw::Factor(factor) if (0.0..=1.0).contains(&factor) => Ok(Self::Factor(factor)),
            Raw::Factor(_) => Err(de::Error::custom(RULE)),
        }
    }
}

/// When a failed attempt is tried again, and when not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// How delays grow.
    pub strategy: Strategy,
    /// The first delay.
    #[serde(with = "seconds")]
    pub base_delay: Duration,
    /// No delay is longer.
    #[serde(with = "seconds")]
    pub max_delay: Duration,
    /// Growth of the exponential strategy.
    pub factor: f64,
    /// How delays are spread.
    pub jitter: Jitter,
    /// The delays of the `list` strategy.
    #[serde(with = "seconds::list", skip_serializing_if = "Vec::is_empty")]
    pub delays: Vec<Duration>,
    /// Whether the next attempt gets more time after a timeout or out-of-memory.
    pub timeout_growth: f64,
    /// Give up when the task is older than this.
    #[serde(with = "seconds::optional", skip_serializing_if = "Option::is_none")]
    pub max_elapsed: Option<Duration>,
    /// Error codes that are always worth another try.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retryable_codes: Vec<String>,
    /// Error codes that never are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub non_retryable_codes: Vec<String>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            strategy: Strategy::Exponential,
            base_delay: Duration::from_secs(2),
            max_delay: Duration::from_secs(3600),
            factor: 2.0,
            jitter: Jitter::Equal,
            delays: Vec::new(),
            timeout_growth: 1.5,
            max_elapsed: None,
            retryable_codes: Vec::new(),
            non_retryable_codes: Vec::new(),
        }
    }
}

/// A policy that contradicts itself or leaves its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}")]
pub struct BadPolicy {
    /// The field at fault.
    pub field: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

impl RetryPolicy {
    /// Checks the bounds that types alone cannot.
    pub fn validate(&self) -> Result<(), BadPolicy> {
        let bad = |field, rule| Err(BadPolicy { field, rule });
        if self.base_delay > limits::DELAY || self.max_delay > limits::DELAY {
            return bad("base_delay", "and max_delay must be at most a year");
        }
        if !(1.0..=100.0).contains(&self.factor) {
            return bad("factor", "must be from 1 to 100");
        }
        if !(1.0..=10.0).contains(&self.timeout_growth) {
            return bad("timeout_growth", "must be from 1 to 10");
        }
        if (self.strategy == Strategy::List) == self.delays.is_empty() {
            return bad("delays", "must be given for the list strategy and for no other");
        }
        if self.delays.len() > limits::RETRY_DELAYS || self.delays.iter().any(|delay| *delay > limits::DELAY) {
            return bad("delays", "must be at most 100 delays of at most a year");
        }
        for (field, codes) in
            [("retryable_codes", &self.retryable_codes), ("non_retryable_codes", &self.non_retryable_codes)]
        {
            if codes.len() > limits::RETRY_DELAYS || codes.iter().any(|code| code.len() > limits::TEXT_BYTES) {
                return bad(field, "must be at most 100 codes of at most 256 bytes");
            }
        }
        Ok(())
    }

    /// The delay before the given retry (the first is 1), spread by the seed.
    pub fn delay(&self, retry: u32, seed: u64) -> Duration {
        let retry = retry.max(1);
        let base = self.base_delay.as_secs_f64();
        let grown = match self.strategy {
            Strategy::Fixed => base,
            Strategy::Linear => base * f64::from(retry),
            Strategy::Exponential => base * self.factor.powi(i32::try_from(retry - 1).unwrap_or(i32::MAX)),
            Strategy::Fibonacci => base * fibonacci(retry),
            Strategy::List => {
                let last = self.delays.len().saturating_sub(1);
                self.delays.get(last.min(retry as usize - 1)).map_or(base, Duration::as_secs_f64)
            }
        };
        let held = grown.min(self.max_delay.as_secs_f64());
        let spread = match self.jitter {
            Jitter::None => held,
            Jitter::Full => held * unit(seed),
            Jitter::Equal => held * (0.5 + 0.5 * unit(seed)),
            Jitter::Factor(share) => held * (1.0 + share * (2.0 * unit(seed) - 1.0)),
        };
        // Jitter of a factor may go above; the bound holds for what is really waited.
        Duration::from_secs_f64(spread.clamp(0.0, self.max_delay.as_secs_f64()))
    }
}

/// A number from 0 to 1 out of a seed (the finaliser of splitmix64: every bit counts).
fn unit(seed: u64) -> f64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / ((1u64 << 53) - 1) as f64
}

fn fibonacci(n: u32) -> f64 {
    let (mut previous, mut current) = (0.0, 1.0);
    for _ in 1..n.min(1_000) {
        (previous, current) = (current, previous + current);
    }
    current
}

/// Retries and timeout of a task whose type and submitter said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityDefaults {
    /// How many retries.
    pub max_retries: u32,
    /// How long an attempt may take.
    #[serde(with = "seconds", rename = "timeout_seconds")]
    pub timeout: Duration,
}

impl PriorityDefaults {
    /// The built-in defaults of a priority.
    pub fn of(priority: Priority) -> Self {
        let (max_retries, seconds) = match priority.level() {
            7.. => (5, 300),
            4..=6 => (3, 600),
            _ => (2, 900),
        };
        Self { max_retries, timeout: Duration::from_secs(seconds) }
    }
}

/// The time the next attempt gets after `growths` attempts that ran out of time or memory.
pub fn grown_timeout(own: Duration, growth: f64, growths: u32) -> Duration {
    let ceiling = own.max(Duration::from_secs(3600));
    let grown = own.as_secs_f64() * growth.powi(i32::try_from(growths).unwrap_or(i32::MAX));
    if grown >= ceiling.as_secs_f64() { ceiling } else { Duration::from_secs_f64(grown) }
}

/// Durations as JSON numbers of seconds.
pub mod seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer, de};

    /// A finite number of seconds from zero to a century.
    pub fn checked(seconds: f64) -> Option<Duration> {
        (0.0..=3.2e9).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
    }

    /// Writes whole numbers where nothing is lost: `600`, not `600.0`.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        if span.subsec_nanos() == 0 {
            serializer.serialize_u64(span.as_secs())
        } else {
            serializer.serialize_f64(span.as_secs_f64())
        }
    }

    /// Reads a number of seconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        checked(seconds).ok_or_else(|| de::Error::custom("must be a number of seconds, not negative"))
    }

    /// The same for an optional duration.
    pub mod optional {
        use super::{Deserialize, Deserializer, Duration, Serializer, de};

        /// Writes a number or null.
        pub fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => super::serialize(span, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// Reads a number or null.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            match Option::<f64>::deserialize(deserializer)? {
                None => Ok(None),
                Some(seconds) => super::checked(seconds)
                    .map(Some)
                    .ok_or_else(|| de::Error::custom("must be a number of seconds, not negative")),
            }
        }
    }

    /// The same for a list of durations.
    pub mod list {
        use super::{Deserialize, Deserializer, Duration, Serializer, de};

        /// Writes a list of numbers.
        pub fn serialize<S: Serializer>(spans: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(spans.iter().map(Duration::as_secs_f64))
        }

        /// Reads a list of numbers.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
            Vec::<f64>::deserialize(deserializer)?
                .into_iter()
                .map(|seconds| {
                    super::checked(seconds).ok_or_else(|| de::Error::custom("must be numbers of seconds, not negative"))
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy as _, prop_assert, prop_oneof, proptest};

    fn policy(strategy: Strategy, jitter: Jitter) -> RetryPolicy {
        RetryPolicy { strategy, jitter, ..RetryPolicy::default() }
    }

    #[test]
    fn delays_without_jitter_are_a_table() {
        let table: [(Strategy, [u64; 6]); 4] = [
            (Strategy::Fixed, [2, 2, 2, 2, 2, 2]),
            (Strategy::Linear, [2, 4, 6, 8, 10, 12]),
            (Strategy::Exponential, [2, 4, 8, 16, 32, 64]),
            (Strategy::Fibonacci, [2, 2, 4, 6, 10, 16]),
        ];
        for (strategy, expected) in table {
            let delays: Vec<u64> =
                (1..=6).map(|retry| policy(strategy, Jitter::None).delay(retry, 0).as_secs()).collect();
            assert_eq!(delays, expected, "{strategy:?}");
        }
        let list = RetryPolicy {
            delays: vec![Duration::from_secs(1), Duration::from_secs(10)],
            ..policy(Strategy::List, Jitter::None)
        };
        let delays: Vec<u64> = (1..=4).map(|retry| list.delay(retry, 0).as_secs()).collect();
        assert_eq!(delays, [1, 10, 10, 10]);
    }

    proptest! {
        #[test]
        fn every_delay_is_bounded(
            strategy in prop_oneof![Just(Strategy::Fixed), Just(Strategy::Linear), Just(Strategy::Exponential), Just(Strategy::Fibonacci)],
            jitter in prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal), (0.0..=1.0f64).prop_map(Jitter::Factor)],
            retry in 0u32..=u32::MAX, seed: u64, base in 0u64..100_000, max in 0u64..10_000_000, factor in 1.0..100.0f64,
        ) {
            let policy = RetryPolicy {
                base_delay: Duration::from_secs(base), max_delay: Duration::from_secs(max), factor, ..policy(strategy, jitter)
            };
            prop_assert!(policy.delay(retry, seed) <= policy.max_delay);
        }

        #[test]
        fn equal_jitter_stays_in_the_upper_half_and_full_anywhere(seed: u64) {
            let equal = policy(Strategy::Fixed, Jitter::Equal).delay(1, seed);
            prop_assert!((Duration::from_secs(1)..=Duration::from_secs(2)).contains(&equal));
            prop_assert!(policy(Strategy::Fixed, Jitter::Full).delay(1, seed) <= Duration::from_secs(2));
        }
    }

    #[test]
    fn jitter_really_spreads() {
        let policy = policy(Strategy::Fixed, Jitter::Full);
        let delays: Vec<f64> = (0..1_000).map(|seed| policy.delay(1, seed).as_secs_f64()).collect();
        let mean = delays.iter().sum::<f64>() / 1_000.0;
        assert!((0.9..1.1).contains(&mean), "mean {mean}");
        assert!(delays.iter().any(|delay| *delay < 0.1) && delays.iter().any(|delay| *delay > 1.9));
    }

    #[test]
    fn timeouts_grow_to_an_hour_or_their_own_length() {
        assert_eq!(grown_timeout(Duration::from_secs(600), 1.5, 0), Duration::from_secs(600));
        assert_eq!(grown_timeout(Duration::from_secs(600), 1.5, 1), Duration::from_secs(900));
        assert_eq!(grown_timeout(Duration::from_secs(600), 1.5, 50), Duration::from_secs(3600));
        assert_eq!(grown_timeout(Duration::from_secs(7200), 1.5, u32::MAX), Duration::from_secs(7200));
    }

    #[test]
    fn defaults_by_priority() {
        let of = |name| PriorityDefaults::of(Priority::from_text(name).expect("a name"));
        assert_eq!((of("high").max_retries, of("high").timeout.as_secs()), (5, 300));
        assert_eq!(of("critical"), of("high"));
        assert_eq!((of("medium").max_retries, of("medium").timeout.as_secs()), (3, 600));
        assert_eq!((of("low").max_retries, of("low").timeout.as_secs()), (2, 900));
        assert_eq!(of("bulk"), of("low"));
    }
}
