//! From what people wrote to what L1 does, or the first thing that is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use governance_context::{Band, MicroWtu, PolicyVersion, PoolName, TenantId};
use governance_core::account::{
    Limit as LedgerLimit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window, parse_tokens,
    parse_wtu,
};
use governance_core::keys::{Models, Role};
use governance_core::limits::Rate;
use governance_core::price::{PicoPerToken, Rates, Ratio, Unpriced};
use governance_core::sanitize::{Engine, UnknownFields};

use super::file::{
    KeyFile, LimitFile, ModelFile, Number, PriceFile, ProjectFile, SecretFile, TenantFile,
    TimeoutsFile, UserFile,
};
use super::parse::{self, Path};
use super::{
    Catalogue, Config, ConfigError, File, KeyConfig, Limit, Model, Project, SecretSource, Sizes,
    Tenant, Timeouts, User,
};

const MIB: u64 = 1024 * 1024;
/// One WTU per token. A price per million entered as a price per token is far above.
const MOST_PICO_PER_TOKEN: u64 = 1_000_000_000_000;
/// Answers and bodies above this would be held in memory by mistake rather than on purpose.
const MOST_BYTES: u64 = 1024 * MIB;

type Checked<T> = Result<T, ConfigError>;

impl Config {
    /// Checks everything; the error names the field, its value and what is allowed.
    pub fn check(file: File) -> Checked<Self> {
        let root = Path::root("governance");
        let version = version_of(&file);
        let models = catalogue(&file.models, &root)?;
        let tenants = tenants(file.tenants, &models, &root)?;
        let source = |secret: Option<SecretFile>, name: &str| {
            secret
                .map(|secret| secret_source(secret, &root.field(name)))
                .transpose()
        };
        Ok(Self {
            admin_token: source(file.admin_token, "admin_token")?,
            installation_secret: source(file.installation_secret, "installation_secret")?,
            sizes: Sizes {
                body: bytes(file.max_body_bytes, 64 * MIB, &root.field("max_body_bytes"))?,
                answer: bytes(
                    file.max_answer_bytes,
                    64 * MIB,
                    &root.field("max_answer_bytes"),
                )?,
            },
            timeouts: timeouts(&file.timeouts, &root.field("timeouts"))?,
            allowed_origins: origins(file.cors.allowed_origins, &root.field("cors"))?,
            no_price: no_price(file.no_price.as_deref(), file.floor_wtu.as_ref(), &root)?,
            decision_records: records(file.decision_records, &root.field("decision_records"))?,
            access_log: file.access_log.unwrap_or(true),
            models,
            tenants,
            version,
        })
    }
}

/// The same settings have the same version, whatever the order of their lines.
fn version_of(file: &File) -> PolicyVersion {
    let text = serde_json::to_vec(file).expect("plain data serialises");
    let hash = blake3::hash(&text).to_hex();
    PolicyVersion::new(&hash[..16]).expect("hexadecimal digits are visible ASCII")
}

fn bytes(value: Option<u64>, default: u64, path: &Path) -> Checked<usize> {
    let value = value.unwrap_or(default);
    if (1024..=MOST_BYTES).contains(&value) {
        return Ok(value as usize);
    }
    Err(path.refuse(value, "bytes from 1024 to 1073741824"))
}

fn records(value: Option<usize>, path: &Path) -> Checked<usize> {
    let value = value.unwrap_or(10_000);
    if (1..=1_000_000).contains(&value) {
        return Ok(value);
    }
    Err(path.refuse(value, "1 to 1000000"))
}

fn timeouts(file: &TimeoutsFile, path: &Path) -> Checked<Timeouts> {
    let read = |value: &Option<String>, name: &str, default: u64| match value {
        Some(text) => parse::duration(text, &path.field(name)),
        None => Ok(Duration::from_secs(default)),
    };
    Ok(Timeouts {
        header_read: read(&file.header_read, "header_read", 30)?,
        body_read: read(&file.body_read, "body_read", 60)?,
        idle: read(&file.idle, "idle", 75)?,
        answer: read(&file.answer, "answer", 1800)?,
        keep_alive_grace: read(&file.keep_alive_grace, "keep_alive_grace", 10)?,
        keep_alive_every: read(&file.keep_alive_every, "keep_alive_every", 15)?,
        queue: read(&file.queue, "queue", 60)?,
    })
}

fn origins(origins: Vec<String>, path: &Path) -> Checked<Vec<String>> {
    for (index, origin) in origins.iter().enumerate() {
        let host = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"));
        let bare = host.is_some_and(|host| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
        });
        if origin != "*" && !bare {
            return Err(path
                .index("allowed_origins", index)
                .refuse(origin, "scheme://host[:port] without a path, or \"*\""));
        }
    }
    Ok(origins)
}

fn no_price(word: Option<&str>, floor: Option<&Number>, root: &Path) -> Checked<Unpriced> {
    let path = root.field("no_price");
    match word.unwrap_or("refuse") {
        "refuse" if floor.is_some() => Err(root.field("floor_wtu").refuse(
            floor.expect("just checked"),
            "nothing, unless no_price is \"floor\"",
        )),
        "refuse" => Ok(Unpriced::Refuse),
        "floor" => {
            let floor = floor.ok_or_else(|| {
                root.field("floor_wtu")
                    .refuse("", "the WTU to hold and charge")
            })?;
            Ok(Unpriced::Floor(wtu(floor, &root.field("floor_wtu"))?))
        }
        other => Err(path.refuse(other, "one of refuse, floor")),
    }
}

fn wtu(number: &Number, path: &Path) -> Checked<MicroWtu> {
    parse::decimal(&number.to_string(), 6, path).map(MicroWtu)
}

fn catalogue(files: &[ModelFile], root: &Path) -> Checked<Catalogue> {
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

fn tenants(files: Vec<TenantFile>, models: &Catalogue, root: &Path) -> Checked<Vec<Tenant>> {
    let mut names = BTreeSet::new();
    let mut tenants = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        let path = root.index("tenants", index);
        unique(&mut names, &file.name, &path)?;
        tenants.push(tenant(file, models, &path)?);
    }
    Ok(tenants)
}

fn unique(names: &mut BTreeSet<String>, name: &str, path: &Path) -> Checked<()> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    Err(path
        .field("name")
        .refuse(name, "a name no other one here has"))
}

fn tenant(file: TenantFile, models: &Catalogue, path: &Path) -> Checked<Tenant> {
    let name = parse::name(&file.name, &path.field("name"))?;
    let weight = file.weight.unwrap_or(1);
    if !(1..=1_000_000).contains(&weight) {
        return Err(path.field("weight").refuse(weight, "1 to 1000000"));
    }
    let mut names = BTreeSet::new();
    let mut projects = Vec::with_capacity(file.projects.len());
    for (index, project_file) in file.projects.into_iter().enumerate() {
        let path = path.index("projects", index);
        unique(&mut names, &project_file.name, &path)?;
        projects.push(project(project_file, models, &path)?);
    }
    Ok(Tenant {
        name: TenantId::new(name).expect("a checked name is visible ASCII"),
        band: Band(file.band),
        weight,
        ratio: ratio(file.ratio.as_ref(), path)?,
        models: allowlist(file.models, models, path)?,
        limits: limits(&file.limits, path)?,
        cache_group: file
            .cache_group
            .map(|group| parse::name(&group, &path.field("cache_group")))
            .transpose()?,
        projects,
    })
}

fn ratio(number: Option<&Number>, path: &Path) -> Checked<Ratio> {
    let Some(number) = number else {
        return Ok(Ratio::ONE);
    };
    Ratio::parse(&number.to_string()).ok_or_else(|| {
        path.field("ratio").refuse(
            number,
            "a positive decimal or fraction, such as 0.75 or 3/2",
        )
    })
}

fn project(file: ProjectFile, models: &Catalogue, path: &Path) -> Checked<Project> {
    let mut names = BTreeSet::new();
    let mut users = Vec::with_capacity(file.users.len());
    for (index, UserFile { name, limits: own }) in file.users.into_iter().enumerate() {
        let path = path.index("users", index);
        unique(&mut names, &name, &path)?;
        let name = parse::name(&name, &path.field("name"))?;
        users.push(User {
            name,
            limits: limits(&own, &path)?,
        });
    }
    let mut names = BTreeSet::new();
    let mut keys = Vec::with_capacity(file.keys.len());
    for (index, key_file) in file.keys.into_iter().enumerate() {
        let path = path.index("keys", index);
        unique(&mut names, &key_file.name, &path)?;
        keys.push(key(key_file, &users, models, &path)?);
    }
    Ok(Project {
        name: parse::name(&file.name, &path.field("name"))?,
        limits: limits(&file.limits, path)?,
        models: allowlist(file.models, models, path)?,
        users,
        keys,
    })
}

fn key(file: KeyFile, users: &[User], models: &Catalogue, path: &Path) -> Checked<KeyConfig> {
    if let Some(user) = &file.user
        && !users.iter().any(|known| known.name == *user)
    {
        return Err(path
            .field("user")
            .refuse(user, "a name listed under users of the project"));
    }
    Ok(KeyConfig {
        name: parse::name(&file.name, &path.field("name"))?,
        user: file.user,
        role: parse::choice(
            file.role.as_deref().unwrap_or("member"),
            &[("member", Role::Member), ("lead", Role::Lead)],
            &path.field("role"),
        )?,
        expires_unix_s: file.expires,
        models: allowlist(file.models, models, path)?,
        limits: limits(&file.limits, path)?,
        secret: secret_source(file.secret, &path.field("secret"))?,
    })
}

fn secret_source(file: SecretFile, path: &Path) -> Checked<SecretSource> {
    match (file.file, file.env) {
        (Some(file), None) => Ok(SecretSource::File(file)),
        (None, Some(env)) if !env.is_empty() => Ok(SecretSource::Env(env)),
        (_, env) => Err(path.refuse(
            env.unwrap_or_default(),
            "exactly one of {file: PATH} and {env: NAME}; secrets never stand in this file",
        )),
    }
}

/// Names on a list must exist, so that a typing error does not silently forbid a model.
fn allowlist(names: Option<Vec<String>>, models: &Catalogue, path: &Path) -> Checked<Models> {
    let Some(names) = names else {
        return Ok(Models::All);
    };
    let mut canonical = BTreeSet::new();
    for (index, name) in names.iter().enumerate() {
        let model = models.find(name).ok_or_else(|| {
            let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            path.index("models", index)
                .refuse(name, format!("one of {}", known.join(", ")))
        })?;
        canonical.insert(model.name.clone());
    }
    Ok(Models::Only(canonical))
}

fn limits(files: &[LimitFile], path: &Path) -> Checked<Vec<Limit>> {
    let mut limits = Vec::with_capacity(files.len());
    let mut policies: Vec<PolicySpec> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let path = path.index("limits", index);
        let limit = limit(file, &path)?;
        if let Limit::Ledger(policy) = &limit {
            policies.push(policy.clone());
            policy.check(&policies).map_err(|error| {
                path.refuse(
                    policy.name.as_str(),
                    format!("a limit of its own ({error})"),
                )
            })?;
        }
        limits.push(limit);
    }
    Ok(limits)
}

fn limit(file: &LimitFile, path: &Path) -> Checked<Limit> {
    let positive = |value: u64, field: &str| match value {
        0 => Err(path.field(field).refuse(0, "at least 1")),
        value => Ok(value),
    };
    match (file.requests, file.concurrency, &file.wtu, &file.tokens) {
        (Some(requests), None, None, None) => {
            tier_among(file, &["A"], path)?;
            let count = positive(requests, "requests")?;
            let burst = positive(file.burst.unwrap_or(count), "burst")?;
            let text = file.per.as_deref().unwrap_or_default();
            let per = parse::duration(text, &path.field("per"))?;
            let rate = Rate::new(small(count), nanoseconds(per), small(burst));
            Ok(Limit::Rate(rate.map_err(|error| path.field("per").refuse(text, error.to_string()))?))
        }
        (None, Some(concurrency), None, None) if file.per.is_none() && file.burst.is_none() => {
            tier_among(file, &["A"], path)?;
            Ok(Limit::Concurrency(small(positive(concurrency, "concurrency")?)))
        }
        (None, None, Some(amount), None) if file.burst.is_none() => {
            let amount = parse_wtu(&amount.to_string())
                .map_err(|error| path.field("wtu").refuse(amount, error.to_string()))?;
            ledger_limit(file, Unit::MicroWtu, amount.0, path)
        }
        (None, None, None, Some(amount)) if file.burst.is_none() => {
            let amount = parse_tokens(&amount.to_string())
                .map_err(|error| path.field("tokens").refuse(amount, error.to_string()))?;
            ledger_limit(file, Unit::Tokens, amount, path)
        }
        _ => Err(path.refuse(
            "a limit",
            "exactly one of {requests, per, burst?}, {concurrency}, {wtu, per, tier: B|D}, {tokens, per, tier: B|D}",
        )),
    }
}

/// More than four billion of anything is as good as four billion.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn tier_among<'a>(file: &'a LimitFile, allowed: &[&'a str], path: &Path) -> Checked<&'a str> {
    match file.tier.as_deref() {
        None => Ok(allowed[0]),
        Some(tier) if allowed.contains(&tier) => Ok(tier),
        Some(tier) => Err(path
            .field("tier")
            .refuse(tier, format!("one of {}", allowed.join(", ")))),
    }
}

fn ledger_limit(file: &LimitFile, unit: Unit, amount: u64, path: &Path) -> Checked<Limit> {
    let tier = match tier_among(file, &["B", "D"], path)? {
        "D" => Tier::D,
        _ => Tier::B,
    };
    let mode = file.window.as_deref().unwrap_or("rolling");
    let per = file.per.as_deref().unwrap_or_default();
    let anchor = match (file.anchor, mode) {
        (None, "rolling") => Some(UnixMs(0)),
        (anchor, _) => anchor.map(|seconds| UnixMs(seconds.saturating_mul(1000))),
    };
    let window = Window::parse(mode, per, file.zone.as_deref().unwrap_or_default(), anchor)
        .map_err(|error| path.field("per").refuse(per, error.to_string()))?;
    let name = file.name.clone().unwrap_or_else(|| {
        let what = if unit == Unit::Tokens {
            "tokens"
        } else {
            "wtu"
        };
        format!("{what}-{}", if per.is_empty() { mode } else { per })
    });
    let name = PolicyName::parse(&name)
        .map_err(|error| path.field("name").refuse(&name, error.to_string()))?;
    Ok(Limit::Ledger(PolicySpec::new(
        name,
        tier,
        unit,
        window,
        LedgerLimit::Of(amount),
    )))
}
