//! The names of rules that clients read unless a service discloses the true ones.

use std::collections::HashMap;

use super::rule::Rule;
use crate::store::Namespace;

/// The number of hexadecimal digits of a pseudonym, if no other rule has the same digits.
const DIGITS: usize = 5;

/// The key of the hash. It is the same in all processes, so that all instances of a service send
/// the same names.
const CONTEXT: &str = "rl-core 2026 pseudonyms of rules";

/// Returns a pseudonym for each of `rules`, whose names are unique: `r3f2a1`.
///
/// A pseudonym is a hash of the names of the limiter and the rule. It has more digits if another
/// rule would get the same one, or has it as its name.
pub(super) fn pseudonyms(rules: &[Rule], namespace: &Namespace) -> Vec<Box<str>> {
    let hashes: Vec<String> = rules.iter().map(|rule| hash(rule.name(), namespace)).collect();
    let mut digits = vec![DIGITS; rules.len()];
    loop {
        let pseudonym = |index: usize| &hashes[index][..=digits[index]];
        let mut taken = HashMap::<&str, usize>::new();
        let names = rules.iter().map(Rule::name);
        for name in names.chain((0..rules.len()).map(pseudonym)) {
            *taken.entry(name).or_default() += 1;
        }
        let is_taken = |index: &usize| taken[pseudonym(*index)] > 1;
        let longer: Vec<usize> = (0..rules.len()).filter(is_taken).collect();
        if longer.is_empty() {
            return (0..rules.len()).map(|index| pseudonym(index).into()).collect();
        }
        for index in longer {
            digits[index] = (digits[index] + 1).min(hashes[index].len() - 1);
        }
    }
}

/// Returns `r` and the digits of the whole hash.
fn hash(rule: &str, namespace: &Namespace) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    // No name contains a zero byte.
    hasher.update(namespace.as_str().as_bytes()).update(b"\0").update(rule.as_bytes());
    format!("r{}", hasher.finalize().to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<Box<str>> {
        let rules: Vec<_> = names.iter().map(Rule::named).collect();
        pseudonyms(&rules, &Namespace::default())
    }

    /// A fixed value, because all instances, also of different versions, must send the same names.
    #[test]
    fn a_pseudonym_depends_only_on_the_names_of_the_limiter_and_the_rule() {
        let [login] = &of(&["login"])[..] else { panic!("one rule") };
        assert_eq!(&**login, "r9ff76");
        assert_eq!(of(&["export", "login"])[1], *login);
        let other = pseudonyms(&[Rule::named("login")], &"other".parse().unwrap());
        assert_ne!(other[0], *login);
    }

    #[test]
    fn pseudonyms_are_longer_where_they_would_not_be_unique() {
        // Of 5 000 rules, some have the same five digits.
        let names: Vec<String> = (0..5_000).map(|number| format!("rule-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut all = of(&names);
        assert!(all.iter().any(|one| one.len() > 1 + DIGITS));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), names.len());

        let login = of(&["login"]).remove(0);
        let both = of(&["login", &login]);
        assert!(both[0].starts_with(&*login) && both[0].len() > login.len(), "{both:?}");
    }
}
