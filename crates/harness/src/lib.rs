//! Tests a running Windlass over real HTTP, as a black box.
//!
//! This crate knows the HTTP interface and nothing else: it depends on no other Windlass crate, so that a mistake in
//! them cannot hide in here too. It owns the program `windlass-crash`, which kills the server again and again under load,
//! records every call ([`history`]) and proves from the record that nothing was lost, doubled or made up ([`checker`]).

pub mod checker;
pub mod clock;
pub mod crash;
pub mod error;
pub mod history;
pub mod http;
pub mod random;
