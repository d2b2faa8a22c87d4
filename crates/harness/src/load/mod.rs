//! The loader: measures a running server on this machine, bounded in tasks and in time.
//!
//! Every stage uses queues of its own, so that what one leaves behind is not measured by the next; at the end the
//! leftovers are worked off unless told otherwise.

mod drain;
mod latency;
mod pickup;
mod process;
mod report;
mod session;
mod submit;
mod target;

use std::time::Duration;

use crate::clock::run_number;
use crate::error::HarnessError;

pub use report::Report;

use drain::Pollers;
use process::Process;
use report::Rate;
use session::Session;
use submit::Shape;

/// How leftovers are worked off, which is not measured.
const CLEAN_UP: Pollers = Pollers { connections: 2, poll_size: 500 };
/// Over which time an idle server is watched.
const IDLE_SPAN: Duration = Duration::from_secs(10);

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// One call per task, one at a time
    SubmitX1,
    /// One call per task, 32 in flight
    SubmitX32,
    /// Calls of 100 tasks
    Bulk100,
    /// Calls of 100 tasks, 32 in flight
    #[value(name = "bulk100x32")]
    Bulk100x32,
    /// Calls of 1,000 tasks
    Bulk1000,
    /// Waiting tasks worked off by one worker
    Drain,
    /// Idle queue, one task at a time to a waiting worker
    Pickup,
    /// Processor use of the idle server (needs --pid)
    Idle,
}

/// What is measured, and how much.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The server, on this machine
    #[arg(long, env = "WINDLASS_SERVER", default_value = "http://127.0.0.1:7070", value_name = "URL")]
    pub server: String,
    /// Only these stages (may be repeated)
    #[arg(long = "stage", value_enum, value_name = "STAGE")]
    pub stages: Vec<Stage>,
    /// Length of each submit stage
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Most tasks of one submit stage
    #[arg(long, default_value_t = 200_000, value_name = "TASKS")]
    pub submit_tasks_max: u64,
    /// Tasks of the drain stage
    #[arg(long, default_value_t = 50_000, value_name = "TASKS", value_parser = clap::value_parser!(u64).range(1..=90_000))]
    pub drain_tasks: u64,
    /// Tasks per poll of the drain stage
    #[arg(long, default_value_t = 50, value_name = "TASKS", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub poll_size: u16,
    /// Connections that poll in the drain stage
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub poll_connections: u16,
    /// Tasks of the pickup stage
    #[arg(long, default_value_t = 200, value_name = "TASKS")]
    pub pickup_tasks: u64,
    /// Time between two tasks of the pickup stage
    #[arg(long, default_value_t = 50, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub pickup_every_ms: u64,
    /// A stage that takes longer is given up
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub stage_seconds_max: u64,
    /// Process id of the server, to measure its idle processor use and its memory
    #[arg(long)]
    pub pid: Option<u32>,
    /// Leave the submitted tasks in their queues
    #[arg(long)]
    pub leave: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Measures.
pub async fn run(options: &Options) -> Result<Report, HarnessError> {
    let session = Session { address: target::parse_server(&options.server)?, run: format!("{:x}", run_number()) };
    let process = options.pid.map(Process::find).transpose()?;
    let span = Duration::try_from_secs_f64(options.seconds);
    let span = span.map_err(|error| HarnessError::Argument(format!("--seconds: {error}")))?;
    if options.stages.contains(&Stage::Idle) && process.is_none() {
        return Err(HarnessError::Argument("--stage idle needs --pid".to_owned()));
    }
    let mut loader = Loader { options, session, process, span, leftovers: Vec::new(), leftover_tasks: 0 };
    loader.run().await
}

struct Loader<'a> {
    options: &'a Options,
    session: Session,
    process: Option<Process>,
    span: Duration,
    leftovers: Vec<String>,
    leftover_tasks: u64,
}

impl Loader<'_> {
    async fn run(&mut self) -> Result<Report, HarnessError> {
        let mut report = Report { pss_bytes_before: self.pss_bytes()?, ..Report::default() };
        let tasks_max = self.options.submit_tasks_max;
        let shape = |name, connections, per_call| Shape { name, connections, per_call, tasks_max };
        // First: the disk is still busy for a while after the heavy stages.
        if self.wants(Stage::Pickup) {
            let every = Duration::from_millis(self.options.pickup_every_ms);
            let measured = self.bounded("pickup", pickup::run(&self.session, self.options.pickup_tasks, every)).await?;
            report.pickup = Some(measured.pickup);
            report.idle_submit = Some(measured.submit);
        }
        if self.wants(Stage::SubmitX1) {
            report.submit_x1 = Some(self.submit(shape("x1", 1, 1)).await?);
        }
        if self.wants(Stage::SubmitX32) {
            report.submit_x32 = Some(self.submit(shape("x32", 32, 1)).await?);
        }
        if self.wants(Stage::Bulk100) {
            report.bulk_100 = Some(self.submit(shape("bulk100", 1, 100)).await?);
        }
        if self.wants(Stage::Bulk100x32) {
            report.bulk_100_x32 = Some(self.submit(shape("bulk100x32", 32, 100)).await?);
        }
        if self.wants(Stage::Bulk1000) {
            report.bulk_1000 = Some(self.submit(shape("bulk1000", 1, 1_000)).await?);
        }
        if self.wants(Stage::Drain) {
            self.drain(&mut report).await?;
        }
        if !self.options.leave && self.leftover_tasks > 0 {
            self.say(&format!("working off {} tasks that are left over", self.leftover_tasks));
            let work = drain::work_off(&self.session, &self.leftovers, self.leftover_tasks, CLEAN_UP);
            self.bounded("cleaning up", work).await?;
        }
        if self.wants(Stage::Idle)
            && let Some(process) = &self.process
        {
            self.say("watching the idle server");
            report.idle_cpu_percent = Some(process.cpu_percent_over(IDLE_SPAN).await?);
        }
        report.pss_bytes_after = self.pss_bytes()?;
        Ok(report)
    }

    fn wants(&self, stage: Stage) -> bool {
        self.options.stages.is_empty() || self.options.stages.contains(&stage)
    }

    fn say(&self, what: &str) {
        if !self.options.json {
            eprintln!("windlass-load: {what}");
        }
    }

    fn pss_bytes(&self) -> Result<Option<u64>, HarnessError> {
        self.process.as_ref().map(Process::pss_bytes).transpose()
    }

    async fn bounded<T>(
        &self,
        name: &str,
        stage: impl Future<Output = Result<T, HarnessError>>,
    ) -> Result<T, HarnessError> {
        let most = Duration::from_secs(self.options.stage_seconds_max);
        match tokio::time::timeout(most, stage).await {
            Ok(done) => done,
            Err(_) => Err(HarnessError::call(name, format!("not done after {most:?}"))),
        }
    }

    async fn submit(&mut self, shape: Shape) -> Result<Rate, HarnessError> {
        self.say(shape.name);
        let submitted = self.bounded(shape.name, submit::run(&self.session, shape, self.span)).await?;
        self.leftover_tasks += submitted.tasks;
        self.leftovers.extend(submitted.queues);
        Ok(Rate::new(submitted.tasks, submitted.took, Some(submitted.latency)))
    }

    async fn drain(&self, report: &mut Report) -> Result<(), HarnessError> {
        let queue = self.session.queue("drain");
        let tasks = self.options.drain_tasks;
        self.say("filling the queue for the drain");
        self.bounded("fill", drain::fill(&self.session, &queue, tasks)).await?;
        self.say("drain");
        let by = Pollers {
            connections: usize::from(self.options.poll_connections),
            poll_size: usize::from(self.options.poll_size),
        };
        let memory = self.process.as_ref().map(Process::watch_memory);
        let queues = [queue];
        let drained = self.bounded("drain", drain::work_off(&self.session, &queues, tasks, by)).await?;
        report.pss_bytes_drain_max = memory.map(process::MemoryWatch::finish);
        report.drain = Some(Rate::new(drained.tasks, drained.took, None));
        Ok(())
    }
}
