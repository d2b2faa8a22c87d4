//! The store conformance suite against the store in memory.

mod common;

windlass_testkit::conformance_suite!(crate::common::InMemory);
