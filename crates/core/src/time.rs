//! Points in time. Every time that decides something is read from a store's
//! [`Clock`]; nothing in this crate asks the operating system what time it is.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// Later than any time a user may give: the end of the year 9999, less the hours that an offset could add.
    pub const MAX: Self = Self(253_402_207_199_000_000);

    /// Builds a time from microseconds since the epoch, held within what can be written down.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, Self::MAX.0))
    }

    /// Microseconds since the epoch.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the epoch, as a UUIDv7 carries them.
    pub fn as_millis(self) -> u64 {
        (self.0 / 1_000) as u64
    }

    /// How much later `self` is than `earlier`; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_sub(micros))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339, UTC, always with six digits of fraction so that texts sort as times do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.6}"),
            Err(_) => Err(fmt::Error),
        }
    }
}

/// The text is not an RFC 3339 time between 1970 and 9999.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 time with its offset, such as 2026-01-31T09:30:00Z, between 1970 and 9999")]
pub struct BadTimestamp;

impl FromStr for Timestamp {
    type Err = BadTimestamp;
    fn from_str(text: &str) -> Result<Self, BadTimestamp> {
        let time: jiff::Timestamp = text.parse().map_err(|_| BadTimestamp)?;
        let micros = time.as_microsecond();
        if (0..=Self::MAX.0).contains(&micros) { Ok(Self(micros)) } else { Err(BadTimestamp) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The one clock of a store. It never runs backwards.
pub trait Clock: Send + Sync {
    /// What time it is for this store.
    fn now(&self) -> Timestamp;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_with_six_digits_and_read_back() {
        let time = Timestamp::from_micros(1_700_000_000_000_000);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20.000000Z");
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!("2023-11-14T23:13:20+01:00".parse(), Ok(time));
    }

    #[test]
    fn nonsense_and_extremes_are_refused_or_held() {
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert!("2023-11-14T22:13:20".parse::<Timestamp>().is_err());
        assert!("-000001-01-01T00:00:00Z".parse::<Timestamp>().is_err());
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH - Duration::from_secs(1), Timestamp::EPOCH);
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T21:59:59.000000Z");
    }
}
