//! A deterministic stand-in for a tokenizer: up to four bytes of UTF-8 are one token, never part of a
//! character, counted from the beginning of each piece of text. Not a language model's vocabulary, but as
//! long as one (about four bytes per token) and reversible, so text that was generated is recognised when
//! the next turn sends it back.

/// The bytes of the token, the first one lowest. Values from [`FIRST_MARKER`] are role markers.
pub type Token = u32;

/// No UTF-8 text packs into a value this large.
pub const FIRST_MARKER: Token = 0xFFFF_FF00;
/// Closes a turn of a conversation.
pub const TURN_END: Token = FIRST_MARKER;
const UNKNOWN_ROLE: Token = FIRST_MARKER + 1;
/// Largest value accepted as a token.
pub const LAST_TOKEN: Token = FIRST_MARKER + 9;
const MAX_BYTES: usize = 4;

/// Marker that opens a turn of `role`.
pub fn role_marker(role: &str) -> Token {
    match role {
        "system" => FIRST_MARKER + 2,
        "developer" => FIRST_MARKER + 3,
        "user" => FIRST_MARKER + 4,
        "assistant" => FIRST_MARKER + 5,
        "tool" => FIRST_MARKER + 6,
        "function" => FIRST_MARKER + 7,
        _ => UNKNOWN_ROLE,
    }
}

/// Where the token that begins at byte `from` ends; `from` is a character boundary inside `text`.
pub fn token_end(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let limit = bytes.len().min(from + MAX_BYTES);
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// Byte offset after `tokens` more tokens from `from`, or the end of the text.
pub fn skip(text: &str, from: usize, tokens: u32) -> usize {
    let mut at = from;
    for _ in 0..tokens {
        if at >= text.len() {
            break;
        }
        at = token_end(text, at);
    }
    at
}

/// Appends the tokens of `text`.
pub fn tokenize(text: &str, tokens: &mut Vec<Token>) {
    tokens.reserve(text.len() / MAX_BYTES + 1);
    let mut at = 0;
    while at < text.len() {
        let end = token_end(text, at);
        tokens.push(pack(&text.as_bytes()[at..end]));
        at = end;
    }
}

/// Number of tokens of `text`.
pub fn count(text: &str) -> u32 {
    let (mut at, mut n) = (0, 0);
    while at < text.len() {
        at = token_end(text, at);
        n += 1;
    }
    n
}

/// Text of `tokens`; markers have none, and bytes that are no UTF-8 become replacement characters.
pub fn detokenize(tokens: &[Token]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * MAX_BYTES);
    for &token in tokens.iter().filter(|&&t| t < FIRST_MARKER) {
        let packed = token.to_le_bytes();
        let len = MAX_BYTES - (token.leading_zeros() / 8) as usize;
        bytes.extend_from_slice(&packed[..len.max(1)]);
    }
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn pack(bytes: &[u8]) -> Token {
    let mut packed = [0; MAX_BYTES];
    packed[..bytes.len()].copy_from_slice(bytes);
    Token::from_le_bytes(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_four_bytes_and_never_part_of_a_character() {
        for (text, pieces) in [
            ("", vec![]),
            ("abc", vec!["abc"]),
            ("abcde", vec!["abcd", "e"]),
            ("aé日本", vec!["aé", "日", "本"]),
            ("ab😀c", vec!["ab", "😀", "c"]),
        ] {
            let mut tokens = Vec::new();
            tokenize(text, &mut tokens);
            let got: Vec<String> = tokens.iter().map(|t| detokenize(&[*t])).collect();
            assert_eq!(got, pieces, "{text}");
            assert_eq!(count(text) as usize, pieces.len());
            assert_eq!(detokenize(&tokens), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_without_nul_comes_back(text in "[^\0]{0,80}") {
            let mut tokens = Vec::new();
            tokenize(&text, &mut tokens);
            proptest::prop_assert_eq!(detokenize(&tokens), text);
        }

        #[test]
        fn a_cut_at_a_token_changes_no_token_before_it(text in "\\PC{1,60}", n in 0_u32..40) {
            let cut = skip(&text, 0, n);
            let (mut whole, mut part) = (Vec::new(), Vec::new());
            tokenize(&text, &mut whole);
            tokenize(&text[..cut], &mut part);
            proptest::prop_assert_eq!(&whole[..part.len()], &part[..]);
        }
    }
}
