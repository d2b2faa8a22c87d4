//! Following the log: what was appended, who is told of it, whose turn it is to write.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Value, from_redis_value_ref};
use tokio::time::Instant;
use windlass_cluster::backend::{Entry, NodeId, Tail};

use crate::error::Failure;
use crate::inner::{Inner, lock};
use crate::keys::log;
use crate::link::Link;

/// How long a turn lasts if its holder is gone.
const TURN: Duration = Duration::from_millis(200);
/// How long a turn is waited for.
const TURN_WAIT: Duration = Duration::from_millis(150);
/// How often a turn is tried for when nobody rings.
const TURN_RETRY: Duration = Duration::from_millis(5);
/// How long the bell is waited for at a time.
const BELL_WAIT: Duration = Duration::from_millis(1_000);
/// How often a node is told of an entry that it has yet to look at.
const TELL_AGAIN: Duration = Duration::from_millis(20);
/// How often the log is looked at while the bell is broken.
const POLL: Duration = Duration::from_millis(50);

/// An entry as it is in the log.
pub(crate) struct Logged {
    pub(crate) entry: Entry,
    pub(crate) fingerprint: u64,
    /// That of the entry before.
    pub(crate) before: Option<u64>,
    /// When it was written, in seconds.
    pub(crate) at: i64,
    /// Which tags it touches.
    pub(crate) tags: Vec<String>,
}

type Fields = Vec<Vec<u8>>;

/// The number of an id `NO-0`.
pub(crate) fn number(id: &str) -> Result<u64, Failure> {
    let number = id.split('-').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| Failure::odd(format!("the log has an entry {id}")))
}

/// Number and fingerprint, as in `7:0123456789abcdef`.
pub(crate) fn mark(text: &str) -> Result<(u64, Option<u64>), Failure> {
    let (no, fingerprint) = text.split_once(':').unwrap_or((text, ""));
    let no = if no.is_empty() { Ok(0) } else { no.parse() };
    let no = no.map_err(|_| Failure::odd(format!("the mark {text} makes no sense")))?;
    Ok((no, u64::from_str_radix(fingerprint, 16).ok()))
}

fn logged(id: &str, fields: &[Vec<u8>]) -> Result<Logged, Failure> {
    let odd = || Failure::odd(format!("the entry {id} of the log makes no sense"));
    let field = |name: &[u8]| fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1]);
    let head = field(b"h").and_then(|head| std::str::from_utf8(head).ok()).ok_or_else(odd)?;
    let mut parts = head.split(' ');
    let mut next_hex = || parts.next().map(|part| u64::from_str_radix(part, 16).ok()).ok_or_else(odd);
    let (fingerprint, before, node) = (next_hex()?, next_hex()?, next_hex()?);
    let at = parts.next().and_then(|part| part.parse().ok()).ok_or_else(odd)?;
    let tags = field(b"t").and_then(|tags| std::str::from_utf8(tags).ok()).unwrap_or_default();
    let redo = field(b"r").cloned().ok_or_else(odd)?;
    Ok(Logged {
        entry: Entry { no: number(id)?, node: NodeId(node.ok_or_else(odd)?), redo },
        fingerprint: fingerprint.ok_or_else(odd)?,
        before,
        at,
        tags: tags.split_ascii_whitespace().map(str::to_owned).collect(),
    })
}

impl Inner {
    /// Entries from one number to another, both included.
    pub(crate) async fn entries(&self, from: &str, to: &str, limit: usize) -> Result<Vec<Logged>, Failure> {
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys.log(log::LOG)).arg(from).arg(to).arg("COUNT").arg(limit);
        let found: Vec<(String, Fields)> = self.reads.command(&range).await?;
        found.iter().map(|(id, fields)| logged(id, fields)).collect()
    }

    /// The last entry.
    pub(crate) async fn last_entry(&self) -> Result<Option<Logged>, Failure> {
        let mut range = redis::cmd("XREVRANGE");
        range.arg(self.keys.log(log::LOG)).arg("+").arg("-").arg("COUNT").arg(1);
        let found: Vec<(String, Fields)> = self.reads.command(&range).await?;
        found.first().map(|(id, fields)| logged(id, fields)).transpose()
    }

    pub(crate) async fn tail(&self, after: u64, limit: usize) -> Result<Tail, Failure> {
        let mut commands = redis::pipe();
        commands.cmd("XRANGE").arg(self.keys.log(log::LOG)).arg(format!("({after}-0")).arg("+").arg("COUNT").arg(limit);
        commands.cmd("HGET").arg(self.keys.log(log::META)).arg("last");
        let (found, last): (Vec<(String, Fields)>, Option<String>) = self.reads.pipeline(&commands).await?;
        let (last_no, last_print) = mark(last.as_deref().unwrap_or_default())?;
        let ours = self.known.get(after);
        let differs = |theirs: Option<u64>| ours.is_some() && theirs.is_some() && ours != theirs;
        if last_no < after || (last_no == after && differs(last_print)) {
            return Ok(self.lost(after, last_no));
        }
        let mut entries = Vec::with_capacity(found.len());
        let mut next = after + 1;
        for (id, fields) in &found {
            let logged = logged(id, fields)?;
            if logged.entry.no == after + 1 && differs(logged.before) {
                return Ok(self.lost(after, last_no));
            }
            if logged.entry.no != next {
                // Trimmed: this node was away for too long.
                return Ok(Tail::Gone);
            }
            next += 1;
            self.known.note(logged.entry.no, logged.fingerprint);
            self.touch(logged.entry.no, logged.tags.iter().map(String::as_str));
            entries.push(logged.entry);
        }
        self.ring(next - 1);
        Ok(Tail::Entries(entries))
    }

    /// The log is not the one that this node has followed: a failover lost its end.
    fn lost(&self, after: u64, last: u64) -> Tail {
        // If others have written since, how many were lost is not known, but at least the one we were at.
        let lost = after.saturating_sub(last).max(1);
        self.lost_entries.fetch_add(lost, Ordering::Relaxed);
        tracing::error!(
            known = after,
            found = last,
            lost,
            "the log of the store ends before entries that were acknowledged: a failover lost them"
        );
        self.forget();
        Tail::Gone
    }

    /// Somebody knows that the log has an entry with this number.
    pub(crate) fn ring(&self, no: u64) {
        self.bell.send_if_modified(|last| {
            let is_new = no > *last;
            *last = no.max(*last);
            is_new
        });
    }

    pub(crate) async fn grown(&self, after: u64) {
        let mut bell = self.bell.subscribe();
        let last = *bell.borrow_and_update();
        if last > after && self.told.swap(last, Ordering::Relaxed) != last {
            return;
        }
        // Who was told and has yet to look is not told again and again.
        let span = if last > after {
            TELL_AGAIN
        } else if self.bell_works.load(Ordering::Relaxed) {
            BELL_WAIT
        } else {
            POLL
        };
        // Either way the caller looks at the log next.
        if let Ok(Ok(last)) = tokio::time::timeout(span, bell.wait_for(|no| *no > after.max(last))).await {
            self.told.store(*last, Ordering::Relaxed);
        }
    }

    /// Listens for entries, on a connection of its own because it waits on the server.
    pub(crate) async fn listen(&self, link: &Link) {
        let bell = self.keys.log(log::BELL);
        loop {
            let heard = self.listen_once(link, &bell).await;
            self.bell_works.store(heard.is_ok(), Ordering::Relaxed);
            if heard.is_err() {
                tokio::time::sleep(POLL).await;
            }
        }
    }

    async fn listen_once(&self, link: &Link, bell: &str) -> Result<(), Failure> {
        // After a failover the log may be shorter, so where to listen from is asked for.
        let last: Option<String> = link.command(redis::cmd("HGET").arg(self.keys.log(log::META)).arg("last")).await?;
        let (mut last, _) = mark(last.as_deref().unwrap_or_default())?;
        self.ring(last);
        loop {
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT").arg(1).arg("BLOCK").arg(BELL_WAIT.as_millis() as u64);
            read.arg("STREAMS").arg(bell).arg(format!("{last}-0"));
            let heard: Value = link.command(&read).await?;
            if heard == Value::Nil {
                return Ok(());
            }
            let heard: Vec<(String, Vec<(String, Fields)>)> =
                from_redis_value_ref(&heard).map_err(|error| Failure::odd(error.to_string()))?;
            for (id, _) in heard.iter().flat_map(|(_, entries)| entries) {
                last = number(id)?;
            }
            self.ring(last);
        }
    }

    pub(crate) async fn turn(&self, after: u64, limit: usize) -> Result<Tail, Failure> {
        let mut token = vec![0; 8];
        getrandom::fill(&mut token).map_err(|error| Failure::before(format!("no randomness: {error}")))?;
        let mut set = redis::cmd("SET");
        set.arg(self.keys.log(log::TURN)).arg(token.as_slice()).arg("NX").arg("PX").arg(TURN.as_millis() as u64);
        let deadline = Instant::now() + TURN_WAIT;
        let mut bell = self.bell.subscribe();
        loop {
            let taken: Value = self.writes.command(&set).await?;
            if taken != Value::Nil {
                *lock(&self.turn) = Some(token);
                break;
            }
            if Instant::now() >= deadline {
                break;
            }
            // A commit ends a turn and rings.
            let _ = tokio::time::timeout(TURN_RETRY, bell.changed()).await;
        }
        self.tail(after, limit).await
    }

    pub(crate) async fn pass(&self) {
        if let Some(token) = self.take_turn() {
            // It ends by itself if this cannot be done.
            let _: Result<i64, Failure> =
                self.writes.script(&self.scripts.release, &[self.keys.log(log::TURN)], &[token]).await;
        }
    }
}
