//! The store conformance suite against PostgreSQL.

mod schemas;

windlass_testkit::conformance_suite!(crate::schemas::Schemas::new(crate::schemas::direct(), 1));
