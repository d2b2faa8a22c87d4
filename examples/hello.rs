//! The smallest program: define a task, enqueue it, run it, get its result. `cargo run --bin hello`
use windlass::{Client, TaskResult, Worker, task};

#[task]
async fn greet(name: String) -> TaskResult<String> {
    Ok(format!("Hello, {name}!"))
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let client = Client::connect("sqlite:hello-data").await?; // a server's address does as well
    Worker::new(&client).handle::<greet>().start().await?;
    println!("{}", client.enqueue::<greet>("Ada").await?.result().await?);
    Ok(())
}
