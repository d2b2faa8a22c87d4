//! Every setting of the server: its names, its default and its range. Flags, environment,
//! file and help all come from this one table.

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A whole number from, to.
    Whole(u64, u64),
    /// A number of seconds from, to; fractions are fine.
    Seconds(f64, f64),
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As in the file; a dot leads into a table.
    pub name: &'static str,
    /// As on the command line.
    pub flag: &'static str,
    /// As in the environment.
    pub env: &'static str,
    /// If nobody says; empty follows another setting.
    pub default: &'static str,
    /// What it must be.
    pub kind: Kind,
    /// What it is.
    pub help: &'static str,
}

impl Key {
    const fn new([name, flag, env]: [&'static str; 3], default: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, flag, env, default, kind, help }
    }
}

const RETRIES: Kind = Kind::Whole(0, 100);
const TIMEOUT: Kind = Kind::Seconds(0.001, 604_800.0);

/// All settings.
pub const KEYS: &[Key] = &[
    Key::new(["listen", "listen", "WINDLASS_LISTEN"], "127.0.0.1:7070", Kind::Text, "Address and port to listen on"),
    Key::new(
        ["store", "store", "WINDLASS_STORE"],
        "sqlite:windlass-data",
        Kind::Text,
        "Where work is kept: sqlite:FOLDER, postgres://…, redis://…, redis+sentinel://… or redis+cluster://… (with TLS rediss…)",
    ),
    Key::new(
        ["store_schema", "store-schema", "WINDLASS_STORE_SCHEMA"],
        "",
        Kind::Text,
        "PostgreSQL: the schema that has the tables; windlass unless given",
    ),
    Key::new(
        ["store_listen_url", "store-listen-url", "WINDLASS_STORE_LISTEN_URL"],
        "",
        Kind::Text,
        "PostgreSQL: address for notifications where the store's own leads to a pooler, which does not pass them on",
    ),
    Key::new(
        ["store_read_url", "store-read-url", "WINDLASS_STORE_READ_URL"],
        "",
        Kind::Text,
        "PostgreSQL: address of a replica for lists and statistics",
    ),
    Key::new(
        ["require_durable", "require-durable", "WINDLASS_REQUIRE_DURABLE"],
        "false",
        Kind::Switch,
        "Redis: refuse to start where the server may forget what it acknowledged",
    ),
    Key::new(
        ["migrate", "migrate", "WINDLASS_MIGRATE"],
        "true",
        Kind::Switch,
        "Bring the tables of the store up to date at the start; otherwise an older store is not opened",
    ),
    Key::new(
        ["store_wait_seconds", "store-wait-seconds", "WINDLASS_STORE_WAIT_SECONDS"],
        "2",
        Kind::Seconds(0.05, 60.0),
        "How long a request waits for the store before it is answered that the store is unavailable",
    ),
    Key::new(
        ["max_store_calls", "max-store-calls", "WINDLASS_MAX_STORE_CALLS"],
        "5000",
        Kind::Whole(1, 1_000_000),
        "Calls of workers that wait for the store at once, and as many others; more are refused at once",
    ),
    Key::new(
        ["lease_seconds", "lease-seconds", "WINDLASS_LEASE_SECONDS"],
        "30",
        Kind::Seconds(0.1, 3600.0),
        "How long a worker owns a task without a heartbeat",
    ),
    Key::new(
        ["heartbeat_seconds", "heartbeat-seconds", "WINDLASS_HEARTBEAT_SECONDS"],
        "",
        Kind::Seconds(0.02, 3600.0),
        "How often workers should call; a third of the lease and at most 10 unless given",
    ),
    Key::new(
        ["poll_interval_seconds", "poll-interval-seconds", "WINDLASS_POLL_INTERVAL_SECONDS"],
        "1",
        Kind::Seconds(0.01, 60.0),
        "How often workers that do not hold requests should poll",
    ),
    Key::new(
        ["max_payload_bytes", "max-payload-bytes", "WINDLASS_MAX_PAYLOAD_BYTES"],
        "65536",
        Kind::Whole(1_024, 1_048_576),
        "Largest parameters or result of a task",
    ),
    Key::new(
        ["max_connections", "max-connections", "WINDLASS_MAX_CONNECTIONS"],
        "10000",
        Kind::Whole(1, 1_000_000),
        "Connections served at once",
    ),
    Key::new(
        ["header_timeout_seconds", "header-timeout-seconds", "WINDLASS_HEADER_TIMEOUT_SECONDS"],
        "30",
        Kind::Seconds(0.1, 600.0),
        "How long a client may take to send the head of a request",
    ),
    Key::new(
        ["drain_delay_seconds", "drain-delay-seconds", "WINDLASS_DRAIN_DELAY_SECONDS"],
        "0",
        Kind::Seconds(0.0, 300.0),
        "How long readiness fails before the listener closes at shutdown",
    ),
    Key::new(
        ["shutdown_timeout_seconds", "shutdown-timeout-seconds", "WINDLASS_SHUTDOWN_TIMEOUT_SECONDS"],
        "20",
        Kind::Seconds(0.0, 600.0),
        "How long requests may take to finish at shutdown",
    ),
    Key::new(
        ["strict_types", "strict-types", "WINDLASS_STRICT_TYPES"],
        "false",
        Kind::Switch,
        "Refuse task types that were not set up",
    ),
    Key::new(
        ["error_rules", "error-rules", "WINDLASS_ERROR_RULES"],
        "",
        Kind::Text,
        "File of error rules (JSON, as PUT /api/v1/error-rules takes them) that replace the stored ones at every start",
    ),
    Key::new(
        ["insecure_listen", "insecure-listen", "WINDLASS_INSECURE_LISTEN"],
        "false",
        Kind::Switch,
        "Allow to listen beyond this machine without authentication",
    ),
    Key::new(
        ["log", "log", "WINDLASS_LOG"],
        "info,windlass::changes=warn",
        Kind::Text,
        "What is logged; windlass::changes=info logs every change of every task",
    ),
    Key::new(
        ["log_format", "log-format", "WINDLASS_LOG_FORMAT"],
        "pretty",
        Kind::Choice(&["pretty", "json"]),
        "How it is logged",
    ),
    Key::new(
        ["defaults.critical.max_retries", "defaults-critical-max-retries", "WINDLASS_DEFAULTS_CRITICAL_MAX_RETRIES"],
        "",
        RETRIES,
        "Retries of critical tasks; as high unless given",
    ),
    Key::new(
        [
            "defaults.critical.timeout_seconds",
            "defaults-critical-timeout-seconds",
            "WINDLASS_DEFAULTS_CRITICAL_TIMEOUT_SECONDS",
        ],
        "",
        TIMEOUT,
        "Timeout of critical tasks; as high unless given",
    ),
    Key::new(
        ["defaults.high.max_retries", "defaults-high-max-retries", "WINDLASS_DEFAULTS_HIGH_MAX_RETRIES"],
        "5",
        RETRIES,
        "Retries of high tasks where task and type say nothing",
    ),
    Key::new(
        ["defaults.high.timeout_seconds", "defaults-high-timeout-seconds", "WINDLASS_DEFAULTS_HIGH_TIMEOUT_SECONDS"],
        "300",
        TIMEOUT,
        "Timeout of high tasks where task and type say nothing",
    ),
    Key::new(
        ["defaults.medium.max_retries", "defaults-medium-max-retries", "WINDLASS_DEFAULTS_MEDIUM_MAX_RETRIES"],
        "3",
        RETRIES,
        "Retries of medium tasks where task and type say nothing",
    ),
    Key::new(
        [
            "defaults.medium.timeout_seconds",
            "defaults-medium-timeout-seconds",
            "WINDLASS_DEFAULTS_MEDIUM_TIMEOUT_SECONDS",
        ],
        "600",
        TIMEOUT,
        "Timeout of medium tasks where task and type say nothing",
    ),
    Key::new(
        ["defaults.low.max_retries", "defaults-low-max-retries", "WINDLASS_DEFAULTS_LOW_MAX_RETRIES"],
        "2",
        RETRIES,
        "Retries of low tasks where task and type say nothing",
    ),
    Key::new(
        ["defaults.low.timeout_seconds", "defaults-low-timeout-seconds", "WINDLASS_DEFAULTS_LOW_TIMEOUT_SECONDS"],
        "900",
        TIMEOUT,
        "Timeout of low tasks where task and type say nothing",
    ),
    Key::new(
        ["defaults.bulk.max_retries", "defaults-bulk-max-retries", "WINDLASS_DEFAULTS_BULK_MAX_RETRIES"],
        "",
        RETRIES,
        "Retries of bulk tasks; as low unless given",
    ),
    Key::new(
        ["defaults.bulk.timeout_seconds", "defaults-bulk-timeout-seconds", "WINDLASS_DEFAULTS_BULK_TIMEOUT_SECONDS"],
        "",
        TIMEOUT,
        "Timeout of bulk tasks; as low unless given",
    ),
];

impl Kind {
    /// What a value must be, in words.
    pub fn rule(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Choice(choices) => format!("one of {}", choices.join(", ")),
            Self::Switch => "true or false".to_owned(),
            Self::Whole(from, to) => format!("a whole number from {from} to {to}"),
            Self::Seconds(from, to) => format!("a number of seconds from {from} to {to}"),
        }
    }

    /// Whether a value is allowed.
    pub fn allows(self, value: &str) -> bool {
        match self {
            Self::Text => !value.is_empty(),
            Self::Choice(choices) => choices.contains(&value),
            Self::Switch => matches!(value, "true" | "false"),
            Self::Whole(from, to) => value.parse().is_ok_and(|number: u64| (from..=to).contains(&number)),
            Self::Seconds(from, to) => value.parse().is_ok_and(|number: f64| (from..=to).contains(&number)),
        }
    }
}
