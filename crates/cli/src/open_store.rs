//! The one place that knows stores by name.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_store_sqlite::{SqliteOptions, SqliteStore};

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// No store has such an address.
    #[error("store = {0} is not allowed: it must be sqlite:PATH")]
    UnknownAddress(String),
    /// The database cannot be used.
    #[error("cannot open the store {address}: {reason}")]
    Failed {
        /// The address, without secrets.
        address: String,
        /// Why.
        reason: String,
    },
}

/// Opens the store at an address. Leases that were live when it was closed last this long.
pub fn open(address: &str, lease: Duration, observer: Arc<dyn Observer>) -> Result<Arc<dyn Store>, OpenStoreError> {
    let path = address.strip_prefix("sqlite:").filter(|path| !path.is_empty());
    let Some(path) = path else { return Err(OpenStoreError::UnknownAddress(crate::settings::masked(address))) };
    let options = SqliteOptions { lease, ..SqliteOptions::new(path) };
    let store = SqliteStore::open(options, observer)
        .map_err(|error| OpenStoreError::Failed { address: address.to_owned(), reason: error.to_string() })?;
    Ok(store)
}
