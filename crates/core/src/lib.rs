//! The domain of Windlass: what a task is, what may happen to it, and what a store must do.
//!
//! No I/O, no runtime, no clock of its own. Read [`transition`] (the state machine), then
//! [`store`] (the contract), then [`policy`] (which task is next).

pub mod actor;
pub mod analysis;
pub mod breaker;
pub mod error_rules;
pub mod event;
pub mod fact;
pub mod failure;
pub mod filter;
pub mod ids;
pub mod json;
pub mod keys;
pub mod lane;
pub mod limits;
pub mod names;
pub mod policy;
pub mod priority;
pub mod rate;
pub mod retention;
pub mod retry;
pub mod settings;
pub mod slew;
pub mod status;
pub mod store;
pub mod task;
pub mod time;
pub mod transition;
pub mod worker;
