//! Every background loop, on one screen. They run on the node that leads (see `lead`), and only while it does.
//!
//! Each is one verb of the store, done in bounded slices, or (replay by rule) a few of them. Loops about a time that is known
//! (due tasks, leases, timeouts, expiries) sleep exactly until then, and never longer than
//! their interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass_core::store::{Store, StoreError, Sweep};

use crate::auto_replay;
use crate::config::ServerConfig;
use crate::engine::Engine;
use crate::intake;

/// Items that one slice may change: a few milliseconds of the writer's time.
const SLICE: usize = 500;
/// After a failure of the store the loop waits this long.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// A background loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Scheduled tasks whose time has come.
    MakeDue,
    /// Leases that lapsed.
    LapseLeases,
    /// Attempts that take too long.
    TimeOut,
    /// Tasks not started in time.
    Expire,
    /// Ended tasks past their retention.
    Prune,
    /// Effects that a crash left behind.
    SettleIntents,
    /// Workers that are long gone.
    ForgetWorkers,
    /// Dead letters of an outage that is over.
    AutoReplay,
}

impl Loop {
    /// All loops.
    pub const ALL: [Self; 8] = [
        Self::MakeDue,
        Self::LapseLeases,
        Self::TimeOut,
        Self::Expire,
        Self::Prune,
        Self::SettleIntents,
        Self::ForgetWorkers,
        Self::AutoReplay,
    ];

    /// The longest sleep between two runs.
    pub fn interval(self, config: &ServerConfig) -> Duration {
        // Lapses and due tasks must be prompt: within a second, or a quarter of a short lease.
        let prompt = Duration::from_secs(1).min(config.lease / 4).max(Duration::from_millis(20));
        match self {
            // A retry may wait only a fraction of a second, and is not known when the sleep begins.
            Self::MakeDue => prompt.min(Duration::from_millis(250)),
            Self::LapseLeases | Self::TimeOut => prompt,
            Self::Expire | Self::AutoReplay => Duration::from_secs(1),
            Self::Prune => Duration::from_secs(30),
            Self::SettleIntents => Duration::from_secs(5),
            Self::ForgetWorkers => Duration::from_mins(1),
        }
    }

    /// One slice.
    pub async fn run_once(self, store: &dyn Store, config: &ServerConfig) -> Result<Sweep, StoreError> {
        match self {
            Self::MakeDue => store.make_due(SLICE).await,
            Self::LapseLeases => store.lapse_leases(SLICE).await,
            Self::TimeOut => store.time_out(SLICE).await,
            Self::Expire => store.expire(SLICE).await,
            Self::Prune => store.prune(SLICE).await,
            Self::SettleIntents => store.settle_intents(SLICE).await,
            Self::ForgetWorkers => store.forget_workers(store.now() - config.worker_memory).await,
            Self::AutoReplay => auto_replay::run_once(store).await,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::MakeDue => "make_due",
            Self::LapseLeases => "lapse_leases",
            Self::TimeOut => "time_out",
            Self::Expire => "expire",
            Self::Prune => "prune",
            Self::SettleIntents => "settle_intents",
            Self::ForgetWorkers => "forget_workers",
            Self::AutoReplay => "auto_replay",
        }
    }
}

/// Starts all loops of a term that ends at `until`, unless that moves on; dropping the set stops them.
pub fn start(engine: &Arc<Engine>, until: &watch::Receiver<Instant>, was_away: bool) -> JoinSet<()> {
    let mut loops = JoinSet::new();
    for each in Loop::ALL {
        let (engine, until) = (Arc::clone(engine), until.clone());
        loops.spawn(async move { repeat(each, &engine, until, was_away).await });
    }
    let taking_in = Arc::clone(engine);
    loops.spawn(async move { intake::run(&taking_in).await });
    loops
}

async fn repeat(this: Loop, engine: &Engine, mut until: watch::Receiver<Instant>, was_away_before: bool) {
    let (store, config) = (&*engine.upkeep, &engine.config);
    let interval = this.interval(config);
    let mut last_run: Option<Instant> = None;
    // Whoever leads stops the loops when the term is over, but may itself come too late.
    while until.wait_for(|until| *until > Instant::now()).await.is_ok() {
        // Windlass was away (a start, another leader, a stopped process, a store that was down): whoever
        // worked meanwhile gets a fresh lease before anything lapses or times out.
        let was_away = last_run.map_or(was_away_before, |last| last.elapsed() > config.lease / 2);
        let decides_on_leases = matches!(this, Loop::LapseLeases | Loop::TimeOut);
        if decides_on_leases && was_away && !forgive(store, config.lease).await {
            tokio::time::sleep(AFTER_FAILURE).await;
            continue;
        }
        // From before the call: a store that takes half a lease to answer was away, too.
        let begun = Instant::now();
        let sleep = match this.run_once(store, config).await {
            Ok(sweep) => {
                last_run = Some(begun);
                if sweep.changed > 0 {
                    tracing::debug!(r#loop = this.name(), changed = sweep.changed, "maintenance");
                }
                pause_after(&sweep, store, interval)
            }
            Err(error) => {
                tracing::warn!(r#loop = this.name(), %error, "maintenance failed");
                AFTER_FAILURE
            }
        };
        if sleep.is_zero() {
            // More to do: let requests go first, then go on.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(sleep).await;
        }
    }
}

async fn forgive(store: &dyn Store, lease: Duration) -> bool {
    let forgiven = store.forgive(lease).await;
    if let Err(error) = &forgiven {
        tracing::warn!(%error, "could not give leases a fresh period");
    }
    forgiven.is_ok()
}

/// How long to sleep: not at all if there is more, else until the next item falls due.
fn pause_after(sweep: &Sweep, store: &dyn Store, interval: Duration) -> Duration {
    // A due time in the past with nothing more to do is one that this slice could not
    // take (a forgiven lease); looking again at once would spin.
    const SHORTEST: Duration = Duration::from_millis(2);
    if sweep.more {
        return Duration::ZERO;
    }
    let until_next = sweep.next_at.map(|next| next.since(store.now()));
    until_next.unwrap_or(interval).clamp(SHORTEST, interval)
}
