//! Finds the [`Subject`](crate::Subject) that a request is counted under.
//!
//! A [`KeyExtractor`] reads a [`RequestInfo`], the view of a request that all adapters share. One
//! extractor therefore works in all of them.
//!
//! | extractor | counts by | realm |
//! |---|---|---|
//! | [`ClientAddress`] | the client's address, behind trusted proxies | `ip` |
//! | [`ApiKey`] | an API key in a header, query parameter, cookie or bearer token, as a keyed hash | `key` |
//! | [`Identified`] | the [`Subject`](crate::Subject) that an authentication layer left in the extensions | its own |
//! | [`Header`] | the plain value of a header that a gateway writes | yours |
//! | [`Route`] | the pattern of the route that matched, or `unmatched` | `route` |
//! | [`Method`] | the method | `method` |
//! | [`Constant`] | nothing: all requests are counted together | `global` |
//! | `from_extension` of the adapters | another value in the extensions, read by a function | its own |
//! | a closure over `&dyn RequestInfo` | the subject that it returns | its own |
//!
//! An extractor returns a subject, no subject, or an error if the key is [ambiguous](AmbiguousKey).
//! [`or`](KeyExtractor::or) adds a second extractor for requests without a key of the first.
//! [`and`](KeyExtractor::and) counts pairs of subjects. [`known`](KeyExtractor::known) accepts only
//! keys that the service has issued.
//!
//! [`MissingKey`](crate::MissingKey) sets what happens to a request without any key. A request with
//! an ambiguous key is rejected with 400, and is not counted.
//!
//! # Security
//!
//! 1. A value from the client identifies the client only after it has been verified. A client that
//!    invents API keys is a new subject with each of them. Count only [known
//!    keys](KeyExtractor::known) as keys, and other requests by address. Alternatively, put the
//!    limiter behind an authentication layer that rejects unknown keys.
//! 2. An ambiguous value is rejected. With two headers, parameters or cookies of one name, the
//!    client could show one to the limiter and the other to the service. If that counted as no key,
//!    the client could choose its bucket: the bucket of the next extractor of `or`, or none.
//! 3. Give the extractors of `or` the order in which the service looks for credentials, because a
//!    request may contain several kinds of them.
//! 4. API keys and tokens are hashed with a [`KeySecret`] before anything else. They occur in no
//!    store key, log line or `Debug` text.
//!
//! # Example
//!
//! ```
//! use rl_core::client_ip::ClientIp;
//! use rl_core::Realm;
//! use rl_core::key::{ApiKey, ClientAddress, Identified, KeyExtractor, KeySecret};
//!
//! # struct Request;
//! # impl rl_core::key::RequestInfo for Request {
//! #     fn method(&self) -> &str { "GET" }
//! #     fn path(&self) -> &str { "/" }
//! #     fn query(&self) -> Option<&str> { None }
//! #     fn route(&self) -> Option<&str> { Some("/") }
//! #     fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
//! #         if name == "x-forwarded-for" { each(b"198.51.100.7") }
//! #     }
//! #     fn peer(&self) -> Option<std::net::IpAddr> { "10.0.0.1".parse().ok() }
//! #     fn extensions(&self) -> &dyn std::any::Any { &() }
//! #     fn identified_subject(&self) -> Option<&rl_core::Subject> { None }
//! # }
//! # let request = Request;
//! let secret = KeySecret::new(b"read me from the configuration")?;
//! let proxies = ClientIp::with_proxies("10.0.0.0/8".parse()?);
//! let sold = secret.subject(Realm::Key, b"key-of-alice");
//! let key = ApiKey::header("x-api-key", secret)?
//!     .known(move |key| *key == sold); // a client cannot invent keys
//! // By consumer; without a consumer by known key; without a known key by address.
//! let extractor = Identified
//!     .or(key)
//!     .or(ClientAddress::new(proxies));
//!
//! // A request from 198.51.100.7, without a consumer or an API key:
//! let subject = extractor.subject(&request)?.unwrap();
//! assert_eq!(subject.realm().as_str(), "ip");
//! assert_eq!(subject.id().as_text(), Some("198.51.100.7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api_key;
mod client_address;
mod credential;
mod extractor;
mod extractors;
#[cfg(test)]
pub(crate) mod fake_request;
mod request;
mod secret;

pub use api_key::ApiKey;
pub use client_address::ClientAddress;
pub use extractor::{CountedAs, IntoSubject, KeyExtractor, Recognized};
pub use extractors::{Constant, Header, Identified, Method, Route};
pub use request::{AmbiguousKey, NestedPrefix, RequestInfo, Tier};
pub use secret::{InvalidSecret, KeySecret};

/// Headers with which clients override the method in some services.
pub(crate) const METHOD_OVERRIDES: [&str; 3] =
    ["x-http-method-override", "x-http-method", "x-method-override"];

/// The longest value of a header, parameter or cookie that can be a key, in bytes. Servers accept
/// headers of about this length.
const MAX_VALUE_LEN: usize = 64 * 1_024;
