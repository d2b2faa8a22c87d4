//! What the server process costs, read from `/proc`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::error::HarnessError;

/// How often memory is looked at under load; a look holds the process's memory map for a moment.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// A process that is watched.
#[derive(Clone, Debug)]
pub struct Process {
    folder: PathBuf,
}

impl Process {
    /// The process with this id, if it can be watched.
    pub fn find(pid: u32) -> Result<Self, HarnessError> {
        let process = Self { folder: PathBuf::from(format!("/proc/{pid}")) };
        process.pss_bytes()?;
        process.cpu()?;
        Ok(process)
    }

    /// Proportional set size: private memory and its share of what is shared.
    pub fn pss_bytes(&self) -> Result<u64, HarnessError> {
        let path = self.folder.join("smaps_rollup");
        let text = read(&path)?;
        parse_pss(&text).ok_or_else(|| HarnessError::Argument(format!("{}: there is no Pss", path.display())))
    }

    /// Processor time used so far by the threads that live, to the nanosecond.
    fn cpu(&self) -> Result<Duration, HarnessError> {
        let tasks = self.folder.join("task");
        let entries = std::fs::read_dir(&tasks).map_err(|source| HarnessError::File { path: tasks, source })?;
        let mut nanos = 0;
        for entry in entries.flatten() {
            // A thread may end while we look.
            let Ok(text) = std::fs::read_to_string(entry.path().join("schedstat")) else { continue };
            nanos += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Processor use over a while, in percent of one core.
    pub async fn cpu_percent_over(&self, span: Duration) -> Result<f64, HarnessError> {
        let clock = Clock::start();
        let before = self.cpu()?;
        tokio::time::sleep(span).await;
        let used = self.cpu()?.saturating_sub(before);
        Ok(100.0 * used.as_secs_f64() / clock.elapsed().as_secs_f64())
    }

    /// Starts to note the largest memory use.
    pub fn watch_memory(&self) -> MemoryWatch {
        let largest = Arc::new(AtomicU64::new(0));
        let (process, noted) = (self.clone(), Arc::clone(&largest));
        let sampler = tokio::spawn(async move {
            let mut interval = tokio::time::interval(SAMPLE_EVERY);
            loop {
                interval.tick().await;
                let Ok(bytes) = process.pss_bytes() else { return };
                noted.fetch_max(bytes, Ordering::Relaxed);
            }
        });
        MemoryWatch { largest, sampler }
    }
}

/// Notes the largest memory use until it is finished.
#[derive(Debug)]
pub struct MemoryWatch {
    largest: Arc<AtomicU64>,
    sampler: JoinHandle<()>,
}

impl MemoryWatch {
    /// The largest memory use that was seen.
    pub fn finish(self) -> u64 {
        self.sampler.abort();
        self.largest.load(Ordering::Relaxed)
    }
}

fn read(path: &Path) -> Result<String, HarnessError> {
    std::fs::read_to_string(path).map_err(|source| HarnessError::File { path: path.to_owned(), source })
}

fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_is_read_in_kilobytes() {
        assert_eq!(parse_pss("Rss:  900 kB\nPss:     123 kB\nPss_Dirty: 5 kB\n"), Some(123 * 1024));
        assert_eq!(parse_pss("Rss: 900 kB\n"), None);
    }

    #[test]
    fn this_process_can_be_watched() {
        let process = Process::find(std::process::id()).unwrap();
        assert!(process.pss_bytes().unwrap() > 0);
        assert!(Process::find(u32::MAX).is_err());
    }
}
