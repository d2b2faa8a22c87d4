//! `windlass dev`: a server on a throw-away store with a sample worker, to look at and to play with.

mod folder;
mod narrator;
mod samples;
mod welcome;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use windlass::Client;
use windlass_server::{Metrics, ServerConfig, Watch};

use crate::exit::{Exit, Failure, Outcome};
use crate::show::screen::{ColorChoice, Screen};
use crate::{log, open_store};
use folder::StoreFolder;

const EXAMPLES: &str = "\
Examples:
  windlass dev
  windlass dev --listen 127.0.0.1:0
  windlass dev --keep ./playground";

/// Samples fail on purpose, and are left unfinished at the end; their worker would warn of both.
const LOG: &str = "warn,windlass::worker=error";

#[derive(Args, Debug)]
struct Flags {
    /// Address and port to listen on; port 0 takes any that is free
    #[arg(long, env = "WINDLASS_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Keep the store in this folder instead of throwing it away
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// What is logged
    #[arg(long, env = "WINDLASS_LOG", hide_env_values = true, default_value = LOG)]
    log: String,
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    color: ColorChoice,
}

/// The command.
pub fn command() -> Command {
    let about = "Runs a server with a sample worker on a throw-away store";
    Flags::augment_args(Command::new("dev").about(about).after_help(EXAMPLES))
}

/// Runs until a signal.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let flags = Flags::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    log::start(&flags.log, false).map_err(|error| Failure::usage(error.to_string()))?;
    let listener = listen(flags.listen).await?;
    let folder = match &flags.keep {
        Some(path) => StoreFolder::kept(path),
        None => StoreFolder::throw_away()?,
    };
    play(listener, &folder, &Screen::new(flags.color)).await
}

async fn listen(address: SocketAddr) -> Outcome<TcpListener> {
    if !address.ip().is_loopback() {
        let message =
            format!("--listen {address} is not allowed: a playground without authentication stays on this machine");
        return Err(Failure::usage(message).hint("Listen on 127.0.0.1, or see `windlass server --help`."));
    }
    TcpListener::bind(address).await.map_err(|error| {
        let failure = Failure::new(Exit::Failed, format!("cannot listen on {address}: {error}"));
        if error.kind() == ErrorKind::AddrInUse {
            failure.hint("Another program has this port. Take any free one with --listen 127.0.0.1:0, or name another.")
        } else {
            failure
        }
    })
}

async fn play(listener: TcpListener, folder: &StoreFolder, screen: &Screen) -> Outcome {
    let mut signalled = Signals::new()?;
    let address = listener.local_addr()?;
    let metrics = Arc::new(Metrics::default());
    let (observer, narrator) = narrator::new(Watch::new(Arc::clone(&metrics)));
    let config = ServerConfig::default();
    let options = open_store::StoreOptions::new(format!("sqlite:{}", folder.path().display()), config.lease);
    let store =
        open_store::open(options, observer).await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let began = store.now();
    let (stop_server, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(windlass_server::run(config, store, metrics, listener, async {
        // A sender that is gone means the same.
        let _ = stopped.await;
    }));

    let client = Client::connect(format!("http://{address}")).await?;
    let tasks = samples::submit(&client).await?;
    screen.line(&welcome::text(screen, address, folder, &tasks))?;
    let worker = samples::worker(&client).start().await?;
    let told = async {
        // Somebody may close the output and go on using the server.
        if narrator.tell(screen, began).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! { () = told => {}, () = signalled.next() => {} }
    let stopped = async {
        worker.shutdown().await;
        drop(stop_server);
        server.await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))??;
        Ok(())
    };
    tokio::select! { stopped = stopped => stopped, () = signalled.next() => Ok(()) }
}

/// Ctrl-C, SIGTERM, and a terminal that is closed.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
