//! A request made by hand, for tests.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{NestedPrefix, RequestInfo, Tier};
use crate::model::Subject;

#[derive(Debug, Default)]
pub(crate) struct FakeRequest {
    method: String,
    sent_method: Option<String>,
    may_have_body: bool,
    path: String,
    routed_path: Option<String>,
    nested_prefix: Option<NestedPrefix<'static>>,
    query: Option<String>,
    authority: Option<String>,
    route: Option<String>,
    headers: Vec<(&'static str, Vec<u8>)>,
    peer: Option<IpAddr>,
    identified: Option<Subject>,
    tier: Option<Tier>,
    lines_read: AtomicUsize,
}

impl FakeRequest {
    pub(crate) fn get(target: &str) -> Self {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        Self { method: "GET".into(), path: path.into(), query, ..Self::default() }
    }

    pub(crate) fn method(mut self, method: &str) -> Self {
        self.method = method.into();
        self
    }

    pub(crate) fn sent_method(mut self, method: &str) -> Self {
        self.sent_method = Some(method.into());
        self
    }

    pub(crate) fn may_have_body(mut self) -> Self {
        self.may_have_body = true;
        self
    }

    pub(crate) fn routed_path(mut self, path: &str) -> Self {
        self.routed_path = Some(path.into());
        self
    }

    pub(crate) fn nested_prefix(mut self, prefix: &str) -> Self {
        self.nested_prefix = Some(NestedPrefix::Removed(prefix.to_owned().into()));
        self
    }

    pub(crate) fn partly_removed(mut self, prefix: &str) -> Self {
        self.nested_prefix = Some(NestedPrefix::PartlyRemoved(prefix.to_owned().into()));
        self
    }

    pub(crate) fn unknown_prefix(mut self) -> Self {
        self.nested_prefix = Some(NestedPrefix::Unknown);
        self
    }

    pub(crate) fn route(mut self, pattern: &str) -> Self {
        self.route = Some(pattern.into());
        self
    }

    pub(crate) fn authority(mut self, authority: &str) -> Self {
        self.authority = Some(authority.into());
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers.push((name, value.to_vec()));
        self
    }

    pub(crate) fn peer(mut self, peer: &str) -> Self {
        self.peer = peer.parse().ok();
        self
    }

    pub(crate) fn identified(mut self, subject: Subject) -> Self {
        self.identified = Some(subject);
        self
    }

    pub(crate) fn tier(mut self, name: &str) -> Self {
        self.tier = Some(Tier::new(name));
        self
    }

    /// Returns the number of header lines that were read.
    pub(crate) fn lines_read(&self) -> usize {
        self.lines_read.load(Ordering::Relaxed)
    }
}

impl RequestInfo for FakeRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn sent_method(&self) -> &str {
        self.sent_method.as_deref().unwrap_or(&self.method)
    }

    fn may_have_body(&self) -> bool {
        self.may_have_body
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn routed_path(&self) -> &str {
        self.routed_path.as_deref().unwrap_or(&self.path)
    }

    fn nested_prefix(&self) -> NestedPrefix<'_> {
        self.nested_prefix.clone().unwrap_or(NestedPrefix::None)
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let lines = self.headers.iter().filter(|(known, _)| *known == name);
        lines.for_each(|(_, value)| {
            self.lines_read.fetch_add(1, Ordering::Relaxed);
            each(value);
        });
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn extensions(&self) -> &dyn Any {
        &()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        self.identified.as_ref()
    }

    fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }
}
