//! Tests that different counters have different keys, whatever ids clients choose.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

/// Generates ids that imitate others: with separators, escapes, and suffixes of keys.
fn any_id() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "{", "}", ":", "|", "||", "%", "%7B", "%7C", "~", "~~", " ", "\0", "\r\n", "a", "b", "user",
            "user|", "default", ":c10000", ":60000", "_PER_HOUR", "_PER_MINUTE", "_REQUESTS", ":r60000", "rl:6:", "ü", "💥",
        ]).prop_map(str::to_owned),
        1 => "[0-9a-f]{32}",
        1 => any::<char>().prop_map(String::from),
    ];
    let short = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    // Some of these ids are short enough to be part of a key. Others are replaced by their digest.
    let long = (short.clone(), 20..130_usize).prop_map(|(id, times)| id.repeat(times));
    prop_oneof![4 => short, 1 => long]
}

fn any_subject() -> impl Strategy<Value = Subject> {
    let realms = vec![
        Realm::Ip,
        Realm::Key,
        Realm::Consumer,
        Realm::User,
        Realm::Global,
        Realm::custom("a").unwrap(),
        Realm::custom("default").unwrap(),
        Realm::custom(&"r".repeat(32)).unwrap(),
    ];
    let text = (prop::sample::select(realms.clone()), any_id());
    let digest = (prop::sample::select(realms), any::<[u8; 16]>());
    prop_oneof![
        4 => text.prop_map(|(realm, id)| Subject::new(realm, &id)),
        1 => digest.prop_map(|(realm, digest)| Subject::digest(realm, digest)),
    ]
}

fn any_namespace() -> impl Strategy<Value = Namespace> {
    let longest = "n".repeat(64);
    let names = ["default", "a", "user", "rl", "1", &longest];
    let named = prop::sample::select(names.map(|name| name.parse().unwrap()).to_vec());
    prop_oneof![3 => Just(Namespace::default()), 2 => named]
}

/// Generates a log, which is a limit with entries.
fn any_log() -> impl Strategy<Value = Limit> {
    let period = prop_oneof![Just(10_000), Just(60_000), 1..100_u64, Just(3_153_600_000_000)];
    (period, any::<bool>(), any::<bool>()).prop_map(|(millis, is_concurrency, counts_requests)| {
        let period = Period::from_millis(millis).unwrap();
        let limit = if is_concurrency {
            Limit::concurrency(1).unwrap().with_lease(period).unwrap()
        } else {
            Limit::new(1, period).unwrap().with_algorithm(Algorithm::SlidingLog).unwrap()
        };
        if counts_requests { limit.count_requests() } else { limit }
    })
}

type Owner = (Namespace, Subject);

fn packed_key((namespace, subject): &Owner) -> String {
    packed("rl", None, namespace, subject)
}

fn grouped_key((namespace, subject): &Owner) -> String {
    static GROUPS: LazyLock<SlotGroups> = LazyLock::new(|| SlotGroups::new(SlotGroups::MAX, "rl"));
    packed("rl", Some(&GROUPS), namespace, subject)
}

fn readable_keys(owner: &Owner) -> Vec<String> {
    readable_keys_of(owner, false)
}

fn readable_keys_of((namespace, subject): &Owner, is_tagged: bool) -> Vec<String> {
    let key = readable("", namespace, subject, is_tagged);
    let both = Period::NAMED.into_iter().flat_map(|period| [(period, false), (period, true)]);
    both.map(|(period, counts_requests)| key(period, counts_requests).unwrap()).collect()
}

/// Returns the owner of a readable counter. It has no realm for consumers and addresses, because
/// they share names, as in the format that other programs use.
fn readable_owner(
    (namespace, subject): &Owner,
) -> (Namespace, Option<Realm>, crate::model::SubjectId) {
    let realm = subject.realm().clone();
    let realm = (!matches!(realm, Realm::Consumer | Realm::Ip)).then_some(realm);
    (namespace.clone(), realm, subject.id().clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Checks that two owners have different keys, and that two logs have different keys for their
    /// entries.
    #[test]
    fn packed_keys_and_log_keys_belong_to_one_counter(
        one in (any_namespace(), any_subject()), other in (any_namespace(), any_subject()),
        first: bool, one_log in any_log(), other_log in any_log(),
    ) {
        let other = if first { one.clone() } else { other };
        let (key, other_key) = (packed_key(&one), packed_key(&other));
        prop_assert_eq!(key == other_key, one == other, "{:?}", (key, other_key));
        let (one_log_key, other_log_key) = (log_key(&key, one_log).unwrap(), log_key(&other_key, other_log).unwrap());
        let is_one_log = one == other
            && one_log.shares_state_with(other_log);
        prop_assert_eq!(one_log_key == other_log_key, is_one_log, "{}", one_log_key);
        prop_assert!(one_log_key != other_key && other_log_key != key, "{}", one_log_key);
        // The key ends with its only hash tag. So all keys of an owner are in one slot of a
        // cluster, and a client cannot choose the slot by braces in an id.
        let tag = &key[key.find('{').unwrap()..];
        prop_assert_eq!(tag.find('}'), Some(tag.len() - 1));
        let mark = one_log_key.strip_prefix(&*key).unwrap();
        prop_assert!(mark.bytes().all(|b| b":cr0123456789".contains(&b)), "{}", mark);
        prop_assert!(key.len() < one_log_key.len() && one_log_key.len() <= MAX_KEY_LEN);
    }

    /// Checks keys that contain the tag of a slot group: two owners have different keys, and none
    /// equals a key without such a tag.
    #[test]
    fn keys_of_groups_belong_to_one_counter(
        one in (any_namespace(), any_subject()), other in (any_namespace(), any_subject()),
        first: bool, one_log in any_log(), other_log in any_log(),
    ) {
        let other = if first { one.clone() } else { other };
        let (key, other_key) = (grouped_key(&one), grouped_key(&other));
        prop_assert_eq!(key == other_key, one == other, "{:?}", (key, other_key));
        let (one_log_key, other_log_key) = (log_key(&key, one_log).unwrap(), log_key(&other_key, other_log).unwrap());
        let is_one_log = one == other && one_log.shares_state_with(other_log);
        prop_assert_eq!(one_log_key == other_log_key, is_one_log, "{}", one_log_key);
        let without_groups = packed_key(&other);
        prop_assert!(![&key, &one_log_key, &reservations(&key)].contains(&&without_groups), "{}", key);
        prop_assert!(one_log_key != other_key && reservations(&key) != other_key, "{}", one_log_key);
        // The group's tag is the only one, whatever the id is.
        let tag = key.strip_prefix("rl:6:{").unwrap().split_once('}').unwrap().0;
        prop_assert!(!tag.is_empty() && tag.bytes().all(|b| b.is_ascii_digit()), "{}", key);
        prop_assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{}", key);
        prop_assert!(key.len() < one_log_key.len() && one_log_key.len() <= MAX_KEY_LEN, "{}", one_log_key);
        prop_assert!(reservations(&key).len() <= MAX_KEY_LEN, "{}", key);
    }

    /// Checks that counters of different owners or periods have different keys, and that none of
    /// these keys is a packed key.
    #[test]
    fn readable_keys_belong_to_one_counter(
        one in (any_namespace(), any_subject()), other in (any_namespace(), any_subject()),
        is_tagged: bool,
    ) {
        let keys = readable_keys_of(&one, is_tagged);
        let other_keys = readable_keys_of(&other, is_tagged);
        let is_one = readable_owner(&one) == readable_owner(&other);
        for (place, key) in keys.iter().enumerate() {
            for (other_place, other_key) in other_keys.iter().enumerate() {
                prop_assert_eq!(key == other_key, is_one && place == other_place, "{}", key);
            }
            prop_assert!(key.len() <= MAX_KEY_LEN && *key != packed_key(&other));
            // On a cluster, the key has exactly one hash tag, which is not empty. Elsewhere it has
            // none.
            let braces = (key.matches('{').count(), key.matches('}').count());
            prop_assert_eq!(braces, (is_tagged.into(), is_tagged.into()), "{}", key);
            let is_safe = !key.contains([':', ' ', '\n']) && !key.contains("{}");
            prop_assert!(is_safe, "{}", key);
        }
    }

    /// Checks that subjects have different keys even if the id of one imitates a part of the
    /// other's key.
    #[test]
    fn no_id_imitates_the_key_of_another_subject(one in (any_namespace(), any_subject())) {
        let (namespace, subject) = &one;
        let (realm, id) = (subject.realm().as_str(), subject.id().to_string());
        let (key, readable_key) = (packed_key(&one), readable_keys(&one).remove(0));
        let bare = readable_key.strip_suffix(SUFFIXES[0]).unwrap();
        let escaped = key[key.find('{').unwrap() + 1..].trim_end_matches('}');
        for name in [
            &id, &key, &readable_key, bare, escaped, &format!("~{id}"), &format!("~~{id}"),
            &format!("{realm}|{id}"), &format!("{namespace}||{id}"),
            &format!("{namespace}||{realm}|{id}"), &format!("{id}{}", SUFFIXES[0]),
        ] {
            for realm in [Realm::Consumer, Realm::User, Realm::custom("a").unwrap()] {
                let other = (Namespace::default(), Subject::new(realm, name));
                prop_assert_eq!(packed_key(&other) == key, other == one, "{}", key);
                let is_one = readable_owner(&other) == readable_owner(&one);
                let other_keys = readable_keys(&other);
                prop_assert_eq!(other_keys.contains(&readable_key), is_one, "{}", readable_key);
            }
        }
    }

    /// Checks that keys are different if one text is divided into realm and id at different places.
    #[test]
    fn keys_keep_realm_and_id_apart(text in "[a|:~%{}]{0,12}", one in 0..=12_usize, two in 0..=12_usize) {
        let (one, two) = (one.min(text.len()), two.min(text.len()));
        let owner = |at: usize| {
            let realm = Realm::custom(&"a".repeat(at + 1)).unwrap();
            (Namespace::default(), Subject::new(realm, &text[at..]))
        };
        let (one_owner, other_owner) = (owner(one), owner(two));
        prop_assert_eq!(packed_key(&one_owner) == packed_key(&other_owner), one == two);
        prop_assert_eq!(readable_keys(&one_owner) == readable_keys(&other_owner), one == two);
    }
}
