//! Masters that die while others can take their place. These tests start servers of their own.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use windlass_cluster::backend::{Backend, CommitError, Tail, Wants};
use windlass_core::ids::TaskKey;
use windlass_store_redis::{RedisBackend, RedisOptions};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        // The bus of a cluster has a port of its own, 10,000 above.
        if port < 55_000 {
            return port;
        }
    }
}

fn server(folder: &Path, port: u16, more: &[&str]) -> Server {
    let folder = folder.join(port.to_string());
    std::fs::create_dir_all(&folder).expect("a folder");
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--repl-diskless-sync-delay", "0", "--dir"])
        .arg(&folder)
        .args(more)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    Server(child)
}

fn sentinel(folder: &Path, port: u16, master: u16) -> Server {
    let file = folder.join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 1\n\
        sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
    );
    std::fs::write(&file, text).expect("a file");
    let mut command = Command::new("redis-server");
    Server(command.arg(&file).arg("--sentinel").stdout(Stdio::null()).spawn().expect("redis-server is installed"))
}

async fn open(options: RedisOptions) -> RedisBackend {
    for _ in 0..400 {
        if let Ok(backend) = RedisBackend::open(options.clone()).await {
            return backend;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the servers did not start");
}

async fn connection(port: u16) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL");
    for _ in 0..200 {
        if let Ok(connection) = client.get_multiplexed_async_connection().await {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the server did not start");
}

/// Writes an entry with a task; follows the log as a node does if the answer was lost.
async fn write(backend: &RedisBackend, last: u64) -> Result<u64, CommitError> {
    let no = last + 1;
    match backend.commit(&entry(no), &tasks(vec![new_task(&format!("q{}", no % 5), no)])).await {
        Ok(()) => Ok(no),
        Err(CommitError::Behind) => match backend.tail(last, 100).await {
            Ok(Tail::Entries(entries)) => Ok(last + entries.len() as u64),
            other => panic!("nothing was lost: {other:?}"),
        },
        Err(error) => Err(error),
    }
}

async fn writes_until(backend: &RedisBackend, mut last: u64, goal: u64) -> u64 {
    let mut failures = 0;
    while last < goal {
        match write(backend, last).await {
            Ok(no) => last = no,
            Err(error) => {
                failures += 1;
                assert!(failures < 200, "no master came back: {error:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    last
}

async fn has_all(backend: &RedisBackend, last: u64) {
    let Ok(Tail::Entries(entries)) = backend.tail(0, 10_000).await else { panic!("the log is whole") };
    assert_eq!(entries.len() as u64, last);
    let wants = Wants { tasks: (1..=last).map(TaskKey).collect(), ..Wants::default() };
    assert_eq!(backend.read(&wants, last).await.expect("rows").tasks.len() as u64, last);
    assert_eq!(live(&mut backend.load().await.expect("a snapshot")).await.len() as u64, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_another_master() {
    let folder = tempfile::tempdir().expect("a folder");
    let (master_port, replica_port, sentinel_port) = (free_port(), free_port(), free_port());
    let master = server(folder.path(), master_port, &[]);
    let _replica = server(folder.path(), replica_port, &["--replicaof", "127.0.0.1", &master_port.to_string()]);
    soon("the replica follows", || async {
        let mut replica = connection(replica_port).await;
        let info: String = redis::cmd("INFO").arg("replication").query_async(&mut replica).await.expect("info");
        info.contains("master_link_status:up")
    })
    .await;
    let _sentinel = sentinel(folder.path(), sentinel_port, master_port);
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
    let folder = tempfile::tempdir().expect("a folder");
    let mut ports: Vec<u16> = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..6 {
        let port = free_port();
        servers
            .push((port, server(folder.path(), port, &["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"])));
        ports.push(port);
    }
    for port in &ports {
        connection(*port).await;
    }
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let made = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(&addresses)
        .args(["--cluster-replicas", "1", "--cluster-yes"])
        .stdout(Stdio::null())
        .status()
        .expect("redis-cli is installed");
    assert!(made.success());
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
    servers.retain(|(port, _)| *port != owner);
    let last = writes_until(&backend, last, 120).await;
    has_all(&backend, last).await;
    assert_eq!(backend.lost_entries(), 0);
}
