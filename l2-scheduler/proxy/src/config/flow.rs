//! Flow control as written: the queue, bands, fairness and quotas of the `scheduling:` section.

use std::collections::BTreeMap;

use governance_context::Band;
use scheduler_core::flow::{
    Aging, BandConfig, FairOrder, FlowConfig, Limits, Refuse, Starvation, WtuCost,
};
use serde::{Deserialize, Serialize};

use super::quota::{FlowQuotaFile, QuotaFile};
use super::{Comments, ConfigError, DAY_MS, millis, refuse, within};

/// A shorter cap on stalls costs more targets than it saves.
const LEAST_STALL_MS: u64 = 4_000;
/// Bands that can be set up; more are a mistake.
const MOST_BANDS: usize = 64;

/// How much may wait, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QueueFile {
    requests: usize,
    bytes: u64,
    flow: LimitsFile,
    ttl_ms: u64,
    no_endpoint_ttl_ms: u64,
    comments_after_ms: u64,
    comments_every_ms: u64,
}

/// Most that waits in one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsFile {
    requests: usize,
    bytes: u64,
}

/// What a token costs its flow, in WTU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WtuFile {
    uncached: f64,
    cached: f64,
    output: f64,
}

/// Settings of a band: an entry of `bands` takes what it leaves out from `other_bands`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BandFile {
    /// Named in `bands`, nowhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    band: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refuse: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    may_starve: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aging_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_streams: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_stall_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpot_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaFile>,
}

/// The parts of the section that flow control is made of.
pub(super) struct FlowFile<'a> {
    pub(super) queue: &'a QueueFile,
    pub(super) fairness: &'a str,
    pub(super) wtu: &'a WtuFile,
    pub(super) quota: &'a FlowQuotaFile,
    pub(super) bands: &'a [BandFile],
    pub(super) other_bands: &'a BandFile,
}

impl Default for QueueFile {
    fn default() -> Self {
        Self {
            requests: 4096,
            bytes: 512 << 20,
            flow: LimitsFile::default(),
            ttl_ms: 30_000,
            no_endpoint_ttl_ms: 10_000,
            comments_after_ms: 2_000,
            comments_every_ms: 1_000,
        }
    }
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            requests: 2048,
            bytes: 256 << 20,
        }
    }
}

impl Default for WtuFile {
    fn default() -> Self {
        Self {
            uncached: 1.0,
            cached: 0.1,
            output: 2.0,
        }
    }
}

impl QueueFile {
    /// Only what is no part of flow control.
    pub(super) fn without_flow(&self) -> Self {
        Self {
            comments_after_ms: self.comments_after_ms,
            comments_every_ms: self.comments_every_ms,
            ..Self::default()
        }
    }

    pub(super) fn comments(&self) -> Result<Comments, ConfigError> {
        let (after, every) = ("queue.comments_after_ms", "queue.comments_every_ms");
        Ok(Comments {
            after: millis(after, self.comments_after_ms, 10, DAY_MS)?,
            every: millis(every, self.comments_every_ms, 10, 60_000)?,
        })
    }
}

impl FlowFile<'_> {
    pub(super) fn check(&self) -> Result<FlowConfig, ConfigError> {
        let queue = self.queue;
        let pool_limits = limits("queue", queue.requests, queue.bytes)?;
        let common = BandConfig {
            ttl: millis("queue.ttl_ms", queue.ttl_ms, 1, DAY_MS)?,
            limits: pool_limits,
            ..BandConfig::default()
        };
        let other_bands = self.other_bands.check("other_bands", &common)?;
        if let Some(band) = self.other_bands.band {
            let allowed = "no number: these settings are for every band that `bands` does not name";
            return Err(refuse("other_bands.band", band, allowed));
        }
        if !self.other_bands.says_it_may_starve() && other_bands.starvation.share() <= 0.0 {
            return Err(starves("other_bands"));
        }
        Ok(FlowConfig {
            pool_limits,
            flow_limits: limits("queue.flow", queue.flow.requests, queue.flow.bytes)?,
            no_endpoint_ttl: millis(
                "queue.no_endpoint_ttl_ms",
                queue.no_endpoint_ttl_ms,
                0,
                DAY_MS,
            )?,
            order: match self.fairness {
                "lag" => FairOrder::Lag,
                "strict" => FairOrder::Strict,
                other => return Err(refuse("fairness", other, "lag or strict")),
            },
            cost: self.wtu.check()?,
            flow_quota: self.quota.common().check("quota")?,
            flow_quotas: self.quota.single_flows()?,
            bands: self.bands(&other_bands)?,
            other_bands,
        })
    }

    fn bands(&self, other: &BandConfig) -> Result<BTreeMap<Band, BandConfig>, ConfigError> {
        if self.bands.len() > MOST_BANDS {
            let allowed = format!("at most {MOST_BANDS} bands");
            return Err(refuse("bands", self.bands.len(), allowed));
        }
        let top = self.bands.iter().filter_map(|named| named.band).max();
        let mut bands = BTreeMap::new();
        let mut shares = 0.0;
        for (index, named) in self.bands.iter().enumerate() {
            let at = format!("bands[{index}]");
            let priority = named.priority(&at)?;
            let band = named.check(&at, other)?;
            let is_top = named.band == top;
            // The highest band goes first anyway: nothing is set aside for it, unless somebody wrote so.
            if !is_top || named.share.is_some() {
                shares += band.starvation.share();
            }
            if !is_top && named.share == Some(0.0) && !named.says_it_may_starve() {
                return Err(starves(&at));
            }
            if bands.insert(Band(priority), band).is_some() {
                let allowed = "a priority that no other band has";
                return Err(refuse(format_args!("{at}.band"), priority, allowed));
            }
        }
        // Shares such as 0.1 do not add up exactly.
        if shares > 1.0 + 1e-9 {
            let allowed =
                "shares that add up to at most 1, those taken from `other_bands` included";
            return Err(refuse("bands[].share", shares, allowed));
        }
        Ok(bands)
    }
}

impl BandFile {
    fn priority(&self, at: &str) -> Result<i32, ConfigError> {
        let path = format!("{at}.band");
        let allowed = format!("a whole number from {} to {}", i32::MIN, i32::MAX);
        let Some(band) = self.band else {
            return Err(refuse(path, format_args!("nothing"), allowed));
        };
        i32::try_from(band).map_err(|_| refuse(path, band, allowed))
    }

    fn says_it_may_starve(&self) -> bool {
        self.may_starve == Some(true)
    }

    /// The band, with what it leaves out from `other`.
    fn check(&self, at: &str, other: &BandConfig) -> Result<BandConfig, ConfigError> {
        let path = |field: &str| format!("{at}.{field}");
        let time = |field: &str, value: Option<u64>, low: u64, high: u64| {
            value
                .map(|value| millis(&path(field), value, low, high))
                .transpose()
        };
        Ok(BandConfig {
            ttl: time("ttl_ms", self.ttl_ms, 1, DAY_MS)?.unwrap_or(other.ttl),
            limits: limits(
                at,
                self.requests.unwrap_or(other.limits.requests),
                self.bytes.unwrap_or(other.limits.bytes),
            )?,
            refuse: match self.refuse.as_deref() {
                None => other.refuse,
                Some("doomed") => Refuse::Doomed,
                Some("never") => Refuse::Never,
                Some(value) => return Err(refuse(path("refuse"), value, "doomed or never")),
            },
            starvation: self.starvation(at, other)?,
            aging: match time("aging_ms", self.aging_ms, 100, DAY_MS)? {
                Some(period) => Aging::Every(period),
                None => other.aging,
            },
            ceiling: match self.ceiling {
                Some(ceiling) => within(&path("ceiling"), ceiling, 0.0, 1.0)?,
                None => other.ceiling,
            },
            max_streams: match self.max_streams {
                Some(streams) => Some(within(&path("max_streams"), streams, 1, 100_000)?),
                None => other.max_streams,
            },
            max_stall: time("max_stall_ms", self.max_stall_ms, LEAST_STALL_MS, DAY_MS)?
                .or(other.max_stall),
            ttft: time("ttft_ms", self.ttft_ms, 1, DAY_MS)?.or(other.ttft),
            tpot: time("tpot_ms", self.tpot_ms, 1, 60_000)?.unwrap_or(other.tpot),
            quota: match &self.quota {
                Some(quota) => quota.check(&path("quota"))?,
                None => other.quota.clone(),
            },
        })
    }

    fn starvation(&self, at: &str, other: &BandConfig) -> Result<Starvation, ConfigError> {
        match (self.share, self.may_starve) {
            (Some(share), Some(true)) if share > 0.0 => {
                let allowed = "false beside a share, or no share";
                Err(refuse(format_args!("{at}.may_starve"), true, allowed))
            }
            (_, Some(true)) => Ok(Starvation::Allowed),
            (Some(share), _) => {
                within(&format!("{at}.share"), share, 0.0, 1.0).map(Starvation::Share)
            }
            (None, Some(false)) if other.starvation == Starvation::Allowed => {
                let allowed = "a share beside it: `other_bands` promises none";
                Err(refuse(format_args!("{at}.may_starve"), false, allowed))
            }
            (None, _) => Ok(other.starvation),
        }
    }
}

fn starves(at: &str) -> ConfigError {
    refuse(
        format_args!("{at}.share"),
        0.0,
        "a share above 0, or `may_starve: true` beside it: without a share this band gets nothing while higher bands take everything",
    )
}

fn limits(at: &str, requests: usize, bytes: u64) -> Result<Limits, ConfigError> {
    Ok(Limits {
        requests: within(&format!("{at}.requests"), requests, 0, 10_000_000)?,
        bytes: within(&format!("{at}.bytes"), bytes, 0, 1 << 40)?,
    })
}

impl WtuFile {
    fn check(&self) -> Result<WtuCost, ConfigError> {
        // In micro-WTU a token costs a whole number.
        let micro = |field: &str, wtu: f64, least: f64| {
            within(&format!("wtu.{field}"), wtu, least, 1_000.0)
                .map(|wtu| (wtu * 1e6).round() as u64)
        };
        Ok(WtuCost {
            uncached: micro("uncached", self.uncached, 0.000_001)?,
            cached: micro("cached", self.cached, 0.0)?,
            output: micro("output", self.output, 0.000_001)?,
        })
    }
}
