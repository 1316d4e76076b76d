//! The request that an explanation is about.

use std::any::Any;
use std::net::IpAddr;

use rl_core::key::RequestInfo;
use rl_core::{Realm, Subject};
use serde::Deserialize;
use utoipa::IntoParams;

use super::query::{Query, one, units};
use super::subject::subject;
use crate::context::Context;
use crate::error::ApiError;

/// Describes a request. With `path`, only the rules that match it are considered.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// The number of units, under rules that set no cost of their own.
    #[serde(default = "one", deserialize_with = "units")]
    #[param(value_type = Option<u64>, minimum = 1, maximum = 9007199254740991u64, default = 1)]
    pub(crate) cost: u64,
    /// The name of a rule: the others are left out.
    pub(crate) rule: Option<String>,
    /// The tier in the extensions of the request: rules that name it have its limits.
    #[param(example = "pro")]
    pub(crate) tier: Option<String>,
    /// The method of the request; `GET` if it is left out.
    #[param(pattern = "^[A-Z]{1,20}$", example = "GET")]
    method: Option<String>,
    /// The path of the request as the client sends it.
    #[param(pattern = "^/[!-~]{0,2000}$", example = "/banks")]
    path: Option<String>,
    /// The host of the request.
    #[param(pattern = "^[A-Za-z0-9.:_-]{1,255}$", example = "api.example.com")]
    host: Option<String>,
    /// The address of the client, under which rules may count the request too.
    #[param(example = "192.0.2.7")]
    address: Option<String>,
    /// Whether only the use of the subject itself may be shown.
    #[serde(skip)]
    #[param(ignore)]
    is_restricted: bool,
}

impl Query for ExplainQuery {
    fn restrict(&mut self, _: &[String]) -> Result<(), ApiError> {
        self.is_restricted = true;
        match &self.address {
            Some(_) => Err(ApiError::not_owned("no address, which other applications use too")),
            None => Ok(()),
        }
    }
}

/// The request of a query, which no client has sent.
#[derive(Debug)]
pub(crate) struct ExplainedRequest {
    subject: Subject,
    is_restricted: bool,
    address: Option<(IpAddr, Subject)>,
    method: String,
    /// The path, if the query has one.
    target: Option<String>,
    host: Option<String>,
}

impl ExplainedRequest {
    /// Reads a query about a request of `subject`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the parameter that is invalid.
    pub(crate) fn read(
        context: &Context,
        of: Subject,
        query: ExplainQuery,
    ) -> Result<Self, ApiError> {
        let ExplainQuery { method, path, host, address, is_restricted, .. } = query;
        let fits = |text: &str, most: usize, allowed: fn(u8) -> bool| {
            (1..=most).contains(&text.len()) && text.bytes().all(allowed)
        };
        if let Some(method) = &method
            && !fits(method, 20, |byte| byte.is_ascii_uppercase())
        {
            return Err(ApiError::invalid_value("method", method, "a method such as GET"));
        }
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-".contains(&byte);
        if let Some(host) = &host
            && !fits(host, 255, is_host)
        {
            return Err(ApiError::invalid_value("host", host, "a host such as api.example.com"));
        }
        let is_path =
            |path: &str| path.starts_with('/') && fits(path, 2_001, |byte| byte.is_ascii_graphic());
        if let Some(path) = &path
            && !is_path(path)
        {
            return Err(ApiError::invalid_value("path", path, "a path such as /banks"));
        }
        if path.is_none() && (method.is_some() || host.is_some()) {
            let expected = "a path such as /banks, because the request has a method or a host";
            return Err(ApiError::invalid("path", expected));
        }
        let address = match &address {
            Some(text) => {
                let expected = "an address such as 192.0.2.7 or 2001:db8::1";
                let wrong = || ApiError::invalid_value("address", text, expected);
                let peer = text.parse().map_err(|_| wrong())?;
                Some((peer, subject(context, Realm::Ip, text).map_err(|_| wrong())?))
            }
            None => None,
        };
        let method = method.unwrap_or_else(|| "GET".to_owned());
        Ok(Self { subject: of, is_restricted, address, method, target: path, host })
    }

    /// Returns whether the query has a path, so that the request matches rules or not.
    pub(crate) const fn has_path(&self) -> bool {
        self.target.is_some()
    }

    /// Returns the subjects under which the request may be counted, the one of the query first.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let address = self.address.iter().map(|(_, address)| address.clone());
        let others = address.chain([Subject::global()]).filter(|_| !self.is_restricted);
        std::iter::once(self.subject.clone()).chain(others).collect()
    }

    fn parts(&self) -> (&str, Option<&str>) {
        let target = self.target.as_deref().unwrap_or("/");
        target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
    }
}

impl RequestInfo for ExplainedRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        self.parts().0
    }

    fn query(&self) -> Option<&str> {
        self.parts().1
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn header_lines<'a>(&'a self, _: &str, _: &mut dyn FnMut(&'a [u8])) {}

    fn peer(&self) -> Option<IpAddr> {
        self.address.as_ref().map(|(peer, _)| *peer)
    }

    fn extensions(&self) -> &dyn Any {
        &()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        Some(&self.subject)
    }

    fn authority(&self) -> Option<&str> {
        self.host.as_deref()
    }
}
