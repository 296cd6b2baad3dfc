//! The ledger charges what the engines count, to the token.

use crate::ask::{GENERATING, body, prompt, streamed};
use crate::engines::{Counted, Engines};
use crate::front::{Front, Tokens};

/// Micro-WTU per token in the configuration of `headpond up`.
fn price(tokens: Tokens) -> u64 {
    (tokens.prompt - tokens.cached) * 1_000 + tokens.cached * 100 + tokens.output * 2_000
}

#[tokio::test]
async fn charges_add_up_to_what_the_engines_count() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    let before = engines.counted().await;
    let mut charged = Counted::default();
    for path in GENERATING {
        let text = prompt(100);
        for output in [1, 7, 40] {
            let answer = front.post(path, "acme", &body(path, &text, output)).await;
            let usage = Tokens::of(&answer.json()["usage"]);
            let mut stream = front
                .open(path, "acme", &streamed(path, &text, output))
                .await;
            stream.finish().await;
            for (id, reported) in [
                (answer.header("x-request-id").to_owned(), Some(usage)),
                (stream.id(), None),
            ] {
                let record = front.record(&id).await;
                let tokens = record.charged();
                assert_eq!(
                    (record.state(), record.estimated()),
                    ("committed", false),
                    "{path}"
                );
                assert_eq!(
                    record.at("/governance/settlement/charged_uwtu"),
                    price(tokens),
                    "{path}: {tokens:?}"
                );
                assert!(
                    reported.is_none_or(|reported| reported == tokens),
                    "{path}: {tokens:?} for {reported:?}"
                );
                assert_eq!(tokens.output, u64::from(output), "{path}");
                charged.prompt += tokens.prompt;
                charged.output += tokens.output;
            }
        }
    }
    engines.idle().await;
    assert_eq!(charged, engines.counted().await - before);
    println!("charged and counted: {charged:?}");
    front.stop();
}
