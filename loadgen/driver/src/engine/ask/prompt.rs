//! Conversations and prompts as tokens, by a chat template of role markers.

use engine_model::token::{LAST_TOKEN, TURN_END, Token, role_marker, tokenize};
use serde_json::{Map, Value};

use super::{EngineConfig, Family, Problem, Validation};

/// Prompts of a request: one, except for batched completions.
pub(super) fn prompts(
    config: &EngineConfig,
    family: Family,
    map: &Map<String, Value>,
) -> Result<Vec<Vec<Token>>, Problem> {
    let get = |name: &str| map.get(name).unwrap_or(&Value::Null);
    match family {
        Family::Completions => texts(get("prompt")),
        Family::Chat => {
            let mut tokens = Vec::new();
            turn("tool", get("tools"), &mut tokens);
            conversation(config, get("messages"), "messages", &mut tokens)?;
            Ok(vec![tokens])
        }
        Family::Messages => {
            let mut tokens = Vec::new();
            turn("tool", get("tools"), &mut tokens);
            turn("system", get("system"), &mut tokens);
            conversation(config, get("messages"), "messages", &mut tokens)?;
            Ok(vec![tokens])
        }
        Family::Responses => {
            let mut tokens = Vec::new();
            turn("tool", get("tools"), &mut tokens);
            turn("system", get("instructions"), &mut tokens);
            let input = get("input");
            if input.is_string() {
                turn("user", input, &mut tokens);
                tokens.push(role_marker("assistant"));
            } else {
                conversation(config, input, "input", &mut tokens)?;
            }
            Ok(vec![tokens])
        }
    }
}

/// One turn, unless it is empty.
fn turn(role: &str, content: &Value, tokens: &mut Vec<Token>) {
    if content.is_null() {
        return;
    }
    tokens.push(role_marker(role));
    add_content(content, tokens);
    tokens.push(TURN_END);
}

fn conversation(
    config: &EngineConfig,
    messages: &Value,
    name: &str,
    tokens: &mut Vec<Token>,
) -> Result<(), Problem> {
    let Some(messages) = messages.as_array() else {
        let loc = format!("body.{name}");
        return Err(Problem::validation(
            config.vocabulary,
            &Validation {
                kind: "list_type",
                loc: &loc,
                message: "Input should be a valid list",
                input: "value",
                context: None,
            },
        ));
    };
    if messages.is_empty() {
        let text =
            "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(Problem::refused(text));
    }
    for message in messages {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or("user");
        tokens.push(role_marker(role));
        match message.get("content") {
            Some(content) => add_content(content, tokens),
            None if message.get("role").is_none() => tokenize(&message.to_string(), tokens),
            None => {}
        }
        if let Some(calls) = message.get("tool_calls").filter(|c| !c.is_null()) {
            tokenize(&calls.to_string(), tokens);
        }
        tokens.push(TURN_END);
    }
    tokens.push(role_marker("assistant"));
    Ok(())
}

/// Text, or parts of which some are text; anything else counts as the JSON it is.
fn add_content(content: &Value, tokens: &mut Vec<Token>) {
    match content {
        Value::Null => {}
        Value::String(text) => tokenize(text, tokens),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(text) => tokenize(text, tokens),
                    None => tokenize(&part.to_string(), tokens),
                }
            }
        }
        other @ (Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            tokenize(&other.to_string(), tokens);
        }
    }
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
pub(super) fn texts(value: &Value) -> Result<Vec<Vec<Token>>, Problem> {
    let one = |text: &str| {
        let mut tokens = Vec::new();
        tokenize(text, &mut tokens);
        tokens
    };
    let prompts = match value {
        Value::String(text) => vec![one(text)],
        Value::Array(values) if values.first().is_some_and(Value::is_number) => vec![ids(value)?],
        Value::Array(values) => values
            .iter()
            .map(|v| v.as_str().map_or_else(|| ids(v), |text| Ok(one(text))))
            .collect::<Result<_, _>>()?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(Problem::refused(
                "prompt must be a string, token ids, or a list of these.",
            ));
        }
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(Problem::refused("The decoder prompt cannot be empty"));
    }
    Ok(prompts)
}

pub(super) fn ids(value: &Value) -> Result<Vec<Token>, Problem> {
    let Some(values) = value.as_array() else {
        return Err(Problem::refused("token ids must be a list of integers."));
    };
    let id = |v: &Value| {
        let id = v.as_u64().filter(|id| *id <= u64::from(LAST_TOKEN));
        id.map(|id| id as Token)
            .ok_or_else(|| Problem::refused(format!("Token id {v} is out of vocabulary")))
    };
    values.iter().map(id).collect()
}
