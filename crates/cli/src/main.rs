//! The `windlass` command.

mod keys;
mod open_store;
mod server_command;
mod settings;

use std::io::Write;
use std::process::ExitCode;

use clap::Command;

fn command() -> Command {
    Command::new("windlass")
        .about("Background jobs over HTTP")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(server_command::command())
        .subcommand(Command::new("openapi").about("Prints the description of the API (OpenAPI 3.1)"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let matches = command().get_matches();
    let done = match matches.subcommand() {
        Some(("server", matches)) => server_command::run(matches).await,
        Some(("openapi", _)) => print_openapi(),
        // clap lets no other command through.
        _ => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("windlass: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn print_openapi() -> Result<(), server_command::Failure> {
    let mut out = std::io::stdout();
    serde_json::to_writer_pretty(&mut out, &windlass_server::openapi())?;
    out.write_all(b"\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::keys::KEYS;

    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn names_follow_from_each_other_and_defaults_are_allowed() {
        for key in KEYS {
            assert_eq!(key.flag, key.name.replace(['.', '_'], "-"));
            assert_eq!(key.env, format!("WINDLASS_{}", key.name.replace('.', "_").to_uppercase()));
            assert!(key.default.is_empty() || key.kind.allows(key.default), "{}", key.name);
        }
    }
}
