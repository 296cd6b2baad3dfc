//! One line of an event stream: a field, or something to ignore.

/// The fields anybody here acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Data,
    Event,
    /// Comments, `id`, `retry`, and what the standard says to ignore.
    Other,
}

/// Splits a line at its first colon; one space after the colon is not part of the value.
pub(super) fn field(line: &[u8]) -> (Field, &[u8]) {
    let (field, rest) = if let Some(rest) = line.strip_prefix(b"data") {
        (Field::Data, rest)
    } else if let Some(rest) = line.strip_prefix(b"event") {
        (Field::Event, rest)
    } else {
        return (Field::Other, &[]);
    };
    match rest.split_first() {
        None => (field, rest),
        Some((b':', value)) => (field, value.strip_prefix(b" ").unwrap_or(value)),
        Some(_) => (Field::Other, &[]),
    }
}
