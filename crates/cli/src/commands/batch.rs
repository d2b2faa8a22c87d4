//! `windlass enqueue --batch`: many tasks from JSON Lines, in batches that are stored all or none.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};

use super::enqueue::{submit, unique_key};
use crate::connection::{Session, raw};
use crate::exit::{Failure, Outcome};
use crate::input::json_input;
use crate::show::bar::Bar;
use crate::show::escape::{count, plain};
use crate::show::json_text::compact;

/// Tasks in one call. Half of what the server takes, so that a slow one still answers in time.
const TASKS: usize = 500;
/// Bytes in one call: well below what the server takes.
const BYTES: usize = 8 * 1024 * 1024;

/// Lines that are sent together.
#[derive(Default)]
struct Slice {
    tasks: Vec<Value>,
    /// The line that each task is on.
    lines: Vec<usize>,
    bytes: usize,
}

/// What was stored so far.
#[derive(Default)]
struct Stored {
    ids: Vec<Value>,
    deduplicated: u64,
    /// The last line that is stored.
    line: usize,
}

/// Where the lines come from, and how fast their tasks start.
struct Source<'a> {
    file: &'a str,
    rate: Option<f64>,
}

/// Submits every line of a file; with a rate so many start per second.
pub async fn run(session: &Session, file: &str, rate: Option<f64>) -> Outcome {
    let source = Source { file, rate };
    let size = std::fs::metadata(file).ok().map(|metadata| metadata.len()).filter(|_| file != "-");
    let mut reader: Box<dyn BufRead> = match file {
        "-" => Box::new(BufReader::new(std::io::stdin())),
        path => Box::new(BufReader::new(File::open(path).map_err(|error| unreadable(path, &error))?)),
    };
    let (mut stored, mut slice) = (Stored::default(), Slice::default());
    let mut bar = Bar::new(&session.screen, size, if size.is_some() { "bytes" } else { "tasks" });
    let (mut line, mut number, mut read) = (String::new(), 0, 0);
    loop {
        line.clear();
        let length =
            reader.read_line(&mut line).map_err(|error| broken_off(&unreadable(file, &error), &stored, &source))?;
        read += length;
        number += 1;
        if !line.trim().is_empty() {
            let task = task(&line, number).map_err(|failure| broken_off(&failure, &stored, &source))?;
            slice.tasks.push(task);
            slice.lines.push(number);
            slice.bytes += length;
        }
        let is_full = slice.tasks.len() >= TASKS || slice.bytes >= BYTES;
        if is_full || (length == 0 && !slice.tasks.is_empty()) {
            send(session, std::mem::take(&mut slice), &mut stored, &source).await?;
            bar.set(size.map_or(stored.ids.len(), |_| read) as u64);
        }
        if length == 0 {
            drop(bar);
            return print(session, &stored);
        }
    }
}

fn unreadable(path: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!("--batch {}: cannot read it: {error}", plain(path)))
}

/// A line as a task with a key, so that it can be sent again if the answer gets lost.
fn task(line: &str, number: usize) -> Outcome<Value> {
    let mut task = json_input::parse(&format!("line {number}"), line.trim_end(), false)?;
    let Some(fields) = task.as_object_mut() else {
        let message =
            format!("line {number} is no task: {}", plain(&compact(line.trim()).chars().take(60).collect::<String>()));
        return Err(Failure::usage(message).hint("Each line is an object such as {\"task_type\": \"send_email\"}."));
    };
    if !fields.get("task_type").is_some_and(Value::is_string) {
        let message = format!("line {number} has no task_type");
        return Err(Failure::usage(message).hint("Each line is an object such as {\"task_type\": \"send_email\"}."));
    }
    if fields.get("idempotency_key").is_none_or(Value::is_null) {
        fields.insert("idempotency_key".to_owned(), Value::from(unique_key()));
    }
    Ok(task)
}

/// Starts a task so much later than it says. What is wrong with its time is for the server to say.
fn put_off(task: &mut Value, later: Duration) {
    let run_at = task["run_at"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    match run_at.and_then(|time| time.checked_add(later).ok()) {
        Some(time) => task["run_at"] = Value::from(time.to_string()),
        None if task["delay_seconds"].is_null() => task["delay_seconds"] = Value::from(later.as_secs_f64()),
        None => {
            if let Some(delay) = task["delay_seconds"].as_f64() {
                task["delay_seconds"] = Value::from(delay + later.as_secs_f64());
            }
        }
    }
}

/// The body of a call. The server paces the tasks of one call; each call goes on where the one before it ended.
fn body(mut tasks: Vec<Value>, stored: usize, rate: Option<f64>) -> Value {
    let Some(rate) = rate else { return json!({ "tasks": tasks }) };
    let begun = Duration::try_from_secs_f64(stored as f64 / rate).unwrap_or(Duration::MAX);
    if !begun.is_zero() {
        for task in &mut tasks {
            put_off(task, begun);
        }
    }
    json!({ "tasks": tasks, "max_per_second": rate })
}

async fn send(session: &Session, slice: Slice, stored: &mut Stored, source: &Source<'_>) -> Outcome {
    let body = body(slice.tasks, stored.ids.len(), source.rate);
    match submit(session, "/api/v1/tasks/batch", &body).await {
        Ok(mut answer) => {
            stored.ids.extend(answer["task_ids"].as_array_mut().map(std::mem::take).unwrap_or_default());
            stored.deduplicated += answer["deduplicated"].as_u64().unwrap_or_default();
            stored.line = slice.lines.last().copied().unwrap_or(stored.line);
            Ok(())
        }
        Err(error) => {
            let at = error.problem().and_then(|problem| {
                let index = problem.index?;
                let detail = problem.detail.replace(&format!("tasks[{index}]."), "");
                let line = slice.lines.get(index)?;
                Some(format!("line {line} was refused: {} ({})", plain(&detail), plain(&problem.code)))
            });
            let failure = Failure::from(error);
            let message = at.unwrap_or_else(|| format!("line {} and on were not stored: {failure}", stored.line + 1));
            Err(broken_off(&Failure::new(failure.exit(), message), stored, source))
        }
    }
}

/// Says how far it came, so that one can go on from there.
fn broken_off(failure: &Failure, stored: &Stored, source: &Source<'_>) -> Failure {
    let exit = failure.exit();
    let message = failure.to_string();
    if stored.line == 0 {
        return Failure::new(exit, message).hint("Nothing was stored.");
    }
    let next = stored.line + 1;
    let how = if source.file == "-" {
        "send the rest".to_owned()
    } else {
        let rate = source.rate.map(|rate| format!(" --rate {rate}")).unwrap_or_default();
        format!("go on with `tail -n +{next} {} | windlass enqueue --batch -{rate}`", plain(source.file))
    };
    let hint =
        format!("{} stored (lines 1 to {}); mend it and {how}.", count(stored.ids.len() as u64, "task"), stored.line);
    Failure::new(exit, message).hint(hint)
}

fn print(session: &Session, stored: &Stored) -> Outcome {
    let stored_tasks = count(stored.ids.len() as u64, "task");
    if session.json {
        let document = json!({ "task_ids": stored.ids, "deduplicated": stored.deduplicated });
        return session.print_documents(&[raw(&document)?]);
    }
    let before = match stored.deduplicated {
        0 => String::new(),
        some => format!(", {some} of them there before"),
    };
    session.screen.line(&format!("{stored_tasks} stored{before}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_goes_on_from_call_to_call() {
        let tasks = || vec![json!({}), json!({"delay_seconds": 5}), json!({"run_at": "2026-01-31T08:00:00Z"})];
        assert_eq!(body(tasks(), 500, None), json!({"tasks": tasks()}));
        assert_eq!(body(tasks(), 0, Some(2.0)), json!({"tasks": tasks(), "max_per_second": 2.0}));
        let later = body(tasks(), 3, Some(2.0));
        let wanted = json!([{"delay_seconds": 1.5}, {"delay_seconds": 6.5}, {"run_at": "2026-01-31T08:00:01.5Z"}]);
        assert_eq!(later["tasks"], wanted);
    }

    #[test]
    fn lines_are_tasks_with_a_key() {
        let with_key = task("{\"task_type\": \"t\", \"idempotency_key\": \"k\"}\n", 1).expect("a task");
        assert_eq!(with_key["idempotency_key"], "k");
        let without = task("{\"task_type\": \"t\"}", 1).expect("a task");
        assert!(without["idempotency_key"].as_str().is_some_and(|key| key.starts_with("cli-")));
        for line in ["{\"id\": 7}", "7", "{\"task_type\": 7}", "{nonsense"] {
            let failure = task(line, 17).expect_err(line);
            assert!(failure.to_string().starts_with("line 17 "), "{failure}");
        }
    }
}
