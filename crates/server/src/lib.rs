//! The HTTP server of Windlass.
//!
//! A request passes `net` (connection), `edge` (id, time, problems), one handler of
//! `routes` (parse, call, render) and reaches the store through `engine`. Handlers hold
//! no rules of their own: those are in `windlass-core`.

mod auto_replay;
mod change_log;
mod config;
mod delivery;
mod document;
mod edge;
mod engine;
mod explain;
mod findings;
mod intake;
mod json_body;
mod json_scan;
mod labels;
mod lately;
mod lead;
mod maintenance;
mod metrics;
mod net;
mod number;
mod observed_store;
mod outcomes;
mod pacing;
mod path;
mod problem;
mod query;
mod reach;
mod recent;
mod results;
mod routes;
mod scrape;
mod submit;
mod unclassified;

use std::io;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windlass_core::store::{Store, StoreError};

pub use change_log::Watch;
pub use config::ServerConfig;
pub use metrics::Metrics;
pub use problem::{Code, markdown as error_table};
pub use routes::openapi;

/// Windlass without a socket: the store, the rules around it and the API that speaks to it. Cheap to clone.
///
/// [`run`] puts it behind a listener; an application can hold it in its own process and call
/// [`App::router`] straight.
#[derive(Clone)]
pub struct App {
    engine: Arc<engine::Engine>,
    router: Router,
    close: Arc<watch::Sender<bool>>,
}

/// What runs beside the requests: a look at the store, and the background loops while this node leads. Dropping it
/// stops all of it.
#[must_use = "dropping it stops the maintenance"]
pub struct MaintenanceLoops {
    engine: Arc<engine::Engine>,
    tasks: JoinSet<()>,
}

impl MaintenanceLoops {
    /// Stops them, and lets another node lead at once.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        lead::resign(&self.engine).await;
    }
}

impl App {
    /// An app on a store.
    pub fn new(config: ServerConfig, store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        let (close, closing) = watch::channel(false);
        let engine = engine::Engine::new(config, store, metrics, closing);
        let router = routes::router(&engine);
        Self { engine, router, close: Arc::new(close) }
    }

    /// The API.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Runs every background loop on the current runtime whenever this node leads.
    pub fn start_maintenance(&self) -> MaintenanceLoops {
        let mut tasks = JoinSet::new();
        tasks.spawn(reach::watch(Arc::clone(&self.engine)));
        tasks.spawn(lead::lead(Arc::clone(&self.engine)));
        MaintenanceLoops { engine: Arc::clone(&self.engine), tasks }
    }

    /// Whether this node leads maintenance now.
    pub fn is_leader(&self) -> bool {
        self.engine.is_leader()
    }

    /// Runs every background loop once, as often as it has something to do: for tests that move the clock by hand.
    pub async fn run_maintenance_once(&self) -> Result<(), StoreError> {
        for each in maintenance::Loop::ALL {
            while each.run_once(&*self.engine.upkeep, &self.engine.config).await?.more {}
        }
        Ok(())
    }

    /// Readiness fails and long polls end with what they have.
    pub fn begin_closing(&self) {
        self.close.send_replace(true);
    }

    /// Ends long polls and closes the store. Later calls are refused.
    pub async fn close(&self) {
        self.begin_closing();
        self.engine.store.close().await;
    }
}

/// Serves until `shutdown` resolves and everything that ran has finished.
///
/// At shutdown readiness fails first, long polls end with what they have, then the
/// listener closes, running requests finish, and the store is closed.
pub async fn run(
    config: ServerConfig,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let app = App::new(config.clone(), store, metrics);
    let loops = app.start_maintenance();
    let stop = async {
        shutdown.await;
        app.begin_closing();
        tokio::time::sleep(config.drain_delay).await;
        // From here on workers cannot reach this node to renew their leases, so it must not
        // decide that these lapsed.
        loops.stop().await;
    };
    net::serve(listener, app.router(), &config, stop).await;
    app.close().await;
    Ok(())
}
