//! The program to run, as somebody wrote it on a command line.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::error::{ParseError, StartError};
use crate::words;

/// A parsed command: a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    name: String,
    arguments: Vec<String>,
    keeper: Option<PathBuf>,
}

impl Program {
    /// Splits a command line like a shell: quotes and backslashes, but no expansion of any kind.
    pub fn parse(command: &str) -> Result<Self, ParseError> {
        let mut words = words::split(command)?;
        let name = words.remove(0);
        if name.is_empty() {
            return Err(ParseError::Empty);
        }
        Ok(Self { name, arguments: words, keeper: None })
    }

    /// Takes another binary as keeper than the one that is running. It must call [`shim_main`](crate::shim_main).
    #[must_use]
    pub fn kept_by(self, keeper: impl Into<PathBuf>) -> Self {
        Self { keeper: Some(keeper.into()), ..self }
    }

    /// The program as it was given: a name to look up in `PATH`, or a path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its arguments.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    pub(crate) fn keeper(&self) -> Option<&Path> {
        self.keeper.as_deref()
    }

    /// Finds the file that would be run, or says why there is none. Meant for the start of a worker: a wrong name should
    /// not wait for the first task to be noticed.
    pub fn check(&self) -> Result<PathBuf, StartError> {
        self.look_up(env::var_os("PATH").as_deref())
    }

    fn look_up(&self, search_path: Option<&OsStr>) -> Result<PathBuf, StartError> {
        if self.name.contains('/') {
            return runnable(PathBuf::from(&self.name));
        }
        // What is found but cannot be run is the better explanation, if nothing further on can be.
        let mut unfit = None;
        for directory in search_path.map(env::split_paths).into_iter().flatten() {
            match runnable(directory.join(&self.name)) {
                Ok(path) => return Ok(path),
                Err(StartError::NotFound { .. }) => {}
                Err(error) => unfit = unfit.or(Some(error)),
            }
        }
        Err(unfit.unwrap_or_else(|| StartError::NotInPath { name: self.name.clone() }))
    }

    /// Puts the kernel's refusal to start this program into words.
    pub(crate) fn refused(&self, error: io::Error) -> StartError {
        match (Errno::from_io_error(&error), self.check()) {
            (Some(Errno::NOENT | Errno::ACCESS), Err(reason)) => reason,
            (Some(Errno::NOENT), Ok(path)) => StartError::NoInterpreter { path },
            (Some(Errno::NOEXEC), Ok(path)) => StartError::NoFormat { path },
            _ => StartError::Refused { name: self.name.clone(), error },
        }
    }
}

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(command: &str) -> Result<Self, ParseError> {
        Self::parse(command)
    }
}

fn runnable(path: PathBuf) -> Result<PathBuf, StartError> {
    let Ok(metadata) = path.metadata() else {
        return Err(StartError::NotFound { path });
    };
    if !metadata.is_file() {
        return Err(StartError::NotAFile { path });
    }
    if access(&path, Access::EXEC_OK).is_err() {
        return Err(StartError::NotExecutable { path });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_and_a_path_is_not() {
        let search_path = OsStr::new("/nowhere:/usr/bin:/bin");
        let found = |command: &str| Program::parse(command).unwrap().look_up(Some(search_path));

        assert!(found("sh -c true").unwrap().ends_with("sh"));
        assert_eq!(found("/bin/sh").unwrap(), Path::new("/bin/sh"));
        assert!(matches!(found("no-such-program"), Err(StartError::NotInPath { name }) if name == "no-such-program"));
        assert!(matches!(found("./no-such-program"), Err(StartError::NotFound { .. })));
        assert!(matches!(found("/usr"), Err(StartError::NotAFile { .. })));
        assert!(matches!(found("/etc/passwd"), Err(StartError::NotExecutable { .. })));
    }

    #[test]
    fn a_command_has_a_program() {
        assert_eq!(Program::parse("'' a"), Err(ParseError::Empty));
        let program: Program = "./resize.sh --fast 'a b'".parse().unwrap();
        assert_eq!(program.name(), "./resize.sh");
        assert_eq!(program.arguments(), ["--fast", "a b"]);
    }
}
