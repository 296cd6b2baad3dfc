//! One kept connection to one endpoint, answers read into one reused buffer. Shell.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::target::Target;

/// Why an endpoint told nothing this time. The next scrape follows all the same.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    #[error("cannot connect to the metrics address")]
    Unreachable(#[source] io::Error),
    #[error("no metrics page within {0:?}")]
    Timeout(Duration),
    #[error("the metrics connection broke")]
    Broken(#[source] hyper::Error),
    #[error("the metrics page is longer than {0} bytes")]
    TooLong(usize),
    #[error("the metrics address answered {0}")]
    Status(StatusCode),
    #[error("the metrics page tells neither running nor waiting requests under a known name")]
    NoLoad,
}

/// An answer whose body is in the buffer of the client.
pub(crate) struct Answer<'a> {
    pub(crate) status: StatusCode,
    pub(crate) body: &'a [u8],
}

type Sender = http1::SendRequest<Empty<Bytes>>;

pub(crate) struct Client {
    tracker: TaskTracker,
    host: String,
    port: u16,
    authority: HeaderValue,
    limit: usize,
    /// Present between requests only, so that a dropped request closes its connection.
    idle: Option<Sender>,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn new(tracker: TaskTracker, target: &Target, limit: usize) -> Self {
        let authority =
            HeaderValue::from_str(&target.authority).expect("a parsed authority is a header value");
        Self {
            tracker,
            host: target.host.clone(),
            port: target.port,
            authority,
            limit,
            idle: None,
            buffer: Vec::new(),
        }
    }

    /// Fetches a page. A kept connection that the engine has closed meanwhile is replaced once.
    pub(crate) async fn get(&mut self, uri: &Uri) -> Result<Answer<'_>, ScrapeError> {
        if let Some(sender) = self.idle.take() {
            match self.exchange(sender, uri).await {
                Ok(status) => {
                    return Ok(Answer {
                        status,
                        body: &self.buffer,
                    });
                }
                Err(ScrapeError::Broken(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let sender = self.connect().await?;
        let status = self.exchange(sender, uri).await?;
        Ok(Answer {
            status,
            body: &self.buffer,
        })
    }

    async fn connect(&self) -> Result<Sender, ScrapeError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(ScrapeError::Unreachable)?;
        stream.set_nodelay(true).map_err(ScrapeError::Unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(ScrapeError::Broken)?;
        self.tracker.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "metrics connection ended");
            }
        });
        Ok(sender)
    }

    async fn exchange(&mut self, mut sender: Sender, uri: &Uri) -> Result<StatusCode, ScrapeError> {
        sender.ready().await.map_err(ScrapeError::Broken)?;
        let response = sender
            .send_request(self.request(uri))
            .await
            .map_err(ScrapeError::Broken)?;
        let status = response.status();
        let mut body = response.into_body();
        self.buffer.clear();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(ScrapeError::Broken)?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if self.buffer.len() + data.len() > self.limit {
                return Err(ScrapeError::TooLong(self.limit));
            }
            self.buffer.extend_from_slice(data);
        }
        self.idle = Some(sender);
        Ok(status)
    }

    fn request(&self, uri: &Uri) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain"));
        headers.insert(USER_AGENT, HeaderValue::from_static("headpond"));
        request
    }
}
