//! The schema, and the migrations that lead to it.

use windlass_cluster::backend::BackendError;

use crate::error::{OpenError, failed};
use crate::options::PostgresOptions;
use crate::pool::Connection;

/// Migrations in order; the number of those applied is the version of the schema. They are never edited once released,
/// only added to, and each must leave a schema that the version before it can work with: nodes are replaced one by one.
const MIGRATIONS: &[(&str, &str)] = &[
    ("first", include_str!("../migrations/0001_first.sql")),
    ("inbox", include_str!("../migrations/0002_inbox.sql")),
    ("days", include_str!("../migrations/0003_days.sql")),
    ("keys by digest", include_str!("../migrations/0004_keys_by_digest.sql")),
];

/// Puts the name of the schema where a migration or statement leaves room for it.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    sql.replace(":schema", &format!("\"{schema}\"")).replace(":name", schema)
}

/// Brings the schema up to date, or finds that it is.
pub(crate) async fn migrate(connection: &Connection, server: &str, options: &PostgresOptions) -> Result<(), OpenError> {
    let schema = &options.schema;
    let known = MIGRATIONS.len() as i32;
    let fail = |error: tokio_postgres::Error| OpenError::Database(failed(server, &error));
    let check = |found: i32| {
        if found > known {
            return Err(OpenError::TooNew { schema: schema.clone(), found, known });
        }
        Ok(found == known)
    };
    if check(version(connection, server, schema).await?)? {
        return Ok(());
    }
    if !options.migrate {
        let found = version(connection, server, schema).await?;
        return Err(OpenError::NotMigrated { schema: schema.clone(), found, known });
    }
    for (index, (name, sql)) in MIGRATIONS.iter().enumerate() {
        let number = index as i32 + 1;
        // The lock lets one node migrate at a time; whoever waited finds that it is done.
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = '10min'; SET LOCAL lock_timeout = '1min'; \
             SELECT pg_advisory_xact_lock(hashtextextended('{schema}:migrate', 0))"
        );
        connection.batch(&begin).await.map_err(fail)?;
        let found = version(connection, server, schema).await?;
        if !check(found)? && found < number {
            tracing::info!(number, name, schema, "migrating the schema");
            let head = if found == 0 {
                // Not `IF NOT EXISTS` alone: a role that may not make schemas can use one that is there.
                in_schema(
                    "DO $make$ BEGIN
                        IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = ':name') THEN
                            CREATE SCHEMA :schema;
                        END IF;
                    END $make$;
                    CREATE TABLE IF NOT EXISTS :schema.schema_version (
                        version integer PRIMARY KEY, name text NOT NULL, at timestamptz NOT NULL DEFAULT now());",
                    schema,
                )
            } else {
                String::new()
            };
            let body = in_schema(sql, schema);
            let note = format!("INSERT INTO \"{schema}\".schema_version (version, name) VALUES ({number}, '{name}');");
            connection.batch(&format!("{head}\n{body}\n{note}")).await.map_err(fail)?;
        }
        connection.batch("COMMIT").await.map_err(fail)?;
    }
    Ok(())
}

/// How many migrations were applied; 0 if the schema is not there.
async fn version(connection: &Connection, server: &str, schema: &str) -> Result<i32, BackendError> {
    let fail = |error: tokio_postgres::Error| failed(server, &error);
    // By the catalogue and not by `to_regclass`: that may remember from before we waited for the lock.
    let there = format!(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = '{schema}' AND c.relname = 'schema_version')"
    );
    let there = connection.client().query_typed(&there, &[]).await.map_err(fail)?;
    if !there.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    let newest = format!("SELECT coalesce(max(version), 0) FROM \"{schema}\".schema_version");
    let newest = connection.client().query_typed(&newest, &[]).await.map_err(fail)?;
    Ok(newest.first().map_or(0, |row| row.get(0)))
}
