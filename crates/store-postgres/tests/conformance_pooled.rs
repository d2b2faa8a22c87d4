//! The store conformance suite against PostgreSQL behind a pooler that hands out connections by the transaction, on two
//! nodes: every call goes to another node than the one before.

mod schemas;

windlass_testkit::conformance_suite!(crate::schemas::Schemas::new(crate::schemas::pooled(), 2));
