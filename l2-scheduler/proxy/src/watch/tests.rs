use super::*;
use crate::answer::{Code, Problem};

const FIRST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const ERROR: &str = "data: {\"error\":{\"message\":\"x\",\"code\":503}}\n\n";

#[test]
fn only_data_is_an_answer_and_only_the_first_can_be_a_failure() {
    for (bytes, expected) in [
        ("", Seen::Nothing),
        (": ping\n\n", Seen::Nothing),
        ("data: {\"choices\"", Seen::Nothing),
        ("data:\n\n", Seen::Nothing),
        (FIRST, Seen::Output),
        (ERROR, Seen::Error(Some(503))),
        (
            "data: {\"error\":{\"message\":\"x\",\"code\":\"bad\"}}\n\n",
            Seen::Error(None),
        ),
        (&format!("{FIRST}{ERROR}"), Seen::Output),
        (&format!(": ping\n\n{ERROR}"), Seen::Error(Some(503))),
        ("data: [DONE]\n\n", Seen::Output),
    ] {
        let mut watch = Watch::new(Route::ChatCompletions);
        assert_eq!(watch.see(bytes.as_bytes()), Ok(expected), "{bytes:?}");
    }
}

#[test]
fn a_responses_stream_that_only_announces_itself_has_said_nothing() {
    let announced =
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n";
    let output = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    let failed =
        "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"x\"}}}\n\n";
    let mut watch = Watch::new(Route::Responses);
    assert_eq!(watch.see(announced.as_bytes()), Ok(Seen::Nothing));
    assert_eq!(watch.see(output.as_bytes()), Ok(Seen::Output));
    let mut watch = Watch::new(Route::Responses);
    assert_eq!(watch.see(announced.as_bytes()), Ok(Seen::Nothing));
    assert!(matches!(watch.see(failed.as_bytes()), Ok(Seen::Error(_))));
}

#[test]
fn cut_anywhere_the_complete_events_and_the_rest_add_up() {
    let stream = format!(": ping\n\n{FIRST}{FIRST}data: [DONE]\n\n");
    for cut in 0..stream.len() {
        let mut watch = Watch::new(Route::ChatCompletions);
        watch.see(&stream.as_bytes()[..cut]).expect("a short line");
        let complete = &stream[..cut - watch.incomplete()];
        assert!(
            complete.is_empty() || complete.ends_with("\n\n"),
            "{cut}: {complete:?}"
        );
        watch.see(&stream.as_bytes()[cut..]).expect("a short line");
        assert_eq!(watch.incomplete(), 0);
        assert!(watch.is_complete());
        assert_eq!(watch.output_tokens(), 2);
    }
}

#[test]
fn a_line_without_end_is_an_error() {
    let mut watch = Watch::new(Route::ChatCompletions);
    let line = vec![b'x'; (1 << 20) + 1];
    assert!(watch.see(&line).is_err());
}

#[test]
fn usage_at_the_very_end_counts_without_a_blank_line() {
    let mut watch = Watch::new(Route::ChatCompletions);
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}\n";
    watch.see(FIRST.as_bytes()).expect("a short line");
    watch.see(usage.as_bytes()).expect("a short line");
    assert_eq!(watch.output_tokens(), 1);
    watch.finish();
    assert_eq!(watch.output_tokens(), 7);
}

#[test]
fn an_error_event_is_readable_in_its_family() {
    for (route, start) in [
        (Route::ChatCompletions, "data: {\"error\":{"),
        (Route::Completions, "data: {\"error\":{"),
        (Route::Messages, "event: error\ndata: {"),
        (Route::Responses, "event: response.failed\ndata: {"),
    ] {
        let event = Problem::new(Code::UpstreamError, "gone \"here\"").event(&route);
        let text = std::str::from_utf8(&event).expect("text");
        assert!(text.starts_with(start), "{text}");
        let mut reader = Watch::new(route);
        assert_eq!(reader.see(&event), Ok(Seen::Error(None)), "{text}");
        assert_eq!(reader.incomplete(), 0);
    }
}
