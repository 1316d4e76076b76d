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
    /// The children for values that match a pattern, in the order of the rules.
    patterns: Vec<(Pattern, usize)>,
    any: Option<usize>,
}

/// A text with `*` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(Box<[Box<str>]>);

/// The rule of a descriptor, and the values of its subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) rule: usize,
    /// The entries whose values the rule does not name.
    pub(super) variables: Vec<(&'a str, &'a str)>,
    /// Those of the entries whose values match a pattern.
    pub(super) matched: Vec<(&'a str, &'a str)>,
}

impl Tree {
    /// Adds a rule. Returns the rule that has the same keys and values, if there is one.
    pub(super) fn insert<'a>(
        &mut self,
        descriptor: impl IntoIterator<Item = &'a str>,
        rule: usize,
    ) -> Option<usize> {
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
                Some(value) => {
                    let (patterns, pattern) = (&mut children.patterns, Pattern::new(value));
                    match patterns.iter().find(|(known, _)| *known == pattern) {
                        Some((_, known)) => *known,
                        None => {
                            patterns.push((pattern, next));
                            next
                        }
                    }
                }
            };
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].rule.replace(rule)
    }

    /// Returns the rule of the descriptor with these entries.
    ///
    /// At each entry, only the most specific child is followed, as Envoy's service does.
    pub(super) fn find<'a>(&self, entries: &'a [(String, String)]) -> Option<Found<'a>> {
        let mut node = self.nodes.first()?;
        let (mut variables, mut matched) = (Vec::new(), Vec::new());
        for (key, value) in entries {
            let (key, value) = (key.as_str(), value.as_str());
            let children = node.keys.get(key)?;
            let matches = |(pattern, _): &&(Pattern, usize)| pattern.matches(value);
            let next = if let Some(next) = children.values.get(value) {
                *next
            } else if let Some((_, next)) = children.patterns.iter().find(matches) {
                matched.push((key, value));
                *next
            } else {
                variables.push((key, value));
                children.any?
            };
            node = &self.nodes[next];
        }
        Some(Found { rule: node.rule?, variables, matched })
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self(text.split('*').map(Box::from).collect())
    }

    /// Returns whether the texts of the pattern are in `value`, in their order, with the first at its
    /// beginning and the last at its end.
    fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.0 else { return false };
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

    fn rule(tree: &Tree, entries: &[(&str, &str)]) -> Option<(usize, usize, usize)> {
        let entries = entries.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let entries: Vec<(String, String)> = entries.collect();
        let found = tree.find(&entries)?;
        Some((found.rule, found.variables.len(), found.matched.len()))
    }

    #[test]
    fn the_most_specific_rule_with_the_same_keys_is_found() {
        let mut tree = Tree::default();
        let rules: [&[&str]; 5] = [
            &["address"],
            &["address=10.0.0.1"],
            &["address=10.*"],
            &["path=/api/*/action", "address"],
            &["kind=mail", "to"],
        ];
        for (place, rule) in rules.into_iter().enumerate() {
            assert_eq!(tree.insert(rule.iter().copied(), place), None);
        }
        assert_eq!(rule(&tree, &[("address", "192.0.2.1")]), Some((0, 1, 0)));
        assert_eq!(rule(&tree, &[("address", "10.0.0.1")]), Some((1, 0, 0)));
        assert_eq!(rule(&tree, &[("address", "10.0.0.2")]), Some((2, 0, 1)));
        assert_eq!(rule(&tree, &[("path", "/api/x/y/action"), ("address", "a")]), Some((3, 1, 1)));
        assert_eq!(rule(&tree, &[("kind", "mail"), ("to", "a")]), Some((4, 1, 0)));
        for entries in [
            &[("path", "/api/x/other"), ("address", "a")][..],
            &[("kind", "mail")],
            &[("kind", "mail"), ("to", "a"), ("more", "b")],
            &[("to", "a"), ("kind", "mail")],
            &[],
        ] {
            assert_eq!(rule(&tree, entries), None, "{entries:?}");
        }
        assert_eq!(tree.insert(["address"], 9), Some(0), "the same keys and values");
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
        ] {
            assert_eq!(Pattern::new(pattern).matches(value), expected, "{pattern} {value}");
        }
    }
}
