//! The body of a request, within its limits of size and time.

use bytes::Bytes;
use governance_core::catalogue::{Answer as Fault, Code};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use inference_wire::gather::{Gather, TooLarge};

use super::Governance;
use crate::body::BoxError;
use crate::respond::Refused;
use crate::room::{Full, Place};
use crate::scheduler::Scheduler;

impl<S: Scheduler> Governance<S> {
    /// Reads the body, within its limits of size and time.
    pub(super) async fn read<B>(
        &self,
        headers: &HeaderMap,
        body: B,
        place: &mut Place<'_>,
    ) -> Result<Bytes, Refused>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let most = self.shared.config.sizes.body;
        let announced = headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        let announced = announced.and_then(|length| length.parse::<usize>().ok());
        let gather =
            Gather::new(most, announced.unwrap_or(0)).map_err(|TooLarge { .. }| too_large(most))?;
        let limit = self.shared.config.timeouts.body_read;
        match tokio::time::timeout(limit, Box::pin(collect(body, gather, place))).await {
            Ok(read) => read,
            Err(_) => Err(Refused::from(Fault::new(Code::RequestTimeout)).closing()),
        }
    }
}

fn too_large(most: usize) -> Refused {
    let what = format!("The body is larger than {most} bytes");
    Refused::what(Code::RequestTooLarge, what).closing()
}

async fn collect<B>(body: B, mut gather: Gather, place: &mut Place<'_>) -> Result<Bytes, Refused>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&error.into()))?;
        // Trailers carry nothing that is read here.
        if let Ok(data) = frame.into_data() {
            place.take(data.len()).map_err(|Full| no_room())?;
            gather
                .push(data)
                .map_err(|TooLarge { limit }| too_large(limit))?;
        }
    }
    Ok(gather.finish())
}

fn no_room() -> Refused {
    let fault = Fault::new(Code::QueueFull)
        .what("Too many large requests are being received at once")
        .retry_after_ms(1000);
    Refused::from(fault).closing()
}

fn broken(error: &BoxError) -> Refused {
    tracing::debug!(%error, "a request body broke off");
    Refused::what(Code::InvalidRequest, "The body broke off before its end").closing()
}
