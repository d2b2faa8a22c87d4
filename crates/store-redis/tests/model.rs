//! The reference model against Redis, a Redis Cluster and Valkey, restarts included, on two nodes.

mod common;
mod places;

fn check(variable: &'static str) {
    let reports = windlass_testkit::model::check(places::Places::new(variable, 2));
    for report in &reports {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
    let claimed: usize = reports.iter().filter_map(|report| report.counts.get("claimed")).sum();
    assert!(claimed > 0, "the model did some work");
}

#[test]
fn redis_does_what_the_reference_does() {
    check("WINDLASS_TEST_REDIS_URL");
}

#[test]
fn a_redis_cluster_does_what_the_reference_does() {
    check("WINDLASS_TEST_REDIS_CLUSTER_URL");
}

#[test]
fn valkey_does_what_the_reference_does() {
    check("WINDLASS_TEST_VALKEY_URL");
}
