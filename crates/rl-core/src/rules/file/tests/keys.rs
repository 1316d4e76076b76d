//! Files of known keys.

use std::fmt::Write;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Directory, builder, parts};
use crate::key::fake_request::FakeRequest;
use crate::key::{CountedAs, Tier};
use crate::limiter::RateLimiter;
use crate::model::{Realm, Subject};
use crate::rules::{Defaults, MissingKey, RuleSet, Rules};
use crate::store::Namespace;

const RULES: &str = r#"
keys: { from: ["header:x-api-key", bearer], file: keys.yaml }
rules:
  clients: { per: [key, address], limits: 5/minute, tiers: { pro: 50/minute, max: 500/minute } }
"#;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn sha256(key: &str) -> String {
    hex(&Sha256::digest(key))
}

fn read(rules: &str, keys: &str) -> Result<Rules, String> {
    let directory = Directory::new();
    directory.write("keys.yaml", keys);
    let root = format!("{}/", directory.0.display());
    let rules = builder(directory.write("limits.yaml", rules)).read();
    rules.map_err(|error| error.to_string().replace(&root, ""))
}

/// Returns the subjects of a request.
fn subjects(rules: &Rules, request: &FakeRequest) -> Vec<Subject> {
    let set = Arc::new(RuleSet::new(rules, &Namespace::default()).unwrap());
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let parts = set.parts_of(request, &defaults).unwrap().unwrap();
    parts.subjects().map(|(_, subject)| subject.clone()).collect()
}

#[test]
fn known_keys_count_under_their_names_and_invented_ones_under_the_address() {
    let keys = format!(
        "- {{ sha256: {}, name: alice, tier: pro }}\n- {{ sha256: {}, name: bob }}\n",
        sha256("key of alice"),
        sha256("key-of-bob").to_uppercase(),
    );
    let rules = read(RULES, &keys).unwrap();
    let request = || FakeRequest::get("/").peer("192.0.2.7");
    let with = |key: &str| request().header("x-api-key", key.as_bytes());
    // A key of several words is ambiguous, and never known.
    let set = Arc::new(RuleSet::new(&rules, &Namespace::default()).unwrap());
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    assert!(set.parts_of(&with("key of alice"), &defaults).is_err());

    assert_eq!(subjects(&rules, &with("key-of-bob")), [Subject::new(Realm::Key, "bob")]);
    assert_eq!(parts(&rules, &with("key-of-bob")), ["clients key 1 minute=5/minute"]);
    let bearer = request().header("authorization", b"Bearer key-of-bob");
    assert_eq!(subjects(&rules, &bearer), [Subject::new(Realm::Key, "bob")]);
    let address = [Subject::ip([192, 0, 2, 7])];
    for invented in 0..40 {
        assert_eq!(subjects(&rules, &with(&format!("invented-{invented}"))), address);
    }
    // The first key that is present is looked up, even if the second one is known.
    let both = with("invented").header("authorization", b"Bearer key-of-bob");
    assert_eq!(subjects(&rules, &both), address);
    // The hash of a key is not a key.
    assert_eq!(subjects(&rules, &with(&sha256("key-of-bob"))), address);
}

#[test]
fn the_tier_is_that_of_the_request_then_of_the_service_then_of_the_file() {
    let directory = Directory::new();
    let keys = format!("[{{ sha256: {}, name: alice, tier: pro }}]", sha256("a"));
    directory.write("keys.yaml", &keys);
    let path = directory.write("limits.yaml", RULES);
    let request = || FakeRequest::get("/").peer("192.0.2.7").header("x-api-key", b"a");
    let rules = builder(&path).read().unwrap();
    assert_eq!(parts(&rules, &request()), ["clients key 1 minute=50/minute"]);
    assert_eq!(parts(&rules, &request().tier("max")), ["clients key 1 minute=500/minute"]);
    let of_alice = |name: &'static str| {
        move |subject: &Subject| {
            (*subject == Subject::new(Realm::Key, name)).then(|| Tier::new("max"))
        }
    };
    let rules = builder(&path).tier_by(of_alice("alice")).read().unwrap();
    assert_eq!(parts(&rules, &request()), ["clients key 1 minute=500/minute"]);
    let rules = builder(&path).tier_by(of_alice("bob")).read().unwrap();
    assert_eq!(parts(&rules, &request()), ["clients key 1 minute=50/minute"]);
    // A pair has the tier of its first subject.
    let pair = RULES.replace("[key, address]", "key+route");
    let rules = builder(directory.write("limits.yaml", &pair)).read().unwrap();
    assert_eq!(parts(&rules, &request()), ["clients key 1 minute=50/minute"]);
}

/// Fault: `rules_of` returned rules with `per: key` for subjects that no request can have.
#[test]
fn the_rules_of_a_known_key_are_found_by_its_name() {
    let directory = Directory::new();
    let keys = format!("[{{ sha256: {}, name: alice }}]", sha256("a"));
    directory.write("keys.yaml", &keys);
    let rules = RULES.to_owned()
        + "  routes: { per: key+route, limits: 5/minute }\n"
        + "  addresses: { per: address, limits: 5/minute }\n";
    let file = super::watch(directory.write("limits.yaml", &rules));
    let limiter = RateLimiter::builder().rules(&file).build().unwrap();
    let counted = |subject: Subject| -> Vec<_> {
        let rules = limiter.rules_of(&[subject], None).into_iter();
        rules.map(|rule| (rule.name, rule.counted_as)).collect()
    };
    let alice = Subject::new(Realm::Key, "alice");
    let (clients, routes) = ("clients".to_owned(), "routes".to_owned());
    assert_eq!(counted(alice), [(clients, CountedAs::Itself), (routes, CountedAs::Pair)]);
    assert_eq!(counted(Subject::new(Realm::Key, "bob")), []);
    assert_eq!(counted(Subject::consumer("alice")), []);
    let names: Vec<_> =
        counted(Subject::ip([192, 0, 2, 7])).into_iter().map(|rule| rule.0).collect();
    assert_eq!(names, ["clients", "addresses"]);
}

/// The hash is that of `printf %s key-of-bob | openssl dgst -sha256 -hmac 'sixteen bytes or more'`.
#[test]
fn an_hmac_uses_the_secret_of_the_rule_file() {
    let hash = "631e01fc5be321d78762a77cbf3962a22a3d53bb2985c34a79373b903ac8b4d3";
    let keys = format!("- {{ hmac: {hash}, name: bob }}");
    let rules = format!("secret: sixteen bytes or more{RULES}");
    let rules = read(&rules, &keys).unwrap();
    let request = FakeRequest::get("/").peer("192.0.2.7").header("x-api-key", b"key-of-bob");
    assert_eq!(subjects(&rules, &request), [Subject::new(Realm::Key, "bob")]);
    let error = read(RULES, &keys).unwrap_err();
    assert_eq!(
        error,
        "keys.yaml:1:11: hmac: expected `secret:` in the rule file, the key of the HMAC"
    );
}

#[test]
fn errors_of_a_file_of_keys_have_the_place_and_contain_no_key() {
    const KEY: &str = "sk_live_51H8xQ2eZvKYlo2C";
    let (one, two) = (sha256("1"), sha256("2"));
    let structure = "expected a list of { sha256: HEX, name: NAME, tier: TIER }, in which hmac may \
                     replace sha256, and tier may be missing; the file has hashes, never keys";
    let hash = "sha256: expected 64 hexadecimal digits, and never the key itself: printf %s KEY | sha256sum";
    for (keys, place, expected) in [
        (format!("- {{ sha256: {KEY}, name: a }}"), "1:13", hash.to_owned()),
        (format!("- {{ sha256: {}, name: a }}", &one[1..]), "1:13", hash.to_owned()),
        (format!("- {{ sha256: {one}a, name: a }}"), "1:13", hash.to_owned()),
        (format!("- {{ key: {KEY}, name: a }}"), "1:5", structure.to_owned()),
        (format!("- {KEY}"), "1:3", structure.to_owned()),
        (format!("{KEY}: {{ name: a }}"), "1:1", structure.to_owned()),
        (format!("- {{ {KEY}: a, name: a }}"), "1:5", structure.to_owned()),
        (format!("- {{ sha256: \"{KEY}\\q\", name: a }}"), "1", structure.to_owned()),
        (format!("- {{ sha256: {one} }}"), "1:", structure.to_owned()),
        (
            "- { name: a }".to_owned(),
            "1:11",
            "expected one hash for each key: sha256 or hmac".to_owned(),
        ),
        (
            format!("- {{ sha256: {one}, name: '' }}"),
            "1:85",
            "name: expected 1 to 64 characters, none of them a control character".to_owned(),
        ),
        (
            format!("- {{ sha256: {one}, name: a }}\n- {{ sha256: {two}, name: a }}"),
            "2:85",
            "name: the key in line 1 has the same name".to_owned(),
        ),
        (
            format!("- {{ sha256: {one}, name: a }}\n- {{ sha256: {one}, name: b }}"),
            "2:13",
            "sha256: an earlier key has the same hash".to_owned(),
        ),
        (
            format!("- {{ sha256: {one}, name: a, tier: prof }}"),
            "1:94",
            "tier \"prof\": expected a tier of a rule: max, pro".to_owned(),
        ),
    ] {
        let error = read(RULES, &keys).unwrap_err();
        assert!(error.starts_with(&format!("keys.yaml:{place}")), "{keys}\n{error}");
        assert!(error.ends_with(&expected), "{keys}\n{error}");
        assert!(!error.contains(KEY), "{error}");
    }
    let missing = RULES.replace("keys.yaml", "other.yaml");
    assert!(read(&missing, "").unwrap_err().starts_with("other.yaml: No such file"));
    let toml = RULES.replace("keys.yaml", "limits.toml");
    let error = read(&toml, "").unwrap_err();
    assert!(error.starts_with("limits.toml: No such file"), "{error}");
}

#[tokio::test]
async fn a_change_of_the_file_of_keys_is_applied_and_a_bad_one_keeps_the_last_keys() {
    let directory = Directory::new();
    let replace = |text: String| {
        std::fs::rename(directory.write("tmp", &text), directory.0.join("keys.yaml")).unwrap();
    };
    replace(format!("- {{ sha256: {}, name: alice }}", sha256("a")));
    let file = super::watch(directory.write("limits.yaml", RULES));
    let rules = file.subscribe(&Namespace::default(), false).unwrap();
    let subject = |key: &str| {
        let request = FakeRequest::get("/").peer("192.0.2.7").header("x-api-key", key.as_bytes());
        let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
        let parts = rules.load_full().parts_of(&request, &defaults).unwrap().unwrap();
        parts.subjects().next().unwrap().1.clone()
    };
    let (alice, address) = (subject("a"), subject("b"));
    assert_ne!(alice, address);
    let first = file.status();

    replace("- { sha256: short, name: alice }".to_owned());
    let refused = super::next(&file, &first).await;
    assert!(refused.error().unwrap().to_string().contains("keys.yaml:1:13: sha256"));
    assert_eq!((subject("a"), refused.version()), (alice.clone(), first.version()));

    // The new key of alice has her counters.
    replace(format!("- {{ sha256: {}, name: alice }}", sha256("b")));
    let applied = super::next(&file, &refused).await;
    assert_eq!((subject("a"), subject("b")), (address, alice));
    assert_ne!(applied.version(), first.version());
}

#[test]
fn rules_that_count_invented_keys_and_a_missing_secret_have_warnings() {
    let directory = Directory::new();
    directory.write("keys.yaml", "[]");
    let warnings = |rules: &str, is_shared| {
        let file = super::watch(directory.write("limits.yaml", rules));
        let _rules = file.subscribe(&Namespace::default(), is_shared).unwrap();
        file.status().warnings().to_vec()
    };
    let invented = "rules: { clients: { per: [\"header:x-api-key\", address], limits: 5/minute } }";
    let of_header = "rule \"clients\": any value of x-api-key gets counters of its own; add keys: or \
                     put authentication in front";
    assert_eq!(warnings(invented, false), [of_header]);
    let of_secret = "no secret: each instance hashes keys differently, so their counters are not \
                     shared; add secret:";
    assert_eq!(warnings(invented, true), [of_header, of_secret]);
    let with_secret = format!("secret: sixteen bytes or more\n{invented}");
    assert_eq!(warnings(&with_secret, true), [of_header]);
    let others =
        "rules: { a: { per: [\"query:k\", \"cookie:c\", bearer+route], limits: 5/minute } }";
    assert_eq!(warnings(others, false).len(), 3);
    // Known keys count under their names, for which no secret is needed.
    assert!(warnings(RULES, true).is_empty());
    assert!(warnings("rules: { a: { per: address, limits: 5/minute } }", true).is_empty());
}

/// Fault: a file without `secret:` and `store:` was read once, for a limiter on a shared store, and
/// nothing was logged.
#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_missing_secret_is_logged_when_rules_are_used_with_a_shared_store() {
    use crate::observe::capture::Capture;
    use crate::rules::RuleSource;

    let directory = Directory::new();
    let rules = "rules: { a: { per: bearer, limits: 5/minute } }";
    for store in ["", "store: redis://localhost\n"] {
        let path = directory.write("limits.yaml", &format!("{store}{rules}"));
        let log = Capture::start();
        let rules = super::builder(path).read().unwrap();
        let warnings = || log.lines().iter().filter(|line| line.contains("no secret: ")).count();
        let activate = |is_shared| {
            RuleSource::from(rules.clone()).activate(&Namespace::default(), is_shared).unwrap();
            warnings()
        };
        assert_eq!((activate(false), activate(true)), (0, 1), "{store}");
    }
}

/// Fault: a file of 36 000 keys was refused with an error that did not name the cause.
#[test]
fn a_file_of_keys_may_have_any_number_of_keys_within_its_length() {
    let directory = Directory::new();
    let keys: String = (0..36_000)
        .map(|number| format!("- {{sha256: {number:064x}, name: k{number}, tier: pro}}\n"))
        .collect();
    directory.write("keys.yaml", &keys);
    let mut builder = super::builder(directory.write("limits.yaml", RULES));
    builder.timing.deadline = std::time::Duration::from_secs(60);
    let rules = builder.read().unwrap();
    assert_eq!(rules.names().collect::<Vec<_>>(), ["clients"]);
    // The parser bounds how much a file may refer to other parts of it.
    let aliases = "- {sha256: *a, name: k}\n".repeat(101);
    let error = read(RULES, &format!("- {{sha256: &a {}, name: k}}\n{aliases}", sha256("a")));
    let error = error.unwrap_err();
    assert!(error.contains("too complex: limits breached: AliasAnchorRatio"), "{error}");
}

/// Fault: after the secret was removed from the file, the log had only `rules applied`, and all
/// keys began to count at 0 on each instance.
#[test]
fn a_secret_that_is_removed_from_a_shared_file_is_a_warning() {
    let directory = Directory::new();
    let rules = "rules: { a: { per: bearer, limits: 5/minute } }";
    let path = directory.write("limits.yaml", &format!("secret: sixteen bytes or more\n{rules}"));
    let file = super::watch(path);
    let secret = file.secret();
    let _rules = file.subscribe(&Namespace::default(), true).unwrap();
    assert_eq!(file.status().warnings().len(), 1);
    let subject = |secret: &crate::key::KeySecret| secret.subject(Realm::Key, b"a");
    let same = crate::key::KeySecret::new(b"sixteen bytes or more").unwrap();
    assert_eq!(subject(&secret), subject(&same));

    super::replace(&directory, rules);
    file.reload().unwrap();
    let warnings = file.status().warnings().to_vec();
    assert!(warnings[1].starts_with("no secret: each instance hashes keys differently"));
    assert_ne!(subject(&file.secret()), subject(&same));
}

#[cfg(feature = "tracing")]
#[test]
fn a_warning_is_logged_once_when_the_file_is_read() {
    use crate::observe::capture::Capture;

    let directory = Directory::new();
    let rules = "rules: { a: { per: bearer, limits: 5/minute } }";
    let path = directory.write("limits.yaml", rules);
    let (log, file) = (Capture::start(), super::watch(&path));
    for shared in [false, true, true] {
        let _rules = file.subscribe(&Namespace::default(), shared).unwrap();
    }
    let path = path.display();
    let expected = [
        format!(
            "WARN rules warning; path={path}; warning=rule \"a\": any value of the bearer token gets \
             counters of its own; add keys: or put authentication in front"
        ),
        format!(
            "WARN rules warning; path={path}; warning=no secret: each instance hashes keys \
             differently, so their counters are not shared; add secret:"
        ),
    ];
    assert_eq!(log.lines(), expected);
}

/// Returns the blocks of YAML in a document.
fn blocks(document: &str) -> Vec<String> {
    let lines = document.lines().map(|line| line.trim_start_matches("//! "));
    let document: Vec<&str> = lines.collect();
    let document = document.join("\n");
    let blocks = document.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Fault: the first file of the guide had no limit for a client that invents keys.
#[test]
fn files_in_documents_and_examples_are_valid_and_have_no_warnings() {
    let mut files = 0;
    for document in [
        include_str!("../../mod.rs"),
        include_str!("../../../../docs/GUIDE.md"),
        include_str!("../../../../docs/COOKBOOK.md"),
    ] {
        let blocks = blocks(document);
        let (rules, keys): (Vec<_>, Vec<_>) =
            blocks.iter().partition(|block| block.contains("rules:"));
        assert_eq!(rules.len(), 1);
        let hash = sha256("key-of-alice");
        let keys = keys.first().map_or_else(
            || format!("- {{ sha256: {hash}, name: alice, tier: pro }}"),
            |keys| keys.to_string(),
        );
        let directory = Directory::new();
        directory.write("keys.yaml", &keys);
        let file = super::watch(directory.write("limits.yaml", rules[0]));
        let limiter = file.subscribe(&Namespace::default(), true).unwrap();
        assert!(file.status().warnings().is_empty(), "{:?}", file.status());
        let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
        let request = FakeRequest::get("/").peer("192.0.2.7").header("x-api-key", b"key-of-alice");
        let parts = limiter.load_full().parts_of(&request, &defaults).unwrap().unwrap();
        let subjects: Vec<_> = parts.subjects().map(|(_, subject)| subject.clone()).collect();
        assert!(subjects.contains(&Subject::new(Realm::Key, "alice")), "{subjects:?}");
        files += 1;
    }
    assert_eq!(files, 3);
}
