//! Server-sent events out of chunks of bytes. It does not open streams, decide about them or change their text.
//!
//! The reader looks at a stream beside the bytes that are forwarded: joined, the raw spans of its events are the stream.

mod field;

#[cfg(test)]
mod tests;

use std::ops::Range;

use memchr::memchr2;

use field::{Field, field};

/// The longest line accepted unless [`Reader::with_line_limit`] says otherwise.
pub const LINE_LIMIT: usize = 1 << 20;

/// An event may be as long as this many of its longest lines.
const LINES_PER_EVENT: usize = 4;

/// Splits a stream into events. Once its buffers have grown to the stream's events it allocates nothing.
#[derive(Debug)]
pub struct Reader {
    line_limit: usize,
    /// Bytes that are not yet reported, after those that are.
    buffer: Vec<u8>,
    /// Where the open event begins in `buffer`; what is before has been reported.
    start: usize,
    /// Where its open line begins.
    line: usize,
    /// How far the open line has been searched for its end.
    searched: usize,
    /// Offset of `start` in the stream.
    offset: u64,
    /// The last line ended with CR at the end of what had arrived: a following LF belongs to it.
    after_cr: bool,
    first_line: bool,
    open: Open,
    /// The data of an event with several data lines, joined.
    joined: Vec<u8>,
    failed: Option<SseError>,
}

/// What the lines of the open event have said. Spans are in the reader's buffer, relative to the event's start.
#[derive(Debug, Default)]
struct Open {
    name: Option<Range<usize>>,
    data: Data,
}

#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    Line(Range<usize>),
    Joined,
}

/// Everything up to and including a blank line.
///
/// A block that holds only comments is an event with empty data: its bytes want forwarding too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field.
    pub name: Option<&'a str>,
    /// The `data` lines, joined by line feeds.
    pub data: &'a [u8],
    /// All bytes of the block as they came.
    pub raw: &'a [u8],
    /// Offset of `raw` in the stream.
    pub offset: u64,
    /// Offset of `data` in `raw`, if the data is one line.
    pub data_at: Option<usize>,
}

/// Why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("a line is longer than {limit} bytes")]
    LineTooLong { limit: usize },
    #[error("an event is longer than {limit} bytes")]
    EventTooLong { limit: usize },
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    pub fn new() -> Self {
        Self::with_line_limit(LINE_LIMIT)
    }

    /// A reader that accepts lines up to `line_limit` bytes and events up to four times that.
    pub fn with_line_limit(line_limit: usize) -> Self {
        Self {
            line_limit,
            buffer: Vec::new(),
            start: 0,
            line: 0,
            searched: 0,
            offset: 0,
            after_cr: false,
            first_line: true,
            open: Open::default(),
            joined: Vec::new(),
            failed: None,
        }
    }

    /// Takes the next bytes of the stream. Read all events before pushing more: what is pushed is held.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.forget_reported();
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete event, or `None` until more is pushed. An error is final.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.begin_event();
        match self.read_lines() {
            Ok(true) => Ok(Some(self.take_event())),
            Ok(false) => Ok(None),
            Err(error) => {
                self.failed = Some(error);
                self.buffer = Vec::new();
                Err(error)
            }
        }
    }

    /// What a stream that has ended left behind without a closing blank line, if anything. Browsers drop it; its bytes
    /// still want forwarding, and a usage report that made it is worth reading.
    pub fn finish(&mut self) -> Option<Event<'_>> {
        if self.failed.is_some() || self.start == self.buffer.len() {
            return None;
        }
        self.begin_event();
        self.skip_rest_of_crlf();
        let rest = self.without_byte_order_mark(self.line..self.buffer.len());
        if !rest.is_empty() {
            self.take_line(rest);
        }
        self.line = self.buffer.len();
        self.searched = self.line;
        Some(self.take_event())
    }

    /// The bytes of an event that is not complete yet.
    pub fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn forget_reported(&mut self) {
        if self.start == 0 {
            return;
        }
        self.buffer.copy_within(self.start.., 0);
        self.buffer.truncate(self.buffer.len() - self.start);
        self.line -= self.start;
        self.searched -= self.start;
        self.start = 0;
    }

    /// Forgets the last reported event's fields, which had to live until here.
    fn begin_event(&mut self) {
        if self.line == self.start {
            self.open = Open::default();
            self.joined.clear();
        }
    }

    /// Reads lines until a blank one; whether there was one.
    fn read_lines(&mut self) -> Result<bool, SseError> {
        loop {
            self.skip_rest_of_crlf();
            let Some(found) = memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                self.check_limits(self.searched)?;
                return Ok(false);
            };
            let end = self.searched + found;
            self.check_limits(end)?;
            let line = self.without_byte_order_mark(self.line..end);
            self.after_cr = self.buffer[end] == b'\r';
            self.line = end + 1;
            self.searched = self.line;
            self.skip_rest_of_crlf();
            if line.is_empty() {
                return Ok(true);
            }
            self.take_line(line);
        }
    }

    fn skip_rest_of_crlf(&mut self) {
        if !self.after_cr || self.line == self.buffer.len() {
            return;
        }
        self.after_cr = false;
        if self.buffer[self.line] == b'\n' {
            self.line += 1;
            self.searched = self.line;
        }
    }

    fn check_limits(&self, end: usize) -> Result<(), SseError> {
        let limit = self.line_limit;
        if end - self.line > limit {
            return Err(SseError::LineTooLong { limit });
        }
        let limit = limit * LINES_PER_EVENT;
        if end - self.start > limit {
            return Err(SseError::EventTooLong { limit });
        }
        Ok(())
    }

    /// A stream may begin with a byte order mark, which is not part of its first line.
    fn without_byte_order_mark(&mut self, line: Range<usize>) -> Range<usize> {
        let first = std::mem::take(&mut self.first_line);
        if first && self.buffer[line.clone()].starts_with(b"\xEF\xBB\xBF") {
            return line.start + 3..line.end;
        }
        line
    }

    fn take_line(&mut self, line: Range<usize>) {
        let (field, value) = field(&self.buffer[line.clone()]);
        let value_start = line.end - value.len();
        let span = value_start - self.start..line.end - self.start;
        match field {
            Field::Data => self.take_data(span),
            Field::Event => self.open.name = Some(span),
            Field::Other => {}
        }
    }

    fn take_data(&mut self, span: Range<usize>) {
        let absolute = |span: &Range<usize>| self.start + span.start..self.start + span.end;
        match &self.open.data {
            Data::None => {
                self.open.data = Data::Line(span);
                return;
            }
            Data::Line(first) => {
                self.joined.clear();
                self.joined.extend_from_slice(&self.buffer[absolute(first)]);
            }
            Data::Joined => {}
        }
        self.joined.push(b'\n');
        self.joined.extend_from_slice(&self.buffer[absolute(&span)]);
        self.open.data = Data::Joined;
    }

    fn take_event(&mut self) -> Event<'_> {
        let raw = self.start..self.line;
        let offset = self.offset;
        self.start = raw.end;
        self.offset += raw.len() as u64;
        let raw = &self.buffer[raw];
        let (data, data_at) = match &self.open.data {
            Data::None => (&[][..], None),
            Data::Line(span) => (&raw[span.clone()], Some(span.start)),
            Data::Joined => (self.joined.as_slice(), None),
        };
        let name = self.open.name.clone();
        Event {
            name: name
                .and_then(|span| std::str::from_utf8(&raw[span]).ok())
                .filter(|name| !name.is_empty()),
            data,
            raw,
            offset,
            data_at,
        }
    }
}

impl Event<'_> {
    /// Appends the event's bytes without a span of its data. Other lines keep their bytes; data of several lines is
    /// written again line by line.
    pub fn write_without(&self, cut: Range<usize>, out: &mut Vec<u8>) {
        if let Some(at) = self.data_at {
            out.extend_from_slice(&self.raw[..at + cut.start]);
            out.extend_from_slice(&self.raw[at + cut.end..]);
            return;
        }
        let mut data = Some([&self.data[..cut.start], &self.data[cut.end..]].concat());
        for line in lines(self.raw) {
            let content = line.strip_suffix(b"\n").unwrap_or(line);
            let content = content.strip_suffix(b"\r").unwrap_or(content);
            if field(content).0 != Field::Data {
                out.extend_from_slice(line);
                continue;
            }
            for part in data
                .take()
                .iter()
                .flat_map(|data| data.split(|&byte| byte == b'\n'))
            {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(part);
                out.push(b'\n');
            }
        }
    }
}

/// Lines with their ends.
fn lines(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = match memchr2(b'\n', b'\r', rest) {
            Some(at) if rest[at..].starts_with(b"\r\n") => at + 2,
            Some(at) => at + 1,
            None => rest.len(),
        };
        let (line, after) = rest.split_at(end);
        rest = after;
        (!line.is_empty()).then_some(line)
    })
}
