use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::Subject;

/// The prefix of the nested routers through which a request has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NestedPrefix<'a> {
    /// The request has passed no nested router.
    None,
    /// This prefix, which the routers have removed from the path: such as `/api`, or `/acme` if the
    /// pattern of the router is `/{tenant}`.
    Removed(Cow<'a, str>),
    /// This prefix, of which the routers have removed the first segments or none. axum leaves a
    /// segment with text beside its parameter in the path, such as `/v{number}`.
    PartlyRemoved(Cow<'a, str>),
    /// The prefix has a parameter whose value is not known. The whole path is then unknown, so all
    /// rules with a path apply, and no exemption with a path does.
    Unknown,
}

/// A view of a request that is the same in every framework.
///
/// The adapters implement it, so that one [`KeyExtractor`](super::KeyExtractor) works in all of
/// them. The client controls everything in it except [`peer`](Self::peer), [`route`](Self::route)
/// and the extensions.
pub trait RequestInfo {
    /// Returns the method on which the service acts, such as `GET`.
    ///
    /// This is the method that the client sent, except in front of a service that ignores it. gRPC
    /// services of tonic choose the handler by the path alone, so each of their requests is a
    /// `POST`.
    fn method(&self) -> &str;

    /// Returns the method that the client sent. The default returns [`method`](Self::method).
    fn sent_method(&self) -> &str {
        self.method()
    }

    /// Returns false if the framework knows that the request has no body. The default returns true.
    ///
    /// Over HTTP/2, the headers need not announce a body.
    fn may_have_body(&self) -> bool {
        true
    }

    /// Returns the path exactly as the client sent it.
    fn path(&self) -> &str;

    /// Returns the path that the framework compares with its routes: perhaps decoded, rewritten by
    /// a middleware, or without the prefix of a nested router. The default returns
    /// [`path`](Self::path).
    fn routed_path(&self) -> &str {
        self.path()
    }

    /// Returns the prefix of the nested routers that have changed
    /// [`routed_path`](Self::routed_path). The default returns [`NestedPrefix::None`].
    fn nested_prefix(&self) -> NestedPrefix<'_> {
        NestedPrefix::None
    }

    /// Returns the text after the `?`, if there is one.
    fn query(&self) -> Option<&str>;

    /// Returns the pattern of the route that matched, such as `/users/{id}`, if the framework knows
    /// it.
    fn route(&self) -> Option<&str>;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    ///
    /// A value may contain any bytes except control characters.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// Returns the address at the other end of the connection, if the framework knows it.
    fn peer(&self) -> Option<IpAddr>;

    /// Returns the framework's own map of extensions, such as `http::Extensions`.
    ///
    /// Closures read the map through `extension` of the `RequestExt` trait of an adapter, because
    /// this crate does not know the types of these maps.
    fn extensions(&self) -> &dyn Any;

    /// Returns the subject that an authentication layer left in the extensions of the request.
    fn identified_subject(&self) -> Option<&Subject>;

    /// Returns the tier that an authentication layer left in the extensions of the request. The
    /// default returns `None`.
    fn tier(&self) -> Option<&Tier> {
        None
    }

    /// Returns the authority in the target of the request, where HTTP/2 has the host: with the user
    /// and the port, if the client has sent them. The default returns `None`.
    fn authority(&self) -> Option<&str> {
        None
    }

    /// Returns the host that the client asks for, as the client has sent it, perhaps with a port:
    /// the authority in the target, or else the header `host`.
    fn host(&self) -> Option<&str> {
        let header = || std::str::from_utf8(self.only_header("host").ok().flatten()?).ok();
        self.authority().or_else(header)
    }

    /// Returns the value of the first header line called `name` (in lower case).
    ///
    /// A request may have several such lines, and the service may read another of them. Use
    /// [`only_header`](Self::only_header) for a value that identifies the client.
    fn header<'a>(&'a self, name: &str) -> Option<&'a [u8]> {
        let mut first = None;
        self.header_lines(name, &mut |line| {
            first.get_or_insert(line);
        });
        first
    }

    /// Returns the value of the header called `name` (in lower case), `None` if it is missing or
    /// empty. The padding `=` at the end of binary metadata of gRPC (`…-bin`) is not part of it,
    /// because services read the value with and without padding.
    ///
    /// # Errors
    ///
    /// Returns an error if there are several lines of that name, or if a space or tab surrounds the
    /// value. With two values, the client could show one to the limiter and the other to the
    /// service. A padded value is an error because only some parsers trim it.
    fn only_header<'a>(&'a self, name: &str) -> Result<Option<&'a [u8]>, AmbiguousKey> {
        let mut value: &[u8] = b"";
        let mut lines = 0;
        self.header_lines(name, &mut |line| {
            value = line;
            lines += 1;
        });
        if name.ends_with("-bin") {
            let padding = value.iter().rev().take_while(|byte| **byte == b'=').count();
            value = &value[..value.len() - padding];
        }
        match value {
            _ if lines > 1 => Err(AmbiguousKey),
            [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Err(AmbiguousKey),
            [] => Ok(None),
            value => Ok(Some(value)),
        }
    }
}

/// The name of a group of clients with limits of their own, such as `pro`.
///
/// An authentication layer leaves the tier of a client in the extensions of the request.
/// [`Rules::tier_by`](crate::rules::Rules::tier_by) finds it by subject instead. A
/// [`Rule`](crate::rules::Rule) can have limits for each tier. A client without a tier, or in a
/// tier that the rule does not name, has the limits of the rule itself.
///
/// # Examples
///
/// ```
/// use rl_core::key::Tier;
///
/// let tier = Tier::new("pro");
/// assert_eq!(tier.name(), "pro");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tier(Arc<str>);

impl Tier {
    /// Creates the tier called `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error for a credential that two parsers could read differently, because the request contains
/// it twice, or in a form that only some parsers accept.
///
/// The adapters reject such a request with 400, and do not count it. They never continue with the
/// next extractor of [`or`](super::KeyExtractor::or), and no variant of
/// [`MissingKey`](crate::MissingKey) allows it. Otherwise the client could show one value to the
/// limiter and another to the service, and thus choose its bucket.
///
/// # Examples
///
/// ```
/// use rl_core::key::{AmbiguousKey, KeyExtractor, RequestInfo};
/// use rl_core::{Realm, Subject};
///
/// /// Counts by the tenant in a header of a gateway; `?` rejects a request with two such headers.
/// fn by_tenant(realm: Realm) -> impl KeyExtractor {
///     move |request: &dyn RequestInfo| {
///         let Some(tenant) = request.only_header("x-tenant")? else { return Ok(None) };
///         let tenant = std::str::from_utf8(tenant).map_err(|_| AmbiguousKey)?;
///         Ok(Some(Subject::new(realm.clone(), tenant)))
///     }
/// }
/// # let _ = by_tenant(Realm::User);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AmbiguousKey;

debug_as_display!(AmbiguousKey);

impl fmt::Display for AmbiguousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the credential occurs more than once, or can be read in several ways")
    }
}

impl std::error::Error for AmbiguousKey {}
