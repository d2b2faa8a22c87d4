//! Whether the store can serve, as this node sees it. Calls that wait for something to happen would not notice: they end
//! when it cannot, so that whoever waits can go to a node that is better off.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The same while it cannot serve: nobody shall wait longer than it takes.
const LOOK_WHILE_AWAY: Duration = Duration::from_millis(250);

/// Looks at the store, for ever.
pub async fn watch(engine: Arc<Engine>) {
    loop {
        let trouble = engine.store.check().await.err();
        let is_away = trouble.is_some();
        engine.note_store(trouble);
        tokio::time::sleep(if is_away { LOOK_WHILE_AWAY } else { LOOK }).await;
    }
}
