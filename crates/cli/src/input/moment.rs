//! Moments: the time of this machine, times that people type, and how long ago something was.

use std::time::Duration;

use jiff::Timestamp;

use super::duration;

/// What time it is on this machine. Only for showing ages and for times that people give relative to now: what is due
/// is decided by the server's clock.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Reads a time with its offset from UTC, and gives it as the API wants it.
pub fn parse(text: &str) -> Result<String, String> {
    let rule = "must be a time with its offset from UTC, such as 2026-01-31T08:00:00Z or 2026-01-31T09:00:00+01:00";
    text.parse::<Timestamp>().map(|time| time.to_string()).map_err(|_| rule.to_owned())
}

/// Reads a time, or a duration that counts back from now.
pub fn parse_past(text: &str) -> Result<String, String> {
    if let Ok(back) = duration::parse(text) {
        return before(now(), back).map(|time| time.to_string()).ok_or_else(|| "lies too far back".to_owned());
    }
    parse(text).map_err(|_| {
        "must be a duration such as 2h, which counts back from now, or a time such as 2026-01-31T08:00:00Z".to_owned()
    })
}

fn before(now: Timestamp, back: Duration) -> Option<Timestamp> {
    now.checked_sub(jiff::SignedDuration::try_from(back).ok()?).ok()
}

/// How far a time is from now: the span, and whether it is still to come.
pub fn distance(time: &str, now: Timestamp) -> Option<(Duration, bool)> {
    let span = now.duration_since(time.parse().ok()?);
    Some((span.unsigned_abs(), span.is_negative()))
}

/// How long ago it was, in short: `3m5s`. Clocks differ a little, so a moment that is about to come is `0s`.
pub fn age(time: &str, now: Timestamp) -> String {
    match distance(time, now) {
        Some((span, false)) if span.as_secs() > 0 => duration::rough(span).replace(' ', ""),
        Some(_) => "0s".to_owned(),
        None => "-".to_owned(),
    }
}

/// A time relative to now, in words.
pub fn relative(time: &str, now: Timestamp) -> String {
    match distance(time, now) {
        Some((span, _)) if span.as_secs() == 0 => "just now".to_owned(),
        Some((span, true)) => format!("in {}", duration::rough(span)),
        Some((span, false)) => format!("{} ago", duration::rough(span)),
        None => "-".to_owned(),
    }
}

/// A time of the API for a line of a timeline: without its date where that is the same as of the line before.
pub fn line_time(time: &str, before: Option<&str>) -> String {
    let read = |text: &str| text.parse::<Timestamp>().ok();
    let date = |time: &Timestamp| time.strftime("%Y-%m-%d").to_string();
    match (read(time), before.and_then(read)) {
        (Some(time), Some(before)) if date(&time) == date(&before) => time.strftime("%H:%M:%S%.3f").to_string(),
        (Some(time), _) => time.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string(),
        (None, _) => "-".to_owned(),
    }
}

/// A time of the API without fractions: `2026-01-31 08:00:00 UTC`.
pub fn clock_time(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_relative_to_now() {
        let now: Timestamp = "2026-01-31T08:00:00Z".parse().expect("a time");
        for (time, shown) in [
            ("2026-01-31T08:00:00.4Z", "just now"),
            ("2026-01-31T07:59:59.9Z", "just now"),
            ("2026-01-31T07:56:55Z", "3m 5s ago"),
            ("2026-01-31T08:00:30Z", "in 30s"),
            ("2026-01-29T04:00:00Z", "2d 4h ago"),
            ("not a time", "-"),
        ] {
            assert_eq!(relative(time, now), shown, "{time}");
        }
        assert_eq!(age("2026-01-31T08:00:05Z", now), "0s");
        assert_eq!(age("2026-01-31T06:59:00Z", now), "1h1m");
        assert_eq!(line_time("2026-01-31T08:00:00.123456Z", None), "2026-01-31 08:00:00.123");
        assert_eq!(line_time("2026-01-31T08:00:00Z", Some("2026-01-31T07:00:00Z")), "08:00:00.000");
        assert_eq!(line_time("2026-01-31T08:00:00Z", Some("2026-01-30T07:00:00Z")), "2026-01-31 08:00:00.000");
        assert_eq!(clock_time("2026-01-31T08:00:00.123456Z"), "2026-01-31 08:00:00 UTC");
    }

    #[test]
    fn times_are_read_with_their_offset() {
        assert_eq!(parse("2026-01-31T09:00:00+01:00").expect("a time"), "2026-01-31T08:00:00Z");
        for text in ["2026-01-31", "2026-01-31T08:00:00", "tomorrow", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
        let now: Timestamp = "2026-01-31T08:00:00Z".parse().expect("a time");
        assert_eq!(before(now, Duration::from_hours(2)).expect("a time").to_string(), "2026-01-31T06:00:00Z");
        assert_eq!(before(now, Duration::MAX), None);
    }
}
