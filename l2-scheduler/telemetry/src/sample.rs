//! One line of the text exposition format, read in place. Knows the format, not the metrics. Pure.

use memchr::{memchr, memchr2, memchr3};

/// A sample line: name, label block and first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    pub name: &'a [u8],
    pub labels: Labels<'a>,
    pub value: f64,
}

/// The line is not a sample of the exposition format, or its value is no finite number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The text between the braces of a sample; empty when there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels<'a>(&'a [u8]);

/// The metric name of a line: everything before the labels or the value.
pub fn name(line: &[u8]) -> &[u8] {
    let end = memchr3(b'{', b' ', b'\t', line).unwrap_or(line.len());
    &line[..end]
}

impl<'a> Sample<'a> {
    /// Reads one line without its line end. A time stamp or exemplar after the value is ignored.
    pub fn parse(line: &'a [u8]) -> Result<Self, Malformed> {
        let name = name(line);
        if name.is_empty() {
            return Err(Malformed);
        }
        let rest = trim_start(&line[name.len()..]);
        let (labels, rest) = match rest.split_first() {
            Some((b'{', rest)) => {
                let end = block_end(rest).ok_or(Malformed)?;
                (Labels(&rest[..end]), &rest[end + 1..])
            }
            Some(_) | None => (Labels(&[]), rest),
        };
        Ok(Self {
            name,
            labels,
            value: number(rest)?,
        })
    }
}

impl<'a> Labels<'a> {
    /// The raw value of a label (escapes left as they are), or `None` if the sample does not carry it.
    pub fn get(self, key: &str) -> Result<Option<&'a [u8]>, Malformed> {
        for label in self.iter() {
            let (found, value) = label?;
            if found == key.as_bytes() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The labels in page order; the iteration ends at the first malformed one.
    pub fn iter(self) -> LabelIter<'a> {
        LabelIter { rest: self.0 }
    }
}

/// See [`Labels::iter`].
pub struct LabelIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for LabelIter<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rest = trim_start(self.rest);
        if self.rest.is_empty() {
            return None;
        }
        let label = self.label();
        if label.is_err() {
            self.rest = &[];
        }
        Some(label)
    }
}

impl<'a> LabelIter<'a> {
    fn label(&mut self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let equals = memchr(b'=', self.rest).ok_or(Malformed)?;
        let key = self.rest[..equals].trim_ascii();
        let quoted = trim_start(&self.rest[equals + 1..])
            .strip_prefix(b"\"")
            .ok_or(Malformed)?;
        let end = string_end(quoted).ok_or(Malformed)?;
        let after = trim_start(&quoted[end + 1..]);
        self.rest = match after.split_first() {
            Some((b',', rest)) => rest,
            None => after,
            Some(_) => return Err(Malformed),
        };
        Ok((key, &quoted[..end]))
    }
}

/// Index of the closing brace; braces inside quoted values do not count.
fn block_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'}', &text[at..])?;
        if text[at] == b'}' {
            return Some(at);
        }
        at += 1;
        at += string_end(&text[at..])? + 1;
    }
}

/// Index of the closing quote of a string whose opening quote is already passed.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

fn number(text: &[u8]) -> Result<f64, Malformed> {
    let text = trim_start(text);
    let end = text
        .iter()
        .position(|&byte| is_blank(byte))
        .unwrap_or(text.len());
    let value = std::str::from_utf8(&text[..end])
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    value.filter(|value| value.is_finite()).ok_or(Malformed)
}

fn trim_start(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|&&byte| is_blank(byte)).count();
    &text[blanks..]
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::{Malformed, Sample};

    fn check(line: &str, expected: Result<(&str, f64), Malformed>) {
        let found = Sample::parse(line.as_bytes()).map(|sample| (sample.name, sample.value));
        assert_eq!(
            found,
            expected.map(|(name, value)| (name.as_bytes(), value)),
            "{line}"
        );
    }

    #[test]
    fn samples_are_read_as_the_format_allows() {
        check("up 1", Ok(("up", 1.0)));
        check("up{} 1", Ok(("up", 1.0)));
        check("up  1.5e+03 1795985225000", Ok(("up", 1500.0)));
        check("up {a=\"b\"} -2", Ok(("up", -2.0)));
        check("up{a=\"b\",} 3\r", Ok(("up", 3.0)));
        check(
            "up{a=\"}\",b=\"\\\"}\"} 4 # {trace=\"x\"} 1",
            Ok(("up", 4.0)),
        );
    }

    #[test]
    fn what_is_no_finite_sample_is_malformed() {
        for line in [
            "",
            " ",
            "up",
            "up{",
            "up{a=\"b} 1",
            "up{a=\"b\"",
            "up{a=\"b\"}",
            "up NaN",
            "up +Inf",
            "up -Inf",
            "up 1e999",
            "up 4,0",
            "up{a=\"\\",
            "{a=\"b\"} 1",
        ] {
            check(line, Err(Malformed));
        }
    }

    #[test]
    fn labels_are_found_in_any_order() {
        let line = br#"m{ engine="3" , model="a\"b,c=\"d\"",empty="" } 1"#;
        let sample = Sample::parse(line).expect("a good line");
        assert_eq!(sample.labels.get("engine"), Ok(Some(b"3".as_slice())));
        assert_eq!(
            sample.labels.get("model"),
            Ok(Some(br#"a\"b,c=\"d\""#.as_slice()))
        );
        assert_eq!(sample.labels.get("empty"), Ok(Some(b"".as_slice())));
        assert_eq!(sample.labels.get("c"), Ok(None));
    }

    #[test]
    fn a_broken_label_does_not_hide_those_before_it() {
        let sample = Sample::parse(b"m{a=\"1\",b} 1").expect("the braces close");
        assert_eq!(sample.labels.get("a"), Ok(Some(b"1".as_slice())));
        assert_eq!(sample.labels.get("b"), Err(Malformed));
    }
}
