//! Durations as people write them: `30s`, `1h30m`, `250ms`.

use std::time::Duration;

const UNITS: [(&str, u64); 7] =
    [("ms", 1), ("s", 1_000), ("sec", 1_000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// What a duration must look like.
pub const RULE: &str = "must be a duration such as 250ms, 30s, 5m, 1h30m or 2d";

/// Reads a duration: numbers, each with its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| RULE.to_owned())
}

fn read(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let number_length = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, after) = rest.split_at(number_length);
        let unit_length = after.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_length);
        let (_, milliseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let seconds = number.parse::<f64>().ok()? * (*milliseconds as f64) / 1_000.0;
        total = total.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// Reads a duration within bounds; the message names them.
pub fn within(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let span = parse(text)?;
    if (least..=most).contains(&span) {
        return Ok(span);
    }
    Err(format!("must be from {} to {}", exact(least), exact(most)))
}

/// A duration in its two largest units, for people: `3m 5s`, `2d 4h`.
pub fn rough(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 if span.is_zero() => "0s".to_owned(),
        0 => format!("{}ms", span.as_millis().max(1)),
        1..60 => format!("{seconds}s"),
        60..3_600 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 || large >= 10 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit} {small}{small_unit}")
    }
}

/// A number of seconds in its two largest units. What is no duration is shown as nothing.
pub fn rough_seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "-".to_owned(), rough)
}

/// A duration as it could be typed again.
pub fn exact(span: Duration) -> String {
    let milliseconds = span.as_millis() as u64;
    let mut rest = milliseconds;
    let mut text = String::new();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if rest / size > 0 {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, milliseconds) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("0", 0),
            ("0s", 0),
            ("1m0s500ms", 60_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in
            ["", "30", "s", "5 m", "-5s", "1h30", "5weeks", "1.2.3s", "١s", "1e3s", "99999999999999999999d", "s30"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        let error = within("9d", Duration::ZERO, Duration::from_hours(168)).expect_err("too long");
        assert_eq!(error, "must be from 0s to 7d");
    }

    #[test]
    fn durations_are_shown_roughly() {
        for (milliseconds, shown) in [
            (0, "0s"),
            (12, "12ms"),
            (1_900, "1s"),
            (60_000, "1m"),
            (185_000, "3m 5s"),
            (754_000, "12m"),
            (7_260_000, "2h 1m"),
            (187_200_000, "2d 4h"),
            (8_640_000_000, "100d"),
        ] {
            assert_eq!(rough(Duration::from_millis(milliseconds)), shown);
        }
        assert_eq!(exact(Duration::from_millis(5_400_250)), "1h30m250ms");
        assert_eq!(rough_seconds(-1.0), "-");
    }
}
