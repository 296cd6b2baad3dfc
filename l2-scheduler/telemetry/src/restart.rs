//! Tells one life of an engine from the next: by its start time where the page has one, else by counters that fell.
//! Pure. (The pool draws its own conclusion from the observation; this one is for what is remembered of the page.)

use crate::page::Page;

/// What the pages of an endpoint said of its engine's life so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    start_time_s: Option<f64>,
    generation_tokens: Option<f64>,
}

/// Whether a page comes from the engine known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuity {
    Same,
    Restarted,
}

impl Life {
    /// Takes in a page.
    pub(crate) fn observe(&mut self, page: &Page) -> Continuity {
        let generation_tokens = page.counters.generation_tokens;
        let restarted = match (self.start_time_s, page.start_time_s) {
            (Some(before), Some(now)) => (now - before).abs() > 0.5,
            (None, _) | (_, None) => self
                .generation_tokens
                .zip(generation_tokens)
                .is_some_and(|(before, now)| now < before),
        };
        self.start_time_s = page.start_time_s.or(self.start_time_s);
        self.generation_tokens = generation_tokens.or(self.generation_tokens);
        if restarted {
            Continuity::Restarted
        } else {
            Continuity::Same
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Continuity, Life};
    use crate::page::{Counters, Page};

    /// Pages as (start time, generated tokens) against the pages (counted from zero) that tell of a restart.
    fn check(pages: &[(Option<f64>, Option<f64>)], expected: &[usize]) {
        let mut life = Life::default();
        let mut restarts = Vec::new();
        for (index, &(start_time_s, generation_tokens)) in pages.iter().enumerate() {
            let counters = Counters {
                generation_tokens,
                ..Counters::default()
            };
            if life.observe(&Page {
                start_time_s,
                counters,
                ..Page::default()
            }) == Continuity::Restarted
            {
                restarts.push(index);
            }
        }
        assert_eq!(restarts, expected);
    }

    #[test]
    fn another_start_time_is_a_restart() {
        check(
            &[
                (Some(7.0), None),
                (Some(7.0), None),
                (Some(9.5), None),
                (Some(9.5), None),
            ],
            &[2],
        );
        check(&[(Some(7.0), None), (None, None), (Some(7.0), None)], &[]);
    }

    #[test]
    fn counters_that_fell_are_a_restart_where_no_start_time_is_told() {
        let pages = [
            (None, Some(5.0)),
            (None, Some(5.0)),
            (None, None),
            (None, Some(4.0)),
            (None, Some(9.0)),
        ];
        check(&pages, &[3]);
    }
}
