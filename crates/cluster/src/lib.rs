//! Stores that many nodes share.
//!
//! Every node has the whole ledger in memory: lanes, leases, timers, limits. What keeps the
//! nodes in step is one log in the shared database. A transaction is an entry of that log,
//! and the number of an entry is taken once: whoever is second learns what it missed, follows
//! it in memory and decides again. So every decision is made by the same code as on one
//! node, on the state of that very moment, and two nodes can never claim the same task, go
//! past a limit or break an order.

pub mod backend;
mod cache;
pub mod clock;
pub mod envelope;
mod journal;
mod node;
mod pending;

pub use node::{NodeOptions, open};
