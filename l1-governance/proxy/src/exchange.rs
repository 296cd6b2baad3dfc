//! One request, from its arrival to its last byte. Whatever happens in between, dropping the
//! exchange settles its hold, gives back its limits and writes its record, once.

use std::sync::Arc;
use std::time::Duration;

use governance_context::{MicroWtu, RequestId, names};
use governance_core::catalogue::Code;
use governance_core::ledger::{Basis, Observed, Settlement, State};
use governance_core::limits::Admitted;
use governance_core::price::{Quote, Tokens};
use http::{HeaderMap, HeaderValue};
use inference_wire::route::Route;
use inference_wire::usage::{Meter, Usage};
use ledger_store::Hold;
use tokio::time::Instant;

use crate::access_log;
use crate::ending::{End, Seen, settlement};
use crate::idempotency::Claim;
use crate::identity::Principal;
use crate::record;
use crate::record::{Draft, Outcome, Record, RefusalNote, Scheduling, Timing};
use crate::respond::{Refused, set};
use crate::shared::Shared;

pub(crate) struct Exchange {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: Draft,
    arrived: Instant,
    attempt: Option<Attempt>,
    admitted: Option<Admitted>,
    claim: Option<Claim>,
    /// The status line that left, if one did.
    sent: Option<u16>,
    /// Whether the caller wants to hear of its wait before there is an answer.
    pub(crate) tells_wait: bool,
    /// Whether the caller may see where and for how much it ran.
    leads: bool,
}

/// A hold, and what passed by since.
pub(crate) struct Attempt {
    pub(crate) hold: Hold,
    pub(crate) quote: Quote,
    pub(crate) meter: Meter,
    /// What the prompt is taken for when the engine does not say.
    pub(crate) estimated_prompt: u64,
    /// Whether a model writes output for it.
    pub(crate) generates: bool,
}

impl Attempt {
    /// Reported usage, completed by what was counted after the report; or only the latter.
    fn observed(&self) -> Option<Observed> {
        let counted = self.meter.estimated_output_tokens();
        match self.meter.usage() {
            Some(usage) if self.meter.has_unreported_output() && counted > usage.output_tokens => {
                let usage = Usage {
                    output_tokens: counted,
                    ..usage
                };
                Some(self.priced(usage, Basis::Estimated))
            }
            Some(usage) => Some(self.priced(usage, Basis::Measured)),
            None if self.meter.generated() => Some(self.estimate(counted)),
            None => None,
        }
    }

    fn estimate(&self, output_tokens: u64) -> Observed {
        let usage = Usage {
            prompt_tokens: self.estimated_prompt,
            cached_tokens: None,
            output_tokens,
        };
        self.priced(usage, Basis::Estimated)
    }

    pub(crate) fn priced(&self, usage: Usage, basis: Basis) -> Observed {
        let tokens = Tokens::from_usage(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
        );
        Observed {
            usage: tokens,
            charge: self.quote.charge(&tokens),
            basis,
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            observed: self.observed(),
            fallback: self.estimate(self.meter.estimated_output_tokens()),
        }
    }
}

impl Exchange {
    /// Boxed, since it goes from hand to hand until the last byte of the answer.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        request: RequestId,
        route: &'static str,
    ) -> Box<Self> {
        shared.metrics.in_flight.inc();
        Box::new(Self {
            record: Draft::new(Record {
                request,
                client_request_id: None,
                at_unix_ms: crate::shared::unix_ms().0,
                route,
                alias: None,
                model: None,
                streaming: false,
                identity: None,
                objective: None,
                policy_version: shared.config.version.clone(),
                limits: Vec::new(),
                reservation: None,
                settlement: None,
                outcome: None,
                refusal: None,
                removed: Vec::new(),
                scheduling: Scheduling::default(),
                timing: Timing::default(),
            }),
            shared: Arc::clone(shared),
            arrived: Instant::now(),
            attempt: None,
            admitted: None,
            claim: None,
            sent: None,
            tells_wait: false,
            leads: false,
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }

    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn identified(&mut self, principal: &Principal) {
        self.leads = principal.leads();
        self.record.identity = Some(Arc::clone(&principal.identity));
        self.record.objective = Some(Arc::clone(&principal.objective));
    }

    /// Where the request ran and what it cost, for those who may know.
    pub(crate) fn tell_lead(&self, headers: &mut HeaderMap) {
        if !self.leads {
            return;
        }
        if let Some(endpoint) = &self.record.scheduling.endpoint {
            set(headers, names::ENDPOINT, endpoint);
        }
        if let Some(ms) = self.record.scheduling.queue_ms {
            headers.insert(names::QUEUE_MS, HeaderValue::from(ms));
        }
        if let Some(settlement) = &self.record.settlement {
            set(
                headers,
                names::CHARGED,
                &settlement.charged_uwtu.to_string(),
            );
        }
    }

    pub(crate) fn keep(&mut self, admitted: Admitted) {
        self.admitted = Some(admitted);
    }

    pub(crate) fn keep_claim(&mut self, claim: Claim) {
        self.claim = Some(claim);
    }

    /// The hold is taken; from here on every way out settles it.
    pub(crate) fn hold(&mut self, attempt: Attempt) {
        self.shared.metrics.holds_open.inc();
        self.attempt = Some(attempt);
    }

    /// The request goes to L2: it can be asked about from now on.
    pub(crate) fn dispatched(&mut self) {
        self.record.timing.admitted_us = Some(self.elapsed_us());
        self.shared.ring.put(self.record.share());
    }

    pub(crate) fn first_data(&mut self) {
        if self.record.timing.first_data_us.is_none() {
            self.record.timing.first_data_us = Some(self.elapsed_us());
        }
    }

    /// The running count of the attempt; of nothing once it is settled or when nothing was held.
    pub(crate) fn meter<'a>(&'a mut self, spare: &'a mut Meter) -> &'a mut Meter {
        match &mut self.attempt {
            Some(attempt) => &mut attempt.meter,
            None => spare,
        }
    }

    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_ref()
    }

    /// Settles the hold by what was seen. Only the first call does anything.
    pub(crate) fn settle(&mut self, end: End) {
        if let Some(attempt) = self.attempt.take() {
            let settlement = settlement(end, attempt.seen());
            self.end(attempt, settlement);
        }
    }

    /// Settles the hold of a whole answer by the usage in it.
    pub(crate) fn settle_usage(&mut self, usage: Option<Usage>, end: End, answer_bytes: usize) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let counted = if attempt.generates {
            answer_bytes as u64 / 4
        } else {
            0
        };
        let seen = Seen {
            observed: usage.map(|usage| attempt.priced(usage, Basis::Measured)),
            fallback: attempt.estimate(counted),
        };
        let settlement = settlement(end, seen);
        self.end(attempt, settlement);
    }

    fn end(&mut self, attempt: Attempt, settlement: Settlement) {
        self.shared.metrics.holds_open.dec();
        let note = note(settlement);
        if note.state == State::Unknown.as_str() {
            let held = attempt.hold.reservation().largest.wtu;
            self.shared.metrics.unknown_micro.inc_by(held.0);
        }
        self.shared
            .metrics
            .settled(self.tenant().unwrap_or_default(), &note);
        self.record.settlement = Some(note);
        attempt.hold.settle(settlement);
    }

    fn tenant(&self) -> Option<&str> {
        self.record
            .identity
            .as_ref()
            .map(|identity| identity.tenant.as_str())
    }

    /// The status line of a stream is on its way; how the stream ends is open.
    pub(crate) fn status_sent(&mut self, status: u16) {
        self.sent = Some(status);
    }

    /// The status of the record: the one that left, else the one that would have.
    fn sent_or(&self, status: u16) -> u16 {
        self.sent.unwrap_or(status)
    }

    /// The answer is complete, or as complete as it will be.
    pub(crate) fn answered(&mut self, status: u16, code: &'static str) {
        self.record.outcome = Some(Outcome { status, code });
    }

    /// An error is the answer, or the end of it.
    pub(crate) fn refused(&mut self, refused: &Refused) {
        let fault = &refused.fault;
        let (code, message, what_to_do) = if let Some(engine) = &refused.engine {
            let code = engine.reason();
            (code, engine.message().to_owned(), code.fact().how)
        } else {
            (fault.code, fault.message(), fault.advice())
        };
        let status = self.sent_or(refused.status().as_u16());
        self.answered(status, code.as_str());
        self.record.refusal = Some(RefusalNote {
            code: code.as_str(),
            message,
            what_to_do,
        });
    }

    /// The client left before the end.
    fn client_gone(&mut self) {
        self.shared.metrics.aborts.inc();
        let status = self.sent_or(Code::ClientClosed.status());
        self.answered(status, Code::ClientClosed.as_str());
        self.leave();
    }

    /// Nobody waits for the rest: settles by what was seen, and by what L2 knows.
    pub(crate) fn leave(&mut self) {
        if let Some(attempt) = &self.attempt {
            let work = (self.shared.work_done)(&attempt.hold.attempt());
            self.settle(End::ClientGone(work));
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        match &self.record.outcome {
            Some(_) => {}
            None if std::thread::panicking() => self.refused(&Code::Internal.into()),
            None => self.client_gone(),
        }
        // Every way out settles before this; a hold that is still here would be lost.
        self.settle(End::Panicked);
        self.claim.take();
        if let Some(admitted) = self.admitted.take() {
            self.shared.release(admitted);
        }
        self.shared.metrics.in_flight.dec();
        self.record.timing.total_us = Some(self.elapsed_us());
        let code = self
            .record
            .outcome
            .as_ref()
            .map_or("", |outcome| outcome.code);
        self.shared
            .metrics
            .request(self.record.route, self.tenant(), code);
        if self.shared.config.access_log {
            access_log::line(&self.record);
        }
        self.shared.ring.put(self.record.share());
    }
}

/// A settlement as the record shows it.
fn note(settlement: Settlement) -> record::Settlement {
    let (state, observed, charged, reason) = match settlement {
        Settlement::Commit(observed) => (
            State::Committed,
            Some(observed),
            observed.charge,
            "usage-known",
        ),
        Settlement::Release { reason } => (State::Released, None, MicroWtu::ZERO, reason.as_str()),
        Settlement::Unknown { reason, observed } => {
            (State::Unknown, observed, MicroWtu::ZERO, reason.as_str())
        }
    };
    let usage = observed.map_or_else(Tokens::default, |observed| observed.usage);
    record::Settlement {
        state: state.as_str(),
        prompt_tokens: usage.prompt(),
        cached_tokens: usage.cached,
        output_tokens: usage.decode,
        charged_uwtu: charged,
        estimated: observed.is_some_and(|observed| observed.basis == Basis::Estimated),
        reason,
    }
}

/// The name of a path in metrics and records, known or not.
pub(crate) fn route_name(route: Option<&Route>) -> &'static str {
    route.map_or("unknown", Route::name)
}
