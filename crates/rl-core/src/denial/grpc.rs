//! Denials for gRPC clients: responses that consist of headers only.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::response::{Denial, GRPC_CONTENT_TYPE};
use super::words::{Explanation, push_quota};
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
    if let Some(details) = details(code, message.unwrap_or_default(), reason) {
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

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// Returns the value of `grpc-status-details-bin`, or `None` if there is nothing to add to the
/// status.
///
/// Each limit that denies becomes a violation. Its subject is the public name of the limit; its
/// description is the quota.
fn details(code: u8, message: &str, reason: Explanation<'_>) -> Option<String> {
    let decision = reason.decision?;
    let mut status = Message::default();
    status.number(1, code.into());
    status.text(2, message);
    match decision.retry_hint() {
        RetryAfter::In(wait) => status.any(RETRY_INFO, retry_info(wait)),
        RetryAfter::Now => status.any(RETRY_INFO, retry_info(Duration::ZERO)),
        RetryAfter::Never => {}
    }
    if reason.disclosed_limit.is_some() {
        let mut failure = Message::default();
        for limit in reason.violated() {
            let mut violation = Message::default();
            violation.text(1, &limit.public_name().to_string());
            let mut allowed = String::new();
            push_quota(&mut allowed, limit.configured());
            violation.text(2, &allowed);
            failure.bytes(1, &violation.0);
        }
        status.any(QUOTA_FAILURE, failure);
    }
    Some(STANDARD_NO_PAD.encode(status.0))
}

fn retry_info(wait: Duration) -> Message {
    let mut delay = Message::default();
    delay.number(1, wait.as_secs());
    delay.number(2, wait.subsec_nanos().into());
    let mut info = Message::default();
    info.bytes(1, &delay.0);
    info
}

/// A protobuf message that is built field by field. The few messages of a denial do not justify a
/// dependency on a protobuf library.
///
/// ```text
/// google.rpc.Status        1: int32 code   2: string message   3: repeated Any details
/// google.protobuf.Any      1: string type_url                  2: bytes value
/// google.rpc.RetryInfo     1: Duration retry_delay
/// google.protobuf.Duration 1: int64 seconds                    2: int32 nanos
/// google.rpc.QuotaFailure  1: repeated Violation violations
///             Violation    1: string subject                   2: string description
/// ```
///
/// A field consists of its key, `number << 3 | wire type`, and its value. The value is a varint
/// (type 0), or a length and that number of bytes (type 2). Zeros and empty texts are omitted, as
/// in proto3.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, field: u8, number: u64) {
        if number != 0 {
            self.0.push(field << 3);
            self.varint(number);
        }
    }

    fn text(&mut self, field: u8, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn any(&mut self, url: &str, value: Self) {
        let mut any = Self::default();
        any.text(1, url);
        any.bytes(2, &value.0);
        self.bytes(3, &any.0);
    }

    /// Appends a varint: seven bits in each byte, the lowest first. The high bit of a byte marks
    /// that another one follows.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}
