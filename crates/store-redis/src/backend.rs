//! The contract, call by call.

use std::time::Duration;

use async_trait::async_trait;
use windlass_cluster::backend::{
    Backend, BackendError, Changes, CommitError, Entry, Found, NodeId, Snapshot, Tail, Wants,
};
use windlass_core::ids::TaskKey;
use windlass_core::keys::UniqueKey;
use windlass_core::status::Status;
use windlass_core::store::InboxItem;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{KeyRow, KeyScope};

use crate::RedisBackend;
use crate::commit::hex;
use crate::error::Failure;
use crate::inner::lock;
use crate::keys::log;
use crate::sheet::text;

#[async_trait]
impl Backend for RedisBackend {
    fn secret(&self) -> [u8; 16] {
        self.inner.secret
    }

    async fn time(&self) -> Result<Timestamp, BackendError> {
        let (seconds, micros): (i64, i64) = self.inner.reads.at_log(&redis::cmd("TIME")).await?;
        Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
    }

    async fn load(&self) -> Result<Snapshot, BackendError> {
        self.inner.load().await
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        Ok(self.inner.tail(after, limit).await?)
    }

    async fn grown(&self, after: u64) {
        self.inner.grown(after).await;
    }

    async fn turn(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        Ok(self.inner.turn(after, limit).await?)
    }

    async fn pass(&self) {
        self.inner.pass().await;
    }

    /// In a cluster keys are with their queue and not with the log.
    fn refuses_known_keys(&self) -> bool {
        !self.inner.writes.is_cluster()
    }

    async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError> {
        self.inner.commit(entry, changes).await
    }

    /// Rows are as new as everything that this node has seen of the log by `tail` or `commit`, so `version` is met.
    async fn read(&self, wants: &Wants, _version: u64) -> Result<Found, BackendError> {
        self.inner.read(wants).await
    }

    async fn expired_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<(TaskKey, Status)>, BackendError> {
        self.inner.expired_tasks(now, limit).await
    }

    async fn expired_keys(&self, now: Timestamp, limit: usize) -> Result<Vec<(KeyScope, KeyRow)>, BackendError> {
        self.inner.expired_keys(now, limit).await
    }

    async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError> {
        self.inner.expired_uniques(now, limit).await
    }

    async fn prune_events(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError> {
        self.inner.prune_events(before, limit).await
    }

    /// Nobody writes tasks into Redis but we.
    async fn inbox(&self, _: i64, _: usize) -> Result<Vec<InboxItem>, BackendError> {
        Ok(Vec::new())
    }

    async fn inbox_grown(&self) {
        std::future::pending::<()>().await;
    }

    async fn lead(&self, node: NodeId, span: Duration) -> Result<bool, BackendError> {
        let keys = [self.inner.keys.log(log::LEADER)];
        let args = [hex(node.0).into_bytes(), text(span.as_millis().max(1))];
        Ok(self.inner.writes.script(&self.inner.scripts.lead, &keys, &args).await?)
    }

    async fn resign(&self, node: NodeId) {
        let keys = [self.inner.keys.log(log::LEADER)];
        // If it cannot be said, the time runs out.
        let _: Result<i64, Failure> =
            self.inner.writes.script(&self.inner.scripts.release, &keys, &[hex(node.0).into_bytes()]).await;
    }

    async fn bytes(&self) -> Option<u64> {
        self.inner.pressure.used()
    }

    async fn close(&self) {
        self.inner.pass().await;
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
        self.inner.reads.close().await;
        self.inner.writes.close().await;
        if let Some(commits) = &self.inner.commits {
            commits.close().await;
        }
    }
}
