//! Finds the matches that may apply to a request, in time that does not grow with their number.
//!
//! The path templates of all matches form a tree of segments. All parameters after the same text
//! have one child, and a tail belongs to the node before it:
//!
//! ```text
//! templates            tree
//! /users/me            "" ─┬─ users ─┬─ me     (end)
//! /users/{id}              │         ├─ {}     (end)
//! /users/v{id}             │         └─ v{}    (end)
//! /files/{*rest}           └─ files            (tail)
//! ```
//!
//! A path passes from each node to the child of its segment, and to those of the parameters that
//! its segment may be. It reaches the tails of all nodes that it passes, and the ends of its last
//! nodes. A table has the matches for each end or tail, and each host.
//!
//! The index finds a few matches too many, and never one too few: it compares no methods, headers
//! and addresses. The caller confirms each match.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::host::keys_of;
use super::request_match::{CompiledMatch, RequestView};

/// An index of matches by path and host.
pub(super) struct MatchIndex {
    /// The tree of segments. The first node is its root.
    nodes: Vec<Node>,
    /// The numbers of the hosts, by their [keys](super::host::HostSet).
    hosts: HashMap<Box<str>, usize>,
    /// The length of the longest key of a host.
    longest_host: usize,
    /// The length of the longest segment without a parameter.
    longest_segment: usize,
    positions: HashMap<(PathKey, HostKey), Vec<usize>>,
    /// All positions, for a request whose path may be any.
    all: Vec<usize>,
}

/// A node of the tree of segments.
#[derive(Default)]
struct Node {
    children: HashMap<Box<str>, usize>,
    /// The children for segments with a parameter, by the text before it.
    parameters: HashMap<Box<str>, usize>,
    /// The lengths of these texts, each once.
    before_parameters: Vec<usize>,
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
    /// The match has a host. A request with an unknown host may match it.
    Some,
}

impl MatchIndex {
    /// Creates the index of matches, each with its position, in their order. `None` matches all
    /// requests.
    pub(super) fn new<'a>(
        matches: impl Iterator<Item = (usize, Option<&'a CompiledMatch>)>,
    ) -> Self {
        let (hosts, positions) = Default::default();
        let nodes = vec![Node::default()];
        let (longest_host, longest_segment) = (0, 0);
        let all = Vec::new();
        let mut index = Self { nodes, hosts, longest_host, longest_segment, positions, all };
        for (position, of_position) in matches {
            index.add(position, of_position);
            index.all.push(position);
        }
        index
    }

    fn add(&mut self, position: usize, added: Option<&CompiledMatch>) {
        let templates = added.and_then(CompiledMatch::templates);
        let paths = templates.map_or_else(
            || vec![PathKey::None],
            |templates| templates.iter().map(|template| self.add_template(template)).collect(),
        );
        let hosts = added.into_iter().flat_map(|added| added.hosts().keys());
        let mut hosts: Vec<HostKey> = hosts.map(|key| self.add_host(key)).collect();
        hosts.push(if hosts.is_empty() { HostKey::None } else { HostKey::Some });
        for path in paths {
            for host in &hosts {
                let positions = self.positions.entry((path, *host)).or_default();
                // Two forms of a template may end at one node.
                if positions.last() != Some(&position) {
                    positions.push(position);
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
            // An escaped brace is handled like a parameter.
            node = match segment.find(['{', '}']) {
                Some(at) => {
                    if !parent.before_parameters.contains(&at) {
                        parent.before_parameters.push(at);
                    }
                    *parent.parameters.entry(segment[..at].into()).or_insert(next)
                }
                None => {
                    self.longest_segment = self.longest_segment.max(segment.len());
                    *parent.children.entry(segment.into()).or_insert(next)
                }
            };
            if node == next {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[node].has_end = true;
        PathKey::End(node)
    }

    fn add_host(&mut self, key: &str) -> HostKey {
        self.longest_host = self.longest_host.max(key.len());
        let next = self.hosts.len();
        HostKey::Number(*self.hosts.entry(key.into()).or_insert(next))
    }

    /// Returns the positions of the matches that may apply to a request, in their order.
    pub(super) fn find(&self, request: &RequestView<'_>) -> SmallVec<[usize; 8]> {
        let Some(paths) = self.paths(request) else { return self.all.iter().copied().collect() };
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

    /// Adds the keys of a path. Reads only the segments that a template may have.
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
            // A longer segment, which may have 64 KiB, need not be hashed.
            let child = (segment.len() <= self.longest_segment).then_some(segment);
            let child = child.and_then(|segment| node.children.get(segment));
            let before = node.before_parameters.iter().filter_map(|len| segment.get(..*len));
            let parameters = before.filter_map(|text| node.parameters.get(text));
            open.extend(child.into_iter().chain(parameters).map(|child| (*child, rest)));
        }
    }

    /// Returns the keys of the request's hosts.
    fn hosts(&self, request: &RequestView<'_>) -> SmallVec<[HostKey; 4]> {
        let mut keys = smallvec![HostKey::None];
        if self.hosts.is_empty() {
            return keys;
        }
        let Some(names) = request.hosts().names() else {
            keys.push(HostKey::Some);
            return keys;
        };
        for name in names {
            let known = keys_of(name, self.longest_host).filter_map(|key| self.hosts.get(key));
            keys.extend(known.map(|number| HostKey::Number(*number)));
        }
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
                (0..2_000).map(|number| CompiledMatch::by_peer(&of_number(number))).collect();
            let index = MatchIndex::new(matches.iter().map(Some).enumerate());
            let find = |path: &str, host: &str| {
                let request = FakeRequest::get(path).header("host", host.as_bytes());
                index.find(&RequestView::new(&request, &client)).to_vec()
            };
            let known = if sent == "/a" { "a.b.T7.example.org:80" } else { "t7.example.org" };
            assert_eq!(find(sent, known), [7], "{:?}", of_number(7));
            assert!(find("/none/of/them", "example.org").is_empty(), "{:?}", of_number(7));
            // A path with too many forms, or an unknown host, may belong to each match.
            let deep = format!("/%{}41", "25".repeat(300));
            assert_eq!(find(&deep, "a@b").len(), 2_000);
        }
    }

    /// Fault: each rule read the hosts of a request again, and compared each form of its path. One
    /// request took 0.1 to 6 s under a thousand rules.
    #[test]
    fn the_work_for_a_hostile_request_is_bounded_and_does_not_grow_with_the_rules() {
        let hosts = |count: usize| vec!["a"; count].join(",");
        let deep = |levels: usize| format!("/{}/%{}41", "a".repeat(2_000), "25".repeat(levels));
        let client = ClientAddress::default();
        for (path, forwarded, may_be_any) in [
            (deep(9), hosts(11), false),
            (deep(100), hosts(11), true),
            (deep(9), hosts(150_000), true),
            (format!("/a/{}", "b/".repeat(30_000)), hosts(1), true),
            (format!("/a/{}", "b".repeat(60_000)), hosts(1), false),
            (format!("/{}", "../%2e%2e//".repeat(1_000)), "x@y".into(), true),
        ] {
            let work = [1, 2_000].map(|count| {
                let rule = |number| {
                    let all = Match::new().host(format!("t{number}.example.org"));
                    all.host(format!("*.u{number}.org")).path(format!("/{{a}}/r{number}/{{*b}}"))
                };
                let matches = (0..count).map(|number| CompiledMatch::by_peer(&rule(number)));
                let matches: Vec<CompiledMatch> = matches.collect();
                let index = MatchIndex::new(matches.iter().map(Some).enumerate());
                let request = FakeRequest::get(&path).header("host", b"a.u.org");
                let request = request.header("x-forwarded-host", forwarded.as_bytes());
                let view = RequestView::new(&request, &client);
                let found = index.find(&view);
                assert!(found.is_empty() || may_be_any, "{count} rules");
                for place in found {
                    matches[place].applies(&view);
                    assert!(!matches[place].exempts(&view), "{count} rules");
                }
                let forms = view.path_forms().map_or(0, Iterator::count);
                let names = view.hosts().names().map_or(0, Iterator::count);
                (request.lines_read(), forms, names)
            });
            let [(lines, forms, names), with_many] = work;
            assert_eq!(with_many, work[0], "the work does not depend on the number of rules");
            assert!(lines <= 2 && forms <= 12 && names <= 12, "{work:?}");
        }
    }

    #[test]
    fn a_parameter_is_found_by_the_text_before_it_in_the_segment() {
        let matches: Vec<CompiledMatch> = (0..2_000)
            .map(|number| Match::new().path(format!("/all/é{number}-{{name}}/x")))
            .map(|one| CompiledMatch::by_peer(&one))
            .collect();
        let index = MatchIndex::new(matches.iter().map(Some).enumerate());
        let client = ClientAddress::default();
        for (path, expected) in [
            ("/all/é7-a/x", &[7][..]),
            ("/all/%C3%A97-a/x", &[7]),
            ("/all/e7-a/x", &[]),
            ("/all/€/x", &[]),
        ] {
            let request = FakeRequest::get(path);
            assert_eq!(*index.find(&RequestView::new(&request, &client)), *expected, "{path}");
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

    /// Returns requests with up to two methods and paths, and any number of hosts.
    fn any_request() -> impl Strategy<Value = FakeRequest> {
        const SEGMENTS: &[&str] =
            &["a", "b", "b1", "%61", "..", ".", "", "a%2Fb", "%25252562", "%2e%2E", "c%", "bé"];
        let segment = || prop::sample::select(SEGMENTS);
        let path =
            prop::collection::vec(segment(), 0..5).prop_map(|all| format!("/{}", all.join("/")));
        let hosts = &["a.org", "B.A.org:80", "c.b.a.org", "org", "x.org.", "[0:0::1]", "a@b", ""];
        let hosts = prop::collection::vec(prop::sample::select(&hosts[..]), 0..3);
        let forwarded = (prop::sample::select(&["a.org", "c.org, b.a.org", "x"][..]), 0..9_usize);
        // Some of the lists exceed the bound of hosts, and some that of their text.
        let forwarded =
            forwarded.prop_map(|(hosts, count)| vec![hosts; count * count * count].join(","));
        let forwarded = prop::option::of(forwarded.prop_filter("a host", |line| !line.is_empty()));
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
            let lines = lines.chain(forwarded.as_deref().map(|host| ("x-forwarded-host", host)));
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
            let compile = |one: Option<Match>| one.map(|one| CompiledMatch::by_peer(&one));
            let matches: Vec<_> = matches.into_iter().map(compile).collect();
            let index = MatchIndex::new(matches.iter().map(Option::as_ref).enumerate());
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
