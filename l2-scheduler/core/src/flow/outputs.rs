//! How long answers are: a running mean per flow and model.

use std::collections::VecDeque;

use governance_context::FairnessId;
use rustc_hash::FxHashMap;

use crate::endpoint::ModelKey;

/// Output tokens expected before any answer was seen.
const FIRST_MEAN: f64 = 300.0;
/// From so many answers on, the mean forgets.
const MEMORY: f64 = 64.0;
/// Pairs of flow and model with a mean of their own; who has none gets the mean of all.
const MOST: usize = 16_384;

#[derive(Clone, Copy, Debug)]
struct Mean {
    value: f64,
    answers: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.answers = (self.answers + 1.0).min(MEMORY);
        self.value += (value - self.value) / self.answers;
    }
}

#[derive(Debug)]
pub(crate) struct Outputs {
    all: Mean,
    own: FxHashMap<(FairnessId, ModelKey), Mean>,
    /// The pairs by age: when there are too many the oldest goes.
    by_age: VecDeque<(FairnessId, ModelKey)>,
}

impl Outputs {
    pub(crate) fn new() -> Self {
        Self {
            all: Mean {
                value: FIRST_MEAN,
                answers: 1.0,
            },
            own: FxHashMap::default(),
            by_age: VecDeque::new(),
        }
    }

    /// Output tokens to expect of one request whose answer is bounded by `bound` (0: not known).
    pub(crate) fn expected(&self, flow: &FairnessId, model: ModelKey, bound: u64) -> f64 {
        let mean = self
            .own
            .get(&(flow.clone(), model))
            .map_or(self.all.value, |mean| mean.value);
        if bound == 0 {
            mean
        } else {
            mean.min(bound as f64)
        }
    }

    pub(crate) fn observe(&mut self, flow: &FairnessId, model: ModelKey, tokens: u64) {
        let value = tokens as f64;
        self.all.add(value);
        let key = (flow.clone(), model);
        if let Some(mean) = self.own.get_mut(&key) {
            mean.add(value);
        } else {
            if self.own.len() >= MOST
                && let Some(oldest) = self.by_age.pop_front()
            {
                self.own.remove(&oldest);
            }
            self.by_age.push_back(key.clone());
            // Three answers' worth of what everybody gets, so that one odd first answer decides little.
            let mut mean = Mean {
                value: self.all.value,
                answers: 3.0,
            };
            mean.add(value);
            self.own.insert(key, mean);
        }
    }
}
