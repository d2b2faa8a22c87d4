//! Which stores show which behaviour, put together from runs of the suite.
//!
//! With `WINDLASS_SUITE_RESULTS` set to a folder, every behaviour that passes leaves a file there; the table in
//! `docs/stores.md` is made of them (`make docs-stores`).

use std::path::Path;

use super::{Behaviour, behaviours};

/// Stores that the suite runs against, in the order of the columns.
pub const STORES: [&str; 6] = ["SQLite", "PostgreSQL", "PgBouncer", "Redis", "Redis Cluster", "Valkey"];

/// Where the table stands in the document.
pub const BEGINS: &str = "<!-- behaviours: made by `make docs-stores` -->";

/// Notes that a store showed a behaviour, if results are collected.
pub(super) fn note(store: &str, behaviour: &str) {
    let Ok(folder) = std::env::var("WINDLASS_SUITE_RESULTS") else { return };
    let folder = Path::new(&folder).join(store);
    std::fs::create_dir_all(&folder).expect("the folder of results can be made");
    std::fs::write(folder.join(behaviour), "").expect("a result can be written");
}

/// The table as Markdown; `shows` says whether a store showed a behaviour.
pub fn table(shows: impl Fn(&str, &Behaviour) -> bool) -> String {
    let mut text = format!("{BEGINS}\n");
    let mut subject = "";
    for behaviour in behaviours() {
        if behaviour.subject != subject {
            subject = behaviour.subject;
            text.push_str(&format!("\n### {}\n\n| behaviour | {} |\n", subject.replace('_', " "), STORES.join(" | ")));
            text.push_str(&format!("|---|{}\n", ":-:|".repeat(STORES.len())));
        }
        let cells: Vec<&str> = STORES.iter().map(|store| if shows(store, &behaviour) { "✓" } else { "" }).collect();
        text.push_str(&format!("| {} | {} |\n", behaviour.sentence.replace('|', "\\|"), cells.join(" | ")));
    }
    text
}
