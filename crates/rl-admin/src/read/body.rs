use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::field_and_expected;
use crate::ApiError;
use crate::wire::{MembershipInput, RateLimitInput, ResourceInput, ResourceUpdate, TierUpdate};

/// How long a body may take to arrive.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// What can be the body of a request.
pub(crate) trait Input: DeserializeOwned {
    /// The most bytes.
    const MOST: usize = 16 * 1_024;
}

impl Input for RateLimitInput {}

impl Input for TierUpdate {}

impl Input for MembershipInput {}

impl Input for ResourceInput {
    // A thousand names of 250 bytes, each in quotes.
    const MOST: usize = 512 * 1_024;
}

impl Input for ResourceUpdate {
    const MOST: usize = ResourceInput::MOST;
}

/// The body as JSON.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Sync, T: Input> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let media = request.headers().get(header::CONTENT_TYPE);
        let media = media.and_then(|media| media.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("application/json") {
            let message = "Content-Type: expected application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let read = axum::body::to_bytes(request.into_body(), T::MOST);
        let bytes = match tokio::time::timeout(LONGEST, read).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) if is_too_long(&error) => {
                let message = format!("body: expected at most {} bytes", T::MOST);
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
            }
            Ok(Err(_)) => return Err(ApiError::invalid("body", "all of it")),
            Err(_) => {
                let message = "body: expected within 10 seconds";
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message));
            }
        };
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let read = serde_path_to_error::deserialize(&mut json);
        let value = read.map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            if error.is_data() {
                let (field, expected) = field_and_expected(&path, &error.to_string());
                ApiError::invalid(&field, &expected)
            } else {
                ApiError::invalid("body", "a JSON object")
            }
        })?;
        json.end().map_err(|_| ApiError::invalid("body", "one JSON object"))?;
        Ok(Self(value))
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
