//! `headpond up`: both layers, an embedded ledger and, unless there are real ones, simulated engines, in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use governance_proxy::Governance;
use governance_proxy::config::SecretSource;
use ledger_store::SqliteLedger;
use loadgen::engine::SimEngine;
use scheduler_proxy::SchedulerProxy;
use scheduler_proxy::config::{Config as Scheduling, EndpointFile};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Surface;
use crate::cli::Up;
use crate::config::template::Served;
use crate::config::{self, Checked, File};
use crate::data::DataDir;
use crate::descriptors;
use crate::in_process::InProcess;
use crate::listener;
use crate::ready::{Ready, ReadyKey, ReadySecret, ReadyTenant};
use crate::reload::Reload;
use crate::schedule;
use crate::shutdown::Shutdown;
use crate::silent;
use crate::usage::Usage;
use banner::Engines;

mod banner;
mod discover;
mod embedded;
mod simulated;

/// What runs, once everything has started.
struct Stack {
    governance: Governance<InProcess>,
    scheduler: SchedulerProxy,
    ledger: SqliteLedger,
    engines: Vec<SimEngine>,
    data: DataDir,
}

pub(crate) async fn run(options: Up) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen()?;
    let data = DataDir::open(options.data_dir.as_deref())?;
    // Real engines are asked what they serve, and have time to answer.
    let settled = tokio::select! {
        settled = settle(&options, &data) => settled?,
        () = shutdown.requested() => return Ok(()),
    };
    let Settled {
        checked,
        listen,
        admin_listen,
        kind,
        engines,
        reload,
    } = settled;
    let (listener, admin) = listener::both(
        config::address(options.listen, listen, "127.0.0.1:8080"),
        config::address(options.admin_listen, admin_listen, "127.0.0.1:9090"),
    )
    .await?;
    let ready = ready(&checked, listener.local_addr()?, admin.local_addr()?)?;
    let token = checked.governance.admin_token.as_ref();
    let token = token.map(banner::token_file);
    let stack = Stack::start(checked, data, engines).await?;
    let stop_admin = CancellationToken::new();
    let tasks = TaskTracker::new();
    let surface = Surface {
        governance: Some(Arc::new(stack.governance.clone())),
        scheduler: Some(stack.scheduler.clone()),
    };
    tasks.spawn(surface.serve(admin, stop_admin.clone()));
    if let Some(path) = &options.ready_file {
        ready.write(path)?;
    }
    println!("{}", stack.screen(&options, &ready, kind, token).await);
    if let Some(reload) = reload {
        tasks.spawn(
            stop_admin
                .clone()
                .run_until_cancelled_owned(reload.follow(stack.scheduler.clone())),
        );
    }
    let limit = Duration::from_secs(options.drain_timeout);
    governance_proxy::serve(
        listener,
        stack.governance.clone(),
        descriptors::for_clients(),
        shutdown.requested(),
        limit,
    )
    .await;
    stop_admin.cancel();
    tasks.close();
    tasks.wait().await;
    stack.stop().await
}

impl Stack {
    async fn start(
        checked: Checked,
        data: DataDir,
        engines: Vec<SimEngine>,
    ) -> anyhow::Result<Self> {
        let ledger = data.ledger(checked.patience)?;
        let scheduler = schedule::start(checked.scheduling)?;
        let governance = Governance::new(
            checked.governance,
            ledger.clone(),
            InProcess(scheduler.clone()),
        )
        .await?;
        Ok(Self {
            governance,
            scheduler,
            ledger,
            engines,
            data,
        })
    }

    async fn screen(
        &self,
        options: &Up,
        ready: &Ready,
        engines: Engines,
        token: Option<String>,
    ) -> String {
        let silent = match engines {
            Engines::Real => silent::engines(&self.scheduler).await,
            Engines::Simulated | Engines::Forgotten => Vec::new(),
        };
        let screen = banner::Screen {
            ready,
            silent: &silent,
            engines,
            data: &self.data,
            kept: options.data_dir.is_some(),
            keys: match options.config {
                Some(_) => banner::Keys::Given,
                None => banner::Keys::Made,
            },
            token,
        };
        screen.text()
    }

    /// Open streams have finished or were cut; what is left is to write down what was settled.
    async fn stop(self) -> anyhow::Result<()> {
        self.scheduler.drain(Duration::from_secs(1)).await;
        drop(self.governance);
        self.ledger.close().await.context("closing the ledger")?;
        for engine in self.engines {
            engine.shutdown().await;
        }
        Ok(())
    }
}

/// The configuration in force, and the simulated engines it names.
struct Settled {
    checked: Checked,
    listen: Option<SocketAddr>,
    admin_listen: Option<SocketAddr>,
    kind: Engines,
    engines: Vec<SimEngine>,
    /// Where there is a file to follow.
    reload: Option<Reload>,
}

async fn settle(options: &Up, data: &DataDir) -> anyhow::Result<Settled> {
    let file = match &options.config {
        Some(path) => Some(File::read(path)?),
        None => None,
    };
    let reload = match (&options.config, &file) {
        (Some(path), Some(file)) => Some(Reload::listen(path, file.clone())?),
        _ => None,
    };
    let kind = kind(options, file.as_ref())?;
    let simulate = kind != Engines::Real;
    let mut discovered: Vec<_> = options
        .endpoint
        .iter()
        .map(|url| discover::Engine::unasked(url))
        .collect();
    let file = match file {
        Some(file) => file,
        None if simulate => embedded::file(data, &[Served::simulated()])?,
        None => {
            // What is no address is not asked, and not called an engine that does not answer.
            endpoints(discovered.iter().map(discover::Engine::endpoint))
                .context(Usage::new("--endpoint"))?;
            discovered = discover::engines(&options.endpoint).await?;
            embedded::file(data, &discover::models(&discovered))?
        }
    };
    let (listen, admin_listen) = (file.listen, file.admin_listen);
    let mut checked = file.check()?;
    checked.serves_something()?;
    override_by(options, &discovered, &mut checked.scheduling)?;
    let engines = if simulate {
        simulated::engines(&options.simulation, &mut checked).await?
    } else {
        Vec::new()
    };
    checked.warn();
    Ok(Settled {
        checked,
        listen,
        admin_listen,
        kind,
        engines,
        reload,
    })
}

/// What the command line says counts, whatever the file says.
fn override_by(
    options: &Up,
    discovered: &[discover::Engine],
    scheduling: &mut Scheduling,
) -> anyhow::Result<()> {
    if let Some(policy) = &options.policy {
        scheduling.policy = policy
            .parse()
            .map_err(|error| Usage::new(format!("--policy: {error}")))?;
    }
    if !discovered.is_empty() {
        scheduling.endpoints = endpoints(discovered.iter().map(discover::Engine::endpoint))
            .context(Usage::new("--endpoint"))?;
    }
    Ok(())
}

/// Whether there are real engines, and if not, whether somebody wanted simulated ones.
fn kind(options: &Up, file: Option<&File>) -> anyhow::Result<Engines> {
    let named = match file {
        Some(file) => !Scheduling::check(file.scheduling.clone())?
            .endpoints
            .is_empty(),
        None => false,
    };
    let asked = options.simulation.is_given();
    if options.endpoint.is_empty() && !named {
        return Ok(match file {
            Some(_) if !asked => Engines::Forgotten,
            _ => Engines::Simulated,
        });
    }
    ensure!(
        !asked,
        Usage::new(format!(
            "--engines, --profile, --speed and --slow are for simulated engines, and {} names real ones",
            if named {
                "the configuration file"
            } else {
                "--endpoint"
            }
        ))
    );
    Ok(Engines::Real)
}

fn endpoints(
    files: impl IntoIterator<Item = EndpointFile>,
) -> anyhow::Result<Vec<scheduler_proxy::config::Endpoint>> {
    let file = scheduler_proxy::config::File::with_endpoints(files);
    Ok(Scheduling::check(file)?.endpoints)
}

fn ready(checked: &Checked, clients: SocketAddr, operators: SocketAddr) -> anyhow::Result<Ready> {
    let Checked {
        governance,
        scheduling,
        ..
    } = checked;
    Ok(Ready {
        url: format!("http://{clients}"),
        admin_url: format!("http://{operators}"),
        models: governance
            .models
            .iter()
            .map(|model| model.name.clone())
            .collect(),
        tenants: keys_of(governance)?,
        endpoints: scheduling
            .endpoints
            .iter()
            .map(|endpoint| endpoint.origin.to_string())
            .collect(),
    })
}

/// The keys that the file names; the first of each tenant is read from where the file says it is.
fn keys_of(governance: &governance_proxy::config::Config) -> anyhow::Result<Vec<ReadyTenant>> {
    let mut tenants = Vec::new();
    for tenant in &governance.tenants {
        let keys = tenant.projects.iter().flat_map(|project| {
            let project_name = &project.name;
            project.keys.iter().map(move |key| (project_name, key))
        });
        let Some((_, first)) = keys.clone().next() else {
            continue;
        };
        tenants.push(ReadyTenant {
            name: tenant.name.to_string(),
            key: first.read()?,
            keys: keys
                .map(|(project, key)| ReadyKey {
                    project: project.clone(),
                    name: key.name.clone(),
                    role: key.role.as_str().to_owned(),
                    secret: match &key.secret {
                        SecretSource::File(path) => ReadySecret::File(path.clone()),
                        SecretSource::Env(name) => ReadySecret::Env(name.clone()),
                    },
                })
                .collect(),
        });
    }
    Ok(tenants)
}
