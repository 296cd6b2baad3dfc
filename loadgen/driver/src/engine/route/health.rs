//! `/health`: instant on vLLM; on SGLang one generated token, and at least a second.

use std::sync::Arc;

use engine_model::Request;
use http::{Response, StatusCode};

use super::{Body, Duration, Runner, empty};
use crate::engine::{
    flight::{Flight, Guard},
    runner::{Shape, Submission},
};

const AT_LEAST: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(20);

pub(super) async fn respond(runner: &Arc<Runner>) -> Response<Body> {
    if runner.faults.is_unhealthy() {
        return empty(StatusCode::SERVICE_UNAVAILABLE);
    }
    if !runner.config.vocabulary.is_sglang() {
        return empty(StatusCode::OK);
    }
    let scaled = |duration: Duration| duration.div_f64(runner.config.speed);
    let (generated, ()) = tokio::join!(
        tokio::time::timeout(scaled(AT_MOST), generate(runner)),
        tokio::time::sleep(scaled(AT_LEAST))
    );
    empty(if generated == Ok(true) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    })
}

async fn generate(runner: &Arc<Runner>) -> bool {
    let flight = Arc::new(Flight::new(
        "health".to_owned(),
        runner.config.base_model().to_owned(),
        1,
    ));
    let id = runner.next_id();
    let request = Request {
        id,
        prompt_tokens: 1,
        output_tokens: 1,
        blocks: Box::default(),
        priority: 0,
    };
    let shape = Shape {
        streaming: false,
        choices: 1,
        max_tokens: 1,
        ends_by_length: true,
    };
    let submission = Submission {
        request,
        flight: flight.clone(),
        index: 0,
        shape,
    };
    if runner.submit(vec![submission]).is_err() {
        return false;
    }
    let guard = Guard {
        flight,
        runner: runner.clone(),
        requests: vec![id],
    };
    guard.until(|all| all.iter().all(|p| p.end.is_some())).await;
    true
}
