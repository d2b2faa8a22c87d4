//! The queue of a single writer. Lanes and leases are in memory, every change is written to
//! a [`journal`] first and memory changes only when the write is durable.
//!
//! The embedded SQLite store and the in-memory reference store are both this ledger over
//! different journals, so that they cannot differ in what a transition does.
//!
//! A transaction: [`batch`] collects what was asked, [`finish`], [`people`], [`sweep`],
//! [`submit`] and [`claim`] do it, [`ledger`] has what they share. Where many nodes share a
//! journal, [`redo`] is what they tell each other.

pub mod archive;
pub mod batch;
mod breakers;
pub mod claim;
pub mod finish;
pub mod flows;
pub mod index;
pub mod intake;
pub mod journal;
pub mod lanes;
pub mod ledger;
pub mod people;
pub mod recover;
pub mod redo;
pub mod settings;
mod slab;
pub mod store;
pub mod submit;
pub mod sweep;
pub mod thread;
mod waiters;
mod waiting;
mod wire;
pub mod workers;
