//! The shared log and the rows on Redis or Valkey: one server, a master that sentinels watch
//! over, or a cluster.
//!
//! All keys of a queue have one hash tag and those of the log another. One script appends an
//! entry and changes the rows. In a cluster it changes the log's tag only and keeps, beside
//! the entry, what is to be done in the others (`intents.rs`): that is carried out once and in
//! order by whoever comes first, and nobody reads a row before.
//!
//! What stands in the log is what counts. Scripts carry out prepared changes and decide
//! nothing but whether an entry is next.

mod archive;
mod backend;
mod changes;
mod commit;
mod durability;
mod error;
mod events;
mod inner;
mod intents;
mod keys;
mod link;
mod load;
mod log;
mod memory;
mod pack;
mod places;
mod read;
mod retention;
mod rows;
mod scripts;
mod sheet;
mod store;
mod tls;
mod upkeep;
mod url;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use durability::Durability;
pub use error::OpenError;
pub use store::RedisStore;

use inner::{Inner, Known};
use link::Link;

/// How to open the store.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://`, `rediss://`, `redis+sentinel://HOST:PORT,…/MASTER` or `redis+cluster://HOST:PORT,…`, each with
    /// `?prefix=` for another beginning of all keys than `windlass`, and `?wait_replicas=` for how many replicas a
    /// commit waits for. With `rediss` in place of `redis` the way is encrypted, and
    /// `?sslrootcert=` names a file of the certificates to believe instead of those of the system.
    pub url: String,
    /// Refuses to open a store that a crash or a failover can take acknowledged writes from.
    pub require_durable: bool,
    /// How long a call may take.
    pub timeout: Duration,
    /// Memory that entries of the log may take.
    pub log_bytes: u64,
    /// Memory that events may take.
    pub event_bytes: u64,
    /// Above this share of the server's memory, the oldest ended tasks are deleted before their time.
    pub history_percent: u64,
    /// Leaves what entries do in other tags of a cluster undone, as a node that dies between the two does. For tests.
    #[doc(hidden)]
    pub hold_back_rows: bool,
}

impl RedisOptions {
    /// The usual options.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            require_durable: false,
            timeout: Duration::from_secs(2),
            log_bytes: 64_000_000,
            event_bytes: 512_000_000,
            history_percent: 70,
            hold_back_rows: false,
        }
    }
}

/// The log and the rows on Redis.
pub struct RedisBackend {
    inner: Arc<Inner>,
    durability: Durability,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl RedisBackend {
    /// Connects, and looks at how safe the servers are.
    pub async fn open(options: RedisOptions) -> Result<Self, OpenError> {
        // Whoever has chosen one before us is right.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let target = url::parse(&options.url).map_err(OpenError::Url)?;
        let reads = Link::open(&target, options.timeout).await?;
        let writes = Link::open(&target, options.timeout).await?;
        let commits = Link::of_one_user(&target, options.timeout).await?;
        let listener = Link::open(&target, options.timeout).await?;
        let keys = keys::Keys::new(&target.prefix);
        let secret = secret(&writes, &keys).await?;
        let (jobs, waiting) = mpsc::channel(intents::JOBS);
        let inner = Arc::new(Inner {
            options,
            wait_replicas: target.wait_replicas,
            keys,
            scripts: scripts::Scripts::new(),
            writes,
            commits,
            reads,
            places: places::Places::default(),
            known: Known::default(),
            touched: Mutex::default(),
            turn: Mutex::default(),
            bell: watch::Sender::new(0),
            told: AtomicU64::new(0),
            bell_works: AtomicBool::new(false),
            pressure: memory::Pressure::default(),
            lost_entries: AtomicU64::new(0),
            jobs,
            handed_over: AtomicU64::new(0),
            applied: watch::Sender::new(0),
            prune_from: Mutex::new(0),
            secret,
        });
        let durability = inner.durability().await?;
        inner.look_at_memory().await.map_err(|failure| OpenError::Unreachable(failure.reason))?;
        let tasks = upkeep::start(&inner, listener, waiting);
        Ok(Self { inner, durability, tasks: Mutex::new(tasks) })
    }

    /// What a crash or a failover can lose.
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// Acknowledged entries that failovers are known to have lost since this was opened.
    pub fn lost_entries(&self) -> u64 {
        self.inner.lost_entries.load(Ordering::Relaxed)
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        for task in inner::lock(&self.tasks).drain(..) {
            task.abort();
        }
    }
}

/// The secret of ids and tokens, made by whoever comes first.
async fn secret(link: &Link, keys: &keys::Keys) -> Result<[u8; 16], OpenError> {
    let mut new = [0; 16];
    getrandom::fill(&mut new).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
    let meta = keys.log(keys::log::META);
    let mut commands = redis::pipe();
    commands.cmd("HSETNX").arg(&meta).arg("secret").arg(&new).ignore();
    commands.cmd("HGET").arg(&meta).arg("secret");
    let unreachable = |failure: error::Failure| OpenError::Unreachable(failure.reason);
    let (stored,): (Vec<u8>,) = link.pipeline(&commands).await.map_err(unreachable)?;
    stored.try_into().map_err(|_| OpenError::Damaged("the secret of ids has a wrong length".into()))
}
