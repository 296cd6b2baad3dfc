//! What a person reads first.

use loadgen::engine::SimEngine;

use crate::data::DataDir;
use crate::ready::Ready;

/// Whose keys the tenants have. Only those made for a first try are shown: what is printed may end in a log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    Made,
    Given,
}

pub(crate) fn print(ready: &Ready, engines: &[SimEngine], data: &DataDir, kept: bool, keys: Keys) {
    println!("{}", text(ready, engines.len(), data, kept, keys));
}

fn text(ready: &Ready, simulated: usize, data: &DataDir, kept: bool, keys: Keys) -> String {
    let Ready { url, admin_url, .. } = ready;
    let model = ready.models.first().map_or("MODEL", String::as_str);
    let mut lines = vec![format!("Headpond serves on {url}, admin on {admin_url}")];
    if simulated > 0 {
        let slow = if simulated > 1 {
            ", the last of them slow"
        } else {
            ""
        };
        lines.push(format!(
            "  engines   {simulated} simulated{slow}: {}",
            ready.endpoints.join(" ")
        ));
    } else {
        lines.push(format!("  engines   {}", ready.endpoints.join(" ")));
    }
    lines.push(format!("  models    {}", ready.models.join(", ")));
    let names: Vec<&str> = ready
        .tenants
        .iter()
        .map(|tenant| tenant.name.as_str())
        .collect();
    lines.push(format!("  tenants   {}", names.join(", ")));
    let ledger = data.file("");
    lines.push(format!(
        "  ledger    {}{}",
        ledger.display(),
        if kept {
            ""
        } else {
            "  (ends with this process; --data-dir keeps it)"
        }
    ));
    if let Some(tenant) = ready.tenants.first() {
        let key = match keys {
            Keys::Made => tenant.key.as_str(),
            Keys::Given => "$KEY",
        };
        lines.push(format!(
            "\nTry it:\n  curl -i {url}/v1/chat/completions -H \"Authorization: Bearer {key}\" \\\n    -H 'Content-Type: application/json' \\\n    -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"max_tokens\":20}}'"
        ));
    }
    let token = match keys {
        Keys::Made => data.file("admin.token").display().to_string(),
        Keys::Given => "FILE".to_owned(),
    };
    lines.push(format!("\nThen:\n  headpond top --admin-url {admin_url}                        what the pool is doing\n  headpond why <x-request-id> --admin-url {admin_url}       why it ran there, and what it cost\n  curl {admin_url}/metrics\n  headpond key list --admin-url {admin_url} --admin-token-file {token}"));
    if let (true, Some(endpoint)) = (simulated > 0, ready.endpoints.first()) {
        lines.push(format!("\nBreak something:\n  curl -X POST {endpoint}/sim/fault -d '{{\"fault\":\"hang-before-first-token\"}}'\n  curl -X POST {endpoint}/sim/fault -d '{{\"fault\":\"clear\"}}'"));
    }
    lines.join("\n")
}
