//! `headpond schedule`: L2 alone, behind a `headpond govern`.

use std::time::Duration;

use scheduler_proxy::SchedulerProxy;
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

pub(crate) async fn run(options: Schedule) -> anyhow::Result<()> {
    let shutdown = Shutdown::listen()?;
    let file = File::read(&options.config)?;
    let reload = Reload::listen(&options.config, file.clone())?;
    let (listen, admin_listen, keys) = (file.listen, file.admin_listen, file.context_keys.clone());
    // The whole file: what starts with it can be told to read it again.
    let config = file.check()?.scheduling;
    let pool = config.pool.clone();
    let needs_keys = config.untrusted == scheduler_proxy::config::Untrusted::Refuse;
    let endpoints = config
        .endpoints
        .iter()
        .map(|endpoint| endpoint.origin.to_string())
        .collect();
    // Without keys nothing is trusted; that is a choice only where untrusted requests are served.
    let keys = match keys {
        None if !needs_keys => None,
        path => Some(config::context_keys(path.as_deref())?),
    };
    let listener = listener::bind(
        config::address(options.serve.listen, listen, "127.0.0.1:8081"),
        "clients",
    )
    .await?;
    let admin = listener::bind(
        config::address(options.serve.admin_listen, admin_listen, "127.0.0.1:9091"),
        "operators",
    )
    .await?;
    let peer_key = config::peer_key(&config)?;
    let scheduler = SchedulerProxy::new(config, random::seed()?);
    if let Some(key) = peer_key {
        scheduler.meet_peers(key);
    }
    if let Some(keys) = keys {
        scheduler.set_verifier(keys.verifier(pool));
    }
    let ready = Ready {
        url: format!("http://{}", listener.local_addr()?),
        admin_url: format!("http://{}", admin.local_addr()?),
        models: Vec::new(),
        tenants: Vec::new(),
        endpoints,
    };
    let limit = Duration::from_secs(options.serve.drain_timeout);
    let (stop, stop_admin) = (CancellationToken::new(), CancellationToken::new());
    let tasks = TaskTracker::new();
    let surface = Surface {
        governance: None,
        scheduler: Some(scheduler.clone()),
    };
    tasks.spawn(listener::serve(
        admin,
        move |request| surface.clone().handle(request),
        stop_admin.clone(),
        Duration::from_secs(1),
    ));
    tasks.spawn(
        stop.clone()
            .run_until_cancelled_owned(reload.follow(scheduler.clone())),
    );
    let serving = scheduler.clone();
    tasks.spawn(listener::serve(
        listener,
        move |request| {
            let scheduler = serving.clone();
            async move { scheduler.handle(request).await }
        },
        stop.clone(),
        limit,
    ));
    println!("scheduling on {}, admin on {}", ready.url, ready.admin_url);
    if ready.endpoints.is_empty() {
        println!(
            "NO ENDPOINTS CONFIGURED: scheduling.endpoints names no engine, and every request ends with `no_endpoint`"
        );
    }
    if let Some(path) = &options.serve.ready_file {
        ready.write(path)?;
    }
    shutdown.requested().await;
    stop.cancel();
    scheduler.drain(limit).await;
    stop_admin.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}
