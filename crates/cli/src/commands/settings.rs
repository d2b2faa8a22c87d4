//! What `windlass queues` and `windlass types` have in common: things with a name, settings and a pause.

use clap::{Command, Subcommand};
use serde_json::Value;
use windlass::Method;

use crate::connection::Session;
use crate::each::for_each;
use crate::exit::{Exit, Failure, Outcome};
use crate::input::pairs::{self, Setting};
use crate::show::escape::{count, plain, url_part};
use crate::show::json_text::compact;
use crate::show::screen::Tint;
use crate::show::tasks::word;

/// What to do with them.
#[derive(Subcommand)]
pub enum Deed {
    /// Lists them; the same as without a command
    List,
    /// Shows one with its settings
    Get {
        /// Its name
        name: String,
    },
    /// Workers get no more tasks of it until it is resumed; what runs goes on
    Pause {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Workers get its tasks again
    Resume {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Changes settings; what is not named stays, KEY=null follows the default again
    Set {
        /// Its name
        name: String,
        /// Settings: JSON values or plain text; KEY.PART=VALUE changes a part
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pairs::setting)]
        settings: Vec<Setting>,
    },
    /// Forgets its settings; its tasks stay
    Clear {
        /// Its name
        name: String,
    },
}

/// Which of the two it is.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The word for one.
    pub noun: &'static str,
    /// Where they are.
    pub path: &'static str,
    /// The fields of one in the order they are shown; the first is its name.
    pub fields: &'static [&'static str],
}

/// Gives each subcommand its example.
pub fn with_examples(command: Command, examples: &[(&'static str, &str)]) -> Command {
    examples.iter().fold(command, |command, (name, lines)| {
        let text = format!("Examples:\n  {}", lines.replace('\n', "\n  ").replace("\n  \n  ", "\n\n"));
        command.mut_subcommand(name, |subcommand| subcommand.after_help(text))
    })
}

/// Does it to one of them; listing is done by their own module.
pub async fn run(session: &Session, kind: Kind, deed: &Deed) -> Outcome {
    match deed {
        Deed::List => Ok(()),
        Deed::Get { name } => {
            let text = session.text(&path(kind, name)).await?;
            show(session, kind, &text)
        }
        Deed::Pause { names } => pause(session, kind, names, "pause", "paused").await,
        Deed::Resume { names } => pause(session, kind, names, "resume", "resumed").await,
        Deed::Set { name, settings } => set(session, kind, name, settings).await,
        Deed::Clear { name } => {
            session.call(Method::Delete, &path(kind, name), None).await?;
            if session.json {
                return Ok(());
            }
            Ok(session.screen.line(&format!("{} {} follows the defaults again", kind.noun, plain(name)))?)
        }
    }
}

fn path(kind: Kind, name: &str) -> String {
    format!("{}/{}", kind.path, url_part(name))
}

async fn pause(session: &Session, kind: Kind, names: &[String], verb: &str, done: &str) -> Outcome {
    let deed = async |name: &str| {
        let answer = session.call(Method::Post, &format!("{}/{verb}", path(kind, name)), None).await?;
        let waiting = match answer["queued"].as_u64() {
            Some(queued) if queued > 0 && verb == "pause" => format!("; waiting in it: {}", count(queued, "task")),
            _ => String::new(),
        };
        Ok((format!("{} {} {done}{waiting}", kind.noun, plain(name)), answer))
    };
    for_each(session, names, deed).await
}

async fn set(session: &Session, kind: Kind, name: &str, settings: &[Setting]) -> Outcome {
    let current = if pairs::has_parts(settings) { current(session, kind, name).await? } else { Value::Null };
    let body = pairs::change(settings, &current);
    let answer = session.call(Method::Put, &path(kind, name), Some(&body)).await.map_err(|error| {
        let settings = kind.fields.iter().skip(1).copied().collect::<Vec<_>>().join(", ");
        let is_unknown = error.code() == Some("unknown_field");
        let failure = Failure::from(error);
        if is_unknown { failure.hint(format!("Settings of a {}: {settings}.", kind.noun)) } else { failure }
    })?;
    show(session, kind, &answer.to_string())
}

/// How it is set now; one that has no settings yet follows the defaults.
async fn current(session: &Session, kind: Kind, name: &str) -> Outcome<Value> {
    match session.get(&path(kind, name)).await {
        Err(failure) if failure.exit() == Exit::NotFound => Ok(Value::Null),
        other => other,
    }
}

fn show(session: &Session, kind: Kind, text: &str) -> Outcome {
    if session.json {
        return session.print_json(text);
    }
    let document: Value = session.read(text)?;
    let screen = &session.screen;
    let mut lines = Vec::new();
    for (index, name) in kind.fields.iter().enumerate() {
        let Some(value) = document.get(*name) else { continue };
        let shown = match value {
            Value::Null => screen.tint(Tint::Dim, "default"),
            Value::Object(_) | Value::Array(_) => compact(&value.to_string()),
            Value::Bool(true) if *name == "paused" => screen.tint(Tint::Warn, "true"),
            other => word(other),
        };
        if index == 0 {
            lines.push(screen.tint(Tint::Bold, &shown));
        } else {
            lines.push(format!("  {}  {shown}", screen.tint(Tint::Dim, &format!("{name:<18}"))));
        }
    }
    Ok(screen.line(&lines.join("\n"))?)
}
