//! On a clock of its own the store wakes waiting claims by itself: nobody calls it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::ids::WorkerId;
use windlass_core::store::{ClaimRequest, Finish, Store};
use windlass_core::task::ClaimedTask;
use windlass_store_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::fixtures::{failed, profile, task, task_type};
use windlass_testkit::rig::{LEASE, Witness, soon};

async fn open(settings: &str) -> (tempfile::TempDir, Arc<dyn Store>, WorkerId) {
    let folder = tempfile::tempdir().expect("a folder");
    let observer = Arc::new(Witness::default());
    let store: Arc<dyn Store> = SqliteStore::open(SqliteOptions::new(folder.path()), observer).expect("it opens");
    let change = serde_json::from_str(settings).expect("a change of a type");
    store.change_type(task_type("a"), change).await.expect("the change is sound");
    let profile = profile();
    let worker = profile.id;
    store.register_worker(profile).await.expect("the worker is taken");
    (folder, store, worker)
}

async fn claim(store: &Arc<dyn Store>, worker: WorkerId) -> ClaimedTask {
    let request = ClaimRequest { worker, capabilities: None, up_to: 1, lease: LEASE, wait: true };
    let mut claimed = soon(store.claim(request)).await.expect("the claim is answered");
    assert_eq!(claimed.tasks.len(), 1);
    claimed.tasks.remove(0)
}

#[tokio::test]
async fn a_waiting_claim_wakes_when_the_token_comes() {
    let (_folder, store, worker) = open(r#"{"rate_limit":{"count":10,"per_seconds":1,"burst":1}}"#).await;
    store.submit((0..4).map(|_| task("a").build()).collect()).await.expect("taken");
    let first = store.now();
    for _ in 0..4 {
        claim(&store, worker).await;
    }
    assert!(store.now().since(first) >= Duration::from_millis(299), "no sooner than the rate allows");
    store.close().await;
}

#[tokio::test]
async fn a_waiting_claim_wakes_when_a_breaker_half_opens() {
    let (_folder, store, worker) = open(r#"{"breaker":{"min_attempts":1,"recovery_seconds":0.2}}"#).await;
    store.submit((0..2).map(|_| task("a").build()).collect()).await.expect("taken");
    let claimed = claim(&store, worker).await;
    let result = Finish::new(claimed.id, claimed.token, failed());
    store.finish(worker, vec![result]).await.expect("taken")[0].as_ref().expect("its lease is live");
    let opened = store.now();
    assert_ne!(claim(&store, worker).await.id, claimed.id);
    assert!(store.now().since(opened) >= Duration::from_millis(190), "no sooner than it recovers");
    store.close().await;
}

#[tokio::test]
async fn a_waiting_claim_gets_past_any_number_of_expired_tasks() {
    let (_folder, store, worker) = open("{}").await;
    let soon_over = store.now() + Duration::from_millis(100);
    store.submit((0..600).map(|_| task("a").expires_at(soon_over).build()).collect()).await.expect("taken");
    let good = store.submit(vec![task("a").build()]).await.expect("taken")[0].id;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let claimed = tokio::time::timeout(Duration::from_secs(5), claim(&store, worker)).await;
    assert_eq!(claimed.expect("nobody else has to call").id, good);
    store.close().await;
}
