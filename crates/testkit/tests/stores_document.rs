//! `docs/stores.md` has a line for every behaviour and a mark for every store.

use std::path::Path;

use windlass_testkit::conformance::results::{BEGINS, table};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stores.md");

#[test]
fn the_table_is_that_of_the_suite() {
    let document = std::fs::read_to_string(DOCUMENT).expect("the document is there");
    let (before, _) = document.split_once(BEGINS).expect("the document has the table");
    // Written only from results of real runs; compared with what must be true of every store.
    if let (Ok(_), Ok(results)) = (std::env::var("WINDLASS_WRITE_DOCS"), std::env::var("WINDLASS_SUITE_RESULTS")) {
        let passed = |store: &str, name: String| Path::new(&results).join(store).join(name).exists();
        let made = table(|store, behaviour| passed(store, format!("{}::{}", behaviour.subject, behaviour.name)));
        std::fs::write(DOCUMENT, format!("{before}{made}")).expect("the document can be written");
        return;
    }
    let expected = format!("{before}{}", table(|_, _| true));
    assert!(document == expected, "docs/stores.md differs from the suite: run `make docs-stores`");
}
