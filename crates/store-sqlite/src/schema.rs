//! The file: how it is opened, and the migrations that lead to its schema.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;

/// Migrations in order; the number of those applied is the file's `user_version`.
/// They are never edited once released, only added to.
const MIGRATIONS: &[(&str, &str)] = &[
    ("first", include_str!("../migrations/0001_first.sql")),
    ("keys_and_breakers", include_str!("../migrations/0002_keys_and_breakers.sql")),
];

/// Pages of 8 KiB hold about twenty small tasks and keep the B-trees shallow.
const PAGE_BYTES: u32 = 8192;

/// Opens the file for the writer and brings its schema up to date.
pub(crate) fn open_for_writing(file: &Path) -> Result<Connection, OpenError> {
    let mut connection = Connection::open(file)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: the WAL is synced at every commit, so an answer means that it is on disk.
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Checkpoints are run by us, see `checkpoint.rs`.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -32_768)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(128);
    migrate(&mut connection)?;
    Ok(connection)
}

/// Opens the file for short reads beside the writer.
pub(crate) fn open_for_reading(file: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cache_size", -4_096)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let applied: usize = connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? as usize;
    if applied > MIGRATIONS.len() {
        return Err(OpenError::TooNew { found: applied, known: MIGRATIONS.len() });
    }
    for (number, (name, sql)) in MIGRATIONS.iter().enumerate().skip(applied) {
        tracing::debug!(number = number + 1, name, "migrating the store");
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", (number + 1) as i64)?;
        transaction.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(connection: &Connection) -> String {
        let mut statement = connection
            .prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name")
            .expect("valid");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("text") + ";\n").collect()
    }

    #[test]
    fn the_migrations_lead_to_the_committed_schema() {
        let folder = tempfile::tempdir().expect("a folder");
        let connection = open_for_writing(&folder.path().join("store.db")).expect("opens");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
        let found = dump(&connection);
        if std::env::var_os("WINDLASS_WRITE_DOCS").is_some() {
            std::fs::write(path, &found).expect("written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, committed, "schema.sql is stale: run `make docs`");
    }

    #[test]
    fn a_newer_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("store.db");
        open_for_writing(&file).expect("opens").pragma_update(None, "user_version", 99).expect("set");
        assert!(matches!(open_for_writing(&file), Err(OpenError::TooNew { found: 99, .. })));
    }
}
