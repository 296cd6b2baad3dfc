//! Blocks as text: equal blocks are equal text, of exactly the tokens asked for where four bytes are a token.

use crate::prompt::{BLOCK_TOKENS, BlockId, Prompt};
use crate::seed::mix;

/// Bytes of one simulated token. A real tokenizer makes about 70 tokens of 100.
pub const TOKEN_BYTES: usize = 4;

/// Bytes of one word with its blank: two tokens.
const WORD_BYTES: usize = 8;

/// Seven letters and a blank each, so that text is written eight bytes at a time and no cut at a token needs care.
const WORDS: [&[u8; WORD_BYTES]; 64] = [
    b"ability ",
    b"account ",
    b"address ",
    b"airline ",
    b"ancient ",
    b"another ",
    b"balance ",
    b"battery ",
    b"because ",
    b"between ",
    b"brother ",
    b"cabinet ",
    b"capital ",
    b"century ",
    b"chapter ",
    b"climate ",
    b"collect ",
    b"command ",
    b"complex ",
    b"concert ",
    b"correct ",
    b"country ",
    b"culture ",
    b"deliver ",
    b"density ",
    b"digital ",
    b"disease ",
    b"element ",
    b"evening ",
    b"example ",
    b"factory ",
    b"feature ",
    b"finance ",
    b"foreign ",
    b"freedom ",
    b"gallery ",
    b"general ",
    b"harvest ",
    b"history ",
    b"husband ",
    b"imagine ",
    b"journey ",
    b"justice ",
    b"kitchen ",
    b"leading ",
    b"library ",
    b"machine ",
    b"measure ",
    b"message ",
    b"mineral ",
    b"morning ",
    b"natural ",
    b"network ",
    b"october ",
    b"opinion ",
    b"parking ",
    b"patient ",
    b"perfect ",
    b"picture ",
    b"problem ",
    b"quality ",
    b"reading ",
    b"science ",
    b"station ",
];

/// Appends the text of a prompt: `prompt.tokens() * TOKEN_BYTES` bytes of lower-case letters and blanks, which need no
/// escape in JSON.
pub fn write_prompt(prompt: &Prompt, seed: u64, text: &mut Vec<u8>) {
    text.reserve(prompt.tokens() as usize * TOKEN_BYTES);
    for (block, tokens) in prompt.blocks() {
        write_block(block, tokens, seed, text);
    }
}

/// Appends the first `tokens` tokens of a block.
pub fn write_block(block: BlockId, tokens: u32, seed: u64, text: &mut Vec<u8>) {
    /// Words drawn from one random number, six bits each.
    const DRAWN: usize = 10;
    let bytes = tokens.min(BLOCK_TOKENS) as usize * TOKEN_BYTES;
    let end = text.len() + bytes;
    let mut random = mix(seed, block.0);
    while text.len() < end {
        random = mix(random, block.0);
        for word in 0..DRAWN.min((end - text.len()).div_ceil(WORD_BYTES)) {
            text.extend_from_slice(WORDS[(random >> (6 * word)) as usize & 63]);
        }
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::{TOKEN_BYTES, WORDS, write_block, write_prompt};
    use crate::prompt::{BLOCK_TOKENS, BlockId, Prompt, Run};

    fn block(id: u64, tokens: u32, seed: u64) -> Vec<u8> {
        let mut text = Vec::new();
        write_block(BlockId(id), tokens, seed, &mut text);
        text
    }

    #[test]
    fn words_are_seven_letters_and_differ() {
        let distinct: std::collections::BTreeSet<_> = WORDS.iter().collect();
        assert_eq!(distinct.len(), WORDS.len());
        for word in WORDS {
            assert!(word[..7].iter().all(u8::is_ascii_lowercase) && word[7] == b' ');
        }
    }

    #[test]
    fn equal_blocks_are_equal_text_and_others_differ_from_the_start() {
        let texts: Vec<Vec<u8>> = (0..500).map(|id| block(id, BLOCK_TOKENS, 1)).collect();
        for (id, text) in (0..).zip(&texts) {
            assert_eq!(text.len(), 2_048);
            assert_eq!(text, &block(id, BLOCK_TOKENS, 1));
            assert_ne!(text, &block(id, BLOCK_TOKENS, 2));
        }
        let starts: std::collections::BTreeSet<_> = texts.iter().map(|text| &text[..64]).collect();
        assert_eq!(starts.len(), texts.len());
    }

    #[test]
    fn a_partial_block_is_the_beginning_of_the_whole() {
        let whole = block(5, BLOCK_TOKENS, 9);
        for tokens in 0..=BLOCK_TOKENS {
            assert_eq!(block(5, tokens, 9), whole[..tokens as usize * TOKEN_BYTES]);
        }
    }

    #[test]
    fn prompts_with_a_common_prefix_share_its_text() {
        let run = |first, tokens| Run {
            first: BlockId(first),
            tokens,
        };
        let mut texts = [Vec::new(), Vec::new()];
        write_prompt(&Prompt::new([run(0, 600), run(90, 100)]), 3, &mut texts[0]);
        write_prompt(&Prompt::new([run(0, 600), run(91, 7)]), 3, &mut texts[1]);
        assert_eq!((texts[0].len(), texts[1].len()), (2_800, 2_428));
        assert_eq!(texts[0][..2_400], texts[1][..2_400]);
        assert_ne!(texts[0][2_400..2_428], texts[1][2_400..]);
    }
}
