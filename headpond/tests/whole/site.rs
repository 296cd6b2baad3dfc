//! A place where a Headpond runs: its configuration, the keys of its tenants, its ledger as it is on disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use http::Method;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Running, headpond, run};
use crate::wire;

/// What operators show.
pub(crate) const ADMIN: &str = "an-admin-token-for-tests";

/// Prices in micro-WTU per token.
pub(crate) const UNCACHED: u64 = 1_000;
pub(crate) const CACHED: u64 = 100;
pub(crate) const OUTPUT: u64 = 10_000;

/// Engines are not called hung for as long as they are stalled, slow or stopped with their machine. Requests are bound as
/// they arrive: nobody is held back or refused for a target's sake.
pub(crate) const PATIENT: &str = "scheduling: { policy: predicted-cost, timeouts: { hang_floor_ms: 3600000, connect_ms: 60000 } }\n";

const HEAD: &str = r#"# A slow disk or a slow build is no lost store.
ledger: { patience_ms: 60000 }
governance:
  admin_token: { file: DIR/admin.token }
  installation_secret: { file: DIR/admin.token }
  models:
    - { name: demo, aliases: [alias], context_tokens: 131072, price: { uncached: "0.001", cached: "0.0001", output: "0.01" } }
"#;

pub(crate) struct Site {
    directory: TempDir,
}

/// An attempt as its row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// As it is in the ids of an engine's answers, without dashes.
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) state: String,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
    pub(crate) charged: u64,
    pub(crate) largest: u64,
}

impl Site {
    /// Up to eight tenants by name, each with its limits and one key of role `lead`.
    pub(crate) fn new(tenants: &[(&str, &str)]) -> Self {
        Self::with(tenants, "", "")
    }

    /// As [`Site::new`], with more lines in the `governance:` section and more sections.
    pub(crate) fn with(tenants: &[(&str, &str)], governance: &str, sections: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut text = format!("{HEAD}{governance}  tenants:\n");
        for ((name, limits), letter) in tenants.iter().zip('a'..='h') {
            let key = format!(
                "hp-tenant{}-abcdefghijkmnpqrstuvwxyz23456789",
                String::from(letter).repeat(6)
            );
            std::fs::write(directory.path().join(format!("{name}.key")), key).expect("a key file");
            let key = format!("{{ name: k, role: lead, secret: {{ file: DIR/{name}.key }} }}");
            write!(text, "    - name: {name}\n      limits: {limits}\n      projects: [{{ name: p, keys: [{key}] }}]\n")
                .expect("a string takes everything");
        }
        text.push_str(sections);
        std::fs::write(directory.path().join("admin.token"), ADMIN).expect("a token file");
        let site = Self { directory };
        site.write("headpond.yaml", &text);
        site
    }

    /// A file; `DIR` in its text is the site's directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        let text = text.replace("DIR", self.path().to_str().expect("UTF-8"));
        std::fs::write(&path, text).expect("a file");
        path
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub(crate) fn config(&self) -> String {
        self.path()
            .join("headpond.yaml")
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    pub(crate) fn key(&self, tenant: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{tenant}.key")))
            .expect("the tenant has a key")
    }

    /// `headpond up` with the site's configuration and data directory.
    pub(crate) fn up(&self, arguments: &[&str]) -> Running {
        let config = self.config();
        let mut all = vec!["--config", &config];
        all.extend_from_slice(arguments);
        Running::up(self.path(), &all)
    }

    /// What `headpond ledger verify` says; it must be green.
    pub(crate) fn verify(&self) -> Value {
        let output = run(headpond()
            .args(["ledger", "verify", "--json", "--data-dir"])
            .arg(self.data()));
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{told}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_str(&told).expect("a report");
        assert_eq!(report["green"], true, "{report:#}");
        report
    }

    /// The attempts on disk, by request id without dashes. One that was refused, so that a smaller one could follow,
    /// is left out.
    pub(crate) fn attempts(&self) -> BTreeMap<String, Attempt> {
        let ledger = self.ledger();
        let query = "SELECT lower(hex(request_id)), lower(hex(id)), tenant_id, state, coalesce(uncached, 0) + coalesce(cached, 0), \
                     coalesce(cached, 0), coalesce(decode, 0), charged_uwtu, largest_uwtu FROM attempt WHERE state <> 'refused'";
        let mut statement = ledger.prepare(query).expect("the table is there");
        let rows = statement.query_map([], |row| {
            let amount = |column: usize| row.get(column).map(i64::cast_unsigned);
            let attempt = Attempt {
                id: row.get(1)?,
                tenant: row.get(2)?,
                state: row.get(3)?,
                prompt: amount(4)?,
                cached: amount(5)?,
                output: amount(6)?,
                charged: amount(7)?,
                largest: amount(8)?,
            };
            Ok((row.get(0)?, attempt))
        });
        rows.expect("the rows can be read")
            .collect::<Result<_, _>>()
            .expect("every row can be read")
    }

    /// The largest share of any window of a tenant that is used and held, and its limit.
    pub(crate) fn fullest(&self, tenant: &str) -> (u64, u64) {
        let query = "SELECT used + held, granted FROM win JOIN account ON account.id = win.account_id \
                     WHERE name = ?1 ORDER BY used + held DESC LIMIT 1";
        let row = self
            .ledger()
            .query_row(query, [tenant], |row| Ok((row.get(0)?, row.get(1)?)));
        let (taken, granted): (i64, i64) = row.expect("the tenant has a window");
        (taken.cast_unsigned(), granted.cast_unsigned())
    }

    fn ledger(&self) -> Connection {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let ledger =
            Connection::open_with_flags(self.data().join("ledger.db"), flags).expect("a ledger");
        ledger
            .busy_timeout(std::time::Duration::from_secs(10))
            .expect("a setting");
        ledger
    }
}

/// A request id or attempt id as the ledger's rows show it.
pub(crate) fn plain(id: &str) -> String {
    id.replace('-', "")
}

/// The first limit of an account: used and held.
pub(crate) async fn standing(running: &Running, account: &str) -> (u64, u64) {
    let url = format!("{}/admin/v1/accounts/{account}", running.admin_url());
    let answer = wire::send(Method::GET, &url, ADMIN, "")
        .await
        .expect("an answer")
        .json();
    let balance = &answer["balances"][0];
    let number = |name: &str| {
        balance[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name}: {answer}"))
    };
    (number("used"), number("held"))
}

/// The decision record of a request, once it has ended.
pub(crate) async fn record(running: &Running, request: &str) -> Value {
    let url = format!("{}/admin/v1/decisions/{request}", running.admin_url());
    wire::until("the end of a request", async || {
        let answer = wire::get(&url).await;
        let record = (answer.status == 200).then(|| answer.json()["governance"].clone())?;
        record.get("outcome").is_some().then_some(record)
    })
    .await
}

pub(crate) async fn metrics(running: &Running) -> String {
    wire::get(&format!("{}/metrics", running.admin_url()))
        .await
        .text()
}

/// Breaks every engine in the same way, or heals it with `{"fault":"clear"}`.
pub(crate) async fn fault(running: &Running, fault: &Value) {
    for engine in running.endpoints() {
        let answer = wire::send(
            Method::POST,
            &format!("{engine}/sim/fault"),
            "",
            fault.to_string(),
        )
        .await;
        assert_eq!(answer.expect("an answer").status, 200, "{fault}");
    }
}

/// What the engines say they computed, by attempt id without dashes.
pub(crate) async fn truth(running: &Running) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for engine in running.endpoints() {
        let usage = wire::get(&format!("{engine}/sim/usage")).await.json();
        for record in usage["requests"].as_array().expect("records") {
            let id = record["id"].as_str().expect("an id");
            let mut attempt = plain(id.split_once('-').map_or(id, |(_, attempt)| attempt));
            // Another try of one attempt adds its number.
            attempt.truncate(32);
            all.insert(attempt, record.clone());
        }
    }
    all
}

/// Nothing is in flight, held or waiting any more, in either layer.
pub(crate) async fn at_rest(running: &Running) {
    const GAUGES: [&str; 6] = [
        "headpond_governance_requests_in_flight",
        "headpond_governance_holds_open",
        "headpond_scheduler_in_flight",
        "headpond_scheduler_endpoint_in_flight",
        "headpond_scheduler_queue_length",
        "headpond_scheduler_queue_bytes",
    ];
    wire::until("rest", async || {
        let page = metrics(running).await;
        assert!(GAUGES.iter().all(|gauge| page.contains(gauge)), "{page}");
        GAUGES
            .iter()
            .all(|gauge| wire::metric(&page, gauge) == 0)
            .then_some(())
    })
    .await;
}

/// As [`at_rest`], for one gauge.
pub(crate) async fn at_rest_of(running: &Running, gauge: &str) {
    wire::until("rest", async || {
        (wire::metric(&metrics(running).await, gauge) == 0).then_some(())
    })
    .await;
}

/// A chat of some length.
pub(crate) fn chat(text: &str, max_tokens: u64, stream: bool) -> Value {
    json!({ "model": "demo", "messages": [{ "role": "user", "content": text }], "max_tokens": max_tokens, "stream": stream })
}
