//! How much load a pool sustains: the largest load factor at which enough of what is offered is good.

/// Where a search begins and how exact it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bracket {
    /// Tried first.
    pub start: f64,
    /// How far apart the tries lie before an upper and a lower bound are known; above 1.
    pub stride: f64,
    /// The bounds of the answer are at most this share apart, such as 0.015.
    pub step: f64,
    /// Neither below the first nor above the second.
    pub limits: (f64, f64),
}

impl Default for Bracket {
    fn default() -> Self {
        Self {
            start: 1.5,
            stride: 1.6,
            step: 0.015,
            limits: (0.05, 50.0),
        }
    }
}

/// The largest factor found to be `sustained`, which is taken to hold up to some factor and not beyond; `None` where
/// even the least is too much.
pub fn capacity(bracket: Bracket, mut sustained: impl FnMut(f64) -> bool) -> Option<f64> {
    let (least, most) = bracket.limits;
    let mut at = bracket.start.clamp(least, most);
    let (mut low, mut high) = (None, None);
    while low.is_none() || high.is_none() {
        if sustained(at) {
            low = Some(at);
            if at >= most {
                return low;
            }
            at = (at * bracket.stride).min(most);
        } else {
            high = Some(at);
            if at <= least {
                return None;
            }
            at = (at / bracket.stride).max(least);
        }
    }
    let (mut low, mut high) = low.zip(high)?;
    while high / low > 1.0 + bracket.step {
        // Halves the distance in proportion, as the step is one.
        let middle = (low * high).sqrt();
        if sustained(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::{Bracket, capacity};

    #[test]
    fn a_search_ends_within_its_step_below_the_limit() {
        for limit in [0.06, 0.3, 1.0, 1.5, 3.41, 49.0] {
            let mut tries = 0;
            let found = capacity(Bracket::default(), |factor| {
                tries += 1;
                factor <= limit
            })
            .expect("some load is sustained");
            assert!(
                found <= limit && found * 1.015 >= limit,
                "{found} for {limit}"
            );
            assert!(tries <= 16, "{tries} tries for {limit}");
        }
    }

    #[test]
    fn a_search_stays_within_its_limits() {
        assert_eq!(capacity(Bracket::default(), |_| true), Some(50.0));
        assert_eq!(capacity(Bracket::default(), |_| false), None);
    }
}
