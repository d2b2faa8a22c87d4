//! Events as they are packed: all of a transaction in one entry, whose time they share.

use std::borrow::Cow;

use windlass_cluster::backend::EventRow;
use windlass_core::actor::Actor;
use windlass_core::event::{Change, Event};
use windlass_core::ids::TaskId;
use windlass_core::time::Timestamp;

use crate::error::Damaged;
use crate::rows;

type Packed<'a> = (TaskId, u32, Actor, Cow<'a, Change>);

/// The events of a transaction.
pub(crate) fn pack(row: &EventRow) -> Vec<u8> {
    let events: Vec<Packed<'_>> = row
        .events
        .iter()
        .map(|event| (event.task_id, event.version, event.actor, Cow::Borrowed(&event.change)))
        .collect();
    rows::encode(&(row.at, events))
}

/// The events of a transaction, and when it was.
pub(crate) fn unpack(bytes: &[u8]) -> Result<(Timestamp, Vec<Event>), Damaged> {
    let (at, events): (Timestamp, Vec<Packed<'_>>) = rows::decode(bytes)?;
    let events = events.into_iter().map(|(task_id, version, actor, change)| Event {
        task_id,
        version,
        at,
        actor,
        change: change.into_owned(),
    });
    Ok((at, events.collect()))
}
