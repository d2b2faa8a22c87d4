//! Tests a running Windlass over real HTTP, as a black box.
//!
//! This crate knows the HTTP interface and nothing else: it depends on no other Windlass crate, so that a mistake in
//! them cannot hide in here too. It owns the programs `windlass-crash`, which kills a server again and again under load, and
//! `windlass-chaos`, which does so with several servers on one database, and with the database. Both record every call
//! ([`history`]) and prove from the record that nothing was lost, doubled or made up ([`checker`]).

pub mod chaos;
pub mod checker;
pub mod clock;
pub mod crash;
pub mod error;
pub mod history;
pub mod http;
pub mod load;
pub mod random;
