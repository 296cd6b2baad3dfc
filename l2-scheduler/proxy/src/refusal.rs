//! What a request that gets no turn is told, and what is kept of it.

use std::borrow::Cow;
use std::time::Duration;

use governance_context::TtlSource;
use scheduler_core::{EmptiedBy, Refusal, RefusalKind, Scope};
use serde::Serialize;

use crate::answer::{Code, Problem};
use crate::limit::{LimitedBy, WaitLimit};

/// A refusal as the record shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Refused {
    /// Whose limit or quota was reached, or which filter left no endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<&'static str>,
    waited_ms: f64,
    /// Requests that waited in the pool.
    queue_length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_wait_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<f64>,
}

impl Refused {
    pub(crate) fn note(refusal: &Refusal) -> Self {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        Self {
            because: because(refusal.kind),
            waited_ms: ms(refusal.waited),
            queue_length: refusal.queue_length,
            predicted_wait_ms: refusal.predicted_wait.map(ms),
            retry_after_ms: refusal.retry_after.map(ms),
        }
    }
}

/// The answer to a request that is refused. Its first sentence says what happened, the rest what to do.
pub(crate) fn problem(refusal: &Refusal, limit: Option<WaitLimit>) -> Problem {
    let problem = Problem::new(code(refusal.kind), message(refusal, limit));
    match refusal.retry_after {
        Some(after) => problem.retry_after(after),
        None => problem,
    }
}

fn code(kind: RefusalKind) -> Code {
    match kind {
        RefusalKind::QueueFull(_) => Code::QueueFull,
        RefusalKind::QueueWait => Code::QueueWait,
        RefusalKind::Shed => Code::Shed,
        RefusalKind::OverQuota(_) => Code::OverQuota,
        RefusalKind::Displaced => Code::Displaced,
        RefusalKind::QueueExpired => Code::QueueExpired,
        RefusalKind::NoEndpoint(_) => Code::NoEndpoint,
        // Whoever withdrew its request does not wait for this; what still waits is withdrawn at the end of a drain.
        RefusalKind::ShuttingDown | RefusalKind::ClientClosed => Code::ShuttingDown,
    }
}

fn message(refusal: &Refusal, limit: Option<WaitLimit>) -> Cow<'static, str> {
    let waiting = match refusal.queue_length {
        1 => "1 request waits".to_owned(),
        length => format!("{length} requests wait"),
    };
    match refusal.kind {
        RefusalKind::QueueFull(scope) => format!(
            "{} has as much waiting as it may, and {waiting} in the pool. Wait as long as retry-after \
             says, or send fewer requests at a time.",
            whose(scope)
        ),
        RefusalKind::QueueWait => match refusal.predicted_wait {
            Some(wait) => format!(
                "The request has waited {} ms and would have to wait {} ms more, longer than its target or its time to \
                 live allows. Wait as long as retry-after says, or use a key whose objective has more patience.",
                refusal.waited.as_millis(),
                wait.as_millis()
            ),
            None => "The request can no longer get its first token in time. Wait as long as retry-after says, or use \
                     a key whose objective has more patience."
                .to_owned(),
        },
        RefusalKind::Shed => format!(
            "The pool is saturated and takes no more requests of this priority, and {waiting} in it. \
             Wait as long as retry-after says, or use a key whose objective has a higher priority."
        ),
        RefusalKind::OverQuota(scope) => {
            let fits = refusal.predicted_wait.map_or(String::new(), |wait| {
                format!("; the request fits in {} ms", wait.as_millis())
            });
            format!(
                "{} has as much work under way as its quota in this pool allows{fits}. Wait as long as retry-after \
                 says, or send fewer and smaller requests at a time.",
                whose(scope)
            )
        }
        RefusalKind::Displaced => "A request of a higher priority took the place of this one in a full queue. Wait as \
                                   long as retry-after says, or use a key whose objective has a higher priority."
            .to_owned(),
        RefusalKind::QueueExpired => expired(refusal, limit),
        RefusalKind::NoEndpoint(emptied_by) => return no_endpoint(emptied_by).into(),
        RefusalKind::ShuttingDown | RefusalKind::ClientClosed => {
            return "The scheduler is shutting down. Send the request again: another one will take it.".into();
        }
    }
    .into()
}

fn expired(refusal: &Refusal, limit: Option<WaitLimit>) -> String {
    let time = limit.map_or(refusal.waited, |limit| limit.time);
    let by = limit.map_or(LimitedBy::Own(TtlSource::Unsaid), |limit| limit.by);
    let (whose, patient) = match by {
        LimitedBy::Band => (
            "a request of its priority band may wait",
            "of a band with more patience",
        ),
        LimitedBy::Own(TtlSource::Gateway) => (
            "timeouts.queue lets a request wait",
            "whose objective has more patience",
        ),
        LimitedBy::Own(TtlSource::Objective) => (
            "its objective lets a request wait",
            "whose objective has more patience",
        ),
        LimitedBy::Own(TtlSource::Tenant) => {
            ("its tenant lets a request wait", "with more patience")
        }
        LimitedBy::Own(TtlSource::Project) => (
            "its project lets a request wait",
            "of a project with more patience",
        ),
        LimitedBy::Own(TtlSource::Key) => ("its key lets a request wait", "with more patience"),
        LimitedBy::Own(TtlSource::Unsaid) => {
            ("the request may wait", "whose objective has more patience")
        }
    };
    format!(
        "No endpoint had room within the {} ms that {whose}. Wait as long as retry-after says, or use a key {patient}.",
        time.as_millis()
    )
}

fn no_endpoint(emptied_by: EmptiedBy) -> String {
    let advice = match emptied_by {
        EmptiedBy::Context => "Shorten the prompt",
        EmptiedBy::Model => "Ask for another model, or try again as retry-after says",
        EmptiedBy::Pool | EmptiedBy::Draining | EmptiedBy::Quarantine => {
            "Try again as retry-after says"
        }
    };
    let reason = emptied_by.reason();
    let mut sentence = String::with_capacity(reason.len() + advice.len() + 4);
    let mut letters = reason.chars();
    sentence.extend(letters.next().map(|first| first.to_ascii_uppercase()));
    sentence.push_str(letters.as_str());
    sentence + ". " + advice + "."
}

fn because(kind: RefusalKind) -> Option<&'static str> {
    match kind {
        RefusalKind::QueueFull(scope) | RefusalKind::OverQuota(scope) => Some(match scope {
            Scope::Flow => "flow",
            Scope::Band => "band",
            Scope::Pool => "pool",
        }),
        RefusalKind::NoEndpoint(emptied_by) => Some(match emptied_by {
            EmptiedBy::Pool => "empty",
            EmptiedBy::Draining => "draining",
            EmptiedBy::Model => "model",
            EmptiedBy::Context => "context",
            EmptiedBy::Quarantine => "quarantine",
        }),
        RefusalKind::QueueWait
        | RefusalKind::Shed
        | RefusalKind::QueueExpired
        | RefusalKind::Displaced
        | RefusalKind::ShuttingDown
        | RefusalKind::ClientClosed => None,
    }
}

fn whose(scope: Scope) -> &'static str {
    match scope {
        Scope::Flow => "The tenant",
        Scope::Band => "The priority band",
        Scope::Pool => "The pool",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(kind: RefusalKind, predicted_ms: Option<u64>, expected: &Expect) {
        let refusal = Refusal {
            kind,
            retry_after: Some(Duration::from_millis(1500)),
            queue_length: 12,
            waited: Duration::from_millis(250),
            predicted_wait: predicted_ms.map(Duration::from_millis),
        };
        let problem = problem(&refusal, None);
        let note = serde_json::to_string(&Refused::note(&refusal)).expect("plain data");
        let told = format!(
            "{} {} | {} | {note}\n",
            problem.code.status().as_u16(),
            problem.code.as_str(),
            problem.message
        );
        expected.assert_eq(&told);
        assert_eq!(problem.retry_after, refusal.retry_after);
    }

    #[test]
    fn every_outcome_has_its_own_status_code_and_advice() {
        check(
            RefusalKind::QueueFull(Scope::Flow),
            None,
            &expect![[r#"
            429 queue_full | The tenant has as much waiting as it may, and 12 requests wait in the pool. Wait as long as retry-after says, or send fewer requests at a time. | {"because":"flow","waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::QueueWait,
            Some(3400),
            &expect![[r#"
                429 queue_wait | The request has waited 250 ms and would have to wait 3400 ms more, longer than its target or its time to live allows. Wait as long as retry-after says, or use a key whose objective has more patience. | {"waited_ms":250.0,"queue_length":12,"predicted_wait_ms":3400.0,"retry_after_ms":1500.0}
            "#]],
        );
        check(
            RefusalKind::QueueWait,
            None,
            &expect![[r#"
                429 queue_wait | The request can no longer get its first token in time. Wait as long as retry-after says, or use a key whose objective has more patience. | {"waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
            "#]],
        );
        check(
            RefusalKind::Shed,
            None,
            &expect![[r#"
            429 shed | The pool is saturated and takes no more requests of this priority, and 12 requests wait in it. Wait as long as retry-after says, or use a key whose objective has a higher priority. | {"waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::OverQuota(Scope::Band),
            Some(900),
            &expect![[r#"
            429 over_quota | The priority band has as much work under way as its quota in this pool allows; the request fits in 900 ms. Wait as long as retry-after says, or send fewer and smaller requests at a time. | {"because":"band","waited_ms":250.0,"queue_length":12,"predicted_wait_ms":900.0,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::OverQuota(Scope::Flow),
            None,
            &expect![[r#"
            429 over_quota | The tenant has as much work under way as its quota in this pool allows. Wait as long as retry-after says, or send fewer and smaller requests at a time. | {"because":"flow","waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::Displaced,
            None,
            &expect![[r#"
            429 displaced | A request of a higher priority took the place of this one in a full queue. Wait as long as retry-after says, or use a key whose objective has a higher priority. | {"waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::QueueExpired,
            None,
            &expect![[r#"
            429 queue_expired | No endpoint had room within the 250 ms that the request may wait. Wait as long as retry-after says, or use a key whose objective has more patience. | {"waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
        check(
            RefusalKind::NoEndpoint(EmptiedBy::Context),
            None,
            &expect![[r#"
                503 no_endpoint | The prompt is longer than the context of every endpoint. Shorten the prompt. | {"because":"context","waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
            "#]],
        );
        check(
            RefusalKind::ShuttingDown,
            None,
            &expect![[r#"
            503 shutting_down | The scheduler is shutting down. Send the request again: another one will take it. | {"waited_ms":250.0,"queue_length":12,"retry_after_ms":1500.0}
        "#]],
        );
    }

    #[test]
    fn a_wait_that_ended_names_the_limit_that_ended_it() {
        let refusal = Refusal {
            kind: RefusalKind::QueueExpired,
            retry_after: None,
            queue_length: 1,
            waited: Duration::from_millis(2001),
            predicted_wait: None,
        };
        let told = |by| {
            let time = Duration::from_secs(2);
            problem(&refusal, Some(WaitLimit { by, time }))
                .message
                .into_owned()
        };
        for (by, whose, patient) in [
            (
                LimitedBy::Band,
                "a request of its priority band may wait",
                "of a band with more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Gateway),
                "timeouts.queue lets a request wait",
                "whose objective has more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Objective),
                "its objective lets a request wait",
                "whose objective has more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Tenant),
                "its tenant lets a request wait",
                "with more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Project),
                "its project lets a request wait",
                "of a project with more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Key),
                "its key lets a request wait",
                "with more patience",
            ),
            (
                LimitedBy::Own(TtlSource::Unsaid),
                "the request may wait",
                "whose objective has more patience",
            ),
        ] {
            let expected = format!(
                "No endpoint had room within the 2000 ms that {whose}. Wait as long as retry-after says, or use a key \
                 {patient}."
            );
            assert_eq!(told(by), expected);
        }
    }
}
