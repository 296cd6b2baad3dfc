//! Any chunk, whole or damaged.

use proptest::prelude::*;

use super::*;

const ROUTES: [Route; 5] = [
    Route::ChatCompletions,
    Route::Completions,
    Route::Embeddings,
    Route::Messages,
    Route::Responses,
];

fn chunk() -> impl Strategy<Value = Vec<u8>> {
    let streams = [
        fixture!("vllm-0.32.0/chat-stream-usage-continuous.body"),
        fixture!("vllm-0.32.0/messages-stream.body"),
        fixture!("sglang-0.5.23/completions-stream-usage.body"),
        fixture!("vllm-0.32.0/completions-stream-killed.body"),
        fixture!("vllm-0.32.0/responses.body"),
    ];
    let lines = streams.concat();
    let lines: Vec<Vec<u8>> = lines
        .split(|&byte| byte == b'\n')
        .filter(|line| line.len() > 20)
        .map(|line| line.strip_prefix(b"data: ").unwrap_or(line).to_vec())
        .collect();
    prop::sample::select(lines)
}

proptest! {
    #[test]
    fn damaged_chunks_do_no_harm(
        chunk in chunk(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        route in prop::sample::select(ROUTES.to_vec()),
    ) {
        let mut data = chunk;
        for (index, byte) in damage {
            let at = index.index(data.len());
            data[at] = byte;
        }
        data.truncate(cut.index(data.len()) + 1);
        let fact = stream_fact(&route, None, &data);
        let spans = [fact.usage_member, fact.error.map(|error| error.span)];
        for span in spans.into_iter().flatten() {
            prop_assert!(data.get(span).is_some());
        }
        from_body(&route, &data);
    }

    #[test]
    fn chat_chunks_read_as_a_full_parse_reads_them(
        contents in prop::collection::vec(prop_oneof![Just(None), any::<String>().prop_map(Some)], 0..3),
        counts in prop::option::of((any::<u32>(), any::<u32>(), prop::option::of(any::<u32>()))),
        reason in prop::option::of("[a-z\"\\\\]{1,8}"),
        extra in "[a-z\"{}:,\\[\\]]{0,12}",
    ) {
        let choices: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(index, content)| serde_json::json!({"index": index, "delta": {"content": content}, "finish_reason": reason}))
            .collect();
        let usage = counts.map(|(prompt, output, cached)| serde_json::json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 1,
            "prompt_tokens_details": cached.map(|cached| serde_json::json!({"cached_tokens": cached})),
        }));
        let chunk = serde_json::json!({"id": extra, "choices": choices, (format!("x{extra}")): extra, "usage": usage});
        for text in [chunk.to_string(), serde_json::to_string_pretty(&chunk).expect("values print")] {
            let fact = stream_fact(&Route::ChatCompletions, None, text.as_bytes());
            let expected = counts.map(|(prompt, output, cached)| Usage {
                prompt_tokens: prompt.into(),
                cached_tokens: cached.map(u64::from),
                output_tokens: output.into(),
            });
            prop_assert_eq!(fact.usage, expected);
            prop_assert_eq!(fact.generated, !contents.is_empty());
            prop_assert_eq!(fact.outputs as usize, contents.iter().flatten().count());
            prop_assert_eq!(fact.finished, reason.is_some() && !contents.is_empty());
            prop_assert_eq!(fact.usage_only, contents.is_empty() && counts.is_some());
            prop_assert_eq!(fact.error, None);
            let span = fact.usage_member.expect("usage is there, if only as null");
            let rest = [&text[..span.start], &text[span.end..]].concat();
            let mut expected = chunk.clone();
            expected.as_object_mut().expect("an object").remove("usage");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&rest).ok(), Some(expected));
        }
    }
}
