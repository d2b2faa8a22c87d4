//! The crash test: clients load a server that is killed again and again; at the end the history is checked.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::checker::{Evidence, Limits, check};
use crate::clock::{Clock, run_number};
use crate::error::HarnessError;
use crate::random::Random;

use crate::load::server::{ServerProcess, ServerSetup, free_address, make_folder};
use crate::load::settle::Reader;
use crate::load::workload::Workload;
use crate::load::world::{Habits, Phase, World};
use crate::load::{join, observer, submitter, within_time, worker};
pub use report::Report;

/// Retries of every task in the run.
const MAX_RETRIES: u64 = 4;
/// Lapsed leases after which the server gives a task up; its own default.
const MAX_CRASHES: u64 = 3;
/// How much the server's clock may run ahead of ours within one lease.
const LEASE_SLACK: Duration = Duration::from_millis(100);
/// One kill in so many comes late enough for leases to lapse; otherwise none would, because nothing lapses for one
/// lease after a start.
const LONG_LIFE_EVERY: u64 = 20;
/// In 100,000 tasks, how many are held too long or never reported.
const TROUBLED: u64 = 1_800;
/// Tasks under way at most: the drain at the end has to be short.
const OUTSTANDING_MAX: i64 = 1_000;

/// How the crash test is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The `windlass` program to test
    #[arg(long, value_name = "PATH")]
    pub binary: PathBuf,
    /// How often the server is killed
    #[arg(long, default_value_t = 200)]
    pub kills: u64,
    /// Decides everything that is random in the run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Clients that submit
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub submitters: u32,
    /// Workers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Lease given to workers
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub lease_seconds: f64,
    /// Heartbeat interval of workers
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub heartbeat_seconds: f64,
    /// Shortest life of the server after it is ready
    #[arg(long, default_value_t = 50, value_name = "MS")]
    pub life_ms_min: u64,
    /// Longest life of the server after it is ready
    #[arg(long, default_value_t = 600, value_name = "MS")]
    pub life_ms_max: u64,
    /// Everything has to have ended this long after the last kill
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub drain_seconds: u64,
    /// Where the folder of the run is made; the system's folder for temporary files unless given
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Keep the folder of the run, with the store and the server's log, also when all went well
    #[arg(long)]
    pub keep: bool,
    /// Write the history as JSON lines
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// Runs the crash test. A report with violations is no error of the harness.
pub async fn run(options: &Options) -> Result<Report, HarnessError> {
    let seconds = |name: &str, value: f64| {
        let checked = Duration::try_from_secs_f64(value).ok().filter(|duration| !duration.is_zero());
        checked.ok_or_else(|| HarnessError::Argument(format!("{name} must be a positive number of seconds")))
    };
    let lease = seconds("--lease-seconds", options.lease_seconds)?;
    let heartbeat = seconds("--heartbeat-seconds", options.heartbeat_seconds)?;
    let parent = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = parent.join(format!("windlass-crash-{:x}", run_number()));
    make_folder(&folder)?;
    let setup = ServerSetup {
        binary: options.binary.clone(),
        log: folder.join("server.log"),
        store: format!("sqlite:{}", folder.join("data").display()),
        schema: None,
        address: free_address()?,
        lease_seconds: options.lease_seconds,
        heartbeat_seconds: options.heartbeat_seconds,
    };
    let (phase, phase_seen) = watch::channel(Phase::Load);
    let (up, up_seen) = watch::channel(false);
    let habits = Habits {
        workload: Workload::Plain,
        max_retries: MAX_RETRIES,
        lease,
        heartbeat,
        troubled: TROUBLED,
        outstanding_max: OUTSTANDING_MAX,
        retry_pause: Duration::from_millis(1),
    };
    let world = Arc::new(World::new(vec![setup.address], habits, phase_seen, up_seen));
    let run = CrashRun { options, setup, world, phase, up, kills: 0, startup_max: Duration::ZERO };
    let clock = Clock::start();
    let outcome = run.run().await;
    match outcome {
        Ok(mut report) => {
            report.elapsed = clock.elapsed();
            if let Some(path) = &options.history {
                report.write_history(path)?;
            }
            if report.passed() && !options.keep {
                remove_folder(&folder)?;
            } else {
                report.folder = Some(folder);
            }
            Ok(report)
        }
        Err(error) => {
            eprintln!("windlass-crash: the store and the server's log are in {}", folder.display());
            Err(error)
        }
    }
}

fn remove_folder(folder: &Path) -> Result<(), HarnessError> {
    std::fs::remove_dir_all(folder).map_err(|source| HarnessError::File { path: folder.to_owned(), source })
}

struct CrashRun<'a> {
    options: &'a Options,
    setup: ServerSetup,
    world: Arc<World>,
    phase: watch::Sender<Phase>,
    up: watch::Sender<bool>,
    kills: u64,
    startup_max: Duration,
}

impl CrashRun<'_> {
    async fn run(mut self) -> Result<Report, HarnessError> {
        let mut server = self.start().await?;
        let (submitting, working) = self.start_clients();
        server = self.kill_often(server).await?;

        println!("windlass-crash: {} kills done, letting the clients finish", self.kills);
        self.enter(Phase::Pause);
        join("submitters and observers", submitting).await?;
        within_time("workers", self.world.all_resting(self.options.workers as usize)).await?;
        let mut reader = Reader::new(self.setup.address);
        let mut counts = vec![reader.counts("at rest", false).await?];
        server = self.kill_and_restart(server).await?;
        let mut reader = Reader::new(self.setup.address);
        counts.push(reader.counts("at rest, after a kill", false).await?);

        println!("windlass-crash: draining");
        self.enter(Phase::Drain);
        let within = Duration::from_secs(self.options.drain_seconds);
        let drain = Clock::start();
        let drained = reader.wait_drained(within).await?;
        let drain_took = drain.elapsed();
        self.enter(Phase::Stop);
        join("workers", working).await?;

        // What was seen before the very last kill must be there after it.
        counts.push(reader.counts("drained", drained).await?);
        self.world.note_reads(&reader.all_tasks().await?);
        server = self.kill_and_restart(server).await?;
        let mut reader = Reader::new(self.setup.address);
        counts.push(reader.counts("drained, after a kill", drained).await?);
        let tasks = reader.all_tasks().await?;
        server.kill().await?;

        let (records, runs) = {
            let mut recorder = self.world.recorder();
            (std::mem::take(&mut recorder.records), std::mem::take(&mut recorder.runs))
        };
        let micros = |duration: Duration| duration.as_micros() as u64;
        let limits = Limits {
            max_retries: MAX_RETRIES,
            max_crashes: MAX_CRASHES,
            lease_us: micros(self.world.habits.lease),
            lease_slack_us: micros(LEASE_SLACK),
        };
        let evidence = Evidence { records, runs, tasks, counts, limits, ..Evidence::default() };
        let violations = check(&evidence);
        Ok(Report {
            seed: self.options.seed,
            kills: self.kills,
            startup_max: self.startup_max,
            drained,
            drain_took,
            elapsed: Duration::ZERO,
            refusals: self.world.refusals(),
            evidence,
            violations,
            folder: None,
        })
    }

    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    async fn start(&mut self) -> Result<ServerProcess, HarnessError> {
        let (server, took) = ServerProcess::start(&self.setup).await?;
        self.startup_max = self.startup_max.max(took);
        self.up.send_replace(true);
        Ok(server)
    }

    fn start_clients(&self) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
        let seed = self.options.seed;
        let mut number = 0;
        let mut next_client = |count| {
            let client = number;
            number += count;
            client
        };
        let mut submitting = Vec::new();
        for _ in 0..self.options.submitters {
            submitting.push(tokio::spawn(submitter::run(Arc::clone(&self.world), next_client(1), seed)));
        }
        for _ in 0..2 {
            submitting.push(tokio::spawn(observer::run(Arc::clone(&self.world), next_client(1), seed)));
        }
        let workers = (0..self.options.workers).map(|_| next_client(2)).collect::<Vec<_>>();
        let working =
            workers.into_iter().map(|client| tokio::spawn(worker::run(Arc::clone(&self.world), client, seed)));
        (submitting, working.collect())
    }

    async fn kill_often(&mut self, mut server: ServerProcess) -> Result<ServerProcess, HarnessError> {
        // The stream of the killer is one that no client has.
        let mut random = Random::new(self.options.seed, u64::MAX);
        let least = Duration::from_millis(self.options.life_ms_min);
        let most = Duration::from_millis(self.options.life_ms_max.max(self.options.life_ms_min));
        let long_life_at = random.below(LONG_LIFE_EVERY.min(self.options.kills.max(1)));
        for round in 0..self.options.kills {
            let mut life = random.duration(least, most);
            if round % LONG_LIFE_EVERY == long_life_at {
                life += self.world.habits.lease * 2;
            }
            tokio::time::sleep(life).await;
            server = self.kill_and_restart(server).await?;
            let (depth, executing) = Reader::new(self.setup.address).stats().await?;
            self.world.set_outstanding(depth + executing);
            if (round + 1) % 25 == 0 {
                let records = self.world.recorder().records.len();
                println!("windlass-crash: {} of {} kills, {records} records", round + 1, self.options.kills);
            }
        }
        Ok(server)
    }

    async fn kill_and_restart(&mut self, server: ServerProcess) -> Result<ServerProcess, HarnessError> {
        self.up.send_replace(false);
        server.kill().await?;
        self.kills += 1;
        self.start().await
    }
}
