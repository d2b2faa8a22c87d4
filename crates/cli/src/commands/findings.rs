//! `windlass findings`: what looks wrong, in the server's own words.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::Value;

use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::input::moment;
use crate::show::escape::plain;
use crate::show::screen::Tint;

const EXAMPLES: &str = r#"Examples:
  windlass findings
  windlass findings --json | jq -r '.items[] | select(.severity == "critical") | .title'
  windlass doctor                        findings, and checks of the server and its store

Exit code 0 whether there are findings or not."#;

/// Where they are.
pub const PATH: &str = "/api/v1/findings";

#[derive(Args)]
struct FindingsArgs {
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let about = "Shows what looks wrong, with the next step";
    FindingsArgs::augment_args(Command::new("findings")).about(about).after_help(EXAMPLES)
}

/// The document of the API.
#[derive(Debug, Default, Deserialize)]
pub struct Findings {
    /// The most severe first.
    pub items: Vec<Finding>,
}

/// Something that looks wrong.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub code: String,
    pub severity: String,
    pub title: String,
    pub detail: String,
    pub evidence: Value,
    pub next_step: String,
    pub since: Option<String>,
}

/// Shows them.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = FindingsArgs::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let text = session.text(PATH).await?;
    if session.json {
        return session.print_json(&text);
    }
    let findings: Findings = session.read(&text)?;
    if findings.items.is_empty() {
        return Ok(session.screen.line("Nothing looks wrong.")?);
    }
    let shown: Vec<_> = findings.items.iter().map(|finding| block(&session, finding)).collect();
    Ok(session.screen.line(&shown.join("\n"))?)
}

fn block(session: &Session, finding: &Finding) -> String {
    let screen = &session.screen;
    let tint = match finding.severity.as_str() {
        "critical" => Tint::Bad,
        "warning" => Tint::Warn,
        _ => Tint::Dim,
    };
    let since = finding.since.as_deref().map(|since| format!("since {}", moment::relative(since, moment::now())));
    let since = since.map(|since| format!("  {}", screen.tint(Tint::Dim, &since))).unwrap_or_default();
    let severity = screen.tint(tint, &format!("{:<8}", plain(&finding.severity)));
    let next_step = screen.tint(Tint::Dim, &format!("→ {}", plain(&finding.next_step)));
    let title = screen.tint(Tint::Bold, &plain(&finding.title));
    format!("{severity}  {title}{since}\n          {}\n          {next_step}", plain(&finding.detail))
}
