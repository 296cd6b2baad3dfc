//! A small HTTP client: one request, one answer, no pool; and on top of it one for the admin listener.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::cli::Admin;
use crate::usage::Usage;

/// An answer of the admin listener is small; a larger one is not ours.
const LARGEST_ANSWER: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// An address of the admin listener as it was given: an option, or a variable that may be there and say nothing.
pub(crate) fn admin_url(text: &str) -> Result<String, &'static str> {
    match text.trim().trim_end_matches('/') {
        "" => Err("it is empty; give http://HOST:PORT, or unset HEADPOND_ADMIN_URL"),
        url => Ok(url.to_owned()),
    }
}

/// The same of the file of the token.
pub(crate) fn token_file(path: OsString) -> Result<PathBuf, &'static str> {
    if path.is_empty() {
        return Err("it is empty; give the path of a file, or unset HEADPOND_ADMIN_TOKEN_FILE");
    }
    Ok(path.into())
}

/// Where the admin listener is, and what opens it.
pub(crate) struct AdminClient {
    url: String,
    token: Option<String>,
}

impl AdminClient {
    pub(crate) fn new(admin: &Admin) -> anyhow::Result<Self> {
        ensure!(
            !admin.admin_url.contains('@'),
            Usage::new("--admin-url: no user and no password; give http://HOST:PORT")
        );
        let token = match &admin.admin_token_file {
            // The path is not repeated: it may be the token itself.
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .context("--admin-token-file: cannot read the file it names; give the path of a file with the token in it")?
                    .trim()
                    .to_owned(),
            ),
            None => None,
        };
        Ok(Self {
            url: admin.admin_url.clone(),
            token,
        })
    }

    /// Sends one request and reads its JSON answer.
    ///
    /// # Errors
    /// The listener cannot be reached, or it answered with an error; the message says which.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let (status, answer) = self.raw(method, path, body).await?;
        let value: Value = serde_json::from_slice(&answer).with_context(|| {
            format!("the admin listener answered {status} with something that is not JSON")
        })?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value
            .pointer("/error/message")
            .and_then(Value::as_str)
            .unwrap_or("no message");
        if status == StatusCode::UNAUTHORIZED {
            bail!(
                "{message}\nName the file with the admin token: --admin-token-file <data-dir>/admin.token"
            );
        }
        bail!("{message} ({status})");
    }

    /// The text of a page.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let (status, answer) = self.raw(Method::GET, path, None).await?;
        if !status.is_success() {
            bail!("the admin listener answered {status} to {path}");
        }
        String::from_utf8(answer.to_vec()).with_context(|| format!("{path} is not text"))
    }

    async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::from(body)).with_context(|| {
            format!(
                "`{}` is not an address of an admin listener; give http://HOST:PORT",
                self.url
            )
        })?;
        fetch(request, LARGEST_ANSWER, PATIENCE).await.with_context(|| {
            format!("cannot reach the admin listener at {}; is `headpond up` running, and is --admin-url right?", self.url)
        })
    }
}

/// One request on a connection of its own, and its whole answer.
pub(crate) async fn fetch(
    request: Request<Full<Bytes>>,
    largest: usize,
    patience: Duration,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let exchange = async {
        let response = client.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), largest)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!(error))?;
        Ok((status, body.to_bytes()))
    };
    tokio::time::timeout(patience, exchange)
        .await
        .with_context(|| format!("no answer within {} s", patience.as_secs()))?
}
