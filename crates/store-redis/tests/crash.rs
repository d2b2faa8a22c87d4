//! What servers that crash or fill up do to us. These tests start servers of their own.

mod common;

use std::time::Duration;

use common::servers::*;
use common::*;
use windlass_cluster::backend::{Backend, Changes, CommitError, Tail, Wants};
use windlass_core::ids::TaskKey;
use windlass_core::status::Status;
use windlass_store_redis::{RedisBackend, RedisOptions};

/// A server that has every write on disk before it answers.
fn safe_server(site: &Site, port: u16, more: &[&str]) -> Server {
    site.server(port, &[&["--appendfsync", "always"], more].concat())
}

fn options(server: &Server) -> RedisOptions {
    RedisOptions::new(format!("redis://{}", server.address()))
}

async fn set(server: &Server, name: &str, value: &str) {
    let mut connection = connection(server.port).await;
    let _: () = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query_async(&mut connection).await.expect("set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_by_a_crash() {
    let site = Site::new();
    let mut server = safe_server(&site, free_port(), &[]);
    let mut strict = options(&server);
    strict.require_durable = true;
    let backend = open(strict).await;
    let mut last = 0;
    for round in 1..=3 {
        let port = server.port;
        let killer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.kill();
        });
        // Entries go in until the server is gone.
        let error = loop {
            match backend.commit(&entry(last + 1), &tasks(vec![new_task("q", last + 1)])).await {
                Ok(()) => last += 1,
                Err(error) => break error,
            }
        };
        assert!(!matches!(error, CommitError::Behind), "{error:?}");
        killer.await.expect("killed");
        let refused = backend.commit(&entry(last + 1), &Changes::default()).await;
        assert!(matches!(refused, Err(CommitError::Refused(_))), "nobody is there: {refused:?}");
        server = safe_server(&site, port, &[]);
        // The same node goes on by itself.
        soon("the server is back", || async { backend.tail(last, 10).await.is_ok() }).await;
        let Ok(Tail::Entries(more)) = backend.tail(last, 10).await else { panic!("nothing is lost") };
        assert!(more.len() <= 1, "at most the entry whose answer was lost");
        last += more.len() as u64;
        let wants = Wants { tasks: (1..=last).map(TaskKey).collect(), ..Wants::default() };
        assert_eq!(backend.read(&wants, last).await.expect("rows").tasks.len() as u64, last, "round {round}");
        assert_eq!(live(&mut backend.load().await.expect("a snapshot")).await.len() as u64, last);
    }
    assert!(last > 10, "something was written: {last}");
    assert_eq!(backend.lost_entries(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_new_tasks_and_nothing_else() {
    let site = Site::new();
    let server = safe_server(&site, free_port(), &["--maxmemory", "20mb"]);
    let backend = open(options(&server)).await;
    commit(&backend, 1, &tasks((1..=50).map(|key| new_task("q", key)).collect())).await;
    let mut last = 1;
    // Parameters of a megabyte until it says no.
    let refused = loop {
        let mut big = new_task("q", 1_000 + last);
        let mut row = common::row("q", 1_000 + last);
        row.spec.parameters = windlass_testkit::fixtures::json(&format!("\"{}\"", "x".repeat(1_000_000)));
        big.row = Some(std::sync::Arc::new(row));
        match backend.commit(&entry(last + 1), &tasks(vec![big])).await {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 50, "it must say no before it is full");
        tokio::time::sleep(Duration::from_millis(if last > 10 { 1_100 } else { 1 })).await;
    };
    let CommitError::Refused(error) = refused else { panic!("{refused:?}") };
    assert!(error.reason.contains("memory"), "{}", error.reason);
    // Even when there is no room at all, tasks end and are deleted.
    set(&server, "maxmemory", "1mb").await;
    let small = backend.commit(&entry(last + 1), &tasks(vec![new_task("q", 5_000)])).await;
    assert!(matches!(small, Err(CommitError::Refused(_))), "{small:?}");
    commit(&backend, last + 1, &tasks((1..=50).map(|key| end(key, Status::Completed, Some(at(1)))).collect())).await;
    assert_eq!(backend.expired_tasks(at(0), 100).await.map(|tasks| tasks.len()), Ok(50), "history makes way early");
    // With room again, everything is taken again.
    set(&server, "maxmemory", "500mb").await;
    soon("there is room", || async {
        backend.commit(&entry(last + 2), &tasks(vec![new_task("q", 5_000)])).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_server_that_would_throw_tasks_away_is_refused() {
    let site = Site::new();
    let server = safe_server(&site, free_port(), &["--maxmemory", "20mb"]);
    drop(open(options(&server)).await);
    set(&server, "maxmemory-policy", "allkeys-lru").await;
    let error = RedisBackend::open(options(&server)).await.err().expect("refused");
    assert!(error.to_string().contains("noeviction"), "{error}");
    set(&server, "maxmemory-policy", "noeviction").await;
    set(&server, "appendfsync", "everysec").await;
    let backend = open(options(&server)).await;
    assert_eq!(backend.durability().losses.len(), 1);
    let mut strict = options(&server);
    strict.require_durable = true;
    let error = RedisBackend::open(strict).await.err().expect("refused");
    assert!(error.to_string().contains("one second"), "{error}");
}
