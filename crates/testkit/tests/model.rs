//! The reference model against the store in memory.

mod common;

#[test]
fn the_store_in_memory_does_what_the_reference_does() {
    let reports = windlass_testkit::model::check(common::InMemory);
    for report in &reports {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
    let claimed: usize = reports.iter().filter_map(|report| report.counts.get("claimed")).sum();
    assert!(claimed > 0, "the model did some work");
}
