//! Pauses, limits, why tasks wait, and that nothing is stuck.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::status::Status;
use windlass_core::store::{Finish, Waiting};

use super::{Driver, QUEUE_NAMES, TYPE_NAMES, Verdict};
use crate::fixtures::completed;
use crate::model::reference::Wait;
use crate::rig::LEASE;

/// The worker that serves everything and can do everything.
const ABLE: usize = 2;
/// Running tasks of a full key that a store names at most.
const NAMED: usize = 10;

impl Driver {
    pub(super) async fn pause_queue(&mut self, name: &str, paused: bool) {
        self.rig.change_queue(name, &format!(r#"{{"paused":{paused}}}"#)).await;
        let known = &mut self.reference.paused_queues;
        if paused {
            known.insert(name.to_owned())
        } else {
            known.remove(name)
        };
    }

    pub(super) async fn pause_type(&mut self, name: &str, paused: bool) {
        self.rig.change_type(name, &format!(r#"{{"paused":{paused}}}"#)).await;
        let known = &mut self.reference.paused_types;
        if paused {
            known.insert(name.to_owned())
        } else {
            known.remove(name)
        };
    }

    pub(super) async fn limit_queue(&mut self, name: &str, limit: Option<u32>) {
        self.rig.change_queue(name, &concurrency(limit)).await;
        set_limit(&mut self.reference.queue_limits, name, limit);
    }

    pub(super) async fn limit_type(&mut self, name: &str, limit: Option<u32>) {
        self.rig.change_type(name, &concurrency(limit)).await;
        set_limit(&mut self.reference.type_limits, name, limit);
    }

    /// Asks why a task waits.
    pub(super) async fn ask(&mut self, pick: u32) -> Verdict {
        match self.some_task(pick, &[Status::Queued]) {
            Some(item) => self.compare_wait(item).await,
            None => Ok(()),
        }
    }

    /// Compares why a task waits.
    pub(super) async fn compare_wait(&mut self, item: usize) -> Verdict {
        let known = &self.reference.items[item];
        let told = self.rig.store.waiting_for(known.id).await.map_err(|error| error.to_string())?;
        if known.gone || known.status != Status::Queued {
            same!(told, None, "why task {item} waits");
            return Ok(());
        }
        self.count("asked", 1);
        let expected = self.reference.waits_for(item);
        let told = told.ok_or_else(|| format!("task {item} is queued and the store does not say why"))?;
        same!(self.understood(told, &expected)?, expected, "why task {item} waits");
        Ok(())
    }

    fn understood(&self, told: Waiting, expected: &Wait) -> Result<Wait, String> {
        Ok(match told {
            Waiting::OrderingKey { holder, ahead } => Wait::InLine { holder: self.item(holder)?, ahead },
            Waiting::ConcurrencyKey { limit, running } => {
                let running = self.sorted(running)?;
                match expected {
                    // Only some of many are named.
                    Wait::KeyFull { running: all, .. }
                        if running.len() == all.len().min(NAMED) && running.iter().all(|item| all.contains(item)) =>
                    {
                        Wait::KeyFull { limit, running: all.clone() }
                    }
                    _ => Wait::KeyFull { limit, running },
                }
            }
            Waiting::Lane(hindrance) => Wait::Closed(hindrance),
            Waiting::Line { .. } => Wait::Ready,
        })
    }

    /// With everything resumed and every limit lifted, claiming and completing must end every task.
    pub(in crate::model) async fn drain(&mut self) -> Verdict {
        for name in QUEUE_NAMES {
            self.pause_queue(name, false).await;
            self.limit_queue(name, None).await;
        }
        for name in TYPE_NAMES {
            self.pause_type(name, false).await;
            self.limit_type(name, None).await;
        }
        // A task may be amended, delayed and crash a few times; each round brings every one of them on.
        for _ in 0..20 {
            if self.reference.live.is_empty() {
                return self.compare_all().await;
            }
            self.reference.now = self.rig.advance(Duration::from_hours(2));
            for verb in ["lapse_leases", "time_out", "expire", "make_due"] {
                self.sweep(verb, 100).await?;
            }
            self.work_off().await?;
            self.compare_touched().await?;
        }
        Err(format!("{} tasks are stuck: {:?}", self.reference.live.len(), self.reference.live))
    }

    /// Claims and completes until nothing is left that can be claimed.
    async fn work_off(&mut self) -> Verdict {
        loop {
            self.claim(ABLE, 20, LEASE).await?;
            let held: Vec<_> = self.reference.live.iter().filter_map(|item| self.held_by(ABLE, *item)).collect();
            if held.is_empty() {
                return Ok(());
            }
            self.send(ABLE, held).await?;
        }
    }

    fn held_by(&self, worker: usize, item: usize) -> Option<Finish> {
        let known = &self.reference.items[item];
        let held = known.lease.filter(|held| held.worker == worker)?;
        Some(Finish::new(known.id, held.token, completed()))
    }
}

fn concurrency(limit: Option<u32>) -> String {
    limit.map_or_else(|| r#"{"concurrency":null}"#.to_owned(), |limit| format!(r#"{{"concurrency":{limit}}}"#))
}

fn set_limit(limits: &mut BTreeMap<String, u32>, name: &str, limit: Option<u32>) {
    match limit {
        Some(limit) => limits.insert(name.to_owned(), limit),
        None => limits.remove(name),
    };
}
