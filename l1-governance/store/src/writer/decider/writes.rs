//! When what was decided goes to the disk, and what goes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use governance_core::ledger::Effect;

use super::super::batch::{Changes, News};
use super::super::disk::Job;
use super::{Decider, FIRST_RETRY, Health, InFlight};

/// Clocks may jump, so a deadline is looked at again at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Decider {
    /// When there is something to do again without anybody asking.
    fn due(&self) -> Instant {
        let now = Instant::now();
        if let Health::Broken { retry, .. } = &self.health {
            return *retry;
        }
        let timeout = self.ledger.poll_timeout();
        let wait = timeout.map_or(LONGEST_SLEEP, |at| {
            Duration::from_millis(at.since(self.now()))
        });
        let timeout = now + wait.min(LONGEST_SLEEP);
        self.write_due().map_or(timeout, |write| write.min(timeout))
    }

    /// When what is to be written goes to the disk: at once if somebody waits for it.
    fn write_due(&self) -> Option<Instant> {
        let is_free = self.in_flight.is_none() && matches!(self.health, Health::Good);
        let since = self.unwritten.filter(|_| is_free)?;
        if self.ended || !self.ticket.waiters.is_empty() {
            return Some(since);
        }
        Some(since + self.shared.options.linger)
    }

    /// Says when the thread has to look again, and takes note that it will.
    pub(in super::super) fn arm(&mut self) -> Instant {
        let due = self.due();
        self.armed = Some(due);
        due
    }

    /// What others are to hear of a step, and whether the thread has to look earlier than it means to.
    pub(in super::super) fn take_news(&mut self) -> (News, bool) {
        let has_unwritten =
            self.ledger.has_effects() || !self.keys.is_empty() || !self.ticket.waiters.is_empty();
        if !has_unwritten {
            self.unwritten = None;
        } else if self.unwritten.is_none() {
            self.unwritten = Some(Instant::now());
        }
        let earlier = self
            .armed
            .filter(|armed| self.write_due().is_some_and(|due| due < *armed));
        if earlier.is_some() {
            self.armed = None;
        }
        (std::mem::take(&mut self.news), earlier.is_some())
    }

    /// Does what is due: time that has passed, a look whether writing works again, the next write.
    pub(in super::super) fn catch_up(&mut self) {
        self.armed = None;
        match &self.health {
            Health::Good => {
                let now = self.now();
                self.ledger.handle_timeout(now);
                self.hand_over();
            }
            Health::Broken { why, retry, pause } if *retry <= Instant::now() => {
                let (why, pause) = (why.clone(), *pause);
                self.send(Job::Recover);
                self.health = Health::Recovering { why, pause };
            }
            Health::Broken { .. } | Health::Recovering { .. } => {}
        }
    }

    /// Takes what the ledger changed.
    pub(super) fn collect(&mut self) -> Vec<Effect> {
        let effects: Vec<Effect> = self.ledger.drain_effects().collect();
        for effect in &effects {
            if let Effect::Alarm(attempt) = effect {
                self.shared.alarms.fetch_add(1, Ordering::Relaxed);
                tracing::error!(attempt = %attempt.id, account = %attempt.account,
                    "a tier D charge is above the largest possible one; it is recorded whole");
            }
        }
        effects
    }

    /// Gives the next batch to the disk if it is free and the batch is due.
    pub(super) fn hand_over(&mut self) {
        let is_due = self.write_due().is_some_and(|due| due <= Instant::now());
        if !is_due {
            return;
        }
        self.unwritten = None;
        let ticket = std::mem::take(&mut self.ticket);
        let changes = Changes {
            effects: self.collect(),
            keys: std::mem::take(&mut self.keys),
        };
        if changes.is_empty() {
            self.news.add(ticket.waiters, &Ok(()));
            return;
        }
        self.in_flight = Some(InFlight {
            ticket,
            since: Instant::now(),
        });
        self.send(Job::Write(changes));
    }

    pub(super) fn send(&mut self, job: Job) {
        // One job at a time, so there is always room; a dead disk thread is seen as a failed write.
        if self.disk.try_send(job).is_err() {
            self.fail("the disk thread is gone".to_owned(), FIRST_RETRY);
        }
    }
}
