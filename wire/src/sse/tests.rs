use proptest::prelude::*;

use super::*;

/// An event that owns its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    name: Option<String>,
    data: Vec<u8>,
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        Self {
            name: event.name.map(str::to_owned),
            data: event.data.to_vec(),
        }
    }
}

/// Reads chunks; checks that the raw spans are the stream. The last event may lack its blank line.
fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Seen> {
    let mut reader = Reader::new();
    let mut seen = Vec::new();
    let (mut stream, mut raw) = (Vec::new(), Vec::new());
    let mut take = |event: Event<'_>| {
        assert_eq!(event.offset, raw.len() as u64);
        if let Some(at) = event.data_at {
            assert_eq!(&event.raw[at..at + event.data.len()], event.data);
        }
        // A stream may end with the LF of a CRLF whose CR has ended the last event: bytes, but no event.
        if event.raw != b"\n" || !raw.ends_with(b"\r") {
            seen.push(Seen::from(event));
        }
        raw.extend_from_slice(event.raw);
    };
    for chunk in chunks {
        stream.extend_from_slice(chunk);
        reader.push(chunk);
        while let Some(event) = reader.next_event().expect("short lines") {
            take(event);
        }
    }
    if let Some(event) = reader.finish() {
        take(event);
    }
    assert_eq!(reader.finish(), None);
    assert_eq!(raw, stream);
    seen
}

/// The reference: the whole stream at once, line ends made equal, blocks split at blank lines.
fn reference(stream: &[u8]) -> Vec<Seen> {
    let text = String::from_utf8_lossy(stream)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut seen = Vec::new();
    if stream.is_empty() {
        return seen;
    }
    let mut block: Option<Vec<&str>> = None;
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        if line.is_empty() {
            seen.push(reference_event(&block.take().unwrap_or_default()));
        } else {
            block.get_or_insert_default().push(line);
        }
    }
    seen.extend(block.map(|lines| reference_event(&lines)));
    seen
}

fn reference_event(lines: &[&str]) -> Seen {
    let mut name = None;
    let mut data = Vec::new();
    for line in lines {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => data.push(value),
            "event" => name = Some(value.to_owned()).filter(|name| !name.is_empty()),
            _ => {}
        }
    }
    Seen {
        name,
        data: data.join("\n").into_bytes(),
    }
}

fn stream() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "data",
        "data:",
        "data: ",
        "event: ",
        "event",
        "id: 7",
        ":",
        " ",
        "x",
        "é",
        "😀",
        "{\"a\":\"b\"}",
        "[DONE]",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "\u{feff}",
        "retry: 3",
        "datax: y",
    ]);
    prop::collection::vec(fragment, 0..40).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_stream_in_any_pieces_reads_as_a_whole(
        stream in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let stream = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let seen = read(cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]));
        prop_assert_eq!(seen, reference(stream));
    }

    #[test]
    fn bytes_that_are_no_stream_do_no_harm(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6)) {
        read(chunks.iter().map(Vec::as_slice));
    }
}

#[test]
fn a_stream_may_be_cut_at_every_byte() {
    for (name, stream) in [
        (
            "chat",
            &include_bytes!("../../tests/fixtures/vllm-0.32.0/chat-stream-usage.body")[..],
        ),
        (
            "messages",
            include_bytes!("../../tests/fixtures/vllm-0.32.0/messages-stream.body"),
        ),
        (
            "characters",
            "data: é😀日\u{10348}\n\nevent: x\rdata: 😀\r\rdata: a\r\ndata: 😀b\r\n\r\n: c\n\n"
                .as_bytes(),
        ),
    ] {
        let whole = read([stream]);
        assert!(whole.len() > 2, "{name}");
        for cut in 0..=stream.len() {
            let (left, right) = stream.split_at(cut);
            assert_eq!(read([left, right]), whole, "{name} cut at {cut}");
        }
        assert_eq!(read(stream.chunks(1)), whole, "{name} byte by byte");
    }
}

#[test]
fn fields_follow_the_standard() {
    for (stream, expected) in [
        ("data: a\n\n", &[(None, "a")][..]),
        ("data:a\n\n", &[(None, "a")]),
        ("data:  a\n\n", &[(None, " a")]),
        ("data\n\n", &[(None, "")]),
        ("data: a\ndata: b\n\n", &[(None, "a\nb")]),
        ("data\ndata\n\n", &[(None, "\n")]),
        ("data: a\n: note\nid: 1\ndata: b\n\n", &[(None, "a\nb")]),
        (
            "event: e\ndata: a\n\ndata: b\n\n",
            &[(Some("e"), "a"), (None, "b")],
        ),
        ("event: d\nevent: e\ndata: a\n\n", &[(Some("e"), "a")]),
        ("event:\ndata: a\n\n", &[(None, "a")]),
        ("Data: a\n dataset: a\ndataset: b\n\n", &[(None, "")]),
        (": keep-alive\n\ndata: a\n\n", &[(None, ""), (None, "a")]),
        (
            "\u{feff}data: a\n\n\u{feff}data: b\n\n",
            &[(None, "a"), (None, "")],
        ),
        ("data: a\r\rdata: b\r\n\r\n", &[(None, "a"), (None, "b")]),
        ("data: a\n\n\n", &[(None, "a"), (None, "")]),
        ("data: a\n\ndata: cut", &[(None, "a"), (None, "cut")]),
    ] {
        let expected: Vec<Seen> = expected
            .iter()
            .map(|&(name, data)| Seen {
                name: name.map(str::to_owned),
                data: data.as_bytes().to_vec(),
            })
            .collect();
        assert_eq!(read([stream.as_bytes()]), expected, "{stream:?}");
    }
}

#[test]
fn an_event_that_ends_with_cr_does_not_wait_for_lf() {
    let mut reader = Reader::new();
    reader.push(b"data: a\r\n\r");
    assert_eq!(
        reader.next_event().map(|event| event.map(Seen::from)),
        Ok(Some(seen("a")))
    );
    reader.push(b"\ndata: b\n\n");
    assert_eq!(
        reader.next_event().map(|event| event.map(Seen::from)),
        Ok(Some(seen("b")))
    );
    assert_eq!(reader.next_event(), Ok(None));
}

#[test]
fn finishing_right_after_an_event_does_not_mix_the_two() {
    let mut reader = Reader::new();
    reader.push(b"event: x\ndata: a\n\ndata: b");
    assert!(reader.next_event().is_ok_and(|event| event.is_some()));
    assert_eq!(reader.pending(), b"data: b");
    assert_eq!(reader.finish().map(Seen::from), Some(seen("b")));
}

#[test]
fn long_lines_and_long_events_are_errors_that_stay() {
    let line_too_long = SseError::LineTooLong { limit: 16 };
    let event_too_long = SseError::EventTooLong { limit: 64 };
    for (chunks, expected) in [
        (&["data: 0123456789\n\n"][..], None),
        (&["data: 0123456789A\n\n"], Some(line_too_long)),
        (&["data: 01234", "56789A"], Some(line_too_long)),
        (&["data: 0123456789\n"; 3], None),
        (&["data: 0123456789\n"; 4], Some(event_too_long)),
        (&[": 0123456789\n"; 6], Some(event_too_long)),
    ] {
        let mut reader = Reader::with_line_limit(16);
        let mut outcome = None;
        for chunk in chunks {
            reader.push(chunk.as_bytes());
            while let Some(event) = reader.next_event().transpose() {
                if let Err(error) = event {
                    outcome = Some(error);
                    break;
                }
            }
        }
        assert_eq!(outcome, expected, "{chunks:?}");
        if let Some(error) = expected {
            reader.push(b"data: fine\n\n");
            assert_eq!(reader.next_event(), Err(error));
            assert_eq!(reader.finish(), None);
        }
    }
}

#[test]
fn data_is_cut_without_touching_other_bytes() {
    for (stream, cut, expected) in [
        (
            ": c\nid: 1\nevent: e\ndata: {\"a\":1,\"b\":2}\n\n",
            6..12,
            ": c\nid: 1\nevent: e\ndata: {\"a\":1}\n\n",
        ),
        ("data:abc\r\n\r\n", 0..1, "data:bc\r\n\r\n"),
        (
            "id: 1\ndata: ab\n: c\ndata: cd\n\n",
            1..2,
            "id: 1\ndata: a\ndata: cd\n: c\n\n",
        ),
        (
            "id: 1\rdata: ab\r: c\rdata: cd\r\r",
            1..4,
            "id: 1\rdata: ad\n: c\r\r",
        ),
    ] {
        let mut reader = Reader::new();
        reader.push(stream.as_bytes());
        let event = reader
            .next_event()
            .expect("short lines")
            .expect("one event");
        let mut out = Vec::new();
        event.write_without(cut, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

fn seen(data: &str) -> Seen {
    Seen {
        name: None,
        data: data.as_bytes().to_vec(),
    }
}
