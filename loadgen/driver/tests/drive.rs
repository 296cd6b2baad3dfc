//! The load generator against a stub that misbehaves on purpose and against the simulated engine.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine_model::Profile;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use loadgen::drive::{
    self, Api, Bounds, Delivery, DriveError, OutputLength, Plan, Progress, Report, Slo, Tenant,
    Traffic, Verdict,
};
use loadgen::engine::{EngineConfig, SimEngine};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;
use workload::schedule::{Generated, Limits, Requests, Schedule};
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Lengths, Mix, Rate};

type StubBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// A server with one connection counter; the tenant's key says how it answers.
struct Stub {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Stub {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let connections = Arc::new(AtomicUsize::new(0));
        let (tracker, counter) = (TaskTracker::new(), Arc::clone(&connections));
        let serving = tracker.clone();
        tracker.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                serving.spawn(
                    http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service_fn(answer)),
                );
            }
        });
        Self { url, connections }
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<StubBody>, Infallible> {
    let key = request
        .headers()
        .get("authorization")
        .and_then(|key| key.to_str().ok())
        .unwrap_or("")
        .to_owned();
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let asked: serde_json::Value = serde_json::from_slice(&body).expect("the generator sends JSON");
    Ok(match key.as_str() {
        "Bearer stream" => stream(&asked, usize::MAX),
        "Bearer cut" => stream(&asked, 40),
        "Bearer full" => refusal(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), "{}"),
        "Bearer quota" => refusal(
            StatusCode::TOO_MANY_REQUESTS,
            None,
            r#"{"error":{"type":"insufficient_quota","code":"wtu_exhausted"}}"#,
        ),
        "Bearer whole" => whole(
            r#"{"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":5}}"#,
            "application/json",
        ),
        "Bearer hang" => std::future::pending().await,
        _ => refusal(StatusCode::UNAUTHORIZED, None, "who are you"),
    })
}

fn refusal(status: StatusCode, reason: Option<&str>, body: &'static str) -> Response<StubBody> {
    let mut response = whole(body, "application/json");
    *response.status_mut() = status;
    if let Some(reason) = reason {
        response
            .headers_mut()
            .insert("x-headpond-reason", reason.parse().expect("a header value"));
    }
    response
}

fn whole(body: &'static str, kind: &'static str) -> Response<StubBody> {
    let body = Full::from(body).boxed_unsync();
    Response::builder()
        .header("content-type", kind)
        .body(body)
        .expect("valid")
}

/// As many events as tokens were asked for, in pieces of seven bytes; only the first `most` bytes of it.
fn stream(asked: &serde_json::Value, most: usize) -> Response<StubBody> {
    let tokens = asked["max_tokens"].as_u64().expect("asked for");
    let prompt = asked["messages"][0]["content"]
        .as_str()
        .expect("a prompt")
        .len()
        / 4;
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let usage = format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}}}\n\ndata: [DONE]\n\n",
        prompt / 2
    );
    let mut text = (event.repeat(tokens as usize) + &usage).into_bytes();
    text.truncate(most);
    let pieces: Vec<_> = text
        .chunks(7)
        .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
        .collect();
    let body = Pieces(pieces.into_iter()).boxed_unsync();
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(body)
        .expect("valid")
}

struct Pieces(std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// `keys` are tenants of the same name, asked in turn at random.
fn plan(keys: &[&str], requests: u64) -> Plan {
    let generated = Generated {
        input: Lengths::Fixed(40),
        output: Lengths::Fixed(20),
        shared_tokens: 0,
        groups: 1,
    };
    let limits = Limits {
        requests: Some(requests),
        duration: None,
    };
    let arrivals = Arrivals::Poisson(Rate::new(400.0).expect("in range"));
    let tenants = keys.iter().map(|&key| {
        (
            Tenant {
                name: key.to_owned(),
                key: drive::ApiKey::new(key),
                band: None,
            },
            1,
        )
    });
    Plan {
        name: "test".to_owned(),
        models: "demo".parse().expect("one"),
        traffic: Traffic::Mixed {
            schedule: Box::new(
                Schedule::new(arrivals, Requests::Generated(generated), limits, 7)
                    .expect("limited"),
            ),
            tenants: Mix::new(tenants).expect("some keys"),
        },
        speed: 1.0,
        seed: 7,
        api: Api::Chat,
        delivery: Delivery::Stream,
        output_length: OutputLength::Exact,
        cancel: 0.0,
        slo: Slo::Fixed {
            ttft: Duration::from_mins(1),
            tpot: Duration::from_mins(1),
        },
        // Tests share their machine with others; only the test of the lag is about time.
        bounds: Bounds {
            lag: Duration::from_hours(1),
            ..Bounds::at_speed(1.0)
        },
    }
}

async fn run(url: &str, plan: Plan) -> Report {
    let target = url.parse().expect("an address");
    drive::run(plan, &target, Progress::Silent)
        .await
        .expect("a plan that can be sent")
}

#[tokio::test]
async fn answers_refusals_and_failures_are_told_apart() {
    let stub = Stub::start().await;
    let report = run(
        &stub.url,
        plan(&["stream", "cut", "full", "quota", "none"], 200),
    )
    .await;
    let figures = report.figures.as_ref().expect("valid");
    let of = |tenant: &str| &figures.tenants[tenant];
    assert_eq!(report.offered, 200);
    assert_eq!(
        (of("stream").completed, of("stream").goodput),
        (of("stream").offered, Some(1.0))
    );
    assert_eq!(report.failed.get("cut"), Some(&of("cut").offered));
    assert_eq!(
        report.refused.get("429 queue_full"),
        Some(&of("full").offered)
    );
    assert_eq!(
        report.refused.get("429 wtu_exhausted"),
        Some(&of("quota").offered)
    );
    assert_eq!(report.refused.get("401 no_code"), Some(&of("none").offered));
    assert_eq!(
        report.completed + report.refused.values().sum::<u64>() + report.failed["cut"],
        200
    );
    assert_eq!(figures.output_tokens, 20 * report.completed);
    assert_eq!(figures.hit_ratio, Some(0.5));
}

#[tokio::test]
async fn connections_are_kept() {
    let stub = Stub::start().await;
    let mut plan = plan(&["stream", "full"], 100);
    plan.bounds.in_flight = 3;
    let report = run(&stub.url, plan).await;
    assert_eq!(report.completed + report.refused["429 queue_full"], 100);
    let connections = stub.connections.load(Ordering::Relaxed);
    assert!(
        connections <= 3,
        "{connections} connections for 3 requests in flight"
    );
}

#[tokio::test]
async fn whole_answers_are_read_too() {
    let stub = Stub::start().await;
    let report = run(
        &stub.url,
        Plan {
            delivery: Delivery::Whole,
            ..plan(&["whole"], 20)
        },
    )
    .await;
    let figures = report.figures.expect("valid");
    assert_eq!(
        (report.completed, figures.output_tokens, figures.goodput),
        (20, 100, Some(1.0))
    );
    assert!(figures.ttft_s.is_none() && figures.e2e_s.is_some());
}

#[tokio::test]
async fn a_server_that_is_gone_or_hangs_is_reported_and_not_waited_for() {
    // Bound, so that nobody else is given it, and not listening.
    let nobody = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    nobody.bind(any).expect("a free port");
    let gone = format!("http://{}", nobody.local_addr().expect("bound"));
    assert_eq!(
        run(&gone, plan(&["stream"], 5)).await.failed.get("connect"),
        Some(&5)
    );
    let stub = Stub::start().await;
    let mut plan = plan(&["hang"], 5);
    plan.bounds.timeout = Duration::from_millis(30);
    assert_eq!(run(&stub.url, plan).await.failed.get("timeout"), Some(&5));
}

#[tokio::test]
async fn a_generator_that_cannot_keep_its_schedule_refuses_to_report() {
    let stub = Stub::start().await;
    let mut plan = plan(&["hang"], 4);
    plan.bounds = Bounds {
        in_flight: 1,
        timeout: Duration::from_millis(50),
        lag: Duration::from_millis(20),
    };
    let report = run(&stub.url, plan).await;
    assert!(matches!(report.verdict, Verdict::Lagged { .. }), "{report}");
    assert!(report.figures.is_none());
}

#[tokio::test]
async fn clients_leave_in_the_middle() {
    let stub = Stub::start().await;
    let report = run(
        &stub.url,
        Plan {
            cancel: 0.5,
            ..plan(&["stream"], 200)
        },
    )
    .await;
    assert!((60..=140).contains(&report.left), "{report}");
    assert_eq!(report.left + report.completed, 200);
    assert_eq!(report.figures.expect("valid").goodput, Some(1.0));
}

#[tokio::test]
async fn plans_that_mean_nothing_are_refused() {
    let nowhere = || plan(&["stream"], 1);
    let error_at = |url: &'static str, plan| async {
        drive::run(plan, &url.parse().expect("valid"), Progress::Silent)
            .await
            .expect_err("refused")
    };
    let error = |plan| error_at("http://127.0.0.1:1", plan);
    assert!(matches!(
        error(Plan {
            speed: 0.0,
            ..nowhere()
        })
        .await,
        DriveError::Speed(_)
    ));
    assert!(matches!(
        error(Plan {
            cancel: 1.5,
            ..nowhere()
        })
        .await,
        DriveError::Cancel(_)
    ));
    let whole = Plan {
        cancel: 0.5,
        delivery: Delivery::Whole,
        ..nowhere()
    };
    assert!(matches!(error(whole).await, DriveError::CancelWhole));
    assert!(matches!(
        error_at("http://name.invalid:1", nowhere()).await,
        DriveError::Unresolved(..)
    ));
}

/// The figures must agree with what the engine itself counted.
#[tokio::test]
async fn a_trace_replayed_against_the_simulated_engine_is_counted_as_the_engine_counts() {
    const SPEED: f64 = 50.0;
    let mut config = EngineConfig::new(Profile::LLAMA_70B_8XH100);
    config.speed = SPEED;
    config.models = vec!["demo".to_owned()];
    let engine = SimEngine::start(config).await.expect("a free port");
    let trace = Arc::new(Embedded::MooncakeConversation.load());
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(0.5).expect("in range"),
        jitter: Embedded::MooncakeConversation.jitter(),
    };
    let limits = Limits {
        requests: Some(40),
        duration: None,
    };
    let expected_outputs: u64 = trace
        .requests()
        .iter()
        .take(40)
        .map(|request| u64::from(request.output_tokens))
        .sum();
    let schedule = Schedule::new(arrivals, Requests::Trace(trace), limits, 7).expect("a trace");
    let anybody = Tenant {
        name: "any".to_owned(),
        key: None,
        band: None,
    };
    let report = run(
        &engine.url(),
        Plan {
            traffic: Traffic::Mixed {
                schedule: Box::new(schedule),
                tenants: Mix::new([(anybody, 1)]).expect("one"),
            },
            speed: SPEED,
            api: Api::Completions,
            ..plan(&["any"], 1)
        },
    )
    .await;
    assert_eq!((report.offered, report.completed), (40, 40), "{report}");
    let figures = report.figures.expect("valid");
    let totals = engine.usage_totals();
    assert_eq!(figures.output_tokens, expected_outputs);
    assert_eq!(figures.output_tokens, totals.generated_tokens);
    assert_eq!(figures.prompt_tokens, totals.prompt_tokens);
    assert_eq!(figures.cached_tokens, totals.cached_tokens);
    engine.shutdown().await;
}
