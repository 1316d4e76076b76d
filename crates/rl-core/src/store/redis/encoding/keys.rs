//! The names of keys.
//!
//! Different subjects have different keys, whose length is bounded. All keys of a subject have one
//! hash tag, and no id can contain a hash tag.
//!
//! ```text
//! packed    rl:6:default:consumer:{acme}            prefix : version : namespace : realm : {id}
//!           rl:6:default:consumer:{acme}:60000      older entries of a log, by period in ms
//!           rl:6:default:consumer:{acme}:r60000     … that counts requests
//!           rl:6:default:consumer:{acme}:c10000     … of a concurrency limit, by lease in ms
//!           rl:6:default:consumer:{acme}:reserved   reservations
//!           rl:6:default:instances                  the notes of instances; in both layouts
//! grouped   rl:6:{9918}:default:consumer:acme       with the hash tag of a group of subjects; also
//!                                                   with the suffixes above
//! readable  acme_PER_MINUTE                         a counter
//!           acme_PER_MINUTE_REQUESTS                … of requests
//!           {acme}_PER_MINUTE                       … on a cluster
//! ```

#[cfg(test)]
mod collisions;

use std::fmt::Write;

use super::Layout;
use super::placement::SlotGroups;
use super::policy;
use crate::model::{Algorithm, Limit, Period, Realm, Subject};
use crate::store::Namespace;
use crate::store::redis::error::ConnectError;

/// The version of the packed layout. A change of the layout changes every key.
const VERSION: &str = "6";
const _: () = assert!(VERSION.as_bytes()[0] - b'0' == policy::VERSION && VERSION.len() == 1);

/// The largest length of a key in bytes.
const MAX_KEY_LEN: usize = 200;

/// The length of the longest suffix that turns the key of a packed state into that of a log.
const LOG_SUFFIX_LEN: usize = ":cr3153600000000".len();

/// The length of a digest in a key, with the mark before it.
const DIGEST_LEN: usize = "~".len() + 32;

/// The suffixes of the names of readable counters, one for each period of [`Period::NAMED`].
const SUFFIXES: [&str; 6] =
    ["_PER_SECOND", "_PER_MINUTE", "_PER_HOUR", "_PER_DAY", "_PER_WEEK", "_PER_MONTH"];

/// The text after the suffix of a readable counter of requests.
///
/// Two counters never share a name, whatever their ids are: no suffix, with or without this text,
/// ends with another suffix.
const REQUESTS: &str = "_REQUESTS";

/// Returns the prefix of all keys. If `prefix` is `None`, it is the default of the layout.
///
/// # Errors
///
/// Returns an error if the prefix is too long, or contains a character that is not allowed. Also
/// returns an error if a readable key with this prefix could equal a key with another prefix.
pub(crate) fn checked_prefix(
    prefix: Option<String>,
    layout: Layout,
) -> Result<String, ConnectError> {
    let is_readable = layout == Layout::Readable;
    let prefix = prefix.unwrap_or_else(|| if is_readable { "" } else { "rl" }.to_owned());
    let shown = || prefix.chars().take(64).collect();
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let name = prefix.strip_suffix(':').filter(|_| is_readable).unwrap_or(&prefix);
    if prefix.len() > 32 || !name.bytes().all(fits) {
        return Err(ConnectError::Prefix { prefix: shown() });
    }
    if is_readable && !prefix.is_empty() && !prefix.ends_with(['.', '_', '-', ':']) {
        return Err(ConnectError::PrefixWithoutSeparator { prefix: shown() });
    }
    Ok(prefix)
}

/// Returns the key that holds the packed state of a subject. Its hash tag is that of the subject's
/// group, or the id if there are no groups.
pub(crate) fn packed(
    prefix: &str,
    groups: Option<&SlotGroups>,
    namespace: &Namespace,
    subject: &Subject,
) -> String {
    let tag = groups.map(|groups| groups.tag_of(namespace, subject));
    let parts = [prefix, VERSION, namespace.as_str(), subject.realm().as_str()];
    let id = subject.id().as_text().map_or(DIGEST_LEN, str::len) + tag.map_or(0, str::len);
    let len = parts.iter().map(|part| part.len() + 1).sum::<usize>() + id + "{}:".len();
    let mut key = String::with_capacity(len);
    // Prefix, namespace and realm contain neither colons nor braces. Only the id is escaped.
    for part in &parts[..2] {
        key.push_str(part);
        key.push(':');
    }
    if let Some(tag) = tag {
        let _ = write!(key, "{{{tag}}}:");
    }
    for part in &parts[2..] {
        key.push_str(part);
        key.push(':');
    }
    if tag.is_some() {
        push_id(&mut key, subject, MAX_KEY_LEN - LOG_SUFFIX_LEN);
    } else {
        push_hash_tag(&mut key, subject, MAX_KEY_LEN - LOG_SUFFIX_LEN - 1);
    }
    key
}

/// Returns the key of the entries of a limit, or `None` if the limit is not a log. The key is in
/// the hash slot of the packed state.
pub(crate) fn log_key(packed: &str, limit: Limit) -> Option<String> {
    let period = limit.period().as_millis();
    let kind = match limit.algorithm() {
        Algorithm::SlidingLog => "",
        Algorithm::Concurrency => "c",
        _ => return None,
    };
    let requests = if limit.counts_requests() { "r" } else { "" };
    Some(format!("{packed}:{kind}{requests}{period}"))
}

/// Returns the key of a subject's reservations, in the hash slot of the packed state. It differs
/// from every key of entries.
pub(crate) fn reservations(packed: &str) -> String {
    format!("{packed}:reserved")
}

/// Returns the key of the notes of all instances that count in a namespace.
///
/// It has fewer parts than the key of a packed state, and not the suffix of a readable counter.
pub(crate) fn notes(prefix: &str, layout: Layout, namespace: &Namespace) -> String {
    let prefix = match layout {
        Layout::Packed => prefix.to_owned(),
        Layout::Readable => format!("{prefix}rl"),
    };
    format!("{prefix}:{VERSION}:{namespace}:instances")
}

/// Returns a function that computes the name of a subject's readable counter. Its arguments are the
/// period, and whether the counter counts requests.
///
/// Only the named periods have readable counters. Names of consumers and addresses have no realm,
/// as in the format that other programs use. Any other realm is written before the id, with a bar
/// after it. A namespace other than the default comes first, followed by two bars. Bars in ids are
/// escaped. If `tagged`, the id is written as a hash tag.
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
        push_hash_tag(&mut base, subject, max_len - 1);
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
fn push_hash_tag(key: &mut String, subject: &Subject, max_len: usize) {
    key.push('{');
    let begin = key.len();
    push_id(key, subject, max_len);
    if key.len() == begin {
        // Redis ignores an empty hash tag, so an empty id is written as a percent sign. No other id
        // has this tag, because a percent sign in an id is always escaped.
        key.push('%');
    }
    key.push('}');
}

/// For each byte, whether it is escaped in keys. The bytes of multi-byte characters are not
/// escaped.
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

/// Appends the escaped id. An id without text, or one that would make `key` longer than `max_len`,
/// is replaced by its digest. A digest begins with `~`, which is escaped in ids.
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
        // An id without text is written as one `~` and its digest, so a second `~` keeps both
        // apart.
        let _ = write!(key, "~~{}", &hash.to_hex()[..32]);
    } else {
        let _ = write!(key, "~{}", subject.id());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    fn key(subject: &Subject) -> String {
        packed("rl", None, &Namespace::default(), subject)
    }

    fn grouped_key(subject: &Subject) -> String {
        static GROUPS: LazyLock<SlotGroups> = LazyLock::new(|| SlotGroups::new(48, "rl"));
        packed("rl", Some(&GROUPS), &Namespace::default(), subject)
    }

    #[test]
    fn keys_have_the_documented_form() {
        assert_eq!(key(&Subject::consumer("abc123")), "rl:6:default:consumer:{abc123}");
        assert_eq!(
            key(&Subject::new(Realm::Ip, "2001:db8::/64")),
            "rl:6:default:ip:{2001%3Adb8%3A%3A/64}"
        );
        assert_eq!(
            key(&Subject::digest(Realm::Key, [0xab; 16])),
            format!("rl:6:default:key:{{~{}}}", "ab".repeat(16))
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
    fn entries_of_logs_have_keys_beside_the_state() {
        let key = key(&Subject::consumer("acme"));
        let of_limit = |text: &str| log_key(&key, text.parse().unwrap());
        assert_eq!(of_limit("5/minute:sliding-log").unwrap(), format!("{key}:60000"));
        assert_eq!(of_limit("5:concurrency:lease=1m").unwrap(), format!("{key}:c60000"));
        assert_eq!(of_limit("5/minute:sliding-log:requests").unwrap(), format!("{key}:r60000"));
        assert_eq!(of_limit("5:concurrency:requests").unwrap(), format!("{key}:cr10000"));
        assert_eq!(of_limit("5/minute"), None);
    }

    #[test]
    fn an_id_cannot_contain_a_hash_tag() {
        for id in ["", "{a}b", "}{", "a}b{c", "%7B", ":{x}:", "~", "a b", "\r\n", "|"] {
            let key = key(&Subject::consumer(id));
            assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
            assert!(!key.contains("{}"), "{key}");
            assert!(key.ends_with('}') && !key.contains([' ', '\r', '\n']), "{key}");
            let key = grouped_key(&Subject::consumer(id));
            assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
            assert!(key.starts_with("rl:6:{") && !key.contains([' ', '\r', '\n']), "{key}");
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
                prop_assert!(log_key(&key(one), longest).unwrap().len() <= MAX_KEY_LEN);
                prop_assert!(log_key(&grouped_key(one), longest).unwrap().len() <= MAX_KEY_LEN);
                let minute = |subject, tagged| {
                    readable("", &namespace, subject, tagged)(Period::MINUTE, true).unwrap()
                };
                prop_assert!(minute(one, false).len() <= MAX_KEY_LEN);
                prop_assert!(minute(one, true).len() <= MAX_KEY_LEN);
                for other in &subjects[i + 1..] {
                    prop_assert_eq!(one == other, key(one) == key(other));
                    prop_assert_eq!(one == other, grouped_key(one) == grouped_key(other));
                    let same = minute(one, false) == minute(other, false);
                    prop_assert_eq!(same, minute(one, true) == minute(other, true));
                }
            }
        }
    }
}
