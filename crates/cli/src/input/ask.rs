//! Questions before something that cannot be taken back.

use std::io::{BufRead, IsTerminal, Write};

use crate::exit::{Exit, Failure, Outcome};

/// Asks; goes on only after a yes. With `yes` nobody is asked, and without a terminal nobody can be.
pub fn confirm(question: &str, yes: bool) -> Outcome {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let message = format!("nobody can be asked: {question}");
        return Err(
            Failure::usage(message).hint("Give --yes to go on without a question, or --dry-run to see how many.")
        );
    }
    let mut err = std::io::stderr();
    write!(err, "{question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "nothing was changed"))
}
