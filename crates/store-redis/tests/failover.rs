//! Masters that die while others can take their place. These tests start servers of their own.

mod common;

use common::servers::*;
use common::*;
use windlass_cluster::backend::{Backend, CommitError, Tail};
use windlass_store_redis::RedisOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_another_master() {
    let site = Site::new();
    let (master_port, replica_port, sentinel_port) = (free_port(), free_port(), free_port());
    let master = site.server(master_port, &[]);
    let _replica = site.server(replica_port, &["--replicaof", "127.0.0.1", &master_port.to_string()]);
    soon("the replica follows", || async {
        let mut replica = connection(replica_port).await;
        let info: String = redis::cmd("INFO").arg("replication").query_async(&mut replica).await.expect("info");
        info.contains("master_link_status:up")
    })
    .await;
    let _sentinel = site.sentinel(sentinel_port, master_port, "");
    let url = format!("redis+sentinel://127.0.0.1:{sentinel_port}/main");
    let backend = open(RedisOptions::new(format!("{url}?wait_replicas=1"))).await;
    let last = writes_until(&backend, 0, 50).await;
    // The sentinel has heard of the replica.
    soon("the sentinel knows the replica", || async move {
        let mut sentinel = connection(sentinel_port).await;
        let found: redis::RedisResult<Vec<redis::Value>> =
            redis::cmd("SENTINEL").arg("replicas").arg("main").query_async(&mut sentinel).await;
        found.is_ok_and(|found| !found.is_empty())
    })
    .await;
    drop(master);
    // A write that no replica acknowledges is not acknowledged either.
    // It drops its connections when it becomes the master.
    soon("the replica is the master", || async {
        let mut replica = connection(replica_port).await;
        let role: redis::RedisResult<Vec<redis::Value>> = redis::cmd("ROLE").query_async(&mut replica).await;
        role.is_ok_and(|role| role.first() == Some(&redis::Value::BulkString(b"master".to_vec())))
    })
    .await;
    let alone = backend.commit(&entry(last + 1), &tasks(vec![new_task("q", last + 1)])).await;
    assert!(
        matches!(alone, Err(CommitError::Unsafe(_) | CommitError::Unknown(_) | CommitError::Refused(_))),
        "{alone:?}"
    );
    let alone = open(RedisOptions::new(url)).await;
    let Ok(Tail::Entries(entries)) = alone.tail(0, 1_000).await else { panic!("the log") };
    assert!(entries.len() as u64 >= last, "nothing acknowledged is lost");
    let last = writes_until(&alone, entries.len() as u64, 100).await;
    has_all(&alone, last).await;
    assert_eq!(alone.lost_entries(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_goes_on_without_a_master() {
    let site = Site::new();
    let mut servers = site.cluster(6, 1).await;
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    let addresses: Vec<String> = servers.iter().map(Server::address).collect();
    let backend = open(RedisOptions::new(format!("redis+cluster://{}", addresses.join(",")))).await;
    let last = writes_until(&backend, 0, 60).await;
    has_all(&backend, last).await;
    // Replicas follow asynchronously: what this test writes before a master dies, they have.
    for port in &ports {
        soon("replicas have caught up", || async {
            let mut server = connection(*port).await;
            let info: String = redis::cmd("INFO").arg("replication").query_async(&mut server).await.expect("info");
            let has_all = info.contains("lag=0") || info.contains("lag=1");
            info.contains("role:slave") || (info.contains("state=online") && has_all)
        })
        .await;
    }
    // The one that has the log dies.
    let mut any = connection(ports[0]).await;
    let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg("{log}").query_async(&mut any).await.expect("a slot");
    let slots: Vec<(u16, u16, (String, u16, String))> = {
        let raw: Vec<Vec<redis::Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut any).await.expect("slots");
        let each = raw.into_iter().map(|row| {
            let number = |value: &redis::Value| redis::from_redis_value_ref::<u16>(value).expect("a number");
            let redis::Value::Array(node) = &row[2] else { panic!("a node") };
            (number(&row[0]), number(&row[1]), (String::new(), number(&node[1]), String::new()))
        });
        each.collect()
    };
    let owner = slots.iter().find(|(from, to, _)| (*from..=*to).contains(&slot)).expect("an owner").2.1;
    servers.retain(|server| server.port != owner);
    let last = writes_until(&backend, last, 120).await;
    has_all(&backend, last).await;
    assert_eq!(backend.lost_entries(), 0);
}
