//! The shared store on PostgreSQL: the log that orders the transactions of all nodes, and the rows.
//!
//! A transaction is one round trip: the entry of the log first, whose primary key refuses whoever is second, then one
//! statement per kind of row with its columns as arrays. Nothing is left in a session but what a transaction sets for
//! itself, so a pooler may sit in between (`pgbouncer=true` in the URL).
//!
//! # Rights
//!
//! The role that migrates must own the schema, or be allowed to make it. A role that only runs a server
//! ([`PostgresOptions::migrate`] off) needs no more than:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA windlass TO server;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA windlass TO server;
//! GRANT EXECUTE ON FUNCTION windlass.make_ended_partition, windlass.drop_ended_partition TO server;
//! ```
//!
//! and a role that only enqueues from SQL:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA windlass TO app;
//! GRANT EXECUTE ON FUNCTION windlass.enqueue, windlass.enqueue_many TO app;
//! ```

mod archive;
mod ask;
mod backend;
mod batch;
mod columns;
mod commit;
mod days;
mod error;
mod inbox;
mod listen;
mod load;
mod migrate;
mod options;
mod partitions;
mod pieces;
#[cfg(test)]
mod plans;
mod pool;
mod prune;
mod read;
mod replica;
mod rows;
mod sql;
mod store;
mod tls;

pub use archive::PostgresArchive;
pub use backend::PostgresBackend;
pub use error::OpenError;
pub use options::PostgresOptions;
pub use store::PostgresStore;
