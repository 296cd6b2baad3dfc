//! Text a simulated model says: seeded, readable, with characters of one to four bytes.

use crate::token;

const WORDS: &[&str] = &[
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "that",
    "it",
    "is",
    "was",
    "for",
    "on",
    "with",
    "as",
    "by",
    "at",
    "from",
    "or",
    "an",
    "be",
    "this",
    "which",
    "one",
    "had",
    "not",
    "but",
    "what",
    "all",
    "were",
    "when",
    "there",
    "can",
    "more",
    "if",
    "out",
    "so",
    "up",
    "about",
    "who",
    "get",
    "them",
    "make",
    "time",
    "no",
    "just",
    "know",
    "take",
    "year",
    "good",
    "some",
    "could",
    "see",
    "other",
    "than",
    "then",
    "now",
    "look",
    "only",
    "come",
    "over",
    "think",
    "also",
    "back",
    "after",
    "use",
    "two",
    "how",
    "our",
    "work",
    "first",
    "well",
    "way",
    "even",
    "new",
    "want",
    "because",
    "any",
    "these",
    "give",
    "day",
    "most",
    "river",
    "mountain",
    "window",
    "answer",
    "question",
    "number",
    "paper",
    "garden",
    "engine",
    "signal",
    "harbour",
    "lantern",
    "market",
    "bridge",
    "harvest",
    "compass",
    "letter",
    "museum",
    "station",
    "weather",
    "winter",
    "orchard",
    "pattern",
    "machine",
    "library",
    "journey",
    "balance",
    "measure",
    "result",
    "example",
    "café",
    "naïve",
    "über",
    "señor",
    "façade",
    "Ελλάδα",
    "мост",
    "город",
    "日本",
    "言葉",
    "山",
    "你好",
    "世界",
    "😀",
    "🌍",
    "🚢",
];

/// Text of exactly `tokens` tokens; equal arguments give equal text, and a longer request for the same
/// seed begins with the shorter one's text.
pub fn text(seed: u64, tokens: u32) -> String {
    let mut state = seed;
    let mut text = String::with_capacity(tokens as usize * 4 + 16);
    let (mut counted, mut at) = (0, 0);
    let mut words_in_sentence = 0;
    while counted < tokens {
        let draw = next(&mut state);
        if !text.is_empty() {
            text.push_str(separator(draw >> 32, &mut words_in_sentence));
        }
        text.push_str(WORDS[(draw % WORDS.len() as u64) as usize]);
        words_in_sentence += 1;
        // Only tokens that later words cannot lengthen are final.
        while counted < tokens && text.len() - at >= 4 {
            at = token::token_end(&text, at);
            counted += 1;
        }
    }
    text.truncate(at);
    text
}

fn separator(draw: u64, words_in_sentence: &mut u32) -> &'static str {
    if *words_in_sentence > 6 && draw.is_multiple_of(7) {
        *words_in_sentence = 0;
        return if draw.is_multiple_of(5) {
            ".\n\n"
        } else {
            ". "
        };
    }
    if draw.is_multiple_of(11) { ", " } else { " " }
}

/// One step of splitmix64: small, fast, and good enough for prose.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_as_many_tokens_as_asked() {
        for n in [0, 1, 2, 3, 10, 77, 1_000] {
            for seed in 0..20 {
                assert_eq!(token::count(&text(seed, n)), n);
            }
        }
    }

    #[test]
    fn longer_text_of_a_seed_begins_with_the_shorter() {
        for seed in 0..50 {
            assert!(text(seed, 200).starts_with(&text(seed, 120)));
        }
    }

    #[test]
    fn text_has_characters_of_every_length() {
        let text = text(1, 2_000);
        for len in 1..=4 {
            assert!(
                text.chars().any(|c| c.len_utf8() == len),
                "no character of {len} bytes"
            );
        }
    }
}
