//! Kills servers that share a database, and the database, under load, and checks that nothing was lost, doubled or made up.

use std::process::ExitCode;

use clap::Parser;
use windlass_harness::chaos::{Options, run};

/// Runs several Windlass servers on one database under load, kills servers and database at random moments, then checks
/// the recorded history.
///
/// Exit code 0: every promise was kept. 1: violations, listed in the report. 2: the test could not be run.
#[derive(Debug, Parser)]
#[command(name = "windlass-chaos", version)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.options).await {
        Ok(reports) => {
            println!("{reports}");
            ExitCode::from(u8::from(!reports.passed()))
        }
        Err(error) => {
            eprintln!("windlass-chaos: {error}");
            ExitCode::from(2)
        }
    }
}
