//! The load: a fixed number of keep-alive connections, as fast as they go or at a fixed rate.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What is asked of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// A prompt of so many bytes, answered in one piece.
    Prompt(usize),
    /// A short prompt, answered in chunks.
    Stream { chunks: usize, gap: Duration },
}

impl Shape {
    pub(crate) fn all() -> [Self; 5] {
        [
            Self::Prompt(200),
            Self::Prompt(8 << 10),
            Self::Prompt(64 << 10),
            Self::Stream {
                chunks: 64,
                gap: Duration::ZERO,
            },
            Self::Stream {
                chunks: 64,
                gap: Duration::from_millis(10),
            },
        ]
    }

    /// How many plain requests one of these is worth.
    pub(crate) fn weight(self) -> usize {
        match self {
            Self::Prompt(bytes) => 1 + bytes / (32 << 10),
            Self::Stream { gap, .. } => {
                if gap.is_zero() {
                    10
                } else {
                    40
                }
            }
        }
    }

    /// Chunks of an answer: what a cost is divided by.
    pub(crate) fn units(self) -> usize {
        match self {
            Self::Prompt(_) => 1,
            Self::Stream { chunks, .. } => chunks,
        }
    }

    fn body(self, serial: usize) -> Bytes {
        let (prompt, stream) = match self {
            Self::Prompt(bytes) => (bytes, ""),
            Self::Stream { .. } => (
                200,
                r#","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
            ),
        };
        // Half of each prompt is shared with others, half is its own.
        let shared = "The mill stands by the river. ".repeat(prompt / 60 + 1);
        let own = format!("Turn {serial} of the wheel. ").repeat(prompt / 40 + 1);
        let wish = match self {
            Self::Prompt(_) => String::new(),
            // The backend reads what it is to do from the prompt, since everybody passes that on.
            Self::Stream { chunks, gap } => format!("chunks={chunks};gap_us={};", gap.as_micros()),
        };
        let text = format!(
            "{}{}{wish}",
            &shared[..prompt / 2],
            &own[..prompt - prompt / 2]
        );
        Bytes::from(format!(
            r#"{{"model":"bench","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":16{stream}}}"#
        ))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(bytes) => write!(formatter, "prompt {bytes} B"),
            Self::Stream { chunks, gap } if gap.is_zero() => {
                write!(formatter, "{chunks} chunks back to back")
            }
            Self::Stream { chunks, gap } => {
                write!(formatter, "{chunks} chunks every {} ms", gap.as_millis())
            }
        }
    }
}

/// How much of it, and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) connections: usize,
    /// Requests per second over all connections; as fast as they go when absent.
    pub(crate) rate: Option<f64>,
    pub(crate) shape: Shape,
}

/// Seconds from sending (at a fixed rate: from the intended time) to the first byte of the body, sorted.
pub(crate) type Latencies = Vec<f64>;

pub(crate) async fn run(port: u16, key: &str, load: &Load) -> anyhow::Result<Latencies> {
    let mut tasks = JoinSet::new();
    let start = Instant::now() + Duration::from_millis(20);
    for lane in 0..load.connections {
        tasks.spawn(run_lane(port, key.to_owned(), *load, lane, start));
    }
    let mut latencies = Vec::with_capacity(load.requests);
    while let Some(lane) = tasks.join_next().await {
        latencies.extend(lane.context("a lane panicked")??);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

async fn run_lane(
    port: u16,
    key: String,
    load: Load,
    lane: usize,
    start: Instant,
) -> anyhow::Result<Latencies> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut background = JoinSet::new();
    background.spawn(connection);
    let mut latencies = Vec::new();
    for serial in (lane..load.requests).step_by(load.connections) {
        let mut sent = Instant::now();
        if let Some(rate) = load.rate {
            sent = start + Duration::from_secs_f64(serial as f64 / rate);
            tokio::time::sleep_until(sent.into()).await;
        }
        exchange(
            &mut sender,
            &key,
            load.shape.body(serial),
            sent,
            &mut latencies,
        )
        .await?;
    }
    Ok(latencies)
}

async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    key: &str,
    body: Bytes,
    sent: Instant,
    latencies: &mut Latencies,
) -> anyhow::Result<()> {
    let request = Request::post("/v1/chat/completions")
        .header(header::HOST, "bench")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {key}"))
        .body(Full::new(body))?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut first = true;
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if first {
            latencies.push(sent.elapsed().as_secs_f64());
            first = false;
        }
        if !status.is_success() {
            let text = frame.into_data().unwrap_or_default();
            anyhow::bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
    }
    Ok(())
}
