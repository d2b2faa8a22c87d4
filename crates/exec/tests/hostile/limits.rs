//! Programs that use too much.

use std::future::pending;
use std::time::Duration;

use windlass_exec::{How, Limits};

use crate::support::{Trial, impatient, python, sh};

const MEGABYTE: u64 = 1 << 20;

fn memory(megabytes: u64) -> Limits {
    Limits { memory_bytes: Some(megabytes * MEGABYTE), ..impatient() }
}

fn cpu(milliseconds: u64) -> Limits {
    Limits { cpu: Some(Duration::from_millis(milliseconds)), ..impatient() }
}

#[tokio::test]
async fn too_much_memory_is_killed() {
    let script = "import time\nkept = []\nwhile len(kept) < 60: kept.append(b'x' * (10 << 20)); time.sleep(0.005)\ntime.sleep(1000)";
    let ended = Trial::new().run(&python(script), &memory(100), pending()).await;
    let How::OutOfMemory { used, limit } = ended.how else { panic!("{} {}", ended.how, ended.stderr_tail) };
    assert_eq!(limit, 100 * MEGABYTE);
    assert!(used > limit && used < 600 * MEGABYTE, "{used}");
    assert_eq!(ended.peak_memory_bytes, Some(used));
}

#[tokio::test]
async fn memory_of_all_descendants_is_added_up() {
    let script = "
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        kept = b'x' * (40 << 20)
        time.sleep(1000)
time.sleep(1000)
";
    let ended = Trial::new().run(&python(script), &memory(100), pending()).await;
    assert!(matches!(ended.how, How::OutOfMemory { used, .. } if used > 100 * MEGABYTE), "{}", ended.how);
}

/// Forked children share what their parent had. Counted once per process, this would be 360 MB.
#[tokio::test]
async fn shared_memory_is_counted_once() {
    let script = "
import os, time
kept = bytearray(b'x') * (60 << 20)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(0.4)
        os._exit(0)
for _ in range(5): os.wait()
";
    let ended = Trial::new().run(&python(script), &memory(150), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{} {}", ended.how, ended.stderr_tail);
    assert!(ended.peak_memory_bytes.is_some_and(|peak| peak < 150 * MEGABYTE), "{:?}", ended.peak_memory_bytes);
}

/// Go, Java and Node reserve far more than they use.
#[tokio::test]
async fn reserved_addresses_are_not_memory() {
    let script = "import mmap, time\nreserved = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)\ntime.sleep(0.1)\nprint('fine')";
    let ended = Trial::new().run(&python(script), &memory(100), pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{} {}", ended.how, ended.stderr_tail);
}

#[tokio::test]
async fn too_much_processor_time_is_killed() {
    let ended = Trial::new().run(&sh("while :; do :; done"), &cpu(300), pending()).await;
    assert!(matches!(ended.how, How::CpuLimit), "{}", ended.how);
    let used = ended.cpu.unwrap();
    assert!(used >= Duration::from_millis(290) && used < Duration::from_secs(2), "{used:?}");
}

#[tokio::test]
async fn processor_time_of_children_counts_living_and_ended() {
    let many_short = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
    let some_long = "for i in 1 2 3; do setsid sh -c 'while :; do :; done' & done; wait";
    for script in [many_short, some_long] {
        let ended = Trial::new().run(&sh(script), &cpu(300), pending()).await;
        assert!(matches!(ended.how, How::CpuLimit), "{script}: {}", ended.how);
    }
}

#[tokio::test]
async fn the_kernels_own_limit_is_the_backstop() {
    let ended = Trial::new().run(&sh("ulimit -S -t; kill -XCPU $$"), &cpu(5_000), pending()).await;
    assert!(matches!(ended.how, How::CpuLimit), "{}", ended.how);
    assert_eq!(ended.stdout, b"7\n");
}

#[tokio::test]
async fn within_the_limits_nothing_happens() {
    let limits = Limits { memory_bytes: Some(500 * MEGABYTE), ..cpu(10_000) };
    let ended = Trial::new().run(&sh("sleep 0.1; echo fine"), &limits, pending()).await;
    assert!(matches!(ended.how, How::Exited(0)), "{}", ended.how);
    assert!(ended.peak_memory_bytes.is_some_and(|peak| peak > 0 && peak < 50 * MEGABYTE));
}

/// A real kill by the kernel, in a control group (version 1) with 30 MB.
#[tokio::test]
#[ignore = "needs root and the memory controller at /sys/fs/cgroup/memory"]
async fn a_kill_by_the_kernel_is_told_apart() {
    let script = r#"
        group=/sys/fs/cgroup/memory/$TRIAL
        mkdir $group && echo 31457280 > $group/memory.limit_in_bytes && echo $$ > $group/cgroup.procs || exit 1
        WHAT python3 -c 'x = b"x" * (100 << 20)'
    "#;
    for (what, name) in [("exec", "the program"), ("", "a child of the program")] {
        let trial = Trial::new();
        let ended = trial.run(&sh(&script.replace("WHAT", what)), &impatient(), pending()).await;
        std::fs::remove_dir(format!("/sys/fs/cgroup/memory/{}", trial.job.environment[0].1)).unwrap();
        assert!(matches!(ended.how, How::KernelOutOfMemory), "{name}: {} {}", ended.how, ended.stderr_tail);
    }
}
