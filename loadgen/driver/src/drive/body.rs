//! The JSON of one request. Pure.

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use workload::{Planned, Prompt, text};

/// Which API the load speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`, the prompt as one user message; a chat template adds a few tokens to it.
    Chat,
    /// `/v1/completions`, the prompt as it is.
    Completions,
}

/// How answers come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Stream,
    Whole,
}

/// How many tokens are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputLength {
    /// As many as planned: the engine is told to ignore the end of the text.
    Exact,
    /// At most as many as planned.
    AtMost,
}

pub(super) struct Body<'a> {
    pub(super) api: Api,
    pub(super) delivery: Delivery,
    pub(super) output_length: OutputLength,
    pub(super) model: &'a str,
    pub(super) prompt: &'a Prompt,
    pub(super) output_tokens: u32,
}

impl Api {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    pub(super) fn route(self) -> inference_wire::route::Route {
        match self {
            Self::Chat => inference_wire::route::Route::ChatCompletions,
            Self::Completions => inference_wire::route::Route::Completions,
        }
    }
}

impl Body<'_> {
    pub(super) fn write(&self, seed: u64) -> Bytes {
        let prompt_bytes = self.prompt.tokens() as usize * text::TOKEN_BYTES;
        let mut json = Vec::with_capacity(prompt_bytes + 256 + self.model.len());
        json.extend_from_slice(b"{\"model\":");
        serde_json::to_writer(&mut json, self.model).expect("a string is written to memory");
        let (before, after): (&[u8], &[u8]) = match self.api {
            Api::Chat => (b",\"messages\":[{\"role\":\"user\",\"content\":\"", b"\"}]"),
            Api::Completions => (b",\"prompt\":\"", b"\""),
        };
        json.extend_from_slice(before);
        text::write_prompt(self.prompt, seed, &mut json);
        json.extend_from_slice(after);
        json.extend_from_slice(format!(",\"max_tokens\":{}", self.output_tokens).as_bytes());
        if self.output_length == OutputLength::Exact {
            json.extend_from_slice(b",\"ignore_eos\":true");
        }
        if self.delivery == Delivery::Stream {
            json.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        }
        json.push(b'}');
        Bytes::from(json)
    }
}

/// After how many events with output the client leaves, if it is one of those that do: any point of the answer is as
/// likely, the moment before its first token included.
pub(super) fn leaves_after(share: f64, seed: u64, planned: &Planned) -> Option<u32> {
    /// Keeps these draws apart from those of the workload.
    const DEPARTURES: u64 = 0x6c65_6176_6573;
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ DEPARTURES);
    random.set_stream(planned.index);
    let leaves = random.random_bool(share.clamp(0.0, 1.0));
    leaves.then(|| random.random_range(0..planned.output_tokens.max(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use workload::{BlockId, Planned, Prompt, Run};

    use super::{Api, Body, Delivery, OutputLength, leaves_after};

    fn prompt(tokens: u32) -> Prompt {
        Prompt::new([Run {
            first: BlockId(1),
            tokens,
        }])
    }

    fn json(
        api: Api,
        delivery: Delivery,
        output_length: OutputLength,
        tokens: u32,
    ) -> serde_json::Value {
        let prompt = prompt(tokens);
        let body = Body {
            api,
            delivery,
            output_length,
            model: "a \"b\"",
            prompt: &prompt,
            output_tokens: 9,
        };
        serde_json::from_slice(&body.write(1)).expect("the body is JSON")
    }

    #[test]
    fn bodies_say_what_was_planned() {
        let chat = json(Api::Chat, Delivery::Stream, OutputLength::Exact, 3);
        let content = chat["messages"][0]["content"]
            .as_str()
            .expect("text")
            .to_owned();
        assert_eq!(content.len(), 12);
        let expected = serde_json::json!({
            "model": "a \"b\"", "messages": [{"role": "user", "content": content}], "max_tokens": 9,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        assert_eq!(chat, expected);
        let plain = json(Api::Completions, Delivery::Whole, OutputLength::AtMost, 700);
        let prompt = plain["prompt"].as_str().expect("text").to_owned();
        assert_eq!(prompt.len(), 2_800);
        assert_eq!(
            plain,
            serde_json::json!({"model": "a \"b\"", "prompt": prompt, "max_tokens": 9})
        );
    }

    #[test]
    fn the_share_that_leaves_leaves_anywhere_in_the_answer() {
        let leaves: Vec<u32> = (0..4_000)
            .filter_map(|index| {
                let planned = Planned {
                    index,
                    at: Duration::ZERO,
                    prompt: prompt(1),
                    output_tokens: 10,
                    answer: workload::Answer::Nobodys,
                    tenant: 0,
                };
                leaves_after(0.25, 3, &planned)
            })
            .collect();
        assert!((900..1_100).contains(&leaves.len()), "{}", leaves.len());
        for point in 0..10 {
            let here = leaves.iter().filter(|&&after| after == point).count();
            assert!((60..140).contains(&here), "{here} leave after {point}");
        }
        assert!(leaves.iter().all(|&after| after < 10));
    }
}
