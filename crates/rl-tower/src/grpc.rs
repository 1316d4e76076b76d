//! Requests that a gRPC service may handle.
//!
//! tonic chooses the handler by the path alone, so a client may send any method.

use http::Request;

/// Returns whether a gRPC service of tonic may handle the request. If in doubt, returns true.
#[cfg(feature = "tonic")]
pub(crate) fn may_reach_grpc<B: 'static>(request: &Request<B>) -> bool {
    use std::any::TypeId;

    // All services inside a server of tonic take this body, whatever the connection is.
    if TypeId::of::<B>() == TypeId::of::<tonic::body::Body>() {
        return true;
    }
    let extensions = request.extensions();
    if is_path_of_call(request.uri().path()) {
        return true;
    }
    #[cfg(feature = "axum")]
    {
        use axum::extract::{MatchedPath, OriginalUri};

        // A nested router has removed its prefix from the other path.
        if extensions.get::<OriginalUri>().is_some_and(|sent| is_path_of_call(sent.path())) {
            return true;
        }
        if let Some(route) = extensions.get::<MatchedPath>().map(MatchedPath::as_str) {
            return is_route_of_service(route)
                || may_name_any_service(route) && has_tonic_connection(extensions);
        }
    }
    has_tonic_connection(extensions)
}

/// Returns false: without the feature `tonic`, the crate does not recognize gRPC services.
#[cfg(not(feature = "tonic"))]
pub(crate) const fn may_reach_grpc<B: 'static>(_: &Request<B>) -> bool {
    false
}

/// Returns whether tonic has accepted the connection. With TLS or a connection of another type, the
/// type of the extension is not known here.
#[cfg(feature = "tonic")]
fn has_tonic_connection(extensions: &http::Extensions) -> bool {
    #[cfg(unix)]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    extensions.get::<tonic::transport::server::TcpConnectInfo>().is_some()
}

/// Returns whether tonic adds such a route: `/package.Service/{*rest}`, perhaps below a prefix. A
/// route that an application adds for a service may have another parameter.
#[cfg(all(feature = "tonic", feature = "axum"))]
fn is_route_of_service(route: &str) -> bool {
    let Some((prefix, method)) = route.rsplit_once('/') else { return false };
    let service = last_segment(prefix);
    let may_be_service = !service.is_empty() && !service.contains('{');
    method == "{*rest}" && may_be_service || is_name_of_service(service)
}

/// Returns whether the last two segments of a route contain a parameter, so that the path decides
/// which service and which method the route reaches: `/{*rest}`, `/{service}/{method}`.
#[cfg(all(feature = "tonic", feature = "axum"))]
fn may_name_any_service(route: &str) -> bool {
    route.rsplit('/').take(2).any(|segment| segment.contains('{'))
}

/// Returns whether the path ends like that of a call: `/package.Service/Method`.
#[cfg(feature = "tonic")]
fn is_path_of_call(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.rsplit_once('/').is_some_and(|(prefix, _)| is_name_of_service(last_segment(prefix)))
}

#[cfg(feature = "tonic")]
fn last_segment(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Returns whether `text` is the name of a service with its package: identifiers with dots between.
#[cfg(feature = "tonic")]
fn is_name_of_service(text: &str) -> bool {
    let is_identifier = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    text.contains('.') && text.split('.').all(is_identifier)
}

#[cfg(all(test, feature = "tonic", feature = "axum"))]
mod tests {
    use super::*;

    #[test]
    fn routes_and_paths_of_grpc_services_are_recognized() {
        for (route, expected) in [
            ("/hello.Greeter/{*rest}", true),
            ("/v1/hello.Greeter/{*rest}", true),
            ("/Greeter/{*rest}", true),
            ("/hello.v1.Greeter/{method}", true),
            ("/hello.Greeter/SayHello", true),
            ("/{*rest}", false),
            ("/{tenant}/{*rest}", false),
            ("/files/{*path}", false),
            ("/login", false),
            ("/v1.0/login", false),
        ] {
            assert_eq!(is_route_of_service(route), expected, "{route}");
        }
        for (route, expected) in [
            ("/{*rest}", true),
            ("/{tenant}/{*rest}", true),
            ("/{service}/{method}", true),
            ("/{tenant}/login", true),
            ("/{tenant}/users/login", false),
            ("/login", false),
        ] {
            assert_eq!(may_name_any_service(route), expected, "{route}");
        }
        for (path, expected) in [
            ("/hello.Greeter/SayHello", true),
            ("/v1/hello.Greeter/SayHello", true),
            ("//hello.Greeter//SayHello/", true),
            ("/hello.Greeter", false),
            ("/files/report.pdf", false),
            ("/api/v1.0/login", false),
            ("/api/login", false),
            ("/", false),
            ("*", false),
        ] {
            assert_eq!(is_path_of_call(path), expected, "{path}");
        }
    }
}
