//! What a worker runs for which type of task: `--exec TYPE=COMMAND`.

use std::collections::BTreeSet;

use windlass_core::names::TaskType;
use windlass_exec::Program;

use crate::exit::{Failure, Outcome};

/// A type of task and the program that does it.
#[derive(Clone, Debug)]
pub struct Served {
    /// The type.
    pub task_type: String,
    /// The program.
    pub program: Program,
}

/// Reads `TYPE=COMMAND`.
pub fn parse(text: &str) -> Result<Served, String> {
    let rule = "must be TYPE=COMMAND, such as resize_image=./resize.sh";
    let (task_type, command) = text.split_once('=').ok_or(rule)?;
    TaskType::new(task_type).map_err(|error| format!("the type '{task_type}' {error}"))?;
    let program = Program::parse(command).map_err(|error| format!("{error}; {rule}"))?;
    Ok(Served { task_type: task_type.to_owned(), program })
}

/// Looks whether every program can be run: a wrong name should be noticed now and not at the first task.
pub fn check(served: &[Served]) -> Outcome {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for Served { task_type, program } in served {
        if !seen.insert(task_type) {
            faults.push(format!("--exec {task_type}: given twice"));
        }
        if let Err(error) = program.check() {
            faults.push(format!("--exec {task_type}: {error}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::usage(faults.join("\n"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_and_a_command() {
        let served = parse("mail.send=./send --to 'a = b'").expect("sound");
        assert_eq!((served.task_type.as_str(), served.program.name()), ("mail.send", "./send"));
        assert_eq!(served.program.arguments(), ["--to", "a = b"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("resize", "TYPE=COMMAND"),
            ("resize=", "the command is empty"),
            ("a b=./x", "the type 'a b' must start with a letter"),
            ("x=sh -c 'exit", "never closed"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
