//! Who caused a change.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ids::WorkerId;

/// Who caused a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// A caller of the API.
    Api,
    /// A worker.
    Worker(WorkerId),
    /// Windlass itself: maintenance and effects of other changes.
    System,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api => f.write_str("api"),
            Self::System => f.write_str("system"),
            Self::Worker(worker) => write!(f, "worker:{worker}"),
        }
    }
}

/// The text names no actor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("names no actor")]
pub struct BadActor;

impl FromStr for Actor {
    type Err = BadActor;
    fn from_str(text: &str) -> Result<Self, BadActor> {
        match text {
            "api" => Ok(Self::Api),
            "system" => Ok(Self::System),
            _ => {
                let worker = text.strip_prefix("worker:").ok_or(BadActor)?;
                worker.parse().map(Self::Worker).map_err(|_| BadActor)
            }
        }
    }
}

impl Serialize for Actor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Actor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
