//! Which endpoints may take a request at all.

use crate::decision::Filtered;
use crate::endpoint::{Endpoint, ModelKey};
use crate::request::{EmptiedBy, Request};

/// What the filters left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Eligible {
    /// Indices of endpoints are in the output; at least one.
    Some(Filtered),
    /// Endpoints could take it, but each has all it may have.
    Full,
    /// No endpoint could ever take it as things stand.
    None(EmptiedBy),
}

#[derive(Clone, Copy)]
struct Passed {
    index: u32,
    /// The prompt fits, but prompt and longest answer together do not.
    tight: bool,
    tried: bool,
    full: bool,
}

/// Scratch space of the filters.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    passed: Vec<Passed>,
    /// Indices of eligible endpoints, ascending.
    pub(crate) eligible: Vec<u32>,
    /// Indices of those that would be but have no room, ascending.
    pub(crate) full: Vec<u32>,
    /// What the last application removed.
    pub(crate) filtered: Filtered,
}

impl std::fmt::Debug for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.index.fmt(f)
    }
}

impl Filters {
    /// Applies all filters. Preferences (room for the whole answer, not tried before) only count while some endpoint
    /// meets them; room in flight comes last.
    pub(crate) fn apply(
        &mut self,
        endpoints: &[Endpoint],
        request: &Request,
        model: ModelKey,
    ) -> Eligible {
        self.eligible.clear();
        self.full.clear();
        let (mut filtered, known) = self.hard(endpoints, request, model);
        if self.passed.is_empty() {
            return Eligible::None(emptied_by(known, &filtered));
        }
        filtered.context += self.prefer(|passed| !passed.tight);
        filtered.tried = self.prefer(|passed| !passed.tried);
        for passed in &self.passed {
            if passed.full {
                filtered.full += 1;
                self.full.push(passed.index);
            } else {
                self.eligible.push(passed.index);
            }
        }
        self.filtered = filtered;
        if self.eligible.is_empty() {
            return Eligible::Full;
        }
        Eligible::Some(filtered)
    }

    fn hard(
        &mut self,
        endpoints: &[Endpoint],
        request: &Request,
        model: ModelKey,
    ) -> (Filtered, u32) {
        self.passed.clear();
        let mut filtered = Filtered::default();
        let mut known = 0;
        let whole = request.prompt_tokens.saturating_add(request.output_bound);
        for (index, endpoint) in endpoints.iter().enumerate() {
            if endpoint.presence() == crate::endpoint::Presence::Gone {
                continue;
            }
            known += 1;
            let context = endpoint.max_context().unwrap_or(u64::MAX);
            if !endpoint.serves(model) {
                filtered.model += 1;
            } else if !endpoint.is_up() {
                filtered.draining += 1;
            } else if request.prompt_tokens >= context {
                filtered.context += 1;
            } else if endpoint.health.is_quarantined() {
                filtered.quarantined += 1;
            } else {
                self.passed.push(Passed {
                    index: index as u32,
                    tight: whole > context,
                    tried: request.tried.contains(&endpoint.id),
                    full: endpoint.is_full(),
                });
            }
        }
        (filtered, known)
    }

    /// Keeps what is `good`, if anything is; returns how many went.
    fn prefer(&mut self, good: impl Fn(&Passed) -> bool) -> u32 {
        let before = self.passed.len();
        if self.passed.iter().any(&good) {
            self.passed.retain(good);
        }
        (before - self.passed.len()) as u32
    }
}

/// The first filter, in their order, after which nothing was left.
fn emptied_by(known: u32, filtered: &Filtered) -> EmptiedBy {
    let mut left = known;
    for (removed, filter) in [
        (filtered.model, EmptiedBy::Model),
        (filtered.draining, EmptiedBy::Draining),
        (filtered.context, EmptiedBy::Context),
    ] {
        if left > 0 && left == removed {
            return filter;
        }
        left -= removed;
    }
    if known == 0 {
        EmptiedBy::Pool
    } else {
        EmptiedBy::Quarantine
    }
}
