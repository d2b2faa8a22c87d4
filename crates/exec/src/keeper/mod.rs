//! The keeper: the parent of one program. It starts the program, watches its limits, kills what is left of it, and tells
//! the worker. It never reads or writes the program's input and output.

mod control;
mod limits;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use rustix::process::{Pid, Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit, setsid};
use tokio::signal::unix::{SignalKind, signal};

use crate::pipes::{self, Pipes};
use crate::protocol::{KEEPER_WORD, Order, Word};
use crate::{oom, processes};
use control::Control;
use watch::Watch;

/// Does the work of a keeper, if this process was started to be one. Call it first thing in `main`, before there are
/// threads or a runtime, and return what it gives.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = windlass_exec::shim_main() {
///         return code;
///     }
///     // The command line, the worker.
///     std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn shim_main() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != KEEPER_WORD {
        return None;
    }
    // Standard error is the worker's: what goes wrong here is not the program's own word.
    Some(match keep(arguments.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keeper of a program: {error}");
            ExitCode::FAILURE
        }
    })
}

fn keep(arguments: Vec<OsString>) -> io::Result<()> {
    let (order, command) = understand(arguments)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not started by a worker, or by another version"))?;
    // A copy that is closed on exec. The first one is replaced by the program's stdin.
    let control = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let pipes = pipes::receive(&control)?;
    // A session of its own has no terminal: Ctrl-C at the worker is the worker's to deal with.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    // In `ps` and `top`. Not the name of the worker, so that `pkill -9` of the workers leaves the keepers to clean up.
    fs::write("/proc/self/comm", "job-keeper").ok();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(start_and_watch(order, command, control, pipes))
}

fn understand(mut arguments: Vec<OsString>) -> Option<(Order, Command)> {
    let program_and_rest = arguments.split_off(arguments.len().min(3));
    let [memory, cpu, grace] = arguments.try_into().ok()?;
    let order = Order::from_arguments([memory.to_str()?, cpu.to_str()?, grace.to_str()?])?;
    let (program, rest) = program_and_rest.split_first()?;
    let mut command = Command::new(program);
    command.args(rest);
    Some((order, command))
}

async fn start_and_watch(order: Order, command: Command, control: UnixStream, pipes: Pipes) -> io::Result<()> {
    // Before the program starts, so that no end of a child is missed.
    let child_ended = signal(SignalKind::child())?;
    // Whoever stops the worker's whole control group or all of its processes means the worker; it decides when the
    // program has to stop. Handlers, and not "ignore", because the program would inherit the latter; but what is ignored
    // already (as under `nohup`) the program shall inherit.
    let mut unheard = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        if !is_ignored(kind) {
            unheard.push(signal(kind)?);
        }
    }

    // From the start of the program on nothing may fail: whoever gives up leaves it behind.
    let oom_kills = oom::kills();
    let keeper = processes::myself()?;
    control.set_nonblocking(true)?;
    let mut control = Control::new(tokio::net::UnixStream::from_std(control)?);
    control.say(&Word::Here).await;
    match start(order, command, pipes) {
        Ok(program) => Watch::new(order, program, control, child_ended, oom_kills, keeper).until_over().await,
        Err(error) => control.say(&Word::Refused(error.raw_os_error().unwrap_or(0))).await,
    }
    Ok(())
}

/// Whether this process ignores a signal, by the mask that the kernel shows.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Starts the program as the leader of a new process group, with what it should inherit.
#[allow(clippy::zombie_processes, reason = "the keeper waits for every child it has, whoever started it")]
fn start(order: Order, mut command: Command, [stdin, stdout, stderr]: Pipes) -> io::Result<Pid> {
    command.stdin(stdin).stdout(stdout).stderr(Stdio::from(stderr)).process_group(0);

    // Limits and the OOM score are inherited, so they are the keeper's own for as long as the start takes. They are
    // precautions: a machine that refuses them still runs the program.
    lower(Resource::Core, 0);
    let old_score = fs::read("/proc/self/oom_score_adj");
    fs::write("/proc/self/oom_score_adj", "1000").ok();
    let old_cpu = getrlimit(Resource::Cpu);
    if let Some(cpu) = order.cpu {
        // Per process, and above the limit: who gets here has escaped a look at the sum.
        lower(Resource::Cpu, cpu.as_secs().saturating_add(2));
    }

    let started = command.spawn();

    setrlimit(Resource::Cpu, old_cpu).ok();
    if let Ok(score) = old_score {
        fs::write("/proc/self/oom_score_adj", score).ok();
    }
    let child = started?;
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::other("the program has no process id"))
}

/// The soft limit alone: the hard one could not be raised again.
fn lower(resource: Resource, soft: u64) {
    let old = getrlimit(resource);
    if old.current.is_none_or(|current| soft < current) {
        setrlimit(resource, Rlimit { current: Some(soft), ..old }).ok();
    }
}
