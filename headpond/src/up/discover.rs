//! Asking real engines what they serve, so that `headpond up --endpoint URL` needs no file.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::Request;
use http_body_util::Full;
use scheduler_proxy::config::EndpointFile;
use serde_json::Value;

use crate::client::fetch;
use crate::config::template::Served;

const PATIENCE: Duration = Duration::from_secs(10);
const LARGEST_ANSWER: usize = 4 << 20;
/// For an engine that does not say how much context it has.
const USUAL_CONTEXT: u64 = 8_192;

/// An engine and what it serves.
pub(crate) struct Engine {
    url: String,
    /// Empty if it did not say: then it is taken to serve any.
    models: Vec<Served>,
}

impl Engine {
    pub(crate) fn unasked(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            models: Vec::new(),
        }
    }

    /// The engine as the scheduler knows it: requests for what it does not serve go elsewhere.
    pub(crate) fn endpoint(&self) -> EndpointFile {
        EndpointFile::at(&self.url).serving(self.models.iter().map(|model| model.name.clone()))
    }
}

/// Asks every engine. One that answers is enough.
pub(crate) async fn engines(urls: &[String]) -> anyhow::Result<Vec<Engine>> {
    let mut engines = Vec::with_capacity(urls.len());
    let mut failure = None;
    for url in urls {
        let mut engine = Engine::unasked(url);
        match ask(url).await {
            Ok(models) => engine.models = models,
            Err(error) => {
                failure = Some(error.context(format!("cannot ask {url} which models it serves")));
            }
        }
        engines.push(engine);
    }
    let served = engines.iter().any(|engine| !engine.models.is_empty());
    match (served, failure) {
        (true, None) => {}
        (true, Some(error)) => tracing::warn!("{error:#}; the others serve"),
        (false, Some(error)) => {
            return Err(error.context("no engine answers; start one, or leave --endpoint out"));
        }
        (false, None) => bail!("the engines serve no model"),
    }
    Ok(engines)
}

/// The models of all engines, by name.
pub(crate) fn models(engines: &[Engine]) -> Vec<Served> {
    let mut models = BTreeMap::new();
    for model in engines.iter().flat_map(|engine| &engine.models) {
        models.entry(&model.name).or_insert(model);
    }
    models.into_values().cloned().collect()
}

async fn ask(url: &str) -> anyhow::Result<Vec<Served>> {
    let address = format!("{}/v1/models", url.trim_end_matches('/'));
    let request = Request::get(&address)
        .body(Full::default())
        .with_context(|| {
            format!("`{url}` is not the address of an engine; give http://HOST:PORT")
        })?;
    let (status, body) = fetch(request, LARGEST_ANSWER, PATIENCE).await?;
    ensure!(status.is_success(), "it answered {status}");
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
    use scheduler_proxy::config::{Config, File};

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
        let engine = |url: &str, list| Engine {
            url: url.to_owned(),
            models: parse(list).expect("a list"),
        };
        let both = [engine("http://a:1", sglang), engine("http://b:1", vllm)];
        let all: Vec<String> = models(&both).into_iter().map(|model| model.name).collect();
        assert_eq!(all, ["lora", "tiny"]);
        assert!(parse(b"[]").is_err());
        assert!(parse(b"no").is_err());
    }

    #[test]
    fn requests_go_only_to_engines_that_serve_their_model() {
        let served = Served {
            name: "tiny".to_owned(),
            context_tokens: 2048,
            engine: "vllm",
        };
        let asked = Engine {
            models: vec![served],
            ..Engine::unasked("http://a:1")
        };
        let unasked = Engine::unasked("http://b:1");
        let file = File::with_endpoints([asked.endpoint(), unasked.endpoint()]);
        let endpoints = Config::check(file).expect("good addresses").endpoints;
        assert_eq!(endpoints[0].models, ["tiny"]);
        assert!(endpoints[1].models.is_empty(), "it may serve any");
    }
}
