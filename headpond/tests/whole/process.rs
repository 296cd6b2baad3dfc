//! A `headpond` process under test: started on free ports, ended with its test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest a start or a stop may take before the test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// The binary of this build.
pub(crate) fn headpond() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
    command
        .env_remove("HEADPOND_ADMIN_URL")
        .env_remove("HEADPOND_ADMIN_TOKEN_FILE")
        .env_remove("HEADPOND_LOG");
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("the command starts")
}

/// A running `headpond`, with what its ready file says. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) ready: Value,
    log: PathBuf,
}

impl Running {
    /// `headpond up` on free ports with more arguments.
    pub(crate) fn up(directory: &Path, arguments: &[&str]) -> Self {
        let data = directory.join("data");
        let mut all = vec!["up", "--data-dir", data.to_str().expect("a UTF-8 path")];
        all.extend_from_slice(arguments);
        Self::start(directory, "up", &all)
    }

    /// Any long-running subcommand that takes `--listen`, `--admin-listen` and `--ready-file`.
    pub(crate) fn start(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start_logging(directory, name, arguments, "info")
    }

    /// As [`Running::start`], with another level of its log. Addresses are free ones unless named.
    pub(crate) fn start_logging(
        directory: &Path,
        name: &str,
        arguments: &[&str],
        level: &str,
    ) -> Self {
        let ready_file = directory.join(format!("{name}.ready.json"));
        let _ = std::fs::remove_file(&ready_file);
        let mut command = headpond();
        command
            .args(arguments)
            .arg("--ready-file")
            .arg(&ready_file)
            .env("HEADPOND_LOG", level);
        for listener in ["--listen", "--admin-listen"] {
            if !arguments.contains(&listener) {
                command.args([listener, "127.0.0.1:0"]);
            }
        }
        let mut running = Self::spawn(directory, name, &mut command);
        running.ready = running.wait_ready(&ready_file);
        running
    }

    /// `headpond engine` on a free port; its ready file is the line that it prints.
    pub(crate) fn engine(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        let mut command = headpond();
        command
            .args(["engine", "--listen", "127.0.0.1:0"])
            .args(arguments);
        let mut running = Self::spawn(directory, name, &mut command);
        running.ready = running.wait_for(|running| {
            let log = running.log();
            let mut lines = log.split_inclusive('\n');
            let line = lines.find(|line| line.starts_with("a simulated"))?;
            let url = line
                .strip_suffix('\n')?
                .rsplit_once(" on ")
                .expect("the line names the address")
                .1;
            Some(serde_json::json!({ "url": url }))
        });
        running
    }

    /// Any command, as soon as its process is there.
    pub(crate) fn spawn(directory: &Path, name: &str, command: &mut Command) -> Self {
        let log = directory.join(format!("{name}.log"));
        let log_file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().expect("a second handle"))
            .stderr(log_file)
            .spawn()
            .expect("headpond starts");
        Self {
            child,
            ready: Value::Null,
            log,
        }
    }

    fn wait_ready(&mut self, file: &Path) -> Value {
        self.wait_for(|_| {
            let text = std::fs::read_to_string(file).ok()?;
            Some(serde_json::from_str(&text).expect("the ready file is written in one step"))
        })
    }

    fn wait_for(&mut self, look: impl Fn(&Self) -> Option<Value>) -> Value {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                panic!(
                    "headpond ended with {status} before it was ready:\n{}",
                    self.log()
                );
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "not ready after {PATIENCE:?}:\n{}",
                self.log()
            );
            std::thread::yield_now();
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.ready["url"]
            .as_str()
            .expect("the ready file has a url")
    }

    pub(crate) fn admin_url(&self) -> &str {
        self.ready["admin_url"]
            .as_str()
            .expect("the ready file has an admin_url")
    }

    pub(crate) fn key(&self, tenant: &str) -> &str {
        let tenants = self.ready["tenants"]
            .as_array()
            .expect("the ready file has tenants");
        let tenant = tenants
            .iter()
            .find(|entry| entry["name"] == tenant)
            .expect("the tenant is there");
        tenant["key"].as_str().expect("it has a key")
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        let endpoints = self.ready["endpoints"]
            .as_array()
            .expect("the ready file has endpoints");
        endpoints
            .iter()
            .map(|url| url.as_str().expect("a url").to_owned())
            .collect()
    }

    /// Everything it has printed.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(
            status.expect("kill runs").success(),
            "the process is there to be signalled"
        );
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                return status;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "still running after {PATIENCE:?}:\n{}",
                self.log()
            );
            std::thread::yield_now();
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be asked")
    }

    /// SIGKILL: it gets no chance to write anything down.
    pub(crate) fn kill(mut self) {
        self.signal("KILL");
        self.wait();
    }

    /// SIGTERM, and the exit it leads to.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
