//! A welcome e-mail that rides out a flaky mail server, and gives an address up that does not exist.
//!
//! `cargo run --bin welcome-email` shows: the first e-mail goes through at the third attempt, the second one stands in
//! the dead-letter queue with its error, is mended by a person and replayed.

use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::{Client, Context, Error, Method, Retry, Status, TaskError, TaskResult, Worker, task};

#[derive(Debug, Serialize, Deserialize)]
struct Welcome {
    to: String,
    name: String,
}

/// Stands for a mail server: does not answer twice, then works; knows its addresses.
#[derive(Default)]
struct MailServer {
    outages: Mutex<u32>,
}

impl MailServer {
    fn send(&self, to: &str) -> TaskResult<String> {
        if !to.contains('@') {
            // No retry makes an address of this: a dead letter at once, for a person to look at.
            return Err(TaskError::permanent(format!("{to:?} is no e-mail address")).code("bad_address"));
        }
        let mut outages = self.outages.lock().map_err(|_| TaskError::retry("the mail server is in a bad way"))?;
        if *outages < 2 {
            *outages += 1;
            // Goes away by itself: tried again by the task's retry policy.
            return Err(TaskError::retry("the mail server does not answer").code("smtp_timeout"));
        }
        Ok(format!("message-{}", to.len()))
    }
}

// The defaults of this kind of task stand beside it; a submit can say otherwise.
#[task(name = "welcome_email", queue = "mail", priority = "high", max_retries = 5, timeout_seconds = 30)]
async fn welcome_email(context: &Context, welcome: Welcome) -> TaskResult<String> {
    println!("  attempt {} at welcoming {} <{}>", context.attempt(), welcome.name, welcome.to);
    context.state::<MailServer>()?.send(&welcome.to)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::var("WINDLASS_SERVER").unwrap_or_else(|_| "sqlite:welcome-email-data".to_owned());
    let client = Client::connect(address).await?;
    let worker = Worker::new(&client).handle::<welcome_email>().state(MailServer::default()).start().await?;

    println!("Ada's mail server is flaky:");
    let ada = client
        .enqueue::<welcome_email>(Welcome { to: "ada@example.com".into(), name: "Ada".into() })
        // A sign-up that is submitted twice is welcomed once.
        .idempotency_key(format!("welcome-ada-{}", std::process::id()))
        .retry(Retry::exponential(Duration::from_millis(100)))
        .await?;
    println!("  sent as {}", ada.result().await?);

    println!("Bob's address is wrong:");
    let bob = client.enqueue::<welcome_email>(Welcome { to: "bob".into(), name: "Bob".into() }).await?;
    if let Err(Error::TaskDidNotSucceed(task)) = bob.result().await {
        let error = task.error.as_ref().map_or("nothing", |error| &error.message);
        println!("  {:?} because {error}", task.status);
    }

    println!("A person looks at the dead letters, mends the address and replays:");
    let dead = client.call(Method::Get, "/api/v1/dlq?queue=mail", None).await?;
    println!("  {} dead letter(s) in the queue \"mail\"", dead["items"].as_array().map_or(0, Vec::len));
    let mended = json!({"parameters": {"to": "bob@example.com", "name": "Bob"}, "reason": "typo in the address"});
    client.call(Method::Post, &format!("/api/v1/dlq/{}/replay", bob.id()), Some(&mended)).await?;
    println!("  sent as {}", bob.result().await?);
    assert_eq!(bob.view().await?.status, Status::Completed);

    worker.shutdown().await;
    client.close().await;
    Ok(())
}
