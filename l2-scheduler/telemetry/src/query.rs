//! Which page to ask an endpoint for: the filtered one where the engine can filter, else the full one. Pure.
//!
//! The page is rendered by the thread that also writes the engine's tokens, and a filtered one costs it a fifth. Only
//! the mounted application behind the path with a slash filters; a registry shared by several processes cannot and
//! answers with an empty page.

use http::Uri;

use crate::page::{FILTER, Page};

/// What is asked of an endpoint, and what is remembered of its answers.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    filtered: Uri,
    full: Uri,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Filtering works, or was not tried yet.
    Filtered,
    /// The filtered page was of no use; the full one is tried in its place.
    Trying,
    /// Only the full page is of use.
    Full,
}

/// What an answer means for the scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Take the page.
    Use,
    /// Ask again at once; [`Query::uri`] names another page.
    Again,
    /// The endpoint has no page of use.
    Useless,
}

impl Query {
    /// `path` is the path of the full page, usually `/metrics`.
    pub(crate) fn new(path: &str) -> Self {
        let path = path.trim_end_matches('/');
        let names: Vec<String> = FILTER
            .iter()
            .map(|name| format!("name%5B%5D={name}"))
            .collect();
        let uri = |text: String| {
            text.parse()
                .expect("a checked path and plain names make a URI")
        };
        Self {
            filtered: uri(format!("{path}/?{}", names.join("&"))),
            full: uri(if path.is_empty() {
                "/".to_owned()
            } else {
                path.to_owned()
            }),
            state: State::Filtered,
        }
    }

    pub(crate) fn uri(&self) -> &Uri {
        match self.state {
            State::Filtered => &self.filtered,
            State::Trying | State::Full => &self.full,
        }
    }

    /// Takes in an answer: the page of a 200, `None` for any other status.
    pub(crate) fn answered(&mut self, page: Option<&Page>) -> Verdict {
        let useful = page.is_some_and(Page::has_load);
        let (state, verdict) = match (self.state, useful) {
            (State::Filtered, true) => (State::Filtered, Verdict::Use),
            (State::Filtered, false) => (State::Trying, Verdict::Again),
            (State::Trying | State::Full, true) => (State::Full, Verdict::Use),
            // An engine that has nothing to say yet may still learn to filter.
            (State::Trying | State::Full, false) => (State::Filtered, Verdict::Useless),
        };
        self.state = state;
        verdict
    }

    /// The engine restarted or could not be reached: another version may answer next.
    pub(crate) fn forget(&mut self) {
        self.state = State::Filtered;
    }
}

#[cfg(test)]
mod tests {
    use super::{Query, Verdict};
    use crate::page::Page;

    const LOAD: &[u8] = b"vllm:num_requests_running 1\n";

    /// Answers (`load`, `empty`, `404`, `restart`) against the pages asked for and the verdicts.
    fn check(answers: &[&str], expected: &[&str]) {
        let mut query = Query::new("/metrics");
        let mut seen = Vec::new();
        for &answer in answers {
            let asked = if query.uri().query().is_some() {
                "filtered"
            } else {
                "full"
            };
            let verdict = match answer {
                "load" => query.answered(Some(&Page::parse(LOAD))),
                "empty" => query.answered(Some(&Page::default())),
                "404" => query.answered(None),
                _ => {
                    query.forget();
                    continue;
                }
            };
            seen.push(format!("{asked} {verdict:?}"));
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_filtered_page_is_preferred_and_the_full_one_remembered_until_a_restart() {
        check(&["load", "load"], &["filtered Use", "filtered Use"]);
        check(
            &["empty", "load", "load"],
            &["filtered Again", "full Use", "full Use"],
        );
        check(
            &["404", "load", "load"],
            &["filtered Again", "full Use", "full Use"],
        );
        check(
            &["404", "404", "load"],
            &["filtered Again", "full Useless", "filtered Use"],
        );
        check(
            &["empty", "load", "restart", "empty", "load"],
            &["filtered Again", "full Use", "filtered Again", "full Use"],
        );
    }

    #[test]
    fn the_filter_goes_to_the_path_with_a_slash() {
        for path in ["/metrics", "/metrics/"] {
            let mut query = Query::new(path);
            let uri = query.uri().to_string();
            assert!(
                uri.starts_with("/metrics/?name%5B%5D=vllm:num_requests_running&name%5B%5D="),
                "{uri}"
            );
            assert_eq!(query.answered(None), Verdict::Again);
            assert_eq!(query.uri(), "/metrics");
        }
    }
}
