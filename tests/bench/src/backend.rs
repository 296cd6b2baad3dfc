//! The backend of every subject: answers a chat completion at once, or streams what the request asks for.

use std::convert::Infallible;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

use crate::process::Process;

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"The river runs past the mill and turns the wheel."},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"total_tokens":66,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":0}}}"#;

/// A backend process and its port.
pub(crate) struct Backend {
    pub(crate) port: u16,
    _process: Process,
}

/// Starts backends in processes of their own, so that their CPU is not the bench's.
pub(crate) async fn start(count: usize) -> anyhow::Result<Vec<Backend>> {
    let program = std::env::current_exe()?;
    let mut backends = Vec::new();
    for _ in 0..count {
        let port = free_port()?;
        let process =
            Process::start(Command::new(&program).args(["--backend", &port.to_string()]))?;
        wait_for(port).await?;
        backends.push(Backend {
            port,
            _process: process,
        });
    }
    Ok(backends)
}

pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

/// Waits until a port accepts connections, 20 s at the most.
pub(crate) async fn wait_for(port: u16) -> anyhow::Result<()> {
    for _ in 0..1_000 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("nothing listens on port {port} after 20 s")
}

/// Serves until killed.
pub(crate) async fn serve(port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async move {
            loop {
                let (stream, _) = listener.accept().await.context("accept")?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(async move {
                    let service = service_fn(answer);
                    // A client that leaves is no failure of the backend.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        })
        .await
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, hyper::Error> {
    let plan = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    if plan.starts_with("/metrics") {
        return Ok(Response::new(
            Full::from("vllm:num_requests_running{engine=\"0\"} 0\n").boxed_unsync(),
        ));
    }
    // `chunks=16;gap_us=0;` in the prompt asks for a stream; nothing else of the body is read.
    let Some(asked) = find(&body, b"chunks=") else {
        let answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
        return Ok(answer
            .body(Full::from(ANSWER).boxed_unsync())
            .expect("a valid response"));
    };
    let asked = std::str::from_utf8(&body[asked..(asked + 40).min(body.len())]).unwrap_or_default();
    let stream = ChunkStream {
        left: number(asked, "chunks="),
        gap: Duration::from_micros(number(asked, "gap_us=")),
        sleep: None,
        ended: false,
    };
    let answer =
        Response::builder().header(header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
    Ok(answer
        .body(stream.boxed_unsync())
        .expect("a valid response"))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .rposition(|window| window == needle)
}

fn number(text: &str, name: &str) -> u64 {
    let rest = text.split_once(name).map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

struct ChunkStream {
    left: u64,
    gap: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl http_body::Body for ChunkStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(sleep) = &mut self.sleep {
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
        }
        if self.left > 0 {
            self.left -= 1;
            if !self.gap.is_zero() {
                self.sleep = Some(Box::pin(tokio::time::sleep(self.gap)));
            }
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(CHUNK.as_bytes())))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.ended = true;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(LAST.as_bytes())))))
    }
}

const CHUNK: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" river\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":92,\"total_tokens\":94,\"completion_tokens\":2,\"completion_tokens_details\":null}}\n\n";
const LAST: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":92,\"total_tokens\":108,\"completion_tokens\":16}}\n\ndata: [DONE]\n\n";
