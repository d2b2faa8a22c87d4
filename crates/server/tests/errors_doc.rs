//! The documentation lists every error code as it is.

#[test]
fn the_table_of_error_codes_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    let text = std::fs::read_to_string(path).expect("docs/errors.md");
    let table = windlass_server::error_table();
    assert!(text.contains(&table), "docs/errors.md must contain this table:\n{table}");
}
