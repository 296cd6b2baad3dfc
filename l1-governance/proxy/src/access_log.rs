//! One line per request, in fields. Never a prompt, a secret, or a value a caller made up, other
//! than its own request id.

use governance_context::ObjectiveName;

use crate::record::Record;

/// The tracing target of the access log.
pub const TARGET: &str = "access";

pub(crate) fn line(record: &Record) {
    let identity = record.identity.as_ref();
    let objective = record.objective.as_ref();
    let settlement = record.settlement.as_ref();
    let outcome = record.outcome.as_ref();
    tracing::info!(
        target: TARGET,
        request = %record.request,
        client_request = record.client_request_id.as_deref(),
        route = record.route,
        model = record.model.as_deref(),
        stream = record.streaming,
        tenant = identity.map(|identity| identity.tenant.as_str()),
        project = identity.map(|identity| identity.project.as_str()),
        user = identity.and_then(|identity| identity.user.as_deref()),
        key = identity.map(|identity| identity.key.as_str()),
        objective = objective.and_then(|objective| objective.name.as_ref()).map(ObjectiveName::as_str),
        band = objective.map(|objective| objective.band.0),
        status = outcome.map(|outcome| outcome.status),
        code = outcome.map(|outcome| outcome.code),
        held_uwtu = record.reservation.as_ref().map(|reservation| reservation.held_uwtu.0),
        settled = settlement.map(|settlement| settlement.state),
        prompt_tokens = settlement.map(|settlement| settlement.prompt_tokens),
        cached_tokens = settlement.map(|settlement| settlement.cached_tokens),
        output_tokens = settlement.map(|settlement| settlement.output_tokens),
        charged_uwtu = settlement.map(|settlement| settlement.charged_uwtu.0),
        estimated = settlement.map(|settlement| settlement.estimated),
        endpoint = record.scheduling.endpoint.as_deref(),
        queue_ms = record.scheduling.queue_ms,
        admitted_us = record.timing.admitted_us,
        first_data_us = record.timing.first_data_us,
        total_us = record.timing.total_us,
        policy = record.policy_version.as_str(),
    );
}
