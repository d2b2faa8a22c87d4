//! Tasks that others wrote into the database, in transactions of their own.

use tokio_postgres::types::Type;
use windlass_cluster::backend::BackendError;
use windlass_core::ids::TaskKey;
use windlass_core::store::InboxItem;
use windlass_core::time::Timestamp;

use crate::backend::PostgresBackend;
use crate::rows::get;

impl PostgresBackend {
    /// The oldest of those after a number.
    pub(crate) async fn inbox_items(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, BackendError> {
        let limit = limit as i64;
        let found = self.one((&self.sql.inbox, vec![(&after, Type::INT8), (&limit, Type::INT8)])).await?;
        let item = |row| {
            let no: i64 = get(row, 0)?;
            let at: i64 = get(row, 2)?;
            Ok(InboxItem {
                no,
                key: TaskKey(TaskKey::INBOX + no as u64),
                created_at: Timestamp::from_micros(at),
                body: get::<Vec<u8>>(row, 1)?,
            })
        };
        found.iter().map(item).collect()
    }
}
