//! `windlass doctor`: looks at a server or a data folder and says what is wrong and what to do. What a server
//! finds out about itself is taken from its findings; the rest is looked at here.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::{Value, json};

use super::doctor_store;
use super::findings::{self, Finding, Findings};
use super::stats::Stats;
use super::workers::Worker;
use crate::connection::{Connection, Session};
use crate::exit::{Exit, Failure, Outcome};
use crate::input::{duration, moment};
use crate::show::escape::{count as things, plain};
use crate::show::screen::Tint;
use crate::show::tasks::Task;

const EXAMPLES: &str = r#"Examples:
  windlass doctor
  windlass doctor --server http://10.0.0.7:7070
  windlass doctor --store sqlite:windlass-data      look at a data folder; needs no server
  windlass doctor --json | jq '.checks[] | select(.state != "ok")'

Exit code 0 if nothing fails, 1 if something does (3 if no server is reached). A warning does not fail."#;

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
    name: String,
    detail: String,
    next_step: Option<String>,
}

impl Check {
    /// It is fine.
    pub fn good(name: &str, detail: impl Into<String>) -> Self {
        Self { state: State::Good, name: name.to_owned(), detail: detail.into(), next_step: None }
    }

    /// It is worth a look.
    pub fn warn(name: &str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { state: State::Warn, name: name.to_owned(), detail: detail.into(), next_step: Some(next_step.into()) }
    }

    /// It is wrong.
    pub fn bad(name: &str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { state: State::Bad, name: name.to_owned(), detail: detail.into(), next_step: Some(next_step.into()) }
    }
}

/// What the server itself found.
impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        let Finding { code, severity, title, detail, next_step, .. } = finding;
        let (state, next_step) = match severity.as_str() {
            "critical" => (State::Bad, Some(next_step)),
            "warning" => (State::Warn, Some(next_step)),
            // Good to know, and nothing that has to be done.
            _ => (State::Good, None),
        };
        Self { state, name: code, detail: format!("{title}. {detail}"), next_step }
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
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for check in checks {
        let mark = match check.state {
            State::Good => session.screen.tint(Tint::Good, "ok  "),
            State::Warn => session.screen.tint(Tint::Warn, "warn"),
            State::Bad => session.screen.tint(Tint::Bad, "fail"),
        };
        session.screen.line(&format!("{mark}  {:<width$}  {}", plain(&check.name), plain(&check.detail)))?;
        if let Some(next_step) = &check.next_step {
            session.screen.line(&format!(
                "      {:<width$}  {}",
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
    let findings = session.get::<Findings>(findings::PATH).await;
    checks.push(workers_alive(&stats));
    checks.extend(paused(session, findings.as_ref().map_or(&[], |findings| findings.items.as_slice())).await?);
    checks.push(oldest(&stats));
    checks.push(dead_letters(&stats));
    checks.extend(clock(&waiting, &workers));
    match findings {
        Ok(findings) => checks.extend(findings.items.into_iter().map(Check::from)),
        // A server that does not know them is older than this command; another failure would have shown above.
        Err(failure) => checks.push(Check::warn("findings", failure.to_string(), "Use a server that has them.")),
    }
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

/// What is paused and has no work; of what has, the findings tell.
async fn paused(session: &Session, findings: &[Finding]) -> Outcome<Vec<Check>> {
    #[derive(Deserialize)]
    struct Named {
        #[serde(alias = "task_type")]
        name: String,
        paused: bool,
    }
    let mut checks = Vec::new();
    for (what, path, command) in [("queue", "/api/v1/queues", "queues"), ("task type", "/api/v1/task-types", "types")] {
        let named: Vec<Named> = items(session, &format!("{path}?limit=1000")).await?;
        let is_told = |name: &str| {
            let is_it = |finding: &&Finding| finding.evidence["kind"] == what && finding.evidence["name"] == name;
            findings.iter().filter(|finding| finding.code == "paused_with_work").find(is_it).is_some()
        };
        let paused = named.into_iter().filter(|named| named.paused && !is_told(&named.name));
        let names: Vec<_> = paused.map(|named| named.name).collect();
        if let Some(first) = names.first() {
            let detail = format!("{what} {}", names.join(", "));
            checks.push(Check::warn("paused", detail, format!("If that is over: windlass {command} resume {first}")));
        }
    }
    let has_work = findings.iter().any(|finding| finding.code == "paused_with_work");
    if checks.is_empty() && !has_work {
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

    #[test]
    fn only_what_is_critical_fails() {
        let check = |severity: &str| {
            Check::from(Finding {
                code: "no_workers".into(),
                severity: severity.into(),
                title: "No worker takes tasks".into(),
                detail: "7 tasks wait.".into(),
                next_step: "Start a worker.".into(),
                ..Finding::default()
            })
        };
        let critical = check("critical");
        assert_eq!((critical.state, critical.name.as_str()), (State::Bad, "no_workers"));
        assert_eq!(critical.detail, "No worker takes tasks. 7 tasks wait.");
        assert_eq!(check("warning").state, State::Warn);
        assert_eq!((check("info").state, check("info").next_step), (State::Good, None));
    }
}
