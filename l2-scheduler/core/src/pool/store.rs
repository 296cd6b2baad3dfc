//! Footprints of attempts on their way into the index.
//!
//! They are stored when an attempt is sent and again when it ends: an engine keeps the blocks of what runs, and then forgets
//! what ended first. Storing a long prompt takes longer than choosing its endpoint, and nobody need wait for it: what was sent
//! is stored with the next event, and what has ended after the outputs of the event that ended it.

use std::collections::VecDeque;

use super::Pool;
use crate::BookingId;
use crate::residency::{Block, Footprint, Holder};

/// Blocks stored with one event, but one whole footprint at least: half of a prompt would be found where it is not.
const AT_ONCE: usize = 1024;
/// While more wait, they are stored at once, and what others have sent is left out.
const MOST_WAITING: usize = 1 << 16;
/// Blocks that are kept for the end of attempts; beyond that, the prompt of a new one is not stored again.
const MOST_KEPT: usize = 1 << 22;
/// Tokens of a block of an engine that has not said it.
const USUAL_BLOCK: u32 = 16;

/// What was sent, or has ended, and is not in the index yet.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    sent: VecDeque<(Holder, Footprint)>,
    ended: VecDeque<(Holder, Footprint)>,
    /// Blocks of both.
    blocks: usize,
    /// Blocks that are kept for the end of attempts.
    kept: usize,
}

impl Unstored {
    pub(super) fn push_sent(&mut self, holder: Holder, footprint: Footprint) {
        if footprint.len() > 0 {
            self.blocks += footprint.len();
            self.sent.push_back((holder, footprint));
        }
    }

    fn push_ended(&mut self, holder: Holder, footprint: Footprint) {
        if footprint.len() > 0 {
            self.blocks += footprint.len();
            self.ended.push_back((holder, footprint));
        }
    }

    /// What to keep of a footprint until its attempt ends.
    pub(super) fn keep(&mut self, footprint: &Footprint) -> Footprint {
        let kept = if self.kept + footprint.len() > MOST_KEPT {
            footprint.tail_alone()
        } else {
            footprint.clone()
        };
        self.kept += kept.len();
        kept
    }

    /// The attempt of what was kept has ended.
    pub(super) fn release(&mut self, kept: &Footprint) {
        self.kept -= kept.len();
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Whether there is room for what others have sent.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < MOST_WAITING
    }

    /// Drops what was meant for a cache that is gone: another may get its number.
    pub(super) fn forget(&mut self, holder: Holder) {
        let mut blocks = 0;
        for waiting in [&mut self.sent, &mut self.ended] {
            waiting.retain(|(other, _)| *other != holder);
            blocks += waiting.iter().map(|(_, left)| left.len()).sum::<usize>();
        }
        self.blocks = blocks;
    }

    fn pop_sent(&mut self) -> Option<(Holder, Footprint)> {
        let next = self.sent.pop_front()?;
        self.blocks -= next.1.len();
        Some(next)
    }

    fn pop_ended(&mut self) -> Option<(Holder, Footprint)> {
        let next = self.ended.pop_front()?;
        self.blocks -= next.1.len();
        Some(next)
    }
}

impl Pool {
    /// What an attempt has been sent for will be in the cache of its endpoint.
    pub(super) fn leave_footprint(
        &mut self,
        id: BookingId,
        index: usize,
        holder: Holder,
        blocks: Vec<Block>,
    ) {
        let Some(booking) = self.bookings.get_mut(&id) else {
            return;
        };
        let tokens = booking.context() + booking.expected_output as u64;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let block = self.endpoints[index].view.block_size();
        let footprint = Footprint::of_attempt(id, blocks, tokens, block.unwrap_or(USUAL_BLOCK));
        booking.footprint = self.unstored.keep(&footprint);
        self.unstored.push_sent(holder, footprint);
    }

    /// An attempt has ended. Until now its engine has kept all of it; but what gave no answer has no end that could push
    /// others out.
    pub(super) fn keep_footprint(&mut self, holder: Holder, left: Footprint, has_answered: bool) {
        if has_answered {
            self.unstored.push_ended(holder, left);
        } else {
            self.residency.take_back_tail(holder, &left);
        }
    }

    /// The process that ran what is in flight there is gone, and with it what the attempts would have left.
    pub(super) fn lose_footprints(&mut self, index: usize) {
        for id in self.endpoints[index].load.in_flight() {
            if let Some(booking) = self.bookings.get_mut(id) {
                let lost = std::mem::take(&mut booking.footprint);
                self.unstored.release(&lost);
            }
        }
    }

    /// Puts the next of what was sent into the index.
    pub(super) fn store_sent(&mut self) {
        let mut stored = 0;
        while stored < AT_ONCE || !self.unstored.has_room() {
            let next = self.unstored.pop_sent();
            // What has ended waits for a moment at which nobody does, unless too much waits.
            let next = if self.unstored.has_room() {
                next
            } else {
                next.or_else(|| self.unstored.pop_ended())
            };
            let Some((holder, footprint)) = next else {
                return;
            };
            stored += footprint.len();
            self.residency.leave(holder, &footprint);
        }
    }

    /// Puts the next of what has ended into the index.
    pub(super) fn store_ended(&mut self) {
        let mut stored = 0;
        while stored < AT_ONCE
            && let Some((holder, footprint)) = self.unstored.pop_ended()
        {
            stored += footprint.len();
            self.residency.leave(holder, &footprint);
        }
    }
}
