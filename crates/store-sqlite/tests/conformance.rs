//! The store conformance suite against SQLite.

mod common;

windlass_testkit::conformance_suite!(crate::common::Folders::default());
