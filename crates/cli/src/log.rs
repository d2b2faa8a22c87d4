//! The log: to standard error, so that standard output stays what was asked for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts the log of this process. The filter is as in `WINDLASS_LOG`: `info`, or `warn,windlass=debug`.
pub fn start(filter: &str, is_json: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| format!("log = {filter} is not allowed: {error}"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if is_json { log.json().try_init() } else { log.try_init() }
}
