//! The reference model against PostgreSQL, restarts included, on two nodes.

mod schemas;

#[test]
fn postgres_does_what_the_reference_does() {
    let reports = windlass_testkit::model::check(schemas::Schemas::new(schemas::direct(), 2));
    for report in &reports {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
    let claimed: usize = reports.iter().filter_map(|report| report.counts.get("claimed")).sum();
    assert!(claimed > 0, "the model did some work");
}
