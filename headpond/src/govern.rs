//! `headpond govern`: L1 alone, in front of a `headpond schedule`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use governance_proxy::config::Config as Governing;
use governance_proxy::{Governance, RemoteScheduler};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Surface;
use crate::cli::Govern;
use crate::config::{self, Checked, File};
use crate::data::DataDir;
use crate::descriptors;
use crate::listener;
use crate::ready::Ready;
use crate::shutdown::Shutdown;

pub(crate) async fn run(options: Govern) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen()?;
    let file = File::read(&options.config)?;
    let (listen, admin_listen) = (file.listen, file.admin_listen);
    let (url, keys) = (file.scheduler_url.clone(), file.context_keys.clone());
    let checked = file.check()?;
    checked.warn();
    let url = url.context(
        "scheduler_url: missing; say where `headpond schedule` listens, such as http://127.0.0.1:8081",
    )?;
    let signer = config::context_keys(keys.as_deref())?
        .signer()
        .context("context_keys: the first key of the file cannot sign")?;
    let scheduler = RemoteScheduler::new(&url, signer).context("scheduler_url")?;
    let Checked {
        governance: config,
        patience,
        ..
    } = checked;
    let data = DataDir::open(Some(&options.data_dir))?;
    let ledger = data.ledger(patience)?;
    let (listener, admin) = listener::both(
        config::address(options.serve.listen, listen, "127.0.0.1:8080"),
        config::address(options.serve.admin_listen, admin_listen, "127.0.0.1:9090"),
    )
    .await?;
    let ready = ready(&config, url, &listener, &admin)?;
    let governance = Governance::new(config, ledger.clone(), scheduler).await?;
    let stop_admin = CancellationToken::new();
    let tasks = TaskTracker::new();
    let surface = Surface {
        governance: Some(Arc::new(governance.clone())),
        scheduler: None,
    };
    tasks.spawn(surface.serve(admin, stop_admin.clone()));
    println!("governing on {}, admin on {}", ready.url, ready.admin_url);
    if let Some(path) = &options.serve.ready_file {
        ready.write(path)?;
    }
    let limit = Duration::from_secs(options.serve.drain_timeout);
    let places = descriptors::for_clients();
    governance_proxy::serve(listener, governance, places, shutdown.requested(), limit).await;
    stop_admin.cancel();
    tasks.close();
    tasks.wait().await;
    ledger.close().await.context("closing the ledger")
}

fn ready(
    config: &Governing,
    scheduler: String,
    clients: &TcpListener,
    operators: &TcpListener,
) -> anyhow::Result<Ready> {
    let models = config.models.iter();
    Ok(Ready {
        url: format!("http://{}", clients.local_addr()?),
        admin_url: format!("http://{}", operators.local_addr()?),
        models: models.map(|model| model.name.clone()).collect(),
        tenants: Vec::new(),
        endpoints: vec![scheduler],
    })
}
