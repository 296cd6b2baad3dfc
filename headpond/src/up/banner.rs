//! What a person reads first.

use std::fmt::Write as _;

use governance_proxy::config::SecretSource;

use crate::data::DataDir;
use crate::ready::{Ready, ReadySecret, ReadyTenant};
use crate::silent;

/// Keys named on the screen; the ready file has all.
const MOST_KEYS: usize = 24;

/// Whose keys the tenants have. Only those made for a first try are shown: what is printed may end in a log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Made,
    Given,
}

/// What serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Engines {
    Real,
    Simulated,
    /// Simulated, since the file names no endpoints and nobody said that this is meant.
    Forgotten,
}

pub(super) struct Screen<'a> {
    pub(super) ready: &'a Ready,
    pub(super) engines: Engines,
    /// The endpoints that have not answered anything yet.
    pub(super) silent: &'a [String],
    pub(super) data: &'a DataDir,
    /// Whether the data directory outlives the process.
    pub(super) kept: bool,
    pub(super) keys: Keys,
    /// The file that opens the admin API, as a shell reads it, if anything does.
    pub(super) token: Option<String>,
}

/// Where the admin token is, for a command that reads it from a file.
pub(super) fn token_file(source: &SecretSource) -> String {
    match source {
        SecretSource::File(path) => format!("'{}'", path.display()),
        SecretSource::Env(name) => format!("<(printenv {name})"),
    }
}

impl Screen<'_> {
    pub(super) fn text(&self) -> String {
        let Ready { url, admin_url, .. } = self.ready;
        let ledger = self.data.file("");
        let mut lines = vec![
            format!("Headpond serves on {url}, admin on {admin_url}"),
            self.engines(),
            format!("  models    {}", self.ready.models.join(", ")),
            format!("  tenants   {}", self.tenants()),
            format!(
                "  ledger    {}{}",
                ledger.display(),
                if self.kept {
                    ""
                } else {
                    "  (ends with this process; --data-dir keeps it)"
                }
            ),
        ];
        if let Some(tenant) = self.ready.tenants.first() {
            lines.push(self.curl(tenant));
        }
        lines.push(format!("\nThen:\n  headpond top --admin-url {admin_url}                      what the pool is doing\n  headpond why <x-request-id> --admin-url {admin_url}       why it ran there, and what it cost\n  curl {admin_url}/metrics"));
        if let Some(token) = &self.token {
            lines.push(format!(
                "  headpond key list --admin-url {admin_url} --admin-token-file {token}"
            ));
        }
        if let (true, Some(endpoint)) =
            (self.engines != Engines::Real, self.ready.endpoints.first())
        {
            lines.push(format!("\nBreak something:\n  curl -X POST {endpoint}/sim/fault -d '{{\"fault\":\"hang-before-first-token\"}}'\n  curl -X POST {endpoint}/sim/fault -d '{{\"fault\":\"clear\"}}'"));
        }
        lines.join("\n")
    }

    fn engines(&self) -> String {
        let endpoints = &self.ready.endpoints;
        let (count, urls) = (endpoints.len(), endpoints.join(" "));
        let slow = if count > 1 {
            ", the last of them slow"
        } else {
            ""
        };
        match self.engines {
            Engines::Real => match self.silent {
                [] => format!("  engines   {urls}"),
                silent => format!(
                    "  engines   {urls}\n            {}",
                    silent::sentence(silent)
                ),
            },
            Engines::Simulated => format!("  engines   {count} simulated{slow}: {urls}"),
            Engines::Forgotten => format!(
                "  engines   NO ENDPOINTS CONFIGURED: {count} simulated engines{slow}: {urls}\n            They answer with made-up words. Name real ones in scheduling.endpoints or with --endpoint;\n            --engines {count} says that simulated ones are meant."
            ),
        }
    }

    /// `acme (web/main, nightly/batch), globex (research/demo)`
    fn tenants(&self) -> String {
        let mut text = String::new();
        let mut left = MOST_KEYS;
        for (index, tenant) in self.ready.tenants.iter().enumerate() {
            if left == 0 {
                let more = self.ready.tenants.len() - index;
                let _ = write!(text, ", and {more} more");
                break;
            }
            let shown = tenant.keys.len().min(left);
            let mut names: Vec<String> = tenant.keys[..shown]
                .iter()
                .map(|key| format!("{}/{}", key.project, key.name))
                .collect();
            if shown < tenant.keys.len() {
                names.push(format!("and {} more", tenant.keys.len() - shown));
            }
            left -= shown;
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{} ({})", tenant.name, names.join(", "));
        }
        text
    }

    fn curl(&self, tenant: &ReadyTenant) -> String {
        let url = &self.ready.url;
        let model = self.ready.models.first().map_or("MODEL", String::as_str);
        let first = tenant.keys.first().map(|key| &key.secret);
        let key = match (self.keys, first) {
            (Keys::Made, _) => tenant.key.clone(),
            (Keys::Given, Some(ReadySecret::File(path))) => format!("$(cat '{}')", path.display()),
            (Keys::Given, Some(ReadySecret::Env(name))) => format!("${name}"),
            (Keys::Given, None) => "$KEY".to_owned(),
        };
        format!(
            "\nTry it:\n  curl -i {url}/v1/chat/completions -H \"Authorization: Bearer {key}\" \\\n    -H 'Content-Type: application/json' \\\n    -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"max_tokens\":20}}'"
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::ready::ReadyKey;

    use super::*;

    fn tenant(name: &str, keys: &[&str]) -> ReadyTenant {
        let key = |key: &&str| ReadyKey {
            project: "web".to_owned(),
            name: (*key).to_owned(),
            role: "member".to_owned(),
            secret: ReadySecret::File(format!("/etc/{name}-{key}.key").into()),
        };
        ReadyTenant {
            name: name.to_owned(),
            key: format!("hp-secret-of-{name}"),
            keys: keys.iter().map(key).collect(),
        }
    }

    fn screen(tenants: Vec<ReadyTenant>, engines: Engines, keys: Keys) -> String {
        shown(tenants, engines, &[], keys)
    }

    fn shown(tenants: Vec<ReadyTenant>, engines: Engines, silent: &[String], keys: Keys) -> String {
        let ready = Ready {
            url: "http://c".to_owned(),
            admin_url: "http://a".to_owned(),
            models: vec!["demo".to_owned()],
            tenants,
            endpoints: vec!["http://e1".to_owned(), "http://e2".to_owned()],
        };
        let data = DataDir::open(None).expect("a directory");
        Screen {
            ready: &ready,
            engines,
            silent,
            data: &data,
            kept: true,
            keys,
            token: Some("'/etc/admin.token'".to_owned()),
        }
        .text()
    }

    #[test]
    fn forgotten_endpoints_are_told_and_wanted_simulation_is_not_complained_about() {
        let told = |engines| screen(Vec::new(), engines, Keys::Given);
        let forgotten = told(Engines::Forgotten);
        assert!(
            forgotten.contains("NO ENDPOINTS CONFIGURED: 2 simulated engines"),
            "{forgotten}"
        );
        assert!(forgotten.contains("--engines 2 says"), "{forgotten}");
        assert!(told(Engines::Simulated).contains("engines   2 simulated"));
        for quiet in [told(Engines::Simulated), told(Engines::Real)] {
            assert!(!quiet.contains("NO ENDPOINTS"), "{quiet}");
        }
        assert!(
            !told(Engines::Real).contains("/sim/fault"),
            "a real engine has no such thing"
        );
    }

    #[test]
    fn an_engine_that_has_not_answered_is_named() {
        let told = |silent: &[String]| shown(Vec::new(), Engines::Real, silent, Keys::Given);
        let silent = told(&["e2:80".to_owned()]);
        assert!(silent.contains("NO ANSWER YET from e2:80: "), "{silent}");
        assert!(!told(&[]).contains("NO ANSWER"));
    }

    #[test]
    fn every_key_is_named_and_none_but_made_ones_are_shown() {
        let tenants = || {
            vec![
                tenant("acme", &["main", "nightly"]),
                tenant("globex", &["demo"]),
            ]
        };
        let given = screen(tenants(), Engines::Real, Keys::Given);
        for part in [
            "tenants   acme (web/main, web/nightly), globex (web/demo)\n",
            "Bearer $(cat '/etc/acme-main.key')",
        ] {
            assert!(given.contains(part), "{part} is not in\n{given}");
        }
        assert!(!given.contains("hp-secret"), "{given}");
        let made = screen(tenants(), Engines::Simulated, Keys::Made);
        assert!(made.contains("Bearer hp-secret-of-acme"), "{made}");
    }

    #[test]
    fn keys_are_listed_with_the_token_there_is() {
        let file = SecretSource::File("/etc/admin.token".into());
        let env = SecretSource::Env("ADMIN".to_owned());
        for (token, expected) in [
            (Some(&file), Some("--admin-token-file '/etc/admin.token'")),
            (Some(&env), Some("--admin-token-file <(printenv ADMIN)")),
            (None, None),
        ] {
            let data = DataDir::open(None).expect("a directory");
            let ready = Ready {
                url: "http://c".to_owned(),
                admin_url: "http://a".to_owned(),
                models: Vec::new(),
                tenants: Vec::new(),
                endpoints: Vec::new(),
            };
            let told = Screen {
                ready: &ready,
                engines: Engines::Real,
                silent: &[],
                data: &data,
                kept: true,
                keys: Keys::Given,
                token: token.map(token_file),
            }
            .text();
            assert_eq!(told.contains("key list"), expected.is_some(), "{told}");
            assert!(expected.is_none_or(|line| told.contains(line)), "{told}");
        }
    }

    #[test]
    fn a_screen_stays_a_screen() {
        let many: Vec<String> = (0..30).map(|number| format!("k{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let told = screen(
            vec![
                tenant("small", &["k"]),
                tenant("large", &many),
                tenant("last", &["k"]),
                tenant("least", &["k"]),
            ],
            Engines::Real,
            Keys::Given,
        );
        assert!(
            told.contains("web/k22, and 7 more), and 2 more\n"),
            "{told}"
        );
    }
}
