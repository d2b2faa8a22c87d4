//! The writer thread: takes whatever has arrived, one transaction at a time.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use windlass_core::store::StoreError;

use crate::batch::{Operation, Writer};
use crate::journal::{Journal, JournalError};
use crate::store::Inbox;

/// Calls that may wait for the writer; beyond that, callers wait to be let in.
const WAITING: usize = 4_096;
/// Calls taken at a time.
const BATCH: usize = 1_024;
/// Naps shorter than this are not worth the trouble.
const SHORTEST_NAP: Duration = Duration::from_micros(200);
/// Items in one transaction: more would make the first wait for the last.
const ITEMS: usize = 8_192;

/// What a kind of store adds to its writer thread.
pub trait Host<J>: Send + 'static {
    /// A transaction is over, well or badly.
    fn after_batch(&mut self, _: &mut Writer<J>) {}
    /// Waits until `arrived` is ready, until the time is up, or for no reason.
    fn wait(&mut self, up_to: Option<Duration>, arrived: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        let wakes_us = Waker::from(Arc::new(Unpark(thread::current())));
        if arrived(&mut Context::from_waker(&wakes_us)).is_ready() {
            return;
        }
        match up_to {
            None => thread::park(),
            Some(span) => thread::park_timeout(span),
        }
    }
    /// The writer cannot go on as it is. True if that was mended; else the thread ends.
    fn failed(&mut self, writer: &mut Writer<J>, error: &JournalError) -> bool;
    /// The writer thread is about to end, in good order or not, and nobody is served any more.
    fn closed(self, writer: Writer<J>);
}

enum Message {
    Operation(Box<dyn Operation>),
    Follow,
    Close(oneshot::Sender<()>),
}

/// The way to the writer thread.
pub struct WriterInbox {
    sender: mpsc::Sender<Message>,
    /// What must not be refused and cannot wait: releases of claims that nobody took.
    later: mpsc::UnboundedSender<Box<dyn Operation>>,
    /// A hint is on its way and has not been looked at.
    hinted: Arc<AtomicBool>,
    closed: Mutex<bool>,
}

impl WriterInbox {
    /// Other nodes may have written: the writer looks as soon as it can.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) && self.sender.try_send(Message::Follow).is_err() {
            // A writer that has so much to do finds out by itself.
            self.hinted.store(false, Ordering::Release);
        }
    }
}

/// Starts the thread.
pub fn start<J: Journal + 'static, H: Host<J>>(
    mut writer: Writer<J>,
    mut host: H,
    on_panic: Arc<dyn Fn() + Send + Sync>,
) -> io::Result<WriterInbox> {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    let (later, mut left_over) = mpsc::unbounded_channel();
    let hinted = Arc::new(AtomicBool::new(false));
    let hint = Arc::clone(&hinted);
    thread::Builder::new().name("windlass-writer".into()).spawn(move || {
        let _told_if_it_panics = TellIfPanicking(on_panic);
        let mut arrived = Vec::with_capacity(BATCH);
        let mut close = None;
        while close.is_none()
            && let Some(due) = wait(&mut receiver, &mut arrived, &writer, &mut host)
        {
            let mut follow = false;
            let mut operations = Vec::with_capacity(arrived.len());
            for message in arrived.drain(..) {
                match message {
                    Message::Operation(operation) => operations.push(operation),
                    Message::Follow => follow = true,
                    Message::Close(done) => close = Some(done),
                }
            }
            while let Ok(operation) = left_over.try_recv() {
                operations.push(operation);
            }
            let mut outcome = Ok(());
            if follow {
                hint.store(false, Ordering::Release);
                outcome = writer.follow();
            }
            if due && outcome.is_ok() {
                outcome = writer.wake();
            }
            if !settle(&mut writer, &mut host, outcome) {
                break;
            }
            let go_on = bounded(operations).into_iter().all(|batch| {
                let outcome = writer.run(batch);
                settle(&mut writer, &mut host, outcome)
            });
            if !go_on {
                break;
            }
        }
        writer.close();
        host.closed(writer);
        if let Some(done) = close {
            let _ = done.send(());
        }
    })?;
    Ok(WriterInbox { sender, later, hinted, closed: Mutex::new(false) })
}

/// Lets the host look at how it went; false if the writer cannot go on.
fn settle<J: Journal, H: Host<J>>(writer: &mut Writer<J>, host: &mut H, outcome: Result<(), JournalError>) -> bool {
    let goes_on = match outcome {
        Ok(()) => true,
        Err(error) => host.failed(writer, &error),
    };
    if goes_on {
        host.after_batch(writer);
    }
    goes_on
}

/// Wakes the thread that waits for calls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for calls, or until something opens by itself (then the answer is true). `None` when nobody can call any more.
fn wait<J: Journal, H: Host<J>>(
    receiver: &mut mpsc::Receiver<Message>,
    arrived: &mut Vec<Message>,
    writer: &Writer<J>,
    host: &mut H,
) -> Option<bool> {
    loop {
        let opens_in = writer.wake_in();
        let is_due = opens_in.is_some_and(|left| left.is_zero());
        let nap = opens_in.map(|left| if is_due { left } else { left.max(SHORTEST_NAP) });
        let mut count = None;
        host.wait(nap, &mut |context| receiver.poll_recv_many(context, arrived, BATCH).map(|got| count = Some(got)));
        match count {
            Some(0) => return None,
            Some(_) => return Some(false),
            None if is_due => return Some(true),
            None => {}
        }
    }
}

/// Cuts what arrived into transactions of a bounded size.
fn bounded(operations: Vec<Box<dyn Operation>>) -> Vec<Vec<Box<dyn Operation>>> {
    let mut batches = vec![Vec::with_capacity(operations.len())];
    let mut items = 0;
    for operation in operations {
        let weight = operation.weight();
        if items > 0 && items + weight > ITEMS {
            batches.push(Vec::new());
            items = 0;
        }
        items += weight;
        if let Some(batch) = batches.last_mut() {
            batch.push(operation);
        }
    }
    batches
}

/// A writer that panicked leaves memory in an unknown state: the process must stop.
struct TellIfPanicking(Arc<dyn Fn() + Send + Sync>);

impl Drop for TellIfPanicking {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

#[async_trait]
impl Inbox for WriterInbox {
    async fn send(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        let closed = |_| StoreError::not_applied("the store is closed");
        self.sender.send(Message::Operation(operation)).await.map_err(closed)
    }

    fn send_later(&self, operation: Box<dyn Operation>) {
        let sent = self.sender.try_send(Message::Operation(operation));
        if let Err(mpsc::error::TrySendError::Full(Message::Operation(operation))) = sent {
            // The writer is busy, so it will look here after its next batch. If it has ended
            // instead, there is no lease left to give back.
            let _ = self.later.send(operation);
        }
    }

    async fn close(&self) {
        {
            let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut *closed, true) {
                return;
            }
        }
        let (done, ended) = oneshot::channel();
        if self.sender.send(Message::Close(done)).await.is_ok() {
            let _ = ended.await;
        }
    }
}
