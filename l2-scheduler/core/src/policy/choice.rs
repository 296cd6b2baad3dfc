//! From scores to one endpoint, and the rivals a record should name.

use crate::decision::TieBreak;
use crate::policy::{Row, Slight};
use crate::rng::Rng;

/// Most candidates a record keeps.
pub(crate) const RECORDED: usize = 16;

/// How close scores count as equal, and what then decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ties {
    /// Within the larger of the two: most free KV cache, then rendezvous hash, then chance.
    Within(Slight),
    /// Exactly equal: chance.
    Chance,
}

/// The chosen row and its rivals.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Position among the rows.
    pub(crate) chosen: usize,
    pub(crate) tie: Option<TieBreak>,
    /// The chosen one, then the best others by score, at most 16 in all.
    pub(crate) ranking: Vec<usize>,
}

/// Chooses the least score. `spread` is the hash that places a prompt nobody holds.
pub(crate) fn choose(
    rows: &[Row],
    scores: &[f64],
    ties: Ties,
    spread: Option<u64>,
    rng: &mut Rng,
) -> Choice {
    let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let (limit, by_knowledge) = match ties {
        Ties::Within(slight) => (slight.limit(least), true),
        Ties::Chance => (least, false),
    };
    let mut equal: Vec<usize> = (0..rows.len()).filter(|at| scores[*at] <= limit).collect();
    let tie = if equal.len() == 1 {
        None
    } else {
        Some(break_tie(rows, &mut equal, by_knowledge, spread, rng))
    };
    let chosen = equal[0];
    Choice {
        chosen,
        tie,
        ranking: ranking(scores.iter().copied().enumerate(), chosen),
    }
}

/// Leaves the winner at the front of `tied`.
fn break_tie(
    rows: &[Row],
    tied: &mut Vec<usize>,
    by_knowledge: bool,
    spread: Option<u64>,
    rng: &mut Rng,
) -> TieBreak {
    if by_knowledge {
        // Whole percents: a difference nobody can feel decides nothing.
        let percent = |at: usize| (rows[at].kv_use * 100.0) as u32;
        let least = tied.iter().map(|at| percent(*at)).min().unwrap_or(0);
        tied.retain(|at| percent(*at) == least);
        if tied.len() == 1 {
            return TieBreak::FreeKv;
        }
        if let Some(spread) = spread {
            let weight =
                |at: usize| crate::residency::hash_bytes(spread, &rows[at].name_hash.to_le_bytes());
            let best = tied
                .iter()
                .copied()
                .max_by_key(|at| (weight(*at), *at))
                .unwrap_or(0);
            *tied = vec![best];
            return TieBreak::Rendezvous;
        }
    }
    let at = (rng.next() % tied.len() as u64) as usize;
    tied.swap(0, at);
    TieBreak::Random
}

/// The chosen one and the best others by score, at most 16 in all.
pub(crate) fn ranking<I: Copy + PartialEq>(
    scores: impl Iterator<Item = (I, f64)>,
    chosen: I,
) -> Vec<I> {
    let mut best: Vec<(f64, I)> = Vec::with_capacity(RECORDED);
    for (index, score) in scores.filter(|(index, _)| *index != chosen) {
        if best.len() == RECORDED - 1 {
            if best.last().is_some_and(|(worst, _)| score >= *worst) {
                continue;
            }
            best.pop();
        }
        let place = best.partition_point(|(other, _)| *other <= score);
        best.insert(place, (score, index));
    }
    std::iter::once(chosen)
        .chain(best.into_iter().map(|(_, index)| index))
        .collect()
}
