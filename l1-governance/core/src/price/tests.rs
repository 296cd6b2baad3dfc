use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::{Band, MicroWtu};
use proptest::prelude::*;

use super::*;
use crate::account::UnixMs;

fn rates(uncached: &str, cached: &str, decode: &str) -> Rates {
    let rate = |text| PicoPerToken::per_million(text).unwrap();
    Rates {
        uncached: rate(uncached),
        cached: rate(cached),
        decode: rate(decode),
    }
}

fn one_band(rates: Rates) -> Arc<[ContextBand]> {
    [ContextBand { up_to: None, rates }].into()
}

fn priced(version: u32, effective: u64, bands: Arc<[ContextBand]>) -> Priced {
    Priced {
        version: PriceVersion(version),
        effective: UnixMs(effective),
        bands,
    }
}

fn book() -> Book {
    let long = [
        ContextBand {
            up_to: Some(1000),
            rates: rates("2", "0.5", "8"),
        },
        ContextBand {
            up_to: None,
            rates: rates("4", "1", "6"),
        },
    ];
    let ratios = Ratios {
        version: PriceVersion(7),
        effective: UnixMs(0),
        groups: BTreeMap::from([(GroupName("partner".into()), Ratio::parse("3/4").unwrap())]),
        bands: BTreeMap::from([(Band(10), Ratio::parse("1.5").unwrap())]),
    };
    BookBuilder::new(Sanity::default())
        .price("small", priced(1, 0, one_band(rates("2.5", "0.25", "10"))))
        .and_then(|b| b.price("small", priced(2, 5000, one_band(rates("3", "0.3", "12")))))
        .and_then(|b| b.price("long", priced(1, 0, long.into())))
        .and_then(|b| b.price("free", priced(1, 0, one_band(Rates::default()))))
        .and_then(|b| b.ratios(ratios))
        .unwrap()
        .build()
}

fn quote(model: &str, group: &str, band: i32, now: u64) -> Quote {
    book()
        .quote(model, &GroupName(group.into()), Band(band), UnixMs(now))
        .unwrap()
}

fn tokens(uncached: u64, cached: u64, decode: u64) -> Tokens {
    Tokens {
        uncached,
        cached,
        decode,
    }
}

#[test]
fn a_charge_is_the_sum_of_classes_rounded_up_once() {
    let cases = [
        // 1000 · 2.5 + 400 · 0.25 + 100 · 10 micro-WTU
        ("small", "", 0, tokens(1000, 400, 100), 3600),
        // 1 · 2.5 is rounded up
        ("small", "", 0, tokens(1, 0, 0), 3),
        // 2.5 + 0.25 + 10 = 12.75: one rounding, not three
        ("small", "", 0, tokens(1, 1, 1), 13),
        ("small", "partner", 0, tokens(1000, 0, 0), 1875),
        ("small", "partner", 10, tokens(1000, 0, 0), 2813),
        ("small", "nobody", 3, tokens(1000, 0, 0), 2500),
        ("long", "", 0, tokens(900, 100, 10), 1930),
        ("long", "", 0, tokens(900, 101, 10), 3761),
        ("free", "", 0, tokens(1 << 50, 1, 1 << 50), 0),
        ("small", "", 0, tokens(0, 0, 0), 0),
    ];
    for (model, group, band, tokens, micro) in cases {
        assert_eq!(
            quote(model, group, band, 0).charge(&tokens),
            MicroWtu(micro),
            "{model} {group} {band} {tokens:?}"
        );
    }
}

#[test]
fn prices_take_effect_on_their_date_and_are_stamped() {
    assert_eq!(quote("small", "", 0, 4999).stamp().price, PriceVersion(1));
    assert_eq!(quote("small", "", 0, 5000).stamp().price, PriceVersion(2));
    assert_eq!(quote("small", "", 0, 5000).stamp().ratios, PriceVersion(7));
    assert_eq!(quote("small", "", 0, 5000).stamp().rounding, ROUNDING);
}

#[test]
fn raw_tokens_can_be_rated_again_with_any_version() {
    let old = quote("small", "partner", 10, 0);
    let tokens = tokens(123, 45, 67);
    let same = book().requote(old.stamp(), PriceVersion(1)).unwrap();
    assert_eq!(same.charge(&tokens), old.charge(&tokens));
    let newer = book().requote(old.stamp(), PriceVersion(2)).unwrap();
    assert_eq!(
        newer.charge(&tokens),
        quote("small", "partner", 10, 9999).charge(&tokens)
    );
    assert!(book().requote(old.stamp(), PriceVersion(9)).is_err());
}

#[test]
fn case_04_a_model_without_a_price_is_refused_or_held_at_the_floor() {
    let group = GroupName::default();
    let strict = book().quote("new", &group, Band(0), UnixMs(0));
    assert_eq!(strict, Err(NoPrice("new".to_owned())));
    let floor = BookBuilder::new(Sanity::default())
        .unpriced(Unpriced::Floor(MicroWtu(500)))
        .build();
    let quote = floor.quote("new", &group, Band(0), UnixMs(0)).unwrap();
    assert_eq!(quote.largest(10, 10, 1), MicroWtu(500));
    assert_eq!(quote.charge(&tokens(1, 0, 0)), MicroWtu(500));
    assert_eq!(quote.charge(&tokens(0, 0, 0)), MicroWtu(0));
    let later = priced(1, 1000, one_band(rates("1", "1", "1")));
    let book = BookBuilder::new(Sanity::default())
        .price("soon", later)
        .unwrap()
        .build();
    assert!(
        book.quote("soon", &group, Band(0), UnixMs(999)).is_err(),
        "not in force yet"
    );
}

#[test]
fn case_05_the_hold_scales_with_the_estimate() {
    let quote = quote("small", "", 0, 0);
    assert_eq!(quote.largest(1000, 1000, 1), MicroWtu(12_500));
    assert_eq!(quote.largest(1000, 1000, 4), MicroWtu(42_500));
    assert!(quote.estimate(100_000, 0) > quote.estimate(100, 0));
}

#[test]
fn case_16_a_price_per_million_entered_as_a_price_per_token_is_refused() {
    let add = |rates: Rates| {
        BookBuilder::new(Sanity::default()).price("m", priced(1, 0, one_band(rates)))
    };
    // 2.5 WTU per token is 2.5 million WTU per million tokens.
    let wrong = PicoPerToken(2_500_000_000_000);
    let error = add(Rates {
        uncached: wrong,
        ..Rates::default()
    });
    let error = error.unwrap_err();
    assert!(
        matches!(
            error,
            BookError::AboveBound {
                class: "uncached",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("per million"), "{error}");
    assert!(matches!(
        add(rates("1", "2", "1")),
        Err(BookError::CachedAboveUncached(_))
    ));
}

#[test]
fn a_new_version_is_newer_and_near() {
    let first = || {
        BookBuilder::new(Sanity::default())
            .price("m", priced(1, 10, one_band(rates("2", "1", "4"))))
    };
    let then = |version, at, decode: &str| {
        first()
            .and_then(|book| {
                book.price("m", priced(version, at, one_band(rates("2", "1", decode))))
            })
            .map(drop)
    };
    assert_eq!(then(2, 11, "5"), Ok(()));
    assert!(matches!(then(1, 11, "5"), Err(BookError::NotNewer { .. })));
    assert!(matches!(then(2, 10, "5"), Err(BookError::NotNewer { .. })));
    assert!(matches!(
        then(2, 11, "400"),
        Err(BookError::Step {
            class: "decode",
            ..
        })
    ));
    assert!(matches!(
        then(2, 11, "0.01"),
        Err(BookError::Step {
            class: "decode",
            ..
        })
    ));
    let open = ContextBand {
        up_to: Some(5),
        rates: Rates::default(),
    };
    assert!(matches!(
        BookBuilder::new(Sanity::default()).price("m", priced(1, 0, [open].into())),
        Err(BookError::Bands(_))
    ));
}

#[test]
fn ratios_are_fractions_of_positive_integers() {
    for text in [
        "0",
        "1/0",
        "0/1",
        "-1",
        "x",
        "",
        "1/2/3",
        "2000000",
        "1/1048577",
    ] {
        assert_eq!(Ratio::parse(text), None, "{text}");
    }
    assert_eq!(Ratio::parse("0.75"), Ratio::new(3, 4));
    assert_eq!(Ratio::parse("2"), Ratio::new(2, 1));
}

proptest! {
    #[test]
    fn no_outcome_within_the_bounds_costs_more_than_the_largest(
        prompt in 0u64..5000, output in 0u64..5000, n in 1u32..5,
        real_prompt in 0u64..5000, cached in 0u64..5000, decode in 0u64..20_000, band in prop::sample::select(vec![0, 10]),
    ) {
        let real_prompt = real_prompt.min(prompt);
        let cached = cached.min(real_prompt);
        let real = tokens(real_prompt - cached, cached, decode.min(output * u64::from(n)));
        for model in ["small", "long", "free"] {
            let quote = quote(model, "partner", band, 0);
            prop_assert!(quote.charge(&real) <= quote.largest(prompt, output, n));
        }
    }

    #[test]
    fn the_affordable_output_is_the_last_that_fits(prompt in 0u64..5000, n in 1u32..4, budget in 0u64..200_000) {
        for model in ["small", "long"] {
            let quote = quote(model, "", 10, 0);
            match quote.affordable_output(prompt, n, MicroWtu(budget)) {
                None => prop_assert!(quote.largest(prompt, 0, n) > MicroWtu(budget)),
                Some(output) => {
                    prop_assert!(quote.largest(prompt, output, n) <= MicroWtu(budget));
                    prop_assert!(quote.largest(prompt, output + 1, n) > MicroWtu(budget));
                }
            }
        }
    }

    #[test]
    fn a_charge_is_exact_arithmetic(uncached in 0u64..1 << 41, cached in 0u64..1 << 41, decode in 0u64..1 << 41) {
        let tokens = tokens(uncached, cached, decode);
        let exact: u128 = [(uncached, 2_500_000u128), (cached, 250_000), (decode, 10_000_000)]
            .iter()
            .map(|(count, rate)| u128::from((*count).min(1 << 40)) * rate)
            .sum();
        prop_assert_eq!(u128::from(quote("small", "", 0, 0).charge(&tokens).0), exact.div_ceil(1_000_000));
    }
}
