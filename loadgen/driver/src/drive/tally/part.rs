//! The requests of one tenant or one band. Pure.

use std::collections::BTreeMap;

use super::{Judged, Times, entry, share};
use crate::drive::outcome::{End, Outcome};
use crate::drive::report::PartFigures;

#[derive(Debug, Default)]
pub(super) struct Part {
    offered: u64,
    completed: u64,
    good: u64,
    refused: BTreeMap<String, u64>,
    failed: u64,
    left: u64,
    output_tokens: u64,
    ttft: Times,
    wait: Times,
    served_work: f64,
    wanted_work: f64,
}

impl Part {
    pub(super) fn add(&mut self, outcome: &Outcome, judged: &Judged) {
        self.offered += 1;
        self.good += u64::from(judged.is_good);
        self.wanted_work += judged.work;
        if judged.is_served {
            self.served_work += judged.work;
        }
        match &outcome.end {
            End::Completed(answer) => {
                self.completed += 1;
                self.output_tokens += answer.output_tokens();
                if let Some(first) = judged.answer.first {
                    self.ttft.record(first);
                }
                if let Some(waited) = judged.waited {
                    self.wait.record(waited);
                }
            }
            End::Left => self.left += 1,
            End::Refused { status, code } => {
                *entry(&mut self.refused, &format!("{status} {code}")) += 1;
            }
            End::Failed(_) => self.failed += 1,
        }
    }

    /// Work served and asked for.
    pub(super) fn served_and_wanted(&self) -> (f64, f64) {
        (self.served_work, self.wanted_work)
    }

    /// `all_served` is the work served to all parts together.
    pub(super) fn figures(&self, all_served: f64) -> PartFigures {
        PartFigures {
            offered: self.offered,
            completed: self.completed,
            refused: self.refused.values().sum(),
            refused_by: self.refused.clone(),
            failed: self.failed,
            left: self.left,
            goodput: share(self.good, self.offered - self.left),
            output_tokens: self.output_tokens,
            ttft_s: self.ttft.quantiles(),
            wait_s: self.wait.quantiles(),
            wtu: self.served_work,
            wtu_share: (all_served > 0.0).then(|| self.served_work / all_served),
        }
    }
}
