//! A short seeded run of every fuzz entry over recordings of real engines.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use headpond_fuzz::{Mutator, context_token, json_spans, metrics_page, signed_token, sse};

const SEED: u64 = 20_260_101;

/// Runs `entry` on the corpus as it is and on `steps` changed inputs.
fn run(entry: fn(&[u8]), corpus: &[Vec<u8>], steps: u64) {
    let seed = setting("HEADPOND_FUZZ_SEED").unwrap_or(SEED);
    let steps = setting("HEADPOND_FUZZ_STEPS").unwrap_or(steps);
    for input in corpus {
        entry(input);
    }
    let mut mutator = Mutator::new(seed);
    for step in 0..steps {
        let input = mutator.next_input(corpus);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| entry(&input))) {
            eprintln!("seed {seed} step {step} input {}", input.escape_ascii());
            resume_unwind(panic);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// All files below a directory of the repository, in a fixed order.
fn files(directory: &str) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(directory),
        &mut inputs,
    );
    assert!(!inputs.is_empty(), "{directory} has recordings");
    inputs
}

fn collect(directory: &Path, inputs: &mut Vec<Vec<u8>>) {
    let entries = fs::read_dir(directory).expect("the directory is there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, inputs);
        } else {
            inputs.push(fs::read(path).expect("readable"));
        }
    }
}

#[test]
fn streams() {
    let mut corpus = files("wire/tests/fixtures");
    let small =
        "event: a\ndata: {\"usage\":null}\n\n: c\n\ndata: é\ndata: 😀\n\n\ndata: [DONE]\n\n";
    for line_end in ["\n", "\r", "\r\n", "\r\n\n"] {
        corpus.extend(vec![small.replace('\n', line_end).into_bytes(); 10]);
    }
    run(sse, &corpus, 3000);
}

#[test]
fn request_bodies() {
    let mut corpus = files("wire/tests/fixtures");
    let spoofs = [
        r#"{"messages":[{"role":"user","content":"a"}],"prio\u0072ity":1,"priority":2}"#,
        r#"{ "a" : [ 1 , { "b" : { } , "c" : [ ] } ] , "d" : "\ud83d\ude00\/<>&" , "e":12345678901234567890.5E-3 }"#,
        r#"{"prompt":[[1,2],[3]],"input":["x"],"query":"q","documents":[{"text":"d"}],"system":[{"type":"text","text":"s"}]}"#,
    ];
    corpus.extend(spoofs.map(Vec::from));
    run(json_spans, &corpus, 6000);
}

#[test]
fn metrics_pages() {
    run(
        metrics_page,
        &files("l2-scheduler/telemetry/tests/fixtures"),
        150,
    );
}

#[test]
fn context_tokens() {
    let token = signed_token();
    let [header, claims, signature]: [&str; 3] = token
        .split('.')
        .collect::<Vec<_>>()
        .try_into()
        .expect("a compact token has three parts");
    let unsigned = format!("eyJhbGciOiJub25lIn0.{claims}.");
    let swapped = format!("{claims}.{header}.{signature}");
    run(
        context_token,
        &[token, unsigned, swapped].map(String::into_bytes),
        3000,
    );
}
