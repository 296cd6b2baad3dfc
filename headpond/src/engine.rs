//! `headpond engine`: one simulated engine. `headpond up` starts several.

use anyhow::{Context as _, ensure};
use engine_model::Profile;
use loadgen::engine::{ControlPath, EngineConfig, SimEngine, Task, Vocabulary};

use crate::cli::Engine;
use crate::shutdown::Shutdown;
use crate::usage::Usage;

/// What several engines have in common.
#[derive(Clone, Copy)]
pub(crate) struct Hardware {
    pub(crate) profile: Profile,
    pub(crate) speed: f64,
}

impl Hardware {
    pub(crate) fn parse(profile: &str, speed: f64) -> anyhow::Result<Self> {
        let profile = profile.parse().context(Usage::new("--profile"))?;
        ensure!(
            speed.is_finite() && (0.01..=10_000.0).contains(&speed),
            Usage::new(format!(
                "--speed: {speed} is not allowed; use a number from 0.01 to 10000"
            ))
        );
        Ok(Self { profile, speed })
    }

    pub(crate) fn config(self, models: Vec<String>) -> EngineConfig {
        EngineConfig {
            models,
            speed: self.speed,
            task: Task::Both,
            ..EngineConfig::new(self.profile)
        }
    }
}

pub(crate) async fn run(options: Engine) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen()?;
    let hardware = Hardware::parse(&options.profile, options.speed)?;
    let vocabulary: Vocabulary = options
        .vocabulary
        .parse()
        .context(Usage::new("--vocabulary"))?;
    let config = EngineConfig {
        listen: options.listen,
        vocabulary,
        seed: options.seed,
        control_path: if options.faults {
            ControlPath::On
        } else {
            ControlPath::Off
        },
        ..hardware.config(options.model.clone())
    };
    let engine = SimEngine::start(config).await.with_context(|| {
        format!(
            "cannot listen on {}; is it in use? Port 0 takes any free one",
            options.listen
        )
    })?;
    println!(
        "a simulated {vocabulary} serves {} on {}",
        options.model.join(", "),
        engine.url()
    );
    shutdown.requested().await;
    engine.shutdown().await;
    Ok(())
}
