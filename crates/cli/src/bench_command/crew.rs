//! The processes of one stage, made anew for it, so that no stage measures what another left behind.

use std::path::Path;

use super::figures::Way;
use super::folder::Folder;
use super::orders::{Answer, Order, Settled, Submit, Submitted};
use super::process::{Cost, Process};
use super::station;
use crate::exit::{Exit, Failure, Outcome};

/// Where the work is kept.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In stores of our own, in this folder.
    Private(&'a Path),
    /// With a server that was there before, at this URL.
    Existing(&'a str),
}

/// The processes; whoever is not there is played by the producer's process. They end before their store is removed.
#[derive(Debug)]
pub struct Crew {
    producer: Process,
    worker: Option<Process>,
    server: Option<Process>,
    _store: Option<Folder>,
}

impl Crew {
    /// Starts them and waits until they are ready.
    pub async fn start(way: Way, place: Place<'_>) -> Outcome<Self> {
        match (way, place) {
            (Way::Embedded, Place::Private(folder)) => {
                let store = new_store(folder)?;
                let producer = start_station("the embedding process", &address_of(&store)).await?;
                Ok(Self { producer, worker: None, server: None, _store: Some(store) })
            }
            (Way::Http, Place::Private(folder)) => {
                let store = new_store(folder)?;
                let (server, url) = start_server(&store).await?;
                let crew = Self::at(&url).await?;
                Ok(Self { server: Some(server), _store: Some(store), ..crew })
            }
            (_, Place::Existing(url)) => Self::at(url).await,
        }
    }

    async fn at(url: &str) -> Outcome<Self> {
        let producer = start_station("the producer", url).await?;
        let worker = start_station("the worker", url).await?;
        Ok(Self { producer, worker: Some(worker), server: None, _store: None })
    }

    fn worker_mut(&mut self) -> &mut Process {
        self.worker.as_mut().unwrap_or(&mut self.producer)
    }

    /// Whether the worker has a process that is nothing else.
    pub fn has_own_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// What the process with the worker costs.
    pub fn worker_cost(&self) -> Cost {
        self.worker.as_ref().unwrap_or(&self.producer).cost()
    }

    /// What the server costs, if it is ours and a process of its own.
    pub fn server_cost(&self) -> Option<Cost> {
        self.server.as_ref().map(Process::cost)
    }

    /// Submits as fast as possible.
    pub async fn submit(&mut self, submit: Submit) -> Outcome<Submitted> {
        match self.producer.order(&Order::Submit(submit)).await? {
            Answer::Submitted(submitted) => Ok(submitted),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the producer do something that is not measured here.
    pub async fn produce(&mut self, order: &Order) -> Outcome<Answer> {
        self.producer.order(order).await
    }

    /// Starts the worker.
    pub async fn work(&mut self, queues: Vec<String>, concurrency: Option<u32>) -> Outcome {
        match self.worker_mut().order(&Order::Work { queues, concurrency }).await? {
            Answer::Working => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until the worker has done so many tasks, and stops it.
    pub async fn settle(&mut self, tasks: u64) -> Outcome<Settled> {
        match self.worker_mut().order(&Order::Settle { tasks }).await? {
            Answer::Settled(settled) => Ok(settled),
            other => Err(unexpected(&other)),
        }
    }
}

/// An answer to another order.
pub fn unexpected(answer: &Answer) -> Failure {
    Failure::new(Exit::Failed, format!("a process of the benchmark gave an unexpected answer: {answer:?}"))
}

fn new_store(folder: &Path) -> Outcome<Folder> {
    Ok(Folder::new_in(folder, &format!("store-{}", uuid::Uuid::new_v4().simple()))?)
}

fn address_of(store: &Folder) -> String {
    format!("sqlite:{}", store.path().display())
}

async fn start_station(name: &'static str, address: &str) -> Outcome<Process> {
    let mut process = Process::start(name, &[station::STATION.to_owned(), address.to_owned()])?;
    match process.answer().await? {
        Answer::Ready => Ok(process),
        other => Err(unexpected(&other)),
    }
}

/// A server on a free port, with the settings that it has by itself.
async fn start_server(store: &Folder) -> Outcome<(Process, String)> {
    let address = address_of(store);
    let arguments = [station::SERVER, "--listen", "127.0.0.1:0", "--store", &address, "--log", "error"];
    let mut server = Process::start("the server", &arguments.map(str::to_owned))?;
    let greeting = server.line().await?;
    let url = greeting.split_whitespace().find(|word| word.starts_with("http://"));
    let url = url.ok_or_else(|| Failure::new(Exit::Failed, format!("the server said {greeting:?}")))?.to_owned();
    Ok((server, url))
}
