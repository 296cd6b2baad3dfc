//! Who is held back for the sake of running streams, and for how long.

use super::*;

const TARGET: f64 = 6.0;

/// Endpoints whose streams have nothing to spare, and a prompt that would stall them.
struct Held {
    bench: Bench,
    streams: Vec<BookingId>,
    key: RequestKey,
    arrived: Timestamp,
    tokens: u64,
}

impl Held {
    fn new(endpoints: u32, streams: u32, lessons: u32, prompt: u32) -> Self {
        let mut config = PoolConfig::default();
        config.health.hang_floor = seconds(3600.0);
        let mut bench = Bench::with_endpoints(endpoints, config);
        let mut start = |family| {
            bench.ask(&tokens(family, 100));
            let booking = bench.last().1;
            bench.pass(Duration::from_millis(43));
            bench.feed(Input::FirstToken(booking));
            booking
        };
        let taught: Vec<_> = (0..lessons).map(|at| start(200 + at)).collect();
        let streams = (0..streams * endpoints).map(|at| start(300 + at)).collect();
        for booking in taught {
            bench.complete(booking);
        }
        bench.pass(Duration::from_millis(13));
        bench.dispatched.clear();
        let key = bench.ask_with(&tokens(1, prompt), |request| {
            request.targets.ttft = Some(seconds(TARGET));
        });
        Self {
            arrived: bench.now,
            bench,
            streams,
            key,
            tokens: 1,
        }
    }

    /// Every stream goes on exactly as fast as it wants.
    fn go_on(&mut self) {
        for booking in &self.streams {
            self.bench.feed(Input::Progress {
                booking: *booking,
                output_tokens: self.tokens,
            });
        }
        self.tokens += 1;
        self.bench.pass(Duration::from_millis(100));
    }

    fn is_answered(&self) -> bool {
        let is_sent = self.bench.dispatched.iter().any(|sent| sent.0 == self.key);
        is_sent || self.bench.refusal(self.key).is_some()
    }
}

#[test]
fn who_is_held_is_answered_while_its_target_can_still_be_met() {
    for (endpoints, streams, lessons) in [(1, 1, 0), (1, 6, 0), (1, 2, 10), (2, 3, 0), (2, 6, 10)] {
        let mut held = Held::new(endpoints, streams, lessons, 20_000);
        let case = format!("{endpoints} endpoints, {streams} streams, {lessons} lessons");
        assert!(!held.is_answered(), "{case}: it is held");
        while !held.is_answered() {
            held.go_on();
            let waited = held.bench.now.since(held.arrived);
            assert!(waited < seconds(TARGET), "{case}: held past its target");
        }
        for (_, _, _, decision) in &held.bench.dispatched {
            let prudent = 1.3 * decision.predicted.prefill_s + 0.3;
            let left = decision.turn.slack_s;
            assert!(
                left >= prudent - 0.05,
                "{case}: {left} s left for {prudent}"
            );
            assert!(decision.turn.misses > 0.1, "{case}: others pay for it");
        }
    }
}

#[test]
fn who_is_held_goes_in_the_turn_in_which_nobody_is_left_to_suffer() {
    let mut held = Held::new(1, 3, 10, 20_000);
    for _ in 0..5 {
        held.go_on();
    }
    for booking in held.streams.clone() {
        assert!(!held.is_answered());
        held.bench.complete(booking);
    }
    let (key, _, _, decision) = held.bench.last();
    assert_eq!(*key, held.key);
    assert_eq!(decision.turn.misses.to_bits(), 0.0_f64.to_bits());
    assert_eq!(decision.waited, Duration::from_millis(500));
}

#[test]
fn at_most_eight_short_ones_go_past_one_that_is_held() {
    // It leaves the gate open, or they would all wait behind it.
    let mut held = Held::new(1, 6, 10, 3_000);
    let (mut asked, mut passed) = (0, 0);
    while !held.is_answered() {
        passed = held.bench.dispatched.len();
        // It comes later and is wanted later.
        held.bench.ask_with(&tokens(500 + asked, 50), |request| {
            request.targets.ttft = Some(seconds(60.0));
        });
        asked += 1;
        held.go_on();
        for (_, booking, ..) in held.bench.dispatched.clone() {
            held.bench.complete(booking);
        }
    }
    assert!((1..=8).contains(&passed), "{passed} of {asked}");
    assert!(asked > 8, "the others waited");
}
