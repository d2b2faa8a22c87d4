//! Natural batching: whatever was asked while the last transaction was on its way goes
//! into the next one. Nobody is answered before the commit; one bad item fails alone.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;
use windlass_core::event::Observer;
use windlass_core::ids::WorkerId;
use windlass_core::settings::Settings;
use windlass_core::store::{ClaimRequest, Claimed, Finish, Outcome, StoreError, WorkerError};

use crate::claim::Served;
use crate::finish::Arrived;
use crate::journal::{Fault, Journal, JournalError, JournalResult, Missed, Needs};
use crate::ledger::Ledger;
use crate::redo::Granted;
use crate::waiters::ClaimReply;

/// How often a transaction is begun again though no other node was first. Once is usual: a key that was taken for new. More
/// often it happens while nodes take the turn from each other, which takes a while each time.
const IN_VAIN: u32 = 20;

/// The order inside a transaction: what frees before what adds before what takes, so that
/// a waiting worker is served in the transaction of the submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Renewals: whatever waited with them, a lease that was renewed in time does not lapse. They write nothing.
    Renew,
    Finish,
    Change,
    Submit,
    Claim,
    Read,
}

/// What an operation works on.
pub(crate) struct Desk<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) journal: &'a mut dyn Journal,
    pub(crate) served: &'a mut Vec<Served>,
}

/// One call on its way through the writer.
pub trait Operation: Send {
    /// Whether it may write.
    fn writes(&self) -> bool;
    /// Its place inside a transaction.
    fn rank(&self) -> u8;
    /// How many items it has: what a transaction is bounded by.
    fn weight(&self) -> usize;
    /// Adds the rows that it will ask for, as far as that can be known.
    fn needs(&self, _: &Ledger, _: &mut Needs) {}
    /// Whether its answer, as it stands, is only right if no other node has written meanwhile.
    fn must_be_current(&self) -> bool {
        true
    }
    /// Does it inside the open transaction. May be run again after a roll-back.
    fn run(&mut self, ledger: &mut Ledger, journal: &mut dyn Journal, served: &mut ServedClaims) -> JournalResult<()>;
    /// Tells the caller, after the commit or the failure. May have something left to do.
    fn answer(self: Box<Self>, ledger: &mut Ledger, failure: Option<&StoreError>) -> Option<Box<dyn Operation>>;
}

/// Claims that were waiting and got their answer in this transaction.
#[derive(Default)]
pub struct ServedClaims(Vec<Served>);

/// A call with input, work and reply.
pub(crate) struct Call<I, O> {
    pub(crate) order: Order,
    pub(crate) weight: usize,
    pub(crate) input: I,
    pub(crate) needs: fn(&Ledger, &I, &mut Needs),
    pub(crate) work: fn(&mut Desk<'_>, &I) -> JournalResult<O>,
    pub(crate) output: Option<O>,
    pub(crate) reply: oneshot::Sender<Result<O, StoreError>>,
}

impl<I: Send, O: Send> Operation for Call<I, O> {
    fn writes(&self) -> bool {
        !matches!(self.order, Order::Read | Order::Renew)
    }

    fn rank(&self) -> u8 {
        self.order as u8
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn needs(&self, ledger: &Ledger, needs: &mut Needs) {
        (self.needs)(ledger, &self.input, needs);
    }

    fn run(&mut self, ledger: &mut Ledger, journal: &mut dyn Journal, served: &mut ServedClaims) -> JournalResult<()> {
        let mut desk = Desk { ledger, journal, served: &mut served.0 };
        self.output = Some((self.work)(&mut desk, &self.input)?);
        Ok(())
    }

    fn answer(self: Box<Self>, _: &mut Ledger, failure: Option<&StoreError>) -> Option<Box<dyn Operation>> {
        let outcome = match (failure, self.output) {
            (None, Some(output)) => Ok(output),
            (Some(error), _) => Err(error.clone()),
            (None, None) => Err(StoreError::unknown("the call was not carried out")),
        };
        // Whoever is gone does not need to know.
        let _ = self.reply.send(outcome);
        None
    }
}

/// A claim: answered at once, or put in the line of those that wait.
pub(crate) struct ClaimCall {
    pub(crate) request: ClaimRequest,
    pub(crate) outcome: Option<Result<Claimed, WorkerError>>,
    pub(crate) reply: ClaimReply,
}

impl Operation for ClaimCall {
    fn writes(&self) -> bool {
        true
    }

    fn rank(&self) -> u8 {
        Order::Claim as u8
    }

    fn weight(&self) -> usize {
        self.request.up_to.max(1)
    }

    /// One that waits is served when there is something, whoever wrote it.
    fn must_be_current(&self) -> bool {
        !self.request.wait || matches!(self.outcome, Some(Err(_)))
    }

    fn run(&mut self, ledger: &mut Ledger, journal: &mut dyn Journal, _: &mut ServedClaims) -> JournalResult<()> {
        // What an earlier run got was rolled back with it.
        self.outcome = None;
        if self.reply.is_closed() {
            return Ok(());
        }
        self.outcome = Some(ledger.try_claim(journal, &self.request)?);
        Ok(())
    }

    fn answer(self: Box<Self>, ledger: &mut Ledger, failure: Option<&StoreError>) -> Option<Box<dyn Operation>> {
        let Self { request, outcome, reply } = *self;
        match (failure, outcome) {
            (Some(error), _) => {
                let _ = reply.send(Err(error.clone().into()));
                None
            }
            (None, None) => None,
            (None, Some(Ok(claimed))) if request.wait && claimed.tasks.is_empty() && claimed.cancel.is_empty() => {
                ledger.wait_for_work(request, reply);
                None
            }
            (None, Some(outcome)) => deliver(request.worker, reply, outcome),
        }
    }
}

/// Hands a claim over; if nobody takes it, its tasks go back to their places.
fn deliver(worker: WorkerId, reply: ClaimReply, outcome: Result<Claimed, WorkerError>) -> Option<Box<dyn Operation>> {
    let unclaimed = reply.send(outcome).err()?.ok()?;
    give_back(worker, &unclaimed)
}

/// The operation that releases what a claim got.
pub(crate) fn give_back(worker: WorkerId, claimed: &Claimed) -> Option<Box<dyn Operation>> {
    if claimed.tasks.is_empty() {
        return None;
    }
    let results: Vec<Arrived> =
        claimed.tasks.iter().map(|task| Finish::new(task.id, task.token, Outcome::Released).into()).collect();
    let (reply, _) = oneshot::channel();
    Some(Box::new(Call {
        order: Order::Finish,
        weight: results.len(),
        input: (worker, results),
        needs: |ledger, (_, results), needs| ledger.needs_of_results(results, needs),
        work: |desk, (worker, results)| desk.ledger.finish(desk.journal, *worker, results).map(|_| ()),
        output: None,
        reply,
    }))
}

/// Puts a task back in its place whose worker never heard that it has it: its lease would lapse otherwise, and that
/// counts as a crash.
struct GiveBack {
    granted: Granted,
    result: [Arrived; 1],
}

impl GiveBack {
    fn operation(granted: Granted) -> Box<dyn Operation> {
        let result = [Finish::new(granted.task, granted.token, Outcome::Released).into()];
        Box::new(Self { granted, result })
    }
}

impl Operation for GiveBack {
    fn writes(&self) -> bool {
        true
    }

    fn rank(&self) -> u8 {
        Order::Finish as u8
    }

    fn weight(&self) -> usize {
        1
    }

    fn needs(&self, ledger: &Ledger, needs: &mut Needs) {
        ledger.needs_of_results(&self.result, needs);
    }

    fn run(&mut self, ledger: &mut Ledger, journal: &mut dyn Journal, _: &mut ServedClaims) -> JournalResult<()> {
        ledger.finish(journal, self.granted.worker, &self.result).map(|_| ())
    }

    fn answer(self: Box<Self>, ledger: &mut Ledger, failure: Option<&StoreError>) -> Option<Box<dyn Operation>> {
        if failure.is_some() {
            ledger.unheard.push(self.granted);
        }
        None
    }
}

/// What is shared between the writer and everybody else.
pub struct Shared {
    /// The settings as last committed.
    pub settings: RwLock<Arc<Settings>>,
}

/// What a transaction may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everything; claims that wait are served too.
    Write,
    /// Only what writes nothing.
    Memory,
}

/// The single writer: a ledger, its journal, and who watches.
pub struct Writer<J> {
    ledger: Ledger,
    journal: J,
    observer: Arc<dyn Observer>,
    shared: Arc<Shared>,
}

impl<J: Journal> Writer<J> {
    /// A writer with what it shares.
    pub fn new(ledger: Ledger, journal: J, observer: Arc<dyn Observer>) -> (Self, Arc<Shared>) {
        let shared = Arc::new(Shared { settings: RwLock::new(Arc::clone(ledger.settings())) });
        (Self { ledger, journal, observer, shared: Arc::clone(&shared) }, shared)
    }

    /// Its journal, between transactions.
    pub fn journal(&mut self) -> &mut J {
        &mut self.journal
    }

    /// Carries out a batch in one transaction and answers everybody. An error means that
    /// nobody knows what is on disk: the process must stop.
    pub fn run(&mut self, mut batch: Vec<Box<dyn Operation>>) -> Result<(), JournalError> {
        let mut gave_back = false;
        loop {
            while !batch.is_empty() {
                batch.sort_by_key(|operation| operation.rank());
                let mut left = Vec::new();
                self.run_or_split(batch, &mut left)?;
                batch = left;
            }
            // Once per call: what cannot be given back now is tried again with the next one.
            if gave_back || self.ledger.unheard.is_empty() {
                return Ok(());
            }
            gave_back = true;
            batch = std::mem::take(&mut self.ledger.unheard).into_iter().map(GiveBack::operation).collect();
        }
    }

    fn run_or_split(
        &mut self,
        batch: Vec<Box<dyn Operation>>,
        left: &mut Vec<Box<dyn Operation>>,
    ) -> Result<(), JournalError> {
        self.attempt(batch, Access::Write, left)
    }

    fn attempt(
        &mut self,
        mut batch: Vec<Box<dyn Operation>>,
        access: Access,
        left: &mut Vec<Box<dyn Operation>>,
    ) -> Result<(), JournalError> {
        let mut served = ServedClaims::default();
        let error = match self.transact_in_turn(&mut batch, access, &mut served) {
            Ok(()) => {
                let changes = self.ledger.keep();
                self.publish();
                if !changes.is_empty() {
                    self.observer.committed(&changes);
                }
                for operation in batch {
                    left.extend(operation.answer(&mut self.ledger, None));
                }
                for Served { waiter, claimed } in served.0 {
                    left.extend(deliver(waiter.request.worker, waiter.reply, Ok(claimed)));
                }
                return Ok(());
            }
            Err(error) => error,
        };
        if error.fault == Fault::Item && batch.len() > 1 {
            let second = batch.split_off(batch.len() / 2);
            self.run_or_split(batch, left)?;
            return self.run_or_split(second, left);
        }
        // A full disk is no reason to refuse what writes nothing, such as the renewal of a lease.
        let (batch, harmless): (Vec<_>, Vec<_>) = batch.into_iter().partition(|operation| operation.writes());
        let may_go_on = error.fault != Fault::Fatal && !self.journal.is_shared();
        if may_go_on && access == Access::Write && !harmless.is_empty() {
            self.attempt(harmless, Access::Memory, left)?;
            return self.refuse(batch, &error, left);
        }
        self.refuse(batch.into_iter().chain(harmless).collect(), &error, left)
    }

    /// Carries out a transaction; whenever another node was first, catches up with it and begins again.
    fn transact_in_turn(
        &mut self,
        batch: &mut [Box<dyn Operation>],
        access: Access,
        served: &mut ServedClaims,
    ) -> JournalResult<()> {
        let mut in_vain = 0;
        loop {
            let Err(error) = self.transact(batch, access, served) else { return Ok(()) };
            self.ledger.undo();
            self.journal.roll_back();
            for served in served.0.drain(..).rev() {
                self.ledger.waiters.rejoin(served.waiter);
            }
            // Whatever became claimable in vain is still claimable.
            self.ledger.lanes_changed = true;
            if error.fault != Fault::Behind {
                return Err(error);
            }
            in_vain = if self.catch_up(true)? { 0 } else { in_vain + 1 };
            if in_vain > IN_VAIN {
                // Nobody was first: something in the batch does not fit what is stored, and never will.
                return Err(JournalError { fault: Fault::Item, ..error });
            }
        }
    }

    /// Follows what other nodes did. False if they did nothing.
    fn catch_up(&mut self, in_turn: bool) -> JournalResult<bool> {
        let mut any = false;
        loop {
            let missed = self.journal.missed(in_turn)?;
            if missed.is_empty() {
                return Ok(any);
            }
            any = true;
            for Missed { redo, own } in missed {
                let unheard = if own { self.ledger.granted_by(&redo) } else { Ok(Vec::new()) };
                let followed = unheard.and_then(|unheard| Ok((unheard, self.ledger.follow(&redo)?)));
                let (unheard, facts) =
                    followed.map_err(|damaged| JournalError { reason: damaged.to_string(), fault: Fault::Astray })?;
                self.ledger.unheard.extend(unheard);
                if !facts.is_empty() {
                    self.observer.followed(&facts);
                }
            }
            self.publish();
        }
    }

    /// Catches up with other nodes and serves claims that wait for what they did.
    pub fn follow(&mut self) -> Result<(), JournalError> {
        self.catch_up(false)?;
        let mut left = Vec::new();
        if self.ledger.lanes_changed && !self.ledger.waiters.is_empty() {
            self.run_or_split(Vec::new(), &mut left)?;
        }
        self.run(left)
    }

    /// Takes on memory that was loaded anew. Whoever waits goes on waiting.
    pub fn replace_ledger(&mut self, ledger: Ledger) {
        let old = std::mem::replace(&mut self.ledger, ledger);
        self.ledger.take_over(old);
        self.publish();
    }

    /// Sends everybody away who waits for work: they would wait in vain.
    pub fn end_polls(&mut self) {
        for waiter in self.ledger.waiters.drain() {
            let _ = waiter.reply.send(Ok(Claimed::default()));
        }
    }

    fn refuse(
        &mut self,
        batch: Vec<Box<dyn Operation>>,
        error: &JournalError,
        left: &mut Vec<Box<dyn Operation>>,
    ) -> Result<(), JournalError> {
        let failure = match error.fault {
            Fault::Fatal | Fault::Unknown => StoreError::unknown(error.reason.clone()),
            Fault::Refused | Fault::Item | Fault::Behind | Fault::Astray => {
                StoreError::not_applied(error.reason.clone())
            }
        };
        for operation in batch {
            left.extend(operation.answer(&mut self.ledger, Some(&failure)));
        }
        match error.fault {
            Fault::Fatal | Fault::Astray => Err(error.clone()),
            Fault::Refused | Fault::Item | Fault::Behind | Fault::Unknown => Ok(()),
        }
    }

    fn transact(
        &mut self,
        batch: &mut [Box<dyn Operation>],
        access: Access,
        served: &mut ServedClaims,
    ) -> JournalResult<()> {
        self.ledger.start();
        let shared = self.journal.is_shared();
        let has_work = shared
            || self.ledger.lanes_changed
            || self.ledger.unfinished
            || batch.iter().any(|operation| operation.writes());
        let writes = has_work && access == Access::Write;
        if writes {
            self.journal.begin()?;
        }
        if shared {
            let mut needs = Needs::default();
            for operation in batch.iter() {
                operation.needs(&self.ledger, &mut needs);
            }
            self.journal.prefetch(&needs)?;
        }
        for operation in &mut *batch {
            operation.run(&mut self.ledger, &mut self.journal, served)?;
        }
        if writes {
            self.ledger.serve_waiters(&mut self.journal, &mut served.0)?;
            self.ledger.settle_keys();
            self.ledger.seal(&mut self.journal)?;
            if shared {
                let redo = self.ledger.redo(self.journal.has_changes());
                let tells = redo.is_some();
                self.journal.append(redo, batch.iter().any(|operation| operation.must_be_current()));
                self.journal.commit()?;
                if tells {
                    self.ledger.told_others();
                }
            } else {
                self.journal.commit()?;
                self.ledger.told_others();
            }
        }
        Ok(())
    }

    /// How long until something opens by itself that a waiting claim may wait for.
    pub fn wake_in(&self) -> Option<Duration> {
        self.ledger.wake_at().map(|at| at.since(self.ledger.clock.now()))
    }

    /// Serves waiting claims that something has opened for, if it has.
    pub fn wake(&mut self) -> Result<(), JournalError> {
        if self.ledger.wake_at().is_none_or(|at| at > self.ledger.clock.now()) {
            return Ok(());
        }
        let mut left = Vec::new();
        self.run_or_split(Vec::new(), &mut left)?;
        self.run(left)
    }

    fn publish(&self) {
        let mut published = self.shared.settings.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !Arc::ptr_eq(&published, self.ledger.settings()) {
            *published = Arc::clone(self.ledger.settings());
        }
    }

    /// Sends everybody away who waits. To be called last.
    pub fn close(&mut self) {
        for waiter in self.ledger.waiters.drain() {
            let _ = waiter.reply.send(Ok(Claimed::default()));
        }
        self.ledger.watchers.clear();
    }
}
