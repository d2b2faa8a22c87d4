//! `windlass completions`: what a shell needs to complete commands and flags.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::Shell;

use crate::exit::{Failure, Outcome};
use crate::show::screen::{ColorChoice, Screen};

const EXAMPLES: &str = r"Examples:
  windlass completions bash > ~/.local/share/bash-completion/completions/windlass
  windlass completions zsh > ~/.zfunc/_windlass        (with fpath+=~/.zfunc in ~/.zshrc)
  windlass completions fish > ~/.config/fish/completions/windlass.fish
  windlass completions powershell >> $PROFILE";

#[derive(Args)]
struct Completions {
    /// Your shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The command.
pub fn command() -> Command {
    Completions::augment_args(Command::new("completions")).about("Prints completions for a shell").after_help(EXAMPLES)
}

/// Prints them.
pub fn run(matches: &ArgMatches, mut whole: Command) -> Outcome {
    let args = Completions::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "windlass", &mut script);
    Ok(Screen::new(ColorChoice::Never).text(&String::from_utf8_lossy(&script))?)
}
