//! The conformance suite against one node over a shared log.

#[path = "common/shared.rs"]
mod shared;

windlass_testkit::conformance_suite!(crate::shared::Nodes::new(1, 0));
