//! Request bodies, checked and turned into pseudo-tokens.

use engine_model::token::{self, Token};
use serde_json::{Map, Value};

use super::{
    config::EngineConfig,
    problem::{Problem, Validation},
};

mod fields;
mod prompt;

use fields::Fields;

/// The API a generation request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Chat,
    Completions,
    Messages,
    Responses,
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    Stream { usage: StreamUsage },
}

/// Which chunks of a stream carry usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamUsage {
    None,
    Last,
    /// `continuous_usage_stats`.
    Every,
}

/// Whether an answer carries token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenIds {
    Returned,
    Omitted,
}

/// A generation request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) family: Family,
    pub(super) model: String,
    pub(super) prompts: Vec<Vec<Token>>,
    pub(super) choices: u32,
    pub(super) delivery: Delivery,
    pub(super) max_tokens: Option<u32>,
    pub(super) ignores_eos: bool,
    pub(super) stop: Vec<String>,
    pub(super) seed: u64,
    pub(super) salt: Option<String>,
    pub(super) priority: i32,
    /// Completions only: the prompt comes back before the answer.
    pub(super) echo: bool,
    pub(super) token_ids: TokenIds,
    /// Chat only: alternatives per token.
    pub(super) logprobs: Option<u32>,
    /// Id the body asked for.
    pub(super) id: Option<String>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
}

/// Parses a body as an object, with the words the imitated server has for those that are not.
pub(super) fn object(config: &EngineConfig, body: &[u8]) -> Result<Map<String, Value>, Problem> {
    if body.is_empty() {
        return Err(missing(config, "body", "None"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Problem::validation(
            config.vocabulary,
            &Validation {
                kind: "model_attributes_type",
                loc: "body",
                message: "Input should be a valid dictionary or object to extract fields from",
                input: "value",
                context: None,
            },
        )),
        Err(error) => {
            let loc = format!("body.{}", offset(body, &error));
            let ended = error.is_eof();
            let sglang = config.vocabulary.is_sglang();
            Err(Problem::validation(
                config.vocabulary,
                &Validation {
                    kind: "json_invalid",
                    loc: &loc,
                    message: "JSON decode error",
                    input: if sglang { "{}" } else { "<dict of 0 items>" },
                    context: Some(if sglang && ended {
                        "unexpected end of data"
                    } else {
                        "Expecting value"
                    }),
                },
            ))
        }
    }
}

/// Byte offset of a syntax error, from its line and column.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let before: usize = body
        .split_inclusive(|b| *b == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    before + error.column()
}

fn missing(config: &EngineConfig, loc: &str, input: &str) -> Problem {
    Problem::validation(
        config.vocabulary,
        &Validation {
            kind: "missing",
            loc,
            message: "Field required",
            input,
            context: None,
        },
    )
}

/// Reads a generation request of `family`.
pub(super) fn generation(
    config: &EngineConfig,
    family: Family,
    body: &[u8],
) -> Result<Ask, Problem> {
    let map = object(config, body)?;
    let fields = Fields { config, map: &map };
    let required = match family {
        Family::Chat | Family::Messages => "messages",
        Family::Completions => "prompt",
        Family::Responses => "input",
    };
    if !map.contains_key(required) {
        return Err(missing(
            config,
            &format!("body.{required}"),
            &format!("<dict of {} items>", map.len()),
        ));
    }
    let limits = Limits::read(&fields, family)?;
    let model = model(config, &fields)?;
    limits.check(config)?;
    let prompts = prompt::prompts(config, family, &map)?;
    for prompt in &prompts {
        check_length(config, prompt, limits.max_tokens)?;
    }
    let whole = !fields.flag("stream")?;
    let options = map.get("stream_options").and_then(Value::as_object);
    let option = |name: &str| {
        options
            .and_then(|o| o.get(name))
            .and_then(Value::as_bool)
            .unwrap_or(false)
    };
    let usage = match (option("include_usage"), option("continuous_usage_stats")) {
        (false, _) => StreamUsage::None,
        (true, false) => StreamUsage::Last,
        (true, true) => StreamUsage::Every,
    };
    Ok(Ask {
        family,
        model,
        prompts,
        choices: limits.n,
        delivery: if whole {
            Delivery::Whole
        } else {
            Delivery::Stream { usage }
        },
        max_tokens: limits.max_tokens,
        ignores_eos: fields.flag("ignore_eos")?,
        stop: fields.strings(if family == Family::Messages {
            "stop_sequences"
        } else {
            "stop"
        }),
        seed: fields.integer("seed")?.unwrap_or(0) as u64,
        salt: fields.text("cache_salt"),
        priority: fields.integer("priority")?.unwrap_or(0) as i32,
        echo: family == Family::Completions && fields.flag("echo")?,
        token_ids: if fields.flag("return_token_ids")? {
            TokenIds::Returned
        } else {
            TokenIds::Omitted
        },
        logprobs: logprobs(&fields, family)?,
        id: fields.text(if config.vocabulary.is_sglang() {
            "rid"
        } else {
            "request_id"
        }),
        temperature: limits.temperature.unwrap_or(1.0),
        top_p: fields.number("top_p")?.unwrap_or(1.0),
    })
}

fn logprobs(fields: &Fields<'_>, family: Family) -> Result<Option<u32>, Problem> {
    if family != Family::Chat || !fields.flag("logprobs")? {
        return Ok(None);
    }
    Ok(Some(
        fields.integer("top_logprobs")?.unwrap_or(0).clamp(0, 20) as u32,
    ))
}

/// The numbers of a request, checked in the order the real server does.
struct Limits {
    max_tokens: Option<u32>,
    asked_max_tokens: Option<i64>,
    n: u32,
    asked_n: i64,
    temperature: Option<f64>,
    empty_salt: bool,
}

impl Limits {
    fn read(fields: &Fields<'_>, family: Family) -> Result<Self, Problem> {
        let names: &[&str] = match family {
            Family::Chat => &["max_completion_tokens", "max_tokens"],
            Family::Completions | Family::Messages => &["max_tokens"],
            Family::Responses => &["max_output_tokens"],
        };
        let mut asked_max_tokens = None;
        for name in names {
            asked_max_tokens = asked_max_tokens.or(fields.integer(name)?);
        }
        let default = (family == Family::Completions).then_some(16);
        let asked_n = fields.integer("n")?.unwrap_or(1);
        Ok(Self {
            max_tokens: asked_max_tokens
                .or(default)
                .map(|n| n.clamp(0, i64::from(u32::MAX)) as u32),
            asked_max_tokens,
            n: asked_n.clamp(0, 128) as u32,
            asked_n,
            temperature: fields.number("temperature")?,
            empty_salt: fields.text("cache_salt").is_some_and(|s| s.is_empty()),
        })
    }

    fn check(&self, config: &EngineConfig) -> Result<(), Problem> {
        let sglang = config.vocabulary.is_sglang();
        if self.empty_salt && !sglang {
            let message = "Parameter 'cache_salt' must be a non-empty string if provided.";
            return Err(Problem::invalid(message, "cache_salt", None));
        }
        if let Some(temperature) = self.temperature.filter(|t| *t < 0.0) {
            return Err(if sglang {
                Problem::refused(format!(
                    "temperature must be a non-negative finite number, got {temperature:?}."
                ))
            } else {
                Problem::invalid(
                    &format!("temperature must be non-negative, got {temperature:?}."),
                    "temperature",
                    Some(&format!("{temperature:?}")),
                )
            });
        }
        if self.n < 1 {
            return Err(Problem::refused(format!(
                "n must be at least 1, got {}.",
                self.asked_n
            )));
        }
        let Some(asked) = self.asked_max_tokens else {
            return Ok(());
        };
        if asked < 1 {
            let message = format!("max_tokens must be at least 1, got {asked}.");
            return Err(Problem::invalid(
                &message,
                "max_tokens",
                Some(&asked.to_string()),
            ));
        }
        let limit = config.max_model_len;
        if asked > i64::from(limit) && !sglang {
            let message = format!(
                "max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
            );
            return Err(Problem::invalid(
                &message,
                "max_tokens",
                Some(&asked.to_string()),
            ));
        }
        Ok(())
    }
}

/// The model's name: the one asked for, or its own if none was. SGLang serves under any name.
fn model(config: &EngineConfig, fields: &Fields<'_>) -> Result<String, Problem> {
    let Some(model) = fields.text("model").filter(|m| !m.is_empty()) else {
        return Ok(config.base_model().to_owned());
    };
    if config.knows(&model) || config.vocabulary.is_sglang() {
        return Ok(model);
    }
    Err(Problem::unknown_model(&model, &config.models.join(", ")))
}

fn check_length(
    config: &EngineConfig,
    prompt: &[Token],
    max_tokens: Option<u32>,
) -> Result<(), Problem> {
    let (tokens, limit) = (prompt.len() as u32, config.max_model_len);
    if tokens >= limit {
        return Err(Problem::context_too_long(config.vocabulary, tokens, limit));
    }
    let Some(max_tokens) = max_tokens.filter(|max| max.saturating_add(tokens) > limit) else {
        return Ok(());
    };
    let message = format!(
        "'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length is \
         {limit} tokens and your request has {tokens} input tokens."
    );
    Err(Problem::invalid(
        &message,
        "max_tokens",
        Some(&max_tokens.to_string()),
    ))
}

/// A request that only reads: embeddings.
pub(super) struct Read {
    pub(super) model: String,
    pub(super) inputs: Vec<Vec<Token>>,
}

pub(super) fn embeddings(config: &EngineConfig, body: &[u8]) -> Result<Read, Problem> {
    let map = object(config, body)?;
    let fields = Fields { config, map: &map };
    let model = model(config, &fields)?;
    let Some(input) = map.get("input") else {
        return Err(missing(
            config,
            "body.input",
            &format!("<dict of {} items>", map.len()),
        ));
    };
    let inputs = prompt::texts(input)?;
    for input in &inputs {
        check_length(config, input, None)?;
    }
    Ok(Read { model, inputs })
}

/// `/tokenize` and `count_tokens`: a prompt or messages.
pub(super) struct Tokenize {
    pub(super) tokens: Vec<Token>,
    pub(super) strings: bool,
}

pub(super) fn tokenize(
    config: &EngineConfig,
    family: Family,
    body: &[u8],
) -> Result<Tokenize, Problem> {
    let map = object(config, body)?;
    let fields = Fields { config, map: &map };
    model(config, &fields)?;
    let tokens = match map.get("prompt").and_then(Value::as_str) {
        Some(prompt) => {
            let mut tokens = Vec::new();
            token::tokenize(prompt, &mut tokens);
            tokens
        }
        None if map.contains_key("messages") => prompt::prompts(config, family, &map)?
            .pop()
            .unwrap_or_default(),
        None => {
            return Err(missing(
                config,
                "body.prompt",
                &format!("<dict of {} items>", map.len()),
            ));
        }
    };
    Ok(Tokenize {
        tokens,
        strings: fields.flag("return_token_strs")?,
    })
}

pub(super) fn detokenize(config: &EngineConfig, body: &[u8]) -> Result<String, Problem> {
    let map = object(config, body)?;
    let Some(tokens) = map.get("tokens") else {
        return Err(missing(
            config,
            "body.tokens",
            &format!("<dict of {} items>", map.len()),
        ));
    };
    Ok(token::detokenize(&prompt::ids(tokens)?))
}
