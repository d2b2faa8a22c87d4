//! Runs any program for a task: parameters to its stdin, result from its stdout, the end of its stderr as the error.
//!
//! The program is not trusted to behave. [`run`] bounds its time, memory, processor time and output, and when it returns
//! (or is dropped, or the worker dies) nothing that the program started is left running.
//!
//! ```text
//! worker ── control socket ── keeper ── program ── whatever it starts
//!    └───────── pipes: stdin, stdout, stderr ─────────┘
//! ```
//!
//! Each run has a **keeper** of its own: the worker's binary, started once more, which starts the program as its child.
//! The keeper is a child subreaper, so a process that daemonises (double fork, `setsid`, a wiped environment) becomes
//! the keeper's child instead of init's. Therefore "has no children left" is exactly "nothing is left", also with many
//! programs running at once, and the keeper kills until that holds. A subreaper in the worker itself could not tell
//! whose orphan it has got. When the worker goes, however it goes, the control socket closes and the keeper kills: this
//! has none of the trap of a parent-death signal, which fires when the *thread* that started the program ends.
//!
//! What this cannot hold: a process of another user (`sudo`), one that an outside service starts on request (`at`,
//! `systemd-run`), and a fork bomb in which everybody takes a session of its own, which takes the processor away from
//! its keeper. Against the last a limit on processes helps, which only a container or a control group can set.
//!
//! Linux only: it needs child subreapers and `/proc`. The crate knows nothing of tasks, leases or HTTP, and it never decides what an exit code means.
//!
//! A binary that calls [`run`] must call [`shim_main`] first thing in `main`.

mod ended;
mod error;
mod job;
mod keeper;
mod oom;
mod orphans;
mod pipes;
mod processes;
mod program;
mod protocol;
mod run;
mod start;
mod streams;
mod words;

pub use ended::{Ended, How};
pub use error::{ParseError, StartError};
pub use job::{Job, Limits, Stop};
pub use keeper::shim_main;
pub use program::Program;
pub use run::run;
