//! Work in WTU, and how fairly it was given out. Pure.

/// Work of a request: a prompt token counts 1, a cached one 0.1, a generated one 2.
pub fn work(prompt_tokens: u32, cached_tokens: u64, output_tokens: u32) -> f64 {
    let cached = (cached_tokens as f64).min(f64::from(prompt_tokens));
    f64::from(prompt_tokens) - 0.9 * cached + 2.0 * f64::from(output_tokens)
}

/// Jain's index over what each was served as a multiple of its max-min fair share: 1 when all are equal, 1/n when one
/// has everything.
pub fn jain(served_and_wanted: &[(f64, f64)]) -> f64 {
    let total = served_and_wanted.iter().map(|(served, _)| served).sum();
    let level = fair_level(served_and_wanted.iter().map(|(_, wanted)| *wanted), total);
    let (mut sum, mut squares) = (0.0, 0.0);
    for (served, wanted) in served_and_wanted {
        let satisfied = served / wanted.min(level).max(f64::MIN_POSITIVE);
        sum += satisfied;
        squares += satisfied * satisfied;
    }
    if squares > 0.0 {
        sum * sum / (served_and_wanted.len() as f64 * squares)
    } else {
        1.0
    }
}

/// The most anybody gets when `total` is shared max-min fairly.
fn fair_level(wanted: impl Iterator<Item = f64>, total: f64) -> f64 {
    let mut wanted: Vec<f64> = wanted.collect();
    wanted.sort_by(f64::total_cmp);
    let (mut left, mut others) = (total, wanted.len());
    for want in wanted {
        let level = left / others as f64;
        if want > level {
            return level;
        }
        left -= want;
        others -= 1;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::{fair_level, jain, work};

    #[test]
    fn whoever_wants_little_is_satisfied_with_little() {
        for (served_and_wanted, expected) in [
            (&[(10.0, 10.0), (45.0, 90.0), (45.0, 900.0)][..], 1.0),
            (&[(0.0, 50.0), (90.0, 90.0)], 0.5),
            (&[(90.0, 900.0), (30.0, 900.0)], 0.8),
            (&[(0.0, 5.0)], 1.0),
            (&[(0.0, 5.0), (0.0, 9.0)], 1.0),
            (&[], 1.0),
        ] {
            let found = jain(served_and_wanted);
            assert!(
                (found - expected).abs() < 1e-9,
                "{served_and_wanted:?}: {found}"
            );
        }
    }

    #[test]
    fn the_fair_level_is_what_remains_for_those_who_want_more() {
        let level = |wanted: &[f64], total| fair_level(wanted.iter().copied(), total);
        assert!((level(&[1.0, 5.0, 9.0], 9.0) - 4.0).abs() < 1e-9);
        assert!((level(&[9.0, 9.0], 6.0) - 3.0).abs() < 1e-9);
        assert!(level(&[1.0, 2.0], 3.0).is_infinite());
    }

    #[test]
    fn cached_tokens_are_cheap_and_generated_ones_dear() {
        assert!((work(1_000, 400, 100) - 840.0).abs() < 1e-9);
        assert!(
            (work(10, 40, 0) - 1.0).abs() < 1e-9,
            "no more is cached than there is"
        );
    }
}
