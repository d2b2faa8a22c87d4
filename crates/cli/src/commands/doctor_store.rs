//! `windlass doctor --store`: a look at the data folder of an embedded store, from outside and without changing it.

use std::fs::{File, TryLockError};
use std::path::Path;

use rustix::fs::{Access, access, statvfs};

use super::doctor::Check;
use crate::exit::{Failure, Outcome};
use crate::secrets::masked;
use crate::show::escape::plain;

/// Below this a write may fail soon.
const LITTLE: u64 = 1024 * 1024 * 1024;
/// Below this writes do fail soon.
const TOO_LITTLE: u64 = 100 * 1024 * 1024;

/// Looks at the folder.
pub fn checks(address: &str) -> Outcome<Vec<Check>> {
    let Some(path) = address.strip_prefix("sqlite:").filter(|path| !path.is_empty()) else {
        let failure =
            Failure::usage(format!("--store {} cannot be looked at: it must be sqlite:PATH", plain(&masked(address))));
        return Err(failure.hint(if address.contains("://") {
            "A database is looked at by a server that uses it: windlass doctor --server URL. At its start a server says what is \
             wrong with it."
        } else {
            "It is what the server was started with; the default is sqlite:windlass-data."
        }));
    };
    let folder = Path::new(path);
    if !folder.is_dir() {
        let next_step =
            "Is this the right folder? The server makes it when it starts: windlass server --store sqlite:PATH";
        return Ok(vec![Check::bad("folder", format!("{path} is no folder"), next_step)]);
    }
    let mut checks = vec![Check::good("folder", format!("{path} is there"))];
    checks.push(writable(folder));
    checks.extend(space(folder));
    checks.extend(files(folder));
    checks.push(in_use(folder));
    Ok(checks)
}

fn writable(folder: &Path) -> Check {
    match access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::good("writable", "this user may write to it"),
        Err(error) => Check::bad(
            "writable",
            format!("this user may not write to it: {error}"),
            "Change its owner, or run as the user that owns it.",
        ),
    }
}

fn space(folder: &Path) -> Option<Check> {
    let disk = statvfs(folder).ok()?;
    let (free, all) = (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize));
    let detail = format!("{} free of {}", bytes(free), bytes(all));
    Some(match free {
        ..TOO_LITTLE => Check::bad("disk", detail, "Free some space: without it tasks are refused."),
        TOO_LITTLE..LITTLE => Check::warn("disk", detail, "Free some space before it is used up."),
        LITTLE.. => Check::good("disk", detail),
    })
}

fn files(folder: &Path) -> Vec<Check> {
    let size = |name: &str| std::fs::metadata(folder.join(name)).ok().map(|metadata| metadata.len());
    match size("windlass.db") {
        None => vec![Check::warn(
            "files",
            "there is no windlass.db in it",
            "Nothing was ever stored here; is it the right folder?",
        )],
        Some(database) => {
            let log = size("windlass.db-wal").unwrap_or_default();
            vec![Check::good("files", format!("database {}, write-ahead log {}", bytes(database), bytes(log)))]
        }
    }
}

/// Who runs the store holds a lock on a file. It is tried and let go at once.
fn in_use(folder: &Path) -> Check {
    let Ok(lock) = File::options().read(true).open(folder.join("windlass.lock")) else {
        return Check::good("in use", "no: no server has it open");
    };
    match lock.try_lock() {
        Ok(()) => Check::good("in use", "no: no server has it open"),
        Err(TryLockError::WouldBlock) => Check::good("in use", "yes: a server has it open"),
        Err(TryLockError::Error(error)) => {
            Check::warn("in use", format!("cannot tell: {error}"), "Is it on a network file system? Use a local disk.")
        }
    }
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (count as f64, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{size:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_told_in_their_unit() {
        assert_eq!(bytes(512), "512 bytes");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }
}
