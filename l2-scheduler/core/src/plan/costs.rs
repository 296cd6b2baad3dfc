//! What every place costs the request in hand, in seconds.

use wide::f32x4;

use super::four::{LANES, place};

/// By endpoint; without end where it may not go.
#[derive(Debug, Default)]
pub(super) struct Costs(pub(super) Vec<f32x4>);

impl Costs {
    pub(super) fn of(&self, index: u32) -> f32 {
        let (four, lane) = place(index);
        self.0[four].as_array()[lane]
    }

    /// Makes a place dearer; returns what it costs now.
    pub(super) fn add(&mut self, index: u32, seconds: f32) -> f32 {
        let (four, lane) = place(index);
        let cost = &mut self.0[four].as_mut_array()[lane];
        *cost += seconds;
        *cost
    }

    /// Places that cost from `least` to `most`, in their order.
    pub(super) fn within(&self, least: f32, most: f32) -> impl Iterator<Item = u32> {
        let is_within = move |cost: f32| least <= cost && cost <= most;
        let fours = self.0.iter().enumerate();
        fours
            .filter(move |(_, lanes)| lanes.simd_le(most).any())
            .flat_map(|(four, lanes)| lanes.as_array().iter().zip((four * LANES) as u32..))
            .filter(move |(cost, _)| is_within(**cost))
            .map(|(_, index)| index)
    }

    /// Fills `list` with the cheapest places that cost `limit` at most, the cheapest first and of equals whichever comes
    /// first: `most` of them at most.
    pub(super) fn cheapest(&self, most: usize, limit: f32, list: &mut Vec<(f32, u32)>) {
        list.clear();
        let mut limit = limit;
        for (four, lanes) in self.0.iter().enumerate() {
            // Nearly all are dearer than those that were found already.
            if !lanes.simd_le(limit).any() {
                continue;
            }
            for (cost, index) in lanes.as_array().iter().zip((four * LANES) as u32..) {
                if *cost <= limit {
                    list.truncate(most - 1);
                    let at = list.partition_point(|(other, _)| other <= cost);
                    list.insert(at, (*cost, index));
                    if list.len() == most {
                        limit = list[most - 1].0.next_down();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs() -> impl Strategy<Value = Vec<[f32; LANES]>> {
        let cost = prop_oneof![
            (0u8..20).prop_map(f32::from),
            0.0..20.0f32,
            Just(f32::INFINITY)
        ];
        prop::collection::vec(prop::array::uniform4(cost), 0..12)
    }

    proptest! {
        #[test]
        fn the_cheapest_are_those_that_sorting_puts_first(fours in costs(), most in 1..9usize, limit in 0.0..22.0f32) {
            let mut sorted: Vec<_> = fours.iter().flatten().copied().zip(0u32..).collect();
            sorted.retain(|(cost, _)| *cost <= limit);
            sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
            let costs = Costs(fours.into_iter().map(f32x4::new).collect());
            let within: Vec<u32> = costs.within(3.0, limit).collect();
            let mut expected: Vec<u32> = sorted.iter().filter(|(cost, _)| *cost >= 3.0).map(|(_, index)| *index).collect();
            expected.sort_unstable();
            prop_assert_eq!(within, expected);
            sorted.truncate(most);
            let mut list = Vec::new();
            costs.cheapest(most, limit, &mut list);
            prop_assert_eq!(list, sorted);
        }
    }
}
