//! Which endpoint answers what.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;

use super::{
    answer::{self, Json},
    ask::{self, Delivery, Family},
    body::{Body, Break, Broken, Stream},
    config::{ControlPath, RequestIdHeaders, Task},
    fault::{Command, Fault, UsageReport},
    flight::{End, Guard, Progress},
    info,
    metrics::Names,
    plan::{Reply, scramble},
    problem::{Problem, Shape},
    runner::{Runner, unix_seconds},
};

mod embed;
mod health;
mod scrape;

/// More than any context of any model.
const MAX_BODY: usize = 64 * 1024 * 1024;

type Answer = Result<Response<Body>, Broken>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Generate(Family),
    Embeddings,
    CountTokens,
    Tokenize,
    Detokenize,
    Models,
    Metrics,
    /// `/metrics/`: the page that listens to `name[]`.
    FilteredMetrics,
    Health,
    Ready,
    Version,
    Load,
    Loads,
    ModelInfo,
    ServerInfo,
    ResetCache,
    FlushCache,
    ScaleOut,
    SimFault,
    SimUsage,
}

const GET: &[Method] = &[Method::GET];
const POST: &[Method] = &[Method::POST];
const BOTH: &[Method] = &[Method::GET, Method::POST];

/// The endpoint at a path and the methods it takes.
fn endpoint(runner: &Runner, path: &str) -> Option<(Endpoint, &'static [Method])> {
    let config = &runner.config;
    let (sglang, control) = (
        config.vocabulary.is_sglang(),
        config.control_path == ControlPath::On,
    );
    let generates = config.task != Task::Embed;
    Some(match path {
        "/v1/chat/completions" if generates => (Endpoint::Generate(Family::Chat), POST),
        "/v1/completions" if generates => (Endpoint::Generate(Family::Completions), POST),
        "/v1/messages" if generates => (Endpoint::Generate(Family::Messages), POST),
        "/v1/responses" if generates => (Endpoint::Generate(Family::Responses), POST),
        "/v1/messages/count_tokens" if generates => (Endpoint::CountTokens, POST),
        "/v1/embeddings" if sglang || config.task != Task::Generate => (Endpoint::Embeddings, POST),
        "/tokenize" => (Endpoint::Tokenize, POST),
        "/detokenize" => (Endpoint::Detokenize, POST),
        "/v1/models" => (Endpoint::Models, GET),
        "/metrics" => (Endpoint::Metrics, GET),
        "/metrics/" => (Endpoint::FilteredMetrics, GET),
        "/health" => (Endpoint::Health, GET),
        "/sim/fault" if control => (Endpoint::SimFault, POST),
        "/sim/usage" if control => (Endpoint::SimUsage, GET),
        "/v1/tokenize" if sglang => (Endpoint::Tokenize, POST),
        "/v1/detokenize" if sglang => (Endpoint::Detokenize, POST),
        "/health_generate" if sglang => (Endpoint::Health, GET),
        "/ready" if sglang => (Endpoint::Ready, GET),
        "/server_info" | "/get_server_info" if sglang => (Endpoint::ServerInfo, GET),
        "/model_info" | "/get_model_info" if sglang => (Endpoint::ModelInfo, GET),
        "/v1/loads" if sglang => (Endpoint::Loads, GET),
        "/flush_cache" if sglang => (Endpoint::FlushCache, BOTH),
        "/ping" if !sglang => (Endpoint::Ready, BOTH),
        "/version" if !sglang => (Endpoint::Version, GET),
        "/load" if !sglang => (Endpoint::Load, GET),
        "/reset_prefix_cache" if !sglang && control => (Endpoint::ResetCache, POST),
        "/v1/chat/completions/render" | "/v1/completions/render" | "/inference/v1/generate"
            if !sglang =>
        {
            (Endpoint::ScaleOut, POST)
        }
        _ => return None,
    })
}

/// Answers one request. An error breaks the connection.
pub(super) async fn respond(runner: &Arc<Runner>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let mut response = match endpoint(runner, parts.uri.path()) {
        None => detail(StatusCode::NOT_FOUND, "Not Found"),
        Some((_, methods)) if !methods.contains(&parts.method) => {
            let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            let allowed = HeaderValue::from_static(if methods == POST { "POST" } else { "GET" });
            response.headers_mut().insert(header::ALLOW, allowed);
            response
        }
        Some((endpoint, _)) => {
            let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
                return Err(Broken);
            };
            let query = parts.uri.query().unwrap_or_default();
            answer(runner, endpoint, query, &parts.headers, &body.to_bytes()).await?
        }
    };
    finish_headers(runner, &parts.headers, response.headers_mut());
    Ok(response)
}

fn finish_headers(runner: &Runner, asked: &HeaderMap, headers: &mut HeaderMap) {
    headers.insert(header::SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let echoes = runner.config.request_id_headers == RequestIdHeaders::Echo;
    if echoes && !runner.config.vocabulary.is_sglang() {
        let own = || {
            let unique = scramble(runner.next_id().0 ^ runner.config.seed);
            HeaderValue::from_str(&format!("{unique:016x}{:016x}", scramble(unique)))
                .expect("hexadecimal digits are visible ASCII")
        };
        headers.insert(
            "x-request-id",
            asked.get("x-request-id").cloned().unwrap_or_else(own),
        );
    }
}

async fn answer(
    runner: &Arc<Runner>,
    endpoint: Endpoint,
    query: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Answer {
    let config = &runner.config;
    Ok(match endpoint {
        Endpoint::Generate(family) => return generate(runner, family, headers, body).await,
        Endpoint::Embeddings => embed::respond(runner, body).await,
        Endpoint::CountTokens => match ask::tokenize(config, Family::Messages, body) {
            Ok(counted) => json_text(format!("{{\"input_tokens\":{}}}", counted.tokens.len())),
            Err(problem) => refuse(runner, &problem, Shape::Anthropic, None),
        },
        Endpoint::Tokenize => match ask::tokenize(config, Family::Chat, body) {
            Ok(tokens) => json_text(info::tokenized(config, &tokens)),
            Err(problem) => refuse(runner, &problem, Shape::OpenAi, None),
        },
        Endpoint::Detokenize => match ask::detokenize(config, body) {
            Ok(text) if config.vocabulary.is_sglang() => {
                json_text(format!("{{\"text\":{}}}", Json(&text)))
            }
            Ok(text) => json_text(format!("{{\"prompt\":{}}}", Json(&text))),
            Err(problem) => refuse(runner, &problem, Shape::OpenAi, None),
        },
        Endpoint::Models => json_text(info::models(config)),
        Endpoint::Metrics => return scrape::respond(runner, Names::All).await,
        Endpoint::FilteredMetrics => return scrape::respond(runner, scrape::names(query)).await,
        Endpoint::Health => health::respond(runner).await,
        Endpoint::Ready => empty(StatusCode::OK),
        Endpoint::Version => json_text("{\"version\":\"0.32.0\"}".to_owned()),
        // Counts only with a flag nobody sets.
        Endpoint::Load => json_text("{\"server_load\":0}".to_owned()),
        Endpoint::Loads => json_text(info::loads(runner)),
        Endpoint::ModelInfo => json_text(info::model_info(config)),
        Endpoint::ServerInfo => json_text(info::server_info(config)),
        Endpoint::ResetCache => {
            runner.reset_cache();
            json_text("{\"success\":true}".to_owned())
        }
        Endpoint::FlushCache => {
            runner.reset_cache();
            text(
                "Cache flushed.\nPlease check backend logs for more details. (When there are running or \
                 waiting requests, the operation will not be performed.)\n",
            )
        }
        Endpoint::ScaleOut => refuse(runner, &Problem::scale_out_disabled(), Shape::OpenAi, None),
        Endpoint::SimFault => sim_fault(runner, body),
        Endpoint::SimUsage => {
            json_text(serde_json::to_string(&*runner.records()).unwrap_or_default())
        }
    })
}

fn sim_fault(runner: &Runner, body: &[u8]) -> Response<Body> {
    match Command::parse(body) {
        Ok(command) => {
            command.apply(&runner.faults);
            json_text("{\"ok\":true}".to_owned())
        }
        Err(error) => {
            let mut response = json_text(json!({"error": error.to_string()}).to_string());
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        }
    }
}

async fn generate(
    runner: &Arc<Runner>,
    family: Family,
    headers: &HeaderMap,
    body: &[u8],
) -> Answer {
    let shape = if family == Family::Messages {
        Shape::Anthropic
    } else {
        Shape::OpenAi
    };
    let vocabulary = runner.config.vocabulary;
    let ask = match ask::generation(&runner.config, family, body) {
        Ok(ask) => ask,
        Err(problem) => return Ok(refuse(runner, &problem, shape, None)),
    };
    let header_id = headers.get("x-request-id").and_then(|v| v.to_str().ok());
    let mut reply = Reply::new(&runner.config, ask, header_id, runner.next_id().0);
    let streams = reply.ask.delivery != Delivery::Whole;
    let fault = runner.faults.strike();
    match fault {
        Some(Fault::Busy) => return Ok(refuse(runner, &Problem::busy(vocabulary), shape, None)),
        Some(Fault::HangBeforeFirstToken) if streams => return Ok(event_stream(Body::Silent)),
        Some(Fault::HangBeforeFirstToken) => return std::future::pending().await,
        Some(Fault::InternalError {
            after_tokens: 0,
            usage,
        }) => {
            let nothing = vec![Progress::default(); reply.outputs.len()];
            return Ok(internal(runner, shape, &reply, &nothing, usage));
        }
        _ => {}
    }
    let Ok(guard) = reply.submit(runner) else {
        return Ok(refuse(runner, &Problem::busy(vocabulary), shape, None));
    };
    if let Some(Fault::InternalError {
        after_tokens,
        usage,
    }) = fault
    {
        let is_due = |p: &Progress| p.generated >= after_tokens || p.end.is_some();
        let progress = guard.until(|all| all.iter().all(is_due)).await;
        return Ok(internal(runner, shape, &reply, &progress, usage));
    }
    if streams {
        return Ok(event_stream(Body::Stream(Box::new(Stream::new(
            guard, reply, fault,
        )))));
    }
    in_one_piece(guard, reply, fault).await
}

/// The engine breaks down, and tells what it has used if it is to.
fn internal(
    runner: &Runner,
    shape: Shape,
    reply: &Reply,
    progress: &[Progress],
    usage: UsageReport,
) -> Response<Body> {
    let usage =
        (usage == UsageReport::Included).then(|| answer::usage(reply, reply.totals(progress)));
    refuse(runner, &Problem::internal(), shape, usage.as_deref())
}

/// An answer that is not streamed: all of it, or a connection that breaks or hangs.
async fn in_one_piece(mut guard: Guard, reply: Reply, fault: Option<Fault>) -> Answer {
    match fault {
        Some(Fault::Cut { chunks } | Fault::ErrorInStream { chunks }) => {
            let is_due = |p: &Progress| p.generated >= chunks || p.end.is_some();
            guard.until(|all| all.iter().any(is_due)).await;
            return Err(Broken);
        }
        Some(Fault::HangAfterFirstToken) => {
            let is_due = |p: &Progress| p.generated > 0 || p.end.is_some();
            guard.until(|all| all.iter().any(is_due)).await;
            guard.abort();
            return std::future::pending().await;
        }
        _ => {}
    }
    let progress = guard.until(|all| all.iter().all(|p| p.end.is_some())).await;
    whole(reply, &progress)
}

/// The whole answer, or what is left of it if the server stopped meanwhile.
fn whole(mut reply: Reply, progress: &[Progress]) -> Answer {
    if progress.iter().any(|p| p.end == Some(End::Failed)) {
        return Err(Broken);
    }
    for (output, progress) in reply.outputs.iter_mut().zip(progress) {
        if progress.end == Some(End::Aborted) && progress.generated < output.tokens {
            output.abort_after(progress.generated);
        }
    }
    Ok(json_text(answer::whole(&reply, progress)))
}

fn refuse(runner: &Runner, problem: &Problem, shape: Shape, usage: Option<&str>) -> Response<Body> {
    let mut response = json_text(problem.body(runner.config.vocabulary, shape, usage));
    *response.status_mut() = problem.status;
    response
}

fn detail(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = json_text(format!("{{\"detail\":\"{text}\"}}"));
    *response.status_mut() = status;
    response
}

fn json_text(body: String) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// A body without a content type, as some endpoints have it.
fn text(body: &'static str) -> Response<Body> {
    Response::new(Body::whole(Bytes::from_static(body.as_bytes())))
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
