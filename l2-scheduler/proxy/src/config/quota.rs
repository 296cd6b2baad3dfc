//! Quotas as written.

use std::collections::BTreeMap;

use governance_context::FairnessId;
use scheduler_core::flow::{OverQuota, Quota, QuotaRate};
use serde::{Deserialize, Serialize};

use super::{ConfigError, refuse, within};

/// Flows with a quota of their own.
const MOST_FLOWS: usize = 10_000;

/// A bound on work. Without any field there is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QuotaFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight_wtu: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wtu_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_wtu: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<String>,
}

/// The quota of every flow, and those of single flows in its place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FlowQuotaFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight_wtu: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wtu_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_wtu: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    flows: BTreeMap<String, QuotaFile>,
}

impl QuotaFile {
    pub(super) fn check(&self, at: &str) -> Result<Quota, ConfigError> {
        let wtu = |field: &str, value: Option<u64>| {
            value
                .map(|value| within(&format!("{at}.{field}"), value, 1, 1_000_000_000_000))
                .transpose()
        };
        let per_s = wtu("wtu_per_s", self.wtu_per_s)?;
        let burst = wtu("burst_wtu", self.burst_wtu)?;
        let in_flight_wtu = wtu("in_flight_wtu", self.in_flight_wtu)?;
        if let (None, Some(burst)) = (per_s, burst) {
            let allowed = "`wtu_per_s` beside it";
            return Err(refuse(format_args!("{at}.burst_wtu"), burst, allowed));
        }
        let over = match self.over.as_deref() {
            None => OverQuota::default(),
            Some(value) if per_s.or(in_flight_wtu).is_none() => {
                let allowed = "`in_flight_wtu` or `wtu_per_s` beside it";
                return Err(refuse(format_args!("{at}.over"), value, allowed));
            }
            Some("wait") => OverQuota::Wait,
            Some("refuse") => OverQuota::Refuse,
            Some(value) => return Err(refuse(format_args!("{at}.over"), value, "wait or refuse")),
        };
        Ok(Quota {
            in_flight_wtu,
            rate: per_s.map(|wtu_per_s| QuotaRate {
                wtu_per_s,
                burst_wtu: burst.unwrap_or(wtu_per_s),
            }),
            over,
        })
    }
}

impl FlowQuotaFile {
    pub(super) fn common(&self) -> QuotaFile {
        QuotaFile {
            in_flight_wtu: self.in_flight_wtu,
            wtu_per_s: self.wtu_per_s,
            burst_wtu: self.burst_wtu,
            over: self.over.clone(),
        }
    }

    pub(super) fn single_flows(&self) -> Result<BTreeMap<FairnessId, Quota>, ConfigError> {
        if self.flows.len() > MOST_FLOWS {
            let allowed = format!("at most {MOST_FLOWS} flows");
            return Err(refuse("quota.flows", self.flows.len(), allowed));
        }
        self.flows
            .iter()
            .map(|(name, quota)| {
                let flow = FairnessId::new(name).map_err(|_| {
                    let allowed = "fairness ids of 1 to 128 visible ASCII characters";
                    refuse("quota.flows", name, allowed)
                })?;
                Ok((flow, quota.check(&format!("quota.flows.{name}"))?))
            })
            .collect()
    }
}
