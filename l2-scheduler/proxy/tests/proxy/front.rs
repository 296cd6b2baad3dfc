//! The scheduler behind its HTTP entry, and a client for it.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use scheduler_proxy::SchedulerProxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::rig::Answer;

/// A listening scheduler; dropped, it is gone.
pub(crate) struct Front {
    address: SocketAddr,
    tasks: TaskTracker,
    _stop: DropGuard,
}

impl Front {
    pub(crate) async fn start(proxy: SchedulerProxy) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_on(listener, proxy)
    }

    pub(crate) fn start_on(listener: TcpListener, proxy: SchedulerProxy) -> Self {
        let address = listener.local_addr().expect("a bound socket");
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (inner_stop, inner_tasks) = (stop.clone(), tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let proxy = proxy.clone();
                let service = service_fn(move |request| {
                    let proxy = proxy.clone();
                    async move { Ok::<_, std::convert::Infallible>(proxy.handle(request).await) }
                });
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                inner_tasks.spawn(inner_stop.clone().run_until_cancelled_owned(async move {
                    let _ = connection.await;
                }));
            }
        }));
        Self {
            address,
            tasks,
            _stop: stop.drop_guard(),
        }
    }

    /// Sends bytes, and reads the answer up to the end of its JSON while the request is still open.
    pub(crate) async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.write_all(bytes).await.expect("it reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}}") {
            let read = tokio::time::timeout(crate::rig::LIMIT, stream.read_buf(&mut answer)).await;
            if read.expect("an answer in time").expect("no reset") == 0 {
                break;
            }
        }
        String::from_utf8(answer).expect("text")
    }

    pub(crate) async fn ask(&self, request: Request<Bytes>) -> Answer {
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("a new connection");
        self.tasks.spawn(async move {
            let _ = connection.await;
        });
        let request = request.map(Full::new);
        let response = tokio::time::timeout(crate::rig::LIMIT, sender.send_request(request))
            .await
            .expect("an answer in time")
            .expect("an answer");
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a complete answer").to_bytes();
        Answer {
            status: head.status,
            headers: head.headers,
            text: String::from_utf8(body.to_vec()).expect("text"),
        }
    }
}
