//! What `/proc` says about processes: who descends from whom, and what they use.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The interesting part of `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Option<Pid>,
    pub(crate) group: Option<Pid>,
    pub(crate) session: Option<Pid>,
    state: char,
    own_ticks: u64,
    /// Of children that have ended and that this process has waited for, and of theirs.
    children_ticks: u64,
    resident_pages: u64,
}

impl Process {
    /// Ended, and nobody has waited for it yet.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Memory in RAM. What two processes share is counted for both.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_pages.saturating_mul(page_size() as u64)
    }

    /// Memory in RAM, with shared pages divided among those who share them. The kernel walks all pages for it, so this
    /// is asked only when the cheap figure is over a limit. Another user's process, into which we may not look, counts
    /// with the cheap figure; one that has ended meanwhile with nothing.
    pub(crate) fn proportional_bytes(&self) -> u64 {
        match fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid.as_raw_pid())) {
            Ok(rollup) => proportional(&rollup).unwrap_or_else(|| self.resident_bytes()),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => 0,
            Err(_) => self.resident_bytes(),
        }
    }

    /// Processor time of the process and of the children it has waited for.
    pub(crate) fn cpu(&self) -> Duration {
        ticks(self.own_ticks + self.children_ticks)
    }

    /// Processor time of the children it has waited for alone.
    pub(crate) fn children_cpu(&self) -> Duration {
        ticks(self.children_ticks)
    }

    /// Does its environment, as it was at its last exec, have this variable?
    pub(crate) fn started_with(&self, variable: &str) -> bool {
        fs::read(format!("/proc/{}/environ", self.pid.as_raw_pid()))
            .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes()))
    }
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / clock_ticks_per_second().max(1))
}

fn proportional(rollup: &str) -> Option<u64> {
    let kilobytes = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    kilobytes.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// As long as one can be, nearly: 52 numbers and a name.
const STAT_BYTES: usize = 1024;

/// Files in `/proc` say that they are empty. Read in the usual way they come in small pieces, at a call each.
pub(crate) fn read_proc(path: impl AsRef<Path>, usual_bytes: usize) -> io::Result<String> {
    let mut text = String::with_capacity(usual_bytes);
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The process that asks.
pub(crate) fn myself() -> io::Result<Process> {
    parse(&read_proc("/proc/self/stat", STAT_BYTES)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is not understood"))
}

/// Every process there is.
pub(crate) fn all() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        // It may have ended since the directory was read.
        let Ok(stat) = read_proc(format!("/proc/{name}/stat"), STAT_BYTES) else { continue };
        processes.extend(parse(&stat));
    }
    Ok(processes)
}

/// Every process that descends from `ancestor`, without itself.
pub(crate) fn descendants_of(ancestor: Pid) -> io::Result<Vec<Process>> {
    Ok(below(ancestor, all()?))
}

fn below(ancestor: Pid, processes: Vec<Process>) -> Vec<Process> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes {
        if let Some(parent) = process.parent {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let more = children.remove(&process.pid).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// SIGKILL to all of them, and to their groups: a group is killed in one step, so a process cannot fork its way out of it.
/// `except` is a group that is not to be killed as a whole.
pub(crate) fn kill_all(processes: &[Process], except: Option<Pid>) {
    let groups: HashSet<Pid> = processes.iter().filter_map(|process| process.group).collect();
    // An error is a process that has ended since, or one of another user, which is found again and counted as left.
    for group in groups.into_iter().filter(|&group| Some(group) != except) {
        kill_process_group(group, Signal::KILL).ok();
    }
    for process in processes {
        kill_process(process.pid, Signal::KILL).ok();
    }
}

/// The name, in parentheses, is whatever the program wishes, so counting starts after the last parenthesis.
fn parse(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let pid = |text: &str| text.parse().ok().filter(|&raw| raw > 0).and_then(Pid::from_raw);
    // Fields are numbered from 1 in proc(5); the first of `fields` is number 3.
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    // The times of children are signed for the kernel and can be a little negative there.
    let time = |at: usize| field(at)?.parse::<i64>().ok().map(|ticks| ticks.max(0) as u64);
    Some(Process {
        pid: pid(head.split_once(' ')?.0)?,
        parent: pid(field(4)?),
        group: pid(field(5)?),
        session: pid(field(6)?),
        state: field(3)?.chars().next()?,
        own_ticks: number(14)? + number(15)?,
        children_ticks: time(16)? + time(17)?,
        resident_pages: number(24)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        parse(&format!("{pid} (x) S {parent} 5 6 0 0 0 0 0 0 0 10 20 3 4 0 0 0 0 0 0 77 0 0 0")).unwrap()
    }

    #[test]
    fn a_name_cannot_forge_the_fields() {
        let honest = process(8, 4);
        let hostile = "8 (x) S 1 1 1 (y) S 4 5 6 0 0 0 0 0 0 0 10 20 3 4 0 0 0 0 0 0 77 0 0 0";
        assert_eq!(parse(hostile), Some(honest.clone()));
        assert_eq!(
            (honest.parent, honest.group, honest.session),
            (Pid::from_raw(4), Pid::from_raw(5), Pid::from_raw(6))
        );
        assert_eq!(honest.resident_bytes(), 77 * page_size() as u64);
        assert_eq!(parse(""), None);
        assert_eq!(parse("8 (x) S 4"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let family = below(Pid::INIT, vec![process(4, 3), process(3, 2), process(2, 1), process(9, 8), process(5, 2)]);
        let mut found: Vec<i32> = family.iter().map(|process| process.pid.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5]);
    }

    #[test]
    fn the_real_proc_is_understood() {
        let me = myself().unwrap();
        assert_eq!(me.pid, rustix::process::getpid());
        assert!(all().unwrap().iter().any(|process| process.pid == me.pid));
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        assert!(proportional(&rollup).is_some_and(|bytes| bytes > 0), "{rollup}");
        let ended = Process { pid: Pid::from_raw(i32::MAX).unwrap(), ..me.clone() };
        assert_eq!(ended.proportional_bytes(), 0);
        assert!(me.resident_bytes() > 0);
    }
}
