//! The simulated engines of `headpond up`.

use anyhow::{Context as _, bail, ensure};
use loadgen::engine::{Fault, SimEngine};
use scheduler_proxy::config::EndpointFile;

use crate::cli::Simulation;
use crate::config::Checked;
use crate::engine::Hardware;
use crate::usage::Usage;

/// Starts simulated engines for the models of the configuration, and tells the scheduler what to expect of them.
pub(super) async fn engines(
    simulation: &Simulation,
    checked: &mut Checked,
) -> anyhow::Result<Vec<SimEngine>> {
    nothing_about_real_ones(checked)?;
    let hardware = hardware(simulation)?;
    let models: Vec<String> = checked
        .governance
        .models
        .iter()
        .map(|model| model.served_as.clone())
        .collect();
    ensure!(
        !models.is_empty(),
        "governance.models: none; name at least one model for the engines to serve"
    );
    let engines = start(simulation, hardware, &models).await?;
    checked.scheduling.endpoints =
        super::endpoints(engines.iter().map(|engine| EndpointFile::at(&engine.url())))?;
    checked.scheduling.profile.peak_prefill =
        hardware.profile.peak_prefill_tokens_per_second() * hardware.speed;
    checked.scheduling.profile.kv_tokens = hardware.profile.kv_tokens;
    Ok(engines)
}

/// Settings that only describe real engines, or others that share them, say that `endpoints` was forgotten: nothing
/// here would follow them.
fn nothing_about_real_ones(checked: &Checked) -> anyhow::Result<()> {
    if let Some(field) = checked.of_real_engines() {
        bail!(
            "scheduling.endpoints: none, and scheduling.{field} is about real engines; name them in endpoints or with --endpoint, or leave {field} out to try the file on simulated ones"
        );
    }
    Ok(())
}

fn hardware(simulation: &Simulation) -> anyhow::Result<Hardware> {
    Hardware::parse(
        simulation.profile.as_deref().unwrap_or("8b-a100"),
        simulation.speed.unwrap_or(1.0),
    )
}

fn slow_factor(simulation: &Simulation) -> anyhow::Result<f64> {
    let slow = simulation.slow.unwrap_or(3.0);
    ensure!(
        slow.is_finite() && (1.0..=1_000.0).contains(&slow),
        Usage::new(format!(
            "--slow: {slow} is not allowed; use a number from 1 to 1000"
        ))
    );
    Ok(slow)
}

async fn start(
    simulation: &Simulation,
    hardware: Hardware,
    models: &[String],
) -> anyhow::Result<Vec<SimEngine>> {
    let count = simulation.engines.unwrap_or(3);
    let mut engines = Vec::with_capacity(usize::from(count));
    for number in 1..=count {
        let mut config = hardware.config(models.to_vec());
        config.seed = u64::from(number);
        let engine = SimEngine::start(config)
            .await
            .context("a simulated engine could not listen")?;
        if number == count && count > 1 {
            engine.faults().inject(Fault::Slow {
                factor: slow_factor(simulation)?,
            });
        }
        engines.push(engine);
    }
    Ok(engines)
}
