//! Engines that have not answered yet, as the first screens of `up` and `schedule` tell of them.

use std::time::Duration;

use scheduler_proxy::SchedulerProxy;

/// How long a first screen waits for the first word of all engines.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// The engines that are silent.
pub(crate) async fn engines(scheduler: &SchedulerProxy) -> Vec<String> {
    scheduler.unheard(FIRST_WORD).await
}

/// Names those that may be missing.
pub(crate) fn sentence(silent: &[String]) -> String {
    format!(
        "NO ANSWER YET from {}: check the address, or start the engine; `headpond top` tells when it has answered",
        silent.join(", ")
    )
}
