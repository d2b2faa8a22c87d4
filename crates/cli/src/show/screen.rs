//! Where output goes: standard output for what was asked for, standard error for what is said along the way.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::Table;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A colour by what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// As it is.
    Plain,
    /// It went well.
    Good,
    /// It is going on.
    Active,
    /// It needs a look.
    Warn,
    /// It went wrong.
    Bad,
    /// It is beside the point.
    Dim,
    /// It is a heading.
    Bold,
}

impl Tint {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\x1b[32m",
            Self::Active => "\x1b[36m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[31m",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
        }
    }

    /// The tint of a task's or worker's status.
    pub fn of_status(status: &str) -> Self {
        match status {
            "completed" | "active" => Self::Good,
            "executing" => Self::Active,
            "failed" | "dead_letter" | "dead" => Self::Bad,
            "scheduled" | "blocked" | "unhealthy" | "draining" | "paused" => Self::Warn,
            "cancelled" => Self::Dim,
            _ => Self::Plain,
        }
    }
}

/// The two outputs and how they may be used.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Whether a person reads standard error.
    pub err_is_terminal: bool,
    /// How many columns the terminal has, if standard output is one.
    pub width: Option<usize>,
    colors_out: bool,
    colors_err: bool,
}

impl Screen {
    /// The outputs of this process.
    pub fn new(choice: ColorChoice) -> Self {
        let (out_is_terminal, err_is_terminal) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let is_muted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colors = |is_terminal| match choice {
            ColorChoice::Auto => is_terminal && !is_muted,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Self {
            err_is_terminal,
            width: if out_is_terminal { Table::new().width().map(usize::from) } else { None },
            colors_out: colors(out_is_terminal),
            colors_err: colors(err_is_terminal),
        }
    }

    /// Whether standard output has colours.
    pub fn has_colors(&self) -> bool {
        self.colors_out
    }

    /// Text for standard output in a colour.
    pub fn tint(&self, tint: Tint, text: &str) -> String {
        tinted(self.colors_out, tint, text)
    }

    /// Text for standard error in a colour.
    pub fn tint_err(&self, tint: Tint, text: &str) -> String {
        tinted(self.colors_err, tint, text)
    }

    /// Writes a line (or several) to standard output.
    #[allow(clippy::unused_self, reason = "the screen is what can be written to")]
    pub fn line(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")
    }

    /// Writes text to standard output.
    #[allow(clippy::unused_self, reason = "the screen is what can be written to")]
    pub fn text(&self, text: &str) -> io::Result<()> {
        io::stdout().lock().write_all(text.as_bytes())
    }

    /// Says something to the person at the terminal; a script is not bothered with it.
    pub fn aside(&self, text: &str) {
        if self.err_is_terminal {
            self.say(&self.tint_err(Tint::Dim, text));
        }
    }

    /// Says something on standard error.
    #[allow(clippy::unused_self, reason = "the screen is what can be written to")]
    pub fn say(&self, text: &str) {
        // Where nobody can be told, there is nobody to tell that either.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}

fn tinted(colors: bool, tint: Tint, text: &str) -> String {
    if colors && tint != Tint::Plain { format!("{}{text}\x1b[0m", tint.code()) } else { text.to_owned() }
}
