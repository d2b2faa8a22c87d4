//! Priorities: ten levels, five of them with names.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How urgent a task is, 0 to 9; higher goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

/// The text or number names no priority.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be critical, high, medium, low, bulk or a number from 0 to 9")]
pub struct BadPriority;

impl Priority {
    /// Number of levels.
    pub const LEVELS: usize = 10;
    /// 9
    pub const CRITICAL: Self = Self(9);
    /// 7
    pub const HIGH: Self = Self(7);
    /// 5, the default
    pub const MEDIUM: Self = Self(5);
    /// 3
    pub const LOW: Self = Self(3);
    /// 1
    pub const BULK: Self = Self(1);

    /// A priority by its level.
    pub fn from_level(level: u64) -> Result<Self, BadPriority> {
        u8::try_from(level).ok().filter(|&level| usize::from(level) < Self::LEVELS).map(Self).ok_or(BadPriority)
    }

    /// A priority by name, alias or digit, as query strings and flags give it.
    pub fn from_text(text: &str) -> Result<Self, BadPriority> {
        match text {
            "critical" => Ok(Self::CRITICAL),
            "high" => Ok(Self::HIGH),
            "medium" | "normal" | "default" => Ok(Self::MEDIUM),
            "low" => Ok(Self::LOW),
            "bulk" => Ok(Self::BULK),
            _ => text.parse().map_err(|_| BadPriority).and_then(Self::from_level),
        }
    }

    /// The level, 0 to 9.
    pub fn level(self) -> u8 {
        self.0
    }

    /// The level as an index into tables of [`Self::LEVELS`] entries.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The name, where there is one.
    pub fn name(self) -> Option<&'static str> {
        match self.0 {
            9 => Some("critical"),
            7 => Some("high"),
            5 => Some("medium"),
            3 => Some("low"),
            1 => Some("bulk"),
            _ => None,
        }
    }

    /// All levels, the most urgent first.
    pub fn descending() -> impl Iterator<Item = Self> {
        (0..Self::LEVELS as u8).rev().map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::MEDIUM
    }
}

impl fmt::Display for Priority {
    /// The name where there is one, else the digit: what labels and log lines show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Priority {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_u8(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Priority;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("critical, high, medium, low, bulk or a number from 0 to 9")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Priority, E> {
                Priority::from_text(text).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, level: u64) -> Result<Priority, E> {
                Priority::from_level(level).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Priority, E> {
                Err(E::custom(BadPriority))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_aliases() {
        for (json, level) in
            [("\"critical\"", 9), ("\"normal\"", 5), ("\"default\"", 5), ("\"7\"", 7), ("0", 0), ("1", 1)]
        {
            assert_eq!(serde_json::from_str::<Priority>(json).map(Priority::level).ok(), Some(level), "{json}");
        }
        for json in ["10", "-1", "\"urgent\"", "1.5", "null", "\"\""] {
            assert!(serde_json::from_str::<Priority>(json).is_err(), "{json}");
        }
        assert_eq!(serde_json::to_string(&Priority::LOW).ok().as_deref(), Some("\"low\""));
        assert_eq!(serde_json::to_string(&Priority(4)).ok().as_deref(), Some("4"));
    }
}
