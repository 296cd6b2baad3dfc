//! The `headpond` binary: argument parsing and wiring. What it runs is in the crates.

mod admin;
mod cli;
mod client;
mod config;
mod counted;
mod data;
mod descriptors;
mod engine;
mod govern;
mod in_process;
mod key;
mod ledger;
mod listener;
mod load;
mod random;
mod ready;
mod reload;
mod schedule;
mod shutdown;
mod silent;
mod simulate;
mod top;
mod up;
mod usage;
mod why;

use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command};
use usage::Usage;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("headpond: {error:#}");
            match error.downcast_ref::<Usage>() {
                Some(_) => ExitCode::from(usage::STATUS),
                None => ExitCode::FAILURE,
            }
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Config(command) => return config::run(command),
        Command::Ledger(command) => return ledger::run(command),
        Command::Simulate(options) => return simulate::run(&options),
        Command::Load(options) => return runtime()?.block_on(load::run(options)),
        Command::Up(options) => runtime()?.block_on(up::run(options))?,
        Command::Govern(options) => runtime()?.block_on(govern::run(options))?,
        Command::Schedule(options) => runtime()?.block_on(schedule::run(options))?,
        Command::Engine(options) => runtime()?.block_on(engine::run(options))?,
        Command::Key(command) => runtime()?.block_on(key::run(command))?,
        Command::Top(options) => runtime()?.block_on(top::run(options))?,
        Command::Why(options) => runtime()?.block_on(why::run(options))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One worker per core; `TOKIO_WORKER_THREADS` overrides it.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    descriptors::raise();
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// Logs go to standard error as JSON, one object a line; `HEADPOND_LOG` sets levels, as in `info,access=off`.
fn start_log() {
    let filter = EnvFilter::try_from_env("HEADPOND_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .init();
}
