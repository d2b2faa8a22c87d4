//! The reference model against SQLite, restarts included.

mod common;

#[test]
fn sqlite_does_what_the_reference_does() {
    let reports = windlass_testkit::model::check(common::Folders::default());
    for report in &reports {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
    let claimed: usize = reports.iter().filter_map(|report| report.counts.get("claimed")).sum();
    assert!(claimed > 0, "the model did some work");
}
