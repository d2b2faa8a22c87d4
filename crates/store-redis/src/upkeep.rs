//! What runs beside the calls: listening for entries, applying them, looking at memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::Failure;
use crate::inner::Inner;
use crate::intents::Job;
use crate::link::Link;
use crate::memory::LOOK_EVERY;

/// How often streams are trimmed: seldom, because it is no matter of seconds.
const TRIM_EVERY: Duration = Duration::from_secs(10);
/// How long intents are kept after they were applied: a failover that loses the end of a queue
/// is made good from them.
const KEEP_INTENTS: Duration = Duration::from_secs(30);

/// Starts everything; it runs until the handles are aborted.
pub(crate) fn start(inner: &Arc<Inner>, listener: Link, jobs: mpsc::Receiver<Job>) -> Vec<JoinHandle<()>> {
    let (one, two, three) = (Arc::clone(inner), Arc::clone(inner), Arc::clone(inner));
    vec![
        tokio::spawn(async move { one.listen(&listener).await }),
        tokio::spawn(async move { two.apply_jobs(jobs).await }),
        tokio::spawn(async move { three.keep_house().await }),
    ]
}

impl Inner {
    async fn keep_house(&self) {
        let mut settled: VecDeque<(Instant, u64)> = VecDeque::new();
        let mut trimmed_at = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let mut done = self.look_at_memory().await;
            if self.reads.is_cluster() && !self.options.hold_back_rows {
                done = done.and(self.settle_and_drop(&mut settled).await);
            }
            if trimmed_at.elapsed() >= TRIM_EVERY {
                trimmed_at = Instant::now();
                done = done.and(self.trim_streams().await);
            }
            if let Err(failure) = done {
                tracing::debug!(reason = failure.reason, "housekeeping is done later");
            }
        }
    }

    async fn settle_and_drop(&self, settled: &mut VecDeque<(Instant, u64)>) -> Result<(), Failure> {
        settled.push_back((Instant::now(), self.settle().await?));
        let mut up_to = None;
        while let Some((at, no)) = settled.front().copied()
            && at.elapsed() >= KEEP_INTENTS
        {
            up_to = Some(no);
            settled.pop_front();
        }
        match up_to {
            Some(up_to) => self.drop_intents(up_to).await,
            None => Ok(()),
        }
    }
}
