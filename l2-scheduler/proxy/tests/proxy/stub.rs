//! An engine with scripted answers, on a real socket.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// What the engine does with a request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Status, content type, body.
    Whole(u16, &'static str, Bytes),
    /// 200 and events.
    Stream(Vec<Step>),
    /// Reads the request and says nothing.
    Never,
    /// Reads the request and closes the connection.
    Close,
}

/// A piece of a scripted stream.
#[derive(Clone)]
pub(crate) enum Step {
    Send(Bytes),
    /// Waits until the test says so.
    Gate(Arc<Notify>),
    /// Breaks the connection.
    Cut,
    /// Sends nothing more and stays.
    Hang,
}

/// An address for engines that come and go: while none is there, nobody else is given it.
pub(crate) struct Place {
    _bound: TcpSocket,
    pub(crate) address: SocketAddr,
}

impl Place {
    pub(crate) fn new() -> Self {
        let bound = TcpSocket::new_v4().expect("a socket");
        // A listener that says the same may bind to it as well.
        bound.set_reuseaddr(true).expect("a setting");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        bound.bind(any).expect("a free port");
        let address = bound.local_addr().expect("it is bound");
        Self {
            _bound: bound,
            address,
        }
    }
}

type Script = dyn Fn(usize, &Request<Bytes>) -> Reply + Send + Sync;

/// A running engine. Dropped, it is gone with all its connections.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Request<Bytes>>>,
    connections: AtomicUsize,
    /// Answers begun and neither ended nor dropped.
    open: AtomicUsize,
    metrics_pages: AtomicUsize,
}

pub(crate) fn send(text: &str) -> Step {
    Step::Send(Bytes::copy_from_slice(text.as_bytes()))
}

/// A chat chunk with some text.
pub(crate) fn token(text: &str) -> Step {
    send(&format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
    ))
}

pub(crate) fn finish() -> Step {
    send(
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
         data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\
         \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n",
    )
}

pub(crate) fn json(status: u16, body: &str) -> Reply {
    Reply::Whole(
        status,
        "application/json",
        Bytes::copy_from_slice(body.as_bytes()),
    )
}

pub(crate) fn completion() -> Reply {
    json(
        200,
        r#"{"choices":[{"text":"hi"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#,
    )
}

/// A whole, short stream.
pub(crate) fn chat() -> Reply {
    Reply::Stream(vec![token("a"), token("b"), finish()])
}

/// A short answer of the kind the path asks for.
pub(crate) fn either(request: &Request<Bytes>) -> Reply {
    if request.uri().path().ends_with("/chat/completions") {
        chat()
    } else {
        completion()
    }
}

impl Stub {
    pub(crate) async fn start(
        script: impl Fn(usize, &Request<Bytes>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0", script).await
    }

    pub(crate) async fn start_at(
        address: &str,
        script: impl Fn(usize, &Request<Bytes>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address)
            .await
            .expect("the address is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            metrics_pages: AtomicUsize::new(0),
        });
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let serve = serve(listener, Arc::clone(&shared), stop.clone(), tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(serve));
        Self {
            address,
            shared,
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests for answers it got.
    pub(crate) fn count(&self) -> usize {
        self.shared.seen.lock().expect("no panic").len()
    }

    pub(crate) fn request(&self, index: usize) -> Request<Bytes> {
        self.shared.seen.lock().expect("no panic")[index].clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    pub(crate) fn metrics_pages(&self) -> usize {
        self.shared.metrics_pages.load(Ordering::SeqCst)
    }
}

async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        stream.set_nodelay(true).expect("a new socket");
        let shared = Arc::clone(&shared);
        let connection_tasks = tasks.clone();
        let service = service_fn(move |request| {
            answer(Arc::clone(&shared), connection_tasks.clone(), request)
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            let _ = connection.await;
        }));
    }
}

async fn answer(
    shared: Arc<Shared>,
    tasks: TaskTracker,
    request: Request<Incoming>,
) -> io::Result<Response<Scripted>> {
    let (head, body) = request.into_parts();
    if head.uri.path().starts_with("/metrics") {
        shared.metrics_pages.fetch_add(1, Ordering::SeqCst);
        return Ok(whole(200, "text/plain", Bytes::from_static(METRICS), None));
    }
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::from_parts(head, body);
    // Whoever has not been heard within a second is asked for its models. A refusal is an answer.
    if request.method() == Method::GET {
        let (status, kind, body) = match (shared.script)(0, &request) {
            Reply::Whole(status, kind, body) => (status, kind, body),
            Reply::Stream(_) | Reply::Never | Reply::Close => {
                (404, "application/json", "{}".into())
            }
        };
        return Ok(whole(status, kind, body, None));
    }
    let number = {
        let mut seen = shared.seen.lock().expect("no panic");
        seen.push(request.clone());
        seen.len() - 1
    };
    let open = Open::new(&shared);
    match (shared.script)(number, &request) {
        Reply::Whole(status, kind, body) => Ok(whole(status, kind, body, Some(open))),
        Reply::Stream(steps) => Ok(stream(steps, open, &tasks)),
        Reply::Never => std::future::pending().await,
        Reply::Close => Err(io::Error::other("closed by the script")),
    }
}

const METRICS: &[u8] = b"# TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0\n\
    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0\n";

fn whole(status: u16, kind: &str, body: Bytes, open: Option<Open>) -> Response<Scripted> {
    let body = Scripted::Whole(Some(body).filter(|body| !body.is_empty()), open);
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("server", "stub")
        .body(body)
        .expect("a valid response")
}

fn stream(steps: Vec<Step>, open: Open, tasks: &TaskTracker) -> Response<Scripted> {
    let (sender, receiver) = mpsc::channel(1);
    tasks.spawn(async move {
        let _open = open;
        let closed = sender.clone();
        tokio::select! {
            () = closed.closed() => {}
            () = play(steps, sender) => {}
        }
    });
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(Scripted::Stream(receiver))
        .expect("a valid response")
}

async fn play(steps: Vec<Step>, sender: mpsc::Sender<io::Result<Bytes>>) {
    for step in steps {
        let next = match step {
            Step::Send(bytes) => Ok(bytes),
            Step::Gate(gate) => {
                gate.notified().await;
                continue;
            }
            Step::Cut => Err(io::Error::other("cut by the script")),
            Step::Hang => return std::future::pending().await,
        };
        if sender.send(next).await.is_err() {
            return;
        }
    }
}

struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Scripted {
    Whole(
        Option<Bytes>,
        #[expect(dead_code, reason = "held until the answer has gone out")] Option<Open>,
    ),
    Stream(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(body, _) => Poll::Ready(body.take().map(Frame::data).map(Ok)),
            Self::Stream(receiver) => receiver
                .poll_recv(context)
                .map(|next| next.map(|result| result.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None, _))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(body, _) => {
                http_body::SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Stream(_) => http_body::SizeHint::default(),
        }
    }
}
