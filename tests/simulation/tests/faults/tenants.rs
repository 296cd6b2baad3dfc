//! Who pays, how much they may spend, and what things cost.

use std::collections::BTreeMap;

use governance_context::Band;
use governance_core::account::{
    AccountId, Boost, Carry, Kind, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
};
use governance_core::limits::{self, Rate, Rule};
use governance_core::price::{
    Book, BookBuilder, ContextBand, GroupName, PicoPerToken, PriceVersion, Priced, Rates, Ratio,
    Ratios, Sanity,
};

use crate::chance::Chance;

pub(crate) const TENANTS: u64 = 6;
pub(crate) const MODEL: &str = "model";
const SHORT_PROMPT: u64 = 3_100;

/// Since when, in milliseconds; pico-WTU per token uncached, cached and generated, up to a short prompt and beyond.
const PRICES: [(u64, [u64; 3], [u64; 3]); 3] = [
    (
        0,
        [1_234_567, 123_456, 4_000_001],
        [1_500_000, 150_001, 5_000_000],
    ),
    (
        20_000,
        [2_000_003, 200_000, 6_000_007],
        [2_000_003, 0, 7_000_000],
    ),
    (
        60_000,
        [999_999, 99_999, 2_999_999],
        [1_999_999, 199_999, 3_999_999],
    ),
];
/// Numerator and denominator by band; one for the others.
const BANDS: [(i32, u32, u32); 2] = [(-1, 1, 2), (5, 3, 2)];
const GOLD: (u32, u32) = (9, 10);

pub(crate) fn group(tenant: u64) -> GroupName {
    GroupName(if tenant == 0 { "gold" } else { "" }.into())
}

pub(crate) fn book() -> Book {
    let ratio = |num, den| Ratio::new(num, den).expect("a fraction");
    let rates = |[uncached, cached, decode]: [u64; 3]| Rates {
        uncached: PicoPerToken(uncached),
        cached: PicoPerToken(cached),
        decode: PicoPerToken(decode),
    };
    let mut builder = BookBuilder::new(Sanity::default());
    for ((since, short, long), version) in PRICES.into_iter().zip(1..) {
        let band = |up_to, rated| ContextBand {
            up_to,
            rates: rates(rated),
        };
        let priced = Priced {
            version: PriceVersion(version),
            effective: UnixMs(since),
            bands: [band(Some(SHORT_PROMPT), short), band(None, long)].into(),
        };
        builder = builder.price(MODEL, priced).expect("a price within bounds");
    }
    let ratios = Ratios {
        version: PriceVersion(1),
        effective: UnixMs(0),
        groups: BTreeMap::from([(group(0), ratio(GOLD.0, GOLD.1))]),
        bands: BANDS
            .into_iter()
            .map(|(band, num, den)| (Band(band), ratio(num, den)))
            .collect(),
    };
    builder.ratios(ratios).expect("the first ratios").build()
}

/// What tokens cost at the prices of an instant, by hand.
pub(crate) fn price(at: UnixMs, tenant: u64, band: Band, tokens: [u64; 3]) -> u64 {
    let (_, short, long) = PRICES
        .into_iter()
        .rfind(|(since, ..)| *since <= at.0)
        .expect("there is a first price");
    let is_short = tokens[0] + tokens[1] <= SHORT_PROMPT;
    let rates = if is_short { short } else { long };
    let pico: u128 = (0..3)
        .map(|class| u128::from(tokens[class]) * u128::from(rates[class]))
        .sum();
    let of_band = BANDS.into_iter().find(|(of, ..)| *of == band.0);
    let (num, den) = of_band.map_or((1, 1), |(_, num, den)| (num, den));
    let (gold, copper) = if tenant == 0 { GOLD } else { (1, 1) };
    let micro = (pico * u128::from(num) * u128::from(gold))
        .div_ceil(1_000_000 * u128::from(den) * u128::from(copper));
    u64::try_from(micro).expect("a small charge")
}

/// The accounts of a tenant, parents first; the keys come last.
pub(crate) fn accounts(tenant: u64) -> Vec<(AccountId, Kind)> {
    [
        (format!("t{tenant}"), Kind::Tenant),
        (format!("t{tenant}/p"), Kind::Project),
        (format!("t{tenant}/p/k0"), Kind::Key),
        (format!("t{tenant}/p/k1"), Kind::Key),
    ]
    .map(|(id, kind)| (AccountId::parse(&id).expect("a short id"), kind))
    .into()
}

fn policy(name: &str, tier: Tier, unit: Unit, window: Window, limit: u64) -> PolicySpec {
    let name = PolicyName::parse(name).expect("a short name");
    PolicySpec::new(name, tier, unit, window, Limit::Of(limit))
}

fn rolling(seconds: u64) -> Window {
    Window::Rolling {
        origin: UnixMs(0),
        period_ms: seconds * 1_000,
    }
}

/// Limits drawn by chance.
pub(crate) fn policies(chance: &mut Chance, kind: Kind, now: UnixMs) -> Vec<PolicySpec> {
    let mut policies = match kind {
        Kind::Tenant => tenant(chance),
        Kind::Project => project(chance),
        Kind::User | Kind::Key | Kind::Task | Kind::Pool => key(chance),
    };
    if let Some(first) = policies.first_mut()
        && chance.one_in(4)
    {
        first.boost = Some(Boost {
            extra: chance.of(&[1, 50_000]),
            until: now.plus(chance.below(10_000)),
        });
    }
    policies
}

fn tenant(chance: &mut Chance) -> Vec<PolicySpec> {
    let unit = chance.of(&[Unit::MicroWtu, Unit::Tokens]);
    match chance.below(5) {
        0 => Vec::new(),
        1 => vec![policy(
            "budget",
            Tier::D,
            unit,
            Window::Balance,
            chance.of(&[400_000, 4_000_000, 1 << 40]),
        )],
        2 => vec![policy(
            "cap",
            Tier::D,
            Unit::MicroWtu,
            rolling(10),
            chance.of(&[60_000, 1_000_000]),
        )],
        3 => overflowing(chance, Tier::D),
        _ => vec![policy("most", Tier::D, unit, Window::Balance, 1 << 40)],
    }
}

fn project(chance: &mut Chance) -> Vec<PolicySpec> {
    let unit = chance.of(&[Unit::MicroWtu, Unit::Tokens]);
    match chance.below(5) {
        0 | 3 => vec![PolicySpec {
            debt_max: chance.of(&[None, Some(0), Some(3_000)]),
            ..policy(
                "window",
                Tier::B,
                unit,
                rolling(5),
                chance.of(&[5_000, 30_000]),
            )
        }],
        1 => vec![PolicySpec {
            carry: Carry::Forget,
            ..policy("forgiven", Tier::B, unit, rolling(5), 60_000)
        }],
        2 => overflowing(chance, Tier::B),
        _ => Vec::new(),
    }
}

fn key(chance: &mut Chance) -> Vec<PolicySpec> {
    match chance.below(5) {
        0 => vec![policy(
            "cap",
            Tier::D,
            Unit::MicroWtu,
            rolling(4),
            chance.of(&[20_000, 90_000]),
        )],
        1 => vec![
            policy(
                "tokens",
                Tier::B,
                Unit::Tokens,
                rolling(2),
                chance.of(&[3_000, 40_000]),
            ),
            policy("cash", Tier::B, Unit::MicroWtu, Window::Balance, 3_000_000),
        ],
        _ => Vec::new(),
    }
}

/// A plan, and what it overflows into.
fn overflowing(chance: &mut Chance, tier: Tier) -> Vec<PolicySpec> {
    let limit = chance.of(&[15_000, 60_000]);
    let mut plan = policy("plan", tier, Unit::MicroWtu, rolling(10), limit);
    let mut top_up = policy("top-up", tier, Unit::MicroWtu, Window::Balance, 900_000);
    plan.overflow = Some(top_up.name.clone());
    (plan.carry, top_up.carry) = (Carry::Forget, Carry::Forget);
    vec![plan, top_up]
}

/// Requests at once and per time.
pub(crate) fn limits(tenant: u64) -> Vec<limits::Limit> {
    let account = accounts(tenant).swap_remove(0).0;
    let limit = |rule| limits::Limit {
        account: account.clone(),
        rule,
    };
    let rate = |count| Rate::new(count, 1_000_000_000, count).expect("a rate");
    match tenant {
        0 | 1 => Vec::new(),
        2 => vec![limit(Rule::Concurrency(6))],
        _ => vec![limit(Rule::Rate(rate(30))), limit(Rule::Concurrency(40))],
    }
}
