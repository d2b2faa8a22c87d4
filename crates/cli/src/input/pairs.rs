//! `key=value` arguments: tags, and settings of queues and types.

use serde_json::{Map, Value};

use super::duration;

/// A tag: `key=value`.
pub fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE, such as customer=42".to_owned()),
    }
}

/// A setting to change: where it is, and its new value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name, and for a part of a larger setting the name of the part.
    path: Vec<String>,
    value: Value,
}

/// A setting: `key=value` or `key.part=value`. The value is JSON, or a text where it is no JSON; `null` clears.
pub fn setting(text: &str) -> Result<Setting, String> {
    let rule = "must be KEY=VALUE, such as max_retries=5, retry.base_delay=2 or queue=mail; KEY=null clears it";
    let (key, value) = text.split_once('=').ok_or(rule)?;
    let path: Vec<String> = key.split('.').map(str::to_owned).collect();
    if path.len() > 2 || path.iter().any(String::is_empty) {
        return Err(rule.to_owned());
    }
    let value = match serde_json::from_str(value) {
        Ok(value) => value,
        Err(_) => in_seconds(key, value).unwrap_or_else(|| Value::String(value.to_owned())),
    };
    Ok(Setting { path, value })
}

/// Durations are numbers of seconds in settings; `timeout_seconds=10m` is a number too.
fn in_seconds(key: &str, value: &str) -> Option<Value> {
    let is_span = key.ends_with("_seconds") || key.ends_with("_delay") || key.ends_with("max_elapsed");
    if !is_span {
        return None;
    }
    let seconds = duration::parse(value).ok()?.as_secs_f64();
    Some(if seconds.fract() == 0.0 { Value::from(seconds as u64) } else { Value::from(seconds) })
}

/// Whether a part of a larger setting is changed, so that the rest of it must be known.
pub fn has_parts(settings: &[Setting]) -> bool {
    settings.iter().any(|setting| setting.path.len() > 1)
}

/// The body of a change. Parts are put into what the setting is now.
pub fn change(settings: &[Setting], current: &Value) -> Value {
    let mut body = Map::new();
    for Setting { path, value } in settings {
        let Some((name, parts)) = path.split_first() else { continue };
        let Some(part) = parts.first() else {
            body.insert(name.clone(), value.clone());
            continue;
        };
        let whole = body.entry(name.clone()).or_insert_with(|| current.get(name).cloned().unwrap_or(Value::Null));
        if !whole.is_object() {
            *whole = Value::Object(Map::new());
        }
        if let Some(whole) = whole.as_object_mut() {
            whole.insert(part.clone(), value.clone());
        }
    }
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_are_pairs() {
        assert_eq!(tag("customer=42"), Ok(("customer".to_owned(), "42".to_owned())));
        assert_eq!(tag("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        for text in ["customer", "=42", "customer=", ""] {
            assert!(tag(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings_become_a_change() {
        let settings: Vec<_> = [
            "max_retries=5",
            "queue=mail",
            "retention=null",
            "depth.soft=10",
            "depth.hard=20",
            "timeout_seconds=1m",
            "retry.base_delay=500ms",
            "paused=true",
        ]
        .into_iter()
        .map(|text| setting(text).expect(text))
        .collect();
        let current = json!({"depth": {"soft": 1, "hard": 2, "kept": 3}, "retry": null});
        let wanted = json!({
            "max_retries": 5, "queue": "mail", "retention": null, "depth": {"soft": 10, "hard": 20, "kept": 3},
            "timeout_seconds": 60, "retry": {"base_delay": 0.5}, "paused": true,
        });
        assert_eq!(change(&settings, &current), wanted);
        assert!(has_parts(&settings) && !has_parts(&settings[..2]));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in ["max_retries", "=5", "a..b=5", "a.b.c=5", ".a=5"] {
            assert!(setting(text).is_err(), "{text}");
        }
    }
}
