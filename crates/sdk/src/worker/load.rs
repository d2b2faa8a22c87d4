//! How hard the machine works, as far as a heartbeat tells it.

use std::fs;

use tokio::time::Instant;

use crate::protocol::Health;

/// Measures from one heartbeat to the next.
pub(crate) struct LoadMeter {
    reports_cpu: bool,
    last: Option<(Instant, f64)>,
}

impl LoadMeter {
    pub(crate) fn new(reports_cpu: bool) -> Self {
        Self { reports_cpu, last: None }
    }

    /// What can be known here; nothing where there is no `/proc`.
    pub(crate) fn sample(&mut self) -> Option<Health> {
        let memory_percent = cgroup_percent().into_iter().chain(machine_percent()).reduce(f64::max);
        let cpu_percent = if self.reports_cpu { self.cpu_percent() } else { None };
        (memory_percent.is_some() || cpu_percent.is_some()).then_some(Health { memory_percent, cpu_percent })
    }

    /// Processor time of this process since the last sample, as a share of all processors.
    fn cpu_percent(&mut self) -> Option<f64> {
        const TICKS_PER_SECOND: f64 = 100.0;
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in brackets may hold anything; the fields behind it are numbers. utime and stime are 14 and 15.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        let (now, seconds) = (Instant::now(), ticks / TICKS_PER_SECOND);
        let (before, seconds_before) = self.last.replace((now, seconds))?;
        let span = now.saturating_duration_since(before).as_secs_f64();
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        (span > 0.0).then(|| ((seconds - seconds_before) / span / processors * 100.0).clamp(0.0, 100.0))
    }
}

fn machine_percent() -> Option<f64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    Some(100.0 * (1.0 - kilobytes("MemAvailable:")? / kilobytes("MemTotal:")?))
}

/// Within a container its own limit counts. Page cache that can be dropped does not.
fn cgroup_percent() -> Option<f64> {
    let number =
        |name: &str| -> Option<f64> { fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok() };
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
    let inactive = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<f64>().ok());
    (limit > 0.0).then(|| ((used - inactive.unwrap_or(0.0)).max(0.0) / limit * 100.0).min(100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_load() {
        let mut meter = LoadMeter::new(true);
        let first = meter.sample().expect("Linux");
        assert!((0.0..=100.0).contains(&first.memory_percent.expect("known")));
        assert_eq!(first.cpu_percent, None, "the first sample has nothing to compare with");
        assert!(meter.sample().expect("Linux").cpu_percent.is_some_and(|percent| (0.0..=100.0).contains(&percent)));
    }
}
