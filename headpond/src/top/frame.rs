//! One frame of `headpond top`, as text.

use std::fmt::Write as _;

use serde_json::Value;

use super::rates::Rates;

/// Rows of each table; the busiest come first.
const ENDPOINTS: usize = 24;
const FLOWS: usize = 12;

/// A pool and its rates. Every line ends with a line break.
pub(super) fn render(url: &str, pool: &Value, rates: &Rates) -> String {
    let mut text = String::with_capacity(4 << 10);
    head(&mut text, url, pool);
    per_second(&mut text, rates);
    endpoints(&mut text, list(pool, "/state/endpoints"));
    bands(&mut text, list(pool, "/state/bands"));
    flows(&mut text, pool);
    text
}

fn head(text: &mut String, url: &str, pool: &Value) {
    let state = &pool["state"];
    let _ = writeln!(
        text,
        "headpond top   pool {}   policy {}   {url}",
        word(pool, "/pool"),
        word(pool, "/policy"),
    );
    let cause = match word(state, "/saturation/cause").as_str() {
        "load" => "by load",
        "no_data" => "by own count only: no fresh metrics",
        "no_endpoint" => "no endpoint",
        _ => "unknown",
    };
    let _ = writeln!(
        text,
        "saturation     {} ({cause})   waiting {} ({})   running {}   flows {}",
        percent(state, "/saturation/value"),
        whole(state, "/queue_length"),
        bytes(state.pointer("/queue_bytes").and_then(Value::as_f64)),
        whole(state, "/bookings"),
        whole(state, "/active_flows"),
    );
    let _ = writeln!(
        text,
        "index          {} pairs, {}   peers {}{}",
        whole(state, "/index_pairs"),
        bytes(state.pointer("/index_bytes").and_then(Value::as_f64)),
        whole(state, "/peers"),
        match state.get("peer_silence_s").and_then(Value::as_f64) {
            Some(silence) => format!(" (heard {silence:.1} s ago)"),
            None => String::new(),
        },
    );
}

fn per_second(text: &mut String, rates: &Rates) {
    // From zero: a sum of nothing is a negative zero.
    let refused: f64 = rates.refused.values().fold(0.0, |sum, rate| sum + rate);
    let codes: String = rates
        .refused
        .iter()
        .fold(String::new(), |mut all, (code, rate)| {
            let _ = write!(all, "  {code} {rate:.1}");
            all
        });
    let seconds =
        |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3} s"));
    let _ = writeln!(
        text,
        "per second     {:.1} asked   {:.1} dispatched   {refused:.1} refused{codes}   {:.0} WTU   {:.1} retries",
        rates.judged, rates.dispatched, rates.wtu, rates.retries,
    );
    let _ = writeln!(
        text,
        "mean           wait {}   first token {}   held {:.1}/s   late {:.1}/s   misses expected {:.2}/s\n",
        seconds(rates.wait_s),
        seconds(rates.first_token_s),
        rates.held,
        rates.late,
        rates.misses,
    );
}

fn endpoints(text: &mut String, endpoints: &[Value]) {
    let _ = writeln!(
        text,
        "{:<24} {:<12} {:>7} {:>7} {:>5} {:>6} {:>5} {:>8} {:>10} {:>8}",
        "ENDPOINT",
        "STATE",
        "RUNNING",
        "PREFILL",
        "ROOM",
        "OTHERS",
        "KV",
        "QUEUE",
        "CACHED",
        "METRICS",
    );
    let mut busiest: Vec<&Value> = endpoints.iter().collect();
    busiest.sort_by_key(|endpoint| {
        let load = endpoint["effective_load"].as_u64().unwrap_or_default();
        (std::cmp::Reverse(load), word(endpoint, "/name"))
    });
    for endpoint in busiest.iter().take(ENDPOINTS) {
        let own = endpoint["bookings"].as_u64().unwrap_or_default();
        let all = endpoint["effective_load"].as_u64().unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<24} {:<12} {own:>7} {:>7} {:>5} {:>6} {:>5} {:>8} {:>10} {:>8}",
            clipped(&word(endpoint, "/name"), 24),
            word(endpoint, "/state"),
            whole(endpoint, "/prefilling"),
            whole(endpoint, "/room"),
            all.saturating_sub(own),
            percent(endpoint, "/kv_use"),
            decimal(endpoint, "/queue_s", 3, " s"),
            whole(endpoint, "/resident_tokens"),
            decimal(endpoint, "/metrics_age_s", 1, " s"),
        );
    }
    more(text, endpoints.len(), ENDPOINTS);
}

fn bands(text: &mut String, bands: &[Value]) {
    if bands.is_empty() {
        let _ = writeln!(text, "\nnothing waits and nothing runs");
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12} {:>8} {:>10} {:>12} {:>8} {:>12}",
        "BAND", "WAITING", "BYTES", "WTU", "RUNNING", "WTU",
    );
    for band in bands {
        let flags: Vec<&str> = [
            ("overloaded", "overloaded"),
            ("newest_first", "newest first"),
            ("over_quota", "over quota"),
        ]
        .into_iter()
        .filter(|(name, _)| band[*name] == true)
        .map(|(_, told)| told)
        .collect();
        let line = format!(
            "{:<12} {:>8} {:>10} {:>12} {:>8} {:>12}  {}",
            whole(band, "/band"),
            whole(band, "/waiting"),
            bytes(band["waiting_bytes"].as_f64()),
            decimal(band, "/waiting_wtu", 0, ""),
            whole(band, "/running"),
            decimal(band, "/running_wtu", 0, ""),
            flags.join(", "),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn flows(text: &mut String, pool: &Value) {
    let flows = list(pool, "/state/flows");
    if flows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<32} {:>11} {:>8} {:>8} {:>12}",
        "FLOW", "BAND", "WAITING", "RUNNING", "WTU",
    );
    for flow in flows.iter().take(FLOWS) {
        let over = if flow["over_quota"] == true {
            "  over quota"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{:<32} {:>11} {:>8} {:>8} {:>12}{over}",
            clipped(&word(flow, "/flow"), 32),
            whole(flow, "/band"),
            whole(flow, "/waiting"),
            whole(flow, "/running"),
            decimal(flow, "/running_wtu", 0, ""),
        );
    }
    let all = pool.pointer("/state/active_flows").and_then(Value::as_u64);
    more(text, all.unwrap_or_default() as usize, FLOWS);
}

fn more(text: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(text, "... and {} more", all - shown);
    }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn word(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or("-").to_owned()
}

fn whole(value: &Value, pointer: &str) -> String {
    let number = value.pointer(pointer).filter(|value| value.is_number());
    number.map_or("-".to_owned(), Value::to_string)
}

fn decimal(value: &Value, pointer: &str, digits: usize, unit: &str) -> String {
    let number = value.pointer(pointer).and_then(Value::as_f64);
    number.map_or("-".to_owned(), |number| format!("{number:.digits$}{unit}"))
}

fn percent(value: &Value, pointer: &str) -> String {
    let share = value.pointer(pointer).and_then(Value::as_f64);
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn bytes(count: Option<f64>) -> String {
    let Some(count) = count else {
        return "-".to_owned();
    };
    [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
        .into_iter()
        .find(|(unit, _)| count >= *unit)
        .map_or(format!("{count:.0} B"), |(unit, name)| {
            format!("{:.1} {name}", count / unit)
        })
}

/// Names are visible ASCII, so that bytes are columns.
fn clipped(name: &str, columns: usize) -> String {
    match name.get(..columns) {
        Some(start) if name.len() > columns => {
            format!("{}~", start.get(..columns - 1).unwrap_or(start))
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn pool() -> Value {
        json!({"pool": "default", "policy": "planned", "state": {
            "saturation": {"cause": "load", "value": 0.424}, "queue_length": 12, "queue_bytes": 3_200_000, "bookings": 31,
            "active_flows": 40, "index_pairs": 1234, "index_bytes": 56_789, "peers": 1, "peer_silence_s": 0.12,
            "endpoints": [
                {"name": "quiet", "state": "ready", "bookings": 0, "prefilling": 0, "effective_load": 0, "room": 256,
                    "kv_use": 0.0, "queue_s": 0.0, "resident_tokens": 0, "metrics_age_s": null},
                {"name": "busy-with-a-name-that-is-too-long", "state": "quarantined", "bookings": 31, "prefilling": 2,
                    "effective_load": 35, "room": 256, "kv_use": 0.755, "queue_s": 0.25, "resident_tokens": 9000,
                    "metrics_age_s": 0.1},
            ],
            "bands": [{"band": 10, "waiting": 12, "waiting_bytes": 999, "waiting_wtu": 1000.4, "running": 31,
                "running_wtu": 5.0, "overloaded": true, "newest_first": false, "over_quota": true}],
            "flows": [{"band": 10, "flow": "acme", "waiting": 12, "running": 31, "running_wtu": 5.0, "over_quota": true}],
        }})
    }

    #[test]
    fn a_frame_shows_pool_endpoints_bands_flows_and_rates() {
        let rates = Rates {
            judged: 12.0,
            dispatched: 11.5,
            refused: BTreeMap::from([("queue_wait".to_owned(), 0.5)]),
            wtu: 340.0,
            wait_s: Some(0.1204),
            ..Rates::default()
        };
        let text = render("http://a:9090", &pool(), &rates);
        for part in [
            "pool default   policy planned   http://a:9090\n",
            "saturation     42 % (by load)   waiting 12 (3.2 MB)   running 31   flows 40\n",
            "index          1234 pairs, 56.8 kB   peers 1 (heard 0.1 s ago)\n",
            "12.0 asked   11.5 dispatched   0.5 refused  queue_wait 0.5   340 WTU",
            "wait 0.120 s   first token -",
            "busy-with-a-name-that-i~ quarantined       31       2   256      4  76 %  0.250 s       9000    0.1 s\n",
            "quiet                    ready              0       0   256      0   0 %  0.000 s          0        -\n",
            "10                 12      999 B         1000       31            5  overloaded, over quota\n",
            "acme                                      10       12       31            5  over quota\n",
            "... and 28 more\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.find("busy") < text.find("quiet"), "the busiest first");
    }

    #[test]
    fn what_a_listener_does_not_say_is_left_open() {
        let text = render("u", &json!({"pool": "p"}), &Rates::default());
        assert!(text.contains("saturation     - (unknown)"), "{text}");
        assert!(text.contains("nothing waits and nothing runs"), "{text}");
    }
}
