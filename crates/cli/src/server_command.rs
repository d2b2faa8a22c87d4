//! `windlass server`.

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use windlass_core::error_rules::ErrorRules;
use windlass_core::store::{SettingsError, Store};
use windlass_server::{Metrics, Watch};

use crate::keys::{KEYS, Key, Kind};
use crate::secrets::masked;
use crate::settings::{Settings, Value, read_file};
use crate::{log, open_store};

/// What may go wrong before the server serves.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The command with a flag and a variable per setting.
pub fn command() -> Command {
    let settings = KEYS.iter().map(|key| {
        let arg = Arg::new(key.name).long(key.flag).env(key.env).help(help(key)).hide_env_values(true);
        match key.kind {
            Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            _ => arg.num_args(1),
        }
    });
    Command::new("server")
        .about("Runs the server")
        .after_help("Examples:\n  windlass server\n  windlass server --listen 127.0.0.1:8080 --store sqlite:/var/lib/windlass\n  WINDLASS_LEASE_SECONDS=5 windlass server --heartbeat-seconds 1 --print-config")
        .arg(Arg::new("config").long("config").env("WINDLASS_CONFIG").help("A TOML file with settings"))
        .arg(Arg::new("print-config").long("print-config").action(ArgAction::SetTrue).help("Prints all settings with their sources and exits"))
        .args(settings)
}

fn help(key: &Key) -> String {
    let range = match key.kind {
        Kind::Text => String::new(),
        kind => format!("; {}", kind.rule()),
    };
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    format!("{}{range}{default}", key.help)
}

/// Reads the settings and runs until a signal.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let file_name = matches.get_one::<String>("config");
    let file = file_name.map(|name| read_file(Path::new(name))).transpose()?.unwrap_or_default();
    let given = |key: &Key| {
        let text = matches.get_one::<String>(key.name)?.clone();
        let source_name = match matches.value_source(key.name) {
            Some(ValueSource::EnvVariable) => key.env.to_owned(),
            _ => format!("--{}", key.flag),
        };
        Some(Value { text, source_name })
    };
    let settings = Settings::new(given, &file, file_name.map_or("", String::as_str))?;
    if matches.get_flag("print-config") {
        std::io::stdout().write_all(settings.print().as_bytes())?;
        return Ok(());
    }
    log::start(settings.text("log"), settings.text("log_format") == "json")?;
    serve(&settings).await
}

async fn serve(settings: &Settings) -> Result<(), Failure> {
    let addresses = resolve(settings.text("listen")).await?;
    refuse_open_door(&addresses, settings)?;
    let shutdown = signalled()?;
    let metrics = Arc::new(Metrics::default());
    let watch = Watch::new(Arc::clone(&metrics));
    let config = settings.server_config();
    let store = open_store::open(settings.store_options(), watch).await?;
    adopt_error_rules(&*store, settings.text("error_rules")).await?;
    let listener = TcpListener::bind(&*addresses)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", settings.text("listen")))?;
    greet(listener.local_addr()?, settings)?;
    windlass_server::run(config, store, metrics, listener, shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Error rules from a file, for those who keep their configuration in one place.
async fn adopt_error_rules(store: &dyn Store, file: &str) -> Result<(), Failure> {
    if file.is_empty() {
        return Ok(());
    }
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("error_rules = {file} cannot be read: {error}"))?;
    let rules: ErrorRules =
        serde_json::from_str(&text).map_err(|error| format!("error_rules = {file} is not allowed: {error}"))?;
    if *store.settings().error_rules.source() == rules {
        // Nothing to write: a full disk is no reason not to start.
        return Ok(());
    }
    store.change_error_rules(rules).await.map_err(|error| match error {
        SettingsError::BadRule(bad) => format!("error_rules = {file} is not allowed: {} {}", bad.field, bad.rule),
        other => format!("error_rules = {file} could not be stored: {other}"),
    })?;
    Ok(())
}

async fn resolve(listen: &str) -> Result<Vec<SocketAddr>, Failure> {
    let rule = "it must be ADDRESS:PORT, such as 127.0.0.1:7070";
    let resolved = tokio::net::lookup_host(listen).await;
    let addresses: Vec<_> =
        resolved.map_err(|error| format!("listen = {listen} is not allowed: {rule} ({error})"))?.collect();
    if addresses.is_empty() { Err(format!("listen = {listen} is not allowed: {rule}").into()) } else { Ok(addresses) }
}

/// There is no authentication yet, so whoever reaches the port can do everything.
fn refuse_open_door(addresses: &[SocketAddr], settings: &Settings) -> Result<(), Failure> {
    let is_open = addresses.iter().any(|address| !address.ip().is_loopback());
    if is_open && !settings.switch("insecure_listen") {
        let listen = settings.text("listen");
        let detail = "anybody who reaches it could run everything, because there is no authentication";
        return Err(format!(
            "listen = {listen} is not allowed: {detail}; listen on 127.0.0.1 or give --insecure-listen"
        )
        .into());
    }
    Ok(())
}

fn greet(address: SocketAddr, settings: &Settings) -> std::io::Result<()> {
    let store = masked(settings.text("store"));
    let mut out = std::io::stdout();
    writeln!(
        out,
        "windlass {} listens on http://{address} with {store}; try: curl http://{address}/api/v1/tasks -d '{{\"task_type\":\"hello\"}}'",
        env!("CARGO_PKG_VERSION"),
    )?;
    out.flush()
}

/// Resolves at the first SIGTERM or SIGINT; the second ends the process at once.
fn signalled() -> std::io::Result<impl Future<Output = ()>> {
    const ENDED_BY_SIGNAL: i32 = 130;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("shutting down: requests that run may finish; a second signal stops at once");
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            std::process::exit(ENDED_BY_SIGNAL);
        });
    })
}
