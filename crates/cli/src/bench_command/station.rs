//! The processes that are measured: this binary again, started by the benchmark.
//!
//! They end when their standard input does: a benchmark that is killed leaves nobody behind.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use windlass::{Client, RunningWorker};

use super::figures::Percentiles;
use super::job::{self, Tally};
use super::orders::{Answer, Order, Settled};
use super::produce;
use crate::exit::Outcome;
use crate::{log, server_command};

/// The first argument of a process that is a server; settings of the server follow.
pub const SERVER: &str = "__bench-server";
/// The first argument of a process that takes orders; the address of Windlass follows.
pub const STATION: &str = "__bench-station";

/// How often a worker is asked whether its last results are acknowledged.
const SETTLED_LOOK: Duration = Duration::from_millis(1);

/// Runs this process as one that is measured, if that is what it was started for.
pub fn main() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (role, rest) = arguments.split_first()?;
    let ended = match role.as_str() {
        SERVER => run(serve(rest)),
        STATION => run(take_orders(rest.first().cloned().unwrap_or_default())),
        _ => return None,
    };
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("windlass bench: {reason}");
            ExitCode::FAILURE
        }
    })
}

fn run(future: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(future)
}

/// Nobody is there any more to measure for.
fn leave() -> ! {
    std::process::exit(1)
}

async fn serve(settings: &[String]) -> Result<(), String> {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        while matches!(input.skip_until(b'\n'), Ok(1..)) {}
        leave();
    });
    let arguments = std::iter::once("server".to_owned()).chain(settings.iter().cloned());
    let matches = server_command::command().try_get_matches_from(arguments).map_err(|error| error.to_string())?;
    server_command::run(&matches).await.map_err(|error| error.to_string())
}

async fn take_orders(address: String) -> Result<(), String> {
    log::start("error", false).map_err(|error| error.to_string())?;
    let (sender, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        leave();
    });
    let client = Client::connect(address).await.map_err(|error| error.to_string())?;
    let mut station = Station { client, work: None };
    tell(&Answer::Ready)?;
    while let Some(line) = orders.recv().await {
        let order = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let answer = station.carry_out(order).await.unwrap_or_else(|failure| {
            let reason = failure.to_string();
            Answer::Failed { reason }
        });
        tell(&answer)?;
    }
    Ok(())
}

fn tell(answer: &Answer) -> Result<(), String> {
    let line = serde_json::to_string(answer).map_err(|error| error.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// A process that takes orders: a client, and a worker while there is one.
struct Station {
    client: Client,
    work: Option<(RunningWorker, Arc<Tally>)>,
}

impl Station {
    async fn carry_out(&mut self, order: Order) -> Outcome<Answer> {
        Ok(match order {
            Order::Submit(submit) => Answer::Submitted(produce::submit(&self.client, submit).await?),
            Order::Fill { stage, tasks } => {
                produce::fill(&self.client, &stage, tasks).await?;
                Answer::Filled
            }
            Order::Pace { stage, tasks, every } => {
                Answer::Paced { latency: produce::pace(&self.client, &stage, tasks, every).await? }
            }
            Order::Work { queues, concurrency } => {
                let tally = Arc::new(Tally::default());
                let worker = job::worker(&self.client, &queues, concurrency, &tally).start().await?;
                self.work = Some((worker, tally));
                Answer::Working
            }
            Order::Settle { tasks } => match self.work.take() {
                Some((worker, tally)) => Answer::Settled(settle(worker, &tally, tasks).await),
                None => Answer::Failed { reason: "there is no worker to wait for".to_owned() },
            },
        })
    }
}

async fn settle(worker: RunningWorker, tally: &Tally, tasks: u64) -> Settled {
    tally.reached(tasks).await;
    while worker.tasks_held() > 0 {
        tokio::time::sleep(SETTLED_LOOK).await;
    }
    let last = Instant::now();
    worker.shutdown().await;
    let took = tally.first().map_or(Duration::ZERO, |first| last.saturating_duration_since(first));
    Settled { took, pickup: Percentiles::of(tally.take_pickups_us()) }
}
