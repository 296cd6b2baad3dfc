//! `headpond load --rehearse`: a configuration file to what is simulated.

use std::path::Path;

use anyhow::Context as _;
use pool_simulator::Scenario;

use super::Load;
use crate::config::File;
use crate::usage::Usage;

/// The policy and the flow control of a file, in front of engines of the profile that the targets are judged by.
pub(super) fn scenario(options: &Load, file: &Path) -> anyhow::Result<Scenario> {
    let checked = File::read(file)?.check();
    let scheduling = checked
        .with_context(|| format!("in {}", file.display()))?
        .scheduling;
    Ok(Scenario {
        profile: options.profile.parse().context(Usage::new("--profile"))?,
        engines: options.engines,
        refuse: scheduling.flow.other_bands.refuse,
        flow: scheduling.flow,
        blackout: options.blackout.as_deref().map(blackout).transpose()?,
        seed: options.seed,
        ..Scenario::new(scheduling.policy)
    })
}

fn blackout(text: &str) -> anyhow::Result<(f64, f64)> {
    let bounds = || {
        let (from, until) = text.split_once("..")?;
        Some((from.trim().parse().ok()?, until.trim().parse().ok()?))
    };
    bounds()
        .filter(|(from, until): &(f64, f64)| *from >= 0.0 && until > from)
        .with_context(|| {
            Usage::new(format!(
                "--blackout: {text:?} is not allowed; write FROM..UNTIL in seconds, such as 30..40"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::blackout;

    #[test]
    fn a_blackout_has_a_beginning_and_a_later_end() {
        assert_eq!(blackout("30..40.5").ok(), Some((30.0, 40.5)));
        for text in ["", "30", "40..30", "-1..4", "a..b", "NaN..4"] {
            assert!(blackout(text).is_err(), "{text}");
        }
    }
}
