//! Maintenance, workers that leave, restarts.

use std::sync::Arc;

use windlass_core::ids::WorkerId;

use super::{Driver, Verdict, register};
use crate::rig::LEASE;

impl Driver {
    pub(super) async fn sweep(&mut self, verb: &'static str, slice: usize) -> Verdict {
        let store = Arc::clone(&self.rig.store);
        let mut changed = 0;
        loop {
            let sweep = match verb {
                "make_due" => store.make_due(slice).await,
                "lapse_leases" => store.lapse_leases(slice).await,
                "time_out" => store.time_out(slice).await,
                "expire" => store.expire(slice).await,
                _ => store.prune(slice).await,
            };
            let sweep = sweep.map_err(|error| format!("{verb} failed: {error}"))?;
            changed += sweep.changed;
            if !sweep.more {
                break;
            }
            if changed > 10_000_000 {
                return Err(format!("{verb} has no end"));
            }
        }
        let expected = match verb {
            "make_due" => self.reference.make_due(),
            "lapse_leases" => {
                let (crashed, told) = self.reference.lapse();
                // A store may count the silent end of a revoked lease or not.
                if !(crashed.len()..=crashed.len() + told.len()).contains(&changed) {
                    return Err(format!("lapse_leases changed {changed}; {} leases lapsed", crashed.len()));
                }
                changed = crashed.len();
                crashed
            }
            "time_out" => self.reference.time_out(),
            "expire" => self.reference.expire(),
            _ => {
                let pruned = self.reference.prune();
                // Idempotency keys past their window count too.
                if changed < pruned.len() {
                    return Err(format!("prune changed {changed}; {} tasks are past their retention", pruned.len()));
                }
                changed = pruned.len();
                pruned
            }
        };
        same!(changed, expected.len(), "{verb}");
        if matches!(verb, "lapse_leases" | "time_out") {
            for item in &expected {
                self.reference.items[*item].percent = None;
            }
        }
        self.count(verb, expected.len());
        self.touched.extend(expected);
        Ok(())
    }

    pub(super) async fn deregister(&mut self, worker: usize) -> Verdict {
        let id: WorkerId = self.workers[worker].id;
        self.rig.store.deregister_worker(id).await.map_err(|error| format!("deregister was refused: {error}"))?;
        for item in self.reference.live.clone() {
            match self.reference.items[item].lease {
                Some(held) if held.worker == worker && held.revoked => self.reference.acknowledge(item),
                Some(held) if held.worker == worker => {
                    self.reference.release(item);
                    self.reference.items[item].percent = None;
                    self.touched.insert(item);
                }
                Some(_) | None => {}
            }
        }
        register(&self.rig, &self.workers[worker]).await;
        Ok(())
    }

    pub(super) async fn reopen(&mut self) -> Verdict {
        let Some(rig) = self.rig.reopen().await else { return Ok(()) };
        self.rig = rig;
        self.count("restarts", 1);
        // Nothing lapses and nothing times out for one lease after a start, and every lease
        // begins anew.
        let until = self.reference.now + LEASE;
        for item in &self.reference.live {
            if let Some(held) = &mut self.reference.items[*item].lease {
                held.expires_at = until;
                held.deadline = held.deadline.max(until);
            }
        }
        self.reference.forgiven_until = until;
        // Leases of any length are equal from here on, whatever the store gave them.
        for worker in 0..self.workers.len() {
            self.heartbeat(worker, None).await?;
        }
        self.compare_all().await
    }
}
