//! What entries of the log do in other tags of a cluster. An entry is the commit; what it does
//! elsewhere stands beside it and is carried out once, in the order of the log, by whoever
//! comes first: its writer, a reader that needs it, or the housekeeping of any node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::sync::mpsc;
use windlass_cluster::backend::BackendError;

use crate::error::Failure;
use crate::inner::{Inner, lock};
use crate::keys::{log, queue};
use crate::log::{mark, number};
use crate::sheet::Sheet;

/// Entries that may wait to be applied before commits wait too.
pub(crate) const JOBS: usize = 64;
/// How long a reader waits for what its own node is about to apply.
const READER_WAIT: Duration = Duration::from_millis(500);
/// Intents that are read at a time.
const PAGE: usize = 64;

/// What an entry of this node does in other tags.
pub(crate) struct Job {
    pub(crate) no: u64,
    /// Number and fingerprint.
    pub(crate) own: String,
    /// What was last in each tag before it, if that is known.
    pub(crate) befores: Option<Vec<String>>,
    pub(crate) tags: Vec<(String, Sheet)>,
}

/// One tag's share of an entry.
struct Intent {
    own: String,
    before: String,
    sheet: Sheet,
}

enum Applied {
    /// Now or before.
    Done,
    /// The tag is at another entry than the one before.
    Elsewhere(String),
}

impl Inner {
    /// Hands an entry over to be applied. If that is not possible, readers and housekeeping find it in the log.
    pub(crate) async fn apply_later(&self, job: Job) {
        if self.options.hold_back_rows {
            return;
        }
        self.handed_over.fetch_max(job.no, Ordering::Relaxed);
        let _ = self.jobs.send(job).await;
    }

    /// Applies what commits hand over, entry by entry.
    pub(crate) async fn apply_jobs(&self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.recv().await {
            if let Err(failure) = self.apply_job(&job).await {
                tracing::warn!(entry = job.no, reason = failure.reason, "an entry is applied later");
            }
            self.applied.send_replace(job.no);
        }
    }

    async fn apply_job(&self, job: &Job) -> Result<(), Failure> {
        let Some(befores) = &job.befores else {
            for (tag, _) in &job.tags {
                self.catch_up(tag).await?;
            }
            return Ok(());
        };
        // Tags are on different servers: each is asked at once.
        let each = job.tags.iter().zip(befores).map(|((tag, sheet), before)| async move {
            match self.apply(tag, &job.own, before, sheet).await? {
                Applied::Done => Ok(()),
                Applied::Elsewhere(_) => self.catch_up(tag).await,
            }
        });
        join_all(each).await
    }

    async fn apply(&self, tag: &str, own: &str, before: &str, sheet: &Sheet) -> Result<Applied, Failure> {
        let mut keys = vec![self.keys.of(tag, queue::APPLIED)];
        keys.extend_from_slice(&sheet.keys);
        let mut args = vec![own.as_bytes().to_vec(), before.as_bytes().to_vec()];
        args.extend_from_slice(&sheet.args);
        let answer: Vec<Value> = self.writes.script(&self.scripts.apply, &keys, &args).await?;
        match answer.as_slice() {
            [Value::Int(0 | 1)] => Ok(Applied::Done),
            [Value::Int(2), Value::BulkString(last)] => {
                Ok(Applied::Elsewhere(String::from_utf8_lossy(last).into_owned()))
            }
            _ => Err(Failure::odd("a change was answered with something else")),
        }
    }

    /// The last entry that was applied to a tag.
    pub(crate) async fn applied_to(&self, tag: &str) -> Result<String, Failure> {
        let last: Option<String> = self.reads.command(redis::cmd("GET").arg(self.keys.of(tag, queue::APPLIED))).await?;
        Ok(last.unwrap_or_default())
    }

    /// Applies everything that a tag has missed.
    pub(crate) async fn catch_up(&self, tag: &str) -> Result<(), Failure> {
        let applied = self.applied_to(tag).await?;
        let (mut after, _) = mark(&applied)?;
        let touched: Option<String> =
            self.reads.command(redis::cmd("HGET").arg(self.keys.log(log::TOUCHED)).arg(tag)).await?;
        let touched = touched.unwrap_or_default();
        if applied == touched {
            return Ok(());
        }
        if !self.is_in_log(&applied).await? {
            after = 0;
        }
        loop {
            let intents = self.intents(tag, after).await?;
            let is_last = intents.1;
            for intent in intents.0 {
                self.apply_in_order(tag, &intent).await?;
            }
            match is_last {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn apply_in_order(&self, tag: &str, intent: &Intent) -> Result<(), Failure> {
        let Applied::Elsewhere(last) = self.apply(tag, &intent.own, &intent.before, &intent.sheet).await? else {
            return Ok(());
        };
        let (last_no, _) = mark(&last)?;
        if last_no > mark(&intent.own)?.0 && self.is_in_log(&last).await? {
            // Another node was faster and is further on.
            return Ok(());
        }
        // The tag and the log do not fit: one of their servers failed over and lost its end. What the log says counts.
        tracing::error!(tag, applied = last, expected = intent.before, "a failover lost changes of a queue");
        self.lost_entries.fetch_add(1, Ordering::Relaxed);
        let keys = [self.keys.of(tag, queue::APPLIED)];
        let args = [last.into_bytes(), intent.before.as_bytes().to_vec()];
        let _: i64 = self.writes.script(&self.scripts.rebase, &keys, &args).await?;
        self.apply(tag, &intent.own, &intent.before, &intent.sheet).await?;
        Ok(())
    }

    /// Whether an entry is in the log, or was before it was trimmed.
    async fn is_in_log(&self, text: &str) -> Result<bool, Failure> {
        let (no, fingerprint) = mark(text)?;
        if no == 0 {
            return Ok(true);
        }
        let id = format!("{no}-0");
        if let Some(found) = self.entries(&id, &id, 1).await?.first() {
            return Ok(fingerprint == Some(found.fingerprint));
        }
        let last: Option<String> =
            self.reads.command(redis::cmd("HGET").arg(self.keys.log(log::META)).arg("last")).await?;
        Ok(no <= mark(last.as_deref().unwrap_or_default())?.0)
    }

    /// Intents for a tag after an entry, and where to read on if there are more.
    async fn intents(&self, tag: &str, after: u64) -> Result<(Vec<Intent>, Option<u64>), Failure> {
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys.log(log::INTENTS)).arg(format!("({after}-0")).arg("+").arg("COUNT").arg(PAGE);
        let found: Vec<(String, Vec<Vec<u8>>)> = self.reads.command(&range).await?;
        let mut intents = Vec::new();
        let mut last = after;
        for (id, fields) in &found {
            last = number(id)?;
            // Tag, what was last in it, the entry, what is to be done; for each tag.
            let Some(four) = fields.chunks_exact(4).find(|four| four[0] == tag.as_bytes()) else { continue };
            intents.push(Intent {
                own: String::from_utf8_lossy(&four[2]).into_owned(),
                before: String::from_utf8_lossy(&four[1]).into_owned(),
                sheet: Sheet::unpack(&four[3]).map_err(|damaged| Failure::odd(damaged.to_string()))?,
            });
        }
        Ok((intents, (found.len() == PAGE).then_some(last)))
    }

    /// Makes sure that a tag has all that this node has followed, given what a reader found applied in it.
    /// True if the reader must look again.
    pub(crate) async fn must_look_again(&self, tag: &str, applied: &str) -> Result<bool, BackendError> {
        let touched = lock(&self.touched).get(tag).copied().unwrap_or_default();
        if mark(applied)?.0 >= touched {
            return Ok(false);
        }
        self.catch_up(tag).await?;
        Ok(true)
    }

    /// Waits a little for what this node itself is about to apply to a tag.
    pub(crate) async fn wait_for_own(&self, tag: &str) {
        let touched = lock(&self.touched).get(tag).copied().unwrap_or_default();
        let own = touched.min(self.handed_over.load(Ordering::Relaxed));
        let mut applied = self.applied.subscribe();
        let _ = tokio::time::timeout(READER_WAIT, applied.wait_for(|last| *last >= own)).await;
    }

    /// Applies whatever anybody left behind, and says up to which entry everything is applied then.
    pub(crate) async fn settle(&self) -> Result<u64, Failure> {
        let mut commands = redis::pipe();
        commands.cmd("HGET").arg(self.keys.log(log::META)).arg("last");
        commands.cmd("HGETALL").arg(self.keys.log(log::TOUCHED));
        let (last, touched): (Option<String>, Vec<(String, String)>) = self.reads.pipeline(&commands).await?;
        let (last, _) = mark(last.as_deref().unwrap_or_default())?;
        let each = touched.iter().map(|(tag, mark)| async move {
            if self.applied_to(tag).await? == *mark { Ok(()) } else { self.catch_up(tag).await }
        });
        join_all(each).await?;
        for (tag, text) in &touched {
            self.touch(mark(text)?.0, std::iter::once(tag.as_str()));
        }
        Ok(last)
    }

    /// Drops intents up to an entry: everything up to there is applied, long enough ago that replicas have it.
    pub(crate) async fn drop_intents(&self, up_to: u64) -> Result<(), Failure> {
        let mut trim = redis::cmd("XTRIM");
        trim.arg(self.keys.log(log::INTENTS)).arg("MINID").arg(format!("{}-0", up_to + 1));
        self.writes.command::<i64>(&trim).await?;
        Ok(())
    }
}

/// Waits for all; fails with the first failure.
async fn join_all<F: Future<Output = Result<(), Failure>>>(futures: impl Iterator<Item = F>) -> Result<(), Failure> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut failure = None;
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Pending => true,
            std::task::Poll::Ready(result) => {
                failure = failure.take().or(result.err());
                false
            }
        });
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    failure.map_or(Ok(()), Err)
}
