//! The flags of every client command, and the calls that commands make with them.

use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use windlass::{Client, ClientBuilder, Method};

use crate::exit::{Exit, Failure, Outcome, START_ONE};
use crate::show::json_text::pretty;
use crate::show::screen::{ColorChoice, Screen};

// Which server, with which key. No doc comment: clap would take it for what the command is about.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection and output")]
pub struct ServerFlags {
    /// Server to talk to; several with commas are tried in turn
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WINDLASS_SERVER",
        default_value = "http://127.0.0.1:7070",
        value_parser = servers
    )]
    server: String,
    /// API key that calls carry
    #[arg(long, global = true, value_name = "KEY", env = "WINDLASS_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// Commands talk to servers. A store belongs to the one process that has it open.
fn servers(text: &str) -> Result<String, String> {
    if text.split(',').all(|part| part.trim().starts_with("http")) {
        return Ok(text.to_owned());
    }
    Err("it must be http://HOST:PORT, or several of these with commas".to_owned())
}

impl ServerFlags {
    /// A client to be set up further.
    pub fn client(&self) -> ClientBuilder {
        let builder = Client::builder(&self.server);
        match &self.api_key {
            Some(key) => builder.api_key(key),
            None => builder,
        }
    }
}

// Which server, with which key, and how answers are shown.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection and output")]
pub struct Connection {
    #[command(flatten)]
    server: ServerFlags,
    /// Print JSON: the same documents as the API
    #[arg(long, global = true)]
    json: bool,
    /// Colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "auto|always|never",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    color: ColorChoice,
}

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long an answer to a call that changes many tasks may take.
const BULK_ANSWER: Duration = Duration::from_mins(10);

/// How long a server may be away while somebody waits for a task.
const RESTART: Duration = Duration::from_secs(30);

/// A client and where its answers are shown.
pub struct Session {
    client: Client,
    /// Calls that may take long.
    bulk: Client,
    /// Calls that wait for something.
    patient: Client,
    /// Where output goes.
    pub screen: Screen,
    /// Whether documents are printed instead of tables and cards.
    pub json: bool,
}

impl Session {
    /// Sets the client up; nothing is sent yet.
    pub async fn open(connection: &Connection) -> Outcome<Self> {
        let client = |timeout, patience| connection.server.client().patience(patience).timeout(timeout);
        Ok(Self {
            // A person at a terminal wants to know at once that nobody is there.
            client: client(ANSWER, Duration::ZERO).connect().await?,
            bulk: client(BULK_ANSWER, Duration::ZERO).connect().await?,
            patient: client(ANSWER, RESTART).connect().await?,
            screen: Screen::new(connection.color),
            json: connection.json,
        })
    }

    /// Where calls go, for messages.
    pub fn server(&self) -> String {
        self.client.addresses().join(", ")
    }

    /// The text of a document, as it came.
    pub async fn text(&self, path: &str) -> Outcome<String> {
        self.client.read_text(path, Duration::ZERO).await.map_err(unread)
    }

    /// Like [`Session::text`], for a call that the server may hold. It rides out a server that restarts meanwhile.
    pub async fn text_held(&self, path: &str, hold: Duration) -> Outcome<String> {
        self.patient.read_text(path, hold).await.map_err(unread)
    }

    /// A document as a type.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.read(&self.text(path).await?)
    }

    /// An answer as a type.
    pub fn read<T: DeserializeOwned>(&self, text: &str) -> Outcome<T> {
        serde_json::from_str(text).map_err(|error| {
            let message = format!("{} gave an answer that was not understood: {error}", self.server());
            Failure::new(Exit::Failed, message).hint("Is this the address of a Windlass server? See `windlass doctor`.")
        })
    }

    /// A call that changes something.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> windlass::Result<Value> {
        self.client.call(method, path, body).await
    }

    /// A call that changes many tasks and may take long.
    pub async fn call_bulk(&self, path: &str, body: &Value) -> windlass::Result<Value> {
        self.bulk.call(Method::Post, path, Some(body)).await
    }

    /// Prints a document.
    pub fn print_json(&self, text: &str) -> Outcome {
        Ok(self.screen.line(&pretty(text))?)
    }

    /// Prints one document as it is, and several as the items of a page.
    pub fn print_documents(&self, documents: &[Box<RawValue>]) -> Outcome {
        if let [only] = documents {
            return self.print_json(only.get());
        }
        let items: Vec<_> = documents.iter().map(|document| document.get()).collect();
        self.print_json(&format!("{{\"items\":[{}],\"next_cursor\":null}}", items.join(",")))
    }
}

/// A read that failed can simply be repeated.
fn unread(error: windlass::Error) -> Failure {
    let is_unreachable = matches!(error, windlass::Error::Unreachable(_));
    let failure = Failure::from(error);
    if is_unreachable { failure.hint(START_ONE) } else { failure }
}

/// A value as the text of a document.
pub fn raw(value: &Value) -> Outcome<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))
}
