//! Flow control in values: bands, flows, their limits and quotas, and the order in which what waits may go.

pub(crate) mod codel;
mod config;
pub(crate) mod fair;
pub(crate) mod outputs;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod share;

pub use config::{
    Aging, BandConfig, FairOrder, FlowConfig, Limits, OverQuota, Quota, QuotaRate, Refuse,
    Starvation, WtuCost,
};
