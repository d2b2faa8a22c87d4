//! The documentation lists every error code as it is.

/// With `WINDLASS_WRITE_DOCS` set, the table in the documentation is written anew first.
#[test]
fn the_table_of_error_codes_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    let mut text = std::fs::read_to_string(path).expect("docs/errors.md");
    let table = windlass_server::error_table();
    if std::env::var_os("WINDLASS_WRITE_DOCS").is_some() {
        text = with_table(&text, &table);
        std::fs::write(path, &text).expect("docs/errors.md can be written");
    }
    assert!(text.contains(&table), "docs/errors.md must contain this table:\n{table}");
}

/// The text with this table in the place of its own.
fn with_table(text: &str, table: &str) -> String {
    let head = table.lines().next().unwrap_or_default();
    let (before, rest) = text.split_once(head).expect("a table of codes");
    let rows: usize = rest.split_inclusive('\n').skip(1).take_while(|line| line.starts_with('|')).map(str::len).sum();
    let after = &rest[rest.find('\n').map_or(rest.len(), |end| end + 1) + rows..];
    format!("{before}{table}{after}")
}
