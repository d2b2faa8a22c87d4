//! Hints that the log has grown: `LISTEN` on a connection of its own, `NOTIFY` with a commit now and then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_postgres::AsyncMessage;

use crate::pool::Connector;

/// At most one hint in this time from each node: a hint costs every node a look.
pub(crate) const HINT_INTERVAL: Duration = Duration::from_millis(20);
/// How often a silent listening connection is asked whether it is still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The longest wait between two tries to listen again.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// What the functions that fill the inbox say.
const INBOX: &str = "inbox";

/// What this node has heard.
pub(crate) struct Hints {
    /// Who we are: our own hints are not for us.
    own: String,
    /// The newest entry that another node spoke of.
    newest: watch::Sender<u64>,
    /// Something is in the inbox.
    inbox: Notify,
    is_listening: AtomicBool,
}

impl Hints {
    pub(crate) fn new(own: u64) -> Arc<Self> {
        Arc::new(Self {
            own: format!("{own:016x}"),
            newest: watch::Sender::new(0),
            inbox: Notify::new(),
            is_listening: AtomicBool::new(false),
        })
    }

    /// Whether hints arrive at present.
    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Relaxed)
    }

    /// Returns when another node has spoken of an entry after this one.
    pub(crate) async fn heard(&self, after: u64) {
        let mut newest = self.newest.subscribe();
        // The sender lives as long as we do.
        let _ = newest.wait_for(|newest| *newest > after).await;
    }

    /// Returns when something came into the inbox.
    pub(crate) async fn inbox(&self) {
        self.inbox.notified().await;
    }

    /// What a hint of ours says.
    pub(crate) fn message(&self, no: u64) -> String {
        format!("{}:{no}", self.own)
    }

    fn take(&self, message: &str) {
        if message == INBOX {
            self.inbox.notify_one();
            return;
        }
        let Some((node, no)) = message.split_once(':') else { return };
        if node == self.own {
            return;
        }
        if let Ok(no) = no.parse::<u64>() {
            self.newest.send_if_modified(|newest| {
                let grows = no > *newest;
                *newest = no.max(*newest);
                grows
            });
        }
    }

    /// The log was made anew: what was heard of the old one counts for nothing.
    pub(crate) fn forget(&self) {
        self.newest.send_replace(0);
    }
}

/// Listens as long as it is polled, and connects again by itself.
pub(crate) async fn listen(connector: Connector, channel: String, hints: Arc<Hints>) {
    let mut wait = Duration::from_millis(100);
    loop {
        let began = Instant::now();
        let ended = listen_once(&connector, &channel, &hints).await;
        hints.is_listening.store(false, Ordering::Relaxed);
        tracing::warn!(reason = ended, "not listening for hints of other nodes; looking more often until it works");
        if began.elapsed() > RETRY_MAX {
            wait = Duration::from_millis(100);
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}

async fn listen_once(connector: &Connector, channel: &str, hints: &Arc<Hints>) -> String {
    let (client, mut connection) = match connector.connect_raw().await {
        Ok(connected) => connected,
        Err(error) => return error.reason,
    };
    let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
    let heard = Arc::clone(hints);
    let mut reading = tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            match message {
                Ok(AsyncMessage::Notification(note)) => heard.take(note.payload()),
                Ok(_) => {}
                Err(error) => return crate::options::reason(&error),
            }
        }
        "the connection was closed".to_owned()
    });
    let _stop = StopOnDrop(reading.abort_handle());
    let begun = timeout(CHECK_INTERVAL, client.batch_execute(&format!("LISTEN \"{channel}\""))).await;
    match begun {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return crate::options::reason(&error),
        Err(_) => return "no answer in time".to_owned(),
    }
    hints.is_listening.store(true, Ordering::Relaxed);
    // Whatever was said before we listened was not heard: let everybody look once.
    hints.inbox.notify_one();
    let mut checks = interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            ended = &mut reading => return ended.unwrap_or_else(|error| error.to_string()),
            _ = checks.tick() => {
                match timeout(CHECK_INTERVAL, client.batch_execute("")).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return crate::options::reason(&error),
                    Err(_) => return "no answer in time".to_owned(),
                }
            }
        }
    }
}

struct StopOnDrop(tokio::task::AbortHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// When this node gives hints.
#[derive(Default)]
pub(crate) struct Hinting {
    last: Mutex<Option<Instant>>,
    /// The newest entry that nobody was told of; 0 if there is none.
    untold: AtomicU64,
    later: AtomicBool,
}

impl Hinting {
    /// Whether the transaction that is about to commit should carry a hint.
    pub(crate) fn is_due(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|last| last.elapsed() >= HINT_INTERVAL)
    }

    /// A hint of this entry went out. Of a later one nobody was told by it.
    pub(crate) fn told(&self, no: u64) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        // Fails only if there is nothing to change.
        let _ = self.untold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |untold| (untold <= no).then_some(0));
    }

    /// A commit went without. True if somebody must see to it that a hint follows.
    pub(crate) fn untold(&self, no: u64) -> bool {
        self.untold.fetch_max(no, Ordering::Relaxed);
        !self.later.swap(true, Ordering::AcqRel)
    }

    /// Waits until a hint may be given; says of which entry, if nobody was told in the meantime.
    pub(crate) async fn trailing(&self) -> Option<u64> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last {
            tokio::time::sleep_until(last + HINT_INTERVAL).await;
        }
        self.later.store(false, Ordering::Release);
        Some(self.untold.swap(0, Ordering::Relaxed)).filter(|no| *no > 0)
    }
}
