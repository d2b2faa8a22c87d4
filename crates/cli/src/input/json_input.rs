//! JSON that people type: read from where they say, checked before it is sent, and refused with a finger on the place.

use std::io::Read;

use serde_json::Value;

use crate::exit::{Exit, Failure, Outcome};
use crate::show::escape::plain;
use crate::show::json_text::tokens;

/// Reads JSON given to a flag: the text itself, `@FILE`, or `-` for standard input.
pub fn read(flag: &str, given: &str) -> Outcome<Value> {
    let (text, source) = match given.strip_prefix('@') {
        Some(path) => (read_file(flag, path)?, plain(path)),
        None if given == "-" => (read_stdin(flag)?, "standard input".to_owned()),
        None => (given.to_owned(), String::new()),
    };
    let what = if source.is_empty() { flag.to_owned() } else { format!("{flag} from {source}") };
    parse(&what, &text, source.is_empty())
}

fn read_file(flag: &str, path: &str) -> Outcome<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{flag} @{}: cannot read the file: {error}", plain(path))))
}

fn read_stdin(flag: &str) -> Outcome<String> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("{flag} -: cannot read standard input: {error}")))?;
    Ok(text)
}

/// Checks a JSON text; what is wrong with it is said as `WHAT is not JSON: …`, with the place.
pub fn parse(what: &str, text: &str, is_from_shell: bool) -> Outcome<Value> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let message = format!("{what} is not JSON: {}{}", reason(&error), pointed(text, &error));
        let failure = Failure::new(Exit::Usage, message);
        match quoting_mistake(text).filter(|_| is_from_shell) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    if let Some(number) = tokens(text).find(|token| is_too_large(token)) {
        let message = format!("{what} has the number {number}, which would not arrive exactly");
        return Err(Failure::usage(message).hint("Write a number beyond 64 bits as a string, in double quotes."));
    }
    Ok(value)
}

/// Whether it is a whole number that a 64-bit number cannot hold.
fn is_too_large(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && token.parse::<i64>().is_err()
        && token.parse::<u64>().is_err()
}

/// What the parser says, without the place, which is pointed at.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("{} (line {}, column {})", text.strip_suffix(&place).unwrap_or(&text), error.line(), error.column())
}

/// The line with a mark under the place, for texts that have one.
fn pointed(text: &str, error: &serde_json::Error) -> String {
    /// Characters shown on each side of the place.
    const AROUND: usize = 36;
    let Some(line) = error.line().checked_sub(1).and_then(|index| text.lines().nth(index)) else {
        return String::new();
    };
    let bytes = error.column().saturating_sub(1).min(line.len());
    let at = line.char_indices().take_while(|(start, _)| *start < bytes).count();
    let first = at.saturating_sub(AROUND);
    let before: String = line.chars().skip(first).take(at - first).collect();
    let after: String = line.chars().skip(at).take(AROUND).collect();
    let (before, after) = (plain(&before), plain(&after));
    format!("\n    {before}{after}\n    {}^", " ".repeat(before.chars().count()))
}

/// The classic mistakes of giving JSON to a shell.
fn quoting_mistake(text: &str) -> Option<&'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Some("It is empty: is the shell variable set? Leave the flag out for no parameters.");
    }
    if text.starts_with('\'') {
        return Some(
            "Your shell passes single quotes on; use double quotes and escape the inner ones: \"{\\\"id\\\": 7}\".",
        );
    }
    if text.starts_with(['{', '[']) && !text.contains('"') && text.contains('\'') {
        return Some("JSON has double quotes: '{\"id\": 7}', in single quotes for the shell.");
    }
    if text.starts_with(['{', '[']) && !text.contains('"') {
        return Some("Did the shell take the double quotes away? Put single quotes around: '{\"id\": 7}'.");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (String, String) {
        let failure = parse("--parameters", text, true).expect_err(text);
        assert_eq!(failure.exit(), Exit::Usage);
        (failure.to_string(), failure.what_to_do().unwrap_or_default().to_owned())
    }

    #[test]
    fn the_place_is_pointed_at() {
        let (message, _) = refused(r#"{"to": "ada", "cc": }"#);
        let lines: Vec<_> = message.lines().collect();
        assert!(lines[0].starts_with("--parameters is not JSON: expected value (line 1, column 21)"), "{message}");
        assert_eq!(lines[1].chars().nth(lines[2].chars().count() - 1), Some('}'), "{message}");
        let (message, _) = refused("{\"a\": 1,\n \"b\": \u{1b}x}");
        assert!(message.contains("line 2") && message.contains("\\u{1b}"), "{message}");
    }

    #[test]
    fn quoting_mistakes_get_a_hint() {
        for (text, hint) in [
            ("{id: 7}", "take the double quotes away"),
            ("'{id: 7}'", "passes single quotes on"),
            ("{'id': 7}", "JSON has double quotes"),
            ("", "empty"),
        ] {
            assert!(refused(text).1.contains(hint), "{text}");
        }
        assert!(refused(r#"{"id": }"#).1.is_empty());
    }

    #[test]
    fn numbers_that_would_be_changed_are_refused() {
        assert!(
            parse("p", "[18446744073709551615, -9223372036854775808, 1e300, \"99999999999999999999\"]", true).is_ok()
        );
        let (message, hint) = refused("{\"id\": 99999999999999999999}");
        assert!(message.contains("99999999999999999999") && hint.contains("string"), "{message}");
    }
}
