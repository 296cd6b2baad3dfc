//! `headpond load`: arguments to a plan, the report to a table or JSON.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use engine_model::Profile;
use loadgen::drive::{
    self, Api, ApiKey, Bounds, Delivery, OutputLength, Plan, Progress, Slo, Tenant,
};
use workload::trace::Embedded;
use workload::{
    Arrivals, Factor, Generated, Lengths, Limits, Mix, Rate, Requests, Schedule, Trace,
};

use crate::cli::Load;
use crate::ready::Ready;

/// What a run ends with when its own schedule lagged: its figures would flatter the server.
const LAGGED: u8 = 3;

pub(crate) async fn run(options: Load) -> anyhow::Result<ExitCode> {
    let plan = plan(&options)?;
    let progress = if options.json {
        Progress::Silent
    } else {
        Progress::if_terminal()
    };
    let report = drive::run(plan, progress).await?;
    if options.json {
        println!("{}", report.to_json());
    } else {
        println!("{report}");
    }
    Ok(if report.is_valid() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(LAGGED)
    })
}

fn plan(options: &Load) -> anyhow::Result<Plan> {
    let ready = match &options.ready_file {
        Some(path) => Some(Ready::read(path)?),
        None => None,
    };
    let url = options
        .url
        .clone()
        .or_else(|| ready.as_ref().map(|ready| ready.url.clone()));
    let url = url.context("give --url or --ready-file")?;
    let profile: Profile = options.profile.parse().context("--profile")?;
    let (name, schedule) = schedule(options)?;
    Ok(Plan {
        name,
        target: url.parse().context("--url")?,
        tenants: tenants(options, ready.as_ref())?,
        models: models(options, ready.as_ref())?,
        schedule,
        speed: options.speed,
        seed: options.seed,
        api: Api::Chat,
        delivery: Delivery::Stream,
        output_length: OutputLength::Exact,
        cancel: options.cancel,
        slo: Slo::of(profile),
        bounds: Bounds::at_speed(options.speed),
    })
}

fn tenants(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Mix<Tenant>> {
    let mut keys: Vec<(String, String)> = Vec::new();
    if options.key.is_empty() {
        keys.extend(
            ready
                .into_iter()
                .flat_map(|ready| &ready.tenants)
                .map(|tenant| (tenant.name.clone(), tenant.key.clone())),
        );
    } else {
        keys.extend(
            options
                .key
                .iter()
                .enumerate()
                .map(|(index, key)| (format!("key {}", index + 1), key.clone())),
        );
    }
    if keys.is_empty() {
        return Ok(Mix::new([(
            Tenant {
                name: "nobody".to_owned(),
                key: None,
            },
            1,
        )])?);
    }
    let tenants = keys
        .into_iter()
        .map(|(name, key)| {
            let key = ApiKey::new(&key)
                .with_context(|| format!("the key of {name} cannot stand in a header"))?;
            Ok((
                Tenant {
                    name,
                    key: Some(key),
                },
                1,
            ))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Mix::new(tenants)?)
}

fn models(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Mix<String>> {
    let first = ready.and_then(|ready| ready.models.first()).cloned();
    let models = match (&options.model[..], first) {
        ([], Some(first)) => vec![first],
        ([], None) => bail!("give --model: which one to ask for"),
        (given, _) => given.to_vec(),
    };
    Ok(Mix::new(models.into_iter().map(|model| (model, 1)))?)
}

fn schedule(options: &Load) -> anyhow::Result<(String, Schedule)> {
    let limits = Limits {
        requests: Some(options.requests as u64),
        duration: None,
    };
    let (name, arrivals, requests) = if let Some(trace) = &options.trace {
        let (trace_name, trace, jitter) = trace_named(trace)?;
        let factor = Factor::new(options.factor).context("--factor")?;
        let name = format!("{trace_name} × {}", factor.get());
        (
            name,
            Arrivals::Recorded { factor, jitter },
            Requests::Trace(Arc::new(trace)),
        )
    } else {
        let rate = Rate::new(options.rate).context("--rate")?;
        let generated = Generated {
            input: lengths(options.prompt_tokens, "--prompt-tokens")?,
            output: lengths(options.output_tokens, "--output-tokens")?,
            shared_tokens: options.prompt_tokens / 2,
            groups: 8,
        };
        (
            format!("Poisson {}/s", rate.get()),
            Arrivals::Poisson(rate),
            Requests::Generated(generated),
        )
    };
    Ok((
        name,
        Schedule::new(arrivals, requests, limits, options.seed)?,
    ))
}

fn lengths(tokens: u32, flag: &str) -> anyhow::Result<Lengths> {
    tokens.to_string().parse().with_context(|| flag.to_owned())
}

/// A built-in trace, or a file in the same format.
fn trace_named(name: &str) -> anyhow::Result<(String, Trace, Duration)> {
    let unknown = match name.parse::<Embedded>() {
        Ok(embedded) => return Ok((embedded.to_string(), embedded.load(), embedded.jitter())),
        Err(unknown) => unknown,
    };
    let path = Path::new(name);
    if !path.exists() {
        return Err(unknown).with_context(|| format!("--trace: {name} is no file either"));
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("--trace: cannot read {name}"))?;
    let trace = Trace::parse(&text).with_context(|| format!("--trace: {name}"))?;
    Ok((name.to_owned(), trace, Duration::ZERO))
}
