//! The writer thread: takes whatever has arrived, one transaction at a time.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

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
/// Calls in one transaction: more would make the first wait for the last.
const BATCH: usize = 1_024;

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
    thread::Builder::new().name("windlass-writer".into()).spawn(move || {
        let _held_until_the_end = lock;
        let mut arrived = Vec::with_capacity(BATCH);
        while receiver.blocking_recv_many(&mut arrived, BATCH) > 0 {
            let mut close = None;
            let mut batch: Vec<Box<dyn Operation>> = Vec::with_capacity(arrived.len());
            for message in arrived.drain(..) {
                match message {
                    Message::Operation(operation) => batch.push(operation),
                    Message::Close(done) => close = Some(done),
                }
            }
            while let Ok(operation) = left_over.try_recv() {
                batch.push(operation);
            }
            if let Err(error) = writer.run(batch) {
                writer.close();
                readers.close();
                on_fatal(&error.reason);
                return;
            }
            checkpoints.after_commit(writer.journal().connection());
            if let Some(done) = close {
                writer.close();
                readers.close();
                // The last connection to close copies the WAL into the file and removes it.
                drop(checkpoints);
                drop(writer);
                drop(_held_until_the_end);
                let _ = done.send(());
                return;
            }
        }
    })?;
    Ok(WriterInbox { sender, later, closed: Mutex::new(false) })
}

#[async_trait]
impl Inbox for WriterInbox {
    async fn send(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        let closed = |_| StoreError::not_applied("the store is closed");
        self.sender.send(Message::Operation(operation)).await.map_err(closed)
    }

    fn send_later(&self, operation: Box<dyn Operation>) {
        match self.sender.try_send(Message::Operation(operation)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(Message::Operation(operation))) => {
                // The writer is busy, so it will look here after its next batch. If it has
                // ended instead, there is no lease left to give back.
                let _ = self.later.send(operation);
            }
            Err(_) => {}
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
