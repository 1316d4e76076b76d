//! Rules that a service stores outside the file.

use super::super::variables::tests::set_variable;
use super::{Directory, RulesFile, StoredRule, watch};
use crate::key::fake_request::FakeRequest;
use crate::limiter::RateLimiter;
use crate::rules::{Defaults, MissingKey};
use crate::store::Namespace;

const LOGIN: &str = "match: { path: /login }\nper: address\nlimits: 5/minute";

fn limiter(file: &RulesFile) -> RateLimiter {
    RateLimiter::builder().rules(file).build().unwrap()
}

/// Returns the reason for which a rule would not apply.
fn reason(file: &RulesFile, definition: &str) -> String {
    file.check_stored_rule(&StoredRule::new("new", definition)).unwrap_err()
}

#[test]
fn stored_rules_apply_with_those_of_the_file_and_stay_when_it_changes() {
    let directory = Directory::new();
    let file = watch(directory.write("limits.yaml", "rules: { fleet: { limits: 9/second } }"));
    let limiter = limiter(&file);
    let login = StoredRule::new("login", LOGIN);
    file.apply_stored_rules(vec![login.clone(), StoredRule::new("upload", LOGIN).shadow(true)])
        .unwrap();
    assert_eq!(limiter.rule_names().unwrap(), ["fleet", "login", "upload"]);
    assert!(!limiter.rule("login").is_shadow() && limiter.rule("upload").is_shadow());
    let definition = |rule: &str| limiter.rule(rule).definition().map(|text| text.to_string());
    assert_eq!(definition("login").as_deref(), Some(LOGIN));
    assert_eq!(definition("fleet").as_deref(), Some("limits: 9/second\n"));
    assert_eq!(definition("unknown"), None);

    directory.write("limits.yaml", "rules: { all: { limits: 7/second } }");
    file.reload().unwrap();
    assert_eq!(limiter.rule_names().unwrap(), ["all", "login", "upload"]);
    file.apply_stored_rules(vec![login]).unwrap();
    assert_eq!(limiter.rule_names().unwrap(), ["all", "login"]);
}

/// Otherwise a row of the database could keep every change of the file from applying.
#[test]
fn a_stored_rule_that_is_not_valid_is_left_out_and_reported() {
    let directory = Directory::new();
    let file = watch(directory.write("limits.yaml", "rules: { fleet: { limits: 9/second } }"));
    let limiter = limiter(&file);
    let rules = [("fleet", LOGIN), ("login", LOGIN), ("broken", "limits: 5/minut")];
    let rules = rules.map(|(name, definition)| StoredRule::new(name, definition));
    file.apply_stored_rules(rules.to_vec()).unwrap();
    assert_eq!(limiter.rule_names().unwrap(), ["fleet", "login"]);
    let refused = file.status().refused_rules().to_vec();
    let names: Vec<&str> = refused.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["fleet", "broken"]);
    assert_eq!(refused[0].reason, "the name is taken by another rule");
    assert!(refused[1].reason.contains("line 1, column 9: limit \"5/minut\""), "{refused:?}");

    // The file may take the name of a stored rule, which then does not apply.
    directory.write("limits.yaml", "rules: { login: { limits: 1/second } }");
    file.reload().unwrap();
    assert_eq!(limiter.rule_names().unwrap(), ["login", "fleet"]);
    assert_eq!(file.status().refused_rules()[0].name, "login");
}

#[test]
fn a_rule_is_checked_beside_the_others_before_it_is_stored() {
    let directory = Directory::new();
    let all: String = (0..8).map(|n| format!("  all-{n}: {{ limits: 9/second }}\n")).collect();
    let file = watch(directory.write("limits.yaml", &format!("rules:\n{all}")));
    assert!(reason(&file, "limits: 9/hour").contains("8"), "a ninth rule for all requests");
    assert_eq!(file.check_stored_rule(&StoredRule::new("login", LOGIN)), Ok(()));
    file.apply_stored_rules(vec![StoredRule::new("login", LOGIN)]).unwrap();
    // It replaces itself.
    assert_eq!(file.check_stored_rule(&StoredRule::new("login", LOGIN)), Ok(()));

    for (definition, expected) in [
        ("", "limits"),
        ("per: address", "limits"),
        ("limits: 5/minute\nper: user", "per \"user\""),
        ("limits: 5/minute\nper: key", "expected `keys:` in the file"),
        ("limits: records\nmatch: { path: /a }", "records"),
        ("limits: 5/minute\nshadow: true", "shadow: expected as a setting"),
        ("limits: 5/minute\nlimit: 7", "limit"),
        ("limits: [5/minute, 7/minute]\nmatch: { path: /a }", "new"),
        ("- limits: 5/minute", "line 1"),
    ] {
        let reason = reason(&file, definition);
        assert!(reason.contains(expected), "{definition}: {reason}");
    }
    let name = StoredRule::new("two words", LOGIN);
    assert!(file.check_stored_rule(&name).unwrap_err().contains("1 to 64 characters"));
}

/// An operator of the database must not read the secrets of the service.
#[test]
fn variables_are_not_replaced_in_stored_rules() {
    set_variable("RL_STORED", "/hunter2");
    let directory = Directory::new();
    let file = watch(directory.write("limits.yaml", "rules: { fleet: { limits: 9/second } }"));
    let odata = StoredRule::new("odata", "limits: 5/minute\nmatch: { path: /$$metadata }");
    assert_eq!(file.check_stored_rule(&odata), Ok(()));
    for path in ["${RL_STORED}", "\"\\u0024{RL_STORED}\"", "\"\\x24{RL_STORED}\""] {
        let reason = reason(&file, &format!("limits: 5/minute\nmatch:\n  path: {path}"));
        assert!(reason.starts_with("variables are not replaced"), "{path}: {reason}");
        assert!(!reason.contains("hunter2"));
    }
}

#[test]
fn aliases_do_not_multiply_a_stored_rule() {
    let directory = Directory::new();
    let file = watch(directory.write("limits.yaml", "rules: { fleet: { limits: 9/second } }"));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    assert!(reason(&file, &bomb).starts_with("line "));
}

#[test]
fn the_service_may_refuse_stored_rules() {
    let directory = Directory::new();
    let path = directory.write("limits.yaml", "rules: { fleet: { limits: 9/second } }");
    let check = |name: &str, definition: &str| match definition.contains("over") {
        true => Err(format!("{name}: over: expected reject")),
        false => Ok(()),
    };
    let file = super::builder(path).check_stored_rules(check).watch().unwrap();
    let definition = format!("{LOGIN}\nover: {{ wait: 2s, queue: 7 }}");
    assert_eq!(reason(&file, &definition), "new: over: expected reject");
    assert_eq!(file.check_stored_rule(&StoredRule::new("new", LOGIN)), Ok(()));
}

/// Otherwise a row of a database could make the service reject every request that it matches.
#[test]
fn a_stored_rule_gives_way_if_more_than_eight_rules_match_a_request() {
    let directory = Directory::new();
    let limited = |name: &str| format!("  {name}: {{ match: {{ path: /a }}, limits: 9/hour }}\n");
    let rules: String = (0..7).map(|n| limited(&format!("file-{n}"))).collect();
    let file = watch(directory.write("limits.yaml", &format!("rules:\n{rules}")));
    let stored = ["one", "two", "three"];
    let definition = "match: { path: /a }\nlimits: 9/hour";
    file.apply_stored_rules(stored.map(|name| StoredRule::new(name, definition)).to_vec()).unwrap();
    let rules = file.subscribe(&Namespace::default(), false).unwrap();
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let found = rules.load_full().parts_of(&FakeRequest::get("/a"), &defaults).unwrap().unwrap();
    let names: Vec<_> = (0..8).map(|place| found.rule(place).unwrap().1.to_owned()).collect();
    assert_eq!((found.parts().len(), &*names[6], &*names[7]), (8, "file-6", "one"));
}

/// The rule that matches only some requests is not the cause.
#[test]
fn the_stored_rule_that_matches_every_request_is_left_out_if_there_are_too_many() {
    let directory = Directory::new();
    let all: String = (0..8).map(|n| format!("  all-{n}: {{ limits: 9/second }}\n")).collect();
    let file = watch(directory.write("limits.yaml", &format!("rules:\n{all}")));
    let limiter = limiter(&file);
    let rules = vec![StoredRule::new("a", "limits: 9/hour"), StoredRule::new("z", LOGIN)];
    file.apply_stored_rules(rules).unwrap();
    assert_eq!(file.status().refused_rules()[0].name, "a");
    assert!(limiter.rule_names().unwrap().contains(&"z".to_owned()));
}
