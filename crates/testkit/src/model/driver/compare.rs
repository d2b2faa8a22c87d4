//! Comparing what is stored.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::filter::TaskFilter;
use windlass_core::status::Status;
use windlass_core::store::QueueStats;
use windlass_core::task::Task;

use super::{Driver, Verdict};

impl Driver {
    pub(super) fn compare_task(&self, item: usize, found: Option<&Task>) -> Verdict {
        let known = &self.reference.items[item];
        let Some(task) = found else {
            return if known.gone { Ok(()) } else { Err(format!("task {item} is not in the store")) };
        };
        if known.gone {
            return Err(format!("task {item} is past its retention and still in the store"));
        }
        let state = &task.state;
        same!(
            (state.status, state.attempt, state.retries, state.crashes, state.version),
            (known.status, known.attempt, known.retries, known.crashes, known.version),
            "status, attempt, retries, crashes and version of task {item}"
        );
        same!((state.ready_at, state.run_at), (known.ready_at, known.run_at), "ready_at and run_at of task {item}");
        same!((state.ended_at, state.end_reason), (known.ended_at, known.end_reason), "end of task {item}");
        same!(state.timeout, known.timeout(), "timeout of task {item}");
        same!(
            (&task.spec.priority, &task.spec.parameters),
            (&known.spec.priority, &known.spec.parameters),
            "priority and parameters of task {item}"
        );
        if known.status == Status::Executing {
            let held = known.lease.ok_or("the reference lost a lease")?;
            same!(state.worker, Some(self.workers[held.worker].id), "worker of task {item}");
            same!(state.lease_expires_at, Some(held.expires_at), "lease of task {item}");
            let percent = state.progress.as_ref().map(|progress| progress.percent as u64);
            same!(percent, known.percent, "progress of task {item}");
        }
        Ok(())
    }

    pub(super) async fn compare_touched(&mut self) -> Verdict {
        let touched: Vec<usize> = std::mem::take(&mut self.touched).into_iter().collect();
        if touched.is_empty() {
            return Ok(());
        }
        let ids = touched.iter().map(|item| self.reference.items[*item].id).collect();
        let found = self.rig.store.get(ids).await.map_err(|error| error.to_string())?;
        for (item, task) in touched.into_iter().zip(found) {
            self.compare_task(item, task.as_ref())?;
            if let Some(task) = task {
                same!(
                    task.state.failed_attempts.len(),
                    self.reference.items[item].failures as usize,
                    "failed attempts of task {item}"
                );
            }
        }
        Ok(())
    }

    /// Compares every task, why it waits, the lists and the statistics.
    pub(in crate::model) async fn compare_all(&mut self) -> Verdict {
        self.count("full comparisons", 1);
        let listed = self.rig.list_by(&TaskFilter::default(), 1000).await;
        let mut seen = BTreeSet::new();
        for task in &listed {
            let item = self.item(task.id)?;
            if !seen.insert(item) {
                return Err(format!("task {item} is listed twice"));
            }
            self.compare_task(item, Some(task))?;
        }
        let expected = self.reference.items.iter().filter(|item| !item.gone).count();
        same!(seen.len(), expected, "number of listed tasks");
        let (by_status, queues) = self.reference.stats();
        let stats = self.rig.store.stats().await.map_err(|error| error.to_string())?;
        same!(stats.by_status, by_status, "tasks by status");
        let told: BTreeMap<String, QueueStats> = stats
            .queues
            .into_iter()
            .filter(|(_, queue)| *queue != QueueStats::default())
            .map(|(name, queue)| (name.as_str().to_owned(), queue))
            .collect();
        same!(told, queues, "statistics by queue");
        for item in self.reference.live.clone() {
            self.compare_wait(item).await?;
        }
        Ok(())
    }
}
