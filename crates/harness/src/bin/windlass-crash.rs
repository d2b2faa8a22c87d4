//! Kills a server again and again under load and checks that nothing was lost, doubled or made up.

use std::process::ExitCode;

use clap::Parser;
use windlass_harness::crash::{Options, run};

/// Kills a Windlass server at random moments under load, then checks the recorded history.
///
/// Exit code 0: every promise was kept. 1: violations, listed in the report. 2: the test could not be run.
#[derive(Debug, Parser)]
#[command(name = "windlass-crash", version)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.options).await {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(!report.passed()))
        }
        Err(error) => {
            eprintln!("windlass-crash: {error}");
            ExitCode::from(2)
        }
    }
}
