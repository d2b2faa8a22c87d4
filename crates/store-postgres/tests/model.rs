//! The reference model against PostgreSQL, restarts included, on two nodes: straight to the server and behind a pooler that
//! hands out connections by the transaction.

mod schemas;

use schemas::Schemas;

fn check(schemas: Schemas) {
    let reports = windlass_testkit::model::check(schemas);
    for report in &reports {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
    let claimed: usize = reports.iter().filter_map(|report| report.counts.get("claimed")).sum();
    assert!(claimed > 0, "the model did some work");
}

#[test]
fn postgres_does_what_the_reference_does() {
    check(Schemas::new(schemas::direct(), 2));
}

#[test]
fn postgres_behind_a_pooler_does_what_the_reference_does() {
    check(Schemas::new(schemas::pooled(), 2));
}
