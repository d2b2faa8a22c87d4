//! Measures a running server: submit, bulk, drain, pickup, idle cost.

use std::process::ExitCode;

use clap::Parser;
use windlass_harness::load::{Options, run};

/// Measures a running Windlass server on this machine.
#[derive(Debug, Parser)]
#[command(name = "windlass-load", version)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.options).await {
        Ok(report) if arguments.options.json => match serde_json::to_string_pretty(&report) {
            Ok(json) => {
                println!("{json}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("windlass-load: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("windlass-load: {error}");
            ExitCode::FAILURE
        }
    }
}
