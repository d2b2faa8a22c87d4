//! The screen that `windlass dev` begins with. Every command on it can be copied and works.

use std::net::SocketAddr;

use super::folder::StoreFolder;
use super::samples::{Submitted, TYPES};
use crate::show::screen::{Screen, Tint};

/// Where client commands look if nobody says.
const USUAL: &str = "127.0.0.1:7070";

/// The text.
pub fn text(screen: &Screen, address: SocketAddr, folder: &StoreFolder, tasks: &Submitted) -> String {
    let bold = |text: &str| screen.tint(Tint::Bold, text);
    let url = format!("http://{address}");
    let windlass = program();
    let mut lines = vec![
        bold(&format!("Windlass {} runs at {url}, with a sample worker.", env!("CARGO_PKG_VERSION"))),
        if folder.is_kept() {
            format!("The store is in {} and stays there. Ctrl-C stops it.", folder.path().display())
        } else {
            "The store is a throw-away one: Ctrl-C stops it and removes everything.".to_owned()
        },
        String::new(),
        bold("The worker knows these types of task; one of each is under way:"),
    ];
    lines.extend(TYPES.iter().map(|(name, what)| format!("  {name:<8}{what}")));
    lines.extend([String::new(), bold("Try it, in another terminal:")]);
    if url != format!("http://{USUAL}") {
        lines.push(format!("    export WINDLASS_SERVER={url}"));
    }
    let commands = [
        format!("{windlass} list"),
        format!("{windlass} enqueue greet --parameters '\"Ada\"' --wait"),
        format!("{windlass} get {} --history", tasks.flaky),
        format!("{windlass} cancel {}", tasks.slow),
        format!("{windlass} dlq"),
        format!("curl -s {url}/api/v1/tasks -d '{{\"task_type\": \"greet\", \"parameters\": \"Grace\"}}'"),
    ];
    lines.extend(commands.map(|command| format!("    {command}")));
    lines.extend([
        String::new(),
        bold("Any program can be a worker: parameters on stdin, result on stdout."),
        format!("    {windlass} worker --exec shout='tr a-z A-Z'"),
        format!("    {windlass} enqueue shout --parameters '\"hello\"' --wait"),
        String::new(),
        bold("What happens now:"),
    ]);
    lines.join("\n")
}

/// This program as it was called, so that what is copied calls the same one.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if !called.is_empty() && called.chars().all(is_plain) { called } else { "windlass".to_owned() }
}
