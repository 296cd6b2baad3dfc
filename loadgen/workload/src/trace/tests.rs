use std::time::Duration;

use super::{Embedded, Trace};

fn check(text: &str, expected: &str) {
    let found = match Trace::parse(text) {
        Ok(trace) => trace
            .requests()
            .iter()
            .map(|request| {
                let blocks: Vec<String> = request
                    .prompt
                    .blocks()
                    .map(|(block, tokens)| format!("{}:{tokens}", block.0))
                    .collect();
                format!(
                    "{:?} {} -> {}",
                    request.at,
                    blocks.join(" "),
                    request.output_tokens
                )
            })
            .collect::<Vec<_>>()
            .join(" | "),
        Err(error) => error.to_string(),
    };
    assert_eq!(found, expected, "{text:?}");
}

#[test]
fn lines_are_requests_and_the_last_block_may_be_partial() {
    check("", "");
    check("#t_ms\tin\tout\tblocks\n0\t512\t9\t3\n", "0ns 3:512 -> 9");
    check("5\t1500\t0\t0 7-8", "5ms 0:512 7:512 8:476 -> 0");
    check(
        "5\t1\t2\t0\r\n\n6\t513\t2\t0-1",
        "5ms 0:1 -> 2 | 6ms 0:512 1:1 -> 2",
    );
}

#[test]
fn a_bad_line_is_named_with_what_is_wrong() {
    check(
        "0\t1\t1\t0\n0\t1\t1",
        "line 2: 3 columns in place of 4 (t_ms, input_tokens, output_tokens, block_ids, separated by tabs)",
    );
    check(
        "x\t1\t1\t0",
        "line 1: t_ms \"x\" is not a whole number of at most 315360000000",
    );
    check(
        "0\t-1\t1\t0",
        "line 1: input_tokens \"-1\" is not a whole number of at most 16777216",
    );
    check(
        "0\t1\t+1\t0",
        "line 1: output_tokens \"+1\" is not a whole number of at most 16777216",
    );
    check(
        "0\t99999999999999999999\t1\t0",
        "line 1: input_tokens \"99999999999999999999\" is not a whole number of at most 16777216",
    );
    check("0\t0\t1\t", "line 1: a request without input tokens");
    check(
        "9\t1\t1\t0\n8\t1\t1\t0",
        "line 2: its time is before that of the line above; sort the trace by time",
    );
    check(
        "0\t1024\t1\t9-8",
        "line 1: block run \"9-8\" goes backwards",
    );
    check(
        "0\t513\t1\t4",
        "line 1: 1 blocks where 513 input tokens make 2 blocks of 512",
    );
    check(
        "0\t513\t1\t0-4294967295",
        "line 1: 4294967296 blocks where 513 input tokens make 2 blocks of 512",
    );
    check(
        "0\t1024\t1\t0 5\n0\t1024\t1\t1 5",
        "line 2: block 5 follows another block than before; an id stands for everything before it, too",
    );
}

#[test]
fn a_trace_without_blocks_shares_nothing() {
    check(
        "5\t1500\t7\n6\t512\t8",
        "5ms 4611686018427387904:512 4611686018427387905:512 4611686018427387906:476 -> 7 \
         | 6ms 4611686018427453440:512 -> 8",
    );
    check(
        "5\t1500\t7\n6\t512\t8\t0",
        "line 2: 4 columns in place of 3 (t_ms, input_tokens, output_tokens, separated by tabs, as above)",
    );
    check(
        "5\t1500",
        "line 1: 2 columns in place of 3 or 4 (t_ms, input_tokens, output_tokens and perhaps block_ids, separated by tabs; a CSV begins with TIMESTAMP,ContextTokens,GeneratedTokens)",
    );
}

#[test]
fn mooncakes_own_lines_are_read() {
    check(
        "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 7]}\n\n\
         {\"timestamp\": 8, \"input_length\": 3, \"output_length\": 2, \"hash_ids\": [0], \"note\": {}}",
        "5ms 0:512 7:88 -> 9 | 8ms 0:3 -> 2",
    );
    let wrong = |object: &str, expected: &str| check(object, &format!("line 1: {expected}"));
    let like = "a line is an object like {\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \
                \"hash_ids\": [46, 47]}";
    wrong(
        "{\"timestamp\": 5, \"input_length\": 600}",
        &format!("column 37: missing field `output_length`; {like}"),
    );
    wrong(
        "{\"timestamp\": -5, \"input_length\": 600, \"output_length\": 9}",
        &format!("column 16: invalid value: integer `-5`, expected u64; {like}"),
    );
    wrong(
        "{\"timestamp\": 5, \"input_length\": 16777217, \"output_length\": 9, \"hash_ids\": []}",
        "input_length \"16777217\" is not a whole number of at most 16777216",
    );
    wrong(
        "{\"timestamp\": 5, \"input_length\": 9, \"output_length\": 9, \"hash_ids\": []}",
        "0 blocks where 9 input tokens make 1 blocks of 512",
    );
}

#[test]
fn azures_own_lines_are_read_from_the_first_date_on() {
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens";
    check(
        &format!(
            "\u{feff}{head}\r\n2023-12-31 23:59:59.5000000,600,10\r\n2024-01-01 00:00:00.7500001,3,2\r\n\
             2024-02-29 00:00:00+00:00,1,0\r\n"
        ),
        "0ns 4611686018427387904:512 4611686018427387905:88 -> 10 | 1.2500001s 4611686018427453440:3 -> 2 \
         | 5097600.5s 4611686018427518976:1 -> 0",
    );
    let wrong = |line: &str, expected: &str| {
        check(
            &format!("{head}\n2024-01-01 00:00:01,1,1\n{line}"),
            &format!("line 3: {expected}"),
        );
    };
    for date in [
        "2023-02-29 00:00:00",
        "2023-00-01 00:00:00",
        "2023-01-01 24:00:00",
        "2023-01-01T00:00:00",
        "2023-01-01 00:00:00.1234567890",
        "2023-01-01 00:00:00.",
        "2023-1-1 00:00:00",
        "2023-01-01-01 00:00:00",
        "yesterday",
        "",
    ] {
        wrong(
            &format!("{date},1,1"),
            &format!(
                "TIMESTAMP {date:?} is not like 2023-11-16 18:15:46.6805900, with or without +00:00 behind it"
            ),
        );
    }
    wrong(
        "2024-01-01 00:00:02,1",
        "2 columns in place of 3 (TIMESTAMP, ContextTokens, GeneratedTokens, separated by commas)",
    );
    wrong(
        "2024-01-01 00:00:02,1.5,1",
        "ContextTokens \"1.5\" is not a whole number of at most 16777216",
    );
    wrong("2024-01-01 00:00:02,0,1", "a request without input tokens");
    wrong(
        "2024-01-01 00:00:00.5,1,1",
        "its time is before that of the line above; sort the trace by time",
    );
}

#[test]
fn the_built_in_traces_are_what_their_page_says() {
    for (trace, requests, seconds) in [
        (Embedded::MooncakeConversation, 12_031, 3_537),
        (Embedded::MooncakeSynthetic, 3_993, 1_022),
    ] {
        assert_eq!(trace.name().parse(), Ok(trace));
        let loaded = trace.load();
        assert_eq!(loaded.requests().len(), requests);
        assert_eq!(loaded.duration().as_secs_f64().round() as u64, seconds);
    }
    assert!("mooncake".parse::<Embedded>().is_err());
}

#[test]
fn lengths_of_the_built_in_traces_are_as_published() {
    for (trace, input, output) in [
        (
            Embedded::MooncakeConversation,
            [6_909, 27_367, 85_401, 126_195],
            [350, 597, 1_120, 2_000],
        ),
        (
            Embedded::MooncakeSynthetic,
            [11_587, 38_615, 66_456, 191_378],
            [69, 389, 768, 893],
        ),
    ] {
        let loaded = trace.load();
        let inputs = loaded
            .requests()
            .iter()
            .map(|request| request.prompt.tokens());
        assert_percentiles(inputs.collect(), input);
        assert_percentiles(
            loaded
                .requests()
                .iter()
                .map(|request| request.output_tokens)
                .collect(),
            output,
        );
    }
}

/// Within one part in a hundred: how a percentile falls between two values is a convention.
fn assert_percentiles(mut values: Vec<u32>, expected: [u32; 4]) {
    values.sort_unstable();
    for (percent, expected) in [50, 90, 99, 100].into_iter().zip(expected) {
        let found = values[(values.len() - 1) * percent / 100];
        assert!(
            found.abs_diff(expected) <= expected / 100,
            "p{percent}: {found} for {expected}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([0-9]{0,6}[\t ,#x-]{0,2}){0,12}\n?") {
        let _ = Trace::parse(&text);
    }

    #[test]
    fn any_table_is_read_or_refused(text in "([0-9]{0,4}[-: .,]{0,2}){0,12}\n?") {
        let _ = Trace::parse(&format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{text}"));
    }

    #[test]
    fn any_object_is_read_or_refused(text in "\\{(\"(timestamp|input_length|output_length|hash_ids)\":[0-9\\[\\],]{0,6},?){0,5}\\}") {
        let _ = Trace::parse(&text);
    }

    #[test]
    fn what_is_written_comes_back(rows in proptest::collection::vec((0_u64..5_000, 1_u32..3_000, 0_u32..100), 0..20)) {
        let mut at = 0;
        let mut next_block = 0;
        let mut lines = Vec::new();
        for &(gap, input, output) in &rows {
            at += gap;
            let blocks = u64::from(input.div_ceil(512));
            lines.push(format!("{at}\t{input}\t{output}\t{next_block}-{}", next_block + blocks - 1));
            next_block += blocks;
        }
        let text = lines.join("\n");
        let trace = Trace::parse(&text).expect("well formed");
        proptest::prop_assert_eq!(trace.duration(), Duration::from_millis(if rows.is_empty() { 0 } else { at }));
        let found: Vec<_> = trace.requests().iter().map(|r| (r.prompt.tokens(), r.output_tokens)).collect();
        let expected: Vec<_> = rows.iter().map(|&(_, input, output)| (input, output)).collect();
        proptest::prop_assert_eq!(found, expected);
    }
}
