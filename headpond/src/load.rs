//! `headpond load`: arguments to a plan, the report to a table or JSON.

mod options;
mod rehearsal;
mod senders;

pub(crate) use options::Load;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use engine_model::Profile;
use loadgen::drive::{
    self, Api, Bounds, Crowd, Delivery, Group, OutputLength, Plan, Progress, Slo, Target, Traffic,
};
use workload::trace::Embedded;
use workload::{
    Arrivals, Factor, Generated, Lengths, Limits, Mix, Rate, Requests, Schedule, Trace,
};

use crate::counted::counted;
use crate::ready::Ready;
use crate::usage::Usage;

/// What a run ends with whose figures would mislead.
const INVALID: u8 = 3;

pub(crate) async fn run(options: Load) -> anyhow::Result<ExitCode> {
    let ready = options.ready_file.as_deref().map(Ready::read).transpose()?;
    let plan = plan(&options, ready.as_ref())?;
    let report = match &options.rehearse {
        Some(file) => drive::rehearse(plan, rehearsal::scenario(&options, file)?)?,
        None => drive::run(plan, &target(&options, ready.as_ref())?, progress(&options)).await?,
    };
    if options.json {
        println!("{}", report.to_json());
    } else {
        println!("{report}");
    }
    Ok(if report.is_valid() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INVALID)
    })
}

fn progress(options: &Load) -> Progress {
    if options.json {
        Progress::Silent
    } else {
        Progress::if_terminal()
    }
}

fn target(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Target> {
    let url = options.url.as_ref().or(ready.map(|ready| &ready.url));
    let url = url.context(Usage::new("give --url or --ready-file"))?;
    url.parse().context(Usage::new("--url"))
}

fn plan(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Plan> {
    let profile: Profile = options.profile.parse().context(Usage::new("--profile"))?;
    let (name, traffic) = if options.group.is_empty() {
        let (name, schedule) = schedule(options)?;
        let traffic = Traffic::Mixed {
            schedule: Box::new(schedule),
            tenants: senders::mixed(options, ready)?,
        };
        (name, traffic)
    } else {
        crowd(options, ready)?
    };
    Ok(Plan {
        name,
        models: models(options, ready)?,
        traffic,
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

fn crowd(options: &Load, ready: Option<&Ready>) -> anyhow::Result<(String, Traffic)> {
    let groups = options.group.iter().map(|group| group.parse());
    let groups: Vec<Group> = groups
        .collect::<Result<_, _>>()
        .context(Usage::new("--group"))?;
    let duration = Duration::from_secs(options.duration);
    let crowd = Crowd::new(&groups, duration, options.seed).context(Usage::new("--group"))?;
    let tenants = senders::of_groups(&groups, options, ready)?;
    let name = format!(
        "{} for {} s",
        counted(groups.len() as u64, "group"),
        options.duration
    );
    Ok((name, Traffic::Crowd { crowd, tenants }))
}

fn models(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Mix<String>> {
    let first = ready.and_then(|ready| ready.models.first()).cloned();
    let models = match (&options.model[..], first) {
        ([], Some(first)) => vec![first],
        // Virtual time has one model, whatever it is called.
        ([], None) if options.rehearse.is_some() => vec!["demo".to_owned()],
        ([], None) => bail!(Usage::new(
            "give --model or --ready-file: which model to ask for"
        )),
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
        let factor = Factor::new(options.factor).context(Usage::new("--factor"))?;
        let name = format!("{trace_name} × {}", factor.get());
        (
            name,
            Arrivals::Recorded { factor, jitter },
            Requests::Trace(Arc::new(trace)),
        )
    } else {
        let rate = Rate::new(options.rate).context(Usage::new("--rate"))?;
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
    tokens.to_string().parse().context(Usage::new(flag))
}

/// A built-in trace, or a file in the same format.
fn trace_named(name: &str) -> anyhow::Result<(String, Trace, Duration)> {
    let unknown = match name.parse::<Embedded>() {
        Ok(embedded) => return Ok((embedded.to_string(), embedded.load(), embedded.jitter())),
        Err(unknown) => unknown,
    };
    let path = Path::new(name);
    if !path.exists() {
        return Err(unknown)
            .with_context(|| Usage::new(format!("--trace: {name} is no file either")));
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("--trace: cannot read {name}"))?;
    let trace = Trace::parse(&text).with_context(|| format!("--trace: {name}"))?;
    Ok((name.to_owned(), trace, Duration::ZERO))
}
