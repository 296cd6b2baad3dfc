//! Agents at work: a session is a conversation with tools whose every turn repeats all before it.

use rand::RngExt;

use super::{Draft, exponential, log_normal};
use crate::arrivals::Factor;
use crate::prompt::{Answer, BLOCK_TOKENS, Prompt, Run, own_block, shared_block};
use crate::seed::{Purpose, stream};

/// New sessions per second at factor 1.
const SESSIONS_PER_SECOND: f64 = 0.35;
const KINDS: u32 = 8;
/// What a turn is taken to need from its arrival to its last token: the next one cannot come before.
const TURN_SECONDS: f64 = 1.0;
const TOKEN_SECONDS: f64 = 0.03;
const TURNS: std::ops::RangeInclusive<u32> = 8..=32;
/// No session is longer: all its turns with the longest answers and pauses.
const LONGEST_SECONDS: f64 = 32.0 * (TURN_SECONDS + 600.0 * TOKEN_SECONDS + 20.0);

pub(super) fn draw(factor: Factor, requests: u64, seed: u64) -> Vec<Draft> {
    let wanted = usize::try_from(requests).unwrap_or(usize::MAX);
    if wanted == 0 {
        return Vec::new();
    }
    let mut drafts = Vec::new();
    for start in Starts::earlier(seed) {
        if start.at / factor.get() < -LONGEST_SECONDS {
            break;
        }
        session(start, factor, seed, &mut drafts);
    }
    for start in Starts::later(seed) {
        // Whatever begins after the last wanted request brings none of them.
        if drafts.len() >= wanted {
            let (_, last, _) =
                drafts.select_nth_unstable_by(wanted - 1, |a, b| f64::total_cmp(&a.at, &b.at));
            if start.at / factor.get() > last.at {
                break;
            }
        }
        session(start, factor, seed, &mut drafts);
    }
    drafts.sort_by(|a, b| a.at.total_cmp(&b.at));
    drafts.truncate(wanted);
    drafts
}

/// When a session begins, and which one it is. Seconds at factor 1; negative before the start of the run.
#[derive(Clone, Copy)]
struct Start {
    at: f64,
    session: u64,
}

/// Endless starts in one direction of time. Sessions have even numbers after the start of the run and odd ones before.
struct Starts {
    random: rand_chacha::ChaCha8Rng,
    at: f64,
    direction: f64,
    next: u64,
}

impl Starts {
    fn later(seed: u64) -> Self {
        Self::new(seed, 1.0, 0)
    }

    fn earlier(seed: u64) -> Self {
        Self::new(seed, -1.0, 1)
    }

    fn new(seed: u64, direction: f64, next: u64) -> Self {
        Self {
            random: stream(seed, Purpose::Arrivals, next),
            at: 0.0,
            direction,
            next,
        }
    }
}

impl Iterator for Starts {
    type Item = Start;

    fn next(&mut self) -> Option<Start> {
        self.at += self.direction * exponential(&mut self.random, SESSIONS_PER_SECOND);
        let session = self.next;
        self.next += 2;
        Some(Start {
            at: self.at,
            session,
        })
    }
}

/// Adds the turns of one session, but not those before the run.
fn session(start: Start, factor: Factor, seed: u64, drafts: &mut Vec<Draft>) {
    let random = &mut stream(seed, Purpose::Session, start.session);
    let kind = random.random_range(0..KINDS);
    let turns = random.random_range(TURNS);
    let shared = prefix_tokens(kind, seed);
    let mut own = log_normal(random, 300.0, 0.8, 50.0, 4_000.0) as u32;
    let mut at = start.at / factor.get();
    for _ in 0..turns {
        let output_tokens = log_normal(random, 150.0, 0.7, 50.0, 600.0) as u32;
        if at >= 0.0 {
            let prompt = Prompt::new([
                Run {
                    first: shared_block(kind),
                    tokens: shared,
                },
                Run {
                    first: own_block(start.session),
                    tokens: own,
                },
            ]);
            drafts.push(Draft {
                at,
                prompt,
                output_tokens,
                answer: Answer::Continues,
                tenant: kind,
            });
        }
        let pause = log_normal(random, 3.0, 0.9, 0.5, 20.0);
        let found = log_normal(random, 500.0, 1.0, 20.0, 8_000.0) as u32;
        at += TURN_SECONDS + TOKEN_SECONDS * f64::from(output_tokens) + pause;
        own += output_tokens + found;
    }
}

/// Instructions and tools of a kind of agent: 3k to 12k tokens, in whole blocks so that what follows is found again.
fn prefix_tokens(kind: u32, seed: u64) -> u32 {
    stream(seed, Purpose::Group, u64::from(kind)).random_range(6..=24) * BLOCK_TOKENS
}
