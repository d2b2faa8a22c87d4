//! The SDK and a network that misbehaves: answers that get lost, servers that come and go, connections that die
//! without a word. A small proxy of our own stands between the SDK and a real server.

mod support;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::{Client, Context, Error, TaskResult, Worker, task};

/// What the proxy does to what passes.
#[derive(Default)]
struct Mischief {
    /// So many answers never arrive: the connection breaks instead.
    answers_to_lose: AtomicU32,
    /// Nothing passes, and nobody is told.
    is_black_hole: AtomicBool,
}

struct Proxy {
    url: String,
    mischief: Arc<Mischief>,
}

impl Proxy {
    async fn before(server: &Server) -> Self {
        let target: SocketAddr = server.url.trim_start_matches("http://").parse().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let mischief = Arc::new(Mischief::default());
        let passed_on = Arc::clone(&mischief);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target, Arc::clone(&passed_on)));
            }
        });
        Self { url, mischief }
    }
}

async fn relay(client: TcpStream, target: SocketAddr, mischief: Arc<Mischief>) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let holes = Arc::clone(&mischief);
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            swallow(&holes).await;
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from_server.read(&mut buffer).await?;
        swallow(&mischief).await;
        let loses = mischief.answers_to_lose.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if read == 0 || loses.is_ok() {
            return Ok(());
        }
        to_client.write_all(&buffer[..read]).await?;
    }
}

/// In a black hole a connection stays open and nothing comes of it, ever.
async fn swallow(mischief: &Mischief) {
    if mischief.is_black_hole.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}

#[task]
async fn nap(context: Context, millis: u64) -> TaskResult<u32> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(context.attempt())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_whose_answer_is_lost_is_one_task() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(&server).await;
    let client = Client::connect(&*proxy.url).await.expect("a client");
    proxy.mischief.answers_to_lose.store(2, Ordering::SeqCst);
    let task = client.enqueue::<nap>(0u64).await.expect("stored at last");
    assert!(task.was_there_before(), "the first call had arrived");
    proxy.mischief.answers_to_lose.store(1, Ordering::SeqCst);
    let tasks = client.enqueue_many::<nap>([1, 2, 3]).await.expect("stored at last");
    let listed = server.get("/api/v1/tasks?limit=100");
    let listed: Vec<&Value> = listed["items"].as_array().expect("items").iter().map(|task| &task["task_id"]).collect();
    let wanted: Vec<Value> = tasks.iter().rev().chain([&task]).map(|task| json!(task.id())).collect();
    assert_eq!(listed, wanted.iter().collect::<Vec<_>>(), "no more and no fewer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_servers_stand_in_for_each_other() {
    let server = Server::start(&[]);
    let nobody = format!("http://127.0.0.1:{}", support::free_port());
    let client = Client::connect(format!("{nobody},{}", server.url)).await.expect("a client");
    let worker = Worker::new(&client).handle::<nap>().start().await.expect("started");
    let task = client.enqueue::<nap>(0u64).await.expect("stored");
    assert_eq!(task.result_within(Duration::from_secs(30)).await.expect("done"), 1);
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_said_to_be() {
    let nobody = format!("http://127.0.0.1:{}", support::free_port());
    let client = Client::builder(&*nobody).patience(Duration::from_millis(300)).connect().await.expect("a client");
    let error = client.enqueue::<nap>(0u64).await.expect_err("nobody is there");
    let Error::Unreachable(unreachable) = &error else { panic!("{error:?}") };
    assert!(!unreachable.may_have_happened);
    assert!(error.to_string().contains(&nobody) && error.to_string().contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_waits_for_a_server_that_is_starting() {
    let mut server = Server::start(&[]);
    server.kill();
    let client = Client::connect(&*server.url).await.expect("a client");
    let submit = tokio::spawn(async move { client.enqueue::<nap>(0u64).await.map(|task| task.id().clone()) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let server = tokio::task::spawn_blocking(move || {
        server.start_again();
        server
    });
    let server = server.await.expect("started");
    let id = submit.await.expect("no panic").expect("stored");
    assert_eq!(server.task(id.as_str())["status"], "queued");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_not_tried_again() {
    let server = Server::start(&[]);
    let client = Client::connect(&*server.url).await.expect("a client");
    let error = client.enqueue::<nap>(0u64).queue("not a queue!").await.expect_err("refused");
    assert_eq!(error.code(), Some("invalid_field"));
    assert_eq!(error.problem().and_then(|problem| problem.field.as_deref()), Some("queue"));
    let error = client.task("019a0000-0000-7000-8000-000000000000").await.expect_err("no such task");
    assert_eq!(error.code(), Some("task_not_found"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_finds_its_way_out_of_a_black_hole() {
    let server = Server::start(&["--lease-seconds", "30", "--heartbeat-seconds", "0.3"]);
    let proxy = Proxy::before(&server).await;
    let client = Client::connect(&*proxy.url).await.expect("a client");
    let worker = Worker::new(&client).handle::<nap>().start().await.expect("started");
    let running = server.submit("nap", json!(500));
    while server.task(&running)["status"] != "executing" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.mischief.is_black_hole.store(true, Ordering::SeqCst);
    // The handler ends, its result and the waiting poll hang. Connections made from now on are fine again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.mischief.is_black_hole.store(false, Ordering::SeqCst);
    let begun = tokio::time::Instant::now();
    let next = server.submit("nap", json!(0));
    while server.task(&next)["status"] != "completed" || server.task(&running)["status"] != "completed" {
        assert!(begun.elapsed() < Duration::from_secs(25), "a poll that hangs would be given up after 35 s only");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.shutdown().await;
}
