//! The chaos test: several servers on one database under load, while servers and the database are killed; at the end the
//! history is checked, and that all servers and the database agree.

mod databases;
mod report;
mod run;

use std::path::PathBuf;

use crate::error::HarnessError;

pub use databases::Database;
pub use report::{Report, Reports};

/// How the chaos test is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The `windlass` program to test
    #[arg(long, value_name = "PATH")]
    pub binary: PathBuf,
    /// The databases, one after another; their addresses are in WINDLASS_TEST_…_URL and WINDLASS_TEST_SERVERS
    #[arg(long = "store", value_name = "NAME", required = true)]
    pub stores: Vec<Database>,
    /// Servers on the database
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,
    /// Tasks that are submitted; their results add some more
    #[arg(long, default_value_t = 20_000)]
    pub tasks: u64,
    /// How often servers are killed and started again
    #[arg(long, default_value_t = 10)]
    pub kills: u64,
    /// How often the database is killed and started again
    #[arg(long, default_value_t = 0)]
    pub breaks: u64,
    /// Decides everything that is random in the run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Clients that submit
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub submitters: u32,
    /// Workers
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub workers: u32,
    /// Lease given to workers
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    pub lease_seconds: f64,
    /// Heartbeat interval of workers
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub heartbeat_seconds: f64,
    /// A longer time without any acknowledged write is a violation
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    pub pause_seconds_max: f64,
    /// Everything has to have ended this long after the last task was submitted
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub drain_seconds: u64,
    /// Where the folders of the runs are made; the system's folder for temporary files unless given
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Keep the folders of the runs, with the servers' logs, also when all went well
    #[arg(long)]
    pub keep: bool,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the history of each run as JSON lines into its folder, and keep it
    #[arg(long)]
    pub history: bool,
}

/// Runs the chaos test on each of the databases. A report with violations is no error of the harness.
pub async fn run(options: &Options) -> Result<Reports, HarnessError> {
    let mut reports = Vec::new();
    for database in &options.stores {
        let report = run::run(options, *database).await?;
        println!("{report}");
        reports.push(report);
    }
    let reports = Reports { reports };
    if let Some(path) = &options.json {
        reports.write(path)?;
    }
    Ok(reports)
}
