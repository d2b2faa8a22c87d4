//! `windlass wait`: waits for tasks to end, shows how far they are, prints their results.

use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::connection::{Connection, Session};
use crate::exit::{Exit, Failure, Outcome};
use crate::input::duration;
use crate::show::bar::{Bar, drawn};
use crate::show::escape::{plain, url_part};
use crate::show::json_text::{compact, pretty};
use crate::show::screen::Tint;
use crate::show::tasks::{self, Task};

const EXAMPLES: &str = r"Examples:
  windlass wait 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass wait $id --timeout 60s || echo it did not work out
  windlass wait $first $second --json

Prints the result; several tasks get a line each. Exit code 6 if one ended without success,
7 if the time was over first.";

/// How much longer than the time to wait an answer may take.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Args)]
struct Wait {
    /// The tasks to wait for
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Give up after this long, such as 60s; without it there is no end
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Wait::augment_args(Command::new("wait"))
        .about("Waits for tasks to end and prints their results")
        .after_help(EXAMPLES)
}

/// Waits.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Wait::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    for_tasks(&Session::open(&args.connection).await?, &args.ids, args.timeout).await
}

/// Waits for all of them, prints what came of them.
pub async fn for_tasks(session: &Session, ids: &[String], at_most: Option<Duration>) -> Outcome {
    let begun = Instant::now();
    let mut bar = Bar::new(&session.screen, None, "");
    let mut documents = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let place = if ids.len() > 1 { format!("[{}/{}] ", index + 1, ids.len()) } else { String::new() };
        let left = || at_most.map(|at_most| at_most.saturating_sub(begun.elapsed()));
        documents.push(for_one(session, id, left, |task| bar.say(format!("{place}{}", standing(task)))).await?);
    }
    drop(bar);
    print(session, &documents, at_most).await
}

/// How a task stands while one waits, in a line.
fn standing(task: &Task) -> String {
    let progress = task.progress.as_ref().filter(|_| task.status == "executing");
    match progress {
        Some(progress) => format!("{} {} {}", plain(&task.task_type), drawn(progress.percent), progress.line()),
        None if task.attempt > 1 => {
            format!("{} {}, attempt {}", plain(&task.task_type), plain(&task.status), task.attempt)
        }
        None => format!("{} {}", plain(&task.task_type), plain(&task.status)),
    }
}

/// The document of a task once it has ended or the time is over.
async fn for_one(
    session: &Session,
    id: &str,
    left: impl Fn() -> Option<Duration>,
    mut show: impl FnMut(&Task),
) -> Outcome<Box<RawValue>> {
    // A person is shown progress; a script only waits.
    let hold_at_most = Duration::from_secs(if session.screen.err_is_terminal { 1 } else { 30 });
    let path = format!("/api/v1/tasks/{}", url_part(id));
    // The first look is not held: that the server or the task is not there is said at once.
    let mut text = session.text(&path).await?;
    loop {
        let task: Task = session.read(&text)?;
        if task.is_ended() || left().is_some_and(|left| left.is_zero()) {
            return session.read(&text);
        }
        show(&task);
        let hold = left().map_or(hold_at_most, |left| left.min(hold_at_most));
        let held = format!("{path}?wait={}", hold.as_secs_f64());
        let answer = session.text_held(&held, hold);
        text = match left() {
            None => answer.await?,
            // Where the server went away, the time to wait still ends.
            Some(left) => match tokio::time::timeout(left + GRACE, answer).await {
                Ok(answer) => answer?,
                Err(_) => return session.read(&text),
            },
        };
    }
}

async fn print(session: &Session, documents: &[Box<RawValue>], waited: Option<Duration>) -> Outcome {
    let tasks = documents.iter().map(|document| session.read(document.get())).collect::<Outcome<Vec<Task>>>()?;
    if session.json {
        session.print_documents(documents)?;
    } else if let [task] = &tasks[..] {
        if task.status == "completed" {
            session.screen.line(&pretty(task.result.as_ref().map_or("null", |result| result.get())))?;
        }
    } else {
        for task in &tasks {
            session.screen.line(&line(session, task))?;
        }
    }
    match tasks.iter().find(|task| !task.is_ended()) {
        Some(task) => Err(timed_out(session, task, waited.unwrap_or_default()).await),
        None => tasks.iter().find(|task| task.status != "completed").map_or(Ok(()), |task| Err(no_success(task))),
    }
}

fn line(session: &Session, task: &Task) -> String {
    let status = session.screen.tint(Tint::of_status(&task.status), &format!("{:<11}", plain(&task.status)));
    let rest = match (&task.result, &task.error) {
        (Some(result), _) if task.status == "completed" => compact(result.get()),
        (_, Some(error)) if task.status != "completed" => error.line(),
        _ => String::new(),
    };
    format!("{}  {status}  {rest}", plain(&task.task_id)).trim_end().to_owned()
}

fn no_success(task: &Task) -> Failure {
    let how = match task.status.as_str() {
        "cancelled" => "was cancelled",
        "dead_letter" => "was given up and is a dead letter",
        _ => "failed",
    };
    let error = task.error.as_ref().map(|error| format!(": {}", tasks::Failure::line(error))).unwrap_or_default();
    let id = plain(&task.task_id);
    Failure::new(Exit::NoSuccess, format!("task {id} ({}) {how}{error}", plain(&task.task_type)))
        .hint(format!("`windlass get {id} --history` shows what happened."))
}

async fn timed_out(session: &Session, task: &Task, waited: Duration) -> Failure {
    #[derive(Deserialize)]
    struct Explanation {
        explanation: String,
    }
    let id = plain(&task.task_id);
    let message = format!(
        "task {id} ({}) has not ended after {}: it is {}",
        plain(&task.task_type),
        duration::exact(waited),
        plain(&task.status)
    );
    let path = format!("/api/v1/tasks/{}/explain", url_part(&task.task_id));
    let failure = Failure::new(Exit::TimedOut, message);
    match session.get::<Explanation>(&path).await {
        Ok(why) => failure.hint(plain(&why.explanation)),
        Err(_) => failure.hint(format!("`windlass get {id}` shows how it stands.")),
    }
}
