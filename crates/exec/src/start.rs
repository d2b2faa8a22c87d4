//! Starts a keeper and hands it the program.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use crate::job::{Job, Limits};
use crate::pipes;
use crate::program::Program;
use crate::protocol::{KEEPER_WORD, Order, Word};
use crate::streams::{Head, Input, Output, Tail};

/// The binary that is running, also when its file has been replaced by a newer version meanwhile.
const THIS_BINARY: &str = "/proc/self/exe";

/// Marks all processes of a run, for the case that the keeper is lost.
const RUN_VARIABLE: &str = "WINDLASS_EXEC_RUN";

/// A keeper with its program, and the worker's ends of all that leads to them.
///
/// Dropping it closes the control socket, and then the keeper kills the program and ends; the runtime waits for it.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) keeper: Child,
    pub(crate) input: Input,
    pub(crate) stdout: Output<Head>,
    pub(crate) stderr: Output<Tail>,
    /// The marking variable with its value.
    pub(crate) mark: String,
    words: Lines<BufReader<OwnedReadHalf>>,
    wishes: OwnedWriteHalf,
}

impl Kept {
    pub(crate) fn start(program: &Program, job: Job, limits: &Limits) -> io::Result<Self> {
        // All of these are closed on exec, so no program that is started at the same time gets hold of them. It would
        // keep them open, and an end that should come would not.
        let (their_stdin, our_stdin) = io::pipe()?;
        let (our_stdout, their_stdout) = io::pipe()?;
        let (our_stderr, their_stderr) = io::pipe()?;
        let (our_control, their_control) = StdUnixStream::pair()?;
        our_control.set_nonblocking(true)?;
        pipes::send(&our_control, &[their_stdin.into(), their_stdout.into(), their_stderr.into()])?;

        let run_id = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let order = Order { memory_bytes: limits.memory_bytes, cpu: limits.cpu, kill_grace: limits.kill_grace };
        let keeper = Command::new(program.keeper().unwrap_or(Path::new(THIS_BINARY)))
            .arg0("windlass")
            .arg(KEEPER_WORD)
            .args(order.to_arguments())
            .arg(program.name())
            .args(program.arguments())
            .envs(job.environment)
            .env(RUN_VARIABLE, format!("{run_id:016x}"))
            .stdin(OwnedFd::from(their_control))
            .stdout(Stdio::null())
            .spawn()?;

        let (read, wishes) = UnixStream::from_std(our_control)?.into_split();
        Ok(Self {
            keeper,
            input: Input::new(our_stdin.into(), job.input)?,
            stdout: Output::new(our_stdout.into(), Head::new(limits.stdout_bytes))?,
            stderr: Output::new(our_stderr.into(), Tail::new(limits.stderr_tail_bytes))?,
            mark: format!("{RUN_VARIABLE}={run_id:016x}"),
            words: BufReader::new(read).lines(),
            wishes,
        })
    }

    /// One thing that happens: input taken, output read, or a word of the keeper. `Err` when it has no more to say.
    /// Safe to drop and to call again.
    pub(crate) async fn next(&mut self) -> Result<Option<Word>, Silence> {
        tokio::select! {
            line = self.words.next_line() => match line {
                Ok(Some(line)) => line.parse().map(Some).map_err(|()| Silence),
                Ok(None) | Err(_) => Err(Silence),
            },
            () = self.input.feed(), if self.input.is_open() => Ok(None),
            () = self.stdout.drain(), if self.stdout.is_open() => Ok(None),
            () = self.stderr.drain(), if self.stderr.is_open() => Ok(None),
        }
    }

    /// Says what the keeper should do. A keeper that does not hear it is gone, which `next` will tell.
    pub(crate) async fn wish(&mut self, wish: u8) {
        self.wishes.write_all(&[wish]).await.ok();
    }

    /// Reads what the program left in its pipes, to the end.
    pub(crate) async fn drain_output(&mut self) {
        while self.stdout.is_open() {
            self.stdout.drain().await;
        }
        while self.stderr.is_open() {
            self.stderr.drain().await;
        }
    }
}

/// The keeper ended, or is not a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Silence;
