//! The catalogue as a caller sees it: the models its key may use, and no others.

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use crate::admission::permitted;
use crate::body::Body;
use crate::config::Model;
use crate::identity::Principal;
use crate::respond::Refused;
use crate::shared::Shared;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    // The Anthropic family reads these of the same list.
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

/// One model, with the members clients of both families look for.
#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    object: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    created: u64,
    created_at: &'static str,
    owned_by: &'static str,
    display_name: &'a str,
    max_model_len: u64,
    max_output_tokens: u64,
    tier: &'a str,
}

impl<'a> Entry<'a> {
    fn of(id: &'a str, model: &'a Model) -> Self {
        Self {
            id,
            object: "model",
            kind: "model",
            created: 0,
            created_at: "1970-01-01T00:00:00Z",
            owned_by: "headpond",
            display_name: &model.name,
            max_model_len: model.context_tokens,
            max_output_tokens: model.max_output_tokens,
            tier: &model.tier,
        }
    }
}

pub(crate) fn list(shared: &Shared, principal: &Principal) -> Response<Body> {
    let allowed = shared
        .config
        .models
        .iter()
        .filter(|model| principal.scope.models.allows(&model.name));
    let data: Vec<Entry<'_>> = allowed
        .flat_map(|model| {
            let names = std::iter::once(&model.name).chain(&model.aliases);
            names.map(|name| Entry::of(name, model))
        })
        .collect();
    let (first_id, last_id) = (
        data.first().map(|entry| entry.id),
        data.last().map(|entry| entry.id),
    );
    json(&List {
        object: "list",
        first_id,
        last_id,
        has_more: false,
        data,
    })
}

pub(crate) fn one(
    shared: &Shared,
    principal: &Principal,
    name: &str,
) -> Result<Response<Body>, Refused> {
    let model = permitted(shared, principal, name)?;
    Ok(json(&Entry::of(name, &model)))
}

pub(crate) fn json(value: &impl Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("plain data serialises");
    let mut response = Response::new(Body::from(Bytes::from(bytes)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
