//! What is generated, how it is counted, and how it is cut into chunks.

use loadgen::engine::{EngineConfig, Outcome, SimEngine, Vocabulary};
use serde_json::{Value, json};

use super::{
    client::{Connection, get, post, request},
    eventually, start, tiny,
};

fn chat(content: &str, mut extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": content}]});
    let members = std::mem::take(extra.as_object_mut().expect("an object"));
    body.as_object_mut().expect("an object").extend(members);
    body
}

fn content(body: &Value) -> &str {
    body["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
}

/// Text of a stream, per choice.
fn streamed(events: &[Value], choice: u64) -> String {
    let choices = events
        .iter()
        .filter_map(|e| e["choices"].get(0))
        .filter(|c| c["index"] == choice);
    choices
        .filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()))
        .collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    for vocabulary in [Vocabulary::Vllm, Vocabulary::Sglang] {
        let engine = start(tiny(vocabulary)).await;
        let whole = post(
            engine.addr(),
            "/v1/chat/completions",
            &chat("hello", json!({"max_tokens": 60})),
        )
        .await;
        let ask = chat("hello", json!({"max_tokens": 60, "stream": true}));
        let stream = post(engine.addr(), "/v1/chat/completions", &ask).await;
        let text = content(&whole.json()).to_owned();
        assert_eq!(streamed(&stream.events(), 0), text);
        assert!(
            !text.is_ascii(),
            "texts have characters of several bytes: {text}"
        );
        assert!(stream.body.ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn every_seed_and_every_run_of_a_seed_says_its_own() {
    let answer = async |seed| {
        let engine = start(EngineConfig {
            seed,
            ..tiny(Vocabulary::Vllm)
        })
        .await;
        content(
            &post(
                engine.addr(),
                "/v1/chat/completions",
                &chat("hi", json!({})),
            )
            .await
            .json(),
        )
        .to_owned()
    };
    assert_eq!(answer(1).await, answer(1).await);
    assert_ne!(answer(1).await, answer(2).await);
}

#[tokio::test]
async fn usage_is_what_the_engine_says_it_computed() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let whole = post(
        engine.addr(),
        "/v1/chat/completions",
        &chat(
            "count me",
            json!({"n": 2, "max_tokens": 7, "request_id": "whole"}),
        ),
    )
    .await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let stream = post(
        engine.addr(),
        "/v1/completions",
        &json!({"prompt": ["one", "two"], "max_tokens": 9, "stream": true, "stream_options": options, "request_id": "stream"}),
    )
    .await;
    let last = stream.events().last().expect("a usage chunk").clone();
    assert_eq!(last["choices"], json!([]));
    for (id, usage) in [
        ("chatcmpl-whole", &whole.json()["usage"]),
        ("cmpl-stream", &last["usage"]),
    ] {
        let records: Vec<_> = engine.usage().into_iter().filter(|r| r.id == id).collect();
        assert_eq!(records.len(), 2);
        assert!(records.iter().all(|r| r.outcome == Outcome::Finished));
        let generated: u32 = records.iter().map(|r| r.generated_tokens).sum();
        assert_eq!(usage["completion_tokens"], generated, "{id}");
        // Two choices share their prompt, two prompts do not.
        let prompts = if id == "chatcmpl-whole" {
            &records[..1]
        } else {
            &records[..]
        };
        let prompt: u32 = prompts.iter().map(|r| r.prompt_tokens).sum();
        assert_eq!(usage["prompt_tokens"], prompt, "{id}");
    }
    let truth = get(engine.addr(), "/sim/usage").await.json();
    assert_eq!(truth["totals"]["generated_tokens"], 7 * 2 + 9 * 2);
}

#[tokio::test]
async fn running_usage_grows_with_the_tokens() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let ask = chat(
        "x",
        json!({"max_tokens": 12, "stream": true, "stream_options": options}),
    );
    let events = post(engine.addr(), "/v1/chat/completions", &ask)
        .await
        .events();
    let counts: Vec<u64> = events
        .iter()
        .filter_map(|e| e["usage"]["completion_tokens"].as_u64())
        .collect();
    assert_eq!(counts.len(), events.len(), "every chunk has usage");
    assert!(counts.is_sorted());
    assert_eq!((counts.first(), counts.last()), (Some(&0), Some(&12)));
}

#[tokio::test]
async fn a_prompt_seen_before_is_cached_and_a_salt_hides_it() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let text = "a prompt that is long enough to fill several blocks of memory ".repeat(10);
    for (extra, cached) in [
        (json!({"max_tokens": 1}), 0),
        (json!({"max_tokens": 1}), 128),
        (json!({"max_tokens": 1, "cache_salt": "a"}), 0),
        (json!({"max_tokens": 1, "cache_salt": "a"}), 128),
        (json!({"max_tokens": 1, "cache_salt": "b"}), 0),
    ] {
        let answer = post(
            engine.addr(),
            "/v1/chat/completions",
            &chat(&text, extra.clone()),
        )
        .await
        .json();
        assert_eq!(
            answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached,
            "{extra}"
        );
    }
    post(engine.addr(), "/reset_prefix_cache", &json!({})).await;
    let answer = post(
        engine.addr(),
        "/v1/chat/completions",
        &chat(&text, json!({"max_tokens": 1})),
    )
    .await
    .json();
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn the_next_turn_finds_the_answer_of_this_one_in_the_cache() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let first = post(
        engine.addr(),
        "/v1/chat/completions",
        &chat("tell me", json!({"max_tokens": 300})),
    )
    .await;
    let messages = json!([
        {"role": "user", "content": "tell me"},
        {"role": "assistant", "content": content(&first.json())},
        {"role": "user", "content": "and now?"},
    ]);
    let ask = json!({"model": "tiny", "messages": messages, "max_tokens": 1});
    let usage = post(engine.addr(), "/v1/chat/completions", &ask)
        .await
        .json()["usage"]
        .clone();
    // 5 tokens of the first prompt and 299 computed ones of its answer: nine blocks of 32.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 288);
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_before_it() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let path = "/v1/chat/completions";
    let text = content(
        &post(
            engine.addr(),
            path,
            &chat("stop", json!({"max_tokens": 80})),
        )
        .await
        .json(),
    )
    .to_owned();
    let stop: String = text.chars().skip(40).take(5).collect();
    let expected = text.split(&stop).next().expect("it occurs");
    for stream in [false, true] {
        let ask = chat(
            "stop",
            json!({"max_tokens": 80, "stop": [stop], "stream": stream}),
        );
        let answer = post(engine.addr(), path, &ask).await;
        let (said, choice) = if stream {
            let events = answer.events();
            let last = events.last().expect("chunks")["choices"][0].clone();
            (streamed(&events, 0), last)
        } else {
            (
                content(&answer.json()).to_owned(),
                answer.json()["choices"][0].clone(),
            )
        };
        assert_eq!(said, expected);
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], stop.as_str());
    }
}

#[tokio::test]
async fn an_answer_without_a_limit_ends_by_itself() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let answer = post(
        engine.addr(),
        "/v1/chat/completions",
        &chat("free", json!({})),
    )
    .await
    .json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let full = json!({"ignore_eos": true});
    let answer = post(engine.addr(), "/v1/chat/completions", &chat("free", full))
        .await
        .json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["total_tokens"], 2048);
}

#[tokio::test]
async fn choices_of_a_stream_are_told_apart() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let ask = chat("pair", json!({"n": 2, "max_tokens": 20, "stream": true}));
    let events = post(engine.addr(), "/v1/chat/completions", &ask)
        .await
        .events();
    let whole = chat("pair", json!({"n": 2, "max_tokens": 20}));
    let whole = post(engine.addr(), "/v1/chat/completions", &whole)
        .await
        .json();
    for choice in 0..2 {
        let expected = &whole["choices"][choice as usize]["message"]["content"];
        assert_eq!(streamed(&events, choice), expected.as_str().expect("text"));
    }
    assert_ne!(streamed(&events, 0), streamed(&events, 1));
}

#[tokio::test]
async fn a_chunk_carries_several_tokens_when_the_engine_is_ahead() {
    let engine = start(EngineConfig {
        speed: 100_000.0,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    let options = json!({"include_usage": true});
    let ask = chat(
        "x",
        json!({"max_tokens": 1_500, "stream": true, "stream_options": options}),
    );
    let response = post(engine.addr(), "/v1/chat/completions", &ask).await;
    let events = response.events();
    assert!(
        events.len() < 1_500,
        "{} chunks for 1500 tokens",
        events.len()
    );
    assert_eq!(
        events.last().expect("usage")["usage"]["completion_tokens"],
        1_500
    );
    assert_eq!(
        response.chunks.len(),
        events.len() + 1,
        "[DONE] is a chunk too"
    );
}

#[tokio::test]
async fn ids_follow_the_header_or_the_body() {
    let vllm = start(tiny(Vocabulary::Vllm)).await;
    let body = chat("x", json!({"max_tokens": 1})).to_string();
    let headers = [("x-request-id", "abc")];
    for (path, body, id) in [
        ("/v1/chat/completions", body.clone(), "chatcmpl-abc"),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 1}).to_string(),
            "cmpl-abc",
        ),
        (
            "/v1/chat/completions",
            chat("x", json!({"max_tokens": 1, "request_id": "own"})).to_string(),
            "chatcmpl-own",
        ),
    ] {
        let answer = request(vllm.addr(), "POST", path, &headers, &body).await;
        assert_eq!(answer.json()["id"], id);
        assert_eq!(answer.header("x-request-id"), None);
    }
    let sglang = start(tiny(Vocabulary::Sglang)).await;
    let answer = request(
        sglang.addr(),
        "POST",
        "/v1/chat/completions",
        &headers,
        &body,
    )
    .await;
    assert_ne!(answer.json()["id"], "abc");
}

#[tokio::test]
async fn a_full_queue_is_503_and_counted() {
    let config = EngineConfig {
        max_num_seqs: 1.try_into().ok(),
        queue_limit: Some(2),
        speed: 1.0,
        ..tiny(Vocabulary::Vllm)
    };
    let engine = start(config).await;
    let ask = chat("x", json!({"max_tokens": 500, "stream": true})).to_string();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(engine.addr()).await.expect("listens");
        connection
            .send("POST", "/v1/chat/completions", &[], &ask)
            .await;
        let head = connection.head().await.expect("an answer");
        assert_eq!(head.status, 200, "headers come before admission");
        open.push(connection);
    }
    let refused = request(engine.addr(), "POST", "/v1/chat/completions", &[], &ask).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["type"], "Service Unavailable");
    assert_eq!(refused.header("retry-after"), None);
    drop(open);
    eventually("clients leave the queue", || engine.counters().aborted == 3).await;
}

#[tokio::test]
async fn the_anthropic_and_responses_apis_say_the_same_as_a_stream() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let messages = |stream: bool| json!({"model": "tiny", "max_tokens": 30, "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
    let whole = post(engine.addr(), "/v1/messages", &messages(false))
        .await
        .json();
    let events = post(engine.addr(), "/v1/messages", &messages(true))
        .await
        .events();
    let text: String = events
        .iter()
        .filter_map(|e| e["delta"]["text"].as_str())
        .collect();
    assert_eq!(whole["content"][0]["text"], text);
    assert_eq!(events.last().expect("events")["type"], "message_stop");

    let responses = |stream: bool| json!({"model": "tiny", "max_output_tokens": 30, "stream": stream, "input": "hi"});
    let whole = post(engine.addr(), "/v1/responses", &responses(false))
        .await
        .json();
    let events = post(engine.addr(), "/v1/responses", &responses(true))
        .await
        .events();
    let text: String = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta")
        .filter_map(|e| e["delta"].as_str())
        .collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);
    assert_eq!(last["response"]["usage"]["output_tokens"], 30);
    let numbers: Vec<u64> = events
        .iter()
        .filter_map(|e| e["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn embeddings_are_equal_for_equal_inputs() {
    let config = EngineConfig {
        task: loadgen::engine::Task::Embed,
        ..tiny(Vocabulary::Vllm)
    };
    let engine = start(config).await;
    let answer = post(
        engine.addr(),
        "/v1/embeddings",
        &json!({"input": ["a", "b", "a"]}),
    )
    .await
    .json();
    let vector = |i: usize| answer["data"][i]["embedding"].clone();
    assert_eq!(vector(0), vector(2));
    assert_ne!(vector(0), vector(1));
    assert_eq!(
        post(engine.addr(), "/v1/chat/completions", &chat("x", json!({})))
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn tokens_come_back_as_the_text_they_were() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let text = "Straße, 日本 and 😀";
    let tokens = post(engine.addr(), "/tokenize", &json!({"prompt": text}))
        .await
        .json();
    let back = post(
        engine.addr(),
        "/detokenize",
        &json!({"tokens": tokens["tokens"]}),
    )
    .await
    .json();
    assert_eq!(back["prompt"], text);
    let echo = json!({"prompt": tokens["tokens"], "max_tokens": 1, "echo": true});
    let answer = post(engine.addr(), "/v1/completions", &echo).await.json();
    assert!(
        answer["choices"][0]["text"]
            .as_str()
            .expect("text")
            .starts_with(text)
    );
}

#[tokio::test]
async fn a_server_told_to_stop_ends_its_streams() {
    let engine = start(EngineConfig {
        speed: 1.0,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    let mut connection = Connection::open(engine.addr()).await.expect("listens");
    let ask = chat("x", json!({"max_tokens": 1_000, "stream": true})).to_string();
    connection
        .send("POST", "/v1/chat/completions", &[], &ask)
        .await;
    connection.head().await.expect("headers");
    connection.chunk().await.expect("a first chunk");
    let addr = engine.addr();
    let (rest, ()) = tokio::join!(rest_of(&mut connection), SimEngine::shutdown(engine));
    assert!(rest.contains("\"finish_reason\":\"abort\""), "{rest}");
    assert!(rest.ends_with("data: [DONE]\n\n"));
    assert!(Connection::open(addr).await.is_err(), "nobody listens");
}

async fn rest_of(connection: &mut Connection) -> String {
    let mut all = String::new();
    while let Some(chunk) = connection.chunk().await {
        all.push_str(&chunk);
        if chunk.is_empty() {
            return all;
        }
    }
    panic!("the stream broke after {all}");
}
