//! A server of our own that is killed in the middle of work.

mod common;

use std::time::Duration;

use common::server::Server;
use common::*;
use tokio::time::Instant;
use windlass_cluster::backend::{Backend, CommitError, Tail};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_is_found_again_and_has_lost_nothing() {
    let server = Server::new();
    let database = Database::at(&server.url());
    let backend = database.open().await;
    let (mut seen, mut acknowledged, mut errors) = (0u64, 0u64, 0);
    let mut killed = false;
    let began = Instant::now();
    while acknowledged < 300 {
        assert!(began.elapsed() < Duration::from_secs(60), "{acknowledged} of 300");
        if acknowledged == 100 && !killed {
            server.kill();
            killed = true;
        }
        match backend.commit(&entry(seen + 1), &tasks(vec![new_task(acknowledged + 1)])).await {
            Ok(()) => (seen, acknowledged) = (seen + 1, acknowledged + 1),
            Err(CommitError::Behind) => panic!("nobody else writes"),
            Err(CommitError::Refused(error) | CommitError::Unknown(error) | CommitError::Unsafe(error)) => {
                assert!(error.reason.contains("127.0.0.1"), "{error}");
                if errors == 0 {
                    server.start();
                }
                errors += 1;
                // Whether it was written: as a node does, look.
                let began = Instant::now();
                seen = loop {
                    match backend.tail(seen, 10).await {
                        Ok(Tail::Entries(entries)) => {
                            acknowledged += entries.len() as u64;
                            break seen + entries.len() as u64;
                        }
                        Ok(Tail::Gone) => panic!("the log is gone"),
                        Err(_) => assert!(began.elapsed() < Duration::from_secs(20)),
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
            }
        }
    }
    assert!(errors > 0);
    let mut snapshot = backend.load().await.expect("loaded");
    assert_eq!(snapshot.version, 300);
    assert_eq!(live(&mut snapshot).await.len(), 300);
    backend.close().await;
}
