//! The store conformance suite against a Redis Cluster, on two nodes:
//! every call goes to another node than the one before.

mod common;
mod places;

windlass_testkit::conformance_suite!(crate::places::Places::new("WINDLASS_TEST_REDIS_CLUSTER_URL", 2));
