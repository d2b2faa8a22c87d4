//! Servers that are talked to in TLS, with certificates of an authority that the system does not know. These tests start
//! servers of their own.

mod common;

use common::certificates::Authority;
use common::servers::*;
use common::*;
use windlass_store_redis::{OpenError, RedisBackend, RedisOptions};

/// Why a URL is not opened.
async fn refusal(url: String) -> OpenError {
    let opened = RedisBackend::open(RedisOptions::new(&url)).await;
    opened.err().unwrap_or_else(|| panic!("{url} was opened"))
}

async fn works(url: String) {
    let backend = open(RedisOptions::new(url)).await;
    let last = writes_until(&backend, 0, 20).await;
    has_all(&backend, last).await;
}

#[tokio::test]
async fn a_server_of_the_right_authority_is_believed() {
    let site = Site::with_tls();
    let server = site.server(free_port(), &[]);
    let url = format!("rediss://{}?{}", server.address(), site.root());
    let backend = open(RedisOptions::new(&url)).await;
    commit(&backend, 1, &tasks(vec![new_task("q", 1)])).await;
    has_all(&backend, 1).await;
    drop(backend);
    has_all(&open(RedisOptions::new(url)).await, 1).await;
}

#[tokio::test]
async fn one_of_several_authorities_in_a_file_is_enough() {
    let site = Site::with_tls();
    let server = site.server(free_port(), &[]);
    let other = Authority::new(site.folder(), "other");
    let right = std::fs::read(site.root().trim_start_matches("sslrootcert=")).expect("a certificate");
    let both = [std::fs::read(&other.certificate).expect("a certificate"), right].concat();
    let file = site.folder().join("both.pem");
    std::fs::write(&file, both).expect("a file");
    works(format!("rediss://{}?sslrootcert={}", server.address(), file.display())).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let site = Site::with_tls();
    let server = site.server(free_port(), &[]);
    server.listens().await;
    let other = Authority::new(site.folder(), "other").certificate;
    let address = server.address();
    for url in
        [format!("rediss://:secret@{address}?sslrootcert={}", other.display()), format!("rediss://:secret@{address}")]
    {
        let error = refusal(url).await;
        assert!(matches!(&error, OpenError::Unreachable(reason) if reason.contains("UnknownIssuer")), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    works(format!("rediss://{address}?{}", site.root())).await;
}

#[tokio::test]
async fn a_name_that_is_not_in_the_certificate_is_refused() {
    let site = Site::with_tls();
    let server = site.server(free_port(), &[]);
    server.listens().await;
    let error = refusal(format!("rediss://localhost:{}?{}", server.port, site.root())).await;
    assert!(matches!(&error, OpenError::Unreachable(reason) if reason.contains("not valid for name")), "{error}");
    works(format!("rediss://127.0.0.1:{}?{}", server.port, site.root())).await;
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.pem");
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").expect("a file");
    // Nobody listens there: the file is looked at first.
    for place in [
        "rediss://:secret@127.0.0.1:1",
        "rediss+sentinel://:secret@127.0.0.1:1/main",
        "rediss+cluster://:secret@127.0.0.1:1",
    ] {
        for (file, reason) in [(&missing, "No such file"), (&empty, "no certificate")] {
            let error = refusal(format!("{place}?sslrootcert={}", file.display())).await;
            assert!(matches!(error, OpenError::Certificates { .. }), "{place}: {error}");
            let text = error.to_string();
            assert!(text.contains(reason) && text.contains(&file.display().to_string()), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}

#[tokio::test]
async fn sentinels_and_their_master_are_believed_by_the_same_file() {
    let site = Site::with_tls();
    let master = site.server(free_port(), &[]);
    master.listens().await;
    let sentinel = site.sentinel(free_port(), master.port, "");
    let url = format!("rediss+sentinel://{}/main", sentinel.address());
    works(format!("{url}?{}", site.root())).await;
    let other = Authority::new(site.folder(), "other").certificate;
    let error = refusal(format!("{url}?sslrootcert={}", other.display())).await;
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_works_with_tls() {
    let site = Site::with_tls();
    let servers = site.cluster(3, 0).await;
    // The others are found by what the first says, and are to be believed as well.
    let url = format!("rediss+cluster://{}", servers[0].address());
    works(format!("{url}?{}", site.root())).await;
    let other = Authority::new(site.folder(), "other").certificate;
    let error = refusal(format!("{url}?sslrootcert={}", other.display())).await;
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}
