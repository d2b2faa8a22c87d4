//! What the tests of Windlass stand on.
//!
//! - [`clock::ManualClock`]: time that only moves when a test moves it.
//! - [`fixtures`]: builders for tasks, workers and requests.
//! - [`MemoryStore`]: a complete store that forgets everything when it is dropped.
//! - [`shared_memory::SharedMemory`] and [`hopping::Hopping`]: nodes that share a database.
//! - [`rig::Rig`]: a store under test with its clock, and the short words tests speak to it.
//! - [`conformance`]: the behaviour every store must show, one test each;
//!   [`conformance_suite!`] gives a store crate all of them in one line.
//! - [`shaky::ShakyStore`]: a store that can be made to fail, for tests of outages and of many nodes.
//! - [`front`]: for a store in front of another, [`pass_on!`] has the verbs that it only passes on.
//! - [`model`]: a naive reference of the whole queue, driven beside a real store by random
//!   operations.
//!
//! Nothing here sleeps to wait: tests move the clock, call the maintenance verbs, or await
//! a future under a generous bound.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how a test fails")]
#![allow(clippy::unchecked_time_subtraction, reason = "test code: the spans are written beside each other")]

pub mod clock;
pub mod conformance;
pub mod fixtures;
pub mod front;
pub mod hopping;
pub mod memory;
pub mod model;
pub mod rig;
mod rows;
pub mod shaky;
pub mod shared_memory;

pub use clock::ManualClock;
pub use memory::MemoryStore;
pub use rig::{Fixture, Rig};
pub use shaky::{Mood, ShakyStore, SharedLead, Switch};
