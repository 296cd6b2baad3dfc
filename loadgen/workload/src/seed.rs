//! Independent streams of random numbers from one seed: one per purpose and request, so that a change in one leaves
//! the others as they were.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What random numbers are drawn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Arrivals = 1,
    Jitter,
    Lengths,
    Group,
    Mix,
    Endpoint,
    Population,
    Session,
}

pub(crate) fn stream(seed: u64, purpose: Purpose, index: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(mix(mix(seed, purpose as u64), index))
}

/// Mixes a value into a seed; every bit of both reaches every bit of the result.
pub(crate) fn mix(seed: u64, value: u64) -> u64 {
    let mut mixed = seed
        .wrapping_add(value.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
