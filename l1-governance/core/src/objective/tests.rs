use proptest::prelude::*;

use super::*;

fn name(text: &str) -> ObjectiveName {
    ObjectiveName::new(text).unwrap()
}

/// `gold band=5 ttl=1000`: an objective's name, then fields; either may be missing.
fn choice(text: &str) -> Choice {
    let mut choice = Choice::default();
    for word in text.split_whitespace() {
        let Some((field, value)) = word.split_once('=') else {
            choice.objective = Some(name(word));
            continue;
        };
        let fields = &mut choice.fields;
        match field {
            "band" => fields.band = Some(Band(value.parse().unwrap())),
            "weight" => fields.weight = Some(value.parse().unwrap()),
            "ttl" => fields.ttl_ms = Some(value.parse().unwrap()),
            "ttft" => fields.ttft_ms = Some(value.parse().unwrap()),
            "tpot" => fields.tpot_ms = Some(value.parse().unwrap()),
            other => panic!("no field {other}"),
        }
    }
    choice
}

fn objectives(default: Option<&str>) -> Objectives {
    let named = [
        ("gold", "band=10 weight=4 ttl=5000 ttft=800 tpot=50"),
        ("batch", "band=-1 ttl=3600000"),
        ("bare", ""),
    ];
    Objectives {
        named: named
            .into_iter()
            .map(|(objective, fields)| (name(objective), choice(fields).fields))
            .collect(),
        default: default.map(name),
        ttl_ms: 60_000,
    }
}

fn shown(terms: &Terms) -> String {
    fn said<T: std::fmt::Display>(said: &Said<T>) -> String {
        format!("{}/{}", said.value, said.by.as_str())
    }
    let target = |target: &Option<Said<u32>>| target.as_ref().map_or("-".to_owned(), said);
    format!(
        "{} band={} weight={} ttl={} ttft={} tpot={}",
        terms.objective.as_ref().map_or("-".to_owned(), said),
        said(&terms.band),
        said(&terms.weight),
        said(&terms.ttl_ms),
        target(&terms.ttft_ms),
        target(&terms.tpot_ms),
    )
}

#[test]
fn the_level_closest_to_the_key_decides() {
    for (default, tenant, project, key, expected) in [
        (
            "",
            "",
            "",
            "",
            "- band=0/default weight=1/default ttl=60000/default ttft=- tpot=-",
        ),
        (
            "gold",
            "",
            "",
            "",
            "gold/default band=10/objective weight=4/objective ttl=5000/objective ttft=800/objective tpot=50/objective",
        ),
        (
            "gold",
            "batch",
            "",
            "",
            "batch/tenant band=-1/objective weight=1/default ttl=3600000/objective ttft=- tpot=-",
        ),
        (
            "",
            "gold",
            "batch",
            "gold",
            "gold/key band=10/objective weight=4/objective ttl=5000/objective ttft=800/objective tpot=50/objective",
        ),
        // A field of an account holds whatever objective a level below it names.
        (
            "",
            "gold weight=9",
            "batch ttft=700",
            "tpot=20",
            "batch/project band=-1/objective weight=9/tenant ttl=3600000/objective ttft=700/project tpot=20/key",
        ),
        (
            "",
            "band=1",
            "band=2",
            "band=3",
            "- band=3/key weight=1/default ttl=60000/default ttft=- tpot=-",
        ),
        // What an objective leaves out is the default, not what another objective says.
        (
            "gold",
            "gold",
            "bare",
            "",
            "bare/project band=0/default weight=1/default ttl=60000/default ttft=- tpot=-",
        ),
        // A name without an objective is passed over.
        (
            "",
            "batch",
            "",
            "gone band=7",
            "batch/tenant band=7/key weight=1/default ttl=3600000/objective ttft=- tpot=-",
        ),
        (
            "gone",
            "gone",
            "gone",
            "gone",
            "- band=0/default weight=1/default ttl=60000/default ttft=- tpot=-",
        ),
    ] {
        let objectives = objectives((!default.is_empty()).then_some(default));
        let terms = objectives.resolve(&choice(tenant), &choice(project), &choice(key));
        assert_eq!(
            shown(&terms),
            expected,
            "{default} | {tenant} | {project} | {key}"
        );
    }
}

/// The precedence written out, one field and one level at a time.
fn reference(objectives: &Objectives, path: [&Choice; 3]) -> String {
    let words = ["tenant", "project", "key"];
    let mut objective = None;
    if let Some(default) = &objectives.default
        && objectives.named.contains_key(default)
    {
        objective = Some((default.clone(), "default"));
    }
    for (choice, word) in path.iter().zip(words) {
        if let Some(named) = &choice.objective
            && objectives.named.contains_key(named)
        {
            objective = Some((named.clone(), word));
        }
    }
    let read = |fields: &Fields, field: usize| match field {
        0 => fields.band.map(|band| i64::from(band.0)),
        1 => fields.weight.map(i64::from),
        2 => fields.ttl_ms.map(|ttl| i64::try_from(ttl).unwrap()),
        3 => fields.ttft_ms.map(i64::from),
        _ => fields.tpot_ms.map(i64::from),
    };
    let ttl = i64::try_from(objectives.ttl_ms).unwrap();
    let defaults = [Some(0), Some(1), Some(ttl), None, None];
    let mut parts = Vec::new();
    for (field, default) in defaults.into_iter().enumerate() {
        let mut value = default.map(|value| (value, "default"));
        if let Some((named, _)) = &objective
            && let Some(said) = read(&objectives.named[named], field)
        {
            value = Some((said, "objective"));
        }
        for (choice, word) in path.iter().zip(words) {
            if let Some(said) = read(&choice.fields, field) {
                value = Some((said, word));
            }
        }
        parts.push(value.map_or("-".to_owned(), |(value, by)| format!("{value}/{by}")));
    }
    format!(
        "{} band={} weight={} ttl={} ttft={} tpot={}",
        objective.map_or("-".to_owned(), |(named, by)| format!("{named}/{by}")),
        parts[0],
        parts[1],
        parts[2],
        parts[3],
        parts[4]
    )
}

fn any_fields() -> impl Strategy<Value = Fields> {
    let target = || proptest::option::of(1..86_400_000_u32);
    (
        proptest::option::of(any::<i32>()),
        proptest::option::of(1..1_000_000_u32),
        proptest::option::of(1..86_400_000_u64),
        target(),
        target(),
    )
        .prop_map(|(band, weight, ttl_ms, ttft_ms, tpot_ms)| Fields {
            band: band.map(Band),
            weight,
            ttl_ms,
            ttft_ms,
            tpot_ms,
        })
}

fn any_name() -> impl Strategy<Value = ObjectiveName> {
    proptest::sample::select(vec!["a", "b", "c", "gone"]).prop_map(name)
}

fn any_choice() -> impl Strategy<Value = Choice> {
    (proptest::option::of(any_name()), any_fields())
        .prop_map(|(objective, fields)| Choice { objective, fields })
}

fn any_objectives() -> impl Strategy<Value = Objectives> {
    let named = proptest::collection::vec(any_fields(), 3);
    (named, proptest::option::of(any_name()), 1..86_400_000_u64).prop_map(
        |(fields, default, ttl_ms)| Objectives {
            named: ["a", "b", "c"].into_iter().map(name).zip(fields).collect(),
            default,
            ttl_ms,
        },
    )
}

proptest! {
    #[test]
    fn every_combination_equals_the_precedence_written_out(
        objectives in any_objectives(),
        tenant in any_choice(),
        project in any_choice(),
        key in any_choice(),
    ) {
        let terms = objectives.resolve(&tenant, &project, &key);
        prop_assert_eq!(shown(&terms), reference(&objectives, [&tenant, &project, &key]));
    }
}
