//! The admin API of L1: keys, accounts, the ledger's own check. On its own listener; open to the
//! admin token, and to keys of role `lead` within their own reach.

use bytes::Bytes;
use governance_context::names;
use governance_core::account::AccountId;
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::keys::PublicPart;
use governance_core::sanitize::headers;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use inference_wire::route::Family;
use ledger_store::{By, KeyError, KeyRecord};

use crate::body::{Body, BoxError};
use crate::governance::Governance;
use crate::respond::{self, Refused};
use crate::scheduler::Scheduler;
use crate::shared::{Shared, new_request_id};

mod accounts;
mod keys;

/// Bodies of the admin API are small.
const MOST_BYTES: usize = 64 * 1024;
const PREFIX: &str = "/admin/v1/";

/// Who calls, and how far they reach.
pub(crate) struct Caller {
    by: By,
    /// `None`: everywhere.
    reach: Option<AccountId>,
}

impl Caller {
    fn may_see(&self, account: &AccountId) -> bool {
        self.reach
            .as_ref()
            .is_none_or(|reach| account.is_within(reach))
    }

    fn operator(&self) -> Result<(), Refused> {
        match self.by {
            By::Operator => Ok(()),
            By::Key(_) => Err(Refused::what(
                Code::Forbidden,
                "Only the admin token may do this",
            )),
        }
    }
}

impl<S: Scheduler> Governance<S> {
    /// Answers one request of an operator: everything below `/admin/v1/` that is L1's.
    pub async fn admin<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let id = new_request_id();
        let (head, body) = request.into_parts();
        let answered = Box::pin(self.administer(&head, body)).await;
        let mut response =
            answered.unwrap_or_else(|refused| refused.into_response(Family::OpenAi, &id));
        respond::set(response.headers_mut(), names::REQUEST_ID, &id.to_string());
        response
    }

    async fn administer<B>(
        &self,
        head: &http::request::Parts,
        body: B,
    ) -> Result<Response<Body>, Refused>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let caller = self.caller(head)?;
        let path = head.uri.path().strip_prefix(PREFIX).ok_or(Code::NotFound)?;
        let call: Vec<&str> = path.split('/').collect();
        let shared = &*self.shared;
        match (&head.method, call.as_slice()) {
            (&Method::GET, ["keys"]) => Ok(keys::list(shared, &caller)),
            (&Method::POST, ["keys"]) => keys::create(shared, &caller, &read(body).await?).await,
            (&Method::GET, ["keys", public]) => keys::show(shared, &caller, key(public)?),
            (&Method::PATCH, ["keys", public]) => {
                keys::update(shared, &caller, key(public)?, &read(body).await?).await
            }
            (&Method::DELETE, ["keys", public]) | (&Method::POST, ["keys", public, "revoke"]) => {
                keys::revoke(shared, &caller, key(public)?).await
            }
            (&Method::POST, ["keys", public, "rotate"]) => {
                keys::rotate(shared, &caller, key(public)?, &read(body).await?).await
            }
            (&Method::GET, ["accounts"]) => accounts::list(shared, &caller),
            (&Method::GET, ["accounts", levels @ ..]) => {
                accounts::show(shared, &caller, &levels.join("/"))
            }
            (&Method::GET, ["ledger", "verify"]) => {
                caller.operator()?;
                accounts::verify(shared).await
            }
            (_, call) => Err(elsewhere(call)),
        }
    }

    fn caller(&self, head: &http::request::Parts) -> Result<Caller, Refused> {
        let credential = headers::credential(&head.headers, head.uri.query())
            .map_err(|_| Refused::from(Code::InvalidApiKey))?;
        let hash = blake3::hash(credential.reveal().as_bytes());
        // Hashes compare in constant time.
        if self.shared.admin_token.is_some_and(|token| token == hash) {
            return Ok(Caller {
                by: By::Operator,
                reach: None,
            });
        }
        let principal = self.authenticate(head)?;
        if !principal.leads() {
            let what = "Only the admin token and keys of role `lead` may use the admin API";
            return Err(Refused::what(Code::Forbidden, what));
        }
        let project = principal.path.accounts().get(1).cloned();
        Ok(Caller {
            by: By::Key(principal.key),
            reach: project,
        })
    }
}

/// A path that is none, or is called with another method.
fn elsewhere(call: &[&str]) -> Refused {
    let allow: &'static [&'static str] = match call {
        ["keys"] => &["GET", "POST"],
        ["keys", _] => &["GET", "PATCH", "DELETE"],
        ["keys", _, "revoke" | "rotate"] => &["POST"],
        ["accounts", ..] | ["ledger", "verify"] => &["GET"],
        _ => return Refused::what(Code::NotFound, "The admin API has no such path"),
    };
    let mut refused = Refused::from(Code::MethodNotAllowed);
    refused.allow = Some(allow);
    refused
}

fn key(public: &str) -> Result<PublicPart, Refused> {
    PublicPart::parse(public).ok_or_else(|| no_such_key().into())
}

fn no_such_key() -> Fault {
    Fault::new(Code::NotFound)
        .what("There is no such key")
        .how("Name it by its public part, `hp-` and 12 characters; `headpond key list` shows those there are.")
}

async fn read<B>(body: B) -> Result<Bytes, Refused>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, MOST_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let what = format!("The body is larger than {MOST_BYTES} bytes");
            Err(Refused::what(Code::RequestTooLarge, what))
        }
        Err(_) => Err(Refused::what(
            Code::InvalidRequest,
            "The body broke off before its end",
        )),
    }
}

/// A key, if the caller may see it; otherwise as if there were none.
fn visible(
    shared: &Shared,
    caller: &Caller,
    public: PublicPart,
) -> Result<std::sync::Arc<KeyRecord>, Refused> {
    let record = shared.ledger.keys().get(&public).cloned();
    record
        .filter(|record| caller.may_see(&record.account))
        .ok_or_else(|| no_such_key().into())
}

fn refusal(error: &KeyError) -> Refused {
    let code = match error {
        KeyError::NotFound => Code::NotFound,
        KeyError::Beyond(_) => Code::Forbidden,
        KeyError::NoActor => Code::InvalidApiKey,
        KeyError::Over | KeyError::Changed(_) | KeyError::Exists | KeyError::Account(_) => {
            Code::InvalidValue
        }
        KeyError::Unavailable(_) => Code::QuotaUnavailable,
    };
    let mut what = error.to_string();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let fault = Fault::new(code).what(what);
    // None of these is about one field.
    let how = match error {
        KeyError::Over => "Make a new key.",
        KeyError::Changed(_) => "Look at it again, and repeat the change if it is still wanted.",
        KeyError::Exists | KeyError::Account(_) => "Try again with another name.",
        KeyError::NotFound | KeyError::Beyond(_) | KeyError::NoActor | KeyError::Unavailable(_) => {
            return fault.into();
        }
    };
    fault.how(how).into()
}
