//! Who computes how many tokens in the next step: running sequences first, then the queue.

use super::{Chunk, Engine, Event, Order, PrefixCache, Stage};
use crate::profile::Batch;

/// What became of running sequences when memory was handed out.
#[derive(PartialEq, Eq)]
enum Memory {
    Enough,
    /// Somebody was preempted, so nobody is admitted in this step.
    Short,
}

impl Engine {
    /// Fills `scheduled` and returns the batch it makes.
    pub(super) fn schedule(&mut self) -> Batch {
        self.scheduled.clear();
        let mut budget = self.config.max_batched_tokens;
        if self.schedule_running(&mut budget) == Memory::Enough {
            self.admit(&mut budget);
        }
        let mut batch = Batch::default();
        for chunk in &self.scheduled {
            let sequence = &self.sequences[chunk.slot as usize];
            if sequence.decodes() {
                batch.add_decode(sequence.tokens());
            } else {
                batch.add_prefill(chunk.tokens, sequence.computed);
            }
        }
        batch
    }

    fn schedule_running(&mut self, budget: &mut u32) -> Memory {
        let mut memory = Memory::Enough;
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let slot = self.running[at];
            let sequence = self.sequence(slot);
            let tokens = (sequence.tokens() - sequence.computed).min(*budget);
            let upto = sequence.computed + tokens;
            while !self.grow(slot, upto) {
                memory = Memory::Short;
                let victim = self.victim();
                self.preempt(victim, budget, &mut at);
                if victim == slot {
                    break;
                }
            }
            if self.sequence(slot).stage == Stage::Running {
                self.scheduled.push(Chunk { slot, tokens });
                *budget -= tokens;
                at += 1;
            }
        }
        memory
    }

    /// Takes blocks for the first `tokens` tokens of a sequence, all that are missing or none.
    pub(super) fn grow(&mut self, slot: u32, tokens: u32) -> bool {
        let sequence = &mut self.sequences[slot as usize];
        let wanted = tokens.div_ceil(self.config.block_size);
        let missing = wanted.saturating_sub(sequence.blocks.len() as u32);
        if missing > self.pool.available() {
            return false;
        }
        for _ in 0..missing {
            sequence
                .blocks
                .push(self.pool.allocate().expect("availability was checked"));
        }
        true
    }

    /// The running sequence that gives way: the last one admitted, or the least important.
    fn victim(&self) -> u32 {
        let last = *self.running.last().expect("someone asked for memory");
        match self.config.order {
            Order::FirstCome => last,
            Order::Priority => self
                .running
                .iter()
                .copied()
                .max_by_key(|s| {
                    (
                        self.sequence(*s).request.priority,
                        self.sequence(*s).arrival,
                    )
                })
                .unwrap_or(last),
        }
    }

    /// Takes a sequence's memory away and puts it back to the front of the queue. If this step had
    /// already counted it, its tokens return to the budget.
    fn preempt(&mut self, slot: u32, budget: &mut u32, at: &mut usize) {
        let position = self
            .running
            .iter()
            .position(|s| *s == slot)
            .expect("victims are running");
        self.running.remove(position);
        if let Some(scheduled) = self.scheduled.iter().position(|c| c.slot == slot) {
            *budget += self.scheduled.remove(scheduled).tokens;
            *at -= 1;
        }
        let computed = self.sequence(slot).computed;
        self.release_blocks(slot);
        self.sequence_mut(slot).stage = Stage::Preempted;
        self.counters.preemptions += 1;
        self.counters.preempted_tokens += u64::from(computed);
        self.events.push(Event::Preempted {
            request: self.sequence(slot).request.id,
        });
        match self.config.order {
            Order::FirstCome => self.waiting.push_front(slot),
            Order::Priority => self.enqueue(slot),
        }
    }

    fn admit(&mut self, budget: &mut u32) {
        while *budget > 0 && (self.running.len() as u32) < self.config.max_sequences {
            let Some(&slot) = self.waiting.front() else {
                return;
            };
            if self.blocked == Some((slot, self.pool.releases())) {
                return;
            }
            let Some(tokens) = self.place(slot, *budget) else {
                self.blocked = Some((slot, self.pool.releases()));
                return;
            };
            self.waiting.pop_front();
            self.running.push(slot);
            self.scheduled.push(Chunk { slot, tokens });
            *budget -= tokens;
        }
    }

    /// Gives the head of the queue its cached blocks and memory for its first chunk.
    fn place(&mut self, slot: u32, budget: u32) -> Option<u32> {
        let size = self.config.block_size;
        self.find_prefix(slot);
        let hits = self.spare.len() as u32;
        let idle_hits = self.spare.iter().filter(|b| self.pool.is_idle(**b)).count() as u32;
        let sequence = &self.sequences[slot as usize];
        let cached = hits * size;
        let tokens = (sequence.tokens() - cached).min(budget);
        let fresh = (cached + tokens).div_ceil(size) - hits;
        if fresh + idle_hits > self.pool.available() {
            return None;
        }
        for block in &self.spare {
            self.pool.share(*block);
        }
        let sequence = &mut self.sequences[slot as usize];
        sequence.blocks.extend_from_slice(&self.spare);
        sequence.computed = cached;
        sequence.published = hits;
        if sequence.stage == Stage::New {
            self.counters.prompt_tokens += u64::from(sequence.request.prompt_tokens);
            self.counters.cached_tokens += u64::from(cached);
            self.events.push(Event::Admitted {
                request: sequence.request.id,
                cached_tokens: cached,
            });
        }
        sequence.stage = Stage::Running;
        let grown = self.grow(slot, cached + tokens);
        debug_assert!(grown, "availability was checked");
        Some(tokens)
    }

    /// Leaves the cached blocks of a sequence's longest known prefix in `spare`. The last token is always
    /// computed, so a prompt of k full blocks finds at most k − 1.
    fn find_prefix(&mut self, slot: u32) {
        self.spare.clear();
        if self.config.prefix_cache == PrefixCache::Off {
            return;
        }
        let sequence = &self.sequences[slot as usize];
        let most = (sequence.tokens() - 1) / self.config.block_size;
        for hash in sequence.request.blocks.iter().take(most as usize) {
            let Some(block) = self.pool.find(*hash) else {
                return;
            };
            self.spare.push(block);
        }
    }
}
