//! Settings by layers: flags over environment over one TOML file over defaults.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use windlass_core::priority::Priority;
use windlass_server::ServerConfig;

use crate::keys::{KEYS, Key, Kind};
use crate::open_store::StoreOptions;
use crate::secrets::masked;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// The file is not there or not readable.
    #[error("cannot read the configuration file {path}: {reason}")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A key that nobody knows.
    #[error("unknown key {key} = {value} in {source_name}; see windlass server --help for all keys")]
    UnknownKey {
        /// The key.
        key: String,
        /// What it was set to.
        value: String,
        /// Where.
        source_name: String,
    },
    /// A value out of its range.
    #[error("{key} = {value} (from {source_name}) is not allowed: it must be {rule}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// Where.
        source_name: String,
        /// What it must be.
        rule: String,
    },
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// As text.
    pub text: String,
    /// A flag, a variable, a file or the default.
    pub source_name: String,
}

/// All settings after the layers were put together.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<&'static str, Value>);

/// What a file says, flattened: a table's name, a dot, the key.
pub fn read_file(path: &Path) -> Result<BTreeMap<String, String>, SettingsError> {
    let unreadable = |reason: String| SettingsError::Unreadable { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // Not as the parser writes it: it quotes the line at fault, which may have a password in it.
    let at_fault = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        unreadable(format!("line {line}: {}", error.message()))
    };
    let table: toml::Table = text.parse().map_err(at_fault)?;
    let mut flat = BTreeMap::new();
    flatten("", &table, &mut flat);
    Ok(flat)
}

fn flatten(prefix: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        match value {
            toml::Value::Table(inner) => flatten(&format!("{key}."), inner, flat),
            toml::Value::String(text) => drop(flat.insert(key, text.clone())),
            other => drop(flat.insert(key, other.to_string())),
        }
    }
}

impl Settings {
    /// Puts the layers together. `given` looks a key up among flags and environment.
    pub fn new(
        given: impl Fn(&Key) -> Option<Value>,
        file: &BTreeMap<String, String>,
        file_name: &str,
    ) -> Result<Self, SettingsError> {
        if let Some((key, value)) = file.iter().find(|(key, _)| KEYS.iter().all(|known| known.name != key.as_str())) {
            let (key, value) = (key.clone(), masked(value));
            return Err(SettingsError::UnknownKey { key, value, source_name: file_name.to_owned() });
        }
        let mut values = BTreeMap::new();
        for key in KEYS {
            let from_file = || {
                let text = file.get(key.name)?.clone();
                Some(Value { text, source_name: file_name.to_owned() })
            };
            let Some(value) = given(key).or_else(from_file).or_else(|| default_of(key)) else { continue };
            if !key.kind.allows(&value.text) {
                let Value { text, source_name } = value;
                let value = masked(&text);
                return Err(SettingsError::BadValue { key: key.name, value, source_name, rule: key.kind.rule() });
            }
            values.insert(key.name, value);
        }
        let mut settings = Self(values);
        settings.follow_lease();
        settings.check_heartbeat()?;
        Ok(settings)
    }

    /// A short lease alone must be enough to say: the heartbeat follows it.
    fn follow_lease(&mut self) {
        const LONGEST: Duration = Duration::from_secs(10);
        let third = (self.seconds("lease_seconds") / 3).min(LONGEST).as_secs_f64();
        let follows = || Value { text: third.to_string(), source_name: "default".to_owned() };
        self.0.entry("heartbeat_seconds").or_insert_with(follows);
    }

    fn check_heartbeat(&self) -> Result<(), SettingsError> {
        let (lease, heartbeat) = (self.seconds("lease_seconds"), self.seconds("heartbeat_seconds"));
        if heartbeat < lease {
            return Ok(());
        }
        let value = self.0.get("heartbeat_seconds").cloned();
        let (value, source_name) = value.map(|value| (value.text, value.source_name)).unwrap_or_default();
        let rule = format!("shorter than lease_seconds, which is {}", lease.as_secs_f64());
        Err(SettingsError::BadValue { key: "heartbeat_seconds", value, source_name, rule })
    }

    /// A text. Every key that has a default has a value.
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |value| &value.text)
    }

    /// A switch.
    pub fn switch(&self, key: &str) -> bool {
        self.text(key) == "true"
    }

    fn whole(&self, key: &str) -> Option<u64> {
        self.text(key).parse().ok()
    }

    fn span(&self, key: &str) -> Option<Duration> {
        self.text(key).parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    fn seconds(&self, key: &str) -> Duration {
        self.span(key).unwrap_or_default()
    }

    /// What the server is started with.
    pub fn server_config(&self) -> ServerConfig {
        let mut config = ServerConfig {
            lease: self.seconds("lease_seconds"),
            heartbeat: self.seconds("heartbeat_seconds"),
            poll_interval: self.seconds("poll_interval_seconds"),
            header_timeout: self.seconds("header_timeout_seconds"),
            drain_delay: self.seconds("drain_delay_seconds"),
            shutdown_timeout: self.seconds("shutdown_timeout_seconds"),
            strict_types: self.switch("strict_types"),
            store_wait: self.seconds("store_wait_seconds"),
            ..ServerConfig::default()
        };
        if let Some(bytes) = self.whole("max_payload_bytes") {
            config.max_payload_bytes = bytes as usize;
        }
        if let Some(connections) = self.whole("max_connections") {
            config.max_connections = connections as usize;
        }
        if let Some(calls) = self.whole("max_store_calls") {
            config.max_store_calls = calls as usize;
        }
        // Narrow bands last: critical follows high, and bulk follows low, unless set.
        for (name, levels) in [("high", 7..=9), ("medium", 4..=6), ("low", 0..=3), ("critical", 9..=9), ("bulk", 0..=1)]
        {
            let retries = self.whole(&format!("defaults.{name}.max_retries"));
            let timeout = self.span(&format!("defaults.{name}.timeout_seconds"));
            for level in levels.filter_map(|level| Priority::from_level(level).ok()) {
                let defaults = &mut config.defaults[level.index()];
                defaults.max_retries = retries.map_or(defaults.max_retries, |retries| retries as u32);
                defaults.timeout = timeout.unwrap_or(defaults.timeout);
            }
        }
        config
    }

    /// The store that the server is started on.
    pub fn store_options(&self) -> StoreOptions {
        let given = |key| Some(self.text(key)).filter(|text| !text.is_empty()).map(str::to_owned);
        StoreOptions {
            schema: given("store_schema"),
            listen_address: given("store_listen_url"),
            read_address: given("store_read_url"),
            require_durable: self.switch("require_durable"),
            migrate: self.switch("migrate"),
            ..StoreOptions::new(self.text("store"), self.seconds("lease_seconds"))
        }
    }

    /// All settings as a file that would have the same effect, with their sources.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for key in KEYS {
            let Some(value) = self.0.get(key.name) else { continue };
            let shown = match key.kind {
                Kind::Text | Kind::Choice(_) => format!("{:?}", masked(&value.text)),
                Kind::Switch | Kind::Whole(..) | Kind::Seconds(..) => value.text.clone(),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} = {shown}  # {}", key.name, value.source_name);
        }
        text
    }
}

fn default_of(key: &Key) -> Option<Value> {
    (!key.default.is_empty()).then(|| Value { text: key.default.to_owned(), source_name: "default".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layered(flags: &[(&str, &str)], file: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let given = |key: &Key| {
            let (_, value) = flags.iter().find(|(name, _)| *name == key.name)?;
            Some(Value { text: (*value).to_owned(), source_name: "flag".to_owned() })
        };
        let file = file.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Settings::new(given, &file, "windlass.toml")
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let settings = layered(
            &[("lease_seconds", "0.5"), ("heartbeat_seconds", "0.1")],
            &[("lease_seconds", "60"), ("strict_types", "true")],
        )
        .expect("sound");
        let config = settings.server_config();
        assert_eq!(
            (config.lease, config.strict_types, config.max_payload_bytes),
            (Duration::from_millis(500), true, 65_536)
        );
    }

    #[test]
    fn the_heartbeat_follows_the_lease() {
        let heartbeat = |flags: &[_]| layered(flags, &[]).expect("sound").server_config().heartbeat;
        assert_eq!(heartbeat(&[]), Duration::from_secs(10));
        assert_eq!(heartbeat(&[("lease_seconds", "3")]), Duration::from_secs(1));
        assert_eq!(heartbeat(&[("lease_seconds", "600")]), Duration::from_secs(10));
    }

    #[test]
    fn what_is_wrong_is_named_with_value_and_range() {
        let told = |result: Result<Settings, SettingsError>| result.expect_err("refused").to_string();
        let error = told(layered(&[("lease_seconds", "5000")], &[]));
        assert!(error.contains("lease_seconds") && error.contains("5000") && error.contains("0.1 to 3600"), "{error}");
        let error = told(layered(&[], &[("leese_seconds", "5")]));
        assert!(error.contains("leese_seconds = 5") && error.contains("windlass.toml"), "{error}");
        let error = told(layered(&[("heartbeat_seconds", "30")], &[]));
        assert!(error.contains("shorter than lease_seconds"), "{error}");
    }

    #[test]
    fn defaults_by_priority() {
        let config = layered(&[("defaults.high.max_retries", "9"), ("defaults.bulk.timeout_seconds", "7.5")], &[])
            .expect("sound")
            .server_config();
        let retries: Vec<_> = config.defaults.iter().map(|defaults| defaults.max_retries).collect();
        assert_eq!(retries, [2, 2, 2, 2, 3, 3, 3, 9, 9, 9]);
        assert_eq!(config.defaults[1].timeout, Duration::from_millis(7500));
        assert_eq!(config.defaults[3].timeout, Duration::from_mins(15));
    }

    #[test]
    fn the_defaults_are_those_of_the_server() {
        let config = layered(&[], &[]).expect("sound").server_config();
        assert_eq!(config.defaults, ServerConfig::default().defaults);
    }

    #[test]
    fn nothing_that_is_shown_has_a_password_in_it() {
        let address = "postgres://app:hunter2@db/x?password=hunter2";
        let keys = ["store", "store_listen_url", "store_read_url"].map(|key| (key, address));
        let printed = layered(&keys, &[]).expect("sound").print();
        assert!(printed.contains("app:***@db/x?password=***") && !printed.contains("hunter2"), "{printed}");
        let told = |result: Result<Settings, SettingsError>| result.expect_err("refused").to_string();
        for error in [told(layered(&[], &[("stoer", address)])), told(layered(&[("lease_seconds", address)], &[]))] {
            assert!(error.contains("app:***@db") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_toml_is_not_quoted() {
        let path = std::env::temp_dir().join(format!("windlass-settings-{}.toml", std::process::id()));
        std::fs::write(&path, "lease_seconds = 5\nstore = postgres://app:hunter2@db/x\n").expect("written");
        let error = read_file(&path).expect_err("no TOML").to_string();
        std::fs::remove_file(&path).expect("removed");
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn options_of_the_store() {
        let options = layered(&[], &[]).expect("sound").store_options();
        assert!(options == StoreOptions::new("sqlite:windlass-data", Duration::from_secs(30)));
        let options = layered(&[("store_schema", "jobs"), ("migrate", "false"), ("require_durable", "true")], &[]);
        let options = options.expect("sound").store_options();
        assert_eq!((options.schema.as_deref(), options.migrate, options.require_durable), (Some("jobs"), false, true));
    }
}
