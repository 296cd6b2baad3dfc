//! What is measured: nginx, and Headpond in its three forms, each with one worker.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::backend::{free_port, wait_for};
use crate::client::{self, Load};
use crate::process::Process;

/// A server under measurement.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// The virtual key it wants, if any.
    pub(crate) key: String,
    process: Process,
}

/// What one request cost the server.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) cpu_us: f64,
    pub(crate) resident: u64,
}

const KEY: &str = "hp-benchbench23-abcdefghijklmnopqrstuvwxyz0123456789abcdefg";

impl Subject {
    pub(crate) async fn start_all(
        headpond: &Path,
        directory: &Path,
        backends: &[u16],
    ) -> anyhow::Result<Vec<Self>> {
        std::fs::write(directory.join("bench.key"), KEY)?;
        std::fs::write(
            directory.join("context.keys"),
            format!("kid: bench\nsecret: hex:{}\n", "6b".repeat(32)),
        )?;
        Ok(vec![
            nginx(directory, backends).await?,
            headpond_form(
                headpond,
                directory,
                "schedule",
                "headpond schedule (L2)",
                &scheduling(backends),
            )
            .await?,
            headpond_form(
                headpond,
                directory,
                "govern",
                "headpond govern (L1)",
                &governing(directory, backends[0]),
            )
            .await?,
            headpond_form(
                headpond,
                directory,
                "up",
                "headpond up (L1 + L2)",
                &both(directory, backends),
            )
            .await?,
        ])
    }

    /// Runs a load and divides the CPU the server used by the requests.
    pub(crate) async fn measure(&self, load: &Load) -> anyhow::Result<Cost> {
        let warm = Load {
            requests: 200,
            ..*load
        };
        client::run(self.port, &self.key, &warm)
            .await
            .with_context(|| format!("warming up {}", self.name))?;
        let before = self.process.cpu()?;
        client::run(self.port, &self.key, load)
            .await
            .with_context(|| format!("measuring {}", self.name))?;
        let used = self.process.cpu()?.saturating_sub(before);
        Ok(Cost {
            cpu_us: used.as_secs_f64() * 1e6 / load.requests as f64,
            resident: self.process.resident()?,
        })
    }
}

async fn nginx(directory: &Path, backends: &[u16]) -> anyhow::Result<Subject> {
    let port = free_port()?;
    let mut servers = String::new();
    for backend in backends {
        writeln!(servers, "server 127.0.0.1:{backend};")?;
    }
    let home = directory.display();
    let config = format!(
        "worker_processes 1; pid {home}/nginx.pid; error_log {home}/nginx.log; daemon off; master_process off;
events {{ worker_connections 1024; }}
http {{ access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream engines {{ {servers} keepalive 64; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }} }} }}\n"
    );
    let file = directory.join("nginx.conf");
    std::fs::write(&file, config)?;
    let process = Process::start(Command::new("nginx").arg("-c").arg(&file))
        .context("nginx is the baseline; install it: apt-get install nginx-light")?;
    wait_for(port).await?;
    Ok(Subject {
        name: crate::report::BASELINE.to_owned(),
        port,
        key: String::new(),
        process,
    })
}

async fn headpond_form(
    headpond: &Path,
    directory: &Path,
    form: &str,
    name: &str,
    config: &str,
) -> anyhow::Result<Subject> {
    let (port, admin) = (free_port()?, free_port()?);
    let file = directory.join(format!("{form}.yaml"));
    std::fs::write(&file, config)?;
    let mut command = Command::new(headpond);
    command.arg(form).arg("--config").arg(&file);
    command.args([
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--admin-listen",
        &format!("127.0.0.1:{admin}"),
    ]);
    if form != "schedule" {
        command
            .arg("--data-dir")
            .arg(directory.join(format!("{form}.data")));
    }
    // One worker, as nginx has.
    command.env("TOKIO_WORKER_THREADS", "1");
    let process = Process::start(&mut command)?;
    wait_for(port)
        .await
        .with_context(|| format!("headpond {form} did not start"))?;
    let key = if form == "schedule" {
        String::new()
    } else {
        KEY.to_owned()
    };
    Ok(Subject {
        name: name.to_owned(),
        port,
        key,
        process,
    })
}

fn scheduling(backends: &[u16]) -> String {
    let mut text = "scheduling:\n  untrusted: lowest\n  room: 1000\n  endpoints:\n".to_owned();
    for backend in backends {
        writeln!(text, "    - url: http://127.0.0.1:{backend}").expect("a string takes all");
    }
    text
}

fn governing(directory: &Path, backend: u16) -> String {
    format!(
        "scheduler_url: http://127.0.0.1:{backend}\ncontext_keys: {}\n{}",
        directory.join("context.keys").display(),
        governance(directory)
    )
}

fn both(directory: &Path, backends: &[u16]) -> String {
    format!("{}{}", scheduling(backends), governance(directory))
}

/// One tenant with limits on four levels, so that the whole chain is paid for.
fn governance(directory: &Path) -> String {
    format!(
        "ledger: {{ patience_ms: 5000 }}
governance:
  access_log: false
  models:
    - {{ name: bench, context_tokens: 131072, price: {{ uncached: \"0.001\", cached: \"0.0001\", output: \"0.002\" }} }}
  tenants:
    - name: bench
      limits:
        - {{ requests: 1000000, per: 1s }}
        - {{ concurrency: 10000 }}
        - {{ wtu: 1000000000000, per: 1d }}
      projects:
        - name: bench
          limits: [{{ wtu: 1000000000000, per: 1d }}]
          users: [{{ name: bench, limits: [{{ wtu: 1000000000000, per: 1d }}] }}]
          keys:
            - {{ name: bench, user: bench, secret: {{ file: {} }} }}
",
        directory.join("bench.key").display()
    )
}
