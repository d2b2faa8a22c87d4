//! The store conformance suite against one Valkey server.

mod common;
mod places;

windlass_testkit::conformance_suite!(crate::places::Places::new("WINDLASS_TEST_VALKEY_URL", 1));
