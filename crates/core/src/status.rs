//! The public statuses of a task.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for other tasks of its workflow.
    Blocked,
    /// Waits for a time: delayed, or between two attempts.
    Scheduled,
    /// Ready, waits for a worker.
    Queued,
    /// Leased to a worker.
    Executing,
    /// The handler succeeded.
    Completed,
    /// Ended without success and needs nobody.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Gave up; waits for a person.
    DeadLetter,
}

impl Status {
    /// All statuses, in the order of a task's life.
    pub const ALL: [Self; 8] = [
        Self::Blocked,
        Self::Scheduled,
        Self::Queued,
        Self::Executing,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::DeadLetter,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Executing => "executing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::DeadLetter => "dead_letter",
        }
    }

    /// Whether the task has ended. A dead letter has: keys are given back and waiters are told.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::DeadLetter => true,
            Self::Blocked | Self::Scheduled | Self::Queued | Self::Executing => false,
        }
    }

    /// A small number for stores; never changes its meaning.
    pub fn code(self) -> u8 {
        match self {
            Self::Blocked => 0,
            Self::Scheduled => 1,
            Self::Queued => 2,
            Self::Executing => 3,
            Self::Completed => 4,
            Self::Failed => 5,
            Self::Cancelled => 6,
            Self::DeadLetter => 7,
        }
    }

    /// The status of a [`Self::code`].
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be blocked, scheduled, queued, executing, completed, failed, cancelled or dead_letter")]
pub struct BadStatus;

impl FromStr for Status {
    type Err = BadStatus;
    fn from_str(text: &str) -> Result<Self, BadStatus> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(BadStatus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back() {
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert_eq!(Status::from_code(8), None);
    }
}
