//! What the figures were measured on: a figure without its disk says nothing.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// How long the disk is measured.
const SYNC_SPAN: Duration = Duration::from_millis(500);
const BLOCK_BYTES: usize = 4_096;
/// The file that is written over and over, as the store writes over its log: 1 MiB.
const BLOCKS: u64 = 256;

/// The machine, as far as it tells.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// Their model.
    pub processor: Option<String>,
    /// The kernel and its version.
    pub kernel: Option<String>,
    /// The file system of the folder.
    pub file_system: Option<String>,
    /// Where the stores were.
    pub folder: Option<String>,
}

impl Machine {
    /// Looks at this machine, and at the disk of a folder.
    pub fn look(folder: Option<&Path>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let folder = folder.map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
        let mounts = read("/proc/self/mountinfo").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: read("/proc/cpuinfo").as_deref().and_then(model),
            kernel: read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {}", release.trim())),
            file_system: folder.as_deref().and_then(|folder| file_system(&mounts, folder)),
            folder: folder.map(|folder| folder.display().to_string()),
        }
    }
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The type of the file system that a folder is on: of the mount point that leads to it farthest.
fn file_system(mountinfo: &str, folder: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (places, kinds) = line.split_once(" - ")?;
        // Spaces in paths are written in octal.
        let point = places.split(' ').nth(4)?.replace("\\040", " ");
        folder.starts_with(&point).then(|| (point.len(), kinds.split(' ').next().unwrap_or_default().to_owned()))
    };
    // Of two on the same point the later one is on top.
    mountinfo.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// How often a second 4 KiB reach the disk of a folder, each write synced before the next.
pub fn syncs_per_second(folder: &Path) -> io::Result<f64> {
    let path = folder.join("sync");
    let file = std::fs::File::create_new(&path)?;
    let block = [0x5a; BLOCK_BYTES];
    for number in 0..BLOCKS {
        file.write_all_at(&block, number * BLOCK_BYTES as u64)?;
    }
    file.sync_all()?;
    let begun = Instant::now();
    let mut syncs = 0;
    while begun.elapsed() < SYNC_SPAN {
        file.write_all_at(&block, syncs % BLOCKS * BLOCK_BYTES as u64)?;
        file.sync_data()?;
        syncs += 1;
    }
    let rate = super::figures::rate(syncs, begun.elapsed());
    std::fs::remove_file(&path)?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farthest_and_uppermost_mount_counts() {
        let mountinfo = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 21 0:25 / /tmp rw - tmpfs tmpfs rw\n\
            31 30 0:26 / /tmp/a\\040b rw - xfs /dev/vdb rw\n\
            32 21 0:27 / /tmp rw - btrfs /dev/vdc rw\n\
            nonsense";
        let of = |folder: &str| file_system(mountinfo, Path::new(folder));
        assert_eq!(of("/home/x").as_deref(), Some("ext4"));
        assert_eq!(of("/tmp/x").as_deref(), Some("btrfs"));
        assert_eq!(of("/tmp/a b/c").as_deref(), Some("xfs"));
        assert_eq!(of("/tmpx").as_deref(), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn the_model_is_read() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Some CPU\n").as_deref(), Some("Some CPU"));
        assert_eq!(model(""), None);
    }
}
