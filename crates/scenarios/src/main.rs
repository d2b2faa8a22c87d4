//! Scheduling under load: simulations and measurements whose promises are checked. Exit code 1: a promise was not kept.

mod backlog;
mod claims;
mod cost;
mod ordering;
mod outage;
mod plot;
mod rate;
mod simulate;
mod stage;
mod upkeep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use stage::Outcomes;

/// Plays scheduling scenarios on a store in this process and checks what was promised.
#[derive(Parser)]
#[command(name = "windlass-scenarios", version)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Overload and a large old backlog, on a simulated clock
    Simulate {
        /// Where the pictures go
        #[arg(long, value_name = "FOLDER")]
        pictures: Option<PathBuf>,
        /// How many old tasks wait
        #[arg(long, default_value_t = 1_000_000)]
        backlog: usize,
    },
    /// Claims beside tasks that may not be taken
    Blocked {
        /// How many tasks of each kind
        #[arg(long, default_value_t = 1_000_000)]
        tasks: usize,
        /// Claims per figure
        #[arg(long, default_value_t = 500)]
        rounds: usize,
    },
    /// Submits and claims in front of a growing backlog, on any store
    Backlog {
        /// Where: an address as `windlass server --store` takes it
        #[arg(long, default_value = "sqlite:")]
        store: String,
        /// Backlogs to fill up to, in order
        #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
        sizes: Vec<usize>,
        /// Tasks of a paused type that wait beside
        #[arg(long, default_value_t = 0)]
        paused: usize,
        /// In the end, work for so long beside a transaction that is held open (PostgreSQL)
        #[arg(long, value_name = "SECONDS")]
        hold_open: Option<u64>,
        /// Calls per figure
        #[arg(long, default_value_t = 500)]
        rounds: usize,
        /// Where the picture goes
        #[arg(long, value_name = "FILE")]
        picture: Option<PathBuf>,
    },
    /// Claims with ten lanes and with ten thousand
    Lanes {
        /// Claims per figure
        #[arg(long, default_value_t = 500)]
        rounds: usize,
    },
    /// Ordering keys under failures and lost workers
    Ordering {
        /// How many keys
        #[arg(long, default_value_t = 10_000)]
        keys: u64,
        /// Tasks of each
        #[arg(long, default_value_t = 100)]
        per_key: u64,
    },
    /// A dispatch rate with four workers
    Rate {
        /// Starts a minute
        #[arg(long, default_value_t = 100)]
        per_minute: u32,
        /// How many at once after a pause
        #[arg(long)]
        burst: Option<u32>,
        /// For how long
        #[arg(long, default_value_t = 180.0)]
        seconds: f64,
    },
    /// A dependency that fails every time for a while
    Outage {
        /// Tasks that need it
        #[arg(long, default_value_t = 2_000)]
        tasks: usize,
        /// How long it is away
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// What each limit and key costs
    Cost {
        /// Tasks per figure
        #[arg(long, default_value_t = 50_000)]
        tasks: usize,
        /// Runs of which the median counts
        #[arg(long, default_value_t = 3)]
        repeat: usize,
    },
    /// All of them, small: that they work
    Smoke,
}

async fn smoke() -> Outcomes {
    simulate::run(None, 20_000).await?;
    claims::blocked(2_000, 20).await?;
    claims::lanes(20).await?;
    ordering::run(200, 20).await?;
    rate::run(1_200, Some(5), Duration::from_secs(4)).await?;
    outage::run(200, Duration::from_secs(2)).await?;
    cost::run(1_000, 1).await
}

#[tokio::main]
async fn main() -> ExitCode {
    let played = match Arguments::parse().scenario {
        Scenario::Simulate { pictures, backlog } => simulate::run(pictures.as_deref(), backlog).await,
        Scenario::Blocked { tasks, rounds } => claims::blocked(tasks, rounds).await,
        Scenario::Lanes { rounds } => claims::lanes(rounds).await,
        Scenario::Backlog { store: address, sizes, paused, hold_open, rounds, picture } => {
            let hold_open = hold_open.map(Duration::from_secs);
            backlog::run(&backlog::Plan { address, sizes, paused, hold_open, rounds }, picture.as_deref()).await
        }
        Scenario::Ordering { keys, per_key } => ordering::run(keys, per_key).await,
        Scenario::Rate { per_minute, burst, seconds } => {
            rate::run(per_minute, burst, Duration::from_secs_f64(seconds)).await
        }
        Scenario::Outage { tasks, seconds } => outage::run(tasks, Duration::from_secs_f64(seconds)).await,
        Scenario::Cost { tasks, repeat } => cost::run(tasks, repeat).await,
        Scenario::Smoke => smoke().await,
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-scenarios: {error}");
            ExitCode::FAILURE
        }
    }
}
