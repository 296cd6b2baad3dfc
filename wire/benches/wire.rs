//! How fast the wire format is looked at, beside `serde_json` on the same bytes in the same run.
//!
//! `cargo bench -p inference-wire` prints; nothing is asserted, machines differ.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use inference_wire::json::{Document, Edits, quote};
use inference_wire::prompt::Size;
use inference_wire::route::Route;
use inference_wire::sse::Reader;
use inference_wire::usage::{Meter, from_body, stream_fact};

const STREAM: &[u8] =
    include_bytes!("../tests/fixtures/vllm-0.32.0/chat-stream-usage-continuous.body");

/// Samples of one measurement; the fastest counts, because everything else only adds time.
const SAMPLES: usize = 15;
const SAMPLE_TIME: Duration = Duration::from_millis(20);

fn main() {
    println!(
        "{:<34}{:>12}{:>12}{:>10}",
        "request bodies", "MB/s", "serde MB/s", "ratio"
    );
    let prose = "The parser reads options from the command line and returns each argument.\\n";
    let code = "fn main() {\\n\\tlet x = \\\"a\\\\b\\\";\\n}\\n";
    let cjk = "解析器从命令行读取选项并返回每个参数。";
    for (name, text, length) in [
        ("prose 8 KB", prose, 8 << 10),
        ("prose 64 KB", prose, 64 << 10),
        ("prose 1 MB", prose, 1 << 20),
        ("prose 32 MB", prose, 32 << 20),
        ("code (many escapes) 64 KB", code, 64 << 10),
        ("cjk 64 KB", cjk, 64 << 10),
    ] {
        compare(name, conversation(text, length).as_bytes());
    }
    compare("token ids 64 KB", token_ids(64 << 10).as_bytes());
    compare("tools (small values) 64 KB", tools(64 << 10).as_bytes());
    println!();
    operations(conversation(prose, 64 << 10).as_bytes());
    println!();
    stream();
}

fn compare(name: &str, body: &[u8]) {
    let ours = time(|| {
        black_box(Document::parse(black_box(body)).expect("valid"));
    });
    let serde = time(|| {
        black_box(serde_json::from_slice::<serde_json::Value>(black_box(body)).expect("valid"));
    });
    let speed = |time: f64| body.len() as f64 / time * 1e3;
    println!(
        "{name:<34}{:>12.0}{:>12.0}{:>10.1}",
        speed(ours),
        speed(serde),
        serde / ours
    );
}

/// What a gateway does to a request of 64 KB besides the check.
fn operations(body: &[u8]) {
    println!("{:<34}{:>12}", "one request body of 64 KB", "µs");
    let document = Document::parse(body).expect("valid");
    let row = |name: &str, nanoseconds: f64| println!("{name:<34}{:>12.2}", nanoseconds / 1e3);
    row(
        "check",
        time(|| drop(black_box(Document::parse(black_box(body))))),
    );
    row(
        "visit every value",
        time(|| {
            black_box(count(document.root()));
        }),
    );
    row(
        "size of the prompt",
        time(|| {
            black_box(Size::of(&Route::ChatCompletions, document.root()));
        }),
    );
    row(
        "remove one member, set two",
        time(|| {
            let root = document.root();
            let mut edits = Edits::new();
            edits.remove(&root.member("priority").expect("it is there"));
            edits.set(root, "max_tokens", "16");
            edits.set(root, "stream_options", r#"{"include_usage":true}"#);
            black_box(edits.apply(body));
        }),
    );
    row(
        "usage of an answer this long",
        time(|| {
            black_box(from_body(&Route::ChatCompletions, black_box(body)));
        }),
    );
}

fn count(value: inference_wire::json::Value<'_>) -> usize {
    let elements: usize = value.elements().map(count).sum();
    let members: usize = value.members().map(|member| count(member.value)).sum();
    1 + elements + members
}

fn stream() {
    let mut reader = Reader::new();
    reader.push(STREAM);
    let mut chunks = Vec::new();
    while let Some(event) = reader.next_event().expect("short lines") {
        chunks.push(event.data.to_vec());
    }
    let text_chunk = &chunks[3];
    println!("{:<34}{:>12}", "one stream event", "ns");
    let row = |name: String, nanoseconds: f64| println!("{name:<34}{nanoseconds:>12.0}");
    row(
        format!("facts of a chunk of {} bytes", text_chunk.len()),
        time(|| {
            black_box(stream_fact(
                &Route::ChatCompletions,
                None,
                black_box(text_chunk),
            ));
        }),
    );
    row(
        "serde_json::Value of the same".to_owned(),
        time(|| {
            black_box(
                serde_json::from_slice::<serde_json::Value>(black_box(text_chunk)).expect("valid"),
            );
        }),
    );
    let mut reader = Reader::new();
    let whole = time(|| {
        reader.push(black_box(STREAM));
        while let Some(event) = reader.next_event().expect("short lines") {
            black_box(event);
        }
    });
    row("split".to_owned(), whole / chunks.len() as f64);
    let mut reader = Reader::new();
    let mut meter = Meter::new();
    let whole = time(|| {
        reader.push(black_box(STREAM));
        while let Some(event) = reader.next_event().expect("short lines") {
            meter.observe(&stream_fact(
                &Route::ChatCompletions,
                event.name,
                event.data,
            ));
        }
    });
    row(
        "split, facts, meter".to_owned(),
        whole / chunks.len() as f64,
    );
}

/// Nanoseconds of one call.
fn time(mut f: impl FnMut()) -> f64 {
    let started = Instant::now();
    f();
    let once = started.elapsed().max(Duration::from_nanos(20));
    let calls = (SAMPLE_TIME.as_nanos() / once.as_nanos()).clamp(1, 1_000_000) as u32;
    let samples = (0..SAMPLES).map(|_| {
        let started = Instant::now();
        (0..calls).for_each(|_| f());
        started.elapsed().as_nanos() as f64 / f64::from(calls)
    });
    samples.fold(f64::INFINITY, f64::min)
}

/// A chat of turns of 4 KB each; `text` is written inside JSON strings as it is.
fn conversation(text: &str, length: usize) -> String {
    let turn = text.repeat(4096 / text.len() + 1);
    let turns: Vec<String> = (0..=length / turn.len())
        .map(|turn_number| {
            let role = ["user", "assistant"][turn_number % 2];
            format!(r#"{{"role":"{role}","content":"{turn}"}}"#)
        })
        .collect();
    format!(
        r#"{{"model":"tiny","priority":1,"messages":[{}],"max_tokens":128,"temperature":0.7,"stream":true}}"#,
        turns.join(",")
    )
}

fn token_ids(length: usize) -> String {
    let mut body = String::from(r#"{"model":"tiny","prompt":[1"#);
    for id in 0.. {
        if body.len() >= length {
            break;
        }
        write!(body, ",{}", id * 7919 % 150_000).expect("strings take everything");
    }
    body.push_str("]}");
    body
}

fn tools(length: usize) -> String {
    let tool = |number: usize| {
        let name = quote(&format!("tool_{number}"));
        format!(
            r#"{{"type":"function","function":{{"name":{name},"description":"Reads a file","parameters":{{"type":"object","properties":{{"path":{{"type":"string"}},"limit":{{"type":"integer","minimum":1}}}},"required":["path"]}}}}}}"#
        )
    };
    let tools: Vec<String> = (0..=length / tool(0).len()).map(tool).collect();
    format!(
        r#"{{"model":"tiny","messages":[],"tools":[{}]}}"#,
        tools.join(",")
    )
}
