//! A pool brought into a known state: what every endpoint holds of one prompt, and what runs there.

use super::*;
use crate::{EndpointLoad, LoadVector, PeerId};

/// Tokens of the prompt that is looked at.
pub(super) const PROMPT: u32 = 1600;
const BLOCK: u32 = 16;
/// KV capacity of every endpoint in tokens.
const CAPACITY: u32 = 163_840;

/// One endpoint.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) weight: u32,
    /// Requests of others that wait and run there, and tokens that wait.
    pub(super) waiting: u32,
    pub(super) running: u32,
    pub(super) pending: u32,
    /// KV cache that others use, in 64ths.
    pub(super) kv: u32,
    /// Lengths of own prompts that prefill and that decode.
    pub(super) prefilling: Vec<u32>,
    pub(super) decoding: Vec<u32>,
    /// Blocks of the prompt it holds, of a hundred.
    pub(super) held: u32,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            weight: 1,
            waiting: 0,
            running: 0,
            pending: 0,
            kv: 0,
            prefilling: Vec::new(),
            decoding: Vec::new(),
            held: 0,
        }
    }
}

impl Site {
    pub(super) fn in_flight(&self) -> f64 {
        let own = self.prefilling.len() + self.decoding.len();
        f64::from(self.waiting + self.running) + own as f64
    }

    pub(super) fn cached(&self) -> f64 {
        f64::from((self.held * BLOCK).min(PROMPT - 1))
    }

    /// Prompt tokens to compute there until the prompt is done.
    pub(super) fn work(&self) -> f64 {
        let before = self.pending + self.prefilling.iter().sum::<u32>();
        f64::from(before) + f64::from(PROMPT) - self.cached()
    }

    pub(super) fn kv_use(&self) -> f64 {
        let own = self.prefilling.iter().chain(&self.decoding).sum::<u32>();
        f64::from(self.kv * (CAPACITY / 64) + own) / f64::from(CAPACITY)
    }
}

/// A pool of these endpoints, announced in this order.
pub(super) fn pool_of(config: PoolConfig, seed: u64, sites: &[Site], order: &[usize]) -> Bench {
    let mut bench = Bench::new(config.clone());
    bench.pool = Pool::new(config, seed);
    for at in order {
        bench.up(*at as u32, |spec| {
            spec.weight = sites[*at].weight;
            spec.models = vec!["m".into(), only(*at)];
        });
    }
    for (at, site) in sites.iter().enumerate() {
        let held = (site.held * BLOCK) as usize;
        let mut prompt = tokens(1, PROMPT);
        prompt[held..].copy_from_slice(&tokens(100 + at as u32, PROMPT)[held..]);
        let booking = send_to(&mut bench, at, &prompt);
        bench.complete(booking);
    }
    for (at, site) in sites.iter().enumerate() {
        observe(&mut bench, at, site);
    }
    let load = |(at, site): (usize, &Site)| EndpointLoad {
        endpoint: named(&format!("engine-{at}")),
        prefilling: site.waiting,
        pending_tokens: u64::from(site.pending),
        pending_double_area: 0,
        pending_context: 0,
        decoding: site.running,
        decoding_context: 0,
        slack: [0; 8],
    };
    bench.feed(Input::PeerLoad {
        peer: PeerId(1),
        vector: LoadVector {
            endpoints: sites.iter().enumerate().map(load).collect(),
            ..LoadVector::default()
        },
    });
    for (at, site) in sites.iter().enumerate() {
        for (number, length) in site.decoding.iter().enumerate() {
            let family = 1000 + 20 * at + number;
            let booking = send_to(&mut bench, at, &tokens(family as u32, *length));
            bench.feed(Input::FirstToken(booking));
        }
        for (number, length) in site.prefilling.iter().enumerate() {
            let family = 1010 + 20 * at + number;
            send_to(&mut bench, at, &tokens(family as u32, *length));
        }
    }
    bench
}

/// The same with the endpoints announced by number.
pub(super) fn pool(config: PoolConfig, seed: u64, sites: &[Site]) -> Bench {
    let order: Vec<usize> = (0..sites.len()).collect();
    pool_of(config, seed, sites, &order)
}

/// What is decided about the prompt, if it goes at once.
pub(super) fn decide(bench: &mut Bench) -> Option<Decision> {
    let key = bench.ask(&tokens(1, PROMPT));
    let sent = bench.dispatched.last()?;
    (sent.0 == key).then(|| sent.3.clone())
}

/// The number of the endpoint that was chosen.
pub(super) fn chosen(decision: &Decision) -> usize {
    let number = decision.chosen.trim_start_matches("engine-").parse();
    number.expect("endpoints have numbers")
}

/// The score of an endpoint.
pub(super) fn score(decision: &Decision, at: usize) -> f64 {
    let name = format!("engine-{at}");
    let named = |candidate: &&crate::Candidate| *candidate.endpoint == *name;
    let candidate = decision.candidates.iter().find(named);
    candidate.expect("every endpoint is a candidate").score
}

fn observe(bench: &mut Bench, at: usize, site: &Site) {
    bench.feed(Input::Observed {
        endpoint: EndpointId(at as u32),
        observation: Observation {
            kv_use: Some(f64::from(site.kv) / 64.0),
            num_blocks: Some(u64::from(CAPACITY / BLOCK)),
            ..idle_metrics()
        },
    });
}

fn only(at: usize) -> String {
    format!("only-{at}")
}

/// Sends a prompt to this endpoint, whatever the policy.
fn send_to(bench: &mut Bench, at: usize, prompt: &[u32]) -> BookingId {
    let key = bench.ask_with(prompt, |request| request.model = named(&only(at)));
    let (sent, booking, endpoint, _) = bench.last();
    assert_eq!((*sent, endpoint.0 as usize), (key, at));
    *booking
}
