//! A worker of one task: runs the command it is given, with its stdin as the input, and says how it ended.

use std::future::pending;
use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

use windlass_exec::{Job, Limits, Program, run, shim_main};

fn main() -> ExitCode {
    if let Some(code) = shim_main() {
        return code;
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<(), Box<dyn std::error::Error>> {
    let command = std::env::args().nth(1).ok_or("usage: windlass-exec-probe COMMAND")?;
    let program = Program::parse(&command)?;
    program.check()?;
    let mut input = Vec::new();
    stdin().read_to_end(&mut input)?;
    let job = Job { input, ..Job::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(&program, job, &Limits::default(), pending()));
    stdout().write_all(&ended.stdout)?;
    eprint!("{}", ended.stderr_tail);
    println!("{}", ended.how);
    Ok(())
}
