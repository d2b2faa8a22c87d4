//! Windlass inside this process: the same calls, answered by the engine without a socket.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use tokio::sync::oneshot;
use tower::ServiceExt;
#[cfg(feature = "testing")]
use windlass_core::store::Store;
use windlass_server::{App, Metrics, ServerConfig, Watch};
use windlass_store_sqlite::{SqliteOptions, SqliteStore};

use crate::error::{Error, Result, Unreachable};
use crate::transport::{Answer, Call, Method};

/// An engine and its store.
#[derive(Clone)]
pub(crate) struct Embedded(Arc<Inner>);

struct Inner {
    address: String,
    app: App,
    /// Runs the maintenance; ends when told, or when this is dropped.
    upkeep: Mutex<Option<Upkeep>>,
}

/// A thread of its own for maintenance: handlers that keep the application's threads busy must not stop due tasks,
/// timeouts and retention.
struct Upkeep {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Drop for Inner {
    /// Whoever lets the last client go can open the store again.
    fn drop(&mut self) {
        let upkeep = self.upkeep.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(upkeep) = upkeep {
            let _ = upkeep.stop.send(());
            // It ends within a slice of maintenance.
            let _ = upkeep.thread.join();
        }
    }
}

/// As a server has it, but for what differs within one process.
fn config() -> ServerConfig {
    ServerConfig {
        workers_share_process: true,
        // No crowd of clients waits for a slow disk, only this application; and to it a submit that may have been stored
        // is worse than one that takes long.
        store_wait: Duration::from_secs(30),
        ..ServerConfig::default()
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Embedded").field(&self.0.address).finish()
    }
}

impl Embedded {
    /// Opens the store at `sqlite:FOLDER` and starts the engine.
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let failed = |reason: String| Error::Store { address: address.to_owned(), reason };
        let folder = address.strip_prefix("sqlite:").unwrap_or(address);
        if folder.is_empty() {
            return Err(Error::Address {
                address: address.to_owned(),
                reason: "it names no folder; an address looks like sqlite:jobs".to_owned(),
            });
        }
        let config = config();
        let metrics = Arc::new(Metrics::default());
        // Whoever held a lease in this store died with its last process: nobody will come back with a result.
        let options = SqliteOptions { lease: Duration::ZERO, ..SqliteOptions::new(Path::new(folder)) };
        let watch = Watch::new(Arc::clone(&metrics));
        // Opening reads the whole queue back, which may take a while: not on a thread that serves.
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(options, watch)).await;
        let store = opened.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        Self::with_upkeep(address, App::new(config, store, metrics))
    }

    fn with_upkeep(address: &str, app: App) -> Result<Self> {
        let failed = |error: std::io::Error| Error::Store { address: address.to_owned(), reason: error.to_string() };
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let upkeep = app.clone();
        let run = move || {
            runtime.block_on(async {
                let loops = upkeep.start_maintenance();
                // An error means that the client is gone, which is an end, too.
                let _ = stopped.await;
                loops.stop().await;
            });
        };
        let thread = std::thread::Builder::new().name("windlass-upkeep".to_owned()).spawn(run).map_err(failed)?;
        let upkeep = Mutex::new(Some(Upkeep { stop, thread }));
        Ok(Self(Arc::new(Inner { address: address.to_owned(), app, upkeep })))
    }

    /// An engine whose maintenance somebody runs by hand.
    #[cfg(feature = "testing")]
    pub(crate) fn by_hand(app: App) -> Self {
        Self(Arc::new(Inner { address: "memory:".to_owned(), app, upkeep: Mutex::default() }))
    }

    /// An engine on any store.
    #[cfg(feature = "testing")]
    pub(crate) fn on(store: Arc<dyn Store>) -> Result<Self> {
        Self::with_upkeep("memory:", App::new(config(), store, Arc::new(Metrics::default())))
    }

    pub(crate) fn address(&self) -> &str {
        &self.0.address
    }

    /// Answers a call.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Unreachable> {
        let unreachable = |reason: String, may_have_happened| Unreachable {
            addresses: vec![self.0.address.clone()],
            reason,
            may_have_happened,
        };
        let method = match call.method {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        };
        let mut request =
            Request::builder().method(method).uri(call.path).header(header::CONTENT_TYPE, "application/json");
        if let Some(trace_parent) = call.trace_parent {
            request = request.header("traceparent", trace_parent);
        }
        let request = request
            .body(call.body.map_or_else(Body::empty, Body::from))
            .map_err(|error| unreachable(error.to_string(), false))?;
        let answered = async {
            // A router has no error of its own.
            let Ok(response) = self.0.app.router().oneshot(request).await;
            let status = response.status().as_u16();
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
            body.map(|body| (status, body))
        };
        match tokio::time::timeout(call.timeout, answered).await {
            Ok(Ok((status, body))) => Ok(Answer { status, body, address: self.0.address.clone() }),
            Ok(Err(error)) => Err(unreachable(error.to_string(), true)),
            Err(_) => Err(unreachable("the store takes too long".to_owned(), true)),
        }
    }

    /// Stops the maintenance and closes the store.
    pub(crate) async fn close(&self) {
        let upkeep = self.0.upkeep.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(upkeep) = upkeep {
            // An error means that it has ended already.
            let _ = upkeep.stop.send(());
            let _ = tokio::task::spawn_blocking(move || upkeep.thread.join()).await;
        }
        self.0.app.close().await;
    }
}
