//! Steps and runs of steps: how long they take and what they leave behind.

use std::time::Duration;

use super::{Current, Engine, Event, Run, Stage};

impl Engine {
    /// Begins the next step, or up to `max_steps` decoding steps in a row during which nothing but
    /// decoding can happen: nobody is admitted, preempted or finished before the last one ends. Returns
    /// `None` when there is nothing to compute.
    ///
    /// A run of steps has exactly the effect of its steps one by one; it exists because most of an
    /// engine's life is decoding and a simulation need not be woken for every token.
    pub fn begin(&mut self, max_steps: u32) -> Option<Run> {
        debug_assert!(self.current.is_none(), "the step before was not finished");
        self.events.clear();
        if self.is_idle() {
            return None;
        }
        let batch = self.schedule();
        if self.scheduled.is_empty() {
            return None;
        }
        let factor = self.noise_factor();
        let steps = if max_steps > 1 {
            self.run_length(max_steps)
        } else {
            1
        };
        let current = Current {
            batch,
            steps,
            factor,
        };
        let run = self.describe(&current);
        self.current = Some(current);
        Some(run)
    }

    /// Something arrived `elapsed` after the beginning: shortens a run to the step in progress then, and
    /// returns when that one ends, measured from the beginning.
    pub fn interrupt(&mut self, elapsed: Duration) -> Option<Duration> {
        let current = self.current.as_ref()?;
        let (batch, factor) = (current.batch, current.factor);
        let seconds = |steps| self.config.profile.decode_seconds(&batch, steps) * factor;
        let (mut low, mut high) = (1, current.steps);
        while low < high {
            let middle = u32::midpoint(low, high);
            if Duration::from_secs_f64(seconds(middle)) > elapsed {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let end = Duration::from_secs_f64(seconds(low));
        self.current.as_mut()?.steps = low;
        Some(end)
    }

    /// Ends what was begun and says what happened, in order.
    pub fn finish(&mut self) -> &[Event] {
        let Some(current) = self.current.take() else {
            self.events.clear();
            return &self.events;
        };
        self.counters.steps += u64::from(current.steps);
        let scheduled = std::mem::take(&mut self.scheduled);
        let mut leavers = false;
        for chunk in &scheduled {
            leavers |= self.advance(chunk.slot, chunk.tokens * current.steps, current.steps);
        }
        self.scheduled = scheduled;
        leavers |= self
            .running
            .iter()
            .any(|s| self.sequence(*s).stage == Stage::Aborted);
        if leavers {
            self.remove_leavers();
        }
        &self.events
    }

    /// [`Self::begin`] and [`Self::finish`] of one step.
    pub fn next_step(&mut self) -> Option<(Duration, &[Event])> {
        let run = self.begin(1)?;
        Some((run.duration, self.finish()))
    }

    fn describe(&self, current: &Current) -> Run {
        let profile = &self.config.profile;
        let seconds = profile.decode_seconds(&current.batch, current.steps) * current.factor;
        let before = profile.decode_seconds(&current.batch, current.steps - 1) * current.factor;
        Run {
            steps: current.steps,
            duration: Duration::from_secs_f64(seconds),
            longest: Duration::from_secs_f64(seconds - before),
            tokens: current.batch.tokens,
        }
    }

    /// Steps that are certain to be the same decoding batch, and takes the memory they need.
    fn run_length(&mut self, max_steps: u32) -> u32 {
        let head_cannot_enter = match self.waiting.front() {
            None => true,
            Some(&head) => {
                self.running.len() as u32 >= self.config.max_sequences
                    || self.blocked == Some((head, self.pool.releases()))
            }
        };
        let everyone_decodes = self.scheduled.len() == self.running.len()
            && self
                .scheduled
                .iter()
                .all(|c| self.sequence(c.slot).decodes());
        if !head_cannot_enter || !everyone_decodes || self.config.noise > 0.0 {
            return 1;
        }
        let first_end = self.running.iter().map(|s| {
            let sequence = self.sequence(*s);
            sequence.request.output_tokens - sequence.generated
        });
        let mut steps = first_end.min().unwrap_or(1).clamp(1, max_steps);
        while steps > 1 && self.blocks_for(steps) > self.pool.available() {
            steps /= 2;
        }
        for at in 0..self.running.len() {
            let slot = self.running[at];
            let upto = self.sequence(slot).computed + steps;
            let grown = self.grow(slot, upto);
            debug_assert!(grown, "availability was checked");
        }
        steps
    }

    /// Blocks that `steps` more tokens of every running sequence need.
    fn blocks_for(&self, steps: u32) -> u32 {
        let size = self.config.block_size;
        let missing = self.running.iter().map(|s| {
            let sequence = self.sequence(*s);
            (sequence.computed + steps)
                .div_ceil(size)
                .saturating_sub(sequence.blocks.len() as u32)
        });
        missing.sum()
    }

    /// Moves one sequence on; says whether it leaves.
    fn advance(&mut self, slot: u32, tokens: u32, steps: u32) -> bool {
        let block_size = self.config.block_size;
        let sequence = &mut self.sequences[slot as usize];
        if sequence.stage == Stage::Aborted {
            return true;
        }
        let complete = sequence.computed + tokens / steps == sequence.tokens();
        sequence.computed += tokens;
        let full = (sequence.computed / block_size).min(sequence.request.blocks.len() as u32);
        for at in sequence.published..full {
            self.pool.publish(
                sequence.blocks[at as usize],
                sequence.request.blocks[at as usize],
            );
        }
        sequence.published = sequence.published.max(full);
        if !complete {
            return false;
        }
        let request = sequence.request.id;
        let new = steps.min(sequence.request.output_tokens - sequence.generated);
        sequence.generated += new;
        let total = sequence.generated;
        let ends = total == sequence.request.output_tokens;
        if new > 0 {
            self.counters.generated_tokens += u64::from(new);
            self.events.push(Event::Tokens {
                request,
                new,
                total,
            });
        }
        if ends {
            sequence.stage = Stage::Finished;
            self.counters.finished += 1;
            self.events.push(Event::Finished { request });
        }
        ends
    }

    fn remove_leavers(&mut self) {
        let running = std::mem::take(&mut self.running);
        let mut kept = Vec::with_capacity(running.len());
        for slot in running {
            match self.sequence(slot).stage {
                Stage::Finished => {}
                Stage::Aborted => self.counters.aborted += 1,
                Stage::New | Stage::Preempted | Stage::Running => {
                    kept.push(slot);
                    continue;
                }
            }
            self.remove(slot);
        }
        self.running = kept;
    }
}
