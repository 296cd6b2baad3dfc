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
const MOST_CONTEXT: u64 = 100_000_000;

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
    let tokens = tokens(file, path)?;
    let price = file
        .price
        .as_ref()
        .map(|price| rates(price, &path.field("price")))
        .transpose()?;
    Ok(Model {
        served_as: match &file.served_as {
            Some(served) => parse::model_name(served, &path.field("served_as"))?,
            None => name.clone(),
        },
        name,
        aliases,
        pool: pool(file, path)?,
        engine: engine(file, path)?,
        engine_priority: file.engine_priority,
        context_tokens: tokens.context,
        max_output_tokens: tokens.most_output,
        default_max_tokens: tokens.usual_output,
        tier: parse::name(file.tier.as_deref().unwrap_or("T2"), &path.field("tier"))?,
        price,
        unknown_fields: unknown_fields(file, path)?,
        milli_bytes_per_token_floor: milli_bytes(
            file.bytes_per_token_floor.as_ref(),
            1000,
            &path.field("bytes_per_token_floor"),
        )?,
        milli_bytes_per_token_ceiling: milli_bytes(
            file.bytes_per_token_ceiling.as_ref(),
            128_000,
            &path.field("bytes_per_token_ceiling"),
        )?,
    })
}

struct Tokens {
    context: u64,
    most_output: u64,
    usual_output: u64,
}

fn tokens(file: &ModelFile, path: &Path) -> Checked<Tokens> {
    let within = |value: u64, most: u64, field: &str| {
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        Err(path
            .field(field)
            .refuse(value, format!("1 to {most} tokens")))
    };
    let context = within(file.context_tokens, MOST_CONTEXT, "context_tokens")?;
    let most_output = file.max_output_tokens.unwrap_or(context);
    let most_output = within(most_output, context, "max_output_tokens")?;
    let usual_output = file.default_max_tokens.unwrap_or(most_output.min(1024));
    Ok(Tokens {
        context,
        most_output,
        usual_output: within(usual_output, most_output, "default_max_tokens")?,
    })
}

fn pool(file: &ModelFile, path: &Path) -> Checked<PoolName> {
    let pool = file.pool.as_deref().unwrap_or("default");
    PoolName::new(pool).map_err(|_| {
        path.field("pool")
            .refuse(pool, "1 to 128 visible ASCII characters")
    })
}

fn engine(file: &ModelFile, path: &Path) -> Checked<Engine> {
    parse::choice(
        file.engine.as_deref().unwrap_or("vllm"),
        &[
            ("vllm", Engine::Vllm),
            ("sglang", Engine::Sglang),
            ("openai", Engine::OpenAi),
        ],
        &path.field("engine"),
    )
}

fn unknown_fields(file: &ModelFile, path: &Path) -> Checked<UnknownFields> {
    parse::choice(
        file.unknown_fields.as_deref().unwrap_or("drop"),
        &[
            ("drop", UnknownFields::Drop),
            ("reject", UnknownFields::Reject),
            ("pass", UnknownFields::Pass),
        ],
        &path.field("unknown_fields"),
    )
}

/// Bytes in thousandths.
fn milli_bytes(number: Option<&Number>, default: u64, path: &Path) -> Checked<u64> {
    let Some(number) = number else {
        return Ok(default);
    };
    match parse::decimal(&number.to_string(), 3, path)? {
        0 => Err(path.refuse(number, "more than 0 bytes")),
        milli => Ok(milli),
    }
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
