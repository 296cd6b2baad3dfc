//! `headpond schedule`: L2 alone, behind a `headpond govern`.

use std::path::Path;
use std::time::Duration;

use governance_context::KeyRing;
use scheduler_proxy::SchedulerProxy;
use scheduler_proxy::config::{Config as Scheduling, Untrusted};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Surface;
use crate::cli::Schedule;
use crate::config::{self, File};
use crate::listener;
use crate::random;
use crate::ready::Ready;
use crate::reload::Reload;
use crate::shutdown::Shutdown;
use crate::silent;

pub(crate) async fn run(options: Schedule) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen()?;
    let file = File::read(&options.config)?;
    let reload = Reload::listen(&options.config, file.clone())?;
    let (listen, admin_listen, keys) = (file.listen, file.admin_listen, file.context_keys.clone());
    // The whole file: what starts with it can be told to read it again.
    let checked = file.check()?;
    checked.warn();
    let config = checked.scheduling;
    let keys = trusted(keys.as_deref(), config.untrusted)?;
    let (listener, admin) = listener::both(
        config::address(options.serve.listen, listen, "127.0.0.1:8081"),
        config::address(options.serve.admin_listen, admin_listen, "127.0.0.1:9091"),
    )
    .await?;
    let ready = ready(&config, &listener, &admin)?;
    let pool = config.pool.clone();
    let scheduler = start(config)?;
    if let Some(keys) = keys {
        scheduler.set_verifier(keys.verifier(pool));
    }
    let limit = Duration::from_secs(options.serve.drain_timeout);
    let (stop, stop_admin) = (CancellationToken::new(), CancellationToken::new());
    let tasks = TaskTracker::new();
    let surface = Surface {
        governance: None,
        scheduler: Some(scheduler.clone()),
    };
    tasks.spawn(surface.serve(admin, stop_admin.clone()));
    tasks.spawn(
        stop.clone()
            .run_until_cancelled_owned(reload.follow(scheduler.clone())),
    );
    tasks.spawn(serve(listener, scheduler.clone(), stop.clone(), limit));
    println!("scheduling on {}, admin on {}", ready.url, ready.admin_url);
    if let Some(path) = &options.serve.ready_file {
        ready.write(path)?;
    }
    tell_of_engines(&scheduler, &ready).await;
    shutdown.requested().await;
    // Before the listener: who finds it closed is served no new request on an older connection either.
    tokio::join!(biased; scheduler.drain(limit), async { stop.cancel() });
    stop_admin.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// Starts a scheduler, which tells the others of its pool of its load where there are any.
pub(crate) fn start(config: Scheduling) -> anyhow::Result<SchedulerProxy> {
    let peer_key = config::peer_key(&config)?;
    let scheduler = SchedulerProxy::new(config, random::seed()?);
    if let Some(key) = peer_key {
        scheduler.meet_peers(key);
    }
    Ok(scheduler)
}

/// Without keys nothing is trusted; that is a choice only where untrusted requests are served.
fn trusted(path: Option<&Path>, untrusted: Untrusted) -> anyhow::Result<Option<KeyRing>> {
    match path {
        None if untrusted == Untrusted::Lowest => Ok(None),
        path => config::context_keys(path).map(Some),
    }
}

fn ready(
    config: &Scheduling,
    clients: &TcpListener,
    operators: &TcpListener,
) -> anyhow::Result<Ready> {
    let endpoints = config.endpoints.iter();
    Ok(Ready {
        url: format!("http://{}", clients.local_addr()?),
        admin_url: format!("http://{}", operators.local_addr()?),
        models: Vec::new(),
        tenants: Vec::new(),
        endpoints: endpoints
            .map(|endpoint| endpoint.origin.to_string())
            .collect(),
    })
}

async fn serve(
    listener: TcpListener,
    scheduler: SchedulerProxy,
    stop: CancellationToken,
    limit: Duration,
) {
    let handle = move |request| {
        let scheduler = scheduler.clone();
        async move { scheduler.handle(request).await }
    };
    listener::serve(listener, handle, stop, limit).await;
}

/// Says which engines are missing, if any are.
async fn tell_of_engines(scheduler: &SchedulerProxy, ready: &Ready) {
    if ready.endpoints.is_empty() {
        println!(
            "NO ENDPOINTS CONFIGURED: scheduling.endpoints names no engine, and every request ends with `no_endpoint`"
        );
    }
    let silent = silent::engines(scheduler).await;
    if !silent.is_empty() {
        println!("{}", silent::sentence(&silent));
    }
}
