//! What can be wrong with a command, and why a program could not be started.

use std::io;
use std::path::PathBuf;

/// Why a command line is not a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Nothing but space.
    #[error("the command is empty")]
    Empty,
    /// A quote is opened and never closed.
    #[error("the {quote} at character {at} is never closed")]
    UnclosedQuote {
        /// `'` or `"`.
        quote: char,
        /// Where it is opened, counted from 1.
        at: usize,
    },
    /// A backslash with nothing after it.
    #[error("the command ends with a backslash that escapes nothing")]
    TrailingBackslash,
    /// The kernel ends words at a NUL.
    #[error("the command has a NUL character at {at}")]
    Nul {
        /// Where it is, counted from 1.
        at: usize,
    },
}

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name is in no directory of `PATH`.
    #[error("there is no program '{name}' in PATH")]
    NotInPath {
        /// The name looked for.
        name: String,
    },
    /// The file does not exist.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// The file looked for.
        path: PathBuf,
    },
    /// A directory or something else that is no file.
    #[error("{} is not a file", path.display())]
    NotAFile {
        /// The path looked at.
        path: PathBuf,
    },
    /// The file may not be executed.
    #[error("{} is not executable (chmod +x?)", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The kernel does not know what to do with the file.
    #[error("{} is neither a script with a #! line nor a binary for this machine", path.display())]
    NoFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file exists, but what it needs to run does not.
    #[error("{} names an interpreter that does not exist (see its #! line)", path.display())]
    NoInterpreter {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused for another reason.
    #[error("{name}: {error}")]
    Refused {
        /// The program as it was given.
        name: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The keeper could not be started, or did not do its work.
    #[error("the keeper of the program could not be started: {0}")]
    Keeper(io::Error),
}
