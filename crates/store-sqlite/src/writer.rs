//! The writer thread: takes whatever has arrived, one transaction at a time.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use windlass_core::store::StoreError;
use windlass_ledger::batch::{Operation, Writer};
use windlass_ledger::store::Inbox;

use crate::checkpoint::Checkpoints;
use crate::journal::SqliteJournal;
use crate::reader::Readers;

/// Calls that may wait for the writer; beyond that, callers wait to be let in.
const WAITING: usize = 4_096;
/// Calls taken at a time.
const BATCH: usize = 1_024;
/// Naps shorter than this are not worth the trouble.
const SHORTEST_NAP: Duration = Duration::from_micros(200);
/// Items in one transaction: more would make the first wait for the last.
const ITEMS: usize = 8_192;

enum Message {
    Operation(Box<dyn Operation>),
    Close(oneshot::Sender<()>),
}

/// The way to the writer thread.
pub(crate) struct WriterInbox {
    sender: mpsc::Sender<Message>,
    /// What must not be refused and cannot wait: releases of claims that nobody took.
    later: mpsc::UnboundedSender<Box<dyn Operation>>,
    closed: Mutex<bool>,
}

/// Starts the thread. It holds the folder's lock until it ends.
pub(crate) fn start(
    mut writer: Writer<SqliteJournal>,
    mut checkpoints: Checkpoints,
    readers: Arc<Readers>,
    on_fatal: Arc<dyn Fn(&str) + Send + Sync>,
    lock: File,
) -> io::Result<WriterInbox> {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    let (later, mut left_over) = mpsc::unbounded_channel();
    // The thread holds the folder's lock until it ends.
    thread::Builder::new().name("windlass-writer".into()).spawn(move || {
        let _told_if_it_panics = TellIfPanicking(Arc::clone(&on_fatal));
        let mut arrived = Vec::with_capacity(BATCH);
        let wakes_us = Waker::from(Arc::new(Unpark(thread::current())));
        while let Some(due) = wait(&mut receiver, &mut arrived, &writer, &wakes_us) {
            if due && let Err(error) = writer.wake() {
                writer.close();
                readers.close();
                on_fatal(&error.reason);
                return;
            }
            let mut close = None;
            let mut operations = Vec::with_capacity(arrived.len());
            for message in arrived.drain(..) {
                match message {
                    Message::Operation(operation) => operations.push(operation),
                    Message::Close(done) => close = Some(done),
                }
            }
            while let Ok(operation) = left_over.try_recv() {
                operations.push(operation);
            }
            for batch in bounded(operations) {
                if let Err(error) = writer.run(batch) {
                    writer.close();
                    readers.close();
                    on_fatal(&error.reason);
                    return;
                }
                checkpoints.after_commit(writer.journal().connection());
            }
            if let Some(done) = close {
                writer.close();
                readers.close();
                // The last connection to close copies the WAL into the file and removes it.
                drop(checkpoints);
                drop(writer);
                drop(lock);
                let _ = done.send(());
                return;
            }
        }
    })?;
    Ok(WriterInbox { sender, later, closed: Mutex::new(false) })
}

/// Wakes the thread that waits for calls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for calls, or until something opens by itself (then the answer is true). `None` when nobody can call any more.
fn wait(
    receiver: &mut mpsc::Receiver<Message>,
    arrived: &mut Vec<Message>,
    writer: &Writer<SqliteJournal>,
    wakes_us: &Waker,
) -> Option<bool> {
    let mut context = Context::from_waker(wakes_us);
    loop {
        match receiver.poll_recv_many(&mut context, arrived, BATCH) {
            Poll::Ready(0) => return None,
            Poll::Ready(_) => return Some(false),
            Poll::Pending => {}
        }
        match writer.wake_in() {
            None => thread::park(),
            Some(left) if left.is_zero() => return Some(true),
            Some(left) => thread::park_timeout(left.max(SHORTEST_NAP)),
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
struct TellIfPanicking(Arc<dyn Fn(&str) + Send + Sync>);

impl Drop for TellIfPanicking {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)("the writer panicked");
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
