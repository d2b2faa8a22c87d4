//! Memory is the room that a store on Redis has. History makes way first; when that is not
//! enough, new tasks are refused while everything else goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;

use crate::error::Failure;
use crate::inner::Inner;
use crate::keys::log;

/// How often memory is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// New tasks are refused above this share of the memory that the server may use.
const FULL_PERCENT: u64 = 80;
/// Streams are trimmed in steps of at least this many entries, or not at all.
const TRIM_STEP: u64 = 16;
/// Pieces of a stream that are looked at to tell its size: entries differ too much for the usual few.
const SAMPLES: u64 = 4_096;
/// Entries of the log that are always kept, for nodes that are a little behind.
const KEPT_ENTRIES: u64 = 256;

/// How full the fullest server is.
#[derive(Default)]
pub(crate) struct Pressure {
    used: AtomicU64,
    most: AtomicU64,
    /// Used memory of all servers.
    total: AtomicU64,
}

impl Pressure {
    /// Why new tasks are refused, if they are.
    pub(crate) fn full(&self) -> Option<String> {
        let (used, most) = self.fullest()?;
        (used * 100 > most * FULL_PERCENT).then(|| {
            let megabytes = |bytes: u64| bytes / 1_000_000;
            format!(
                "the server uses {} of {} MB of memory, and new tasks are refused above {FULL_PERCENT} %",
                megabytes(used),
                megabytes(most)
            )
        })
    }

    /// Whether ended tasks take up so much that the oldest must go before their time.
    pub(crate) fn must_drop_ended(&self, percent: u64) -> bool {
        self.fullest().is_some_and(|(used, most)| used * 100 > most * percent)
    }

    fn fullest(&self) -> Option<(u64, u64)> {
        let (used, most) = (self.used.load(Ordering::Relaxed), self.most.load(Ordering::Relaxed));
        (most > 0).then_some((used, most))
    }

    /// Memory in use, of all servers.
    pub(crate) fn used(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    fn note(&self, servers: &[(u64, u64)]) {
        self.total.store(servers.iter().map(|(used, _)| used).sum(), Ordering::Relaxed);
        let limited = servers.iter().filter(|(_, most)| *most > 0);
        let fullest = limited.max_by(|one, other| (one.0 * other.1).cmp(&(other.0 * one.1)));
        let (used, most) = fullest.copied().unwrap_or_default();
        self.used.store(used, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
    }
}

/// A line `name:value` of what a server tells about itself.
pub(crate) fn line<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

impl Inner {
    /// What each server tells about itself.
    pub(crate) async fn info(&self, section: &str) -> Result<Vec<String>, Failure> {
        let answers = self.reads.everywhere(redis::cmd("INFO").arg(section)).await?;
        Ok(answers.iter().map(text).collect())
    }

    /// Looks how much memory is used.
    pub(crate) async fn look_at_memory(&self) -> Result<(), Failure> {
        let infos = self.info("memory").await?;
        let figure = |info: &str, name| line(info, name).and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        let servers: Vec<(u64, u64)> =
            infos.iter().map(|info| (figure(info, "used_memory"), figure(info, "maxmemory"))).collect();
        self.pressure.note(&servers);
        Ok(())
    }

    /// Keeps the log and the events within their bytes.
    pub(crate) async fn trim_streams(&self) -> Result<(), Failure> {
        self.trim(log::LOG, self.options.log_bytes, KEPT_ENTRIES).await?;
        self.trim(log::EVENTS, self.options.event_bytes, 0).await
    }

    async fn trim(&self, stream: &str, bytes_max: u64, kept: u64) -> Result<(), Failure> {
        let key = self.keys.log(stream);
        let mut commands = redis::pipe();
        commands.cmd("XLEN").arg(&key);
        commands.cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(SAMPLES);
        let (length, bytes): (u64, Option<u64>) = self.reads.pipeline(&commands).await?;
        let bytes = bytes.unwrap_or_default();
        if bytes <= bytes_max || length <= kept + TRIM_STEP {
            return Ok(());
        }
        let fits = (length as f64 * bytes_max as f64 / bytes as f64) as u64;
        let mut trim = redis::cmd("XTRIM");
        trim.arg(&key).arg("MAXLEN").arg(fits.max(kept));
        let trimmed: u64 = self.writes.command(&trim).await?;
        tracing::info!(stream, trimmed, "history was trimmed to its share of memory");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_server_counts() {
        let pressure = Pressure::default();
        assert_eq!((pressure.full(), pressure.used()), (None, None));
        pressure.note(&[(70, 100), (900, 1_000), (5_000, 0)]);
        assert!(pressure.full().is_some_and(|reason| reason.contains("80 %")));
        assert!(pressure.must_drop_ended(60));
        assert_eq!(pressure.used(), Some(5_970));
        pressure.note(&[(70, 100), (500, 1_000)]);
        assert_eq!(pressure.full(), None);
    }

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let info = "# Memory\r\nused_memory_rss:5\r\nused_memory:7\r\n";
        assert_eq!(line(info, "used_memory").map(str::trim), Some("7"));
        assert_eq!(line(info, "maxmemory"), None);
    }
}
