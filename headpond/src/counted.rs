//! A number and what it counts, as one writes it.

/// `1 seed`, `3 seeds`, `1 entry`, `3 entries`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    match (count, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_not_many() {
        for (count, thing, expected) in [
            (0, "request", "0 requests"),
            (1, "request", "1 request"),
            (2, "request", "2 requests"),
            (1, "entry", "1 entry"),
            (0, "entry", "0 entries"),
        ] {
            assert_eq!(counted(count, thing), expected);
        }
    }
}
