//! `headpond govern`: L1 alone, in front of a `headpond schedule`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use governance_proxy::{Governance, RemoteScheduler};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Surface;
use crate::cli::Govern;
use crate::config::{self, File};
use crate::data::DataDir;
use crate::descriptors;
use crate::listener;
use crate::ready::Ready;
use crate::shutdown::Shutdown;

pub(crate) async fn run(options: Govern) -> anyhow::Result<()> {
    let shutdown = Shutdown::listen()?;
    let file = File::read(&options.config)?;
    let (listen, admin_listen) = (file.listen, file.admin_listen);
    let keys = config::context_keys(file.context_keys.as_deref())?;
    let signer = keys
        .signer()
        .context("context_keys: the current key cannot sign")?;
    let url = file
        .scheduler_url
        .as_deref()
        .context("scheduler_url: missing; say where `headpond schedule` listens, such as http://127.0.0.1:8081")?;
    let scheduler = RemoteScheduler::new(url, signer).context("scheduler_url")?;
    let patience = file.ledger.patience()?;
    let config = governance_proxy::config::Config::check(file.governance)?;
    let models = config
        .models
        .iter()
        .map(|model| model.name.clone())
        .collect();
    let data = DataDir::open(Some(&options.data_dir))?;
    let ledger = data.ledger(patience)?;
    let listener = listener::bind(
        config::address(options.serve.listen, listen, "127.0.0.1:8080"),
        "clients",
    )
    .await?;
    let admin = listener::bind(
        config::address(options.serve.admin_listen, admin_listen, "127.0.0.1:9090"),
        "operators",
    )
    .await?;
    let governance = Governance::new(config, ledger.clone(), scheduler).await?;
    let ready = Ready {
        url: format!("http://{}", listener.local_addr()?),
        admin_url: format!("http://{}", admin.local_addr()?),
        models,
        tenants: Vec::new(),
        endpoints: vec![url.to_owned()],
    };
    let stop_admin = CancellationToken::new();
    let tasks = TaskTracker::new();
    let surface = Surface {
        governance: Some(Arc::new(governance.clone())),
        scheduler: None,
    };
    tasks.spawn(listener::serve(
        admin,
        move |request| surface.clone().handle(request),
        stop_admin.clone(),
        Duration::from_secs(1),
    ));
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
