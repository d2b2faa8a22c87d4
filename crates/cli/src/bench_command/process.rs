//! A process that the benchmark started: orders go in, answers come out, its cost is read from `/proc`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::Instant;

use super::orders::{Answer, Order};
use crate::exit::{Exit, Failure, Outcome};

/// A child process. It is killed, and waited for, when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Child,
    /// Kept open: the child ends when it is closed.
    input: ChildStdin,
    lines: UnboundedReceiver<String>,
}

impl Process {
    /// Starts this binary with these arguments.
    pub fn start(name: &'static str, arguments: &[String]) -> Outcome<Self> {
        let cannot = |why: String| Failure::new(Exit::Failed, format!("cannot start {name}: {why}"));
        let binary = std::env::current_exe().map_err(|error| cannot(error.to_string()))?;
        let mut command = Command::new(binary);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the benchmark, which then ends its processes itself.
        command.process_group(0);
        // What is measured are the defaults, not what somebody set for a server or client of his own.
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"WINDLASS_") {
                command.env_remove(variable);
            }
        }
        let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot("it has no pipes".to_owned()));
        };
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { name, child, input, lines })
    }

    /// The next line that it prints.
    pub async fn line(&mut self) -> Outcome<String> {
        match self.lines.recv().await {
            Some(line) => Ok(line),
            None => Err(Failure::new(Exit::Failed, format!("{} ended before its work was done", self.name))),
        }
    }

    /// Its next answer.
    pub async fn answer(&mut self) -> Outcome<Answer> {
        let line = self.line().await?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { reason }) => Err(Failure::new(Exit::Failed, format!("{}: {reason}", self.name))),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Failure::new(Exit::Failed, format!("{} said {line:?}: {error}", self.name))),
        }
    }

    /// Has an order carried out.
    pub async fn order(&mut self, order: &Order) -> Outcome<Answer> {
        let line = serde_json::to_string(order).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        writeln!(self.input, "{line}")?;
        self.answer().await
    }

    /// For looking at its cost.
    pub fn cost(&self) -> Cost {
        Cost { pid: self.child.id() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process costs. None of the processes here has children.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pid: u32,
}

impl Cost {
    /// Proportional set size: private memory, and its share of what is shared. None where the system does not tell.
    pub fn pss_bytes(self) -> Option<u64> {
        parse_pss(&std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).ok()?)
    }

    /// Processor time used so far by the threads that live, to the nanosecond.
    fn processor_time(self) -> Option<Duration> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?.flatten() {
            // A thread may end while we look.
            let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
            nanos += text.split(' ').next()?.parse::<u64>().ok()?;
        }
        Some(Duration::from_nanos(nanos))
    }

    /// Processor use over a while, in percent of one core.
    pub async fn processor_percent(self, span: Duration) -> Option<f64> {
        let (begun, before) = (Instant::now(), self.processor_time()?);
        tokio::time::sleep(span).await;
        let used = self.processor_time()?.saturating_sub(before);
        Some(100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64())
    }
}

fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The largest memory use that was seen, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Of the server, if it is one of our processes.
    pub server: Option<u64>,
    /// Of the worker.
    pub worker: Option<u64>,
    /// The largest sum at one moment.
    pub sum: Option<u64>,
}

impl Peak {
    /// Looks at the processes while something goes on. A look holds up a process for a moment, so there are few.
    pub async fn during<T>(server: Option<Cost>, worker: Cost, work: impl Future<Output = T>) -> (T, Self) {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let mut peak = Self::default();
        let mut look = || peak.note(server.and_then(Cost::pss_bytes), worker.pss_bytes());
        let mut interval = tokio::time::interval(LOOK_EVERY);
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                _ = interval.tick() => look(),
            }
        };
        look();
        (done, peak)
    }

    fn note(&mut self, server: Option<u64>, worker: Option<u64>) {
        self.server = self.server.max(server);
        self.worker = self.worker.max(worker);
        self.sum = self.sum.max(worker.map(|worker| worker + server.unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_is_read_in_kilobytes() {
        assert_eq!(parse_pss("Rss:  900 kB\nPss:     123 kB\nPss_Dirty: 5 kB\n"), Some(123 * 1024));
        assert_eq!(parse_pss("Rss: 900 kB\n"), None);
    }

    #[tokio::test]
    async fn this_process_costs_something_and_no_process_nothing() {
        let cost = Cost { pid: std::process::id() };
        assert!(cost.pss_bytes() > Some(0) && cost.processor_time() > Some(Duration::ZERO));
        let nobody = Cost { pid: u32::MAX };
        assert_eq!((nobody.pss_bytes(), nobody.processor_time()), (None, None));
    }

    #[test]
    fn the_peak_of_the_sum_is_of_one_moment() {
        let mut peak = Peak::default();
        peak.note(Some(10), Some(1));
        peak.note(Some(5), Some(7));
        assert_eq!(peak, Peak { server: Some(10), worker: Some(7), sum: Some(12) });
        let mut alone = Peak::default();
        alone.note(None, Some(3));
        assert_eq!(alone, Peak { server: None, worker: Some(3), sum: Some(3) });
    }
}
