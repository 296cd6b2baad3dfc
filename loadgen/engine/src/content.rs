//! What a sequence consists of, as one chained hash per full block. Equal hashes mean equal prefixes.

use crate::token::Token;

/// Hash of one full KV block and everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Keeps caches of different owners apart: sequences share blocks only under one seed. Built from the
/// model, the adapter and the cache salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContentSeed(u64);

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

impl ContentSeed {
    /// Adds a part of the name, such as an adapter or a salt.
    #[must_use]
    pub fn with(self, part: &str) -> Self {
        let mut h = mix(self.0 ^ part.len() as u64 ^ MULTIPLIER);
        for chunk in part.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            h = mix(h ^ u64::from_le_bytes(word));
        }
        Self(h)
    }
}

/// Hashes of the full blocks of `prompt` followed by `output`.
pub fn hash_tokens(
    seed: ContentSeed,
    block_size: u32,
    prompt: &[Token],
    output: &[Token],
) -> Box<[BlockHash]> {
    let size = block_size as usize;
    let mut hashes = Vec::with_capacity((prompt.len() + output.len()) / size);
    let mut parent = seed.0;
    let mut in_block = 0;
    let mut h = mix(parent ^ MULTIPLIER);
    for &token in prompt.iter().chain(output) {
        h = (h ^ u64::from(token))
            .wrapping_mul(MULTIPLIER)
            .rotate_left(29);
        in_block += 1;
        if in_block == size {
            parent = mix(h);
            hashes.push(BlockHash(parent));
            h = mix(parent ^ MULTIPLIER);
            in_block = 0;
        }
    }
    hashes.into_boxed_slice()
}

/// Hashes for a sequence of `tokens` tokens known only by the ids of a trace: each id names
/// `tokens_per_id` tokens and everything before them; the last one may be partial. Tokens beyond the ids
/// (the output, usually) belong to nobody else and are not hashed.
pub fn hash_trace_blocks(
    seed: ContentSeed,
    block_size: u32,
    ids: &[u64],
    tokens_per_id: u32,
    tokens: u32,
) -> Box<[BlockHash]> {
    let named = u64::from(tokens).min(ids.len() as u64 * u64::from(tokens_per_id));
    let full = named / u64::from(block_size);
    (0..full)
        .map(|block| {
            // A block that reaches into the next id is the prefix named by that id.
            let last = (block + 1) * u64::from(block_size) - 1;
            let id = ids[(last / u64::from(tokens_per_id)) as usize];
            let offset = last % u64::from(tokens_per_id);
            BlockHash(mix(seed.0
                ^ mix(id ^ MULTIPLIER)
                ^ offset.wrapping_mul(MULTIPLIER)))
        })
        .collect()
}

/// The finaliser of splitmix64: every input bit reaches every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_prefixes_have_equal_hashes_and_nothing_else_has() {
        let seed = ContentSeed::default().with("m");
        let a: Vec<u32> = (0..40).collect();
        let mut b = a.clone();
        b[20] = 99;
        let (ha, hb) = (
            hash_tokens(seed, 16, &a, &[]),
            hash_tokens(seed, 16, &b, &[]),
        );
        assert_eq!(ha.len(), 2, "only full blocks are hashed");
        assert_eq!(ha[0], hb[0]);
        assert_ne!(ha[1], hb[1]);
        assert_ne!(ha[0], hash_tokens(seed.with("tenant-a"), 16, &a, &[])[0]);
    }

    #[test]
    fn an_output_sent_back_as_a_prompt_is_the_same_content() {
        let seed = ContentSeed::default();
        let tokens: Vec<u32> = (0..64).collect();
        assert_eq!(
            hash_tokens(seed, 16, &tokens[..10], &tokens[10..]),
            hash_tokens(seed, 16, &tokens, &[])
        );
    }

    #[test]
    fn trace_ids_name_the_prefix_they_end() {
        let seed = ContentSeed::default();
        let a = hash_trace_blocks(seed, 16, &[0, 7, 8], 512, 1_300);
        let b = hash_trace_blocks(seed, 16, &[0, 7, 9], 512, 1_300);
        assert_eq!(a.len(), 81);
        assert_eq!(a[..64], b[..64]);
        assert!(a[64..].iter().zip(&b[64..]).all(|(x, y)| x != y));
        let coarse = hash_trace_blocks(seed, 512, &[0, 7, 8], 512, 1_300);
        assert_eq!(coarse.len(), 2);
    }

    #[test]
    fn output_tokens_without_ids_are_not_hashed() {
        assert_eq!(
            hash_trace_blocks(ContentSeed::default(), 512, &[1, 2], 512, 5_000).len(),
            2
        );
    }
}
