//! The store conformance suite against one Redis server.

mod common;
mod places;

windlass_testkit::conformance_suite!(crate::places::Places::new("WINDLASS_TEST_REDIS_URL", 1));
