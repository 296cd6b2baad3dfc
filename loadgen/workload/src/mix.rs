//! Weighted choice: tenants, models.

use std::str::FromStr;

use rand::RngExt;

use crate::seed::{Purpose, mix, stream};

/// Things with weights; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix<T> {
    /// Each with the sum of the weights up to and including its own, which grows strictly.
    choices: Vec<(T, u64)>,
}

/// Not a mix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMix {
    #[error("a mix needs at least one choice with a weight above zero")]
    Empty,
    #[error("{0:?} is no choice; write NAME or NAME=WEIGHT, separated by commas")]
    Choice(String),
}

impl<T> Mix<T> {
    /// Choices of weight zero are left out.
    pub fn new(weighted: impl IntoIterator<Item = (T, u32)>) -> Result<Self, BadMix> {
        let mut sum = 0;
        let mut choices = Vec::new();
        for (choice, weight) in weighted.into_iter().filter(|(_, weight)| *weight > 0) {
            sum += u64::from(weight);
            choices.push((choice, sum));
        }
        if choices.is_empty() {
            Err(BadMix::Empty)
        } else {
            Ok(Self { choices })
        }
    }

    /// The choice for request `index`; `purpose` keeps several mixes of one load independent.
    pub fn pick(&self, seed: u64, purpose: u64, index: u64) -> &T {
        let total = self.choices.last().map_or(1, |(_, sum)| *sum);
        let drawn = stream(mix(seed, purpose), Purpose::Mix, index).random_range(0..total);
        let at = self.choices.partition_point(|(_, sum)| *sum <= drawn);
        &self.choices[at].0
    }

    pub fn choices(&self) -> impl Iterator<Item = &T> {
        self.choices.iter().map(|(choice, _)| choice)
    }
}

impl FromStr for Mix<String> {
    type Err = BadMix;

    /// Reads `a=3,b=1` or `a,b`.
    fn from_str(text: &str) -> Result<Self, BadMix> {
        let choices: Result<Vec<_>, _> = text.split(',').map(choice).collect();
        Self::new(choices?)
    }
}

fn choice(text: &str) -> Result<(String, u32), BadMix> {
    let bad = || BadMix::Choice(text.to_owned());
    let (name, weight) = match text.rsplit_once('=') {
        Some((name, weight)) => (name.trim(), weight.trim().parse().map_err(|_| bad())?),
        None => (text.trim(), 1),
    };
    if name.is_empty() {
        Err(bad())
    } else {
        Ok((name.to_owned(), weight))
    }
}

#[cfg(test)]
mod tests {
    use super::{BadMix, Mix};

    #[test]
    fn choices_come_in_proportion_to_their_weights() {
        let mix: Mix<String> = "a=3, b ,c=0".parse().expect("valid");
        let picks = (0..8_000)
            .filter(|&index| mix.pick(7, 0, index) == "a")
            .count();
        assert!((5_800..6_200).contains(&picks), "{picks}");
        assert_eq!(mix.choices().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn two_mixes_of_one_load_are_independent() {
        let mix: Mix<String> = "a,b".parse().expect("valid");
        let equal = (0..4_000)
            .filter(|&index| mix.pick(7, 0, index) == mix.pick(7, 1, index))
            .count();
        assert!((1_800..2_200).contains(&equal), "{equal}");
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        assert_eq!("a=0".parse::<Mix<String>>(), Err(BadMix::Empty));
        for text in ["", "a=x", "=3", "a,,b", "a=-1"] {
            assert!(
                matches!(text.parse::<Mix<String>>(), Err(BadMix::Choice(_))),
                "{text}"
            );
        }
    }
}
