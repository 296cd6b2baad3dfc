//! The `models:` of the section.

use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::PoolName;
use governance_core::price::{PicoPerToken, Rates};
use governance_core::sanitize::{Engine, UnknownFields};

use super::file::{ModelFile, Number, PriceFile};
use super::parse::{self, Checked, Path};
use super::{Catalogue, Model};

/// One WTU per token. A price per million entered as a price per token is far above.
const MOST_PICO_PER_TOKEN: u64 = 1_000_000_000_000;

pub(super) fn catalogue(files: &[ModelFile], root: &Path) -> Checked<Catalogue> {
    let mut models = Vec::with_capacity(files.len());
    let mut by_name = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        let path = root.index("models", index);
        let model = model(file, &path)?;
        for name in std::iter::once(&model.name).chain(&model.aliases) {
            if by_name.insert(name.clone(), index).is_some() {
                return Err(path.refuse(name, "names and aliases that no other model has"));
            }
        }
        models.push(Arc::new(model));
    }
    Ok(Catalogue { models, by_name })
}

fn model(file: &ModelFile, path: &Path) -> Checked<Model> {
    let name = parse::model_name(&file.name, &path.field("name"))?;
    let aliases = file
        .aliases
        .iter()
        .enumerate()
        .map(|(index, alias)| parse::model_name(alias, &path.index("aliases", index)))
        .collect::<Checked<Vec<String>>>()?;
    let pool = file.pool.as_deref().unwrap_or("default");
    let tokens = |value: Option<u64>, default: u64, most: u64, field: &str| {
        let value = value.unwrap_or(default);
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        Err(path
            .field(field)
            .refuse(value, format!("1 to {most} tokens")))
    };
    let context_tokens = tokens(Some(file.context_tokens), 0, 100_000_000, "context_tokens")?;
    let max_output_tokens = tokens(
        file.max_output_tokens,
        context_tokens,
        context_tokens,
        "max_output_tokens",
    )?;
    let default_max_tokens = tokens(
        file.default_max_tokens,
        max_output_tokens.min(1024),
        max_output_tokens,
        "default_max_tokens",
    )?;
    let per_token = |value: &Option<Number>, default: u64, field: &str| match value {
        None => Ok(default),
        Some(number) => match parse::decimal(&number.to_string(), 3, &path.field(field))? {
            0 => Err(path.field(field).refuse(number, "more than 0 bytes")),
            milli => Ok(milli),
        },
    };
    Ok(Model {
        served_as: match &file.served_as {
            Some(served) => parse::model_name(served, &path.field("served_as"))?,
            None => name.clone(),
        },
        name,
        aliases,
        pool: PoolName::new(pool).map_err(|error| {
            path.field("pool")
                .refuse(pool, format!("a name that {error}"))
        })?,
        engine: parse::choice(
            file.engine.as_deref().unwrap_or("vllm"),
            &[
                ("vllm", Engine::Vllm),
                ("sglang", Engine::Sglang),
                ("openai", Engine::OpenAi),
            ],
            &path.field("engine"),
        )?,
        engine_priority: file.engine_priority,
        context_tokens,
        max_output_tokens,
        default_max_tokens,
        tier: parse::name(file.tier.as_deref().unwrap_or("T2"), &path.field("tier"))?,
        price: file
            .price
            .as_ref()
            .map(|price| rates(price, &path.field("price")))
            .transpose()?,
        unknown_fields: parse::choice(
            file.unknown_fields.as_deref().unwrap_or("drop"),
            &[
                ("drop", UnknownFields::Drop),
                ("reject", UnknownFields::Reject),
                ("pass", UnknownFields::Pass),
            ],
            &path.field("unknown_fields"),
        )?,
        milli_bytes_per_token_floor: per_token(
            &file.bytes_per_token_floor,
            1000,
            "bytes_per_token_floor",
        )?,
        milli_bytes_per_token_ceiling: per_token(
            &file.bytes_per_token_ceiling,
            128_000,
            "bytes_per_token_ceiling",
        )?,
    })
}

fn rates(file: &PriceFile, path: &Path) -> Checked<Rates> {
    let rate = |number: &Number, field: &str| {
        let path = path.field(field);
        let pico = parse::decimal(&number.to_string(), 12, &path)?;
        if pico > MOST_PICO_PER_TOKEN {
            return Err(path.refuse(
                number,
                "at most 1 WTU per token; is it a price per million?",
            ));
        }
        Ok(PicoPerToken(pico))
    };
    let uncached = rate(&file.uncached, "uncached")?;
    let cached = match &file.cached {
        Some(cached) => rate(cached, "cached")?,
        None => uncached,
    };
    if cached > uncached {
        let given = file
            .cached
            .as_ref()
            .expect("it differs from the uncached rate");
        return Err(path
            .field("cached")
            .refuse(given, "at most the uncached rate"));
    }
    Ok(Rates {
        uncached,
        cached,
        decode: rate(&file.output, "output")?,
    })
}
