//! A child process that ends with its owner, and the CPU time it has used.

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

    /// User and system time of the process and its children so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut total = ticks(self.0.id())?;
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            total += ticks(child.parse()?)?;
        }
        // The kernel counts in ticks of 10 ms (USER_HZ is 100 on Linux).
        Ok(Duration::from_millis(total * 10))
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
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

fn ticks(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // The command name may hold spaces; fields are counted after its closing parenthesis.
    let (_, rest) = stat.rsplit_once(')').context("an odd stat line")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}
