//! How often the kernel has killed a process for want of memory. A SIGKILL does not say who sent it; this counter does.

use crate::processes::read_proc;

/// The count of this process's control group where there is one (version 2), else of the whole machine. A kill of
/// somebody else's process in the same moment can thus be taken for ours, but only if ours was killed by SIGKILL, too.
pub(crate) fn kills() -> Option<u64> {
    group_kills().or_else(|| count(&read_proc("/proc/vmstat", 8192).ok()?))
}

fn group_kills() -> Option<u64> {
    let groups = read_proc("/proc/self/cgroup", 1024).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    count(&read_proc(format!("/sys/fs/cgroup{}/memory.events", group.trim_end_matches('/')), 1024).ok()?)
}

fn count(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_have_the_counter_under_one_name() {
        assert_eq!(count("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("nr_free_pages 4\noom_kill 7\n"), Some(7));
        assert_eq!(count("nr_free_pages 4\n"), None);
        assert!(kills().is_some(), "this machine has the counter");
    }
}
