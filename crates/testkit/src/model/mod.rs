//! The model test: a naive reference of the whole queue beside a real store, both driven by
//! the same random operations. Every answer is compared, and so is what each operation left;
//! now and then everything is. At the end all pauses and limits are lifted and the rest is
//! worked off: whatever is left then was stuck.
//!
//! ```ignore
//! windlass_testkit::model::check(MyFixture);
//! ```
//!
//! A failure is shortened as far as it goes and printed as a script with its seed.
//! `WINDLASS_MODEL_OPERATIONS` sets how many operations run in all, `WINDLASS_MODEL_SEED`
//! runs one seed alone.

mod driver;
mod operation;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use driver::Driver;
use operation::{Operation, script};

use crate::rig::Fixture;

/// Operations of a run unless the environment says otherwise: seconds in a debug build.
const OPERATIONS: usize = 20_000;
/// Operations under one seed: long enough for retries, replays and retention to meet.
const PER_SEED: usize = 2_500;
/// Runs that the search for a shorter script may take.
const SHRINKING_RUNS: usize = 3_000;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, usize>,
}

/// Runs the model over several seeds, as many operations as the environment asks for.
/// Panics with a short script where store and reference differ.
pub fn check(fixture: impl Fixture + 'static) -> Vec<Report> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<usize>().expect("a number"));
    let operations = number("WINDLASS_MODEL_OPERATIONS").unwrap_or(OPERATIONS);
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    if let Some(seed) = number("WINDLASS_MODEL_SEED") {
        return vec![run(&fixture, seed as u64, operations)];
    }
    let seeds = operations.div_ceil(PER_SEED).max(1);
    (1..=seeds as u64).map(|seed| run(&fixture, seed, operations / seeds)).collect()
}

/// Runs one seed. Panics with a short script where store and reference differ.
pub fn run(fixture: &Arc<dyn Fixture>, seed: u64, operations: usize) -> Report {
    let script = script(seed, operations);
    match play(fixture, &script) {
        Ok(counts) => Report { seed, counts },
        Err(failure) => {
            let (script, failure) = shorten(fixture, script, failure);
            let steps: Vec<String> = script.iter().map(|(number, step)| format!("  {number:5}  {step:?}")).collect();
            panic!(
                "store and reference differ under seed {seed} ({operations} operations):\n{}\n\n{} steps lead there:\n{}\n",
                failure.what,
                script.len(),
                steps.join("\n")
            );
        }
    }
}

/// What differs first under a seed, without the search for a shorter script.
pub fn first_difference(fixture: &Arc<dyn Fixture>, seed: u64, operations: usize) -> Option<String> {
    play(fixture, &script(seed, operations)).err().map(|failure| failure.what)
}

/// Where a script went wrong.
struct Failure {
    /// The step, or the length of the script if the last comparison found it.
    at: usize,
    what: String,
}

fn play(fixture: &Arc<dyn Fixture>, script: &[(usize, Operation)]) -> Result<BTreeMap<&'static str, usize>, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (fixture, script) = (Arc::clone(fixture), script.to_vec());
    let steps = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let progress = Arc::clone(&steps);
    runtime.block_on(async {
        // In a task of its own, so that a panic of the store is a failure like any other.
        let played = tokio::spawn(async move {
            let mut driver = Driver::new(fixture).await;
            for (at, (number, step)) in script.iter().enumerate() {
                progress.store(at, std::sync::atomic::Ordering::SeqCst);
                driver.step(*number, step).await.map_err(|what| Failure { at, what })?;
            }
            driver.compare_all().await.map_err(|what| Failure { at: script.len(), what })?;
            driver.drain().await.map_err(|what| Failure { at: script.len(), what })?;
            driver.close().await;
            Ok(driver.counts)
        });
        played.await.unwrap_or_else(|panic| {
            Err(Failure { at: steps.load(std::sync::atomic::Ordering::SeqCst), what: panic.to_string() })
        })
    })
}

/// Leaves out steps as long as the rest still fails.
fn shorten(
    fixture: &Arc<dyn Fixture>,
    mut script: Vec<(usize, Operation)>,
    mut failure: Failure,
) -> (Vec<(usize, Operation)>, Failure) {
    script.truncate(failure.at + 1);
    let mut runs = 0;
    let mut chunk = script.len() / 2;
    while chunk > 0 {
        let mut start = 0;
        while start < script.len() {
            if runs == SHRINKING_RUNS {
                return (script, failure);
            }
            runs += 1;
            let end = (start + chunk).min(script.len());
            let mut shorter = script.clone();
            shorter.drain(start..end);
            match play(fixture, &shorter) {
                Err(found) => {
                    shorter.truncate(found.at + 1);
                    (script, failure) = (shorter, found);
                }
                Ok(_) => start = end,
            }
        }
        chunk /= 2;
    }
    (script, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_script() {
        let text = |seed| format!("{:?}", script(seed, 200));
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
