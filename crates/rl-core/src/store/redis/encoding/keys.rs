//! The names of keys: injective, bounded in length, one hash tag for each subject, and no way for a
//! caller to write a tag of their own.
//!
//! Packed: `rl:3:default:consumer:{acme}`, that is prefix, version of the format, namespace, realm
//! and id; for the entries of a sliding log `rl:3:default:consumer:{acme}:60000`, with its period in
//! ms, of a concurrency limit `rl:3:default:consumer:{acme}:c10000`, with an `r` before the period if
//! the limit counts requests. Readable: `acme_PER_MINUTE`, `acme_PER_MINUTE_REQUESTS` if the limit
//! counts requests, and `{acme}_PER_MINUTE` on a cluster.

#[cfg(test)]
mod collisions;

use std::fmt::Write;

use crate::model::{Algorithm, Limit, Period, Realm, Subject};
use crate::store::Namespace;

/// The version of the packed layout; a change of the layout is a change of every key.
const VERSION: &str = "3";

/// No key is longer, in bytes.
const MAX_KEY_LEN: usize = 200;

/// What the longest period and its mark add to a packed key.
const RING_LEN: usize = ":cr3153600000000".len();

/// A digest in a key, and its mark.
const DIGEST_LEN: usize = "~".len() + 32;

/// The suffix of a readable counter, in the order of [`Period::NAMED`].
const SUFFIXES: [&str; 6] =
    ["_PER_SECOND", "_PER_MINUTE", "_PER_HOUR", "_PER_DAY", "_PER_WEEK", "_PER_MONTH"];

/// What follows the suffix of a readable counter of requests.
///
/// No id can imitate it, because no suffix is the end of another.
const REQUESTS: &str = "_REQUESTS";

/// The key that holds the packed state of a subject.
pub(crate) fn packed(prefix: &str, namespace: &Namespace, subject: &Subject) -> String {
    let parts = [prefix, VERSION, namespace.as_str(), subject.realm().as_str()];
    let id = subject.id().as_text().map_or(DIGEST_LEN, str::len);
    let len = parts.iter().map(|part| part.len() + 1).sum::<usize>() + id + "{}".len();
    let mut key = String::with_capacity(len);
    // Neither prefix nor namespace nor realm holds a colon or a brace, and an id none unescaped.
    for part in parts {
        key.push_str(part);
        key.push(':');
    }
    push_tag(&mut key, subject, MAX_KEY_LEN - RING_LEN - 1);
    key
}

/// The key that holds the entries of a limit, if it has any: beside the packed state, in its slot.
pub(crate) fn ring(packed: &str, limit: Limit) -> Option<String> {
    let period = limit.period().as_millis();
    let kind = match limit.algorithm() {
        Algorithm::SlidingLog => "",
        Algorithm::Concurrency => "c",
        _ => return None,
    };
    let requests = if limit.counts_requests() { "r" } else { "" };
    Some(format!("{packed}:{kind}{requests}{period}"))
}

/// Returns the key of a subject's reservations, in the hash slot of the packed state. No key of a log has
/// such a name.
pub(crate) fn reservations(packed: &str) -> String {
    format!("{packed}:reserved")
}

/// Returns the names of a subject's readable counters, by period and whether requests are counted.
///
/// Other periods than the named ones have none. Consumers and addresses stand bare, as in the format that
/// other programs share; other realms are
/// put before the id, with a bar that no bare id holds unescaped; a namespace with two. With
/// `tagged`, the id is the hash tag.
pub(crate) fn readable<'a>(
    prefix: &'a str,
    namespace: &'a Namespace,
    subject: &Subject,
    tagged: bool,
) -> impl Fn(Period, bool) -> Option<String> + use<'a> {
    let mut base = String::with_capacity(MAX_KEY_LEN);
    base.push_str(prefix);
    if *namespace != Namespace::default() {
        let _ = write!(base, "{namespace}||");
    }
    if !matches!(subject.realm(), Realm::Consumer | Realm::Ip) {
        let _ = write!(base, "{}|", subject.realm().as_str());
    }
    let max_len = MAX_KEY_LEN - SUFFIXES[0].len() - REQUESTS.len();
    if tagged {
        push_tag(&mut base, subject, max_len - 1);
    } else {
        push_id(&mut base, subject, max_len);
    }
    move |period, counts_requests| {
        let suffix = SUFFIXES[period.named_index()?];
        let requests = if counts_requests { REQUESTS } else { "" };
        Some(format!("{base}{suffix}{requests}"))
    }
}

/// Appends the id as the key's hash tag.
fn push_tag(key: &mut String, subject: &Subject, max_len: usize) {
    key.push('{');
    let begin = key.len();
    push_id(key, subject, max_len);
    if key.len() == begin {
        // Braces around nothing are no tag. No id holds a bare percent sign.
        key.push('%');
    }
    key.push('}');
}

/// Which bytes do not stand in keys as they are. None of them is a part of a longer character.
static IS_ESCAPED: [bool; 256] = {
    let mut is_escaped = [false; 256];
    let mut byte = 0;
    while byte < 0x80 {
        is_escaped[byte] =
            matches!(byte as u8, b'{' | b'}' | b'%' | b':' | b'|' | b'~' | 0..=b' ' | 0x7f);
        byte += 1;
    }
    is_escaped
};

/// Appends the id: escaped, or its digest where it has no text or would make `key` longer than
/// `max_len`. A digest begins with a `~`, which stands escaped in ids.
fn push_id(key: &mut String, subject: &Subject, max_len: usize) {
    let begin = key.len();
    if let Some(text) = subject.id().as_text() {
        let mut rest = text;
        while let Some(place) = rest.bytes().position(|byte| IS_ESCAPED[usize::from(byte)]) {
            key.push_str(&rest[..place]);
            let _ = write!(key, "%{:02X}", rest.as_bytes()[place]);
            rest = &rest[place + 1..];
        }
        key.push_str(rest);
        if key.len() <= max_len {
            return;
        }
        key.truncate(begin);
        let hash = blake3::hash(text.as_bytes());
        // Two marks, so that it is no other subject's own digest.
        let _ = write!(key, "~~{}", &hash.to_hex()[..32]);
    } else {
        let _ = write!(key, "~{}", subject.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(subject: &Subject) -> String {
        packed("rl", &Namespace::default(), subject)
    }

    #[test]
    fn keys_read_well() {
        assert_eq!(key(&Subject::consumer("abc123")), "rl:3:default:consumer:{abc123}");
        assert_eq!(
            key(&Subject::new(Realm::Ip, "2001:db8::/64")),
            "rl:3:default:ip:{2001%3Adb8%3A%3A/64}"
        );
        assert_eq!(
            key(&Subject::digest(Realm::Key, [0xab; 16])),
            format!("rl:3:default:key:{{~{}}}", "ab".repeat(16))
        );
        let namespace = Namespace::default();
        let subject = Subject::consumer("consumer_abc123");
        let plain = readable("", &namespace, &subject, false);
        assert_eq!(plain(Period::MINUTE, false).unwrap(), "consumer_abc123_PER_MINUTE");
        assert_eq!(plain(Period::MINUTE, true).unwrap(), "consumer_abc123_PER_MINUTE_REQUESTS");
        assert_eq!(plain(Period::from_millis(5).unwrap(), false), None);
        let tagged = readable("", &namespace, &subject, true);
        assert_eq!(tagged(Period::MINUTE, false).unwrap(), "{consumer_abc123}_PER_MINUTE");
        let tagged = readable("x.", &namespace, &Subject::user("alice"), true);
        assert_eq!(tagged(Period::HOUR, false).unwrap(), "x.user|{alice}_PER_HOUR");
    }

    #[test]
    fn logs_have_keys_of_their_own_beside_the_state() {
        let key = key(&Subject::consumer("acme"));
        let ring = |text: &str| ring(&key, text.parse().unwrap());
        assert_eq!(ring("5/minute:sliding-log").unwrap(), format!("{key}:60000"));
        assert_eq!(ring("5:concurrency:lease=1m").unwrap(), format!("{key}:c60000"));
        assert_eq!(ring("5/minute:sliding-log:requests").unwrap(), format!("{key}:r60000"));
        assert_eq!(ring("5:concurrency:requests").unwrap(), format!("{key}:cr10000"));
        assert_eq!(ring("5/minute"), None);
    }

    #[test]
    fn a_caller_cannot_write_a_hash_tag() {
        for id in ["", "{a}b", "}{", "a}b{c", "%7B", ":{x}:", "~", "a b", "\r\n", "|"] {
            let key = key(&Subject::consumer(id));
            assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
            assert!(!key.contains("{}"), "{key}");
            assert!(key.ends_with('}') && !key.contains([' ', '\r', '\n']), "{key}");
        }
    }

    proptest! {
        #[test]
        fn distinct_subjects_have_distinct_bounded_keys(
            a in "[{}%:|~ a-f0-9\\x00-\\x1fü]{0,300}", b in "[{}%:|~ a-f0-9\\x00-\\x1fü]{0,300}",
        ) {
            let subjects = [
                Subject::consumer(&a), Subject::consumer(&b), Subject::new(Realm::Ip, &a), Subject::user(&b),
                Subject::new(Realm::custom("tenant").unwrap(), &a),
            ];
            let namespace = Namespace::default();
            for (i, one) in subjects.iter().enumerate() {
                let longest = Limit::concurrency(1).unwrap().with_lease(Period::LONGEST).unwrap();
                let longest = longest.count_requests();
                prop_assert!(ring(&key(one), longest).unwrap().len() <= MAX_KEY_LEN);
                let minute = |subject, tagged| {
                    readable("", &namespace, subject, tagged)(Period::MINUTE, true).unwrap()
                };
                prop_assert!(minute(one, false).len() <= MAX_KEY_LEN);
                prop_assert!(minute(one, true).len() <= MAX_KEY_LEN);
                for other in &subjects[i + 1..] {
                    prop_assert_eq!(one == other, key(one) == key(other));
                    let same = minute(one, false) == minute(other, false);
                    prop_assert_eq!(same, minute(one, true) == minute(other, true));
                }
            }
        }
    }
}
