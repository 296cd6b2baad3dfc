use super::*;

fn id(n: u8) -> RequestId {
    RequestId::new(1_700_000_000_000, [n; 10])
}

fn record(n: u8, outcome: &'static str) -> Record {
    Record {
        id: id(n),
        attempt: AttemptId::new(0, [n; 10]),
        tenant: "t".parse().expect("a name"),
        fairness: "f".parse().expect("a name"),
        band: 0,
        route: "completions",
        model: "m".into(),
        stream: false,
        prompt_tokens: 1,
        output_bound: 1,
        prefix_blocks: 0,
        arrived_unix_ms: 0,
        wait_limit: None,
        uncached_wtu: 1.0,
        attempts: Vec::new(),
        refusal: None,
        outcome,
        reason: None,
        duration_ms: 0.0,
    }
}

fn outcomes(records: &Records, n: u8) -> Vec<String> {
    let Some(json) = records.json(&id(n)) else {
        return Vec::new();
    };
    json["calls"]
        .as_array()
        .expect("calls is an array")
        .iter()
        .map(|call| call["outcome"].as_str().expect("a string").to_owned())
        .collect()
}

#[test]
fn all_calls_of_a_request_are_told_until_the_ring_has_turned() {
    let records = Records::new(3);
    records.push(record(1, "refused"));
    records.push(record(2, "completed"));
    records.push(record(1, "completed"));
    assert_eq!(outcomes(&records, 1), ["refused", "completed"]);
    records.push(record(3, "completed"));
    assert_eq!(outcomes(&records, 1), ["completed"]);
    records.push(record(3, "failed"));
    records.push(record(3, "failed"));
    assert!(outcomes(&records, 1).is_empty());
    assert!(outcomes(&records, 2).is_empty());
    assert_eq!(outcomes(&records, 3), ["completed", "failed", "failed"]);
    assert_eq!(
        records.lock().of.len(),
        1,
        "nothing is kept of what has left the ring"
    );
}

#[test]
fn work_is_known_while_a_call_is_open_and_as_long_as_its_record_is_kept() {
    let records = Records::new(1);
    let attempt = |n| AttemptId::new(0, [n; 10]);
    assert_eq!(records.work(&attempt(1)), None);
    records.begin(attempt(1));
    records.begin(attempt(2));
    records.note_work(attempt(2), Work::Prefill);
    records.push(record(2, "client_closed"));
    assert_eq!(records.work(&attempt(2)), Some(Work::Prefill));
    records.push(record(3, "completed"));
    assert_eq!(records.work(&attempt(2)), None, "it left the ring");
    records.note_work(attempt(2), Work::None);
    assert_eq!(records.work(&attempt(2)), None, "and does not come back");
    assert_eq!(records.work(&attempt(1)), Some(Work::None), "still open");
}
