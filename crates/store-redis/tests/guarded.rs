//! Servers that ask for passwords or forbid commands. These tests start servers of their own.

mod common;

use common::servers::*;
use common::*;
use windlass_store_redis::{OpenError, RedisBackend, RedisOptions};

#[tokio::test]
async fn sentinels_and_their_master_have_passwords_of_their_own() {
    let site = Site::new();
    let master = site.server(free_port(), &["--requirepass", "master/pass"]);
    master.listens().await;
    let passwords = "requirepass sentinel@pass\nsentinel auth-pass main master/pass";
    let sentinel = site.sentinel(free_port(), master.port, passwords);
    let url = |master: &str, sentinels: &str| {
        format!("redis+sentinel://:{master}@{}/main?sentinel_password={sentinels}", sentinel.address())
    };
    let backend = open(RedisOptions::new(url("master%2Fpass", "sentinel%40pass"))).await;
    let last = writes_until(&backend, 0, 20).await;
    has_all(&backend, last).await;
    // Either alone is not enough, and what was tried is not told.
    for (master, sentinels) in [("master%2Fpass", "hunter2"), ("hunter2", "sentinel%40pass"), ("master%2Fpass", "")] {
        let error = RedisBackend::open(RedisOptions::new(url(master, sentinels))).await.err().expect("refused");
        assert!(matches!(error, OpenError::Unreachable(_)), "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.to_lowercase().contains("auth"), "{text}");
        for secret in ["hunter2", "master/pass", "master%2Fpass", "sentinel@pass", "sentinel%40pass"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_settings_is_not_called_durable() {
    let site = Site::new();
    let server = site.server(free_port(), &["--appendfsync", "always", "--rename-command", "CONFIG", ""]);
    let mut options = RedisOptions::new(format!("redis://{}", server.address()));
    let backend = open(options.clone()).await;
    let durability = backend.durability();
    assert!(!durability.is_durable());
    assert_eq!(durability.losses, Vec::<String>::new(), "nothing is made up");
    assert!(durability.unknown.iter().any(|what| what.contains("on disk")), "{durability:?}");
    assert!(durability.unknown.iter().any(|what| what.contains("memory is full")), "{durability:?}");
    let last = writes_until(&backend, 0, 20).await;
    has_all(&backend, last).await;
    options.require_durable = true;
    let error = RedisBackend::open(options).await.err().expect("refused");
    assert!(matches!(&error, OpenError::Unsafe(reason) if reason.contains("cannot be found out")), "{error}");
}
