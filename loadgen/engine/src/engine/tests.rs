//! Hand-computed schedules, and properties against the obvious.

use proptest::prelude::*;

use super::*;
use crate::content::{ContentSeed, hash_tokens};

/// One millisecond per step and one per token, so that durations can be checked in one's head.
const PLAIN: Profile = Profile {
    name: "plain",
    c0: 1e-3,
    g0: 0.0,
    g1: 0.0,
    g3: 1e-3,
    g4: 0.0,
    theta3: 0.0,
    theta4: 0.0,
    kv_tokens: 160,
    max_batched_tokens: 32,
    max_sequences: 4,
};

fn plain() -> Config {
    Config {
        block_size: 4,
        num_blocks: 41,
        ..Config::new(PLAIN)
    }
}

/// A prompt of `tokens` tokens that starts with `shared` tokens of the topic `topic`.
fn request(id: u64, tokens: u32, output: u32, shared: u32, topic: u32) -> Request {
    let content = |i: u32| {
        if i < shared {
            topic * 1_000 + i
        } else {
            id as u32 * 100_000 + i
        }
    };
    let prompt: Vec<u32> = (0..tokens).map(content).collect();
    let output_tokens: Vec<u32> = (tokens..tokens + output).map(content).collect();
    Request {
        id: RequestId(id),
        prompt_tokens: tokens,
        output_tokens: output,
        blocks: hash_tokens(ContentSeed::default(), 4, &prompt, &output_tokens),
        priority: 0,
    }
}

/// Runs to the end and writes each step as `duration: events`.
fn transcript(engine: &mut Engine) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((duration, events)) = engine.next_step() {
        let events: Vec<String> = events.iter().map(short).collect();
        lines.push(format!("{}ms {}", duration.as_millis(), events.join(" ")));
        assert!(lines.len() < 10_000, "the engine does not come to an end");
    }
    lines
}

fn short(event: &Event) -> String {
    match event {
        Event::Admitted {
            request,
            cached_tokens,
        } => format!("+{}({cached_tokens})", request.0),
        Event::Preempted { request } => format!("!{}", request.0),
        Event::Tokens {
            request,
            new: 1,
            total,
        } => format!("{}:{total}", request.0),
        Event::Tokens {
            request,
            new,
            total,
        } => format!("{}:+{new}={total}", request.0),
        Event::Finished { request } => format!("-{}", request.0),
    }
}

fn check(config: Config, requests: Vec<Request>, expected: &[&str]) {
    let mut engine = Engine::new(config);
    for request in requests {
        engine.submit(request).expect("the request fits");
    }
    assert_eq!(transcript(&mut engine), expected);
    assert_eq!(
        engine.gauges().kv_used_blocks,
        0,
        "an engine at rest holds no memory"
    );
}

#[test]
fn one_request_prefills_once_and_then_decodes() {
    check(
        plain(),
        vec![request(1, 10, 3, 0, 0)],
        &["11ms +1(0) 1:1", "2ms 1:2", "2ms 1:3 -1"],
    );
}

#[test]
fn a_long_prompt_is_computed_in_chunks_of_the_budget() {
    check(
        plain(),
        vec![request(1, 70, 1, 0, 0)],
        &["33ms +1(0)", "33ms ", "7ms 1:1 -1"],
    );
}

#[test]
fn decoding_goes_before_prefill_and_prefill_before_the_queue() {
    let mut engine = Engine::new(plain());
    engine.submit(request(1, 4, 4, 0, 0)).expect("fits");
    engine.next_step().expect("prefills");
    engine.submit(request(2, 40, 1, 0, 0)).expect("fits");
    engine.submit(request(3, 5, 1, 0, 0)).expect("fits");
    assert_eq!(
        transcript(&mut engine),
        // 1 token for request 1 and 31 for 2; then 1 + 9 + 5.
        [
            "33ms +2(0) 1:2",
            "16ms +3(0) 1:3 2:1 -2 3:1 -3",
            "2ms 1:4 -1"
        ]
    );
}

#[test]
fn no_more_sequences_run_than_allowed() {
    let config = Config {
        max_sequences: 1,
        ..plain()
    };
    check(
        config,
        vec![request(1, 4, 2, 0, 0), request(2, 4, 1, 0, 0)],
        &["5ms +1(0) 1:1", "2ms 1:2 -1", "5ms +2(0) 2:1 -2"],
    );
}

#[test]
fn a_prefix_is_found_from_the_next_step_on_and_never_the_last_block() {
    let mut engine = Engine::new(plain());
    // Both in one step: the second cannot see what the first is computing.
    engine.submit(request(1, 16, 1, 16, 7)).expect("fits");
    engine.submit(request(2, 16, 1, 16, 7)).expect("fits");
    assert_eq!(
        transcript(&mut engine),
        ["33ms +1(0) 1:1 -1 +2(0) 2:1 -2"].map(reorder)
    );
    // Four full blocks are known; the last token is computed again, so three are used.
    engine.submit(request(3, 16, 1, 16, 7)).expect("fits");
    engine.submit(request(4, 18, 1, 16, 7)).expect("fits");
    assert_eq!(transcript(&mut engine), ["7ms +3(12) +4(16) 3:1 -3 4:1 -4"]);
}

/// Admissions of a step come before its tokens.
fn reorder(line: &str) -> String {
    line.replace("1:1 -1 +2(0) 2:1", "+2(0) 1:1 -1 2:1")
}

#[test]
fn salts_keep_caches_apart() {
    let mut engine = Engine::new(plain());
    let tokens: Vec<u32> = (0..12).collect();
    for (id, salt, cached) in [(1, "a", 0), (2, "b", 0), (3, "a", 8), (4, "b", 8)] {
        let blocks = hash_tokens(ContentSeed::default().with(salt), 4, &tokens, &[]);
        let request = Request {
            id: RequestId(id),
            prompt_tokens: 12,
            output_tokens: 1,
            blocks,
            priority: 0,
        };
        engine.submit(request).expect("fits");
        let (_, events) = engine.next_step().expect("something to do");
        assert_eq!(
            events[0],
            Event::Admitted {
                request: RequestId(id),
                cached_tokens: cached
            }
        );
    }
}

#[test]
fn the_next_turn_finds_what_was_generated() {
    let mut engine = Engine::new(plain());
    engine.submit(request(1, 8, 9, 100, 3)).expect("fits");
    transcript(&mut engine);
    // 8 prompt and 8 computed output tokens are four blocks; the ninth token was never computed.
    engine.submit(request(2, 30, 1, 17, 3)).expect("fits");
    assert_eq!(transcript(&mut engine)[0], "15ms +2(16) 2:1 -2");
}

#[test]
fn the_tail_of_a_prompt_is_forgotten_before_its_beginning() {
    // Eight usable blocks: four of the first request, then six of the second evict two of them.
    let mut engine = Engine::new(Config {
        num_blocks: 9,
        ..plain()
    });
    engine.submit(request(1, 16, 1, 16, 7)).expect("fits");
    transcript(&mut engine);
    engine.submit(request(2, 24, 1, 0, 0)).expect("fits");
    transcript(&mut engine);
    assert_eq!(engine.counters().evicted_blocks, 2);
    engine.submit(request(3, 17, 1, 16, 7)).expect("fits");
    assert_eq!(transcript(&mut engine)[0], "10ms +3(8) 3:1 -3");
}

#[test]
fn out_of_memory_preempts_the_last_and_computes_it_again() {
    // Six usable blocks of four. 1 needs 3 blocks to end, 2 needs 4.
    let config = Config {
        num_blocks: 7,
        ..plain()
    };
    check(
        config,
        vec![request(1, 8, 5, 0, 0), request(2, 12, 4, 0, 0)],
        &[
            "21ms +1(0) +2(0) 1:1 2:1",
            // 1 needs its third block and takes the last one, 2 its fourth: 2 gives way.
            "2ms !2 1:2",
            "2ms 1:3",
            "2ms 1:4",
            "2ms 1:5 -1",
            // 13 tokens, 12 of which are still in memory.
            "2ms 2:2",
            "2ms 2:3",
            "2ms 2:4 -2",
        ],
    );
}

#[test]
fn priority_takes_the_smallest_number_first() {
    let config = Config {
        order: Order::Priority,
        max_sequences: 1,
        ..plain()
    };
    let with = |id, priority| Request {
        priority,
        ..request(id, 4, 1, 0, 0)
    };
    check(
        config,
        vec![with(1, 5), with(2, -3), with(3, 0), with(4, 0)],
        &[
            "5ms +2(0) 2:1 -2",
            "5ms +3(0) 3:1 -3",
            "5ms +4(0) 4:1 -4",
            "5ms +1(0) 1:1 -1",
        ],
    );
}

#[test]
fn an_abort_frees_memory_when_the_step_ends() {
    let mut engine = Engine::new(plain());
    engine.submit(request(1, 8, 5, 0, 0)).expect("fits");
    engine.begin(1).expect("prefills");
    engine.abort(RequestId(1));
    assert_eq!(engine.gauges().kv_used_blocks, 2);
    assert_eq!(
        engine.finish(),
        [Event::Admitted {
            request: RequestId(1),
            cached_tokens: 0
        }]
    );
    assert_eq!(
        (engine.gauges().kv_used_blocks, engine.gauges().running),
        (0, 0)
    );
    assert_eq!(engine.counters().aborted, 1);
    assert_eq!(engine.counters().generated_tokens, 0);
}

#[test]
fn a_request_without_output_ends_with_its_prefill() {
    check(
        plain(),
        vec![request(1, 40, 0, 0, 0)],
        &["33ms +1(0)", "9ms -1"],
    );
}

#[test]
fn a_request_that_never_fits_is_refused() {
    let mut engine = Engine::new(plain());
    assert_eq!(
        engine.submit(request(1, 150, 20, 0, 0)),
        Err(Refused::NeverFits {
            needed: 43,
            capacity: 40
        })
    );
}

#[test]
fn a_run_is_cut_at_the_step_in_progress() {
    let mut engine = Engine::new(plain());
    engine.submit(request(1, 4, 20, 0, 0)).expect("fits");
    engine.next_step().expect("prefills");
    let run = engine.begin(100).expect("decodes");
    assert_eq!((run.steps, run.duration.as_millis()), (19, 38));
    assert_eq!(
        engine
            .interrupt(Duration::from_millis(5))
            .map(|d| d.as_millis()),
        Some(6)
    );
    assert_eq!(
        engine.finish(),
        [Event::Tokens {
            request: RequestId(1),
            new: 3,
            total: 4
        }]
    );
}

#[test]
fn a_seed_gives_the_same_noise_every_time() {
    let steps = |seed| {
        let mut engine = Engine::new(Config {
            noise: 0.2,
            seed,
            ..plain()
        });
        engine.submit(request(1, 4, 9, 0, 0)).expect("fits");
        let mut durations = Vec::new();
        while let Some((duration, _)) = engine.next_step() {
            durations.push(duration);
        }
        durations
    };
    assert_eq!(steps(1), steps(1));
    assert_ne!(steps(1), steps(2));
}

#[derive(Clone, Debug)]
struct Arrival {
    prompt: u32,
    output: u32,
    shared: u32,
    topic: u32,
    priority: i32,
    /// Steps before it arrives, and whether it is aborted some steps later.
    after: u8,
    abort_after: Option<u8>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (
        1_u32..60,
        0_u32..20,
        0_u32..60,
        0_u32..3,
        -2..3,
        0_u8..6,
        prop::option::weighted(0.2, 0_u8..6),
    )
        .prop_map(
            |(prompt, output, shared, topic, priority, after, abort_after)| Arrival {
                prompt,
                output,
                shared,
                topic,
                priority,
                after,
                abort_after,
            },
        )
}

fn configs() -> impl Strategy<Value = Config> {
    (
        25_u32..60,
        2_u32..5,
        3_u32..40,
        prop::bool::ANY,
        prop::bool::ANY,
    )
        .prop_map(
            |(num_blocks, max_sequences, max_batched_tokens, priority, cache)| Config {
                num_blocks,
                max_sequences,
                max_batched_tokens,
                order: if priority {
                    Order::Priority
                } else {
                    Order::FirstCome
                },
                prefix_cache: if cache {
                    PrefixCache::On
                } else {
                    PrefixCache::Off
                },
                ..plain()
            },
        )
}

/// What a run did, apart from how it was cut into steps.
#[derive(Debug, PartialEq)]
struct Outcome {
    micros: u128,
    tokens: FxHashMap<u64, u32>,
    finished: Vec<u64>,
    counters: Counters,
}

fn drive(config: &Config, arrivals: &[Arrival], max_steps: u32) -> Outcome {
    let mut engine = Engine::new(config.clone());
    let mut outcome = Outcome {
        micros: 0,
        tokens: FxHashMap::default(),
        finished: Vec::new(),
        counters: Counters::default(),
    };
    let step = |engine: &mut Engine, max_steps: u32, outcome: &mut Outcome| {
        let Some(run) = engine.begin(max_steps) else {
            return 0;
        };
        outcome.micros += run.duration.as_micros();
        let mut ended = Vec::new();
        for event in engine.finish().to_vec() {
            match event {
                Event::Tokens {
                    request,
                    new,
                    total,
                } => {
                    let had = outcome.tokens.entry(request.0).or_default();
                    *had += new;
                    assert_eq!(*had, total, "tokens are reported once");
                }
                Event::Finished { request } => ended.push(request.0),
                Event::Admitted { .. } | Event::Preempted { .. } => {}
            }
        }
        outcome.finished.extend(ended);
        check_invariants(engine);
        run.steps
    };
    for (id, a) in arrivals.iter().enumerate() {
        let mut before = u32::from(a.after);
        while before > 0 {
            let done = step(&mut engine, max_steps.min(before), &mut outcome);
            before = if done == 0 { 0 } else { before - done };
        }
        let request = request(
            id as u64,
            a.prompt,
            a.output,
            a.shared.min(a.prompt),
            a.topic,
        );
        engine
            .submit(Request {
                priority: a.priority,
                ..request
            })
            .expect("24 blocks hold every request");
        if let Some(after) = a.abort_after {
            for _ in 0..after {
                step(&mut engine, 1, &mut outcome);
            }
            engine.abort(RequestId(id as u64));
        }
    }
    let mut rounds = 0;
    while step(&mut engine, max_steps, &mut outcome) > 0 {
        rounds += 1;
        assert!(rounds < 20_000, "the engine does not come to an end");
    }
    assert!(engine.is_idle());
    assert_eq!(engine.gauges().kv_used_blocks, 0);
    outcome.counters = engine.counters();
    outcome
}

fn check_invariants(engine: &Engine) {
    let size = engine.config.block_size;
    let mut users: FxHashMap<BlockIndex, u32> = FxHashMap::default();
    for &slot in &engine.running {
        let sequence = engine.sequence(slot);
        assert_eq!(sequence.stage, Stage::Running);
        assert!(
            sequence.computed <= sequence.blocks.len() as u32 * size,
            "computed without memory"
        );
        assert!(sequence.computed < sequence.tokens() || sequence.generated == 0);
        for block in &sequence.blocks {
            *users.entry(*block).or_default() += 1;
        }
    }
    for &slot in &engine.waiting {
        assert!(
            engine.sequence(slot).blocks.is_empty(),
            "the queue holds no memory"
        );
    }
    assert_eq!(
        users.len() as u32,
        engine.pool.used(),
        "every block in use has a running user"
    );
    assert!(engine.running.len() as u32 <= engine.config.max_sequences);
    let partial = engine
        .running
        .iter()
        .filter(|s| !engine.sequence(**s).decodes())
        .count();
    assert!(partial <= 1 || engine.config.max_batched_tokens < engine.config.max_sequences);
}

proptest! {
    #[test]
    fn every_request_ends_once_with_all_its_tokens(
        config in configs(), arrivals in prop::collection::vec(arrival(), 0..25)
    ) {
        let outcome = drive(&config, &arrivals, 1);
        let mut finished = outcome.finished.clone();
        finished.sort_unstable();
        let expected = outcome.counters.finished + outcome.counters.aborted;
        prop_assert_eq!(expected, arrivals.len() as u64);
        let before = finished.len();
        finished.dedup();
        prop_assert_eq!(finished.len(), before);
        for id in finished {
            let tokens = outcome.tokens.get(&id).copied().unwrap_or(0);
            prop_assert_eq!(tokens, arrivals[id as usize].output);
        }
        prop_assert_eq!(outcome.counters.generated_tokens, outcome.tokens.values().map(|t| u64::from(*t)).sum::<u64>());
    }

    #[test]
    fn a_run_of_steps_is_the_same_as_its_steps(
        config in configs(), arrivals in prop::collection::vec(arrival(), 0..25), max_steps in 2_u32..50
    ) {
        let (single, run) = (drive(&config, &arrivals, 1), drive(&config, &arrivals, max_steps));
        prop_assert!(single.micros.abs_diff(run.micros) <= 2 + u128::from(single.counters.steps));
        prop_assert_eq!(Outcome { micros: 0, ..single }, Outcome { micros: 0, ..run });
    }

    /// The cache against the obvious: with memory for everything, a request finds exactly the longest
    /// prefix, in full blocks, of anything that came before.
    #[test]
    fn with_room_for_everything_the_longest_prefix_is_found(
        prompts in prop::collection::vec(prop::collection::vec(0_u32..2, 1..40), 1..12)
    ) {
        let mut engine = Engine::new(Config { num_blocks: 1_000, ..plain() });
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for (id, prompt) in prompts.into_iter().enumerate() {
            let blocks = hash_tokens(ContentSeed::default(), 4, &prompt, &[]);
            let prompt_tokens = prompt.len() as u32;
            engine.submit(Request {
                id: RequestId(id as u64), prompt_tokens, output_tokens: 1, blocks, priority: 0,
            }).expect("fits");
            let (_, events) = engine.next_step().expect("prefills");
            let cached_tokens = match events[0] {
                Event::Admitted { cached_tokens, .. } => cached_tokens,
                Event::Preempted { .. } | Event::Tokens { .. } | Event::Finished { .. } => u32::MAX,
            };
            while engine.next_step().is_some() {}
            let common = |other: &Vec<u32>| {
                let shared = other.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
                shared.min(prompt.len() - 1) / 4 * 4
            };
            prop_assert_eq!(cached_tokens as usize, seen.iter().map(common).max().unwrap_or(0));
            seen.push(prompt);
        }
    }
}
