//! What all lanes of a worker share.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::breaker::Breakers;
use crate::client::Client;
use crate::context::{Context, States};
use crate::stop::StopToken;
use crate::task_error::TaskResult;
use crate::worker::stats::Stats;

/// A handler with its types rubbed off: the attempt in, JSON out.
pub(crate) type Handler =
    Arc<dyn Fn(Context) -> Pin<Box<dyn Future<Output = TaskResult<Option<Box<RawValue>>>> + Send>> + Send + Sync>;

/// How the worker is set up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) queues: Vec<String>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) name: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) stop_grace: Duration,
    pub(crate) health_address: Option<std::net::SocketAddr>,
    pub(crate) reports_cpu: bool,
}

/// See the module.
pub(crate) struct Common {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) handlers: HashMap<String, Handler>,
    pub(crate) states: Arc<States>,
    pub(crate) breakers: Arc<Breakers>,
    /// The worker takes no more tasks.
    pub(crate) stopping: StopToken,
    /// Wakes the pulse thread: there is progress to send, or somebody new to send heartbeats for.
    pub(crate) pulse: Arc<Notify>,
    pub(crate) stats: Stats,
}

impl std::fmt::Debug for Common {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Common").field("settings", &self.settings).finish_non_exhaustive()
    }
}
