//! The reference model against three nodes over a shared log, with restarts, and with a
//! database that loses answers to commits.

#[path = "common/shared.rs"]
mod shared;

fn check(fixture: shared::Nodes) {
    for report in windlass_testkit::model::check(fixture) {
        println!("seed {}: {:?}", report.seed, report.counts);
    }
}

#[test]
fn lost_answers_change_nothing() {
    check(shared::Nodes::new(2, 7));
}

#[test]
fn three_nodes_do_what_the_reference_does() {
    check(shared::Nodes::new(3, 0));
}
