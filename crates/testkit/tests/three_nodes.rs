//! The conformance suite against three nodes over a shared log: every call goes to another
//! node than the one before.

#[path = "common/shared.rs"]
mod shared;

windlass_testkit::conformance_suite!(crate::shared::Nodes::new(3, 0));
