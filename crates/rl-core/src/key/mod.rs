//! Who is counted: from a request to a [`Subject`].
//!
//! A [`KeyExtractor`] looks at a [`RequestInfo`], the view of a request that all adapters share, so
//! one extractor works in all of them.
//!
//! | extractor | who is counted | realm |
//! |---|---|---|
//! | [`ClientAddress`] | the client's address, behind trusted proxies | `ip` |
//! | [`ApiKey`] | an API key in a header, query parameter, cookie or bearer token, as a keyed hash | `key` |
//! | [`Identified`] | the [`Subject`] that an authentication layer left in the extensions | its own |
//! | [`from_extension`] | what a function makes of another value in the extensions | its own |
//! | [`Header`] | the plain value of a header that a gateway writes | yours |
//! | [`Route`] | the pattern of the route that matched | `route` |
//! | [`Method`] | the method | `method` |
//! | [`Constant`] | everyone together | `global` |
//! | a closure over `&dyn RequestInfo` | what it says | its own |
//!
//! [`or`](KeyExtractor::or) asks a second extractor where the first does not say, and
//! [`and`](KeyExtractor::and) counts per pair. What happens to a request for which the last one does
//! not say is a setting of the adapter, never a silent default.
//!
//! # Security
//!
//! 1. What a client writes tells who it is only after someone has checked it. A client that invents
//!    API keys is a new subject each time; so run [`ApiKey`] behind an authentication that refuses
//!    unknown keys, or put a limit by address in front.
//! 2. What could be read in two ways is not read: of two headers, parameters or cookies of one name
//!    the client could show one to us and the other to the service.
//! 3. API keys and tokens are hashed with a [`KeySecret`] at once. They are in no store key, log
//!    line or `Debug` text.
//!
//! # Example
//!
//! ```
//! use rl_core::client_ip::ClientIp;
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
//! #     fn extension<T: Send + Sync + 'static, U>(&self, _: impl FnOnce(&T) -> U) -> Option<U> { None }
//! # }
//! # let request = Request;
//! let secret = KeySecret::new(b"read me from the configuration")?;
//! let proxies = ClientIp::behind("10.0.0.0/8".parse()?);
//! // A consumer, else an API key, else an address.
//! let who = Identified
//!     .or(ApiKey::header("x-api-key", secret)?)
//!     .or(ClientAddress::new(proxies));
//!
//! // A request with neither, from 198.51.100.7:
//! let subject = who.subject(&request).unwrap();
//! assert_eq!(subject.realm().as_str(), "ip");
//! assert_eq!(subject.id().as_text(), Some("198.51.100.7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api_key;
mod client_address;
mod combine;
mod constant;
mod credential;
#[cfg(test)]
pub(crate) mod fake_request;
mod header;
mod identified;
mod method;
mod request;
mod route;
mod secret;

pub use api_key::ApiKey;
pub use client_address::ClientAddress;
pub use combine::{And, Or};
pub use constant::Constant;
pub use header::Header;
pub use identified::{Extension, Identified, from_extension};
pub use method::Method;
pub use request::RequestInfo;
pub use route::Route;
pub use secret::{InvalidSecret, KeySecret};

pub use crate::client_ip::InvalidHeaderName;

use crate::Subject;

/// The longest value of a header, parameter or cookie that is taken for a key, in bytes.
const MAX_VALUE_LEN: usize = 4 * 1_024;

/// Finds out who is counted.
///
/// Closures over `&dyn RequestInfo` are extractors too.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Who is counted for `request`; `None` if it does not say.
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject>;

    /// Asks `other` where this one does not say: `Identified.or(ClientAddress::default())`.
    fn or<E>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
        E: KeyExtractor,
    {
        Or::new(self, other)
    }

    /// Counts each pair of what both say on its own, such as each consumer on each route:
    /// `Identified.and(Route)`. If one does not say, the pair does not.
    ///
    /// The pair is in the realm of the first and [belongs to it](Subject::owner), so that it is under
    /// the policy of the first. Its id is a digest: no pair is another pair, or anyone who is counted
    /// alone.
    fn and<E>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
        E: KeyExtractor,
    {
        And::new(self, other)
    }
}

impl<F> KeyExtractor for F
where
    F: Fn(&dyn RequestInfo) -> Option<Subject> + Send + Sync + 'static,
{
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        self(request)
    }
}
