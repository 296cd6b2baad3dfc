//! A policy: how much of what, in which window, with which promise.

use std::fmt;
use std::sync::Arc;

use super::{UnixMs, Window};

/// What a policy promises. Request rates and concurrency (tier A) live in [`crate::limits`] and have no policy here.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Tier {
    /// The estimate is held and corrected at the end; an overrun becomes debt.
    B,
    /// The largest possible charge is held, durably, before dispatch: `used + held <= granted` always.
    D,
}

impl Tier {
    /// The letter stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::B => "B",
            Tier::D => "D",
        }
    }

    /// The inverse of [`Tier::as_str`].
    pub fn parse(text: &str) -> Option<Tier> {
        [Tier::B, Tier::D]
            .into_iter()
            .find(|tier| tier.as_str() == text)
    }
}

/// What a policy counts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Micro-WTU, the charge.
    MicroWtu,
    /// Raw tokens: uncached, cached and decoded ones alike.
    Tokens,
}

impl Unit {
    /// The name stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Unit::MicroWtu => "uwtu",
            Unit::Tokens => "tokens",
        }
    }

    /// The inverse of [`Unit::as_str`].
    pub fn parse(text: &str) -> Option<Unit> {
        [Unit::MicroWtu, Unit::Tokens]
            .into_iter()
            .find(|unit| unit.as_str() == text)
    }
}

/// How much a window grants, in the policy's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Counted, never refused.
    Metered,
    /// At most this much.
    Of(u64),
}

/// What happens to an overrun at the end of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// It stays in its window.
    Forget,
    /// It is debt in the next window. Only tier B can overrun, so only tier B carries.
    Debt,
}

/// More for a while. The extra goes away by itself at `until`; what was used or held by then stays granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boost {
    /// Added to the limit.
    pub extra: u64,
    /// First instant without the extra.
    pub until: UnixMs,
}

/// The name of a policy, unique within its account: `budget`, `tokens-per-minute`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName(Arc<str>);

impl PolicyName {
    /// 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub fn parse(text: &str) -> Result<PolicyName, PolicyError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if text.is_empty() || text.len() > 64 || !text.bytes().all(allowed) {
            return Err(PolicyError::Name(text.chars().take(64).collect()));
        }
        Ok(PolicyName(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// One limit of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySpec {
    /// Unique within the account.
    pub name: PolicyName,
    /// The promise.
    pub tier: Tier,
    /// What is counted.
    pub unit: Unit,
    /// When it starts over.
    pub window: Window,
    /// How much a window grants.
    pub limit: Limit,
    /// More for a while.
    pub boost: Option<Boost>,
    /// Debt above which nothing is admitted even when the window has room.
    pub debt_max: Option<u64>,
    /// What happens to an overrun.
    pub carry: Carry,
    /// Where a charge goes that does not fit: the name of another policy of the same account, which is then
    /// no limit of its own. A plan overflows into a top-up.
    pub overflow: Option<PolicyName>,
}

impl PolicySpec {
    /// A policy with nothing but a limit. Tier B carries its debt.
    pub fn new(
        name: PolicyName,
        tier: Tier,
        unit: Unit,
        window: Window,
        limit: Limit,
    ) -> PolicySpec {
        let carry = match tier {
            Tier::B => Carry::Debt,
            Tier::D => Carry::Forget,
        };
        PolicySpec {
            name,
            tier,
            unit,
            window,
            limit,
            boost: None,
            debt_max: None,
            carry,
            overflow: None,
        }
    }

    /// The limit at an instant, with the boost while it lasts. `None` when nothing is refused.
    pub fn limit_at(&self, now: UnixMs) -> Option<u64> {
        let Limit::Of(limit) = self.limit else {
            return None;
        };
        let extra = self
            .boost
            .filter(|boost| now < boost.until)
            .map_or(0, |boost| boost.extra);
        Some(limit.saturating_add(extra).min(i64::MAX as u64))
    }

    /// Whether the parts go together; `siblings` are all policies of the account.
    pub fn check(&self, siblings: &[PolicySpec]) -> Result<(), PolicyError> {
        if self.tier == Tier::D && self.carry == Carry::Debt {
            return Err(PolicyError::CarryInD(self.name.clone()));
        }
        if siblings
            .iter()
            .filter(|other| other.name == self.name)
            .count()
            > 1
        {
            return Err(PolicyError::Twice(self.name.clone()));
        }
        let Some(target) = &self.overflow else {
            return Ok(());
        };
        let found = siblings.iter().find(|other| other.name == *target);
        match found {
            Some(other)
                if other.unit == self.unit
                    && other.tier == self.tier
                    && other.name != self.name
                    && other.overflow.is_none()
                    && self.limit != Limit::Metered =>
            {
                Ok(())
            }
            _ => Err(PolicyError::Overflow(self.name.clone(), target.clone())),
        }
    }
}

/// Why a policy is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not a name.
    #[error("{0:?} is not a policy name: 1 to 64 letters, digits and . _ -")]
    Name(String),
    /// Two policies of an account share a name.
    #[error("the account has two policies named {0}")]
    Twice(PolicyName),
    /// A hard cap cannot carry debt: it never has any.
    #[error("policy {0} is tier D and cannot carry debt")]
    CarryInD(PolicyName),
    /// The overflow target does not fit.
    #[error(
        "policy {0} cannot overflow into {1}: the target is another policy of the account with the same unit and tier, and no overflow of its own"
    )]
    Overflow(PolicyName, PolicyName),
}
