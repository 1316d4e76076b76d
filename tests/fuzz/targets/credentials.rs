//! Keys in headers, query parameters, cookies and bearer tokens. Every input yields one key, no
//! key, or an ambiguous key. No output contains the key.
#![no_main]

use std::any::Any;
use std::net::IpAddr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rl_core::key::{AmbiguousKey, ApiKey, Constant, Header, KeyExtractor, KeySecret, RequestInfo};
use rl_core::{Realm, Subject};

struct Written<'a> {
    query: &'a str,
    lines: Vec<(&'a [u8], &'a [u8])>,
}

impl RequestInfo for Written<'_> {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn query(&self) -> Option<&str> {
        Some(self.query)
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let lines = self.lines.iter().filter(|(of, _)| of.eq_ignore_ascii_case(name.as_bytes()));
        lines.for_each(|(_, value)| each(value));
    }

    fn peer(&self) -> Option<IpAddr> {
        None
    }

    fn extensions(&self) -> &dyn Any {
        &()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        None
    }
}

static SECRET: LazyLock<KeySecret> =
    LazyLock::new(|| KeySecret::new(b"a secret of the tests").expect("long enough"));

fuzz_target!(|input: (&str, &[u8])| {
    let (query, head) = input;
    let lines = head.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], &line[colon + 1..]))
    });
    let request = Written { query, lines: lines.collect() };
    let secret = || SECRET.clone();
    let hashed = [
        ApiKey::header("x-key", secret()).expect("a name").subject(&request),
        ApiKey::bearer(secret()).subject(&request),
        ApiKey::query("key", secret()).subject(&request),
        ApiKey::cookie("key", secret()).subject(&request),
    ];
    for subject in hashed.iter().flatten().flatten() {
        assert_eq!(subject.realm(), &Realm::Key);
        assert_eq!((subject.id().as_text(), subject.id().as_bytes().len()), (None, 16));
    }
    // After an ambiguous key, the chain does not call its next extractor.
    let by_header = ApiKey::header("x-key", secret()).expect("a name");
    let chained = by_header.or(Constant).subject(&request);
    assert_eq!(chained.is_err(), hashed[0].is_err());
    // The whole value is the key.
    let values: Vec<&[u8]> = request
        .lines
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"x-key"))
        .map(|(_, value)| *value)
        .collect();
    match (&values[..], &hashed[0]) {
        ([value], Ok(Some(subject))) => assert_eq!(*subject, SECRET.subject(Realm::Key, value)),
        ([value], found) => assert_eq!(*found == Ok(None), value.is_empty()),
        ([], found) => assert_eq!(*found, Ok(None)),
        (_, found) => assert_eq!(*found, Err(AmbiguousKey)),
    }
    let plain = Header::new("x-key", Realm::User).expect("a name").subject(&request);
    assert!(values.len() < 2 || plain.is_err());
    if let Ok(Some(plain)) = plain {
        assert_eq!(Some(&plain), std::str::from_utf8(values[0]).ok().map(Subject::user).as_ref());
        let shown = format!("{plain:?}");
        assert_eq!(shown.len(), "Subject(user:00000000)".len());
    }
});
