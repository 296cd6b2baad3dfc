//! Asking real engines what they serve, so that `headpond up --endpoint URL` needs no file.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::config::template::Served;

const PATIENCE: Duration = Duration::from_secs(10);
const LARGEST_ANSWER: usize = 4 << 20;
/// For an engine that does not say how much context it has.
const USUAL_CONTEXT: u64 = 8_192;

/// The models of all engines, by name. One engine that answers is enough.
pub(crate) async fn models(urls: &[String]) -> anyhow::Result<Vec<Served>> {
    let mut models = BTreeMap::new();
    let mut failure = None;
    for url in urls {
        match ask(url).await {
            Ok(served) => {
                for model in served {
                    models.entry(model.name.clone()).or_insert(model);
                }
            }
            Err(error) => {
                failure = Some(error.context(format!("cannot ask {url} which models it serves")))
            }
        }
    }
    match (models.is_empty(), failure) {
        (false, None) => {}
        (false, Some(error)) => tracing::warn!("{error:#}; the others serve"),
        (true, Some(error)) => {
            return Err(error.context("no engine answers; start one, or leave --endpoint out"));
        }
        (true, None) => bail!("the engines serve no model"),
    }
    Ok(models.into_values().collect())
}

async fn ask(url: &str) -> anyhow::Result<Vec<Served>> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let address = format!("{}/v1/models", url.trim_end_matches('/'));
    let request = Request::get(&address).body(Empty::new()).with_context(|| {
        format!("`{url}` is not the address of an engine; give http://HOST:PORT")
    })?;
    let exchange = async {
        let response = client.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST_ANSWER)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!(error))?;
        anyhow::ensure!(status.is_success(), "it answered {status}");
        Ok(body.to_bytes())
    };
    let body = tokio::time::timeout(PATIENCE, exchange)
        .await
        .with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))??;
    parse(&body).context("its list of models cannot be read")
}

fn parse(body: &[u8]) -> anyhow::Result<Vec<Served>> {
    let list: Value = serde_json::from_slice(body)?;
    let data = list
        .get("data")
        .and_then(Value::as_array)
        .context("it has no `data`")?;
    let served = data.iter().filter_map(|model| {
        let engine = if model.get("owned_by").and_then(Value::as_str) == Some("sglang") {
            "sglang"
        } else {
            "vllm"
        };
        Some(Served {
            name: model.get("id")?.as_str()?.to_owned(),
            context_tokens: model
                .get("max_model_len")
                .and_then(Value::as_u64)
                .unwrap_or(USUAL_CONTEXT),
            engine,
        })
    });
    Ok(served.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lists_of_both_engines() {
        let vllm = br#"{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm","max_model_len":2048},{"id":"lora","owned_by":"vllm","parent":"tiny","max_model_len":null}]}"#;
        let sglang =
            br#"{"object":"list","data":[{"id":"tiny","owned_by":"sglang","max_model_len":2048}]}"#;
        let named = |name: &str, context_tokens, engine| Served {
            name: name.to_owned(),
            context_tokens,
            engine,
        };
        assert_eq!(
            parse(vllm).expect("a list"),
            [
                named("tiny", 2048, "vllm"),
                named("lora", USUAL_CONTEXT, "vllm")
            ]
        );
        assert_eq!(
            parse(sglang).expect("a list"),
            [named("tiny", 2048, "sglang")]
        );
        assert!(parse(b"[]").is_err());
        assert!(parse(b"no").is_err());
    }
}
