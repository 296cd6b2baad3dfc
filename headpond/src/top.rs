//! `headpond top`: what a pool is doing, every second, read from the admin listener.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::ensure;
use http::Method;
use serde_json::{Value, json};

use crate::cli::Top;
use crate::client::AdminClient;
use crate::shutdown::Shutdown;

mod frame;
mod rates;

use rates::{Counters, Rates};

const EVERY: Duration = Duration::from_secs(1);
/// Another screen, without cursor and without lines that wrap; what was there before comes back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

pub(crate) async fn run(options: Top) -> anyhow::Result<()> {
    let mut source = Source::open(&options).await?;
    // Somewhere that cannot be drawn over, frames would only pile up.
    let drawn = std::io::stdout().is_terminal() && !options.json;
    if options.once || !(drawn || options.json) {
        return Ok(print(&source.next().await?.shown(&options))?);
    }
    // Until here a signal ends the process by itself.
    let mut stop = Shutdown::listen()?;
    if drawn {
        print(ENTER)?;
    }
    let ended = tokio::select! {
        ended = watch(&mut source, &options, drawn) => ended,
        () = stop.requested() => Ok(()),
    };
    if drawn {
        print(LEAVE)?;
    }
    ended
}

/// Shows frames until the listener is gone.
async fn watch(source: &mut Source, options: &Top, drawn: bool) -> anyhow::Result<()> {
    loop {
        let shown = source.next().await?.shown(options);
        if drawn {
            // From the top left; what is left of longer lines and of further ones is wiped out.
            print(&format!(
                "\x1b[H{}\x1b[J",
                shown.replace('\n', "\x1b[K\r\n")
            ))?;
        } else {
            print(&shown)?;
        }
    }
}

/// What the listener says, second after second.
struct Source {
    client: AdminClient,
    url: String,
    before: Counters,
    at: Instant,
}

/// One look at the pools.
struct Look {
    url: String,
    pools: Vec<Value>,
    rates: Rates,
}

impl Source {
    async fn open(options: &Top) -> anyhow::Result<Self> {
        let client = AdminClient::new(&options.admin)?;
        let before = Counters::read(&client.text("/metrics").await?);
        Ok(Self {
            client,
            url: options.admin.admin_url.clone(),
            before,
            at: Instant::now(),
        })
    }

    /// A second after the last look.
    async fn next(&mut self) -> anyhow::Result<Look> {
        tokio::time::sleep(EVERY.saturating_sub(self.at.elapsed())).await;
        let mut state = self
            .client
            .call(Method::GET, "/admin/v1/pools", None)
            .await?;
        let counters = Counters::read(&self.client.text("/metrics").await?);
        let seconds = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        let rates = counters.since(&self.before, seconds);
        self.before = counters;
        let pools = match state.get_mut("pools").map(Value::take) {
            Some(Value::Array(pools)) => pools,
            _ => Vec::new(),
        };
        ensure!(
            !pools.is_empty(),
            "no scheduler runs in that process; ask the admin listener of `headpond schedule`: --admin-url http://HOST:9091"
        );
        Ok(Look {
            url: self.url.clone(),
            pools,
            rates,
        })
    }
}

impl Look {
    fn shown(&self, options: &Top) -> String {
        if options.json {
            return json!({ "pools": self.pools, "rates": self.rates }).to_string() + "\n";
        }
        self.pools
            .iter()
            .map(|pool| frame::render(&self.url, pool, &self.rates))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
