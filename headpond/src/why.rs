//! `headpond why ID`: the decision record of one request, for a person.

use std::fmt::Write as _;

use http::Method;
use serde_json::Value;

use crate::cli::Why;
use crate::client::AdminClient;
use crate::counted::counted;

mod call;

pub(crate) async fn run(options: Why) -> anyhow::Result<()> {
    let path = format!("/admin/v1/decisions/{}", options.id.trim());
    let record = AdminClient::new(&options.admin)?
        .call(Method::GET, &path, None)
        .await?;
    if options.json {
        println!("{record:#}");
    } else {
        print!("{}", render(&record));
    }
    Ok(())
}

/// The record as text. What a layer did not say is left out.
fn render(record: &Value) -> String {
    let mut text = String::new();
    line(&mut text, "request", string(record, "/request").as_deref());
    if let Some(governance) = record.get("governance").filter(|part| !part.is_null()) {
        render_governance(&mut text, governance);
    }
    let told = string(record, "/governance/outcome/code");
    for call in list(record, "/scheduling/calls") {
        call::render(&mut text, call, told.as_deref());
    }
    text
}

fn render_governance(text: &mut String, record: &Value) {
    line(text, "who", who(record).as_deref());
    line(text, "asked", Some(&asked(record)));
    let promised = record.get("objective").map(promised);
    line(text, "objective", promised.as_deref());
    line(text, "policy", string(record, "/policy_version").as_deref());
    let removed: Vec<&str> = list(record, "/removed")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let removed = (!removed.is_empty()).then(|| removed.join(", "));
    line(text, "removed", removed.as_deref());
    for limit in list(record, "/limits") {
        line(text, "limit", Some(&limit_text(limit)));
    }
    line(text, "held", held(record).as_deref());
    line(text, "clamped", clamped(record).as_deref());
    line(text, "settled", settled(record).as_deref());
    if let Some(code) = string(record, "/outcome/code") {
        let status = number(record, "/outcome/status").unwrap_or_default();
        line(text, "outcome", Some(&format!("{status} {code}")));
    }
    let advice = string(record, "/refusal/what_to_do");
    let refused = string(record, "/refusal/message");
    let refused = refused.map(|message| without_advice(&message, advice.as_deref()));
    line(text, "refused", refused.as_deref());
    line(text, "what to do", advice.as_deref());
    line(text, "time", times(record).as_deref());
}

/// `acme / web / ada / the public part of the key`
fn who(record: &Value) -> Option<String> {
    let identity: Vec<String> = ["tenant", "project", "user", "key"]
        .iter()
        .filter_map(|part| string(record, &format!("/identity/{part}")))
        .collect();
    (!identity.is_empty()).then(|| identity.join(" / "))
}

fn asked(record: &Value) -> String {
    let mut asked = string(record, "/route").unwrap_or_default();
    if let Some(model) = string(record, "/model") {
        let _ = write!(asked, ", model {model}");
    }
    if let Some(alias) = string(record, "/alias") {
        let _ = write!(asked, " (asked for as {alias})");
    }
    if record.get("streaming").and_then(Value::as_bool) == Some(true) {
        asked.push_str(", streamed");
    }
    asked
}

fn held(record: &Value) -> Option<String> {
    let held = wtu(number(record, "/reservation/held_uwtu")?);
    let prompt = number(record, "/reservation/prompt_tokens").unwrap_or_default();
    let output = number(record, "/reservation/output_bound").unwrap_or_default();
    Some(format!(
        "{held} for at most {} and {}",
        counted(prompt, "prompt token"),
        counted(output, "output token")
    ))
}

fn clamped(record: &Value) -> Option<String> {
    let asked = number(record, "/reservation/clamped_from")?;
    Some(format!(
        "the caller asked for {asked} output tokens; the budget affords fewer"
    ))
}

fn settled(record: &Value) -> Option<String> {
    let state = string(record, "/settlement/state")?;
    let count = |name: &str| number(record, &format!("/settlement/{name}")).unwrap_or_default();
    let estimated = record.pointer("/settlement/estimated") == Some(&Value::Bool(true));
    Some(format!(
        "{state}: {} for {} ({} cached) and {}{} ({})",
        wtu(count("charged_uwtu")),
        counted(count("prompt_tokens"), "prompt token"),
        count("cached_tokens"),
        counted(count("output_tokens"), "output token"),
        if estimated { ", estimated" } else { "" },
        string(record, "/settlement/reason").unwrap_or_default(),
    ))
}

fn times(record: &Value) -> Option<String> {
    let total = number(record, "/timing/total_us")?;
    let at = |name: &str| number(record, &format!("/timing/{name}")).map_or("-".to_owned(), millis);
    Some(format!(
        "passed on after {}, first data {}, end {}",
        at("admitted_us"),
        at("first_data_us"),
        millis(total)
    ))
}

/// `interactive (of the project): band 10, weight 3 (of the key), …`
fn promised(objective: &Value) -> String {
    let name = string(objective, "/name").unwrap_or_else(|| "none".to_owned());
    let named = match string(objective, "/named_by").as_deref() {
        None | Some("default") => String::new(),
        Some(by) => format!(" (of the {by})"),
    };
    let field = |name: &str, unit: &str| {
        let value = objective.get(name).filter(|value| value.is_number())?;
        let by = string(objective, &format!("/overridden/{name}"));
        let by = by.map_or(String::new(), |by| format!(" (of the {by})"));
        Some(format!("{value}{unit}{by}"))
    };
    let said = |name: &str, unit: &str| field(name, unit).unwrap_or_else(|| "-".to_owned());
    let target =
        |name: &str| field(name, " ms").unwrap_or_else(|| "left to the scheduler".to_owned());
    format!(
        "{name}{named}: band {}, weight {}, time to live {}; target to the first token {}, per token {}",
        said("band", ""),
        said("weight", ""),
        said("ttl_ms", " ms"),
        target("ttft_ms"),
        target("tpot_ms"),
    )
}

/// What callers are told ends with the advice, which has a line of its own here.
fn without_advice(message: &str, advice: Option<&str>) -> String {
    let bare = advice.and_then(|advice| message.strip_suffix(advice));
    bare.unwrap_or(message).trim_end().to_owned()
}

fn limit_text(limit: &Value) -> String {
    let get = |name: &str| string(limit, &format!("/{name}")).unwrap_or_default();
    let unit = get("unit");
    let amount = |name: &str| {
        number(limit, &format!("/{name}")).map_or("none".to_owned(), |number| {
            if unit == "uwtu" {
                wtu(number)
            } else {
                counted(number, unit.trim_end_matches('s'))
            }
        })
    };
    format!(
        "{} {} (tier {}): {} used, {} held, limit {}",
        get("account"),
        get("name"),
        get("tier"),
        amount("used"),
        amount("held"),
        amount("limit")
    )
}

fn line(text: &mut String, name: &str, content: Option<&str>) {
    if let Some(content) = content {
        let _ = writeln!(text, "{name:<11} {content}");
    }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn string(value: &Value, pointer: &str) -> Option<String> {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .map(str::to_owned)
}

fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer).and_then(Value::as_u64)
}

fn number_text(value: &Value, pointer: &str) -> String {
    value
        .pointer(pointer)
        .filter(|value| value.is_number())
        .map_or("-".to_owned(), Value::to_string)
}

fn decimal(value: &Value, pointer: &str, digits: usize) -> String {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .map_or("-".to_owned(), |number| {
            let text = format!("{number:.digits$}");
            // What is a hair below nothing is nothing.
            match text.strip_prefix('-') {
                Some(zero) if zero.bytes().all(|byte| matches!(byte, b'0' | b'.')) => {
                    zero.to_owned()
                }
                _ => text,
            }
        })
}

fn wtu(micro: u64) -> String {
    format!("{}.{:06} WTU", micro / 1_000_000, micro % 1_000_000)
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_objective_is_told_with_whoever_changed_it() {
        for (objective, expected) in [
            (
                json!({"name": "interactive", "named_by": "project", "band": 10, "weight": 3, "ttl_ms": 5000,
                    "ttft_ms": 800, "overridden": {"weight": "tenant", "ttft_ms": "key"}}),
                "interactive (of the project): band 10, weight 3 (of the tenant), time to live 5000 ms; target to the first token 800 ms (of the key), per token left to the scheduler",
            ),
            (
                json!({"name": "batch", "named_by": "default", "band": -1, "weight": 1, "ttl_ms": 60000, "tpot_ms": 50}),
                "batch: band -1, weight 1, time to live 60000 ms; target to the first token left to the scheduler, per token 50 ms",
            ),
            (
                json!({"band": 0, "weight": 1, "ttl_ms": 60000}),
                "none: band 0, weight 1, time to live 60000 ms; target to the first token left to the scheduler, per token left to the scheduler",
            ),
        ] {
            assert_eq!(promised(&objective), expected);
        }
    }

    #[test]
    fn a_refusal_by_the_scheduler_is_named_once() {
        let call = json!({"band": 0, "fairness": "acme", "outcome": "queue_expired", "reason": "queue_expired",
            "refusal": {"waited_ms": 2000.4, "queue_length": 1}, "wait_limit": {"by": "band", "ms": 2000}, "duration_ms": 2000.9});
        let alone = json!({ "scheduling": { "calls": [call] } });
        let both = json!({
            "governance": {"outcome": {"status": 429, "code": "queue_expired"}},
            "scheduling": alone["scheduling"],
        });
        for record in [alone, both] {
            let told = render(&record);
            assert_eq!(told.matches("queue_expired").count(), 1, "{told}");
        }
    }

    #[test]
    fn a_refusal_by_a_budget_names_what_is_used_and_what_is_held() {
        let limit = json!({"account": "acme", "name": "1d", "tier": "D", "unit": "uwtu",
            "limit": 5_000_000, "used": 250_000, "held": 4_750_000});
        let told = render(&json!({ "governance": { "route": "chat", "limits": [limit] } }));
        let expected = "acme 1d (tier D): 0.250000 WTU used, 4.750000 WTU held, limit 5.000000 WTU";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn one_request_is_not_many() {
        let limit = json!({"account": "acme", "name": "requests", "tier": "A", "unit": "requests",
            "limit": 600, "used": 0, "held": 1});
        let told = render(&json!({ "governance": { "route": "chat", "limits": [limit] } }));
        let expected = "(tier A): 0 requests used, 1 request held, limit 600 requests";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn the_alias_a_caller_used_stands_beside_the_model() {
        let record =
            json!({ "governance": { "route": "chat", "model": "demo", "alias": "gpt-4" } });
        let told = render(&record);
        assert!(
            told.contains("chat, model demo (asked for as gpt-4)"),
            "{told}"
        );
    }
}
