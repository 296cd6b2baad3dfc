//! What a pool is told, and what it asks for.

use std::sync::Arc;

use crate::flow::FlowConfig;
use crate::{
    BookingId, Decision, EndpointId, LoadVector, Observation, PeerId, Refusal, Request, RequestKey,
};

/// An endpoint as configured or discovered.
#[derive(Clone, Debug)]
pub struct EndpointSpec {
    /// The shell's id.
    pub id: EndpointId,
    /// Identity for people and records. Another name under the same id is another engine: what it held is forgotten.
    pub name: Arc<str>,
    /// Counts incarnations behind one name where discovery knows them; another one is another engine.
    pub generation: u64,
    /// Models served; empty: whatever the engine reports, or any.
    pub models: Vec<String>,
    /// Endpoints of one class share the parameters of the step model.
    pub class: Arc<str>,
    /// Share of requests under `least-request` and `random`.
    pub weight: u32,
    /// Most requests in flight; `None` takes the pool's.
    pub room: Option<u32>,
    /// Longest context in tokens, where configured.
    pub max_context: Option<u32>,
}

impl EndpointSpec {
    /// An endpoint that serves anything, with the pool's defaults.
    pub fn new(id: EndpointId, name: &str) -> Self {
        Self {
            id,
            name: name.into(),
            generation: 0,
            models: Vec::new(),
            class: "".into(),
            weight: 1,
            room: None,
            max_context: None,
        }
    }
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// An endpoint appeared, changed, or takes requests again.
    EndpointUp(EndpointSpec),
    /// An endpoint is gone; its attempts in flight still end with [`Input::Finished`].
    EndpointDown(EndpointId),
    /// An endpoint takes nothing new.
    Draining(EndpointId),
    /// A scrape succeeded.
    Observed {
        /// Whose metrics.
        endpoint: EndpointId,
        /// What they said.
        observation: Observation,
    },
    /// A scrape failed.
    ScrapeFailed {
        /// Whose metrics.
        endpoint: EndpointId,
    },
    /// A request wants an endpoint. A key that already waits is ignored.
    Arrive(Box<Request>),
    /// The client of a waiting request left. After dispatch the booking's end says so instead.
    Cancel(RequestKey),
    /// The first piece of a streamed answer arrived.
    FirstToken(BookingId),
    /// A streamed answer has this many output tokens so far.
    Progress {
        /// The attempt.
        booking: BookingId,
        /// Output tokens in total.
        output_tokens: u64,
    },
    /// An attempt ended. Exactly once per booking.
    Finished {
        /// The attempt.
        booking: BookingId,
        /// How.
        end: AttemptEnd,
    },
    /// A probe asked for by [`Output::Probe`] was answered, or not.
    Probed {
        /// Who was probed.
        endpoint: EndpointId,
        /// Whether it works.
        ok: bool,
    },
    /// Another scheduler of the pool says what load it has put on the endpoints. What it says replaces what it said of
    /// the same endpoints before.
    PeerLoad {
        /// Which scheduler.
        peer: PeerId,
        /// Its load.
        vector: LoadVector,
    },
    /// Other settings of flow control. What waits keeps its place, its deadline and its time to live.
    Reconfigure(Box<FlowConfig>),
    /// Refuse what arrives from here on; what waits and what is retried is still served.
    Drain,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The answer is complete.
    Completed {
        /// Prompt tokens the engine found in its cache, where it says so.
        cached_tokens: Option<u64>,
        /// Tokens of the answer.
        output_tokens: u64,
    },
    /// The client left.
    ClientClosed,
    /// The engine judged the request bad (4xx): nothing against the endpoint.
    Rejected,
    /// The engine is busy (429, 503): back-pressure, not a failure.
    Busy,
    /// Connection refused or cut, or a 5xx.
    Failed,
}

/// Something to do.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this request there; it is booked already.
    Dispatch {
        /// The request.
        request: RequestKey,
        /// The attempt, to be named in what follows.
        booking: BookingId,
        /// Where to.
        endpoint: EndpointId,
        /// Why there.
        decision: Box<Decision>,
    },
    /// Answer this request with a refusal.
    Refuse {
        /// The request.
        request: RequestKey,
        /// Why.
        refusal: Refusal,
    },
    /// The endpoint hangs: cancel this attempt, which has given nothing yet, and try elsewhere. It still ends with
    /// [`Input::Finished`].
    Abandon {
        /// The attempt.
        booking: BookingId,
    },
    /// Find out whether this endpoint works and answer with [`Input::Probed`]. An engine that hangs still answers its
    /// health page: have it generate a token. Comes again, ever later, until the endpoint works.
    Probe {
        /// Who.
        endpoint: EndpointId,
    },
    /// Tell all other schedulers of the pool, which take it as [`Input::PeerLoad`]. Only with
    /// [`PeersConfig::every`](crate::PeersConfig::every).
    Tell(LoadVector),
}
