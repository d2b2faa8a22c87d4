//! `windlass doctor`: looks at a server or a data folder and says what is wrong and what to do.

use std::collections::BTreeMap;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::{Value, json};

use super::doctor_store;
use super::stats::Stats;
use super::workers::Worker;
use crate::connection::{Connection, Session};
use crate::exit::{Exit, Failure, Outcome};
use crate::input::{duration, moment};
use crate::show::escape::{count as things, plain};
use crate::show::screen::Tint;
use crate::show::tasks::Task;

const EXAMPLES: &str = r"Examples:
  windlass doctor
  windlass doctor --server http://10.0.0.7:7070
  windlass doctor --store sqlite:windlass-data      look at a data folder; needs no server
  windlass doctor --json | jq '.checks[] | select(.state != .ok)'

Exit code 0 if nothing fails, 1 if something does (3 if no server is reached). A warning does not fail.";

#[derive(Args)]
struct Doctor {
    /// Look at this store instead of a server
    #[arg(long, value_name = "sqlite:PATH")]
    store: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Doctor::augment_args(Command::new("doctor")).about("Checks a server or a data folder").after_help(EXAMPLES)
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Fine.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
}

/// One check.
#[derive(Debug)]
pub struct Check {
    state: State,
    name: &'static str,
    detail: String,
    next_step: Option<String>,
}

impl Check {
    /// It is fine.
    pub fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self { state: State::Good, name, detail: detail.into(), next_step: None }
    }

    /// It is worth a look.
    pub fn warn(name: &'static str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { state: State::Warn, name, detail: detail.into(), next_step: Some(next_step.into()) }
    }

    /// It is wrong.
    pub fn bad(name: &'static str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { state: State::Bad, name, detail: detail.into(), next_step: Some(next_step.into()) }
    }
}

/// Checks.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Doctor::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let (checks, exit) = match &args.store {
        Some(store) => (doctor_store::checks(store)?, Exit::Failed),
        None => server_checks(&session).await?,
    };
    print(&session, &checks)?;
    if checks.iter().any(|check| check.state == State::Bad) { Err(Failure::told(exit)) } else { Ok(()) }
}

fn print(session: &Session, checks: &[Check]) -> Outcome {
    if session.json {
        let state = |check: &Check| match check.state {
            State::Good => "ok",
            State::Warn => "warn",
            State::Bad => "fail",
        };
        let document = |check: &Check| json!({ "check": check.name, "state": state(check), "detail": check.detail, "next_step": check.next_step });
        let all_good = checks.iter().all(|check| check.state != State::Bad);
        let checks: Vec<Value> = checks.iter().map(document).collect();
        return session.print_json(&json!({ "ok": all_good, "checks": checks }).to_string());
    }
    for check in checks {
        let mark = match check.state {
            State::Good => session.screen.tint(Tint::Good, "ok  "),
            State::Warn => session.screen.tint(Tint::Warn, "warn"),
            State::Bad => session.screen.tint(Tint::Bad, "fail"),
        };
        session.screen.line(&format!("{mark}  {:<12}  {}", check.name, plain(&check.detail)))?;
        if let Some(next_step) = &check.next_step {
            session.screen.line(&format!(
                "      {:<12}  {}",
                "",
                session.screen.tint(Tint::Dim, &format!("→ {}", plain(next_step)))
            ))?;
        }
    }
    Ok(())
}

/// The description of the API tells the version of the server.
#[derive(Deserialize)]
struct Description {
    info: Info,
}

#[derive(Deserialize)]
struct Info {
    version: String,
}

async fn server_checks(session: &Session) -> Outcome<(Vec<Check>, Exit)> {
    let mut checks = Vec::new();
    match session.get::<Description>("/openapi.json").await {
        Ok(description) => {
            checks.push(Check::good("server", format!("answers at {}", session.server())));
            checks.push(version(&description.info.version));
        }
        Err(failure) => {
            let next_step = failure.what_to_do().unwrap_or("See --server.").to_owned();
            checks.push(Check::bad("server", failure.to_string(), next_step));
            return Ok((checks, failure.exit()));
        }
    }
    checks.push(match session.text("/readyz").await {
        Ok(_) => Check::good("ready", "the store answers and the server takes requests"),
        Err(failure) => Check::bad(
            "ready",
            failure.to_string(),
            "Look at the log of the server, and at its disk: windlass doctor --store …",
        ),
    });
    let stats: Stats = session.get("/api/v1/queue/stats").await?;
    let workers: Vec<Worker> = items(session, "/api/v1/workers?limit=1000").await?;
    let waiting: Vec<Task> = items(session, "/api/v1/tasks?status=queued&limit=1000").await?;
    checks.push(workers_alive(&stats));
    checks.extend(unserved(&waiting, &workers));
    checks.extend(paused(session).await?);
    checks.push(oldest(&stats));
    checks.push(dead_letters(&stats));
    checks.extend(clock(&waiting, &workers));
    Ok((checks, Exit::Failed))
}

async fn items<T: serde::de::DeserializeOwned>(session: &Session, path: &str) -> Outcome<Vec<T>> {
    #[derive(Deserialize)]
    struct Page<T> {
        items: Vec<T>,
    }
    Ok(session.get::<Page<T>>(path).await?.items)
}

fn version(of_server: &str) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    if of_server == own {
        return Check::good("version", format!("server and command are {own}"));
    }
    let detail = format!("the server is {of_server}, this command is {own}");
    Check::warn("version", detail, "Use the same version on both sides where you can.")
}

fn workers_alive(stats: &Stats) -> Check {
    let workers = &stats.workers;
    let waiting = stats.by_status.get("queued").copied().unwrap_or_default();
    let live = workers.active + workers.draining + workers.unhealthy;
    let detail = format!(
        "{} active, {} draining, {} unhealthy, {} dead; {} of {} slots taken",
        workers.active,
        workers.draining,
        workers.unhealthy,
        workers.dead,
        workers.used_capacity,
        workers.total_capacity
    );
    if workers.active == 0 && waiting > 0 {
        return Check::bad(
            "workers",
            format!("none is active while work waits: {} ({detail})", things(waiting, "task")),
            "Start a worker.",
        );
    }
    if live == 0 {
        return Check::warn("workers", "none is registered", "Start a worker before you submit tasks.");
    }
    if workers.unhealthy + workers.dead > 0 {
        return Check::warn("workers", detail, "`windlass workers` shows which ones; look at their logs.");
    }
    if workers.used_capacity >= workers.total_capacity && waiting > 0 {
        return Check::warn(
            "workers",
            format!("all are busy and {waiting} tasks wait: {detail}"),
            "Start more workers, or give them more capacity.",
        );
    }
    Check::good("workers", detail)
}

/// Waiting tasks that no live worker would take, by queue and type.
fn unserved(waiting: &[Task], workers: &[Worker]) -> Vec<Check> {
    let live: Vec<&Worker> = workers.iter().filter(|worker| worker.status != "dead").collect();
    if live.is_empty() {
        // Then none is served, which was said already.
        return Vec::new();
    }
    let mut lonely: BTreeMap<(&str, &str, &[String]), usize> = BTreeMap::new();
    for task in waiting.iter().filter(|task| !live.iter().any(|worker| serves(worker, task))) {
        *lonely.entry((&task.queue, &task.task_type, &task.required_capabilities)).or_default() += 1;
    }
    let check = |((queue, task_type, capabilities), count): ((&str, &str, &[String]), usize)| {
        let needs = if capabilities.is_empty() { String::new() } else { format!(" with {}", capabilities.join(", ")) };
        let detail = format!(
            "no live worker serves {} of type {task_type} in queue {queue}",
            things(count as u64, "waiting task")
        );
        Check::bad("served", detail, format!("Start a worker for queue {queue} and type {task_type}{needs}."))
    };
    if lonely.is_empty() && !waiting.is_empty() {
        return vec![Check::good("served", "a live worker serves every waiting task that was looked at")];
    }
    lonely.into_iter().map(check).collect()
}

/// Whether a worker would take the task; a worker that lists nothing takes everything.
fn serves(worker: &Worker, task: &Task) -> bool {
    let takes = |names: &[String], name: &String| names.is_empty() || names.contains(name);
    takes(&worker.queues, &task.queue)
        && takes(&worker.task_types, &task.task_type)
        && task.required_capabilities.iter().all(|capability| worker.capabilities.contains(capability))
}

async fn paused(session: &Session) -> Outcome<Vec<Check>> {
    #[derive(Deserialize)]
    struct Named {
        #[serde(alias = "task_type")]
        name: String,
        paused: bool,
    }
    let mut checks = Vec::new();
    for (what, path, command) in [("queue", "/api/v1/queues", "queues"), ("task type", "/api/v1/task-types", "types")] {
        let named: Vec<Named> = items(session, &format!("{path}?limit=1000")).await?;
        let names: Vec<_> = named.into_iter().filter(|named| named.paused).map(|named| named.name).collect();
        if let Some(first) = names.first() {
            let detail = format!("{what} {}", names.join(", "));
            checks.push(Check::warn("paused", detail, format!("If that is over: windlass {command} resume {first}")));
        }
    }
    if checks.is_empty() {
        checks.push(Check::good("paused", "no queue and no task type"));
    }
    Ok(checks)
}

fn oldest(stats: &Stats) -> Check {
    /// Longer than this nobody should wait without knowing.
    const LONG_SECONDS: f64 = 600.0;
    let oldest = stats.by_queue.iter().filter(|(_, standing)| standing.depth > 0);
    let oldest = oldest.max_by(|(_, one), (_, other)| one.oldest_age_seconds.total_cmp(&other.oldest_age_seconds));
    match oldest {
        None => Check::good("waiting", "no task waits for a worker"),
        Some((queue, standing)) => {
            let detail = format!(
                "the oldest has waited {} in queue {queue}",
                duration::rough_seconds(standing.oldest_age_seconds)
            );
            if standing.oldest_age_seconds < LONG_SECONDS {
                return Check::good("waiting", detail);
            }
            Check::warn(
                "waiting",
                detail,
                format!("`windlass list --queue {queue} --status queued` shows them, `windlass get ID` says why."),
            )
        }
    }
}

fn dead_letters(stats: &Stats) -> Check {
    match stats.by_status.get("dead_letter").copied().unwrap_or_default() {
        0 => Check::good("dead letters", "none"),
        count => Check::warn(
            "dead letters",
            format!("{}: given up, for a person to decide", things(count, "task")),
            "`windlass dlq` shows why.",
        ),
    }
}

/// A server that has seen later times than this machine's now has another clock.
fn clock(waiting: &[Task], workers: &[Worker]) -> Option<Check> {
    const TOLERATED_SECONDS: u64 = 2;
    let now = moment::now();
    let times =
        waiting.iter().map(|task| &task.created_at).chain(workers.iter().map(|worker| &worker.last_heartbeat_at));
    let ahead = times
        .filter_map(|time| moment::distance(time, now))
        .filter(|(_, is_future)| *is_future)
        .map(|(span, _)| span)
        .max();
    let ahead = ahead.filter(|span| span.as_secs() >= TOLERATED_SECONDS)?;
    let detail = format!("this machine is at least {} behind the server; ages are shown wrong", duration::rough(ahead));
    Some(Check::warn("clock", detail, "Let both machines follow the same time server."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(queue: &str, task_type: &str, capabilities: &[&str]) -> Task {
        Task {
            queue: queue.into(),
            task_type: task_type.into(),
            required_capabilities: capabilities.iter().map(|&name| name.to_owned()).collect(),
            ..Task::default()
        }
    }

    #[test]
    fn work_that_nobody_takes_is_named() {
        let worker = Worker {
            status: "active".into(),
            queues: vec!["mail".into()],
            capabilities: vec!["smtp".into()],
            ..Worker::default()
        };
        let waiting =
            [task("mail", "a", &[]), task("mail", "a", &["smtp"]), task("video", "b", &[]), task("video", "b", &[])];
        let checks = unserved(&waiting, &[worker]);
        assert_eq!(checks.len(), 1, "{checks:?}");
        assert!(checks[0].state == State::Bad && checks[0].detail.contains("2 waiting tasks of type b in queue video"));
    }

    #[test]
    fn a_worker_that_lists_nothing_takes_everything_that_needs_nothing() {
        let worker = Worker { status: "active".into(), ..Worker::default() };
        assert!(serves(&worker, &task("q", "t", &[])));
        assert!(!serves(&worker, &task("q", "t", &["gpu"])));
    }
}
