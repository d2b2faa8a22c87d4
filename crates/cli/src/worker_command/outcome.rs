//! What the end of a program means for its task: the result it printed, or an error that tells a person what happened.

use std::time::Duration;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use windlass::{TaskError, TaskResult};
use windlass_exec::{Ended, How, Limits};

use super::size;
use crate::input::duration;

/// `EX_DATAERR` of sysexits.h: the parameters are wrong, no retry helps.
const EXIT_PERMANENT: i32 = 65;

/// How much of stdout is shown where stderr is empty: some programs complain there.
const STDOUT_SHOWN: usize = 1_000;

/// The result of the task, or why there is none.
pub fn of(ended: &Ended, limits: &Limits) -> TaskResult<Box<RawValue>> {
    let (headline, code) = match &ended.how {
        How::Exited(0) => return result(&ended.stdout),
        How::Stopped(_) => return Err(TaskError::release()),
        How::Exited(code) => (format!("exit {code}"), format!("exit_{code}")),
        How::Signalled(signal) => {
            (format!("killed by signal {signal}{}", name_of(*signal)), format!("signal_{signal}"))
        }
        How::OutOfMemory { used, limit } => {
            let (used, limit) = (size::shown(*used), size::shown(*limit));
            (format!("out of memory: {used} in use, the limit is {limit}"), "out_of_memory".to_owned())
        }
        How::KernelOutOfMemory => (
            "out of memory: the machine or the container had none left, and the kernel killed it".to_owned(),
            "out_of_memory".to_owned(),
        ),
        How::CpuLimit => {
            let limit = limits.cpu.map(duration::exact).unwrap_or_default();
            (format!("used more processor time than its limit of {limit}"), "cpu_limit".to_owned())
        }
        How::TimedOut => (format!("timeout: stopped after {:.1} s", ended.wall.as_secs_f64()), "timeout".to_owned()),
        How::TooMuchOutput { limit } => {
            let limit = size::shown(*limit as u64);
            let advice = "keep a large result elsewhere and print where it is";
            (format!("printed more than {limit} to stdout; {advice}"), "output_too_large".to_owned())
        }
        How::CouldNotStart(error) => (format!("could not start: {error}"), "could_not_start".to_owned()),
        How::KeeperLost => (
            "the process that watches over the program was killed, and the program with it".to_owned(),
            "keeper_lost".to_owned(),
        ),
    };
    let message = message(&headline, ended);
    let error = match &ended.how {
        How::Exited(EXIT_PERMANENT) | How::TooMuchOutput { .. } => TaskError::permanent(message),
        _ => TaskError::retry(message),
    };
    Err(error.code(code).details(details(ended)))
}

/// JSON is taken as it is, anything else as a text, nothing as null.
fn result(stdout: &[u8]) -> TaskResult<Box<RawValue>> {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(RawValue::NULL.to_owned());
    }
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(_) => to_raw_value(text).map_err(TaskError::from),
    }
}

fn message(headline: &str, ended: &Ended) -> String {
    let stderr = ended.stderr_tail.trim_end();
    if !stderr.is_empty() {
        return format!("{headline}\n{stderr}");
    }
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let stdout = stdout.trim_end();
    if stdout.is_empty() || matches!(ended.how, How::TooMuchOutput { .. }) {
        return headline.to_owned();
    }
    let from = stdout.ceil_char_boundary(stdout.len().saturating_sub(STDOUT_SHOWN));
    let cut = if from > 0 { "…" } else { "" };
    format!("{headline} (stderr is empty; stdout ends with:)\n{cut}{}", &stdout[from..])
}

fn details(ended: &Ended) -> serde_json::Value {
    let seconds = |span: Duration| span.as_millis() as f64 / 1_000.0;
    let mut details = json!({"wall_seconds": seconds(ended.wall)});
    if let Some(cpu) = ended.cpu {
        details["cpu_seconds"] = seconds(cpu).into();
    }
    if let Some(bytes) = ended.peak_memory_bytes {
        details["peak_memory_bytes"] = bytes.into();
    }
    details
}

/// The name of a signal that programs die of.
fn name_of(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        25 => " (SIGXFSZ)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use windlass_exec::Stop;

    use super::*;

    fn ended(how: How, stdout: &[u8], stderr: &str) -> Ended {
        Ended {
            how,
            stdout: stdout.to_vec(),
            stderr_tail: stderr.to_owned(),
            wall: Duration::from_millis(1_234),
            peak_memory_bytes: None,
            cpu: None,
            left_running: 0,
        }
    }

    fn error_of(how: How, stdout: &[u8], stderr: &str) -> TaskError {
        let limits = Limits { cpu: Some(Duration::from_secs(30)), ..Limits::default() };
        of(&ended(how, stdout, stderr), &limits).expect_err("no success")
    }

    #[test]
    fn json_is_taken_as_it_is_and_the_rest_as_text() {
        for (stdout, result) in [
            (&b""[..], "null"),
            (b" \n\n", "null"),
            (b"{\"z\": 1.10, \"a\": 18446744073709551617}\n", "{\"z\": 1.10, \"a\": 18446744073709551617}"),
            (b"42\n", "42"),
            (b"done\n", "\"done\""),
            (b"  two\nlines \n", "\"  two\\nlines\""),
            (b"{\"a\":1}{\"b\":2}", "\"{\\\"a\\\":1}{\\\"b\\\":2}\""),
            (b"caf\xe9", "\"caf\u{fffd}\""),
        ] {
            let value = of(&ended(How::Exited(0), stdout, "chatter"), &Limits::default()).expect("success");
            assert_eq!(value.get(), result);
        }
    }

    #[test]
    fn errors_begin_with_what_happened() {
        for (how, headline) in [
            (How::Exited(3), "exit 3"),
            (How::Signalled(11), "killed by signal 11 (SIGSEGV)"),
            (
                How::OutOfMemory { used: 80_000_000, limit: 64_000_000 },
                "out of memory: 80 MB in use, the limit is 64 MB",
            ),
            (How::CpuLimit, "used more processor time than its limit of 30s"),
            (How::TimedOut, "timeout: stopped after 1.2 s"),
        ] {
            assert_eq!(
                error_of(how, b"", "the disk is on fire\n").message(),
                format!("{headline}\nthe disk is on fire")
            );
        }
        assert_eq!(error_of(How::Exited(1), b"", "").message(), "exit 1");
        let told_on_stdout = "exit 1 (stderr is empty; stdout ends with:)\nno such file";
        assert_eq!(error_of(How::Exited(1), b"no such file\n", " \n").message(), told_on_stdout);
    }

    #[test]
    fn exit_codes_decide_whether_a_retry_helps() {
        assert!(!error_of(How::Exited(75), b"", "").is_permanent());
        assert!(!error_of(How::Exited(1), b"", "").is_permanent());
        assert!(error_of(How::Exited(65), b"", "").is_permanent());
        assert!(error_of(How::TooMuchOutput { limit: 1 << 20 }, b"", "").is_permanent());
        assert_eq!(error_of(How::Stopped(Stop::Shutdown), b"", "x").message(), "given back");
    }
}
