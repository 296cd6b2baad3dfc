//! The other schedulers of the pool: each tells the others what load it has put on the endpoints, and which prompts it has
//! sent there, whenever the pool says that it is time.
//!
//! Nothing waits for it: a vector that is not sent, not heard or not believed is counted, and the next whole one heals it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use scheduler_core::{Input, LoadVector};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{Code, Problem};
use crate::body::Body;
use crate::config::Config;
use crate::dispatcher::{Dispatcher, MOST_VECTORS};
use crate::metrics::Metrics;
use crate::trust::unix_ms;
use crate::upstream::{ConnectionLimits, Outbound, Upstream};

mod message;
mod table;

pub use message::{PeerKey, PeerKeyError};

use message::{Head, Unbelieved};
use table::Table;

/// Where vectors are posted.
pub const PATH: &str = "/headpond/v1/peer-load";
/// A vector of thousands of endpoints is smaller.
const VECTOR_BYTES: usize = 1 << 20;
/// Of an answer nothing is of interest.
const ANSWER_BYTES: usize = 4 << 10;
/// A peer that takes longer misses a vector.
const PATIENCE: Duration = Duration::from_secs(1);

/// What this scheduler knows of the others.
pub(crate) struct Peers {
    key: PeerKey,
    own: String,
    /// Locked once for each vector heard.
    table: Mutex<Table>,
    dispatcher: Arc<Dispatcher>,
    metrics: Arc<Metrics>,
}

/// A signed vector, ready to be posted to everyone.
type Said = Arc<Outbound>;

impl Peers {
    pub(crate) fn new(
        key: PeerKey,
        config: &Config,
        dispatcher: Arc<Dispatcher>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let own = config
            .peers
            .name
            .clone()
            .unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
        Self {
            key,
            own,
            table: Mutex::default(),
            dispatcher,
            metrics,
        }
    }

    /// Starts to tell the others.
    pub(crate) fn start(
        self: &Arc<Self>,
        config: &Config,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let say = broadcast::Sender::new(MOST_VECTORS);
        let until_stop = |task| {
            tasks.spawn(stop.clone().run_until_cancelled_owned(task));
        };
        until_stop(crate::proxy::boxed(
            Arc::clone(self).keep_saying(self.dispatcher.vectors(), say.clone()),
        ));
        for url in &config.peers.urls {
            let limits = ConnectionLimits {
                connect: config.timeouts.connect.min(PATIENCE),
                idle: config.timeouts.idle_connection,
                max_idle: 1,
            };
            let peer = Upstream::new(url.clone(), limits);
            until_stop(crate::proxy::boxed(
                Arc::clone(self).tell(peer, say.subscribe()),
            ));
        }
    }

    /// Writes every vector once for everyone.
    async fn keep_saying(
        self: Arc<Self>,
        mut vectors: broadcast::Receiver<LoadVector>,
        say: broadcast::Sender<Said>,
    ) {
        let mut written_ms = 0;
        while let Some(vector) = self.next(&mut vectors).await {
            let body = serde_json::to_vec(&vector).expect("a vector is plain data");
            // Of two that were written in one millisecond the second would not be believed.
            written_ms = unix_ms().max(written_ms + 1);
            let head = self.key.sign(&self.own, written_ms, &body);
            let outbound = Outbound {
                method: Method::POST,
                path: PATH,
                headers: head.headers(),
                body: Bytes::from(body),
            };
            // Who has no peers says it to nobody.
            let _ = say.send(Arc::new(outbound));
        }
    }

    /// The next of what was sent; counts what was left out because more came than could be passed on.
    async fn next<T: Clone>(&self, queue: &mut broadcast::Receiver<T>) -> Option<T> {
        loop {
            match queue.recv().await {
                Ok(next) => return Some(next),
                Err(RecvError::Lagged(count)) => self.metrics.flow.told_peer("left_out", count),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Posts every vector to one peer, one after the other.
    async fn tell(self: Arc<Self>, peer: Arc<Upstream>, mut said: broadcast::Receiver<Said>) {
        while let Some(outbound) = self.next(&mut said).await {
            let exchange = async {
                let answer = peer.exchange(&outbound).await.ok()?;
                let taken = answer.head.status == StatusCode::NO_CONTENT;
                answer.body.read_short(ANSWER_BYTES).await?;
                taken.then_some(())
            };
            let told = tokio::time::timeout(PATIENCE, exchange).await;
            let result = match told {
                Ok(Some(())) => "taken",
                Ok(None) => "failed",
                Err(_) => "late",
            };
            self.metrics.flow.told_peer(result, 1);
        }
    }

    /// Takes the vector of another scheduler.
    pub(crate) async fn hear(&self, headers: &HeaderMap, body: Incoming) -> Response<Body> {
        let heard = self.believe(headers, body).await;
        self.metrics.flow.heard_peer(match &heard {
            Ok(result) => result,
            Err(unbelieved) => unbelieved.reason(),
        });
        match heard {
            Ok(_) => {
                let mut response = Response::new(Body::whole(Bytes::new()));
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Err(unbelieved) => unbelieved.problem().into_response(),
        }
    }

    async fn believe(
        &self,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<&'static str, Unbelieved> {
        let head = Head::read(headers)?;
        head.is_recent(unix_ms())?;
        let whole = tokio::time::timeout(PATIENCE, Limited::new(body, VECTOR_BYTES).collect())
            .await
            .map_err(|_| Unbelieved::Stale)?
            .map_err(|error| Unbelieved::of_body(&*error))?
            .to_bytes();
        self.key.check(&head, &whole)?;
        if head.replica == self.own {
            return Ok("own");
        }
        let vector: LoadVector =
            serde_json::from_slice(&whole).map_err(|_| Unbelieved::Malformed)?;
        let peer = self
            .table
            .lock()
            .expect("no panic happens under this lock")
            .hear(&head.replica, head.unix_ms)?;
        self.dispatcher.feed(Input::PeerLoad { peer, vector });
        Ok("taken")
    }
}

impl Unbelieved {
    fn problem(self) -> Problem {
        let code = match self {
            Self::NoSignature | Self::Forged => Code::ContextInvalid,
            Self::Stale | Self::Malformed | Self::TooMany => Code::InvalidRequest,
            Self::TooLarge => Code::RequestTooLarge,
        };
        Problem::new(code, self.to_string())
    }
}
