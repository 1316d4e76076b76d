//! Finds the rule of a descriptor, in time that does not grow with the number of rules.

use std::collections::HashMap;

/// The rules of a domain, by the keys and values of descriptors.
///
/// ```text
/// descriptor: [message_type=marketing, to_number]      root ─ message_type=marketing ─ to_number
/// descriptor: [to_number]                                └─── to_number
/// ```
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    keys: HashMap<Box<str>, KeyChildren>,
    rule: Option<usize>,
}

/// The children for a key, the most specific first.
#[derive(Debug, Default)]
struct KeyChildren {
    values: HashMap<Box<str>, usize>,
    patterns: Patterns,
    any: Option<usize>,
}

/// The children for values that match a pattern.
#[derive(Debug, Default)]
struct Patterns {
    /// The patterns by the text before their first `*`, each with its position among all patterns of
    /// the key.
    by_prefix: HashMap<Box<str>, Vec<(usize, Pattern, usize)>>,
    /// The lengths of those texts, in bytes, in ascending order.
    lengths: Vec<usize>,
    count: usize,
}

/// A text with `*` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// The texts around each `*`.
    texts: Box<[Box<str>]>,
    /// Whether all values that match share one counter: the pattern has `**`.
    is_shared: bool,
}

/// The rule of a descriptor, and the values of its subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) rule: usize,
    /// The entries whose values the rule does not name, and does not let share a counter.
    pub(super) variables: Vec<(&'a str, &'a str)>,
}

/// The reason for which a rule is not added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// This rule has the same keys and values.
    Same(usize),
    /// A rule has the same pattern with `*`, and this one with `**`, or the other way around.
    Shared,
}

impl Tree {
    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule would never be found beside another one.
    pub(super) fn insert<'a>(
        &mut self,
        descriptor: impl IntoIterator<Item = &'a str>,
        rule: usize,
    ) -> Result<(), Conflict> {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for entry in descriptor {
            let next = self.nodes.len();
            let (key, value) = match entry.split_once('=') {
                None => (entry, None),
                Some((key, value)) => (key, Some(value)),
            };
            let children = self.nodes[at].keys.entry(key.into()).or_default();
            at = match value {
                None => *children.any.get_or_insert(next),
                Some(value) if !value.contains('*') => {
                    *children.values.entry(value.into()).or_insert(next)
                }
                Some(value) => children.patterns.insert(Pattern::new(value), next)?,
            };
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        match self.nodes[at].rule {
            Some(known) => Err(Conflict::Same(known)),
            None => {
                self.nodes[at].rule = Some(rule);
                Ok(())
            }
        }
    }

    /// Returns the rule of the descriptor with these entries.
    ///
    /// At each entry, only the most specific child is followed, as Envoy's service does.
    pub(super) fn find<'a>(&self, entries: &'a [(String, String)]) -> Option<Found<'a>> {
        let mut node = self.nodes.first()?;
        let mut variables = Vec::new();
        for (key, value) in entries {
            let (key, value) = (key.as_str(), value.as_str());
            let children = node.keys.get(key)?;
            let next = if let Some(next) = children.values.get(value) {
                *next
            } else if let Some((pattern, next)) = children.patterns.find(value) {
                if !pattern.is_shared {
                    variables.push((key, value));
                }
                next
            } else {
                variables.push((key, value));
                children.any?
            };
            node = &self.nodes[next];
        }
        Some(Found { rule: node.rule?, variables })
    }
}

impl Patterns {
    /// Adds a pattern with the child `next`. Returns its child, which exists already if the pattern
    /// does.
    fn insert(&mut self, pattern: Pattern, next: usize) -> Result<usize, Conflict> {
        let prefix = pattern.texts.first().cloned().unwrap_or_default();
        if let Err(place) = self.lengths.binary_search(&prefix.len()) {
            self.lengths.insert(place, prefix.len());
        }
        let of_prefix = self.by_prefix.entry(prefix).or_default();
        match of_prefix.iter().find(|(_, known, _)| known.texts == pattern.texts) {
            Some((_, known, _)) if *known != pattern => Err(Conflict::Shared),
            Some((.., known)) => Ok(*known),
            None => {
                of_prefix.push((self.count, pattern, next));
                self.count += 1;
                Ok(next)
            }
        }
    }

    /// Returns the first pattern that a value matches, and its child.
    fn find(&self, value: &str) -> Option<(&Pattern, usize)> {
        let matching = self.candidates(value).filter(|(_, pattern, _)| pattern.matches(value));
        let (_, pattern, next) = matching.min_by_key(|(position, ..)| *position)?;
        Some((pattern, *next))
    }

    /// Returns the patterns whose prefix a value has.
    fn candidates<'a, 'v>(
        &'a self,
        value: &'v str,
    ) -> impl Iterator<Item = &'a (usize, Pattern, usize)> + use<'a, 'v> {
        let prefixes = self.lengths.iter().map_while(|length| value.as_bytes().get(..*length));
        // A prefix that ends within a character of the value matches no pattern.
        let prefixes = prefixes.filter_map(|prefix| str::from_utf8(prefix).ok());
        prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).flatten()
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let is_shared = text.contains("**");
        let mut texts: Vec<Box<str>> = text.split('*').map(Box::from).collect();
        // The text between the two `*` of `**` is empty, so it needs no comparison.
        let last = texts.len() - 1;
        let mut place = 0;
        texts.retain(|text| {
            place += 1;
            !text.is_empty() || place == 1 || place == last + 1
        });
        Self { texts: texts.into(), is_shared }
    }

    /// Returns whether the texts of the pattern are in `value`, in their order, with the first at its
    /// beginning and the last at its end.
    fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.texts else { return false };
        let inner = value.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
        let Some(mut rest) = inner else { return false };
        middle.iter().all(|text| match rest.find(&**text) {
            Some(at) => {
                rest = &rest[at + text.len()..];
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(tree: &Tree, entries: &[(&str, &str)]) -> Option<(usize, usize)> {
        let entries = entries.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let entries: Vec<(String, String)> = entries.collect();
        let found = tree.find(&entries)?;
        Some((found.rule, found.variables.len()))
    }

    #[test]
    fn the_most_specific_rule_with_the_same_keys_is_found() {
        let mut tree = Tree::default();
        let rules: [&[&str]; 6] = [
            &["address"],
            &["address=10.0.0.1"],
            &["address=10.*"],
            &["path=/api/*/action", "address"],
            &["kind=mail", "to"],
            &["file=/a/**", "action=r*"],
        ];
        for (place, rule) in rules.into_iter().enumerate() {
            assert_eq!(tree.insert(rule.iter().copied(), place), Ok(()));
        }
        assert_eq!(rule(&tree, &[("address", "192.0.2.1")]), Some((0, 1)));
        assert_eq!(rule(&tree, &[("address", "10.0.0.1")]), Some((1, 0)));
        assert_eq!(rule(&tree, &[("address", "10.0.0.2")]), Some((2, 1)));
        assert_eq!(rule(&tree, &[("path", "/api/x/y/action"), ("address", "a")]), Some((3, 2)));
        assert_eq!(rule(&tree, &[("kind", "mail"), ("to", "a")]), Some((4, 1)));
        assert_eq!(rule(&tree, &[("file", "/a/b"), ("action", "read")]), Some((5, 1)));
        for entries in [
            &[("path", "/api/x/other"), ("address", "a")][..],
            &[("kind", "mail")],
            &[("kind", "mail"), ("to", "a"), ("more", "b")],
            &[("to", "a"), ("kind", "mail")],
            &[],
        ] {
            assert_eq!(rule(&tree, entries), None, "{entries:?}");
        }
        assert_eq!(tree.insert(["address"], 9), Err(Conflict::Same(0)));
        assert_eq!(tree.insert(["file=/a/*", "other"], 9), Err(Conflict::Shared));
    }

    #[test]
    fn the_first_of_several_patterns_that_match_is_found() {
        let mut tree = Tree::default();
        for (place, pattern) in
            ["p=/a/b*", "p=/a/*/é*", "p=*", "p=/a/*", "p=/é*"].iter().enumerate()
        {
            tree.insert([*pattern], place).unwrap();
        }
        for (value, expected) in
            [("/a/bc", 0), ("/a/x/éz", 1), ("/a/c", 2), ("", 2), ("/é", 2), ("/\u{e8}", 2)]
        {
            assert_eq!(rule(&tree, &[("p", value)]), Some((expected, 1)), "{value}");
        }
    }

    #[test]
    fn as_few_patterns_are_compared_among_ten_thousand_as_among_ten() {
        let compared = |count: usize| {
            let mut tree = Tree::default();
            for number in 0..count {
                let patterns = [format!("path=/api/{number:05}/*"), "method".to_owned()];
                tree.insert(patterns.iter().map(String::as_str), number).unwrap();
            }
            let last = format!("/api/{:05}/x", count - 1);
            assert_eq!(rule(&tree, &[("path", &last), ("method", "GET")]), Some((count - 1, 2)));
            let patterns = &tree.nodes[0].keys["path"].patterns;
            (patterns.candidates(&last).count(), patterns.lengths.len())
        };
        assert_eq!((compared(10), compared(10_000)), ((1, 1), (1, 1)));
    }

    #[test]
    fn a_pattern_needs_its_texts_in_order_and_without_overlap() {
        for (pattern, value, expected) in [
            ("value*", "value", true),
            ("*", "", true),
            ("/api/*/r/*/a", "/api/1/r/2/a", true),
            ("/api/*/r/*/a", "/api/r/2/a", false),
            ("aba*aba", "aba", false),
            ("a*b*a", "aba", true),
            ("a*b", "abc", false),
            ("a**b", "ab", true),
            ("**", "any", true),
            ("a**b**", "a-b-", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(value), expected, "{pattern} {value}");
        }
    }
}
