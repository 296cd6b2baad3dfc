//! Strings as JSON.

use std::fmt;

/// Displays a string as a JSON string, quotes included.
pub(in crate::engine) struct Json<'a>(pub(in crate::engine) &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut rest = self.0;
        while let Some(at) = rest
            .bytes()
            .position(|b| b < 0x20 || b == b'"' || b == b'\\')
        {
            f.write_str(&rest[..at])?;
            match rest.as_bytes()[at] {
                b'\n' => f.write_str("\\n")?,
                b'\t' => f.write_str("\\t")?,
                b'\r' => f.write_str("\\r")?,
                b'"' => f.write_str("\\\"")?,
                b'\\' => f.write_str("\\\\")?,
                other => write!(f, "\\u{other:04x}")?,
            }
            rest = &rest[at + 1..];
        }
        f.write_str(rest)?;
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_written_as_serde_json_reads_them() {
        for text in ["", "plain", "a\"b\\c\nd\te\r\u{1}", "日本 😀 é", "\u{7f}"] {
            let read: String = serde_json::from_str(&Json(text).to_string()).expect("valid JSON");
            assert_eq!(read, text);
        }
    }
}
