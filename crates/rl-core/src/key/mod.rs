//! Finds the [`Subject`] that a request is counted under.
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
//! | [`Route`] | the pattern of the route that matched, or `unmatched` | `route` |
//! | [`Method`] | the method | `method` |
//! | [`Constant`] | everyone together | `global` |
//! | a closure over `&dyn RequestInfo` | what it says | its own |
//!
//! An extractor returns a subject, no subject, or that the key is [ambiguous](AmbiguousKey).
//! [`or`](KeyExtractor::or) asks a second extractor for requests without a key of the first,
//! [`and`](KeyExtractor::and) counts per pair, and [`known`](KeyExtractor::known) accepts only keys that
//! the service has given out. A setting of the adapter decides about a request without any key. A request
//! with an ambiguous key is rejected with 400 and counted nowhere.
//!
//! # Security
//!
//! 1. A value from the client identifies it only after something has checked it. A client that invents API
//!    keys is a new subject each time. So count [known keys](KeyExtractor::known) alone and everything else
//!    by address, or run [`ApiKey`] behind an authentication that refuses unknown keys.
//! 2. An ambiguous value is rejected. With two headers, parameters or cookies of one name, the client
//!    could show one to the limiter and the other to the service. If that counted as no key, the client
//!    would choose its bucket: that of the next extractor of `or`, or none.
//! 3. Put the extractors of `or` in the order in which the service looks for credentials: a request may
//!    hold several of different kinds.
//! 4. API keys and tokens are hashed with a [`KeySecret`] at once. They are in no store key, log
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
//! #     fn extensions(&self) -> &dyn std::any::Any { &() }
//! #     fn find_extension<T: Send + Sync + 'static>(&self) -> Option<&T> { None }
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
//! let subject = who.subject(&request)?.unwrap();
//! assert_eq!(subject.realm().as_str(), "ip");
//! assert_eq!(subject.id().as_text(), Some("198.51.100.7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ambiguous;
mod api_key;
mod client_address;
mod combine;
mod constant;
mod credential;
#[cfg(test)]
pub(crate) mod fake_request;
mod header;
mod identified;
mod known;
mod method;
mod request;
mod route;
mod secret;

pub use ambiguous::{AmbiguousKey, IntoSubject};
pub use api_key::ApiKey;
pub use client_address::ClientAddress;
pub use combine::{And, Or};
pub use constant::Constant;
pub use header::Header;
pub use identified::{Extension, Identified, from_extension};
pub use known::{Known, Recognized};
pub use method::Method;
pub use request::RequestInfo;
pub use route::Route;
pub use secret::{InvalidSecret, KeySecret};

pub use crate::client_ip::InvalidHeaderName;

use crate::model::Subject;

/// The longest value of a header, parameter or cookie that can be a key, in bytes. Servers accept headers
/// of about that length.
const MAX_VALUE_LEN: usize = 64 * 1_024;

/// Finds the subject that a request is counted under.
///
/// Closures over `&dyn RequestInfo` are extractors too: they return a `Subject`, an `Option` of one, or
/// the result of [`subject`](Self::subject).
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the subject that `request` is counted under, `None` if it has no key.
    ///
    /// # Errors
    ///
    /// Returns an error if two readers could take the key for different ones.
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey>;

    /// Asks `other` for requests without a key of this one: `Identified.or(ClientAddress::default())`.
    /// An ambiguous key is ambiguous for both.
    fn or<E>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
        E: KeyExtractor,
    {
        Or::new(self, other)
    }

    /// Counts each pair of subjects on its own, such as each consumer on each route:
    /// `Identified.and(Route)`. Without one of them there is no pair.
    ///
    /// The pair is in the realm of the first and [belongs to it](Subject::owner), so that it is under
    /// the policy of the first: look up the `owner` in a map of policies. Its id is a digest, so no pair
    /// equals another pair, or a subject that is counted alone.
    fn and<E>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
        E: KeyExtractor,
    {
        And::new(self, other)
    }

    /// Accepts only subjects that the service knows; a request with any other subject has no key.
    ///
    /// A client can invent as many API keys as it likes. With `known` and [`or`](Self::or) it gains no
    /// bucket by that: known keys count as themselves, every other request by address.
    ///
    /// `recognize` returns whether it knows the subject, or the subject to count instead, such as the
    /// consumer that a key belongs to.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
    /// use rl_core::{Realm, Subject};
    ///
    /// let secret = KeySecret::new(b"read me from the configuration")?;
    /// let sold = secret.subject(Realm::Key, b"sk_live_51H8");
    /// let consumers = HashMap::from([(sold, Subject::consumer("alice"))]);
    /// let by_consumer = ApiKey::header("x-api-key", secret)?
    ///     .known(move |key| consumers.get(key).cloned())
    ///     .or(ClientAddress::default());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn known<F, S>(self, recognize: F) -> Known<Self, F>
    where
        Self: Sized,
        F: Fn(&Subject) -> S + Send + Sync + 'static,
        S: Recognized,
    {
        Known::new(self, recognize)
    }
}

impl<F, S> KeyExtractor for F
where
    F: Fn(&dyn RequestInfo) -> S + Send + Sync + 'static,
    S: IntoSubject,
{
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        self(request).into_subject()
    }
}
