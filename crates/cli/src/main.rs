//! The `windlass` command: the list of all commands, and how the process ends.

mod bench_command;
mod commands;
mod connection;
mod dev_command;
mod each;
mod exit;
mod filter;
mod input;
mod keys;
mod log;
mod open_store;
mod pages;
mod secrets;
mod server_command;
mod settings;
mod show;
mod worker_command;

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use commands::{
    breakers, bury, cancel, completions, dlq, doctor, enqueue, error_rules, explain, findings, get, list, openapi,
    queues, retry, stats, types, wait, workers,
};
use exit::{Exit, Failure, Outcome};
use show::escape::plain_lines;
use show::screen::{ColorChoice, Screen, Tint};

/// Every command, under the heading that `--help` shows it. A new one is a module with `command()` and `run()`, a line
/// here and a line in [`run`].
fn commands() -> Vec<(&'static str, Vec<Command>)> {
    vec![
        ("Run", vec![server_command::command(), worker_command::command(), dev_command::command()]),
        (
            "Tasks",
            vec![
                enqueue::command(),
                get::command(),
                explain::command(),
                wait::command(),
                list::command(),
                cancel::command(),
                retry::command(),
                bury::command(),
            ],
        ),
        (
            "Operation",
            vec![
                stats::command(),
                queues::command(),
                types::command(),
                dlq::command(),
                error_rules::command(),
                breakers::command(),
                workers::command(),
                findings::command(),
                doctor::command(),
            ],
        ),
        ("Other", vec![bench_command::command(), openapi::command(), completions::command()]),
    ]
}

/// Runs the command that was named.
async fn run(matches: &ArgMatches) -> Outcome {
    match matches.subcommand() {
        Some(("server", matches)) => server_command::run(matches).await.map_err(|failure| server_failure(&failure)),
        Some(("worker", matches)) => worker_command::run(matches).await,
        Some(("dev", matches)) => dev_command::run(matches).await,
        Some(("enqueue", matches)) => enqueue::run(matches).await,
        Some(("get", matches)) => get::run(matches).await,
        Some(("explain", matches)) => explain::run(matches).await,
        Some(("wait", matches)) => wait::run(matches).await,
        Some(("list", matches)) => list::run(matches).await,
        Some(("cancel", matches)) => cancel::run(matches).await,
        Some(("retry", matches)) => retry::run(matches).await,
        Some(("bury", matches)) => bury::run(matches).await,
        Some(("stats", matches)) => stats::run(matches).await,
        Some(("queues", matches)) => queues::run(matches).await,
        Some(("types", matches)) => types::run(matches).await,
        Some(("dlq", matches)) => dlq::run(matches).await,
        Some(("error-rules", matches)) => error_rules::run(matches).await,
        Some(("breakers", matches)) => breakers::run(matches).await,
        Some(("workers", matches)) => workers::run(matches).await,
        Some(("findings", matches)) => findings::run(matches).await,
        Some(("doctor", matches)) => doctor::run(matches).await,
        Some(("bench", matches)) => bench_command::run(matches).await,
        Some(("openapi", _)) => openapi::run(),
        Some(("completions", matches)) => completions::run(matches, command()),
        // clap lets no other command through; a test holds the two lists together.
        other => Err(Failure::usage(format!("unknown command {}", other.map_or("", |(name, _)| name)))),
    }
}

fn command() -> Command {
    let groups = commands();
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}{{options}}{{after-help}}", overview(&groups));
    Command::new("windlass")
        .about("Background jobs that are never silently lost")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .help_template(template)
        .after_help(format!("\nwindlass COMMAND --help shows the flags of a command, with examples.\n\n{}", exit::HELP))
        .subcommands(groups.into_iter().flat_map(|(_, commands)| commands))
}

/// All commands with what they do, by heading.
fn overview(groups: &[(&str, Vec<Command>)]) -> String {
    let mut text = String::new();
    for (heading, commands) in groups {
        text.push_str(&format!("{heading}:\n"));
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:<12} {about}\n", command.get_name()));
        }
        text.push('\n');
    }
    text.push_str("Options:\n");
    text
}

/// What the server says about its settings is about the command line; the rest is not.
fn server_failure(failure: &server_command::Failure) -> Failure {
    let exit = if failure.is::<settings::SettingsError>() { Exit::Usage } else { Exit::Failed };
    Failure::new(exit, failure.to_string())
}

fn main() -> ExitCode {
    // A worker starts this binary once more for every program that it runs; before there are threads.
    if let Some(code) = windlass_exec::shim_main() {
        return code;
    }
    // A benchmark starts this binary once more for every process that it measures.
    if let Some(code) = bench_command::station_main() {
        return code;
    }
    let matches = command().get_matches();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(run(&matches))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(&failure);
            ExitCode::from(failure.exit() as u8)
        }
    }
}

/// What went wrong, and what to do.
fn tell(failure: &Failure) {
    if failure.is_told() {
        return;
    }
    let screen = Screen::new(ColorChoice::Auto);
    screen.say(&format!("{} {}", screen.tint_err(Tint::Bad, "error:"), plain_lines(&failure.to_string())));
    if let Some(hint) = failure.what_to_do() {
        screen.say(&plain_lines(hint));
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use crate::keys::KEYS;

    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_and_is_carried_out() {
        fn check(command: &Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{path} has no examples");
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        let source = include_str!("main.rs");
        let mut abouts = std::collections::BTreeSet::new();
        for command in super::command().get_subcommands() {
            check(command, "windlass");
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(abouts.insert(about.clone()), "{} does not say what it does: {about}", command.get_name());
            assert!(source.contains(&format!("Some((\"{}\",", command.get_name())), "{}", command.get_name());
        }
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
