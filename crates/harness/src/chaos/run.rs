//! One run: servers on one database, clients at all of them, faults while tasks flow, and the check.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Options;
use super::databases::{Database, Place};
use super::report::{Fault, Report, longest_pause};
use crate::checker::{Counts, Evidence, FinalTask, Limits, Rule, Violation, check, loss};
use crate::clock::{Clock, run_number};
use crate::error::HarnessError;
use crate::http::Client;
use crate::load::server::{ServerProcess, ServerSetup, free_address, make_folder};
use crate::load::settle::Reader;
use crate::load::workload::{LIMITED_AT_ONCE, LIMITED_TYPE, Workload};
use crate::load::world::{Habits, Phase, World};
use crate::load::{join, observer, submitter, worker};
use crate::random::Random;

/// Retries of every task in the run.
const MAX_RETRIES: u64 = 4;
/// Lapsed leases after which a task is given up; the server's own default.
const MAX_CRASHES: u64 = 3;
/// How much the clock of the database may run ahead of ours within one lease.
const LEASE_SLACK: Duration = Duration::from_millis(250);
/// In 100,000 tasks, how many are held too long or never reported. Each of them holds its line or its place under a limit
/// for a lease, so there cannot be many.
const TROUBLED: u64 = 200;
/// Tasks under way at most.
const OUTSTANDING_MAX: i64 = 4_000;
/// How long a client waits after a call that did not succeed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long something that was killed stays down.
const DOWN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(1_500));
/// In a thousand kills, how many take two servers at once.
const TWO_AT_ONCE_PER_MILLE: u64 = 250;
/// A load that does not go on for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(90);
/// After the last task has ended, every server has heard of it after this long.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// A server whose database is back finds that out by itself within this time.
const RECOVERED_WITHIN: Duration = Duration::from_secs(30);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Writes that were acknowledged this long before a failover may be gone.
const LAG_MAX: Duration = Duration::from_secs(3);

/// Runs the chaos test on one database.
pub(super) async fn run(options: &Options, database: Database) -> Result<Report, HarnessError> {
    let seconds = |name: &str, value: f64| {
        let checked = Duration::try_from_secs_f64(value).ok().filter(|duration| !duration.is_zero());
        checked.ok_or_else(|| HarnessError::Argument(format!("{name} must be a positive number of seconds")))
    };
    let habits = Habits {
        workload: Workload::Mixed,
        max_retries: MAX_RETRIES,
        lease: seconds("--lease-seconds", options.lease_seconds)?,
        heartbeat: seconds("--heartbeat-seconds", options.heartbeat_seconds)?,
        troubled: TROUBLED,
        outstanding_max: OUTSTANDING_MAX,
        retry_pause: RETRY_PAUSE,
    };
    let number = run_number();
    let place = Place::new(database, number)?;
    let parent = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = parent.join(format!("windlass-chaos-{number:x}"));
    make_folder(&folder)?;
    let outcome = prepare(options, &place, habits, &folder)?.run().await;
    let mut report = outcome.inspect_err(|_| eprintln!("windlass-chaos: logs are in {}", folder.display()))?;
    if options.history {
        report.write_history(&folder.join("history.jsonl"))?;
    }
    if report.passed() && !options.keep && !options.history {
        std::fs::remove_dir_all(&folder).map_err(|source| HarnessError::File { path: folder, source })?;
    } else {
        report.folder = Some(folder);
    }
    Ok(report)
}

fn prepare<'a>(
    options: &'a Options,
    place: &'a Place,
    habits: Habits,
    folder: &Path,
) -> Result<ChaosRun<'a>, HarnessError> {
    let setup = |node: u32| -> Result<ServerSetup, HarnessError> {
        Ok(ServerSetup {
            binary: options.binary.clone(),
            log: folder.join(format!("server-{node}.log")),
            store: place.store(),
            schema: place.schema(),
            address: free_address()?,
            lease_seconds: options.lease_seconds,
            heartbeat_seconds: options.heartbeat_seconds,
        })
    };
    let setups = (1..=options.nodes).map(setup).collect::<Result<Vec<_>, _>>()?;
    let (phase, phase_seen) = watch::channel(Phase::Load);
    // Some server is always there, or will be in a moment: clients try the next one.
    let (up, up_seen) = watch::channel(true);
    let addresses = setups.iter().map(|setup| setup.address).collect();
    let world = Arc::new(World::new(addresses, habits, phase_seen, up_seen));
    let nodes = setups.into_iter().map(|setup| Node { setup, process: None }).collect();
    // The stream of the faults is one that no client has.
    let random = Random::new(options.seed, u64::MAX);
    Ok(ChaosRun { options, place, world, phase, _up: up, nodes, random, faults: Vec::new(), doubts: Vec::new() })
}

/// A server and its process, while it has one.
struct Node {
    setup: ServerSetup,
    process: Option<ServerProcess>,
}

struct ChaosRun<'a> {
    options: &'a Options,
    place: &'a Place,
    world: Arc<World>,
    phase: watch::Sender<Phase>,
    _up: watch::Sender<bool>,
    nodes: Vec<Node>,
    random: Random,
    faults: Vec<Fault>,
    doubts: Vec<(u64, u64)>,
}

impl ChaosRun<'_> {
    async fn run(mut self) -> Result<Report, HarnessError> {
        for node in 0..self.nodes.len() {
            self.start(node).await?;
        }
        self.set_limits().await?;
        let started = Clock::start();
        let load_start_us = self.world.clock.elapsed_us();
        let (submitting, working) = self.start_clients();
        let loaded = self.load().await;
        let load_end_us = self.world.clock.elapsed_us();
        let stuck = match loaded {
            Ok(()) => None,
            Err(Stop::Stuck(reason)) => Some(reason),
            Err(Stop::Broken(error)) => return Err(error),
        };

        println!("windlass-chaos: draining");
        self.phase.send_replace(Phase::Drain);
        join("submitters and observers", submitting).await?;
        self.all_running()?;
        let mut reader = self.reader(self.nodes.len() - 1);
        let within = Duration::from_secs(self.options.drain_seconds);
        let drain = Clock::start();
        let drained = reader.wait_drained(within).await?;
        let (drain_took, elapsed) = (drain.elapsed(), started.elapsed());
        self.phase.send_replace(Phase::Stop);
        join("workers", working).await?;
        tokio::time::sleep(HEARD_WITHIN).await;

        let (counts, tasks) = self.look(drained).await?;
        let rows = Some(self.place.rows(self.world.habits.workload.queues()).await?);
        for node in &mut self.nodes {
            if let Some(process) = node.process.take() {
                process.kill().await?;
            }
        }
        let evidence = self.evidence(counts, tasks, rows);
        println!("windlass-chaos: checking {} records", evidence.records.len());
        let (mut violations, loss) = loss::split(&evidence, check(&evidence));
        let pause = longest_pause(&evidence.records, load_start_us, load_end_us);
        if pause.as_secs_f64() > self.options.pause_seconds_max {
            let detail = format!("for {:.1} s no write was acknowledged", pause.as_secs_f64());
            violations.push(Violation { rule: Rule::Liveness, task_id: None, detail });
        }
        violations.extend(stuck.map(|detail| Violation { rule: Rule::Liveness, task_id: None, detail }));
        for fault in &mut self.faults {
            fault.measure(&evidence.records, load_end_us);
        }
        Ok(Report {
            database: self.place.database(),
            seed: self.options.seed,
            nodes: self.options.nodes,
            workers: self.options.workers,
            faults: self.faults,
            drained,
            load_took: elapsed.saturating_sub(drain_took),
            drain_took,
            elapsed,
            pause,
            refusals: self.world.refusals(),
            failures: self.world.failures(),
            loss,
            evidence,
            violations,
            folder: None,
        })
    }

    async fn start(&mut self, node: usize) -> Result<(), HarnessError> {
        let (process, _) = ServerProcess::start(&self.nodes[node].setup).await?;
        self.nodes[node].process = Some(process);
        Ok(())
    }

    fn all_running(&mut self) -> Result<(), HarnessError> {
        self.nodes.iter_mut().filter_map(|node| node.process.as_mut()).try_for_each(ServerProcess::still_running)
    }

    fn reader(&self, node: usize) -> Reader {
        Reader::patient(self.nodes[node].setup.address, RECOVERED_WITHIN)
    }

    async fn set_limits(&self) -> Result<(), HarnessError> {
        let path = format!("/api/v1/task-types/{LIMITED_TYPE}");
        let body = serde_json::json!({ "concurrency": LIMITED_AT_ONCE }).to_string();
        let mut client = Client::new(self.nodes[0].setup.address, Duration::from_secs(10));
        match client.call("PUT", &path, body.as_bytes()).await {
            Ok((200..=299, _)) => Ok(()),
            Ok((status, body)) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                Err(HarnessError::call(format!("PUT {path}"), format!("{status} {text}")))
            }
            Err(error) => Err(HarnessError::call(format!("PUT {path}"), error.to_string())),
        }
    }

    fn start_clients(&self) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
        let seed = self.options.seed;
        let world = || Arc::clone(&self.world);
        let submitters = 0..self.options.submitters;
        let observers = submitters.end..submitters.end + 2;
        let workers = (0..self.options.workers).map(|worker| observers.end + 2 * worker);
        let mut submitting: Vec<_> =
            submitters.map(|client| tokio::spawn(submitter::run(world(), client, seed))).collect();
        submitting.extend(observers.clone().map(|client| tokio::spawn(observer::run(world(), client, seed))));
        let working = workers.map(|client| tokio::spawn(worker::run(world(), client, seed))).collect();
        (submitting, working)
    }

    /// Lets tasks flow, a share of them for each fault, so that every fault meets load.
    async fn load(&mut self) -> Result<(), Stop> {
        let (kills, breaks) = (self.options.kills, self.options.breaks);
        let shares = kills + breaks + 1;
        let share = self.options.tasks.div_ceil(shares);
        let (mut kills_left, mut breaks_left) = (kills, breaks);
        for round in 0..kills + breaks {
            self.world.set_submit_max(share * (round + 1));
            self.wait_submitted(share * round + share / 2).await?;
            self.world.set_submit_max(share * (round + 2));
            if self.random.below(kills_left + breaks_left) < kills_left {
                kills_left -= 1;
                self.kill_servers().await?;
            } else {
                breaks_left -= 1;
                self.break_database(breaks - breaks_left).await?;
            }
            let (done, of) = (round + 1, kills + breaks);
            println!("windlass-chaos: fault {done} of {of}, {} tasks submitted", self.world.submitted());
        }
        self.world.set_submit_max(self.options.tasks);
        self.wait_submitted(self.options.tasks).await
    }

    async fn wait_submitted(&mut self, count: u64) -> Result<(), Stop> {
        let (mut seen, mut clock) = (self.world.submitted(), Clock::start());
        let mut looks: u64 = 0;
        while self.world.submitted() < count {
            tokio::time::sleep(LOOK_EVERY).await;
            looks += 1;
            if looks.is_multiple_of(100) {
                self.all_running()?;
                self.count_outstanding().await;
            }
            if self.world.submitted() > seen {
                (seen, clock) = (self.world.submitted(), Clock::start());
            } else if clock.elapsed() > STUCK_AFTER {
                return Err(Stop::Stuck(format!("nothing was submitted for {STUCK_AFTER:?}")));
            }
        }
        Ok(())
    }

    /// Puts the number of tasks under way right again: of a call without an answer the clients do not know.
    async fn count_outstanding(&self) {
        for node in 0..self.nodes.len() {
            if let Ok((depth, executing)) = Reader::new(self.nodes[node].setup.address).stats().await {
                self.world.set_outstanding(depth + executing);
                return;
            }
        }
    }

    async fn kill_servers(&mut self) -> Result<(), HarnessError> {
        let first = self.random.below(self.nodes.len() as u64) as usize;
        let mut victims = vec![first];
        if self.nodes.len() > 2 && self.random.chance(TWO_AT_ONCE_PER_MILLE) {
            victims.push((first + 1) % self.nodes.len());
        }
        self.all_running()?;
        let at_us = self.world.clock.elapsed_us();
        for &victim in &victims {
            if let Some(process) = self.nodes[victim].process.take() {
                process.kill().await?;
            }
        }
        tokio::time::sleep(self.random.duration(DOWN.0, DOWN.1)).await;
        for &victim in &victims {
            self.start(victim).await?;
        }
        let names: Vec<_> = victims.iter().map(|victim| format!("server {}", victim + 1)).collect();
        self.note_fault(names.join(" and "), victims.len() as u64, at_us);
        Ok(())
    }

    async fn break_database(&mut self, number: u64) -> Result<(), HarnessError> {
        let victim = self.place.victim(number).await?;
        let at_us = self.world.clock.elapsed_us();
        self.place.kill(&victim).await?;
        if self.place.database().forgets() {
            self.doubts.push((at_us.saturating_sub(LAG_MAX.as_micros() as u64), self.world.clock.elapsed_us()));
        }
        tokio::time::sleep(self.random.duration(DOWN.0, DOWN.1)).await;
        self.place.restart(&victim).await?;
        self.note_fault(victim, 0, at_us);
        // No server may need a restart for it.
        self.all_running()
    }

    fn note_fault(&mut self, what: String, servers_killed: u64, at_us: u64) {
        let healed_us = self.world.clock.elapsed_us();
        self.faults.push(Fault { what, servers_killed, at_us, healed_us, pause_seconds: 0.0 });
    }

    /// What every server says at the end, and what one says that knows only the database.
    async fn look(&mut self, settled: bool) -> Result<(Vec<Counts>, Vec<FinalTask>), HarnessError> {
        let mut counts = Vec::new();
        for node in 0..self.nodes.len() {
            counts.push(self.reader(node).counts(&format!("server {}", node + 1), settled).await?);
        }
        let seen = self.reader(self.nodes.len() - 1).all_tasks().await?;
        self.world.note_reads(&seen);
        if let Some(process) = self.nodes[0].process.take() {
            process.kill().await?;
        }
        self.start(0).await?;
        counts.push(self.reader(0).counts("server 1, after a kill", settled).await?);
        Ok((counts, self.reader(0).all_tasks().await?))
    }

    fn evidence(
        &self,
        counts: Vec<Counts>,
        tasks: Vec<FinalTask>,
        rows: Option<std::collections::BTreeMap<String, u64>>,
    ) -> Evidence {
        let (records, runs) = {
            let mut recorder = self.world.recorder();
            (std::mem::take(&mut recorder.records), std::mem::take(&mut recorder.runs))
        };
        let workload = self.world.habits.workload;
        let mut shared = HashMap::new();
        for key in tasks.iter().filter_map(|task| task.key.as_deref()) {
            if let Some(what) = workload.shared(key) {
                shared.insert(key.to_owned(), what);
            }
        }
        let micros = |duration: Duration| duration.as_micros() as u64;
        let limits = Limits {
            max_retries: MAX_RETRIES,
            max_crashes: MAX_CRASHES,
            lease_us: micros(self.world.habits.lease),
            lease_slack_us: micros(LEASE_SLACK),
        };
        Evidence { records, runs, tasks, counts, limits, shared, rows, doubts: self.doubts.clone() }
    }
}

/// Why the load did not come to its end.
enum Stop {
    /// It does not go on: a finding.
    Stuck(String),
    /// The harness cannot go on.
    Broken(HarnessError),
}

impl From<HarnessError> for Stop {
    fn from(error: HarnessError) -> Self {
        Self::Broken(error)
    }
}
