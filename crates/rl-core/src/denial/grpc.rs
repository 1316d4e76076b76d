//! Denials for gRPC clients: responses that consist of headers only.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::grpc_details;
use super::response::{Denial, GRPC_CONTENT_TYPE};
use super::words::Explanation;
use crate::decision::RetryAfter;

/// The characters to encode in `grpc-message`: the percent sign, and all except visible ASCII and
/// spaces.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the response for `reason`, with `message` for people.
pub(super) fn denial(reason: Explanation<'_>, message: Option<&str>) -> Denial {
    let (status, code) = match reason.status() {
        429 => ("8", 8),
        503 => ("14", 14),
        403 => ("7", 7),
        500 => ("13", 13),
        _ => ("3", 3),
    };
    let mut headers = vec![("grpc-status", Cow::Borrowed(status))];
    if let Some(message) = message {
        let encoded = utf8_percent_encode(message, ENCODED).to_string();
        headers.push(("grpc-message", encoded.into()));
    }
    if let Some(details) = grpc_details::header(code, message.unwrap_or_default(), reason) {
        headers.push(("grpc-status-details-bin", details.into()));
    }
    if let Some(decision) = reason.decision {
        headers.push(("grpc-retry-pushback-ms", pushback_millis(decision.retry_hint())));
    }
    Denial { status: 200, content_type: Some(GRPC_CONTENT_TYPE), body: "".into(), headers }
}

/// Returns the milliseconds to wait, rounded up. If no wait helps, returns a negative number, which
/// stops the client from retrying.
fn pushback_millis(retry_after: RetryAfter) -> Cow<'static, str> {
    match retry_after {
        RetryAfter::Never => "-1".into(),
        RetryAfter::Now => "0".into(),
        RetryAfter::In(wait) => {
            let millis = wait.as_micros().div_ceil(1_000);
            i32::try_from(millis).unwrap_or(i32::MAX).to_string().into()
        }
    }
}
