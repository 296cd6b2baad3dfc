//! What the scheduler says of one call: the wait, the turn, the choice, the outcome.

use std::fmt::Write as _;

use serde_json::Value;

use super::{decimal, line, list, number, number_text, string};
use crate::counted::counted;

/// `told` is the outcome's code where it stands above already.
pub(super) fn render(text: &mut String, call: &Value, told: Option<&str>) {
    let flow = format!(
        "band {}, flow {}{}",
        number_text(call, "/band"),
        string(call, "/fairness").unwrap_or_default(),
        limit(call).map_or(String::new(), |limit| format!(", waits at most {limit}")),
    );
    line(text, "flow", Some(&flow));
    for attempt in list(call, "/attempts") {
        render_attempt(text, call, attempt);
    }
    let turned_away = call.get("refusal").map(|refusal| no_turn(call, refusal));
    line(text, "no turn", turned_away.as_deref());
    let scheduled = format!(
        "{}, {} ms in all",
        outcome(call, told),
        decimal(call, "/duration_ms", 1)
    );
    line(text, "scheduled", Some(&scheduled));
}

/// How the call ended. A refusal's code is its outcome and its reason.
fn outcome(call: &Value, told: Option<&str>) -> String {
    let outcome = string(call, "/outcome").unwrap_or_default();
    match string(call, "/reason") {
        Some(reason) if reason == outcome && told == Some(&reason) => "refused".to_owned(),
        Some(reason) if reason != outcome => format!("{outcome} ({reason})"),
        Some(_) | None => outcome,
    }
}

/// `2000 ms (the time to live of its band)`
fn limit(call: &Value) -> Option<String> {
    let whose = whose_limit(&string(call, "/wait_limit/by")?);
    let time = number_text(call, "/wait_limit/ms");
    Some(format!("{time} ms ({whose})"))
}

fn whose_limit(by: &str) -> &'static str {
    match by {
        "band" => "the time to live of its band",
        "timeouts.queue" => "governance.timeouts.queue",
        "objective" => "the time to live of its objective",
        "tenant" => "the time to live of its tenant",
        "project" => "the time to live of its project",
        "key" => "the time to live of its key",
        _ => "its own time to live",
    }
}

/// Why a request got no turn, in one sentence.
fn no_turn(call: &Value, refusal: &Value) -> String {
    let reason = string(call, "/reason").unwrap_or_default();
    let because = match (reason.as_str(), string(refusal, "/because").as_deref()) {
        ("queue_full", Some("flow")) => "its tenant has as much waiting as it may",
        ("queue_full", Some("band")) => "its band has as much waiting as it may",
        ("queue_full", _) => "the pool has as much waiting as it may",
        ("over_quota", Some("flow")) => "its tenant has as much work under way as its quota allows",
        ("over_quota", _) => "its band has as much work under way as its quota allows",
        ("queue_wait", _) => "it would have been served too late",
        ("shed", _) => "the pool is saturated, and its band is below 0",
        ("displaced", _) => "a request of a higher band took its place",
        ("queue_expired", _) => match string(call, "/wait_limit/by") {
            Some(by) => return format!("{} was over; {}", whose_limit(&by), waited(refusal)),
            None => "it waited as long as it may",
        },
        ("no_endpoint", Some("empty")) => "the pool has no endpoint",
        ("no_endpoint", Some("draining")) => "every endpoint is draining",
        ("no_endpoint", Some("model")) => "no endpoint serves its model",
        ("no_endpoint", Some("context")) => "it is longer than the context of every endpoint",
        ("no_endpoint", Some("quarantine")) => "every endpoint for it is quarantined",
        ("shutting_down", _) => "the scheduler was shutting down",
        (other, _) => other,
    };
    format!("{because}; {}", waited(refusal))
}

/// What came before a refusal, and what would have come after it.
fn waited(refusal: &Value) -> String {
    let mut told = format!(
        "it waited {} ms, and {} waited in the pool",
        decimal(refusal, "/waited_ms", 1),
        number(refusal, "/queue_length")
            .map_or("-".to_owned(), |waiting| counted(waiting, "request")),
    );
    if refusal.get("predicted_wait_ms").is_some() {
        let predicted = decimal(refusal, "/predicted_wait_ms", 0);
        let _ = write!(told, "; it would have had to wait {predicted} ms");
    }
    if refusal.get("retry_after_ms").is_some() {
        let after = decimal(refusal, "/retry_after_ms", 0);
        let _ = write!(told, "; its caller was told to come back after {after} ms");
    }
    told
}

fn render_attempt(text: &mut String, call: &Value, attempt: &Value) {
    let endpoint = string(attempt, "/endpoint").unwrap_or_default();
    let mut chosen = format!(
        "{endpoint} by {}, after {} ms in the queue (position {})",
        string(attempt, "/decision/policy").unwrap_or_default(),
        decimal(attempt, "/queue_ms", 1),
        number_text(attempt, "/decision/queue_position"),
    );
    if let (Some(second), Some(margin)) = (
        string(attempt, "/decision/runner_up"),
        attempt.pointer("/decision/margin").and_then(Value::as_f64),
    ) {
        let _ = write!(chosen, "; next best {second}, {margin:.4} behind");
    }
    if let Some(tie) = string(attempt, "/decision/tie") {
        let _ = write!(chosen, "; a tie broken by {tie}");
    }
    line(text, "chosen", Some(&chosen));
    if let Some(turn) = attempt.pointer("/decision/turn") {
        render_turn(text, call, turn);
    }
    for candidate in list(attempt, "/decision/candidates") {
        line(text, "candidate", Some(&candidate_text(candidate)));
    }
    let predicted =
        |name: &str, digits| decimal(attempt, &format!("/decision/predicted/{name}"), digits);
    let ttft = attempt
        .pointer("/decision/predicted/ttft_s")
        .and_then(Value::as_f64)
        .map_or("-".to_owned(), |s| format!("{:.1}", s * 1e3));
    let foreseen = format!(
        "first token after {ttft} ms ({}), {} cached tokens (measured {})",
        first_token_seen(attempt),
        predicted("cached_tokens", 0),
        number_text(attempt, "/measured/cached_tokens"),
    );
    line(text, "predicted", Some(&foreseen));
    let cause = string(attempt, "/cause")
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    let end = string(attempt, "/end").unwrap_or_default();
    line(text, "attempt", Some(&format!("{end}{cause}")));
}

/// Why it went when it went.
fn render_turn(text: &mut String, call: &Value, turn: &Value) {
    line(text, "turn", Some(&rested_on(call, turn)));
    for because in reasons(call, turn) {
        line(text, "because", Some(&because));
    }
}

/// What the turn of a request rested on.
fn rested_on(call: &Value, turn: &Value) -> String {
    let when = match float(turn, "slack_s") {
        late if late < 0.0 => format!("{:.3} s after its first token was wanted", -late),
        slack => format!("{slack:.3} s before its first token was wanted"),
    };
    // WTU are those of the price book; the scheduler counts in proportions of its own.
    let uncached = match float(call, "uncached_wtu") {
        wtu if wtu > 0.0 => wtu,
        _ => 1.0,
    };
    format!(
        "{when}, {:.0} ms per token promised, {:.0} output tokens expected, its flow charged as for {:.0} uncached prompt tokens",
        float(turn, "tpot_s") * 1e3,
        float(turn, "expected_output"),
        float(turn, "charged_wtu") / uncached,
    )
}

/// What was out of the ordinary.
fn reasons(call: &Value, turn: &Value) -> Vec<String> {
    let is = |name: &str| turn.get(name).and_then(Value::as_bool) == Some(true);
    let (own, waited_in) = (number_text(call, "/band"), number_text(turn, "/band"));
    let passed = number(turn, "/passed").unwrap_or_default();
    let misses = float(turn, "misses");
    let mut reasons = Vec::new();
    if waited_in != own && waited_in != "-" {
        reasons.push(format!(
            "waiting raised it from band {own} to band {waited_in}"
        ));
    }
    if is("by_share") {
        reasons.push("it went before higher bands: its own had not had its share".to_owned());
    }
    if is("overloaded") {
        reasons.push(
            "not everybody could be served in time: tenants went by what they had had".to_owned(),
        );
    }
    if passed > 0 {
        reasons.push(format!(
            "it was held back while {} went where it could have gone",
            counted(passed, "later request")
        ));
    }
    if misses >= 0.005 {
        reasons.push(format!(
            "it was expected to cost {misses:.2} targets of running streams"
        ));
    }
    reasons
}

fn float(value: &Value, name: &str) -> f64 {
    value.get(name).and_then(Value::as_f64).unwrap_or_default()
}

/// What an endpoint would have cost, in seconds, and what that rests on.
fn candidate_text(candidate: &Value) -> String {
    let field = |name: &str| number_text(candidate, &format!("/{name}"));
    let seconds = |name: &str| decimal(candidate, &format!("/{name}"), 3);
    format!(
        "{:<22} score {:>9} = queue {:>7} s + prefill {:>7} s + others {:>6} s + again {:>6} s + decode {:>6} s, misses {:>5}, rest {:>5} s; cached {:>6}  uncached {:>6}  in flight {:>3}  KV {:>3} %",
        string(candidate, "/endpoint").unwrap_or_default(),
        decimal(candidate, "/score", 4),
        seconds("queue_s"),
        seconds("prefill_s"),
        seconds("others_s"),
        seconds("duplicate_s"),
        seconds("decode_s"),
        decimal(candidate, "/misses", 2),
        decimal(candidate, "/rest_s", 2),
        field("cached_tokens"),
        field("uncached_tokens"),
        field("in_flight"),
        candidate
            .pointer("/kv_use")
            .and_then(Value::as_f64)
            .map_or("-".to_owned(), |share| format!("{:.0}", share * 100.0)),
    )
}

/// The first token of an answer that comes whole is not seen; what is seen is the time of all of it.
fn first_token_seen(attempt: &Value) -> String {
    match attempt.pointer("/measured/whole_answer_ms") {
        Some(_) => format!(
            "not seen: the answer came whole after {} ms",
            decimal(attempt, "/measured/whole_answer_ms", 1)
        ),
        None => format!("measured {}", decimal(attempt, "/measured/ttft_ms", 1)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_first_token_is_told_only_where_one_was_seen() {
        for (measured, expected) in [
            (json!({ "ttft_ms": 12.34 }), "measured 12.3"),
            (
                json!({ "whole_answer_ms": 450.0, "output_tokens": 9 }),
                "not seen: the answer came whole after 450.0 ms",
            ),
            (json!({}), "measured -"),
        ] {
            let attempt = json!({ "measured": measured });
            assert_eq!(first_token_seen(&attempt), expected);
        }
    }

    #[test]
    fn a_turn_is_told_in_sentences_of_what_it_rested_on() {
        let call = json!({"band": 0, "fairness": "acme", "uncached_wtu": 0.5, "attempts": [{
            "endpoint": "e1", "queue_ms": 812.4, "end": "completed",
            "decision": {
                "policy": "planned", "queue_position": 3,
                "turn": {"band": 1, "by_share": true, "slack_s": -0.25, "tpot_s": 0.1, "expected_output": 230.0,
                    "misses": 0.125, "passed": 2, "overloaded": true, "charged_wtu": 1234.5},
                "candidates": [{"endpoint": "e1", "score": 0.5, "queue_s": 0.1, "prefill_s": 0.2, "others_s": 0.01,
                    "duplicate_s": 0.02, "decode_s": 0.03, "misses": 0.125, "rest_s": 0.5, "kv_use": 0.5, "in_flight": 7,
                    "cached_tokens": 10, "uncached_tokens": 20}],
            },
        }]});
        let mut text = String::new();
        render(&mut text, &call, None);
        for part in [
            "turn        0.250 s after its first token was wanted, 100 ms per token promised, 230 output tokens expected, its flow charged as for 2469 uncached prompt tokens",
            "because     waiting raised it from band 0 to band 1",
            "because     it went before higher bands: its own had not had its share",
            "because     not everybody could be served in time: tenants went by what they had had",
            "because     it was held back while 2 later requests went where it could have gone",
            "because     it was expected to cost 0.12 targets of running streams",
            "queue   0.100 s + prefill   0.200 s + others  0.010 s + again  0.020 s + decode  0.030 s, misses  0.12, rest  0.50 s;",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let quiet =
            json!({"band": 0, "attempts": [{"decision": {"turn": {"band": 0, "slack_s": 1.0}}}]});
        let mut text = String::new();
        render(&mut text, &quiet, None);
        assert!(!text.contains("because"), "{text}");
    }

    #[test]
    fn a_refusal_says_why_and_what_would_have_come() {
        for (reason, refusal, expected) in [
            (
                "queue_wait",
                json!({"waited_ms": 0.0, "queue_length": 70, "predicted_wait_ms": 3400.0, "retry_after_ms": 5000.0}),
                "no turn     it would have been served too late; it waited 0.0 ms, and 70 requests waited in the pool; it would have had to wait 3400 ms; its caller was told to come back after 5000 ms\n",
            ),
            (
                "queue_expired",
                json!({"waited_ms": 2000.4, "queue_length": 1}),
                "no turn     the time to live of its band was over; it waited 2000.4 ms, and 1 request waited in the pool\n",
            ),
            (
                "over_quota",
                json!({"because": "band", "waited_ms": 1.0, "queue_length": 0}),
                "no turn     its band has as much work under way as its quota allows; it waited 1.0 ms, and 0 requests waited in the pool\n",
            ),
        ] {
            let call = json!({"band": 0, "reason": reason, "refusal": refusal, "attempts": [], "wait_limit": {"by": "band", "ms": 2000}});
            let mut text = String::new();
            render(&mut text, &call, None);
            assert!(text.contains(expected), "{text}");
            let flow =
                "flow        band 0, flow , waits at most 2000 ms (the time to live of its band)\n";
            assert!(text.contains(flow), "{text}");
        }
    }

    #[test]
    fn the_limit_that_ended_a_wait_is_named() {
        for (by, whose) in [
            ("band", "the time to live of its band"),
            ("timeouts.queue", "governance.timeouts.queue"),
            ("objective", "the time to live of its objective"),
            ("tenant", "the time to live of its tenant"),
            ("project", "the time to live of its project"),
            ("key", "the time to live of its key"),
            ("request", "its own time to live"),
        ] {
            let refusal = json!({"waited_ms": 2000.4, "queue_length": 1});
            let call = json!({"band": 0, "reason": "queue_expired", "refusal": refusal, "attempts": [],
                "wait_limit": {"by": by, "ms": 2000}});
            let mut text = String::new();
            render(&mut text, &call, None);
            for part in [
                format!("waits at most 2000 ms ({whose})\n"),
                format!("no turn     {whose} was over; it waited 2000.4 ms"),
            ] {
                assert!(text.contains(&part), "{part} is not in\n{text}");
            }
        }
    }
}
