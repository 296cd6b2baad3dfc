//! What an attempt that nobody waits for any more may have computed.

use std::sync::Arc;

use governance_context::Work;
use scheduler_proxy::SchedulerProxy;
use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{
    ask, assert_at_rest, chat_request, completion_request, context, frame, proxy, proxy_with, until,
};
use crate::stub::{Reply, Step, Stub, finish, json as answer_json, token};

fn work(proxy: &SchedulerProxy, n: u64) -> Option<Work> {
    proxy.work_done(&context(n).attempt)
}

#[tokio::test]
async fn a_call_given_up_in_the_queue_has_done_no_work() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |n, _| {
            if n == 0 {
                Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate)), finish()])
            } else {
                Reply::Never
            }
        })
        .await
    };
    let proxy = proxy_with(&[&engine], json!({"room": 1}));
    let mut first = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    assert_eq!(work(&proxy, 1), Some(Work::Partial), "output has been seen");

    let queued = async { until("it waits", || proxy.snapshot().queue_length == 1).await };
    tokio::select! {
        _ = proxy.call(context(2), chat_request()) => panic!("there is no room"),
        () = queued => assert_eq!(work(&proxy, 2), Some(Work::None), "asked while it waits"),
    }
    assert_eq!(work(&proxy, 2), Some(Work::None), "asked after it left");

    gate.notify_one();
    while frame(&mut first).await.is_some() {}
    let sent = async { until("the engine has it", || engine.count() == 2).await };
    tokio::select! {
        _ = proxy.call(context(3), chat_request()) => panic!("the engine does not answer"),
        () = sent => assert_eq!(work(&proxy, 3), Some(Work::Prefill)),
    }
    assert_eq!(work(&proxy, 3), Some(Work::Prefill));
    assert_eq!(work(&proxy, 4), None, "nobody knows it");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn what_no_engine_has_taken_is_no_work() {
    let rejects = Stub::start(|_, _| answer_json(400, "{}")).await;
    let busy = Stub::start(|_, _| answer_json(429, "{}")).await;
    let fails = Stub::start(|_, _| answer_json(500, "{}")).await;
    for (engine, expected) in [
        (&rejects, Work::None),
        (&busy, Work::None),
        (&fails, Work::Prefill),
    ] {
        let proxy = proxy(&[engine]);
        ask(&proxy, 1, completion_request()).await;
        assert_eq!(work(&proxy, 1), Some(expected));
    }
    let proxy = proxy_with(&[], json!({}));
    ask(&proxy, 1, completion_request()).await;
    assert_eq!(work(&proxy, 1), Some(Work::None), "it was refused here");
}
