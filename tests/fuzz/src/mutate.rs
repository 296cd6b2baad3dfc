//! Inputs made from a corpus by small random changes. The same seed gives the same inputs.

/// Inputs never grow beyond this, so that every step is short.
const MAX_BYTES: usize = 128 << 10;

/// Pieces that mean something to one of the parsers.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ":",
    ",",
    "\\u0072",
    "\\ud83d\\ude00",
    "\\ud800",
    "null",
    "true",
    "-0",
    "1e400",
    "18446744073709551616",
    "\"usage\":",
    "\"choices\":[]",
    "\"error\":{\"code\":500}",
    "\"prompt_tokens\":",
    "data: ",
    "event: ",
    "data",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "[DONE]",
    ": ",
    "\u{feff}",
    "😀",
    "NaN",
    "+Inf",
    "# TYPE ",
    "{engine=\"1\"}",
    "\u{0}",
    ".",
    "=",
    "eyJhbGciOiJub25lIn0.",
    "_total",
];

/// A source of inputs.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next input: something from the corpus, changed in a few places.
    ///
    /// # Panics
    /// If the corpus is empty.
    pub fn next_input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.pick(corpus).clone();
        for _ in 0..self.below(6) {
            self.change(&mut input, corpus);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let from = self.below(input.len() + 1);
        let to = (from + self.length()).min(input.len());
        match self.below(8) {
            0 => input.truncate(from),
            1 => drop(input.drain(from..to)),
            2 if from < input.len() => input[from] ^= 1 << self.below(8),
            3 if from < input.len() => input[from] = self.random() as u8,
            4 => {
                let copy = input[from..to].to_vec();
                let at = self.below(input.len() + 1);
                input.splice(at..at, copy);
            }
            5 => {
                let other = self.pick(corpus);
                let start = self.below(other.len() + 1);
                let end = (start + self.length()).min(other.len());
                input.splice(from..to, other[start..end].iter().copied());
            }
            6 => input[from..to].reverse(),
            _ => {
                let word = *self.pick(&WORDS);
                input.splice(from..from, word.bytes());
            }
        }
    }

    /// Mostly short, sometimes long.
    fn length(&mut self) -> usize {
        let most = *self.pick(&[4, 4, 16, 64, 1024]);
        self.below(most)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random() % bound as u64) as usize
    }

    /// `SplitMix64`.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
