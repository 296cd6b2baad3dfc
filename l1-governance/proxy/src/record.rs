//! The decision record of a request: who asked, which limits were consulted, what was held, how it
//! ended. Never a prompt, never a secret. The last few thousand are kept.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use governance_context::{AttemptId, Band, MicroWtu, ObjectiveName, PolicyVersion, RequestId};
use governance_core::account::{AccountId, PolicyName};
use governance_core::objective::{Said, Source, Terms};
use serde::Serialize;

/// Why one request went the way it did, as far as L1 decided it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The request, as `x-request-id` names it.
    pub request: RequestId,
    /// The id the client gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<String>,
    /// When it arrived, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Which API call.
    pub route: &'static str,
    /// The model as the caller called it, where that is not its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Which model it was answered for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether the answer is a stream.
    pub streaming: bool,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Arc<Identity>>,
    /// What the request was promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<Arc<Objective>>,
    /// The policy the decisions were made with.
    pub policy_version: PolicyVersion,
    /// The limits consulted.
    pub limits: Vec<Consulted>,
    /// What was set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// How the hold ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settlement: Option<Settlement>,
    /// How the request ended; absent while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why it was refused and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalNote>,
    /// Fields and headers removed from the request, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// What L2 said about the attempt.
    pub scheduling: Scheduling,
    /// How long the parts took.
    pub timing: Timing,
}

/// Who asked. The key is named by its public part.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// The tenant.
    pub tenant: String,
    /// The project.
    pub project: String,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The key's public part.
    pub key: String,
}

/// What a request was promised. A target that is absent is left to the scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct Objective {
    /// The objective in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ObjectiveName>,
    /// Who named it: key, project, tenant or default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_by: Option<&'static str>,
    /// The priority level.
    pub band: Band,
    /// The share among the flows of the band.
    pub weight: u32,
    /// How long it may wait for its turn.
    pub ttl_ms: u64,
    /// The time to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u32>,
    /// The time per output token after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<u32>,
    /// Fields that are not the objective's, and who set them: key, project or tenant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overridden: BTreeMap<&'static str, &'static str>,
}

impl From<&Terms> for Objective {
    fn from(terms: &Terms) -> Self {
        let target = |said: Option<Said<u32>>| said.map(|said| said.by);
        let sources = [
            ("band", Some(terms.band.by)),
            ("weight", Some(terms.weight.by)),
            ("ttl_ms", Some(terms.ttl_ms.by)),
            ("ttft_ms", target(terms.ttft_ms)),
            ("tpot_ms", target(terms.tpot_ms)),
        ];
        let overridden = sources.into_iter().filter_map(|(field, by)| {
            let by = by.filter(|by| *by > Source::Objective)?;
            Some((field, by.as_str()))
        });
        let named = terms.objective.as_ref();
        let targets = terms.targets();
        Self {
            name: named.map(|said| said.value.clone()),
            named_by: named.map(|said| said.by.as_str()),
            band: terms.band.value,
            weight: terms.weight.value,
            ttl_ms: terms.ttl_ms.value,
            ttft_ms: targets.ttft_ms,
            tpot_ms: targets.tpot_ms,
            overridden: overridden.collect(),
        }
    }
}

/// One limit that was consulted.
#[derive(Clone, Debug, Serialize)]
pub struct Consulted {
    /// Whose limit.
    pub account: AccountId,
    /// Which one.
    pub name: LimitName,
    /// A, B or D.
    pub tier: &'static str,
    /// requests, concurrency, uwtu or tokens.
    pub unit: &'static str,
    /// The limit; absent when it is only counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Used up by finished requests.
    pub used: u64,
    /// Held for open ones, this one included.
    pub held: u64,
    /// When it starts over, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at_unix_ms: Option<u64>,
}

/// What a limit is called.
#[derive(Clone, Debug)]
pub enum LimitName {
    /// Of a request rate or of concurrency.
    Rule(&'static str),
    /// Of a policy in the ledger.
    Policy(PolicyName),
}

impl LimitName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Rule(name) => name,
            Self::Policy(name) => name.as_str(),
        }
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for LimitName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// What was set aside before the request was passed on.
#[derive(Clone, Debug, Serialize)]
pub struct Reservation {
    /// The attempt it is for.
    pub attempt: AttemptId,
    /// Prompt tokens assumed.
    pub prompt_tokens: u64,
    /// The most output tokens, over all choices.
    pub output_bound: u64,
    /// The bound the caller asked for, when it had to be lowered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clamped_from: Option<u64>,
    /// Micro-WTU held.
    pub held_uwtu: MicroWtu,
}

/// How a hold ended.
#[derive(Clone, Debug, Serialize)]
pub struct Settlement {
    /// committed, released or unknown.
    pub state: &'static str,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of these, found in a cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Micro-WTU charged.
    pub charged_uwtu: MicroWtu,
    /// Whether tokens were counted here because the engine did not say.
    pub estimated: bool,
    /// Why this end was chosen.
    pub reason: &'static str,
}

/// How a request ended.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The status of the answer; 499 when the client left before there was one.
    pub status: u16,
    /// `ok` or an error code.
    pub code: &'static str,
}

/// Why a request was refused.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalNote {
    /// The error code.
    pub code: &'static str,
    /// What the caller was told.
    pub message: String,
    /// Who can do what about it.
    pub what_to_do: &'static str,
}

/// What L2 said about the attempt.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scheduling {
    /// The endpoint's alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How long it waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<u64>,
}

/// How long the parts took, in microseconds from the arrival.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timing {
    /// Until it was passed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_us: Option<u64>,
    /// Until the first data of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_data_us: Option<u64>,
    /// Until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_us: Option<u64>,
}

/// A record being written. Others may see what has been written so far; it is copied at most once for each time it
/// was shown.
pub(crate) struct Draft(Arc<Record>);

impl Draft {
    pub(crate) fn new(record: Record) -> Self {
        Self(Arc::new(record))
    }

    /// What has been written so far.
    pub(crate) fn share(&self) -> Arc<Record> {
        Arc::clone(&self.0)
    }
}

impl Deref for Draft {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.0
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut Record {
        Arc::make_mut(&mut self.0)
    }
}

/// The last records. A mutex, because every connection writes one small value per request and a
/// channel would only add a task that does the same.
pub(crate) struct Ring {
    inner: Mutex<Inner>,
    capacity: usize,
}

#[derive(Default)]
struct Inner {
    order: VecDeque<RequestId>,
    records: BTreeMap<RequestId, Arc<Record>>,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            inner: Mutex::default(),
            capacity,
        }
    }

    /// Keeps a record, in place of an earlier one of the same request.
    pub(crate) fn put(&self, record: Arc<Record>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let request = record.request;
        if inner.records.insert(request, record).is_some() {
            return;
        }
        inner.order.push_back(request);
        if inner.order.len() > self.capacity
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.records.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, request: &RequestId) -> Option<Arc<Record>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.records.get(request).cloned()
    }

    pub(crate) fn latest(&self, count: usize) -> Vec<Arc<Record>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = inner.order.iter().rev().take(count);
        recent
            .filter_map(|request| inner.records.get(request).cloned())
            .collect()
    }
}
