//! The HTTP server of Windlass.
//!
//! A request passes `net` (connection), `edge` (id, time, problems), one handler of
//! `routes` (parse, call, render) and reaches the store through `engine`. Handlers hold
//! no rules of their own: those are in `windlass-core`.

mod change_log;
mod config;
mod delivery;
mod document;
mod edge;
mod engine;
mod explain;
mod json_body;
mod json_scan;
mod labels;
mod maintenance;
mod metrics;
mod net;
mod number;
mod observed_store;
mod path;
mod problem;
mod query;
mod recent;
mod results;
mod routes;
mod scrape;
mod submit;

use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use windlass_core::store::Store;

pub use change_log::Watch;
pub use config::ServerConfig;
pub use metrics::Metrics;
pub use problem::{Code, markdown as error_table};
pub use routes::openapi;

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
    let (close, closing) = watch::channel(false);
    let store: Arc<dyn Store> = Arc::new(observed_store::ObservedStore::new(store, Arc::clone(&metrics)));
    let engine = engine::Engine::new(config.clone(), Arc::clone(&store), metrics, closing);
    let loops = maintenance::start(&engine);
    let stop = async {
        shutdown.await;
        close.send_replace(true);
        tokio::time::sleep(config.drain_delay).await;
        // From here on workers cannot reach this node to renew their leases, so it must not
        // decide that these lapsed.
        drop(loops);
    };
    net::serve(listener, routes::router(&engine), &config, stop).await;
    store.close().await;
    Ok(())
}
