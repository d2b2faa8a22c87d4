//! The scripts that run on the server.

use redis::Cmd;

/// A script and its name by content.
pub(crate) struct Script {
    source: String,
    hash: String,
}

/// Finishing and deleting must go on when memory is full, or nothing would ever make room.
const ALLOWED_WHEN_FULL: &str = "#!lua flags=allow-oom\n";
const REFUSED_WHEN_FULL: &str = "#!lua\n";

impl Script {
    fn new(parts: &[&str]) -> Self {
        let source = parts.concat();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }

    pub(crate) fn by_hash(&self, keys: &[String], args: &[Vec<u8>]) -> Cmd {
        call("EVALSHA", &self.hash, keys, args)
    }

    pub(crate) fn by_source(&self, keys: &[String], args: &[Vec<u8>]) -> Cmd {
        call("EVAL", &self.source, keys, args)
    }
}

fn call(name: &str, script: &str, keys: &[String], args: &[Vec<u8>]) -> Cmd {
    let bytes: usize = keys.iter().map(String::len).sum::<usize>() + args.iter().map(Vec::len).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), bytes + script.len() + 16);
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    for arg in args {
        command.arg(arg.as_slice());
    }
    command
}

/// All of them.
pub(crate) struct Scripts {
    /// Appends an entry with new tasks.
    pub(crate) commit_new: Script,
    /// Appends an entry without.
    pub(crate) commit: Script,
    pub(crate) apply: Script,
    pub(crate) rebase: Script,
    pub(crate) read: Script,
    pub(crate) lead: Script,
    pub(crate) release: Script,
    pub(crate) number: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let ops = include_str!("../scripts/ops.lua");
        let commit = include_str!("../scripts/commit.lua");
        let alone = |source| Script::new(&[ALLOWED_WHEN_FULL, source]);
        Self {
            commit_new: Script::new(&[REFUSED_WHEN_FULL, ops, commit]),
            commit: Script::new(&[ALLOWED_WHEN_FULL, ops, commit]),
            apply: Script::new(&[ALLOWED_WHEN_FULL, ops, include_str!("../scripts/apply.lua")]),
            rebase: alone(include_str!("../scripts/rebase.lua")),
            read: Script::new(&["#!lua flags=no-writes\n", include_str!("../scripts/read.lua")]),
            lead: alone(include_str!("../scripts/lead.lua")),
            release: alone(include_str!("../scripts/release.lua")),
            number: alone(include_str!("../scripts/number.lua")),
        }
    }
}
