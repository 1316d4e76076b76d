//! Finds the matches that may apply to a request, in time that does not grow with their number.
//!
//! The path templates of all matches form a tree of segments. All segments with a parameter have
//! one child, and a tail belongs to the node before it:
//!
//! ```text
//! templates            tree
//! /users/me            "" ─┬─ users ─┬─ me     (end)
//! /users/{id}              │         └─ {}     (end)
//! /files/{*rest}           └─ files            (tail)
//! ```
//!
//! A path passes from each node to the child of its segment, and to the child for segments with a
//! parameter. It reaches the tails of all nodes that it passes, and the ends of its last nodes. A
//! table has the matches for each end or tail, and each host.
//!
//! The index finds a few matches too many, and never one too few: it compares no methods, headers
//! and addresses, and no text beside a parameter in a segment. The caller confirms each match.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::host::{Host, for_each_host};
use super::request_match::{CompiledMatch, RequestView};

/// An index of matches by path and host.
pub(super) struct MatchIndex {
    /// The tree of segments. The first node is its root.
    nodes: Vec<Node>,
    /// The numbers of the hosts, by their [keys](Host::key).
    hosts: HashMap<Box<str>, usize>,
    /// The length of the longest key of a host.
    longest_host: usize,
    positions: HashMap<(PathKey, HostKey), Vec<usize>>,
    len: usize,
}

/// A node of the tree of segments.
#[derive(Default)]
struct Node {
    children: HashMap<Box<str>, usize>,
    /// The child for segments with a parameter, which are compared with no text.
    parameter: Option<usize>,
    has_end: bool,
    has_tail: bool,
}

/// Where a template ends: at a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PathKey {
    /// The match has no path.
    None,
    End(usize),
    Tail(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum HostKey {
    /// The match has no host.
    None,
    Number(usize),
    /// The match has some host. A request whose host is unknown may match it.
    Some,
}

impl MatchIndex {
    /// Creates the index of matches in their order. `None` matches all requests.
    pub(super) fn new<'a>(matches: impl Iterator<Item = Option<&'a CompiledMatch>>) -> Self {
        let (hosts, positions) = Default::default();
        let nodes = vec![Node::default()];
        let mut index = Self { nodes, hosts, longest_host: 0, positions, len: 0 };
        for of_position in matches {
            index.add(of_position);
            index.len += 1;
        }
        index
    }

    fn add(&mut self, added: Option<&CompiledMatch>) {
        let templates = added.and_then(CompiledMatch::templates);
        let paths = templates.map_or_else(
            || vec![PathKey::None],
            |templates| templates.iter().map(|template| self.add_template(template)).collect(),
        );
        let hosts = added.map_or(&[][..], CompiledMatch::hosts);
        let mut hosts: Vec<HostKey> = hosts.iter().map(|host| self.add_host(host)).collect();
        hosts.push(if hosts.is_empty() { HostKey::None } else { HostKey::Some });
        for path in paths {
            for host in &hosts {
                let positions = self.positions.entry((path, *host)).or_default();
                // Two forms of a template may end at one node.
                if positions.last() != Some(&self.len) {
                    positions.push(self.len);
                }
            }
        }
    }

    fn add_template(&mut self, template: &str) -> PathKey {
        let mut node = 0;
        for segment in template.split('/') {
            if segment.contains("{*") {
                self.nodes[node].has_tail = true;
                return PathKey::Tail(node);
            }
            let next = self.nodes.len();
            let parent = &mut self.nodes[node];
            node = match segment.contains(['{', '}']) {
                true => *parent.parameter.get_or_insert(next),
                false => *parent.children.entry(segment.into()).or_insert(next),
            };
            if node == next {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[node].has_end = true;
        PathKey::End(node)
    }

    fn add_host(&mut self, host: &Host) -> HostKey {
        self.longest_host = self.longest_host.max(host.key().len());
        let next = self.hosts.len();
        HostKey::Number(*self.hosts.entry(host.key().into()).or_insert(next))
    }

    /// Returns the positions of the matches that may apply to a request, in their order.
    pub(super) fn find(&self, request: &RequestView<'_>) -> SmallVec<[usize; 8]> {
        let Some(paths) = self.paths(request) else { return (0..self.len).collect() };
        let hosts = self.hosts(request);
        let mut found = SmallVec::new();
        for path in paths {
            for host in &hosts {
                found.extend(self.positions.get(&(path, *host)).into_iter().flatten().copied());
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the keys of the request's path. Returns `None` if the path may be any.
    fn paths(&self, request: &RequestView<'_>) -> Option<SmallVec<[PathKey; 8]>> {
        let mut keys = smallvec![PathKey::None];
        let has_templates = self.nodes.len() > 1;
        if has_templates {
            request.path_forms()?.for_each(|path| self.walk(path, &mut keys));
            keys.sort_unstable();
            keys.dedup();
        }
        Some(keys)
    }

    /// Adds the keys of a path.
    fn walk(&self, path: &str, keys: &mut SmallVec<[PathKey; 8]>) {
        // Nodes with the rest of the path, which is `None` after the last segment.
        let mut open: SmallVec<[(usize, Option<&str>); 8]> = smallvec![(0, Some(path))];
        while let Some((number, rest)) = open.pop() {
            let node = &self.nodes[number];
            if node.has_tail {
                keys.push(PathKey::Tail(number));
            }
            let Some(rest) = rest else {
                if node.has_end {
                    keys.push(PathKey::End(number));
                }
                continue;
            };
            let (segment, rest) =
                rest.split_once('/').map_or((rest, None), |(segment, rest)| (segment, Some(rest)));
            let child = node.children.get(segment).copied();
            open.extend(child.into_iter().chain(node.parameter).map(|child| (child, rest)));
        }
    }

    /// Returns the keys of the request's hosts.
    fn hosts(&self, request: &RequestView<'_>) -> SmallVec<[HostKey; 4]> {
        let mut keys = smallvec![HostKey::None];
        if self.hosts.is_empty() {
            return keys;
        }
        for_each_host(request.info, &mut |name| {
            let Some(name) = name else { return keys.push(HostKey::Some) };
            let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
            let name = if is_lower { name.into() } else { Cow::from(name.to_ascii_lowercase()) };
            let domains = name.rmatch_indices('.').map(|(at, _)| &name[at..]);
            // Without the bound, the work for a long name would grow with the square of its length.
            let domains = domains.take_while(|domain| domain.len() <= self.longest_host);
            let known = domains.chain([&*name]).filter_map(|key| self.hosts.get(key));
            keys.extend(known.map(|number| HostKey::Number(*number)));
        });
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::fake_request::FakeRequest;
    use crate::key::{ClientAddress, RequestInfo};
    use crate::rules::Match;
    use crate::rules::request_match::Applies;

    /// The index returns the matches of a request, and hardly any others.
    #[test]
    fn one_of_many_matches_is_found_by_path_or_host() {
        let path = |path: String| Match::new().path(path);
        let host = |host: String| Match::new().host(host);
        let client = ClientAddress::default();
        for (of_number, sent) in [
            (
                &(|number| path(format!("/tenants/{number}"))) as &dyn Fn(usize) -> Match,
                "/tenants/7",
            ),
            (&|number| path(format!("/{{tenant}}/{number}/{{*rest}}")), "/a/7/b/c"),
            (&|number| path(format!("/{number}/{{*rest}}")), "/7"),
            (&|number| path(format!("/all/{{name}}/{number}")), "/all/%61/%37/"),
            (&|number| host(format!("t{number}.example.org")), "/"),
            (&|number| host(format!("*.t{number}.example.org")).path("/{a}"), "/a"),
            (&|number| host(format!("t{number}.example.org")).path("/a"), "//a"),
        ] {
            let matches: Vec<CompiledMatch> =
                (0..2_000).map(|number| CompiledMatch::new(&of_number(number)).unwrap()).collect();
            let index = MatchIndex::new(matches.iter().map(Some));
            let find = |path: &str, host: &str| {
                let request = FakeRequest::get(path).header("host", host.as_bytes());
                index.find(&RequestView::new(&request, &client)).to_vec()
            };
            let known = if sent == "/a" { "a.b.T7.example.org:80" } else { "t7.example.org" };
            assert_eq!(find(sent, known), [7], "{:?}", of_number(7));
            assert!(find("/none/of/them", "example.org").is_empty(), "{:?}", of_number(7));
            // A path with too many forms, or an unknown host, may belong to each match.
            let deep = format!("/%{}41", "25".repeat(100));
            assert_eq!(find(&deep, "a@b").len(), 2_000);
        }
    }

    /// Returns matches with up to two values of each kind.
    fn any_match() -> impl Strategy<Value = Match> {
        fn of(values: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
            prop::collection::vec(prop::sample::select(values), 0..3)
        }
        let path =
            prop::collection::vec(prop::sample::select(&["a", "b", "{x}", "b{y}"][..]), 0..4);
        let path =
            (path, any::<bool>(), any::<bool>()).prop_map(|(segments, is_open, has_slash)| {
                let end = if is_open {
                    "/{*rest}"
                } else if has_slash {
                    "/"
                } else {
                    ""
                };
                let names = segments.iter().enumerate();
                let segments = names.map(|(place, one)| one.replace('}', &format!("{place}}}")));
                format!("/{}{end}", segments.collect::<Vec<_>>().join("/")).replace("//", "/")
            });
        let methods = of(&["GET", "HEAD", "POST"]);
        let hosts = of(&["a.org", "b.a.org", "*.a.org", "*.org", "org.", "[::1]"]);
        let addresses =
            of(&["10.0.0.0/8", "10.0.0.0/10", "10.1.2.3", "11.0.0.0/8", "::/0", "a00::/8"]);
        let paths = prop::collection::vec(path, 0..3);
        (methods, paths, hosts, addresses).prop_map(|(methods, paths, hosts, addresses)| {
            let all = methods.into_iter().fold(Match::new(), Match::method);
            let all = paths.into_iter().fold(all, Match::path);
            let all = hosts.into_iter().fold(all, Match::host);
            addresses.into_iter().fold(all, Match::address)
        })
    }

    /// Returns requests with up to two hosts, methods and paths.
    fn any_request() -> impl Strategy<Value = FakeRequest> {
        let segment = || prop::sample::select(&["a", "b", "b1", "%61", "..", ".", "", "a%2Fb"][..]);
        let path =
            prop::collection::vec(segment(), 0..5).prop_map(|all| format!("/{}", all.join("/")));
        let hosts = &["a.org", "B.A.org:80", "c.b.a.org", "org", "x.org.", "[0:0::1]", "a@b", ""];
        let hosts = prop::collection::vec(prop::sample::select(&hosts[..]), 0..3);
        let forwarded = prop::option::of(prop::sample::select(&["a.org", "c.org, b.a.org"][..]));
        let method = || prop::sample::select(&["GET", "HEAD", "POST", "PUT"][..]);
        let peer = prop::option::of(prop::sample::select(&["10.1.2.3", "11.0.0.1", "a00::1"][..]));
        let routed = prop::option::of((path.clone(), prop::option::of(Just("/a"))));
        let request = (path, routed, hosts, forwarded, method(), prop::option::of(method()), peer);
        request.prop_map(|(path, routed, hosts, forwarded, method, overridden, peer)| {
            let mut request = FakeRequest::get(&path).method(method);
            if let Some((path, prefix)) = routed {
                request = request.routed_path(&path);
                request = prefix.into_iter().fold(request, FakeRequest::nested_prefix);
            }
            let lines = hosts.iter().map(|host| ("host", *host));
            let lines = lines.chain(forwarded.map(|host| ("x-forwarded-host", host)));
            let lines = lines.chain(overridden.map(|method| ("x-http-method", method)));
            request = lines
                .fold(request, |request, (name, value)| request.header(name, value.as_bytes()));
            peer.into_iter().fold(request, FakeRequest::peer)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_index_finds_the_same_matches_as_a_comparison_with_each(
            matches in prop::collection::vec(prop::option::weighted(0.9, any_match()), 0..20),
            requests in prop::collection::vec(any_request(), 8),
        ) {
            let compile = |one: Option<Match>| one.map(|one| CompiledMatch::new(&one).unwrap());
            let matches: Vec<_> = matches.into_iter().map(compile).collect();
            let index = MatchIndex::new(matches.iter().map(Option::as_ref));
            let client = ClientAddress::default();
            for request in &requests {
                let view = RequestView::new(request, &client);
                let found = index.find(&view);
                prop_assert!(found.is_sorted_by(|one, next| one < next));
                let applies = |place: &usize| {
                    let one = matches[*place].as_ref();
                    one.is_none_or(|one| one.applies(&view) != Applies::No)
                };
                let exempts = |place: &usize| {
                    matches[*place].as_ref().is_none_or(|one| one.exempts(&view))
                };
                for confirm in [&applies as &dyn Fn(&usize) -> bool, &exempts] {
                    let confirmed = found.iter().copied().filter(confirm);
                    let expected = (0..matches.len()).filter(confirm);
                    prop_assert!(confirmed.eq(expected), "{} {matches:?}", request.path());
                }
            }
        }
    }
}
