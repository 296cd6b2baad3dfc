//! An attempt in flight, as a guard: it ends in the pool exactly once, whatever happens to it.

use std::sync::Arc;

use scheduler_core::{AttemptEnd, BookingId, Decision, EndpointId, Input};

use super::Dispatcher;
use crate::flight::Flight;

/// A place at an endpoint. Dropped, it is given back; without another end that is the client's leaving.
pub(crate) struct Booking {
    dispatcher: Arc<Dispatcher>,
    id: BookingId,
    pub(crate) endpoint: EndpointId,
    /// Taken by the record of the attempt.
    pub(crate) decision: Option<Box<Decision>>,
    pub(crate) flight: Arc<Flight>,
    end: AttemptEnd,
}

impl Booking {
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        id: BookingId,
        endpoint: EndpointId,
        decision: Box<Decision>,
        flight: Arc<Flight>,
    ) -> Self {
        Self {
            dispatcher,
            id,
            endpoint,
            decision: Some(decision),
            flight,
            end: AttemptEnd::ClientClosed,
        }
    }

    /// The first output arrived.
    pub(crate) fn first_token(&self) {
        self.dispatcher.feed(Input::FirstToken(self.id));
    }

    /// So many output tokens have arrived.
    pub(crate) fn progress(&self, output_tokens: u64) {
        self.dispatcher.feed(Input::Progress {
            booking: self.id,
            output_tokens,
        });
    }

    /// How the attempt will have ended when this is dropped.
    pub(crate) fn ends(&mut self, end: AttemptEnd) {
        self.end = end;
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.dispatcher.finish(self.id, self.end);
    }
}
