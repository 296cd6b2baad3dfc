//! A child process that ends with its owner, and the CPU time it has used.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

/// A running child; killed and reaped when dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self(child))
    }

    /// Time its threads have spent on a processor, as the kernel's scheduler counts it.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let tasks = format!("/proc/{}/task", self.0.id());
        let mut total = Duration::ZERO;
        for task in std::fs::read_dir(&tasks).context("the process is gone")? {
            total += on_processor(&task?.path())?;
        }
        Ok(total)
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first field of `schedstat`: nanoseconds on a processor. A thread that has just ended counts as none.
fn on_processor(task: &Path) -> anyhow::Result<Duration> {
    let Ok(text) = std::fs::read_to_string(task.join("schedstat")) else {
        return Ok(Duration::ZERO);
    };
    let nanoseconds = text
        .split_whitespace()
        .next()
        .context("an empty schedstat")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}
