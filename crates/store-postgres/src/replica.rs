//! A replica that answers in place of the database while it can. Nobody waits for one that is known to be away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use windlass_cluster::backend::BackendError;

use crate::ask::{Ask, no_answer};
use crate::migrate::in_schema;
use crate::pool::Pool;

/// How often one that is away is asked whether it is back.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What must work for a replica to be of use: one that is there may lack the tables yet, or the right to read them.
const TRY_OUT: &str = "SELECT FROM :schema.live, :schema.ended, :schema.events, :schema.days_over LIMIT 0";

/// The replica, and whether it answers.
pub(crate) struct Replica {
    pool: Pool,
    try_out: String,
    /// For all of it: a place among the connections, a new connection, the answer.
    answer_in: Duration,
    is_away: AtomicBool,
    /// Where it is waited for when it is away.
    threads: Handle,
}

impl Replica {
    pub(crate) fn new(pool: Pool, schema: &str, answer_in: Duration) -> Arc<Self> {
        Arc::new(Self {
            pool,
            try_out: in_schema(TRY_OUT, schema),
            answer_in,
            is_away: AtomicBool::new(false),
            threads: Handle::current(),
        })
    }

    /// What it answers; `None` if somebody else must be asked.
    pub(crate) async fn answer(self: &Arc<Self>, ask: &Ask<'_>) -> Option<Result<Vec<Vec<Row>>, BackendError>> {
        if self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        match self.ask(ask).await {
            // Any server would refuse it.
            Err(error) if error.item_at_fault => Some(Err(error)),
            Err(error) => {
                self.went_away(&error.reason);
                None
            }
            Ok(rows) => Some(Ok(rows)),
        }
    }

    async fn ask(&self, ask: &Ask<'_>) -> Result<Vec<Vec<Row>>, BackendError> {
        let answer = timeout(self.answer_in, ask.of(&self.pool, self.answer_in)).await;
        answer.unwrap_or_else(|_| Err(no_answer(&self.pool)))
    }

    /// The first to notice says so, once, and sees to it that its return is noticed.
    fn went_away(self: &Arc<Self>, reason: &str) {
        if self.pool.is_closed() || self.is_away.swap(true, Ordering::Relaxed) {
            return;
        }
        let replica = self.pool.name();
        tracing::warn!(replica, reason, "the replica cannot be read; the primary answers until it can");
        self.pool.forget_idle();
        self.threads.spawn(await_return(Arc::downgrade(self)));
    }

    fn came_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
        tracing::info!(replica = self.pool.name(), "the replica can be read again");
    }

    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

/// Asks now and then, so that no caller has to find out. Ends with the store.
async fn await_return(replica: Weak<Replica>) {
    loop {
        sleep(ASK_AGAIN).await;
        let Some(replica) = replica.upgrade().filter(|replica| !replica.pool.is_closed()) else { return };
        if replica.ask(&Ask::AdHoc(&replica.try_out, &[])).await.is_ok() {
            replica.came_back();
            return;
        }
    }
}
