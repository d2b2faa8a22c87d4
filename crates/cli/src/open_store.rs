//! The one place that knows stores by name.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_store_redis::{RedisOptions, RedisStore};
use windlass_store_sqlite::{SqliteOptions, SqliteStore};

use crate::secrets::{masked, scrubbed};

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// No store has such an address.
    #[error(
        "store = {0} is not allowed: it must be sqlite:PATH, postgres://…, redis://…, redis+sentinel://… or redis+cluster://… (with TLS rediss…)"
    )]
    UnknownAddress(String),
    /// A setting of one kind of store was given for another.
    #[error("{key} is not allowed with store = {address}: it is for {for_what}")]
    NotForThisStore {
        /// The setting.
        key: &'static str,
        /// The store, without secrets.
        address: String,
        /// What it is for.
        for_what: &'static str,
    },
    /// An address beside the store's own is none of its kind.
    #[error("{key} = {address} is not allowed: it must be a postgres:// address")]
    BadAddress {
        /// The setting.
        key: &'static str,
        /// The address, without secrets.
        address: String,
    },
    /// The database cannot be used.
    #[error("cannot open the store {address}: {reason}")]
    Failed {
        /// The address, without secrets.
        address: String,
        /// Why.
        reason: String,
    },
}

impl OpenStoreError {
    /// The database cannot be used, as somebody says who may quote the address.
    fn failed(address: &str, reason: &str) -> Self {
        Self::Failed { address: masked(address), reason: scrubbed(reason, address) }
    }
}

/// Which store to open, and how.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Where it is. May have a password in it: never shown as it is.
    pub address: String,
    /// Leases that were live when a store was closed last this long after it is opened.
    pub lease: Duration,
    /// PostgreSQL: the schema that has the tables.
    pub schema: Option<String>,
    /// PostgreSQL: where to listen to notifications, if that is not the address: a pooler does not pass them on.
    pub listen_address: Option<String>,
    /// PostgreSQL: a replica for lists and statistics.
    pub read_address: Option<String>,
    /// Redis: refuse to start on a server that may forget what it acknowledged.
    pub require_durable: bool,
    /// Whether the tables are brought up to date. Otherwise a store of an older version is not opened.
    pub migrate: bool,
}

/// What an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    Sqlite { path: &'a str },
    Postgres,
    Redis,
    RedisSentinel,
    RedisCluster,
}

impl<'a> Kind<'a> {
    fn of(address: &'a str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("sqlite:") {
            return (!path.is_empty()).then_some(Self::Sqlite { path });
        }
        let (scheme, rest) = address.split_once("://")?;
        let kind = match scheme {
            "postgres" | "postgresql" => Self::Postgres,
            "redis" | "rediss" => Self::Redis,
            "redis+sentinel" | "rediss+sentinel" => Self::RedisSentinel,
            "redis+cluster" | "rediss+cluster" => Self::RedisCluster,
            _ => return None,
        };
        (!rest.is_empty()).then_some(kind)
    }

    fn is_redis(self) -> bool {
        matches!(self, Self::Redis | Self::RedisSentinel | Self::RedisCluster)
    }
}

impl StoreOptions {
    /// A store with nothing special about it.
    pub fn new(address: impl Into<String>, lease: Duration) -> Self {
        Self {
            address: address.into(),
            lease,
            schema: None,
            listen_address: None,
            read_address: None,
            require_durable: false,
            migrate: true,
        }
    }

    /// What the address names, unless a setting does not go with it.
    fn kind(&self) -> Result<Kind<'_>, OpenStoreError> {
        let kind = Kind::of(&self.address).ok_or_else(|| OpenStoreError::UnknownAddress(masked(&self.address)))?;
        let for_postgres = [
            ("store_schema", self.schema.is_some()),
            ("store_listen_url", self.listen_address.is_some()),
            ("store_read_url", self.read_address.is_some()),
        ];
        let misplaced =
            |(key, for_what)| Err(OpenStoreError::NotForThisStore { key, address: masked(&self.address), for_what });
        if let Some((key, _)) = for_postgres.into_iter().find(|(_, is_given)| *is_given && kind != Kind::Postgres) {
            return misplaced((key, "PostgreSQL"));
        }
        if self.require_durable && !kind.is_redis() {
            return misplaced(("require_durable", "Redis; the other stores always are"));
        }
        for (key, address) in [("store_listen_url", &self.listen_address), ("store_read_url", &self.read_address)] {
            let Some(address) = address else { continue };
            if Kind::of(address) != Some(Kind::Postgres) {
                return Err(OpenStoreError::BadAddress { key, address: masked(address) });
            }
        }
        Ok(kind)
    }
}

/// Opens a store that tells this observer what it commits.
pub async fn open(options: StoreOptions, observer: Arc<dyn Observer>) -> Result<Arc<dyn Store>, OpenStoreError> {
    match options.kind()? {
        Kind::Sqlite { path } => open_sqlite(path, &options, observer).await,
        Kind::Postgres => open_postgres(&options, observer).await,
        Kind::Redis | Kind::RedisSentinel | Kind::RedisCluster => open_redis(&options, observer).await,
    }
}

async fn open_postgres(options: &StoreOptions, observer: Arc<dyn Observer>) -> Result<Arc<dyn Store>, OpenStoreError> {
    let mut postgres = PostgresOptions {
        listen_url: options.listen_address.clone(),
        read_url: options.read_address.clone(),
        migrate: options.migrate,
        ..PostgresOptions::new(options.address.clone())
    };
    if let Some(schema) = &options.schema {
        postgres.schema.clone_from(schema);
    }
    let opened = PostgresStore::open(postgres, options.lease, None, observer).await;
    Ok(opened.map_err(|error| OpenStoreError::failed(&options.address, &error.to_string()))?)
}

async fn open_redis(options: &StoreOptions, observer: Arc<dyn Observer>) -> Result<Arc<dyn Store>, OpenStoreError> {
    let redis = RedisOptions { require_durable: options.require_durable, ..RedisOptions::new(options.address.clone()) };
    let opened = RedisStore::open(redis, options.lease, None, observer).await;
    let (store, durability) = opened.map_err(|error| OpenStoreError::failed(&options.address, &error.to_string()))?;
    for loss in &durability.losses {
        tracing::warn!("what is acknowledged can be lost: {loss}");
    }
    for unknown in &durability.unknown {
        tracing::warn!("the server does not tell {unknown}");
    }
    Ok(store)
}

async fn open_sqlite(
    path: &str,
    options: &StoreOptions,
    observer: Arc<dyn Observer>,
) -> Result<Arc<dyn Store>, OpenStoreError> {
    let failed = |reason: String| OpenStoreError::failed(&options.address, &reason);
    let sqlite = SqliteOptions { lease: options.lease, ..SqliteOptions::new(path) };
    // Opening reads the whole queue back, which may take a while: not on a thread that serves.
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(sqlite, observer)).await;
    let store = opened.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::event::NoObserver;

    fn options(address: &str) -> StoreOptions {
        StoreOptions::new(address, Duration::from_secs(30))
    }

    async fn refused(options: StoreOptions) -> String {
        open(options, Arc::new(NoObserver)).await.err().expect("refused").to_string()
    }

    #[test]
    fn addresses_name_stores() {
        for (address, kind) in [
            ("sqlite:data", Some(Kind::Sqlite { path: "data" })),
            ("sqlite:", None),
            ("postgres://app@db/jobs", Some(Kind::Postgres)),
            ("postgresql://db", Some(Kind::Postgres)),
            ("postgres://", None),
            ("redis://cache:6379/0", Some(Kind::Redis)),
            ("rediss://cache", Some(Kind::Redis)),
            ("redis+sentinel://a:1,b:2/main", Some(Kind::RedisSentinel)),
            ("redis+cluster://a:1,b:2", Some(Kind::RedisCluster)),
            ("rediss+sentinel://a:1,b:2/main", Some(Kind::RedisSentinel)),
            ("rediss+cluster://a:1,b:2", Some(Kind::RedisCluster)),
            ("redis:cache", None),
            ("mysql://db", None),
            ("data", None),
        ] {
            assert_eq!(Kind::of(address), kind, "{address}");
        }
    }

    #[tokio::test]
    async fn no_refusal_tells_a_password() {
        for scheme in
            ["postgres", "postgresql", "redis", "rediss", "redis+sentinel", "rediss+cluster", "mysql", "Redis"]
        {
            for rest in ["app:hunter2@db:1/x", ":hunter2@a:1,b:2/x", "db/x?user=app&password=hunter2&sslmode=require"] {
                let told = refused(options(&format!("{scheme}://{rest}"))).await;
                assert!(told.contains(&format!("{scheme}://")) && !told.contains("hunter2"), "{told}");
            }
        }
        let beside = |listen: &str| {
            let listen_address = Some(listen.to_owned());
            refused(StoreOptions { listen_address, ..options("postgres://app:hunter2@db/x") })
        };
        let told = beside("redis://:hunter2@db").await;
        assert!(told.contains("store_listen_url = redis://") && !told.contains("hunter2"), "{told}");
    }

    #[tokio::test]
    async fn settings_of_other_stores_are_refused() {
        let told = refused(StoreOptions { schema: Some("jobs".to_owned()), ..options("sqlite:data") }).await;
        assert!(told.contains("store_schema") && told.contains("PostgreSQL"), "{told}");
        let told = refused(StoreOptions { require_durable: true, ..options("postgres://db") }).await;
        assert!(told.contains("require_durable") && told.contains("Redis"), "{told}");
    }
}
