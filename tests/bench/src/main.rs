//! What a request costs through Headpond: CPU per request and per streamed chunk, and added latency,
//! each as a ratio to nginx round robin measured in the same run. Prints a table; asserts nothing.
//!
//! `cargo build --profile dist -p headpond && cargo run --profile dist -p headpond-bench`

mod backend;
mod client;
mod process;
mod report;
mod subjects;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;

use client::{Load, Shape};
use report::Report;
use subjects::Subject;

/// Compare Headpond with nginx round robin, in front of the same four backends.
#[derive(Parser)]
struct Options {
    /// The binary to measure
    #[arg(long, default_value = "target/dist/headpond")]
    headpond: PathBuf,
    /// Requests in each measurement
    #[arg(long, default_value_t = 20_000)]
    requests: usize,
    /// How often each measurement is repeated; the least CPU counts
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Only loads whose name contains this, as the table has it
    #[arg(long, default_value = "")]
    load: String,
    /// Only servers whose name contains this, and nginx
    #[arg(long, default_value = "")]
    server: String,
    /// Leave the times to the first byte out
    #[arg(long)]
    costs_only: bool,
    /// Serve as a backend on this port (used by the bench itself)
    #[arg(long, hide = true)]
    backend: Option<u16>,
}

const BACKENDS: usize = 4;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match options.backend {
        Some(port) => runtime.block_on(backend::serve(port)),
        None => runtime.block_on(compare(&options)),
    }
}

async fn compare(options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(
        options.headpond.exists(),
        "{} is missing; build it first: cargo build --profile dist -p headpond",
        options.headpond.display()
    );
    let directory = tempfile::tempdir().context("a temporary directory")?;
    let backends = backend::start(BACKENDS).await?;
    let ports: Vec<u16> = backends.iter().map(|backend| backend.port).collect();
    let mut subjects = Subject::start_all(&options.headpond, directory.path(), &ports).await?;
    subjects.retain(|subject| {
        subject.name == report::BASELINE || subject.name.contains(&options.server)
    });
    let is_wanted = |shape: &Shape| shape.to_string().contains(&options.load);
    let mut report = Report::default();
    for shape in Shape::all().into_iter().filter(is_wanted) {
        for subject in &subjects {
            let load = Load {
                requests: options.requests / shape.weight(),
                connections: 16,
                rate: None,
                shape,
            };
            for _ in 0..options.repeat {
                report.cost(shape, &subject.name, subject.measure(&load).await?);
            }
        }
    }
    let timed = [
        Shape::Prompt(200),
        Shape::Stream {
            chunks: 16,
            gap: Duration::ZERO,
        },
    ];
    let is_timed = |shape: &Shape| !options.costs_only && is_wanted(shape);
    for shape in timed.into_iter().filter(is_timed) {
        let load = Load {
            requests: 5_000,
            connections: 16,
            rate: Some(1_000.0),
            shape,
        };
        for _ in 0..options.repeat {
            report.latency(shape, "direct", &client::run(ports[0], "", &load).await?);
            for subject in &subjects {
                report.latency(
                    shape,
                    &subject.name,
                    &client::run(subject.port, &subject.key, &load).await?,
                );
            }
        }
    }
    println!("{report}");
    Ok(())
}
