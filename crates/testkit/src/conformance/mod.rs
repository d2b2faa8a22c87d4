//! What every store must do, one behaviour per function.
//!
//! A store crate runs all of it with one line in a test file:
//!
//! ```ignore
//! windlass_testkit::conformance_suite!(MyFixture);
//! ```
//!
//! where the expression is a value that implements [`Fixture`]. Every
//! behaviour becomes a test of its own, on a store of its own, with a clock of its own.
//! A store may differ only in what it declares as its capabilities.

use std::future::Future;
use std::sync::Arc;

use crate::rig::{Fixture, Rig};

#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod amend;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod breakers;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod cancel;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod claim;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod concurrency;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod dead_letters;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod error_rules;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod events;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod finish;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod idempotency;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod keys;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod leases;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod limits;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod maintenance;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod ordering;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod policies;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod reading;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod reasons;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod requeue;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod restart;
pub mod results;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod settings;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod submit;
mod table;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod unique;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod waiting;
#[allow(missing_docs, reason = "the table has one sentence for every behaviour")]
pub mod workers;

/// One behaviour of the suite, for documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// The subject: the file it is in.
    pub subject: &'static str,
    /// The name of the test.
    pub name: &'static str,
    /// What a store must do, in one sentence.
    pub sentence: &'static str,
}

/// All behaviours, in the order of the subjects.
pub fn behaviours() -> Vec<Behaviour> {
    crate::for_each_behaviour!(list_behaviours)
}

/// Runs one behaviour on a new store. Called by the tests that [`conformance_suite!`] makes.
///
/// [`conformance_suite!`]: crate::conformance_suite
pub fn run<F: Future<Output = ()>>(fixture: Arc<dyn Fixture>, name: &str, behaviour: impl FnOnce(Rig) -> F) {
    let label = fixture.label();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::open(fixture).await;
        let store = Arc::clone(&rig.store);
        behaviour(rig).await;
        store.close().await;
    });
    results::note(label, name);
}

/// Makes one test per behaviour against the store that the fixture opens.
#[macro_export]
macro_rules! conformance_suite {
    ($fixture:expr) => {
        fn conformance_fixture() -> ::std::sync::Arc<dyn $crate::rig::Fixture> {
            ::std::sync::Arc::new($fixture)
        }
        $crate::for_each_behaviour!($crate::conformance_tests);
    };
}

/// Expands the table of behaviours to tests. Not for use by hand.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($($subject:ident { $($name:ident: $sentence:literal,)* })*) => {
        $(mod $subject {
            $(
                #[doc = $sentence]
                #[test]
                fn $name() {
                    $crate::conformance::run(
                        super::conformance_fixture(),
                        concat!(stringify!($subject), "::", stringify!($name)),
                        $crate::conformance::$subject::$name,
                    );
                }
            )*
        })*
    };
}

macro_rules! list_behaviours {
    ($($subject:ident { $($name:ident: $sentence:literal,)* })*) => {
        vec![$($(Behaviour { subject: stringify!($subject), name: stringify!($name), sentence: $sentence },)*)*]
    };
}
use list_behaviours;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_behaviour_is_told_in_one_sentence() {
        let all = behaviours();
        assert!(all.len() > 100, "only {} behaviours", all.len());
        for behaviour in &all {
            assert!(behaviour.sentence.ends_with('.') && behaviour.sentence.len() > 20, "{behaviour:?}");
        }
    }

    /// A behaviour that is missing in the table would silently never run.
    #[test]
    fn every_behaviour_is_in_the_table() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
        for subject in behaviours().iter().map(|behaviour| behaviour.subject).collect::<std::collections::BTreeSet<_>>()
        {
            let source = std::fs::read_to_string(format!("{folder}/{subject}.rs")).expect("the subject has a file");
            for line in source.lines() {
                let Some(name) = line.strip_prefix("pub async fn ").and_then(|rest| rest.strip_suffix("(rig: Rig) {"))
                else {
                    continue;
                };
                assert!(
                    behaviours().iter().any(|known| known.subject == subject && known.name == name),
                    "{subject}::{name} is not in the table"
                );
            }
        }
    }
}
