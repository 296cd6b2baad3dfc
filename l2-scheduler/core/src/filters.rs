//! Which endpoints may take a request at all.

use rustc_hash::FxHashMap;

use crate::decision::Filtered;
use crate::endpoint::{Endpoint, ModelKey, Presence, Standing};
use crate::request::{EmptiedBy, Request};

/// Models whose rosters are kept.
const MOST_ROSTERS: usize = 256;

/// The endpoints that serve one model, as long as nothing about who serves what changes.
#[derive(Debug, Default)]
struct Roster {
    /// Indices, ascending.
    indices: Vec<u32>,
    /// No endpoint that serves the model takes less, prompt and answer together.
    least_context: u64,
    filtered: Filtered,
    known: u32,
}

#[derive(Clone, Copy)]
struct Passed {
    index: u32,
    /// The prompt fits, but prompt and longest answer together do not.
    tight: bool,
    tried: bool,
}

impl std::fmt::Debug for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.index.fmt(f)
    }
}

/// The filters, with what they keep from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    standings: Vec<Standing>,
    rosters: FxHashMap<ModelKey, Roster>,
    passed: Vec<Passed>,
    /// Of the last request; some of them may be full.
    pub(crate) eligible: Eligible,
    /// The model whose whole roster they are, if they are one.
    shown: Option<ModelKey>,
}

/// The endpoints a request may go to.
#[derive(Debug, Default)]
pub(crate) struct Eligible {
    /// Ascending.
    indices: Vec<u32>,
    edition: u64,
}

impl Eligible {
    pub(crate) fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Another number whenever they are others.
    pub(crate) fn edition(&self) -> u64 {
        self.edition
    }

    pub(crate) fn fill(&mut self, indices: impl Iterator<Item = u32>) {
        self.edition += 1;
        self.indices.clear();
        self.indices.extend(indices);
    }
}

impl Filters {
    /// Forgets everything: indices mean other endpoints than before.
    pub(crate) fn reset(&mut self, endpoints: &[Endpoint]) {
        self.forget_rosters();
        self.standings.clear();
        self.standings
            .extend(endpoints.iter().map(Endpoint::standing));
    }

    /// An endpoint may have changed.
    pub(crate) fn renew(&mut self, index: usize, standing: Standing) {
        if std::mem::replace(&mut self.standings[index], standing) != standing {
            self.forget_rosters();
        }
    }

    fn forget_rosters(&mut self) {
        self.rosters.clear();
        self.shown = None;
    }

    /// Leaves out everybody who is not `good`.
    pub(crate) fn retain(&mut self, good: impl Fn(u32) -> bool) {
        self.shown = None;
        self.eligible.edition += 1;
        self.eligible.indices.retain(|index| good(*index));
    }

    /// Applies all filters but the one for full endpoints. Preferences (room for the whole answer, not tried before) only
    /// count while some endpoint meets them. What is left is in `eligible`; the error is the filter that left nothing.
    pub(crate) fn apply(
        &mut self,
        endpoints: &[Endpoint],
        request: &Request,
        model: ModelKey,
    ) -> Result<Filtered, EmptiedBy> {
        let whole = request.prompt_tokens.saturating_add(request.output_bound);
        let roster = self.roster(endpoints, model);
        if !request.tried.is_empty() || whole >= roster.least_context {
            return self.narrow(endpoints, request, model);
        }
        let (filtered, known) = (roster.filtered, roster.known);
        if self.shown != Some(model) {
            self.shown = Some(model);
            let indices = self.rosters[&model].indices.iter().copied();
            self.eligible.fill(indices);
        }
        if self.eligible.indices.is_empty() {
            return Err(emptied_by(known, &filtered));
        }
        Ok(filtered)
    }

    fn roster(&mut self, endpoints: &[Endpoint], model: ModelKey) -> &Roster {
        if self.rosters.len() >= MOST_ROSTERS && !self.rosters.contains_key(&model) {
            self.forget_rosters();
        }
        self.rosters
            .entry(model)
            .or_insert_with(|| Roster::of(endpoints, model))
    }

    /// The filters for a request that some of the endpoints of its model may not take.
    fn narrow(
        &mut self,
        endpoints: &[Endpoint],
        request: &Request,
        model: ModelKey,
    ) -> Result<Filtered, EmptiedBy> {
        self.passed.clear();
        self.shown = None;
        let whole = request.prompt_tokens.saturating_add(request.output_bound);
        let (mut filtered, known) =
            sift(endpoints, model, request.prompt_tokens, |at, endpoint| {
                self.passed.push(Passed {
                    index: at,
                    tight: whole > endpoint.max_context().unwrap_or(u64::MAX),
                    tried: request.tried.contains(&endpoint.id),
                });
            });
        if self.passed.is_empty() {
            return Err(emptied_by(known, &filtered));
        }
        filtered.context += self.prefer(|passed| !passed.tight);
        filtered.tried = self.prefer(|passed| !passed.tried);
        self.eligible
            .fill(self.passed.iter().map(|passed| passed.index));
        Ok(filtered)
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

impl Roster {
    fn of(endpoints: &[Endpoint], model: ModelKey) -> Self {
        let mut indices = Vec::new();
        let (filtered, known) = sift(endpoints, model, 0, |at, _| indices.push(at));
        let contexts = endpoints
            .iter()
            .filter(|endpoint| endpoint.is_up() && endpoint.serves(model))
            .filter_map(Endpoint::max_context);
        Self {
            indices,
            least_context: contexts.min().unwrap_or(u64::MAX),
            filtered,
            known,
        }
    }
}

/// The filters that are no preferences, for a prompt of `tokens`: tells what passes, and returns what each removed, of how
/// many.
fn sift(
    endpoints: &[Endpoint],
    model: ModelKey,
    tokens: u64,
    mut pass: impl FnMut(u32, &Endpoint),
) -> (Filtered, u32) {
    let mut filtered = Filtered::default();
    let mut known = 0;
    for (index, endpoint) in endpoints.iter().enumerate() {
        if endpoint.presence() == Presence::Gone {
            continue;
        }
        known += 1;
        if !endpoint.serves(model) {
            filtered.model += 1;
        } else if !endpoint.is_up() {
            filtered.draining += 1;
        } else if endpoint.max_context().is_some_and(|most| tokens >= most) {
            filtered.context += 1;
        } else if endpoint.health.is_quarantined() {
            filtered.quarantined += 1;
        } else {
            pass(index as u32, endpoint);
        }
    }
    (filtered, known)
}

/// Which filter leaves no endpoint for `request`, if one does.
pub(crate) fn emptied(
    endpoints: &[Endpoint],
    request: &Request,
    model: ModelKey,
) -> Option<EmptiedBy> {
    let mut passed = 0;
    let (filtered, known) = sift(endpoints, model, request.prompt_tokens, |_, _| passed += 1);
    (passed == 0).then(|| emptied_by(known, &filtered))
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
