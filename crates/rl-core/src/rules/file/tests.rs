mod keys;
mod secrets;
mod stability;
mod stored_rules;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::key::fake_request::FakeRequest;
use crate::key::{RequestInfo, Tier};
use crate::model::Subject;
use crate::rules::{Defaults, MissingKey, OfRule, RuleSet, Rules};
use crate::store::Namespace;

/// A directory that is removed with all files in it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rl-rules-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(fs::canonicalize(path).unwrap())
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(name: &str, content: &str) -> Result<Rules, RulesFileError> {
    let directory = Directory::new();
    builder(directory.write(name, content)).read()
}

/// Returns a builder for a file that has just been written. The pause is short, because these files
/// are written at once.
fn builder(path: impl AsRef<Path>) -> RulesFileBuilder {
    RulesFile::builder(path).pause(Duration::from_millis(10))
}

fn watch(path: impl AsRef<Path>) -> RulesFile {
    builder(path).watch().unwrap()
}

/// Replaces a file in one step.
fn replace(directory: &Directory, content: &str) {
    let temporary = directory.write("limits.tmp", content);
    fs::rename(temporary, directory.0.join("limits.yaml")).unwrap();
}

/// Returns the error of a file without its path.
fn error(name: &str, content: &str) -> String {
    let error = read(name, content).unwrap_err();
    let text = error.to_string();
    let path = error.path().display().to_string();
    text.strip_prefix(&path).unwrap().trim_start_matches([':', ' ']).to_owned()
}

/// If `main` returns an error, the program prints its `Debug`.
#[test]
fn the_debug_text_of_an_error_names_the_place_and_what_is_expected() {
    let error = read("limits.yaml", "rules:\n  a: { limits: 5/minut }").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains("limits.yaml:2:16: limit \"5/minut\""), "{error}");
}

const YAML: &str = r#"
secret: ${RL_NO_SECRET:-sixteen bytes or more}
proxies: [10.0.0.0/8]
exempt: [{ path: /health }]
rules:
  clients: { per: ["header:x-api-key", address], limits: [10/second, 5000/day:clock], tiers: { pro: [100/second] } }
  login:   { match: { method: POST, path: /login, host: "*.example.org" }, per: address, limits: 5/minute, over: { wait: 2s, queue: 7 } }
  export:  { match: { path: "/export/{name}", header: { x-plan: "*" } }, per: address, limits: { most: 60/hour }, cost: 20 }
  fleet:   { limits: 5000/second, shadow: true, exempt: [{ address: 192.0.2.0/24 }] }
"#;

const TOML: &str = r#"
secret = "${RL_NO_SECRET:-sixteen bytes or more}"
proxies = "10.0.0.0/8"
exempt = [{ path = "/health" }]

[rules.clients]
per = ["header:x-api-key", "address"]
limits = ["10/second", "5000/day:clock"]
tiers.pro = ["100/second"]

[rules.login]
match = { method = "POST", path = "/login", host = "*.example.org" }
per = "address"
limits = "5/minute"
over = { wait = "2s", queue = 7 }

[rules.export]
match = { path = "/export/{name}", header = { x-plan = "*" } }
per = ["address"]
limits = { most = "60/hour" }
cost = 20

[rules.fleet]
limits = "5000/second"
shadow = true
exempt = [{ address = "192.0.2.0/24" }]
"#;

/// Returns the parts of a request under the rules of a file.
fn parts(rules: &Rules, request: &FakeRequest) -> Vec<String> {
    let set = Arc::new(RuleSet::new(rules, &Namespace::default()).unwrap());
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let Some(found) = set.parts_of(request, &defaults).unwrap() else { return Vec::new() };
    let parts = found.parts().into_iter().enumerate();
    let line = parts.map(|(place, part)| {
        let (subject, name) = found.rule(place).unwrap();
        let (realm, units) = (subject.realm().as_str(), part.cost.units());
        format!(
            "{name} {realm} {units} {}{}",
            part.policy,
            if part.is_shadow() { " shadow" } else { "" }
        )
    });
    line.collect()
}

#[test]
fn yaml_and_toml_have_one_structure() {
    for (name, content) in [("limits.yaml", YAML), ("limits.toml", TOML)] {
        let rules = read(name, content).unwrap();
        assert_eq!(rules.names().collect::<Vec<_>>(), ["clients", "login", "export", "fleet"]);
        let get = |path: &str| FakeRequest::get(path).peer("198.51.100.7");
        let of_address = "clients ip 1 second=10/second, day=5000/day:clock";
        let fleet = "fleet global 1 second=5000/second shadow";
        assert_eq!(parts(&rules, &get("/")), [of_address, fleet], "{name}");
        assert!(parts(&rules, &get("/health")).is_empty());
        let key = get("/").header("x-api-key", b"abc").tier("pro");
        assert_eq!(parts(&rules, &key), ["clients key 1 second=100/second", fleet]);
        let login = get("/login").method("POST").header("host", b"api.example.org");
        assert_eq!(parts(&rules, &login), [of_address, "login ip 1 minute=5/minute", fleet]);
        let export = get("/export/a").header("x-plan", b"b");
        assert_eq!(parts(&rules, &export), [of_address, "export ip 20 most=60/hour", fleet]);
        // The proxy is trusted, and the client behind it is in the network that is exempt from
        // `fleet`.
        let office = FakeRequest::get("/").peer("10.0.0.1").header("x-forwarded-for", b"192.0.2.1");
        assert_eq!(parts(&rules, &office), [of_address]);
    }
}

#[test]
fn errors_have_the_place_and_name_the_value_and_what_is_accepted() {
    let mut wrong = Vec::new();
    for (content, expected) in [
        (
            "rules:\n  a: { limits: [10/second, 5/minut] }",
            "2:28: limit \"5/minut\", column 3: expected",
        ),
        (
            "rules:\n  a: { limits: 10 }",
            "2:8: invalid type: integer `10`, expected a limit, such as 10/second",
        ),
        (
            "rules:\n  a: { limits: 1/day, cots: 3 }",
            "2:23: unknown field `cots`, expected one of match, exempt, per, limits",
        ),
        (
            "rules:\n  a: { limits: 1/day, cost: many }",
            "2:23: invalid type: string \"many\", expected a whole number",
        ),
        (
            "rules:\n  a: { limits: 1/day, cost: -1 }",
            "2:23: invalid value: integer `-1`, expected a whole number",
        ),
        (
            "rules:\n  a: { limits: 1/day, shadow: maybe }",
            "2:23: invalid type: string \"maybe\", expected true or false",
        ),
        (
            "rules:\n  a: { limits: 1/day, over: deny }",
            "2:29: over \"deny\": expected reject, degrade, or { wait: 2s",
        ),
        (
            "rules:\n  a: { limits: 1/day, over: { wait: soon, queue: 1 } }",
            "2:37: time \"soon\": expected a time, such as 2s",
        ),
        (
            "rules:\n  a: { limits: 1/day, missing: maybe }",
            "2:32: missing \"maybe\": expected reject, allow or share",
        ),
        (
            "rules:\n  a: { limits: 1/day, per: headers:x }",
            "2:28: per \"headers:x\": expected address, key, identified",
        ),
        (
            "rules:\n  a: { limits: 1/day }\n  b:\n    limits: 1/day\n    per: [address, adress]",
            "5:20: per \"adress\": expected address",
        ),
        (
            "rules:\n  a: { limits: [1/day, 2/day] }",
            "2:8: rule \"a\": limits 1/day and 2/day would share one counter",
        ),
        (
            "rules:\n  a: { limits: 1/day, match: { path: login } }",
            "2:30: path \"login\": expected a path that begins",
        ),
        (
            "rules:\n  a: { limits: 1/day, match: {} }",
            "2:30: a match without conditions: expected method",
        ),
        ("rules:\n  a b: { limits: 1/day }", "2:3: rule name \"a b\": expected 1 to 64 characters"),
        (
            "rules:\n  a: { limits: 1/day }\n  a: { limits: 1/day }",
            "3:3: duplicate mapping key `a`",
        ),
        (
            "rules:\n  cost: { limits: 1/day }\n  a:\n    limits: 60/hour\n    cost: 61",
            "5:5: rule \"a\": cost 61: expected at most 60, which limit 60/hour grants at once",
        ),
        (
            "rules:\n  a: { limits: 60/hour, cost: { response_header: x-cost, estimate: 61 } }",
            "2:25: rule \"a\": cost 61: expected at most 60",
        ),
        // Fault: a request whose estimate is 0 is never denied, whatever earlier ones have cost.
        (
            "rules:\n  a: { limits: 60/hour, cost: { response_header: x-cost, estimate: 0 } }",
            "2:25: rule \"a\": estimate 0: expected at least 1",
        ),
        ("rules:\n  a: {}", "2:6: missing field `limits`"),
        ("rules: {}", "no rules: expected at least one"),
        ("rules: [a]", "1:9: a list: expected a map, in which each key is the name of a rule"),
        (
            "proxies: []\nrules:\n  - name: a\n    limits: 1/day",
            "3:5: a list: expected a map, in which each key is the name of a rule",
        ),
        (
            "rule: {}",
            "1:1: unknown field `rule`, expected one of store, secret, keys, proxies, exempt, server, domains, rules",
        ),
        ("proxies: [a]\nrules:\n  a: { limits: 1/day }", "1:11: trusted proxy \"a\": expected"),
        (
            "secret: short\nrules:\n  a: { limits: 1/day }",
            "1:9: secret for hashing keys has 5 bytes: expected at least 16",
        ),
        (
            "secret: ${RL_NOT_SET}\nrules:\n  a: { limits: 1/day }",
            "1:9: variable ${RL_NOT_SET} is not set",
        ),
        ("secret: file:/nonexistent\nrules:\n  a: { limits: 1/day }", "1:9: file:…: No such file"),
        ("rules:\n  a: { limits: [1/day }", "2:16: mismatched bracket"),
        (
            "rules:\n  a: { limits: ${RATE} }",
            "2:16: \"$\": expected ${VARIABLE}, inside { } in quotes: \"${VARIABLE}\"",
        ),
        (
            "rules:\n  a: { limits: 1/day, tiers: { pro: [] } }",
            "2:32: rule \"a\", tier \"pro\" has no limits: expected at least one",
        ),
        ("rules:\n  a: { limits: [] }", "2:8: rule \"a\" has no limits: expected at least one"),
        (
            "rules:\n  a: { limits: 10 per second }",
            "2:16: limit \"10 per second\": write 10/second",
        ),
        (
            "rules:\n  a: { limits: unlimited }",
            "2:16: limit \"unlimited\": to allow every request, leave the rule out; a tier needs a limit",
        ),
        (
            "rules:\n  a: { limits: 1/day, per: key }",
            "2:28: per \"key\": expected `keys:` in the file, with known keys",
        ),
        (
            "keys: { from: [], file: k.yaml }\nrules:\n  a: { limits: 1/day }",
            "1:9: from: expected at least one of header:NAME, bearer",
        ),
        (
            "keys: { from: address, file: k.yaml }\nrules:\n  a: { limits: 1/day }",
            "1:15: from \"address\": expected header:NAME, bearer, query:NAME or cookie:NAME",
        ),
        ("", "the file is empty: expected `rules`"),
    ] {
        let error = error("limits.yaml", content);
        if !error.starts_with(expected) {
            wrong.push(format!("{content}\n  is: {error}\nnot: {expected}"));
        }
    }
    for (content, expected) in [
        ("[rules.a]\nlimits = [\"10/second\", \"5/minut\"]", "2:"),
        (
            "[rules.a]\nlimits = \"1/day\"\ncots = 3",
            "3:1: unknown field `cots`, expected one of `match`",
        ),
        (
            "[rules.a]\nlimits = \"1/day\"\ncost = -1",
            "3:8: invalid value: integer `-1`, expected a whole number",
        ),
        (
            "[rules.a]\nlimits = \"1/day\"\nper = \"adress\"",
            "3:8: per \"adress\": expected address",
        ),
        (
            "[rules.a]\nlimits = [\"1/day\", \"2/day\"]",
            "2:1: rule \"a\": limits 1/day and 2/day would share one counter",
        ),
        (
            "[rules.b]\nlimits = \"1/day\"\ncost = 1\n[rules.a]\nlimits = \"60/hour\"\ncost = 61",
            "6:1: rule \"a\": cost 61: expected at most 60, which limit 60/hour grants at once",
        ),
        ("[rules.a]\nlimits = [", "2:11: unclosed array"),
    ] {
        let error = error("limits.toml", content);
        if !error.starts_with(expected) {
            wrong.push(format!("{content}\n  is: {error}\nnot: {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let other = error("limits.conf", "rules: {}");
    assert_eq!(other, "the name of the file: expected .yaml, .yml, .json or .toml");
    let missing = Rules::from_file("/nonexistent/limits.yaml").unwrap_err();
    assert!(missing.to_string().starts_with("/nonexistent/limits.yaml: No such file"), "{missing}");
    assert_eq!((missing.line(), missing.column()), (None, None));
}

/// An error is logged, so it must not contain a secret.
#[test]
fn errors_and_debug_output_contain_no_secret() {
    let directory = Directory::new();
    let secret = directory.write("secret", "hunter2\n");
    let content = |secret: &Path| {
        format!("secret: file:{}\nrules:\n  a: {{ limits: 1/day }}", secret.display())
    };
    let error = builder(directory.write("limits.yaml", &content(&secret))).read().unwrap_err();
    assert!(error.to_string().contains("7 bytes") && !error.to_string().contains("hunter2"));
    fs::write(&secret, "hunter2 hunter2 hunter2").unwrap();
    let path = directory
        .write("limits.yaml", &format!("store: redis://:hunter2@host\n{}", content(&secret)));
    let file = watch(path);
    assert_eq!(file.store(), Some("redis://:hunter2@host"));
    let shown = format!("{file:?} {:?}", file.status());
    assert!(!shown.contains("hunter2"), "{shown}");
}

/// Fault: an error contained a secret in which a dollar sign was not doubled, or that was a number.
#[test]
fn an_error_for_the_text_of_a_secret_does_not_contain_it() {
    let rules = "rules:\n  a: { limits: 1/day }";
    for value in [
        "1987654321098765",
        "-1987654321098765",
        "1987654321098765432109876",
        "1.987654321",
        "true",
    ] {
        for name in ["secret", "store"] {
            let error = error("limits.yaml", &format!("{name}: {value}\n{rules}"));
            let kind = if value == "true" { "true or false" } else { "number" };
            let expected =
                format!("invalid type: {kind}, expected ${{VARIABLE}}, file:PATH or a text");
            assert!(error.ends_with(&expected), "{value}: {error}");
        }
    }
    for (value, name) in [
        ("hunter2$hunter2 and more", "secret"),
        ("redis://:hunter2$@host", "store"),
        ("hunter2${hunter2", "secret"),
    ] {
        let place = name.len() + 3;
        let expected = "a dollar sign: expected ${VARIABLE}, inside { } in quotes: \"${VARIABLE}\"; or \
                        $$ for a dollar sign";
        let error = error("limits.yaml", &format!("{name}: {value}\n{rules}"));
        assert_eq!(error, format!("1:{place}: {expected}"));
    }
    let toml = error("limits.toml", "secret = 1987654321098765\n[rules.a]\nlimits = \"1/day\"");
    assert!(toml.contains("invalid type: number") && !toml.contains("198765"), "{toml}");
}

#[test]
fn a_service_registers_extractors_and_tiers() {
    let directory = Directory::new();
    let path = directory.write(
        "limits.yaml",
        "rules: { users: { per: login-name, limits: 1/day, tiers: { pro: 9/day } } }",
    );
    let rules = builder(&path)
        .extractor("login-name", |_: &dyn RequestInfo| Subject::user("alice"))
        .tier_by(|subject| (*subject == Subject::user("alice")).then(|| Tier::new("pro")))
        .read()
        .unwrap();
    assert_eq!(parts(&rules, &FakeRequest::get("/")), ["users user 1 day=9/day"]);
    let error = builder(&path).read().unwrap_err();
    assert!(error.to_string().contains(":1:24: per \"login-name\": expected address"), "{error}");
}

/// Fault: the error did not list the names, and had the place of the first text that contained
/// the unknown name.
#[test]
fn the_error_for_a_name_that_is_not_registered_has_its_place_and_lists_the_registered_names() {
    let directory = Directory::new();
    let error = |content: &str| {
        let path = directory.write("limits.yaml", content);
        let file = builder(&path)
            .extractor("login-name", |_: &dyn RequestInfo| Subject::user("alice"))
            .extractor("tenant", |_: &dyn RequestInfo| Subject::user("alice"))
            .source("records", crate::source::Preset::OpenBank);
        let error = file.read().unwrap_err().to_string();
        error.strip_prefix(&format!("{}:", path.display())).unwrap().to_owned()
    };
    let per = "expected address, key, identified, route, method, bearer, header:NAME, query:NAME, \
               cookie:NAME, trusted-header:NAME, login-name, tenant, or several of them joined by +";
    assert_eq!(
        error("rules:\n  a: { match: { path: /nam }, limits: 1/day, per: [address, route+nam] }"),
        format!("2:67: per \"nam\": {per}")
    );
    assert_eq!(
        error(
            "# the rule a has a name\nrules:\n  b: { limits: 1/day }\n  a: { limits: 1/day, per: b }"
        ),
        format!("4:28: per \"b\": {per}")
    );
    let limit = "expected a limit, such as 10/second, 5000/day:clock or 20:concurrency, or a source: records";
    assert_eq!(
        error("rules:\n  a: { limits: recrods }"),
        format!("2:16: limit \"recrods\": {limit}")
    );
    let none = read("limits.yaml", "rules:\n  a: { limits: recrods }").unwrap_err().to_string();
    assert!(none.ends_with("or a source that the service registers"), "{none}");
}

#[test]
fn a_file_discloses_limits_or_the_name_of_a_rule_too() {
    let disclosed = |text: &str| {
        let rules = format!("rules: {{ a: {{ limits: 5/minute, disclosed: {text} }} }}");
        let rules = read("limits.yaml", &rules).map_err(|error| error.to_string())?;
        let rule = &rules.rules[0];
        Ok((rule.is_disclosed, rule.is_name_disclosed))
    };
    assert_eq!(disclosed("true"), Ok((Some(true), false)));
    assert_eq!(disclosed("false"), Ok((Some(false), false)));
    assert_eq!(disclosed("name"), Ok((Some(true), true)));
    let error: String = disclosed("names").unwrap_err();
    assert!(error.ends_with("disclosed \"names\": expected true, false or name"), "{error}");
    let error = disclosed("1").unwrap_err();
    assert!(error.ends_with("expected true, false or name"), "{error}");
}

#[test]
fn the_published_schema_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rules.schema.json");
    let schema = json_schema();
    if std::env::var_os("UPDATE_PUBLIC_API").is_some() {
        fs::write(path, &schema).unwrap();
    }
    let published = fs::read_to_string(path).unwrap_or_default();
    // The parsed values are compared, because the order of keys in the text depends on features of
    // serde_json that other crates enable.
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    assert!(value(&published) == value(&schema), "UPDATE_PUBLIC_API=1 rewrites {path}");
}

fn rule_a(subject: &Subject) -> OfRule<'_> {
    OfRule { rule: "a", tier: None, subject }
}

/// Returns the maximum of the first limit of the rule `a`.
fn units(rules: &RuleSet) -> u64 {
    let subject = Subject::global();
    let part = rules.part_of_rule(rule_a(&subject), None, crate::model::Cost::ONE).unwrap();
    part.policy.limits()[0].limit().max()
}

fn one_rule(units: u64) -> String {
    format!("rules: {{ a: {{ limits: {units}/day }} }}")
}

/// Waits for the next reading that applied or refused the file.
async fn next(file: &RulesFile, status: &RulesFileStatus) -> RulesFileStatus {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, file.changed_since(status)).await.expect("the change is noticed")
}

/// Waits until the status of the file satisfies `is_reached`.
async fn until(file: &RulesFile, is_reached: impl Fn(&RulesFileStatus) -> bool) {
    let mut status = file.status();
    while !is_reached(&status) {
        status = next(file, &status).await;
    }
}

#[tokio::test]
async fn a_change_in_each_way_is_applied_and_a_bad_file_keeps_the_last_rules() {
    type Change = fn(&Directory, &str);
    fn in_place(directory: &Directory, content: &str) {
        directory.write("limits.yaml", content);
    }
    /// Replaces a link to a directory, as Kubernetes does.
    #[cfg(unix)]
    fn swap_link(directory: &Directory, content: &str) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let root = &directory.0;
        let version = root.join(format!("..{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&version).unwrap();
        fs::write(version.join("limits.yaml"), content).unwrap();
        std::os::unix::fs::symlink(&version, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        let link = root.join("limits.yaml");
        if fs::symlink_metadata(&link).is_ok_and(|metadata| !metadata.is_symlink()) {
            fs::remove_file(&link).unwrap();
        }
        if !link.exists() {
            std::os::unix::fs::symlink("..data/limits.yaml", &link).unwrap();
        }
    }
    let ways: &[Change] = &[
        in_place,
        replace,
        #[cfg(unix)]
        swap_link,
    ];
    for (way, change) in ways.iter().enumerate() {
        let directory = Directory::new();
        change(&directory, &one_rule(1));
        let file = watch(directory.0.join("limits.yaml"));
        let rules = file.subscribe(&Namespace::default(), false).unwrap();
        for max in 2..4 {
            change(&directory, &one_rule(max));
            let is_valid = |status: &RulesFileStatus| status.error().is_none();
            until(&file, |status| is_valid(status) && units(&rules.load()) == max).await;

            change(&directory, "rules: { a: { limits: 1/dy } }");
            // A file that is written in place is empty for a moment, which may be refused first.
            let place =
                |status: &RulesFileStatus| status.error().map(|it| (it.line(), it.column()));
            until(&file, |status| place(status) == Some((Some(1), Some(23)))).await;
            assert_eq!(units(&rules.load()), max, "{way}");
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn sighup_reads_the_file_again_also_if_only_a_secret_has_changed() {
    let directory = Directory::new();
    let secret = directory.write("secret", "sixteen bytes or more");
    let rule = "a: { per: bearer, limits: 1/day }";
    let content = format!("secret: file:{}\nrules: {{ {rule} }}", secret.display());
    let path = directory.write("limits.yaml", &content);
    let file = watch(path);
    let status = file.status();
    let this = std::process::id().to_string();
    let sent = std::process::Command::new("kill").args(["-HUP", &this]).status().unwrap();
    assert!(sent.success());
    let status = next(&file, &status).await;
    assert_eq!((status.applied(), status.refused()), (2, 0));
}

#[tokio::test]
async fn a_file_that_is_removed_and_created_again_is_applied_again() {
    let directory = Directory::new();
    let path = directory.write("limits.yaml", &one_rule(1));
    let file = watch(&path);
    let rules = file.subscribe(&Namespace::default(), false).unwrap();
    let status = file.status();
    fs::remove_file(&path).unwrap();
    let status = next(&file, &status).await;
    assert_eq!((units(&rules.load()), status.refused()), (1, 1));
    replace(&directory, &one_rule(2));
    let status = next(&file, &status).await;
    assert_eq!((units(&rules.load()), status.applied()), (2, 2));
    assert!(status.error().is_none());
}

#[test]
fn a_reload_reports_its_error_and_the_version_changes_with_the_content() {
    let directory = Directory::new();
    let path = directory.write("limits.yaml", &one_rule(1));
    // This test has no tokio runtime, so the file is watched, but `SIGHUP` is not handled.
    let file = watch(&path);
    let first = file.status().version().to_owned();
    assert_eq!(first.len(), 16);
    directory.write("limits.yaml", "rules: 1");
    assert!(
        file.reload().unwrap_err().to_string().ends_with("in which each key is the name of a rule")
    );
    assert_eq!(file.status().version(), first);
    directory.write("limits.yaml", &one_rule(2));
    file.reload().unwrap();
    assert_ne!(file.status().version(), first);
}

/// A limiter with a namespace of its own has the same rules, and counters of its own.
#[test]
fn several_limiters_follow_one_file() {
    let directory = Directory::new();
    let path = directory.write("limits.yaml", &one_rule(1));
    let file = watch(&path);
    let one = file.subscribe(&Namespace::default(), false).unwrap();
    let other = file.subscribe(&"other".parse().unwrap(), false).unwrap();
    drop(file.subscribe(&"dropped".parse().unwrap(), false).unwrap());
    directory.write("limits.yaml", &one_rule(2));
    file.reload().unwrap();
    for (rules, namespace) in [(one, "default/a"), (other, "other/a")] {
        let (rules, subject) = (rules.load(), Subject::global());
        assert_eq!(units(&rules), 2);
        let part = rules.part_of_rule(rule_a(&subject), None, crate::model::Cost::ONE).unwrap();
        assert_eq!(part.namespace.map(Namespace::as_str), Some(namespace));
    }
}

#[test]
fn a_file_names_sources_of_limits_and_headers_with_costs() {
    let directory = Directory::new();
    let content =
        "rules: { a: { limits: records, cost: { response_header: x-rows, estimate: 9 } } }";
    let path = directory.write("limits.yaml", content);
    let fixed = crate::policy::Policy::new(["7/minute".parse().unwrap()]).unwrap();
    let rules = builder(&path).source("records", fixed).read().unwrap();
    let set = Arc::new(RuleSet::new(&rules, &Namespace::default()).unwrap());
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let parts = set.parts_of(&FakeRequest::get("/"), &defaults).unwrap().unwrap();
    assert!(parts.settles_cost());
    assert!(parts.parts().is_empty(), "the policy is not looked up yet");
    let lookups: Vec<_> = parts
        .lookups()
        .map(|(index, source, subject)| {
            parts.set_policy(index, source.cached(subject).cloned());
            index
        })
        .collect();
    assert_eq!(lookups, [0]);
    let found = parts.parts();
    assert_eq!(found[0].policy.limits()[0].limit().to_string(), "7/minute");
    assert_eq!(found[0].cost.units(), 9);

    let error = |content: &str| error("limits.yaml", content);
    let unknown = error(content);
    let expected = "1:23: limit \"records\": expected a limit, such as 10/second, 5000/day:clock or \
                    20:concurrency, or a source that the service registers";
    assert_eq!(unknown, expected);
    let unknown = error("rules:\n  a: { limits: 1/day, cost: { header: x } }");
    assert!(unknown.contains("response_header"), "{unknown}");
    let unknown = error("rules:\n  a: { limits: 1/day, cost: { estimate: 3 } }");
    assert!(unknown.contains("response_header"), "{unknown}");
}

/// Fault: after an observer had panicked, no change of the file was applied any more.
#[tokio::test]
async fn changes_are_applied_after_an_observer_has_panicked() {
    let directory = Directory::new();
    let file = watch(directory.write("limits.yaml", &one_rule(1)));
    let rules = file.subscribe(&Namespace::default(), false).unwrap();
    file.on_reading(&rules, |_| panic!("an observer panics"));
    let mut status = file.status();
    for max in 2..4 {
        replace(&directory, &one_rule(max));
        status = next(&file, &status).await;
        assert_eq!((units(&rules.load()), status.applied()), (max, max));
    }
}
