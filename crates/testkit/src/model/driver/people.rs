//! What people do to tasks.

use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, Cancelled, ChangeError, Requeue};

use super::{Driver, UNENDED, Verdict, WAITING};
use crate::fixtures::{json, priority};
use crate::model::operation::{Wish, choose};

impl Driver {
    /// Mostly a task that can be changed so, now and then any.
    pub(super) fn some_task(&self, pick: u32, apt: &[Status]) -> Option<usize> {
        let fits = |item: &usize| {
            let known = &self.reference.items[*item];
            !known.gone && apt.contains(&known.status)
        };
        let named = |item: usize| (self.reference.items[item].name, item);
        let all = || (0..self.reference.items.len()).rev();
        let apt = choose(pick, all().filter(fits).take(40).map(named));
        if pick.is_multiple_of(4) {
            choose(pick, all().map(named))
        } else {
            apt.or_else(|| choose(pick, all().map(named)))
        }
    }

    pub(super) fn change_error(&self, item: usize, allowed: &[Status]) -> Result<(), ChangeError> {
        let known = &self.reference.items[item];
        if self.reference.is_over(item) {
            Err(ChangeError::UnknownTask)
        } else if allowed.contains(&known.status) {
            Ok(())
        } else {
            Err(ChangeError::WrongStatus(known.status))
        }
    }

    pub(super) async fn cancel(&mut self, picks: &[u32]) -> Verdict {
        let items: Vec<usize> = picks.iter().filter_map(|pick| self.some_task(*pick, &UNENDED)).collect();
        let ids = items.iter().map(|item| self.reference.items[*item].id).collect();
        let answers = self.rig.store.cancel(ids, Actor::Api).await.map_err(|error| error.to_string())?;
        for (item, answer) in items.into_iter().zip(answers) {
            let was_executing = self.reference.items[item].status == Status::Executing;
            let allowed = self.change_error(item, &UNENDED);
            same!(answer, allowed.map(|()| Cancelled { was_executing }), "cancel of task {item}");
            if allowed.is_ok() {
                self.reference.cancel(item);
                self.count("cancelled", 1);
            }
            self.touched.insert(item);
        }
        Ok(())
    }

    pub(super) async fn amend(&mut self, pick: u32, level: Option<u64>, delay: Option<Duration>) -> Verdict {
        let Some(item) = self.some_task(pick, &WAITING) else { return Ok(()) };
        let (priority, run_at) = (level.map(priority), delay.map(|delay| self.reference.now + delay));
        let amendment = Amendment { priority, run_at, tags: None };
        let answer = self.rig.amend(self.reference.items[item].id, amendment).await;
        let allowed = self.change_error(item, &WAITING);
        same!(answer, allowed, "amendment of task {item}");
        if allowed.is_ok() {
            self.reference.amend(item, priority, run_at);
            self.count("amended", 1);
        }
        self.touched.insert(item);
        Ok(())
    }

    pub(super) async fn requeue(&mut self, pick: u32, wish: Wish) -> Verdict {
        let Wish { only_dead, reset_retries, priority: level, edit, delay } = wish;
        let allowed_from: &[Status] =
            if only_dead { &[Status::DeadLetter] } else { &[Status::DeadLetter, Status::Failed, Status::Scheduled] };
        let Some(item) = self.some_task(pick, allowed_from) else { return Ok(()) };
        // Whether a replay of an expired task expires again is not the model's business.
        if self.reference.items[item].spec.expires_at.is_some() {
            return Ok(());
        }
        // The lease of a cancelled task cannot be in the way: what was cancelled is not replayed.
        let priority: Option<Priority> = level.map(priority);
        let parameters = edit.then(|| json(r#"{"edited":true}"#));
        let id = self.reference.items[item].id;
        let wish = Requeue {
            task: id,
            only_dead,
            reset_retries,
            priority,
            parameters: parameters.clone(),
            note: None,
            delay,
            by_rule: false,
        };
        let answer = self.rig.requeue(wish).await;
        let allowed = self.change_error(item, allowed_from).and_then(|()| self.rival_error(item));
        same!(answer, allowed, "requeue of task {item}");
        if allowed.is_ok() {
            self.reference.requeue(item, reset_retries, priority, delay);
            if let Some(parameters) = parameters {
                self.reference.items[item].spec.parameters = parameters;
            }
            self.count("requeued", 1);
        }
        self.touched.insert(item);
        Ok(())
    }

    /// What has ended takes its unique key again, unless another has it.
    fn rival_error(&self, item: usize) -> Result<(), ChangeError> {
        let ended = self.reference.items[item].status.is_ended();
        match self.reference.rival(item).filter(|_| ended) {
            Some(rival) => Err(ChangeError::UniqueConflict(self.reference.items[rival].id)),
            None => Ok(()),
        }
    }

    pub(super) async fn bury(&mut self, pick: u32) -> Verdict {
        let Some(item) = self.some_task(pick, &WAITING) else { return Ok(()) };
        let answer = self.rig.bury(self.reference.items[item].id, "out").await;
        let allowed = self.change_error(item, &WAITING);
        same!(answer, allowed, "dead-lettering of task {item}");
        if allowed.is_ok() {
            self.reference.bury(item);
        }
        self.touched.insert(item);
        Ok(())
    }

    pub(super) async fn discard(&mut self, pick: u32) -> Verdict {
        let Some(item) = self.some_task(pick, &[Status::DeadLetter]) else { return Ok(()) };
        let answer = self.rig.discard(self.reference.items[item].id).await;
        let allowed = self.change_error(item, &[Status::DeadLetter]);
        same!(answer, allowed, "discarding of task {item}");
        if allowed.is_ok() {
            self.reference.discard(item);
        }
        self.touched.insert(item);
        Ok(())
    }
}
