//! `windlass bench`: what this machine gives, measured through the SDK as a program would use it.
//!
//! The benchmark itself only starts processes, gives them orders and reads their answers: what is measured runs in
//! processes of its own ([`station`]), over HTTP a server, a producer and a worker, embedded all in one. Every stage gets
//! new ones on a new store.

mod crew;
mod figures;
mod folder;
mod job;
mod machine;
mod orders;
mod process;
mod produce;
mod report;
mod stages;
mod station;
mod target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use windlass::Client;

use crate::exit::{Exit, Failure, Outcome};
use crate::show::bar::Bar;
use crate::show::screen::{ColorChoice, Screen};
use crew::Place;
use figures::{Measured, Series, Way};
use folder::Folder;
use machine::Machine;
use report::{Report, Settings};
use stages::{Sizes, Stage};

const EXAMPLES: &str = "\
submit: tasks acknowledged per second. drain: from the first handler to the last acknowledged result, one worker.
pickup: from the start of the submit to the start of the handler, on an idle queue; submit latency likewise.
Everything that is acknowledged is on disk, as always. Figures move with the disk and with whatever else runs: compare
figures of one machine, and repeat them.

Examples:
  windlass bench
  windlass bench --only drain,pickup --repeat 5
  windlass bench --way http --store sqlite:/var/lib --json > figures.json
  windlass bench --server http://127.0.0.1:7070 --only submit-x32";

#[derive(Args, Debug)]
struct Flags {
    /// Only these stages
    #[arg(long, value_name = "STAGES", value_enum, value_delimiter = ',')]
    only: Vec<Stage>,
    /// Which way to use Windlass
    #[arg(long, value_enum, default_value_t)]
    way: Ways,
    /// Measure this server over HTTP, on this machine, instead of private ones
    #[arg(long, value_name = "URL", value_parser = target::parse, conflicts_with = "store")]
    server: Option<String>,
    /// Make private stores in this folder, for its disk; otherwise in the current one
    #[arg(long, value_name = "sqlite:FOLDER", value_parser = store_folder)]
    store: Option<PathBuf>,
    /// Length of each submit loop
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// Tasks of the drain
    #[arg(long, value_name = "TASKS", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    tasks: u64,
    /// Tasks of the pickup stage, one every 50 ms
    #[arg(long, value_name = "TASKS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pickups: u64,
    /// Tasks that the worker runs at once, if not what the SDK does by itself
    #[arg(long, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: Option<u32>,
    /// Measure everything so often, and show medians and ranges
    #[arg(long, value_name = "RUNS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    color: ColorChoice,
}

/// What `--way` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Ways {
    /// A server, a producer and a worker, each in a process of its own
    Http,
    /// One process with the store, the producer and the worker in it
    Embedded,
    /// One after the other
    #[default]
    Both,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    if (0.05..=60.0).contains(&seconds) { Ok(seconds) } else { Err("must be from 0.05 to 60".to_owned()) }
}

fn store_folder(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("sqlite:").filter(|path| !path.is_empty()).ok_or("must be sqlite:FOLDER")?;
    if Path::new(path).is_dir() { Ok(PathBuf::from(path)) } else { Err("there is no such folder".to_owned()) }
}

/// The command.
pub fn command() -> Command {
    Flags::augment_args(Command::new("bench").about("Measures what this machine gives").after_help(EXAMPLES))
}

/// Runs this process as one that a benchmark measures, if that is what it was started for.
pub fn station_main() -> Option<ExitCode> {
    station::main()
}

/// Measures, and shows what came out.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let flags = Flags::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let plan = Plan::new(&flags)?;
    let screen = Screen::new(flags.color);
    let report = tokio::select! {
        report = plan.measure(&flags, &screen) => report?,
        // What ran is dropped: its processes are killed and its folders removed.
        signalled = signalled() => {
            signalled?;
            return Err(interrupted(&flags, &plan));
        }
    };
    let text = if flags.json {
        report.json().map_err(|error| Failure::new(Exit::Failed, error.to_string()))?
    } else {
        report.text(&screen)
    };
    Ok(screen.line(&text)?)
}

/// Resolves at SIGTERM or SIGINT.
async fn signalled() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}

fn interrupted(flags: &Flags, plan: &Plan) -> Failure {
    let failure = Failure::new(Exit::Failed, "interrupted; nothing was measured to the end");
    match &flags.server {
        Some(server) => failure.hint(format!(
            "{server} may have tasks of the types bench.noop and bench.pickup left, in queues named {}-….",
            plan.run_name
        )),
        None => failure,
    }
}

/// What is measured, in which order.
struct Plan {
    stages: Vec<Stage>,
    ways: Vec<Way>,
    sizes: Sizes,
    /// Names of queues begin with it, so that those of another run are others.
    run_name: String,
}

impl Plan {
    fn new(flags: &Flags) -> Outcome<Self> {
        let ways = match (flags.way, &flags.server) {
            (Ways::Embedded, Some(_)) => {
                let message = "--way embedded has no server, so --server cannot be used with it";
                return Err(Failure::usage(message));
            }
            (Ways::Http, _) | (Ways::Both, Some(_)) => vec![Way::Http],
            (Ways::Embedded, None) => vec![Way::Embedded],
            (Ways::Both, None) => Way::ALL.to_vec(),
        };
        if flags.server.is_some() && flags.only.contains(&Stage::Idle) {
            let message = "--only idle measures the process of a private server, so --server cannot be used with it";
            return Err(Failure::usage(message));
        }
        let is_wanted = |stage: &Stage| match (flags.only.is_empty(), stage) {
            (true, Stage::Idle) => flags.server.is_none(),
            (true, _) => true,
            (false, stage) => flags.only.contains(stage),
        };
        let sizes = Sizes {
            span: Duration::from_secs_f64(flags.seconds),
            drain_tasks: flags.tasks,
            pickups: flags.pickups,
            concurrency: flags.concurrency,
        };
        let run_name = format!("bench-{:08x}", uuid::Uuid::new_v4().as_fields().0);
        Ok(Self { stages: Stage::ALL.into_iter().filter(is_wanted).collect(), ways, sizes, run_name })
    }

    async fn measure(&self, flags: &Flags, screen: &Screen) -> Outcome<Report> {
        let folder = match &flags.server {
            Some(_) => None,
            None => Some(new_folder(flags.store.as_deref().unwrap_or(Path::new(".")), &self.run_name)?),
        };
        if let Some(url) = &flags.server {
            // Producers and workers would be patient with a server that is not there.
            let client = Client::builder(url).patience(Duration::ZERO).connect().await?;
            client.read_text("/readyz", Duration::ZERO).await?;
        }
        let machine = Machine::look(folder.as_ref().and_then(|folder| folder.path().parent()));
        let place = match (&folder, &flags.server) {
            (_, Some(url)) => Place::Existing(url),
            (Some(folder), None) => Place::Private(folder.path()),
            (None, None) => return Err(Failure::usage("there is neither a server nor a folder")),
        };
        let steps = flags.repeat as usize * self.stages.len() * self.ways.len();
        let mut bar = Bar::new(screen, Some(steps as u64), "stages");
        let (mut measured, mut syncs, mut step) = (Measured::default(), Vec::new(), 0);
        for run in 1..=flags.repeat {
            if let Some(folder) = &folder {
                bar.say("the disk".to_owned());
                syncs.push(syncs_per_second(folder.path()).await?.round());
            }
            for stage in &self.stages {
                // Both ways one after the other, so that a machine that changes its mind changes it for both.
                for way in &self.ways {
                    bar.set(step);
                    bar.say(format!("{} {}{}", stage.name(), way.name(), of_runs(run, flags.repeat)));
                    let run_name = format!("{}-{run}", self.run_name);
                    for (figure, value) in stages::run(*stage, *way, place, &run_name, &self.sizes).await? {
                        measured.add(*way, figure, value);
                    }
                    step += 1;
                }
            }
        }
        let settings = Settings {
            seconds: flags.seconds,
            tasks: flags.tasks,
            pickups: flags.pickups,
            concurrency: flags.concurrency,
            repeat: flags.repeat,
            server: flags.server.clone(),
        };
        Ok(Report { measured, machine, syncs_per_second: Series::of(syncs), settings })
    }
}

fn of_runs(run: u32, runs: u32) -> String {
    if runs == 1 { String::new() } else { format!(", run {run} of {runs}") }
}

fn new_folder(parent: &Path, name: &str) -> Outcome<Folder> {
    Folder::new_in(parent, &format!("windlass-{name}")).map_err(|error| {
        let message = format!("cannot make a folder for stores in {}: {error}", parent.display());
        Failure::new(Exit::Failed, message).hint("Name another folder with --store sqlite:FOLDER.")
    })
}

async fn syncs_per_second(folder: &Path) -> Outcome<f64> {
    let folder = folder.to_owned();
    let measured = tokio::task::spawn_blocking(move || machine::syncs_per_second(&folder)).await;
    Ok(measured.map_err(|error| Failure::new(Exit::Failed, error.to_string()))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: &[&str]) -> Outcome<Plan> {
        let matches = command().try_get_matches_from([&["bench"], arguments].concat());
        let matches = matches.map_err(|error| Failure::usage(error.to_string()))?;
        Plan::new(&Flags::from_arg_matches(&matches).expect("flags"))
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let all = plan(&[]).expect("a plan");
        assert_eq!((all.stages.len(), all.ways.len()), (Stage::ALL.len(), 2));
        let some = plan(&["--only", "drain,pickup", "--way", "embedded"]).expect("a plan");
        assert_eq!((some.stages, some.ways), (vec![Stage::Pickup, Stage::Drain], vec![Way::Embedded]));
        let existing = plan(&["--server", "http://localhost:7070"]).expect("a plan");
        assert_eq!((existing.stages.len(), existing.ways), (Stage::ALL.len() - 1, vec![Way::Http]));
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_a_reason() {
        for (arguments, reason) in [
            (vec!["--server", "http://10.0.0.1:7070"], "not on this machine"),
            (vec!["--server", "http://127.0.0.1:1", "--way", "embedded"], "has no server"),
            (vec!["--server", "http://127.0.0.1:1", "--only", "idle"], "private server"),
            (vec!["--server", "http://127.0.0.1:1", "--store", "sqlite:."], "cannot be used with"),
            (vec!["--store", "sqlite:/no/such/folder"], "no such folder"),
            (vec!["--store", "postgres://x"], "sqlite:FOLDER"),
            (vec!["--seconds", "1e9"], "from 0.05 to 60"),
            (vec!["--seconds", "NaN"], "from 0.05 to 60"),
            (vec!["--tasks", "0"], "1..=1000000"),
            (vec!["--only", "everything"], "everything"),
        ] {
            let failure = plan(&arguments).err().unwrap_or_else(|| panic!("{arguments:?}"));
            assert!(failure.exit() == Exit::Usage && failure.to_string().contains(reason), "{failure}");
        }
    }
}
