//! CORS preflights, which browsers send before some requests of scripts on web pages.

use crate::client_ip::is_token_byte;
use crate::key::{METHOD_OVERRIDES, RequestInfo};

/// Returns whether `request` is a CORS preflight as browsers send it: `OPTIONS` with one
/// `Origin`, one `Access-Control-Request-Method`, and no body.
///
/// Any other request may cause work in a proxy or a handler, so it must be counted.
pub(super) fn is_preflight(request: &dyn RequestInfo) -> bool {
    let only = |name| request.only_header(name).ok().flatten();
    let has_requested_method = || {
        only("access-control-request-method")
            .is_some_and(|method| method.iter().all(|b| is_token_byte(*b)))
    };
    request.method() == "OPTIONS"
        && request.sent_method() == "OPTIONS"
        && !request.may_have_body()
        && only("origin").is_some()
        && has_requested_method()
        && count_lines(request, "transfer-encoding", |_| true) == 0
        && count_lines(request, "content-length", |length| length.iter().any(|b| *b != b'0')) == 0
        // Browsers do not send them in a preflight.
        && METHOD_OVERRIDES.iter().all(|name| count_lines(request, name, |_| true) == 0)
}

/// Counts the lines of a header that satisfy `predicate`.
fn count_lines(request: &dyn RequestInfo, name: &str, predicate: impl Fn(&[u8]) -> bool) -> usize {
    let mut count = 0;
    request.header_lines(name, &mut |line| count += usize::from(predicate(line)));
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::fake_request::FakeRequest;

    fn preflight(lines: &[(&'static str, &str)]) -> FakeRequest {
        let request = FakeRequest::get("/").method("OPTIONS");
        lines.iter().fold(request, |request, (name, value)| request.header(name, value.as_bytes()))
    }

    #[test]
    fn preflights_are_distinguished_from_other_requests() {
        const ORIGIN: (&str, &str) = ("origin", "https://example.org");
        const METHOD: (&str, &str) = ("access-control-request-method", "PUT");

        assert!(is_preflight(&preflight(&[ORIGIN, METHOD])));
        let with_headers = [ORIGIN, METHOD, ("access-control-request-headers", "x-a,x-b")];
        assert!(is_preflight(&preflight(&with_headers)));
        assert!(is_preflight(&preflight(&[ORIGIN, METHOD, ("content-length", "0")])));
        assert!(!is_preflight(&preflight(&[ORIGIN, METHOD]).method("GET")));
        // Fault: over HTTP/2, a body may follow that no header announces.
        assert!(!is_preflight(&preflight(&[ORIGIN, METHOD]).may_have_body()));
        // Fault: a gRPC service ignores the method that the client sent.
        let sent = preflight(&[ORIGIN, METHOD]).sent_method("OPTIONS");
        assert!(is_preflight(&sent) && !is_preflight(&sent.method("POST")));
        for others in [
            &[ORIGIN][..],
            &[METHOD],
            &[ORIGIN, ORIGIN, METHOD],
            &[ORIGIN, METHOD, METHOD],
            &[("origin", ""), METHOD],
            &[ORIGIN, ("access-control-request-method", "")],
            &[ORIGIN, ("access-control-request-method", "GET, PUT")],
            &[ORIGIN, METHOD, ("content-length", "1")],
            &[ORIGIN, METHOD, ("content-length", "x")],
            &[ORIGIN, METHOD, ("content-length", "0"), ("content-length", "5")],
            &[ORIGIN, METHOD, ("transfer-encoding", "chunked")],
            &[ORIGIN, METHOD, ("x-http-method-override", "POST")],
        ] {
            assert!(!is_preflight(&preflight(others)), "{others:?}");
        }
    }
}
