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
    pub(super) sent: Line,
    ended: Line,
    /// Blocks that are kept for the end of attempts.
    kept: usize,
}

/// Footprints that wait, and how many blocks they have together.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<(Holder, Footprint)>,
    blocks: usize,
}

impl Line {
    pub(super) fn push(&mut self, holder: Holder, footprint: Footprint) {
        if footprint.len() > 0 {
            self.blocks += footprint.len();
            self.waiting.push_back((holder, footprint));
        }
    }

    fn pop(&mut self) -> Option<(Holder, Footprint)> {
        let next = self.waiting.pop_front()?;
        self.blocks -= next.1.len();
        Some(next)
    }

    fn forget(&mut self, holder: Holder) {
        self.waiting.retain(|(other, _)| *other != holder);
        self.blocks = self.waiting.iter().map(|(_, left)| left.len()).sum();
    }
}

impl Unstored {
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
        self.sent.blocks + self.ended.blocks < MOST_WAITING
    }

    /// Drops what was meant for a cache that is gone: another may get its number.
    pub(super) fn forget(&mut self, holder: Holder) {
        self.sent.forget(holder);
        self.ended.forget(holder);
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
        self.unstored.sent.push(holder, footprint);
    }

    /// An attempt has ended. Until now its engine has kept all of it; but what gave no answer has no end that could push
    /// others out.
    pub(super) fn keep_footprint(&mut self, holder: Holder, left: Footprint, has_answered: bool) {
        if has_answered {
            self.unstored.ended.push(holder, left);
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
        self.store(|unstored| &mut unstored.sent);
    }

    /// Puts the next of what has ended into the index.
    pub(super) fn store_ended(&mut self) {
        self.store(|unstored| &mut unstored.ended);
    }

    fn store(&mut self, line: fn(&mut Unstored) -> &mut Line) {
        let mut stored = 0;
        while (stored < AT_ONCE || !self.unstored.has_room())
            && let Some((holder, footprint)) = line(&mut self.unstored).pop()
        {
            stored += footprint.len();
            self.residency.leave(holder, &footprint);
        }
    }
}
