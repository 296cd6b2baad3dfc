//! The configuration file: one YAML, the sum of the sections of the crates. Parsed once, at start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use governance_context::{Band, FairnessId, KeyRing};
use governance_proxy::RemoteScheduler;
use scheduler_proxy::config::{Profile, Untrusted};
use scheduler_proxy::{ANONYMOUS, ConfigError};
use serde::{Deserialize, Serialize};

use crate::cli;

mod parse;
pub(crate) use parse::listen_address;
pub(crate) mod template;
#[cfg(test)]
mod tests;

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
        parse::parse(text)
    }

    pub(crate) fn to_yaml(&self) -> anyhow::Result<String> {
        serde_saphyr::to_string(self).context("a configuration is plain data")
    }

    /// Checks everything that is written without reading another file. Every command that uses the file begins with it.
    pub(crate) fn check(self) -> anyhow::Result<Checked> {
        let is_of_governance_alone = self.scheduler_url.is_some()
            && self.scheduling == scheduler_proxy::config::File::default();
        two_listeners(self.listen, self.admin_listen)?;
        if let Some(url) = &self.scheduler_url {
            RemoteScheduler::check(url).context("scheduler_url")?;
        }
        let governance = governance_proxy::config::Config::check(self.governance)?;
        let other_bands = if self.scheduling.sets_other_bands() {
            OtherBands::Set
        } else {
            OtherBands::Unsaid
        };
        let scheduling = scheduler_proxy::config::Config::check(self.scheduling)?;
        flows_of_tenants(&governance, &scheduling)?;
        if !is_of_governance_alone {
            one_pool(&governance, &scheduling)?;
        }
        Ok(Checked {
            governance,
            scheduling,
            other_bands,
            patience: self.ledger.patience()?,
        })
    }
}

/// One address cannot be listened on twice; port 0 is another one each time.
fn two_listeners(
    clients: Option<SocketAddr>,
    operators: Option<SocketAddr>,
) -> Result<(), ConfigError> {
    let both = clients.zip(operators);
    match both.filter(|(clients, operators)| meet(*clients, *operators)) {
        Some((_, address)) => Err(ConfigError {
            path: "admin_listen".to_owned(),
            value: address.to_string(),
            allowed: "an address that listen does not take".to_owned(),
        }),
        None => Ok(()),
    }
}

/// Whether only one of them can be listened on. All addresses of a family (`0.0.0.0`, `[::]`) take every single one.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let [a, b] = [one, other].map(|address| address.ip().to_canonical());
    let takes = |all: IpAddr, one: IpAddr| {
        all == one || (all.is_unspecified() && all.is_ipv4() == one.is_ipv4())
    };
    one.port() == other.port() && one.port() != 0 && (takes(a, b) || takes(b, a))
}

/// A file has one scheduler, so a model can be in no other pool than its. A file that leaves the scheduler to another one
/// does not know it.
fn one_pool(
    governance: &governance_proxy::config::Config,
    scheduling: &scheduler_proxy::config::Config,
) -> Result<(), ConfigError> {
    let ours = &scheduling.pool;
    let mut models = governance.models.iter().enumerate();
    match models.find(|(_, model)| model.pool != *ours) {
        Some((index, model)) => Err(ConfigError {
            path: format!("governance.models[{index}].pool"),
            value: format!("{:?}", model.pool.as_str()),
            allowed: format!("{:?}, which is scheduling.pool", ours.as_str()),
        }),
        None => Ok(()),
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
            allowed: format!(
                "a tenant of governance.tenants: {}",
                listed(tenants.iter().map(|tenant| tenant.name.as_str()))
            ),
        }),
        Some(_) | None => Ok(()),
    }
}

/// The first few names: enough to see a typing error.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(MOST_LISTED);
    let names: Vec<&str> = names.take(MOST_LISTED).collect();
    match more {
        0 => names.join(", "),
        more => format!("{}, and {more} more", names.join(", ")),
    }
}

/// Both sections, valid.
pub(crate) struct Checked {
    pub(crate) governance: governance_proxy::config::Config,
    pub(crate) scheduling: scheduler_proxy::config::Config,
    other_bands: OtherBands,
    pub(crate) patience: Duration,
}

/// Whether the file says what holds for bands that it does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherBands {
    Set,
    Unsaid,
}

impl Checked {
    /// Refuses a file that names nothing to serve: every command would start for nothing.
    pub(crate) fn serves_something(&self) -> anyhow::Result<()> {
        let is_empty =
            self.governance.models.iter().next().is_none() && self.scheduling.endpoints.is_empty();
        ensure!(
            !is_empty,
            "governance.models: none, and scheduling.endpoints: none; name the models that callers may ask for, or the engines to schedule (`headpond config show` prints an example)"
        );
        Ok(())
    }

    /// A setting that only describes real engines, or others that share them, if one is not at its default.
    pub(crate) fn of_real_engines(&self) -> Option<&'static str> {
        let usual = scheduler_proxy::Config::default().profile;
        let Profile {
            peak_prefill,
            kv_tokens,
            batched_tokens: _,
        } = self.scheduling.profile;
        let given = [
            (
                peak_prefill.total_cmp(&usual.peak_prefill).is_ne(),
                "profile.peak_prefill_tokens_per_s",
            ),
            (kv_tokens != usual.kv_tokens, "profile.kv_tokens"),
            (!self.scheduling.peers.urls.is_empty(), "peers.urls"),
        ];
        given
            .iter()
            .find(|(given, _)| *given)
            .map(|(_, field)| *field)
    }

    /// What is valid and most likely not meant.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.governance.warnings();
        warnings.extend(self.bands_not_named());
        if self.scheduling.endpoints.is_empty()
            && let Some(field) = self.of_real_engines()
        {
            warnings.push(format!(
                "scheduling.endpoints: none, and scheduling.{field} is about real engines; name them here, or with --endpoint for `headpond up`, which does not start without"
            ));
        }
        warnings
    }

    /// Bands that requests are put into and that nobody set up where others are: most likely one of the two numbers is
    /// a typing error.
    fn bands_not_named(&self) -> Vec<String> {
        let bands = &self.scheduling.flow.bands;
        if bands.is_empty() || self.other_bands == OtherBands::Set {
            return Vec::new();
        }
        let mut strangers: BTreeMap<Band, Vec<String>> = BTreeMap::new();
        for (path, band) in self.governance.bands() {
            if !bands.contains_key(&band) {
                strangers.entry(band).or_default().push(path);
            }
        }
        let named: Vec<String> = bands.keys().map(|band| band.0.to_string()).collect();
        let warning = |(band, paths): (Band, Vec<String>)| {
            format!(
                "{}: {} is none of scheduling.bands ({}), so that defaults hold for it; name it there, or say in scheduling.other_bands what holds for others",
                listed(paths.iter().map(String::as_str)),
                band.0,
                named.join(", ")
            )
        };
        strangers.into_iter().map(warning).collect()
    }

    /// Says so in the log.
    pub(crate) fn warn(&self) {
        for warning in self.warnings() {
            tracing::warn!("{warning}");
        }
    }
}

/// Reads the keys of the context between the layers.
pub(crate) fn context_keys(path: Option<&Path>) -> anyhow::Result<KeyRing> {
    let path = path.context(
        "context_keys: missing; name a file with the keys that sign the context between `govern` and `schedule` (see docs/configuration.md)",
    )?;
    let text = named_file(path, "context_keys")?;
    KeyRing::parse(&text).context("context_keys: the file it names is not a file of keys")
}

/// Reads a file that a field names. The path is not repeated: whoever wrote the secret in its place does not want to read
/// it in a log.
fn named_file(path: &Path, field: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        anyhow!("{field}: cannot read the file it names ({error}); write a path that this process can read")
    })
}

/// Reads the key that all schedulers of the pool share, if there is one.
pub(crate) fn peer_key(
    scheduling: &scheduler_proxy::Config,
) -> anyhow::Result<Option<scheduler_proxy::PeerKey>> {
    let Some(path) = &scheduling.peers.key_file else {
        return Ok(None);
    };
    let field = "scheduling.peers.key_file";
    scheduler_proxy::PeerKey::parse(&named_file(path, field)?)
        .map(Some)
        .with_context(|| format!("{field}: the file it names is not a key"))
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
            let written = File::read(&file)?;
            let warnings = whole(written).with_context(|| format!("in {}", file.display()))?;
            for warning in warnings {
                eprintln!("warning: {warning}");
            }
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

/// Checks a file as all commands together do: what stands in it, and the files of keys it names. The secrets of
/// governance are left alone, since they are often elsewhere.
fn whole(file: File) -> anyhow::Result<Vec<String>> {
    let keys = file.context_keys.clone();
    let checked = file.check()?;
    checked.serves_something()?;
    if keys.is_some() {
        context_keys(keys.as_deref())?;
    }
    peer_key(&checked.scheduling)?;
    Ok(checked.warnings())
}
