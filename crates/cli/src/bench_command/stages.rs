//! The stages: what each does, and the figures it gives.

use std::time::Duration;

use super::crew::{Crew, Place, unexpected};
use super::figures::{Figure, Percentiles, Way, rate};
use super::orders::{Answer, Order, PICKUP_WARM_UPS, Submit, queue_names};
use super::process::Peak;
use crate::exit::{Exit, Failure, Outcome};

/// Time between two tasks of the pickup stage.
const PICKUP_EVERY: Duration = Duration::from_millis(50);
/// Most tasks of one submit stage, for the sake of disk and memory.
const SUBMIT_TASKS_MAX: u64 = 1_000_000;
/// Longest time before the clock of a submit stage starts.
const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// A server that just started is left alone for so long before it counts as idle.
const CALM_DOWN: Duration = Duration::from_millis(500);
/// What an idle server does, it does about once a second.
const IDLE_SPAN_MIN: Duration = Duration::from_secs(1);
/// Over and above its planned time, a stage may take this long before it is given up.
const STAGE_SLACK: Duration = Duration::from_mins(2);
/// Tasks at once when leftovers are worked off, which is not measured.
const CLEAN_UP_CONCURRENCY: u32 = 500;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// One call per task, one at a time
    #[value(name = "submit-x1")]
    SubmitX1,
    /// One call per task, 32 in flight
    #[value(name = "submit-x32")]
    SubmitX32,
    /// Calls of 100 tasks
    #[value(name = "bulk-100")]
    Bulk100,
    /// Calls of 100 tasks, 32 in flight
    #[value(name = "bulk-100-x32")]
    Bulk100X32,
    /// Calls of 1,000 tasks
    #[value(name = "bulk-1000")]
    Bulk1000,
    /// Waiting tasks worked off by one worker; its and the server's memory
    Drain,
    /// Idle queue: from the submit to the handler, and the submit itself
    Pickup,
    /// Processor use of a server with a worker and nothing to do
    Idle,
}

impl Stage {
    /// All of them. Pickup and idle come first: the disk is busy for a while after the heavy ones.
    pub const ALL: [Self; 8] = [
        Self::Pickup,
        Self::Idle,
        Self::SubmitX1,
        Self::SubmitX32,
        Self::Bulk100,
        Self::Bulk100X32,
        Self::Bulk1000,
        Self::Drain,
    ];

    /// Its name for people, and in queues.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SubmitX1 => "submit-x1",
            Self::SubmitX32 => "submit-x32",
            Self::Bulk100 => "bulk-100",
            Self::Bulk100X32 => "bulk-100-x32",
            Self::Bulk1000 => "bulk-1000",
            Self::Drain => "drain",
            Self::Pickup => "pickup",
            Self::Idle => "idle",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// How long the clock of a submit stage runs.
    pub span: Duration,
    /// Tasks of the drain.
    pub drain_tasks: u64,
    /// Tasks of the pickup stage.
    pub pickups: u64,
    /// Tasks that the worker runs at once, where it is not what the SDK does by itself.
    pub concurrency: Option<u32>,
}

impl Sizes {
    fn idle_span(&self) -> Duration {
        (self.span * 2).max(IDLE_SPAN_MIN)
    }

    /// When a stage is given up.
    fn longest(&self, stage: Stage) -> Duration {
        let planned = match stage {
            Stage::Pickup => PICKUP_EVERY * (self.pickups + PICKUP_WARM_UPS) as u32,
            Stage::Idle => self.idle_span(),
            // A thousand a second is slow, even for a debug build.
            Stage::Drain => Duration::from_millis(self.drain_tasks),
            Stage::SubmitX1 | Stage::SubmitX32 | Stage::Bulk100 | Stage::Bulk100X32 | Stage::Bulk1000 => self.span,
        };
        planned + STAGE_SLACK
    }
}

/// The figures of one run of a stage.
pub type Figures = Vec<(Figure, f64)>;

/// Runs a stage with processes of its own.
pub async fn run(stage: Stage, way: Way, place: Place<'_>, run_name: &str, sizes: &Sizes) -> Outcome<Figures> {
    let longest = sizes.longest(stage);
    let running = async {
        let mut crew = Crew::start(way, place).await?;
        let queues = format!("{run_name}-{}", stage.name());
        let cleans_up = matches!(place, Place::Existing(_));
        let mut running = Running { crew: &mut crew, queues, sizes, cleans_up };
        match stage {
            Stage::SubmitX1 => running.submit(Figure::SubmitX1, 1, 1).await,
            Stage::SubmitX32 => running.submit(Figure::SubmitX32, 32, 1).await,
            Stage::Bulk100 => running.submit(Figure::Bulk100, 1, 100).await,
            Stage::Bulk100X32 => running.submit(Figure::Bulk100X32, 32, 100).await,
            Stage::Bulk1000 => running.submit(Figure::Bulk1000, 1, 1_000).await,
            Stage::Drain => running.drain().await,
            Stage::Pickup => running.pickup().await,
            Stage::Idle => running.idle().await,
        }
    };
    tokio::time::timeout(longest, running).await.unwrap_or_else(|_| {
        let message = format!("{} ({}) was not done after {} s", stage.name(), way.name(), longest.as_secs());
        Err(Failure::new(Exit::Failed, message))
    })
}

/// A stage that runs.
struct Running<'a> {
    crew: &'a mut Crew,
    /// What its queues begin with.
    queues: String,
    sizes: &'a Sizes,
    /// Whether what was submitted has to be worked off afterwards.
    cleans_up: bool,
}

impl Running<'_> {
    async fn submit(&mut self, figure: Figure, in_flight: u32, per_call: u64) -> Outcome<Figures> {
        let order = Submit {
            stage: self.queues.clone(),
            in_flight,
            per_call,
            warm_up: (self.sizes.span / 4).min(WARM_UP_MAX),
            span: self.sizes.span,
            tasks_max: SUBMIT_TASKS_MAX,
        };
        let submitted = self.crew.submit(order).await?;
        if self.cleans_up {
            self.crew.work(queue_names(&self.queues, SUBMIT_TASKS_MAX), Some(CLEAN_UP_CONCURRENCY)).await?;
            self.crew.settle(submitted.left).await?;
        }
        Ok(vec![(figure, rate(submitted.tasks, submitted.took))])
    }

    async fn drain(&mut self) -> Outcome<Figures> {
        let tasks = self.sizes.drain_tasks;
        match self.crew.produce(&Order::Fill { stage: self.queues.clone(), tasks }).await? {
            Answer::Filled => {}
            other => return Err(unexpected(&other)),
        }
        let (server, worker) = (self.crew.server_cost(), self.crew.worker_cost());
        let work = async {
            self.crew.work(queue_names(&self.queues, tasks), self.sizes.concurrency).await?;
            self.crew.settle(tasks).await
        };
        let (settled, peak) = Peak::during(server, worker, work).await;
        let mut figures = vec![(Figure::Drain, rate(tasks, settled?.took))];
        // A process that has everything in it is no worker alone, and a worker alone is not everything.
        let is_whole = server.is_some() || !self.crew.has_own_worker();
        let parts = [
            (Figure::MemoryServer, peak.server),
            (Figure::MemoryWorker, peak.worker.filter(|_| self.crew.has_own_worker())),
            (Figure::MemoryAll, peak.sum.filter(|_| is_whole)),
        ];
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        figures.extend(parts.into_iter().filter_map(|(figure, bytes)| Some((figure, megabytes(bytes?)))));
        Ok(figures)
    }

    async fn pickup(&mut self) -> Outcome<Figures> {
        let tasks = self.sizes.pickups;
        self.crew.work(queue_names(&self.queues, tasks), self.sizes.concurrency).await?;
        let order = Order::Pace { stage: self.queues.clone(), tasks, every: PICKUP_EVERY };
        let submit = match self.crew.produce(&order).await? {
            Answer::Paced { latency } => latency,
            other => return Err(unexpected(&other)),
        };
        let Percentiles { p50_us, p99_us } = self.crew.settle(tasks + PICKUP_WARM_UPS).await?.pickup;
        Ok(vec![
            (Figure::PickupP50, p50_us as f64),
            (Figure::PickupP99, p99_us as f64),
            (Figure::SubmitP50, submit.p50_us as f64),
            (Figure::SubmitP99, submit.p99_us as f64),
        ])
    }

    async fn idle(&mut self) -> Outcome<Figures> {
        self.crew.work(queue_names(&self.queues, 0), self.sizes.concurrency).await?;
        tokio::time::sleep(CALM_DOWN).await;
        let cost = self.crew.server_cost().unwrap_or(self.crew.worker_cost());
        let percent = cost.processor_percent(self.sizes.idle_span()).await;
        Ok(percent.map(|percent| (Figure::IdleCpu, percent)).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn stages_are_called_the_same_everywhere() {
        assert_eq!(Stage::ALL.len(), Stage::value_variants().len());
        for stage in Stage::ALL {
            let value = stage.to_possible_value().expect("not hidden");
            assert_eq!(value.get_name(), stage.name());
        }
    }
}
