//! The sums of an endpoint's own bookings. They move inside every decision and are exactly zero at rest.

use std::collections::VecDeque;

use super::booking::{Booking, Phase};
use crate::plan::Stream;
use crate::{BookingId, Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Everything in flight, in no order.
    in_flight: Vec<BookingId>,
    /// What still prefills, in the order it was sent.
    pending: VecDeque<Pending>,
    /// The first of them, here because every decision looks at it.
    front: Option<Pending>,
    pending_tokens: u64,
    pending_double_area: u64,
    /// Prompt tokens (cached too) of what still prefills.
    pending_context: u64,
    /// What decodes, in no order.
    streams: Vec<Stream>,
    decoding_context: u64,
    /// When the front of `pending` began to be computed.
    anchor: Timestamp,
    /// Since when nothing prefills.
    calm_since: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: BookingId,
    tokens: u32,
    double_area: u64,
    band: i32,
}

/// Bookings whose place another has taken in the lists of their endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) in_flight: Option<BookingId>,
    pub(crate) stream: Option<BookingId>,
}

impl Load {
    /// Whether every sum is zero.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        let sums = [
            self.pending_tokens,
            self.pending_double_area,
            self.pending_context,
            self.decoding_context,
        ];
        self.in_flight.is_empty()
            && self.pending.is_empty()
            && self.front.is_none()
            && self.streams.is_empty()
            && sums == [0; 4]
    }

    pub(crate) fn in_flight(&self) -> &[BookingId] {
        &self.in_flight
    }

    pub(crate) fn count(&self) -> u32 {
        self.in_flight.len() as u32
    }

    pub(crate) fn prefilling(&self) -> u32 {
        self.pending.len() as u32
    }

    pub(crate) fn pending_tokens(&self) -> u64 {
        self.pending_tokens
    }

    pub(crate) fn decoding(&self) -> u32 {
        self.streams.len() as u32
    }

    /// What decodes.
    pub(crate) fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Requests of `band` in flight.
    pub(crate) fn of_band(&self, band: i32) -> u32 {
        let pending = self.pending.iter().filter(|pending| pending.band == band);
        let streams = self.streams.iter().filter(|stream| stream.band == band);
        (pending.count() + streams.count()) as u32
    }

    pub(crate) fn pending_double_area(&self) -> u64 {
        self.pending_double_area
    }

    pub(crate) fn pending_context(&self) -> u64 {
        self.pending_context
    }

    /// When the engine began with the front of what prefills, and its uncached tokens and their attention area.
    pub(crate) fn front(&self) -> (Timestamp, (f64, f64)) {
        let work = self.front.map_or((0.0, 0.0), |front| {
            (f64::from(front.tokens), front.double_area as f64 / 2.0)
        });
        (self.anchor, work)
    }

    pub(crate) fn decoding_context(&self) -> u64 {
        self.decoding_context
    }

    /// Tokens of KV cache the bookings hold or are about to hold.
    pub(crate) fn context(&self) -> u64 {
        self.pending_context + self.decoding_context
    }

    /// When `id` began to be computed, if it is what is computed.
    pub(crate) fn front_since(&self, id: BookingId) -> Option<Timestamp> {
        self.front
            .filter(|front| front.id == id)
            .map(|_| self.anchor)
    }

    /// Since when this endpoint only decodes, if it does.
    pub(crate) fn calm_since(&self) -> Option<Timestamp> {
        self.pending.is_empty().then_some(self.calm_since)
    }

    pub(crate) fn add(&mut self, now: Timestamp, booking: &mut Booking) {
        booking.position = self.in_flight.len();
        self.in_flight.push(booking.id);
        if self.pending.is_empty() {
            self.anchor = now;
        }
        let pending = Pending {
            id: booking.id,
            tokens: booking.uncached,
            double_area: booking.double_area(),
            band: booking.band,
        };
        self.pending.push_back(pending);
        self.front = self.front.or(Some(pending));
        self.pending_tokens += u64::from(pending.tokens);
        self.pending_double_area += pending.double_area;
        self.pending_context += booking.context();
    }

    /// The prefill of `booking` is over.
    pub(crate) fn start_decoding(&mut self, now: Timestamp, booking: &mut Booking) {
        self.end_prefill(now, booking);
        booking.phase = Phase::Decode;
        booking.stream = self.streams.len();
        self.streams.push(Stream {
            booking: booking.id,
            first_at: now,
            output: booking.output,
            tpot_s: booking.tpot_s,
            expected: booking.expected_output,
            is_seen: booking.streaming,
            band: booking.band,
        });
        self.decoding_context += booking.context();
    }

    /// `booking`, which decodes, has `output` tokens by now.
    pub(crate) fn grow(&mut self, booking: &mut Booking, output: u32) {
        let grown = output.saturating_sub(booking.output);
        booking.output += grown;
        self.decoding_context += u64::from(grown);
        if let Some(stream) = self.streams.get_mut(booking.stream) {
            stream.output = booking.output;
        }
    }

    /// Takes `booking` out; returns who moved into its places, if others did.
    pub(crate) fn remove(&mut self, now: Timestamp, booking: &Booking) -> Moved {
        let mut moved = Moved::default();
        match booking.phase {
            Phase::Prefill => self.end_prefill(now, booking),
            Phase::Decode => {
                self.decoding_context -= booking.context();
                let removed = self.streams.swap_remove(booking.stream);
                debug_assert_eq!(removed.booking, booking.id, "a booking knows its stream");
                moved.stream = self
                    .streams
                    .get(booking.stream)
                    .map(|stream| stream.booking);
            }
        }
        let removed = self.in_flight.swap_remove(booking.position);
        debug_assert_eq!(removed, booking.id, "a booking knows its position");
        moved.in_flight = self.in_flight.get(booking.position).copied();
        moved
    }

    fn end_prefill(&mut self, now: Timestamp, booking: &Booking) {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.id == booking.id)
            .expect("what prefills is in the line");
        let pending = self
            .pending
            .remove(at)
            .expect("the position was just found");
        if at == 0 {
            self.front = self.pending.front().copied();
            self.anchor = now;
        }
        self.pending_tokens -= u64::from(pending.tokens);
        self.pending_double_area -= pending.double_area;
        self.pending_context -= booking.context();
        if self.pending.is_empty() {
            self.calm_since = now;
        }
    }
}
