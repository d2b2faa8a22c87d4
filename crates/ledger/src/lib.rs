//! The queue of a single writer. Lanes and leases are in memory, every change is written to
//! a [`journal`] first and memory changes only when the write is durable.
//!
//! The embedded SQLite store and the in-memory reference store are both this ledger over
//! different journals, so that they cannot differ in what a transition does.
//!
//! A transaction: [`batch`] collects what was asked, [`finish`], [`people`], [`sweep`], [`days`],
//! [`submit`] and [`claim`] do it, [`ledger`] has what they share, and `transaction` how it
//! begins and ends. Where many nodes share a journal, [`redo`] is what they tell each other.

pub mod archive;
pub mod batch;
mod breakers;
pub mod claim;
pub mod days;
mod facts;
pub mod finish;
pub mod flows;
pub mod index;
pub mod intake;
pub mod journal;
pub mod lanes;
pub mod ledger;
mod numbers;
pub mod people;
mod reading;
pub mod recover;
pub mod redo;
pub mod settings;
mod slab;
pub mod store;
pub mod submit;
pub mod sweep;
pub mod thread;
mod transaction;
mod waiters;
mod waiting;
mod wire;
pub mod workers;
