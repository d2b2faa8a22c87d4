//! Progress: the latest word counts, and not every word is sent.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

/// A report is sent after this time …
const EVERY: Duration = Duration::from_secs(1);
/// … or after this much progress, whichever comes first.
const PERCENT: f64 = 5.0;

/// How far an attempt has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Value>,
}

impl Progress {
    /// This much of a hundred; kept within 0 and 100.
    pub fn percent(percent: f64) -> Self {
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        Self { percent, ..Self::default() }
    }

    /// So many of so many.
    pub fn step(step: u32, steps: u32) -> Self {
        let percent = f64::from(step) / f64::from(steps.max(1)) * 100.0;
        Self { step: Some(step), steps: Some(steps), ..Self::percent(percent) }
    }

    /// What it does now, for a person.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Anything else, at most 16 KiB of JSON.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }
}

/// The progress of one attempt between its handler and the thread that sends it.
#[derive(Debug, Default)]
pub(crate) struct ProgressSlot(Mutex<Slot>);

#[derive(Debug, Default)]
struct Slot {
    unsent: Option<Progress>,
    sent: Option<(Instant, f64)>,
}

impl ProgressSlot {
    /// Keeps the latest word.
    pub(crate) fn put(&self, progress: Progress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unsent = Some(progress);
    }

    /// What shall be sent now; else when to look again, if there is anything.
    pub(crate) fn take_due(&self, now: Instant) -> Result<Progress, Option<Instant>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(unsent) = &slot.unsent else { return Err(None) };
        if let Some((sent_at, percent)) = slot.sent
            && (unsent.percent - percent).abs() < PERCENT
            && now < sent_at + EVERY
        {
            return Err(Some(sent_at + EVERY));
        }
        slot.sent = Some((now, unsent.percent));
        slot.unsent.take().ok_or(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_steps_are_sent_once_a_second_and_large_ones_at_once() {
        let slot = ProgressSlot::default();
        let start = Instant::now();
        assert_eq!(slot.take_due(start), Err(None));
        slot.put(Progress::percent(1.0));
        assert_eq!(slot.take_due(start), Ok(Progress::percent(1.0)));
        slot.put(Progress::percent(2.0));
        slot.put(Progress::percent(3.0));
        assert_eq!(slot.take_due(start), Err(Some(start + EVERY)));
        assert_eq!(slot.take_due(start + EVERY), Ok(Progress::percent(3.0)));
        slot.put(Progress::percent(9.0));
        assert_eq!(slot.take_due(start + EVERY), Ok(Progress::percent(9.0)));
        assert_eq!(slot.take_due(start + EVERY * 9), Err(None));
    }

    #[test]
    fn nonsense_is_kept_in_bounds() {
        assert_eq!(Progress::percent(f64::NAN), Progress::percent(0.0));
        assert_eq!(Progress::percent(1e9), Progress::percent(100.0));
        assert_eq!(Progress::step(3, 0), Progress { step: Some(3), steps: Some(0), ..Progress::percent(100.0) });
    }
}
