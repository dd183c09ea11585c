//! The mcpmill command line.

mod batch;
mod cli;
mod commands;
mod config;
mod declarations;
mod edges;
mod error;
mod facts;
mod fixtures;
mod line;
mod local;
mod policies;
mod prices;
mod profiles;
mod publish;
mod report;
mod reporter;
mod run;
mod snapshots;
mod sources;
mod speed;
mod stage;

use std::process::ExitCode;

use clap::Parser;

use cli::Cli;
use error::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Several worker threads: the embedded model and caged servers keep some of them busy.
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return end(&Failure::from(anyhow::Error::new(e).context("failed to start"))),
    };
    let outcome = runtime.block_on(commands::dispatch(cli));
    // Threads that still wait for a reply nobody wants must not hold up the end.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

/// Prints the chain of causes and, after a blank line, what to do next.
fn end(failure: &Failure) -> ExitCode {
    let mut chain = failure.chain.iter();
    eprintln!("error: {}", chain.next().map(String::as_str).unwrap_or_default());
    chain.for_each(|cause| eprintln!("  caused by: {cause}"));
    if let Some(hint) = &failure.hint {
        eprintln!("\nhint: {hint}");
    }
    ExitCode::from(failure.exit as u8)
}
