//! The configuration file: one YAML, the sum of the sections of the crates. Parsed once, at start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use governance_context::{FairnessId, KeyRing};
use scheduler_proxy::config::Untrusted;
use scheduler_proxy::{ANONYMOUS, ConfigError};
use serde::{Deserialize, Serialize};

use crate::cli;

mod parse;
pub(crate) mod template;

/// A configuration file is written by people; a larger one is a mistake.
const LARGEST_FILE: u64 = 16 << 20;

/// Names listed in a message.
const MOST_LISTED: usize = 20;

/// The file as written. Unknown fields are refused wherever they stand.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where clients connect.
    #[serde(
        deserialize_with = "parse::address",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators connect.
    #[serde(
        deserialize_with = "parse::address",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Where `govern` finds `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler_url: Option<String>,
    /// The keys that sign and check the context between `govern` and `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context_keys: Option<PathBuf>,
    pub(crate) ledger: LedgerFile,
    pub(crate) governance: governance_proxy::config::File,
    pub(crate) scheduling: scheduler_proxy::config::File,
}

/// The `ledger:` section.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerFile {
    /// How long a reservation may take before the store counts as lost, in milliseconds.
    patience_ms: u64,
}

impl Default for LedgerFile {
    fn default() -> Self {
        // A disk that writes a checkpoint takes its time over an fsync; 50 ms refused requests on a healthy one.
        Self { patience_ms: 1_000 }
    }
}

impl LedgerFile {
    pub(crate) fn patience(&self) -> Result<Duration, ConfigError> {
        if (1..=60_000).contains(&self.patience_ms) {
            return Ok(Duration::from_millis(self.patience_ms));
        }
        Err(ConfigError {
            path: "ledger.patience_ms".to_owned(),
            value: self.patience_ms.to_string(),
            allowed: "a number from 1 to 60000".to_owned(),
        })
    }
}

impl File {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// Names the file, the field and its line, what stands there, and what is allowed.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let size = std::fs::metadata(path)
            .with_context(|| format!("cannot read the configuration file {}", path.display()))?
            .len();
        anyhow::ensure!(
            size <= LARGEST_FILE,
            "{} has {size} bytes; a configuration file has at most {LARGEST_FILE}",
            path.display()
        );
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        // An empty document means: all defaults.
        if text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        {
            return Ok(Self::default());
        }
        parse::parse(text)
    }

    pub(crate) fn to_yaml(&self) -> anyhow::Result<String> {
        serde_saphyr::to_string(self).context("a configuration is plain data")
    }

    /// Checks both sections without starting anything.
    pub(crate) fn check(self) -> anyhow::Result<Checked> {
        let governance = governance_proxy::config::Config::check(self.governance)?;
        let scheduling = scheduler_proxy::config::Config::check(self.scheduling)?;
        flows_of_tenants(&governance, &scheduling)?;
        Ok(Checked {
            governance,
            scheduling,
            patience: self.ledger.patience()?,
        })
    }
}

/// A flow is a tenant. Where the tenants are named, a quota for somebody else is a typing error that would leave the
/// tenant it is for without one; a scheduler alone does not know them.
fn flows_of_tenants(
    governance: &governance_proxy::config::Config,
    scheduling: &scheduler_proxy::config::Config,
) -> Result<(), ConfigError> {
    let tenants = &governance.tenants;
    let unknown = |flow: &&FairnessId| {
        let known = tenants
            .iter()
            .any(|tenant| tenant.name.as_str() == flow.as_str());
        let stranger = scheduling.untrusted == Untrusted::Lowest && flow.as_str() == ANONYMOUS;
        !known && !stranger
    };
    match scheduling.flow.flow_quotas.keys().find(unknown) {
        Some(flow) if !tenants.is_empty() => Err(ConfigError {
            path: format!("scheduling.quota.flows.{flow}"),
            value: format!("{:?}", flow.as_str()),
            allowed: format!("a tenant of governance.tenants: {}", listed(tenants)),
        }),
        Some(_) | None => Ok(()),
    }
}

/// The first few names: enough to see a typing error.
fn listed(tenants: &[governance_proxy::config::Tenant]) -> String {
    let names: Vec<&str> = tenants
        .iter()
        .take(MOST_LISTED)
        .map(|tenant| tenant.name.as_str())
        .collect();
    match tenants.len().checked_sub(MOST_LISTED) {
        Some(more @ 1..) => format!("{}, and {more} more", names.join(", ")),
        _ => names.join(", "),
    }
}

/// Both sections, valid.
pub(crate) struct Checked {
    pub(crate) governance: governance_proxy::config::Config,
    pub(crate) scheduling: scheduler_proxy::config::Config,
    pub(crate) patience: Duration,
}

/// Reads the keys of the context between the layers.
pub(crate) fn context_keys(path: Option<&Path>) -> anyhow::Result<KeyRing> {
    let path = path.context(
        "context_keys: missing; name a file with the keys that sign the context between `govern` and `schedule` (see docs/configuration.md)",
    )?;
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("context_keys: cannot read {}", path.display()))?;
    KeyRing::parse(&text).with_context(|| format!("context_keys: in {}", path.display()))
}

/// Reads the key that all schedulers of the pool share, if there is one.
pub(crate) fn peer_key(
    scheduling: &scheduler_proxy::Config,
) -> anyhow::Result<Option<scheduler_proxy::PeerKey>> {
    let Some(path) = &scheduling.peers.key_file else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("scheduling.peers.key_file: cannot read {}", path.display()))?;
    scheduler_proxy::PeerKey::parse(&text)
        .map(Some)
        .with_context(|| format!("scheduling.peers.key_file: in {}", path.display()))
}

/// An address that was not given.
pub(crate) fn address(
    given: Option<SocketAddr>,
    file: Option<SocketAddr>,
    default: &str,
) -> SocketAddr {
    given.or(file).unwrap_or_else(|| {
        default
            .parse()
            .expect("the default addresses are addresses")
    })
}

pub(crate) fn run(command: cli::Config) -> anyhow::Result<ExitCode> {
    match command {
        cli::Config::Check { file } => {
            File::read(&file)?
                .check()
                .with_context(|| format!("in {}", file.display()))?;
            println!("{} is valid", file.display());
        }
        cli::Config::Show { file: Some(file) } => {
            let parsed = File::read(&file)?;
            parsed
                .clone()
                .check()
                .with_context(|| format!("in {}", file.display()))?;
            print!("{}", parsed.to_yaml()?);
        }
        cli::Config::Show { file: None } => print!("{}", template::example()),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_for_nobody_is_refused_where_the_tenants_are_known() {
        let tenants = "governance: { tenants: [{ name: acme }, { name: globex }] }\n";
        let flows = |name: &str| {
            format!("scheduling: {{ quota: {{ flows: {{ {name}: {{ wtu_per_s: 5 }} }} }} }}")
        };
        let check = |text: String| {
            let checked = File::parse(&text).expect("a configuration").check();
            checked.map_or_else(|error| error.to_string(), |_| "good".to_owned())
        };
        assert_eq!(check(flows("nobody")), "good", "a scheduler alone");
        assert_eq!(check(format!("{tenants}{}", flows("globex"))), "good");
        let strangers = flows("anonymous").replace("{ quota", "{ untrusted: lowest, quota");
        assert_eq!(check(format!("{tenants}{strangers}")), "good");
        assert_ne!(check(format!("{tenants}{}", flows("anonymous"))), "good");
        assert_eq!(
            check(format!("{tenants}{}", flows("nobody"))),
            "scheduling.quota.flows.nobody: \"nobody\" is not allowed; use a tenant of governance.tenants: acme, globex"
        );
    }
}
