//! `windlass worker`: runs any program for tasks. Parameters go to its stdin, the result comes from its stdout, its exit
//! code says how it went.
//!
//! The worker's part (polling, leases, results) is the SDK's, the program's (limits, killing) is that of `windlass-exec`.
//! Here is what connects the two.

mod attempt;
mod environment;
mod outcome;
mod served;
mod size;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use windlass::Worker;
use windlass_exec::Limits;

use crate::connection::ServerFlags;
use crate::exit::{Failure, Outcome};
use crate::input::duration;
use crate::log;
use attempt::Rules;
use served::Served;

/// What the server keeps of an error, less room for its first line. See `windlass_core::limits::MESSAGE_BYTES`.
const STDERR_TAIL_BYTES: usize = windlass_core::limits::MESSAGE_BYTES - 1_024;

/// Over and above the grace, killing and reporting may take this long before the worker gives up on it.
const KILL_SLACK: Duration = Duration::from_secs(10);

/// For `--help`.
const EXAMPLES: &str = "\
The program gets the parameters as JSON on stdin, and prints the result: JSON, or any text.
  exit 0   completed              exit 65  permanent failure: a dead letter at once
  exit 75  failed, try again      others   failed, tried again as the task's retry policy says
The end of stderr is kept as the error. In the environment: WINDLASS_TASK_ID, WINDLASS_TASK_TYPE, WINDLASS_ATTEMPT,
WINDLASS_MAX_RETRIES, WINDLASS_QUEUE, WINDLASS_TRACE_ID, TRACEPARENT, WINDLASS_IDEMPOTENCY_KEY,
WINDLASS_DEADLINE_SECONDS (time left), WINDLASS_TAG_<KEY>; and all that the worker itself was started with.

A command is split into words like in a shell, but nothing is expanded: use sh -c '…' for that.

At a cancellation, a timeout and a shutdown the program and all it started get SIGTERM, and SIGKILL after --kill-grace.
SIGTERM at the worker: no new tasks, programs may finish within --shutdown-timeout, the rest is stopped and given back.

Examples:
  windlass worker --exec resize_image=./resize.sh --concurrency 4
  windlass worker --exec shout='tr a-z A-Z' --exec ocr='python3 ocr.py --fast' --memory-limit 512MB --cpu-limit 5m
  windlass worker --exec train='sh -c \"nice ./train > /dev/null\"' --queues models --capabilities gpu";

#[derive(Args, Debug)]
struct Flags {
    /// Run COMMAND for every task of this type; may be given several times
    #[arg(long, value_name = "TYPE=COMMAND", required = true, value_parser = served::parse)]
    exec: Vec<Served>,
    /// Programs that run at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Serve only these queues
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    queues: Vec<String>,
    /// What this worker can do that not every worker can
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    capabilities: Vec<String>,
    /// What people see it as
    #[arg(long)]
    name: Option<String>,
    /// The pool it belongs to
    #[arg(long)]
    pool: Option<String>,
    /// The version of the programs, to tell a new release from the one before
    #[arg(long)]
    version: Option<String>,
    /// Memory that a program and all it starts may use
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory_limit: Option<u64>,
    /// Processor time that a program and all it starts may use
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    cpu_limit: Option<Duration>,
    /// How long after SIGTERM a program is killed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    kill_grace: Duration,
    /// How long programs may go on when the worker is told to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    shutdown_timeout: Duration,
    /// Serve /healthz, /readyz and /metrics here, such as 127.0.0.1:9090
    #[arg(long, value_name = "ADDRESS:PORT")]
    health: Option<SocketAddr>,
    /// What is logged
    #[arg(long, env = "WINDLASS_LOG", hide_env_values = true, default_value = "info")]
    log: String,
    /// How it is logged
    #[arg(long, env = "WINDLASS_LOG_FORMAT", hide_env_values = true, default_value = "pretty", value_parser = ["pretty", "json"])]
    log_format: String,
    #[command(flatten)]
    server: ServerFlags,
}

/// The command.
pub fn command() -> Command {
    Flags::augment_args(Command::new("worker").about("Runs any program for tasks").after_help(EXAMPLES))
}

/// Runs tasks until a signal.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let flags = Flags::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    log::start(&flags.log, flags.log_format == "json").map_err(|error| Failure::usage(error.to_string()))?;
    served::check(&flags.exec)?;
    let client = flags.server.client().connect().await?;
    let what = flags.exec.iter().map(|Served { task_type, program }| format!("{task_type}={}", program.name()));
    let (what, server) = (what.collect::<Vec<_>>().join(", "), client.addresses().join(", "));
    tracing::info!("worker runs {what}, {} at once, for {server}", flags.concurrency);
    flags.worker(Worker::new(&client)).run().await?;
    tracing::info!("stopped");
    Ok(())
}

impl Flags {
    fn worker(self, worker: Worker) -> Worker {
        let rules = Arc::new(Rules {
            limits: Limits {
                memory_bytes: self.memory_limit,
                cpu: self.cpu_limit,
                kill_grace: self.kill_grace,
                stderr_tail_bytes: STDERR_TAIL_BYTES,
                ..Limits::default()
            },
            shutdown_timeout: self.shutdown_timeout,
        });
        let killing = self.kill_grace + KILL_SLACK;
        let mut worker = worker
            .concurrency(self.concurrency as usize)
            .stop_grace(killing)
            // Programs are stopped by then, and their tasks given back: nobody else gets a task that still runs here.
            .shutdown_timeout(self.shutdown_timeout + killing);
        for Served { task_type, program } in self.exec {
            let (program, rules) = (Arc::new(program), Arc::clone(&rules));
            worker = worker.handle_raw(task_type, move |parameters, context| {
                let (program, rules) = (Arc::clone(&program), Arc::clone(&rules));
                async move { attempt::run(&program, &rules, &parameters, &context).await }
            });
        }
        worker = self.queues.into_iter().fold(worker, Worker::queue);
        worker = self.capabilities.into_iter().fold(worker, Worker::capability);
        if let Some(name) = self.name {
            worker = worker.name(name);
        }
        if let Some(pool) = self.pool {
            worker = worker.pool(pool);
        }
        if let Some(version) = self.version {
            worker = worker.version(version);
        }
        if let Some(address) = self.health {
            worker = worker.health_address(address);
        }
        worker
    }
}
