use inference_wire::route::Route;

use super::*;

const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";
const PLAIN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const LAST: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn sift(wanted: Wanted, frames: &[&[u8]]) -> (Vec<Bytes>, Meter) {
    let mut sieve = Sieve::new(Route::ChatCompletions, wanted);
    let mut meter = Meter::new();
    let mut out = Vec::new();
    for frame in frames {
        out.push(
            sieve
                .push(&Bytes::copy_from_slice(frame), &mut meter)
                .forward,
        );
    }
    out.push(sieve.finish(&mut meter).forward);
    (out, meter)
}

#[test]
fn each_wish_for_usage_gets_just_that() {
    let stream = [CHUNK, CHUNK, LAST, DONE].concat();
    for (wanted, expected) in [
        (Wanted::Nothing, [PLAIN, PLAIN, DONE].concat()),
        (Wanted::Final, [PLAIN, PLAIN, LAST, DONE].concat()),
        (Wanted::Running, stream.clone()),
    ] {
        // Whole, in events, and cut at every byte: the same bytes come out.
        let bytes = stream.as_bytes();
        let events: Vec<&[u8]> = [CHUNK, CHUNK, LAST, DONE]
            .iter()
            .map(|event| event.as_bytes())
            .collect();
        let mut ways = vec![
            vec![bytes],
            events,
            bytes.chunks(1).collect(),
            bytes.chunks(7).collect(),
        ];
        ways.extend((0..bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]));
        for frames in ways {
            let (out, meter) = sift(wanted, &frames);
            assert_eq!(
                out.concat(),
                expected.as_bytes(),
                "{wanted:?} {} frames",
                frames.len()
            );
            assert_eq!(meter.usage().expect("usage").output_tokens, 2);
        }
    }
}

#[test]
fn a_piece_that_needs_no_change_is_not_copied() {
    let mut sieve = Sieve::new(Route::ChatCompletions, Wanted::Running);
    let frame = Bytes::from([CHUNK, CHUNK].concat());
    let sifted = sieve.push(&frame, &mut Meter::new());
    assert_eq!(sifted.forward.as_ptr(), frame.as_ptr());
    assert_eq!(sifted.forward.len(), frame.len());
}

#[test]
fn what_comes_before_an_error_is_kept_and_the_error_is_not() {
    let error = "data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n";
    let mut sieve = Sieve::new(Route::ChatCompletions, Wanted::Nothing);
    let frame = Bytes::from([CHUNK, error].concat());
    let sifted = sieve.push(&frame, &mut Meter::new());
    assert_eq!(sifted.forward, PLAIN);
    let object = Bytes::from_static(br#"{"message":"m","code":500}"#);
    assert_eq!(
        sifted.failure,
        Some(StreamFailure::Engine {
            status: Some(500),
            object
        })
    );
}

#[test]
fn comments_are_no_data_and_pass() {
    let mut sieve = Sieve::new(Route::ChatCompletions, Wanted::Nothing);
    let frame = Bytes::from_static(b": ping\n\n");
    let sifted = sieve.push(&frame, &mut Meter::new());
    assert_eq!(
        (&sifted.forward, sifted.data, sifted.complete),
        (&frame, false, false)
    );
}

#[test]
fn the_last_report_and_the_end_complete_a_stream() {
    for (event, complete) in [(CHUNK, false), (LAST, true), (DONE, true)] {
        let mut sieve = Sieve::new(Route::ChatCompletions, Wanted::Nothing);
        let sifted = sieve.push(&Bytes::from(event), &mut Meter::new());
        assert_eq!((sifted.data, sifted.complete), (true, complete), "{event}");
    }
}

#[test]
fn data_of_several_lines_is_edited_too() {
    let event = "event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\ndata: \"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";
    let (out, meter) = sift(Wanted::Nothing, &[event.as_bytes()]);
    let out = String::from_utf8(out.concat()).expect("UTF-8");
    assert!(
        !out.contains("usage") && out.starts_with("event: x\n") && out.ends_with("\n\n"),
        "{out}"
    );
    assert_eq!(meter.usage().expect("usage").output_tokens, 1);
}
