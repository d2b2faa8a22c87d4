//! Error rules: data that puts a failure in its class before the built-in rules do.
//!
//! Rules come from people, so everything about them is bounded: a pattern is matched in
//! time linear to its text, its compiled size is limited and it sees the beginning of a
//! message only.

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::failure::{ErrorClass, ErrorReport};
use crate::limits;
use crate::names::TaskType;

/// One rule. Everything that it names must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorRule {
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only failures of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_type: Option<TaskType>,
    /// The error code; `*` stands for any text and `?` for any character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The status of an HTTP call: one, or several and ranges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<StatusRanges>,
    /// A regular expression found in the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Where it puts the failure.
    pub class: RuleClass,
}

/// The classes that a rule may give. `worker_lost` is found out, never told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleClass {
    /// Goes away by itself.
    #[default]
    Transient,
    /// Somebody asked us to slow down.
    RateLimited,
    /// The attempt ran out of time.
    Timeout,
    /// Out of memory, disk or processor time.
    Resource,
    /// No retry will help.
    Permanent,
    /// The handler is broken.
    CodeBug,
}

impl From<RuleClass> for ErrorClass {
    fn from(class: RuleClass) -> Self {
        match class {
            RuleClass::Transient => Self::Transient,
            RuleClass::RateLimited => Self::RateLimited,
            RuleClass::Timeout => Self::Timeout,
            RuleClass::Resource => Self::Resource,
            RuleClass::Permanent => Self::Permanent,
            RuleClass::CodeBug => Self::CodeBug,
        }
    }
}

/// HTTP statuses: `503`, `"500-599"`, `"5xx"`, or a list of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRanges(Vec<(u16, u16)>);

impl StatusRanges {
    fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    fn parse(text: &str) -> Option<(u16, u16)> {
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
            None => match text.strip_suffix("xx") {
                Some(hundred) => {
                    let hundred: u16 = hundred.parse().ok().filter(|hundred| *hundred < 10)?;
                    (hundred * 100, hundred * 100 + 99)
                }
                None => (text.parse().ok()?, text.parse().ok()?),
            },
        };
        (first <= last && first >= 100 && last <= 599).then_some((first, last))
    }
}

impl Serialize for StatusRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |(first, last): &(u16, u16)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        serializer.collect_seq(self.0.iter().map(text))
    }
}

impl<'de> Deserialize<'de> for StatusRanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const RULE: &str =
            "must be an HTTP status from 100 to 599, a range such as \"500-599\" or \"5xx\", or a list of these";
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum One {
            Number(u16),
            Range(String),
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            One(One),
            Many(Vec<One>),
        }
        let bad = || de::Error::custom(RULE);
        let given = match Raw::deserialize(deserializer).map_err(|_| bad())? {
            Raw::One(one) => vec![one],
            Raw::Many(many) => many,
        };
        if given.is_empty() || given.len() > limits::RULE_RANGES {
            return Err(bad());
        }
        let range = |one: &One| match one {
            One::Number(status) => StatusRanges::parse(&status.to_string()),
            One::Range(text) => StatusRanges::parse(text),
        };
        given.iter().map(range).collect::<Option<_>>().map(Self).ok_or_else(bad)
    }
}

/// Rules as they are kept and shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ErrorRules {
    /// The rules, the first that matches decides; those of a type go before the others.
    pub rules: Vec<ErrorRule>,
    /// Retries of a failure that nothing puts in a class, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_max_retries: Option<u32>,
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}")]
pub struct BadRule {
    /// The field at fault, such as `rules[2].message`.
    pub field: String,
    /// What it must be.
    pub rule: String,
}

/// Compiled size of a pattern: enough for a long list of words, too small for nested repetitions that multiply.
const PATTERN_BYTES: usize = 64 * 1024;
/// How much of a message a pattern sees.
const MATCHED_BYTES: usize = 2 * 1024;

#[derive(Clone, Debug)]
struct CompiledRule {
    rule: ErrorRule,
    message: Option<Regex>,
}

/// Rules ready for use.
#[derive(Clone, Default)]
pub struct RuleBook {
    source: ErrorRules,
    rules: Vec<CompiledRule>,
}

impl fmt::Debug for RuleBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl PartialEq for RuleBook {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl RuleBook {
    /// Checks and compiles the rules.
    pub fn compile(source: ErrorRules) -> Result<Self, BadRule> {
        let bad = |field: String, rule: String| Err(BadRule { field, rule });
        if source.rules.len() > limits::ERROR_RULES {
            return bad("rules".into(), format!("must be at most {} rules", limits::ERROR_RULES));
        }
        if source.unknown_max_retries.is_some_and(|retries| retries > limits::RETRIES) {
            return bad("unknown_max_retries".into(), "must be from 0 to 100".into());
        }
        let mut rules = Vec::with_capacity(source.rules.len());
        for (index, rule) in source.rules.iter().enumerate() {
            let field = |name: &str| format!("rules[{index}].{name}");
            if rule.code.is_none() && rule.http_status.is_none() && rule.message.is_none() {
                return bad(format!("rules[{index}]"), "must name a code, an http_status or a message to match".into());
            }
            for (name, text) in [("name", &rule.name), ("code", &rule.code), ("message", &rule.message)] {
                let sound = |text: &String| {
                    (1..=limits::RULE_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
                };
                if text.as_ref().is_some_and(|text| !sound(text)) {
                    let rule = format!("must be 1 to {} bytes without control characters", limits::RULE_BYTES);
                    return bad(field(name), rule);
                }
            }
            if rule.code.as_ref().is_some_and(|glob| glob.matches('*').count() > limits::RULE_STARS) {
                return bad(field("code"), format!("must have at most {} asterisks", limits::RULE_STARS));
            }
            let message = match &rule.message {
                None => None,
                Some(pattern) => {
                    let built = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).nest_limit(32).build();
                    match built {
                        Ok(regex) => Some(regex),
                        Err(regex::Error::CompiledTooBig(_)) => {
                            return bad(field("message"), "is a pattern too large to be matched quickly".into());
                        }
                        Err(error) => {
                            let last = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
                            return bad(field("message"), format!("is no regular expression: {last}"));
                        }
                    }
                }
            };
            rules.push(CompiledRule { rule: rule.clone(), message });
        }
        Ok(Self { source, rules })
    }

    /// The rules as given.
    pub fn source(&self) -> &ErrorRules {
        &self.source
    }

    /// The first rule that matches, with its place: those of the type first, then the global ones.
    pub fn find(&self, task_type: &TaskType, error: &ErrorReport) -> Option<(usize, ErrorClass)> {
        let matching = |of_type: bool| {
            self.rules.iter().enumerate().find(|(_, compiled)| {
                let fits = match &compiled.rule.task_type {
                    Some(only) => of_type && only == task_type,
                    None => !of_type,
                };
                fits && compiled.matches(error)
            })
        };
        let (index, compiled) = matching(true).or_else(|| matching(false))?;
        Some((index, compiled.rule.class.into()))
    }
}

impl CompiledRule {
    fn matches(&self, error: &ErrorReport) -> bool {
        let code = |glob: &String| error.code.as_ref().is_some_and(|code| glob_matches(glob, code));
        let status = |ranges: &StatusRanges| error.http_status.is_some_and(|status| ranges.contains(status));
        self.rule.code.as_ref().is_none_or(code)
            && self.rule.http_status.as_ref().is_none_or(status)
            && self.message.as_ref().is_none_or(|regex| regex.is_match(beginning(&error.message)))
    }
}

fn beginning(message: &str) -> &str {
    let mut end = message.len().min(MATCHED_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// `*` stands for any text, `?` for any character. Linear but for the last asterisk.
fn glob_matches(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if g < glob.len() && glob[g] == '*' {
            star = Some((g, t));
            g += 1;
        } else if g < glob.len() && (glob[g] == '?' || glob[g] == text[t]) {
            g += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            g = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(json: &str) -> Result<RuleBook, BadRule> {
        RuleBook::compile(serde_json::from_str(json).expect("rules"))
    }

    fn error(code: &str, status: u16, message: &str) -> ErrorReport {
        let mut report = ErrorReport::internal(code, message.to_owned());
        report.http_status = (status > 0).then_some(status);
        report
    }

    #[test]
    fn globs() {
        for (glob, text, expected) in [
            ("db_*", "db_deadlock", true),
            ("db_*", "adb_deadlock", false),
            ("*_lost", "connection_lost", true),
            ("*a*b*", "xxaxxbxx", true),
            ("e?", "e1", true),
            ("e?", "e12", false),
            ("", "", true),
            ("*", "", true),
            ("größe*", "größer", true),
        ] {
            assert_eq!(glob_matches(glob, text), expected, "{glob} {text}");
        }
    }

    #[test]
    fn rules_of_the_type_go_first_and_the_first_match_decides() {
        let book = book(
            r#"{"rules":[
                {"code":"card_*","class":"permanent"},
                {"code":"card_busy","class":"transient"},
                {"task_type":"charge","code":"card_busy","class":"rate_limited"},
                {"http_status":["502-504", 599],"class":"transient"},
                {"message":"(?i)out of (memory|disk)","class":"resource"}]}"#,
        )
        .expect("sound");
        let (charge, other) = (TaskType::new("charge").expect("a name"), TaskType::new("mail").expect("a name"));
        let found = |task_type, report: ErrorReport| book.find(task_type, &report);
        assert_eq!(found(&charge, error("card_busy", 0, "x")), Some((2, ErrorClass::RateLimited)));
        assert_eq!(found(&other, error("card_busy", 0, "x")), Some((0, ErrorClass::Permanent)));
        assert_eq!(found(&other, error("x", 503, "x")), Some((3, ErrorClass::Transient)));
        assert_eq!(found(&other, error("x", 599, "x")), Some((3, ErrorClass::Transient)));
        assert_eq!(found(&other, error("x", 500, "x")), None);
        assert_eq!(found(&other, error("x", 0, "Out of Memory at 0x1")), Some((4, ErrorClass::Resource)));
    }

    #[test]
    fn bad_rules_are_named() {
        let long = "x".repeat(600);
        for (json, field) in [
            (r#"{"rules":[{"class":"transient"}]}"#.to_owned(), "rules[0]"),
            (r#"{"rules":[{"message":"(","class":"transient"}]}"#.to_owned(), "rules[0].message"),
            (r#"{"rules":[{"message":"((a{1000}){1000}){1000}","class":"transient"}]}"#.to_owned(), "rules[0].message"),
            (
                r#"{"rules":[{"code":"a","class":"transient"},{"code":"","class":"transient"}]}"#.to_owned(),
                "rules[1].code",
            ),
            (format!(r#"{{"rules":[{{"code":"{long}","class":"transient"}}]}}"#), "rules[0].code"),
            (r#"{"rules":[{"code":"************","class":"transient"}]}"#.to_owned(), "rules[0].code"),
            (r#"{"unknown_max_retries":101}"#.to_owned(), "unknown_max_retries"),
        ] {
            assert_eq!(book(&json).expect_err(&json).field, field);
        }
        for json in [
            r#"{"rules":[{"http_status":"5000","class":"transient"}]}"#,
            r#"{"rules":[{"http_status":"599-500","class":"transient"}]}"#,
            r#"{"rules":[{"http_status":[],"class":"transient"}]}"#,
            r#"{"rules":[{"code":"x","class":"worker_lost"}]}"#,
            r#"{"rules":[{"code":"x","class":"transient","colour":"red"}]}"#,
        ] {
            assert!(serde_json::from_str::<ErrorRules>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_pattern_made_to_be_slow_is_quick() {
        let book =
            book(r#"{"rules":[{"message":"^(a+)+$","class":"permanent"},{"message":"(x+x+)+y","class":"permanent"}]}"#)
                .expect("sound");
        let report = error("x", 0, &format!("{}!{}", "a".repeat(1_000), "x".repeat(16_000)));
        let task_type = TaskType::new("t").expect("a name");
        for _ in 0..100 {
            assert_eq!(book.find(&task_type, &report), None);
        }
    }

    #[test]
    fn ranges_are_written_as_they_can_be_read() {
        let ranges: StatusRanges = serde_json::from_str(r#"["5xx", 429, "400-404"]"#).expect("ranges");
        let text = serde_json::to_string(&ranges).expect("text");
        assert_eq!(text, r#"["500-599","429","400-404"]"#);
        assert_eq!(serde_json::from_str::<StatusRanges>(&text).expect("ranges"), ranges);
    }
}
