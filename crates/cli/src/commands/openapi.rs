//! `windlass openapi`: the description of the API.

use clap::Command;

use crate::exit::{Exit, Failure, Outcome};
use crate::show::screen::{ColorChoice, Screen};

const EXAMPLES: &str = r"Examples:
  windlass openapi > windlass.json
  windlass openapi | jq '.paths | keys'";

/// The command.
pub fn command() -> Command {
    Command::new("openapi").about("Prints the description of the API (OpenAPI 3.1)").after_help(EXAMPLES)
}

/// Prints it.
pub fn run() -> Outcome {
    let text = serde_json::to_string_pretty(&windlass_server::openapi())
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    Ok(Screen::new(ColorChoice::Never).line(&text)?)
}
