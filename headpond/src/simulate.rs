//! `headpond simulate`: the production scheduler in front of simulated engines on virtual time, policy against policy.

mod check;
mod json;
mod options;
mod parallel;
mod runs;
mod source;
mod table;

pub(crate) use options::Simulate;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use check::Plan;

/// More threads than this share no further work.
const MOST_THREADS: usize = 64;

pub(crate) fn run(options: &Simulate) -> anyhow::Result<ExitCode> {
    let plan = Plan::check(options)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let rows = runs::rows(
        &plan,
        threads.min(MOST_THREADS),
        parallel::Progress::if_terminal(),
    );
    if options.json {
        for row in &rows {
            for line in json::lines(row) {
                println!("{line}");
            }
        }
    } else {
        print!("{}", table::tables(&plan, &rows));
    }
    Ok(ExitCode::SUCCESS)
}
