//! `/v1/embeddings`: made-up vectors that are equal for equal inputs.

use std::{fmt::Write, sync::Arc};

use engine_model::{ContentSeed, Request, hash_tokens, words};
use http::Response;

use super::{Body, Problem, Runner, Shape, Task, ask, json_text, refuse, scramble, unix_seconds};
use crate::engine::{
    answer::Json,
    flight::{Flight, Guard},
    runner::{Shape as RequestShape, Submission},
};

const DIMENSIONS: usize = 64;

pub(super) async fn respond(runner: &Arc<Runner>, body: &[u8]) -> Response<Body> {
    if runner.config.task == Task::Generate {
        let problem = Problem::refused(
            "This model does not appear to be an embedding model by default. Please add `--is-embedding` when \
             launching the server or try another model.",
        );
        return refuse(runner, &problem, Shape::OpenAi, None);
    }
    let read = match ask::embeddings(&runner.config, body) {
        Ok(read) => read,
        Err(problem) => return refuse(runner, &problem, Shape::OpenAi, None),
    };
    let id = format!(
        "embd-{:016x}",
        scramble(runner.next_id().0 ^ runner.config.seed)
    );
    let flight = Arc::new(Flight::new(
        id.clone(),
        read.model.clone(),
        read.inputs.len(),
    ));
    let guard = match submit(runner, &flight, &read) {
        Ok(guard) => guard,
        Err(problem) => return refuse(runner, &problem, Shape::OpenAi, None),
    };
    guard.until(|all| all.iter().all(|p| p.end.is_some())).await;
    json_text(write(&id, &read))
}

fn seed(runner: &Runner) -> ContentSeed {
    ContentSeed::default().with(runner.config.base_model())
}

fn submit(runner: &Arc<Runner>, flight: &Arc<Flight>, read: &ask::Read) -> Result<Guard, Problem> {
    let shape = RequestShape {
        streaming: false,
        choices: 1,
        max_tokens: 0,
        ends_by_length: false,
    };
    let block_size = runner.config.block_size.get();
    let one = |(index, input): (usize, &Vec<u32>)| Submission {
        request: Request {
            id: runner.next_id(),
            prompt_tokens: input.len() as u32,
            output_tokens: 0,
            blocks: hash_tokens(seed(runner), block_size, input, &[]),
            priority: 0,
        },
        flight: flight.clone(),
        index,
        shape,
    };
    let submissions: Vec<Submission> = read.inputs.iter().enumerate().map(one).collect();
    let requests = submissions.iter().map(|s| s.request.id).collect();
    runner
        .submit(submissions)
        .map_err(|_| Problem::busy(runner.config.vocabulary))?;
    Ok(Guard {
        flight: flight.clone(),
        runner: runner.clone(),
        requests,
    })
}

fn write(id: &str, read: &ask::Read) -> String {
    let mut s = format!(
        "{{\"id\":\"{id}\",\"object\":\"list\",\"created\":{},\"model\":{},\"data\":[",
        unix_seconds() as u64,
        Json(&read.model)
    );
    let mut tokens = 0;
    for (index, input) in read.inputs.iter().enumerate() {
        tokens += input.len();
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            s,
            "{comma}{{\"index\":{index},\"object\":\"embedding\",\"embedding\":["
        );
        let hash = hash_tokens(ContentSeed::default(), input.len() as u32, input, &[]);
        let mut state = hash.first().map_or(0, |h| h.0);
        for i in 0..DIMENSIONS {
            let unit = (words::next(&mut state) >> 40) as f64 / f64::from(1 << 24);
            let _ = write!(
                s,
                "{}{:.6}",
                if i == 0 { "" } else { "," },
                (unit - 0.5) / 4.0
            );
        }
        s.push_str("]}");
    }
    let _ = write!(
        s,
        "],\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens},\"completion_tokens\":0,\
         \"prompt_tokens_details\":null}}}}"
    );
    s
}
