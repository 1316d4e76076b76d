//! Hostile clients: programs that are not browsers, and other sites in a browser.

use std::time::Duration;

use reqwest::Method;
use rl_admin::Role;
use rl_records::{AuditEvent, AuditQuery, RecordContent, RecordQuery, TierContent};
use rl_tests::web::Fetch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{EDITORS, GIVE_UP, House, OWNER, VIEWER, field_of, token_of};

/// The paths of forms that change something.
const FORMS: [&str; 18] = [
    "/console/reset",
    "/console/raise",
    "/console/block",
    "/console/unblock",
    "/console/record/new",
    "/console/record/edit",
    "/console/record/delete",
    "/console/tier/new",
    "/console/tier/edit",
    "/console/tier/delete",
    "/console/resource/new",
    "/console/resource/edit",
    "/console/resource/delete",
    "/console/consumer/tier",
    "/console/subscription/new",
    "/console/subscription/status",
    "/console/logout",
    "/console/nowhere",
];

/// The paths of pages that show something.
const PAGES: [&str; 21] = [
    "/console",
    "/console/now",
    "/console/rules",
    "/console/resources",
    "/console/blocks",
    "/console/consumers",
    "/console/subject?realm=consumer&id=abc",
    "/console/explain?realm=consumer&id=abc",
    "/console/consumer?id=abc",
    "/console/consumer/export?id=abc&format=csv",
    "/console/months",
    "/console/months/export?format=json",
    "/console/usage?id=abc",
    "/console/record/new",
    "/console/tiers",
    "/console/subscriptions",
    "/console/subscription/new",
    "/console/changes",
    "/console/store",
    "/console/last-hour",
    "/console/nowhere",
];

#[tokio::test]
async fn pages_and_forms_need_a_session() {
    let house = House::new().await;
    house.record("abc", 10, 100).await;
    for cookie in ["", "rl-console-1=", "rl-console=0000", "other=1"] {
        for page in PAGES {
            let answer = house.site.get(page).header("cookie", cookie).fetch().await;
            let expected =
                if page.contains("/usage") || page.ends_with("/now") { 401 } else { 303 };
            assert_eq!(answer.status, expected, "{page} {cookie}");
            assert!(!answer.body.contains("abc"), "{page}");
        }
        for form in FORMS.iter().filter(|form| !form.ends_with("/logout")) {
            let answer = house.post_form(form, Some(cookie), &[("consumer_id", "abc")]).await;
            assert_eq!(answer.status, 401, "{form} {cookie}");
        }
    }
}

#[tokio::test]
async fn a_wrong_token_is_rejected_and_not_shown() {
    let house = House::new().await;
    for token in ["", "wrong-token-of-a-guesser", "a\r\nb", &OWNER[1..], "ä"] {
        let answer = house.post_form("/console/login", None, &[("token", token)]).await;
        assert_eq!(answer.status, 401, "{token}");
        assert_eq!(answer.header("set-cookie"), None);
        assert!(token.is_empty() || !answer.body.contains(token));
    }
}

#[tokio::test]
async fn a_user_without_roles_sees_nothing() {
    let house = House::new().await;
    let login =
        house.post_form("/console/login", None, &[("token", "a token that may do nothing")]).await;
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    for page in PAGES {
        let answer = house.site.get(page).header("cookie", &cookie).fetch().await;
        assert_eq!(answer.status, 403, "{page}");
        assert!(answer.body.contains("CanReadCallLimits"), "{page}");
    }
}

/// The server refuses every edit by a viewer, whatever the page shows.
#[tokio::test]
async fn every_edit_of_a_viewer_is_refused() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let limits = record.content.limits.clone();
    let gold = TierContent { name: "gold".into(), limits };
    let tier = house.records.tiers().create(gold, "otto").await.unwrap();
    let viewer = house.log_in(VIEWER).await;
    let (id, revision) = (record.id.to_string(), tier.revision.to_string());
    let forged = [
        ("/console/record/new", vec![("consumer_id", "abc")]),
        ("/console/record/edit", vec![("record", &*id), ("revision", "1"), ("consumer_id", "abc")]),
        ("/console/record/delete", vec![("record", &*id), ("revision", "1")]),
        ("/console/tier/new", vec![("name", "silver")]),
        ("/console/tier/edit", vec![("name", "gold"), ("revision", &*revision)]),
        ("/console/tier/delete", vec![("name", "gold"), ("revision", &*revision)]),
        ("/console/resource/new", vec![("name", "payments")]),
        ("/console/resource/edit", vec![("name", "payments"), ("revision", "1")]),
        ("/console/resource/delete", vec![("name", "payments"), ("revision", "1")]),
        ("/console/consumer/tier", vec![("id", "abc"), ("tier", "gold"), ("revision", "0")]),
        ("/console/reset", vec![("id", "abc")]),
        ("/console/raise", vec![("id", "abc"), ("factor", "2"), ("hours", "1")]),
        ("/console/block", vec![("id", "abc"), ("reason", "x"), ("end", "day")]),
        ("/console/unblock", vec![("id", "abc")]),
    ];
    for (path, fields) in forged {
        let answer = viewer.post(path, &fields).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert!(answer.body.contains("does not have the role"), "{path}");
    }
    for page in ["/console/record/new", "/console/tier/new", "/console/resource/new"] {
        assert_eq!(viewer.get(page).await.status, 403, "{page}");
    }
    for what in ["edit", "delete"] {
        let page = viewer.get(&format!("/console/record/{what}?record={id}")).await;
        assert_eq!(page.status, 403, "{what}");
    }
    let page = viewer.get("/console/consumer?id=abc").await.body;
    // The page contains the history, which names the paths of refused requests. So the test looks
    // for links and forms instead of paths.
    for control in [
        "=\"/console/record/new",
        "=\"/console/record/edit",
        "=\"/console/record/delete",
        "=\"/console/consumer/tier",
        "method=\"post",
    ] {
        let own = page.split("<main").nth(1).unwrap();
        assert!(!own.contains(control), "{control}: {own}");
    }
    assert_eq!(house.records.list(&RecordQuery::default()).await.unwrap().records, [record]);
    assert_eq!(house.records.tiers().list(None, 10).await.unwrap(), [tier]);
}

/// Fault: a refusal by the console was logged, but was in no history.
#[tokio::test]
async fn refusals_of_the_console_are_in_the_history_with_the_consumer_and_the_path() {
    let house = House::new().await;
    let viewer = house.log_in(VIEWER).await;
    let fields = [("consumer_id", "abc"), ("limits", "1/second")];
    assert_eq!(viewer.post("/console/record/new", &fields).await.status, 403);
    let login =
        house.post_form("/console/login", None, &[("token", "a token that may do nothing")]).await;
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let page = house.site.get("/console/consumer?id=abc").header("cookie", &cookie).fetch().await;
    assert_eq!(page.status, 403);

    let query = AuditQuery { consumer: Some("abc".into()), ..AuditQuery::default() };
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let written = async {
        loop {
            looks.tick().await;
            let entries = house.records.audit_log().entries(&query).await.unwrap();
            if entries.len() == 2 {
                return entries;
            }
        }
    };
    let entries = tokio::time::timeout(GIVE_UP, written).await.expect("both are written");
    let mut refusals: Vec<_> = entries
        .into_iter()
        .map(|entry| match entry.event {
            AuditEvent::Refusal(refusal) => {
                (entry.by, refusal.role, refusal.method, refusal.path, refusal.count)
            }
            event => panic!("{event:?}"),
        })
        .collect();
    refusals.sort_unstable();
    let entry = |by: &str, role: Role, method: &str, path: &str| {
        (by.to_owned(), role.to_string(), method.to_owned(), path.to_owned(), 1)
    };
    assert_eq!(
        refusals,
        [
            entry("guest", Role::CanReadCallLimits, "GET", "/console/consumer?id=abc"),
            entry("victor", Role::CanCreateRateLimits, "POST", "/console/record/new"),
        ]
    );
}

/// The form of a record can also block or unblock a consumer: by its checkbox for blocks, or by the
/// dates of a blocking record.
#[tokio::test]
async fn a_user_who_may_only_change_records_cannot_block_or_unblock() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    // The block is for another consumer. If `abc` were already blocked, changing its record into a
    // second block would have no effect, and would require no role.
    let subject_id = "def".to_owned();
    let blocks = RecordContent { subject_id, blocks: true, ..record.content.clone() };
    let block = house.records.create(blocks, "otto").await.unwrap();
    let later = "2099-01-01T00:00:00";
    for role in EDITORS {
        let editor = house.log_in(&token_of(role)).await;
        for (there, tick, to_date, missing) in [
            (&record, "on", "", Some("CanCreateRateLimits")),
            (&block, "", "", Some("CanDeleteRateLimits")),
            (&block, "on", later, Some("CanCreateRateLimits")),
            (&record, "", "", None),
        ] {
            let (id, revision) = (there.id.to_string(), there.revision.to_string());
            let path = format!("/console/record/edit?record={id}");
            let page = house.log_in(OWNER).await.get(&path).await.body;
            let (from, to) = (field_of(&page, "from_date"), field_of(&page, "to_date"));
            let fields = [
                ("record", &*id),
                ("revision", &*revision),
                ("consumer_id", &*there.content.subject_id),
                ("from_date", &*from),
                ("to_date", if to_date.is_empty() { &*to } else { to_date }),
                ("limits", "10/minute"),
                ("blocks", tick),
            ];
            let answer = editor.post("/console/record/edit", &fields).await;
            let missing = match role {
                Role::CanUpdateRateLimits => missing,
                _ => Some("CanUpdateRateLimits"),
            };
            assert_eq!(answer.status, if missing.is_some() { 403 } else { 303 }, "{role} {tick}");
            let said = format!("does not have the role {}", missing.unwrap_or_default());
            assert!(missing.is_none() || answer.body.contains(&said), "{role}: {}", answer.body);
        }
    }
    let stored = house.records.list(&RecordQuery::default()).await.unwrap().records;
    let is_block = |id| stored.iter().find(|record| record.id == id).unwrap().content.blocks;
    assert!(!is_block(record.id) && is_block(block.id));
    let after = house.records.read(block.id).await.unwrap();
    assert_eq!(after, Some(block), "nothing of it was changed");
}

/// A browser sends no cookie with a form of another site. The requests of this test contain the
/// cookie nevertheless, and even a valid form token. The server must refuse them because of their
/// origin.
#[tokio::test]
async fn a_form_from_elsewhere_is_refused() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let own = house.site.url("").trim_end_matches('/').to_owned();
    let body = format!("form_token={}&consumer_id=abc", owner.form_token);
    let lines: [(&str, &[(&str, &str)]); 9] = [
        ("another site", &[("origin", "https://evil.example")]),
        ("another port", &[("origin", "http://127.0.0.1:1")]),
        ("a site that hides", &[("origin", "null")]),
        ("none", &[]),
        ("empty", &[("origin", "")]),
        ("a scheme alone", &[("origin", "http://")]),
        ("another site by its kind", &[("origin", &own), ("sec-fetch-site", "cross-site")]),
        ("a neighbour", &[("origin", &own), ("sec-fetch-site", "same-site")]),
        ("a direct request", &[("origin", &own), ("sec-fetch-site", "none")]),
    ];
    for (case, lines) in lines {
        for form in FORMS {
            let mut request =
                house.site.post(form).header("cookie", &owner.cookie).body(body.clone());
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            assert_eq!(request.fetch().await.status, 403, "{case} {form}");
        }
        let mut login = house.site.post("/console/login").body(format!("token={OWNER}"));
        for (name, value) in lines {
            login = login.header(*name, *value);
        }
        let answer = login.fetch().await;
        assert_eq!((answer.status, answer.header("set-cookie")), (403, None), "{case}");
    }
    assert!(house.records.list(&RecordQuery::default()).await.unwrap().records.is_empty());
    assert_eq!(owner.get("/console").await.status, 200, "olivia is still logged in");
}

#[tokio::test]
async fn a_form_without_the_token_of_its_session_is_refused() {
    let house = House::new().await;
    let (owner, other) = (house.log_in(OWNER).await, house.log_in(OWNER).await);
    assert_ne!(owner.form_token, other.form_token);
    let half = &owner.form_token[..32];
    for token in ["", "0", half, &*other.form_token, &owner.form_token.to_uppercase()] {
        for form in FORMS {
            let fields = [("form_token", token), ("consumer_id", "abc")];
            let answer = house.post_form(form, Some(&owner.cookie), &fields).await;
            assert_eq!(answer.status, 403, "{form} {token}");
        }
    }
    assert_eq!(owner.get("/console").await.status, 200);
    // A form token in the query string is not accepted.
    let path = format!("/console/logout?form_token={}", owner.form_token);
    assert_eq!(house.post_form(&path, Some(&owner.cookie), &[]).await.status, 403);
}

#[tokio::test]
async fn reading_never_changes() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let owner = house.log_in(OWNER).await;
    let query = format!("record={}&revision=1&form_token={}", record.id, owner.form_token);
    for form in FORMS {
        let answer = owner.get(&format!("{form}?{query}")).await;
        assert!([200, 400, 404].contains(&answer.status), "{form}: {}", answer.status);
    }
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        let request =
            house.site.request(method.clone(), &format!("/console/record/delete?{query}"));
        let status = request.header("cookie", &owner.cookie).fetch().await.status;
        assert_eq!(status, 403, "{method}");
    }
    assert_eq!(house.records.read(record.id).await.unwrap(), Some(record));
}

#[tokio::test]
async fn the_cookie_is_hidden_from_scripts_and_other_sites_and_a_login_changes_it() {
    let house = House::new().await;
    let login = async |cookie: Option<&str>| {
        let answer = house.post_form("/console/login", cookie, &[("token", OWNER)]).await;
        answer.header("set-cookie").unwrap().to_owned()
    };
    let line = login(None).await;
    let (pair, rest) = line.split_once("; ").unwrap();
    assert_eq!(rest, "Path=/; HttpOnly; SameSite=Strict");
    let (name, id) = pair.split_once('=').unwrap();
    // Browsers share cookies between the ports of a host, so the name contains the port.
    let port = house.site.url("").trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let own = format!("rl-console-{port}");
    assert_eq!((name, id.len()), (&*own, 64));

    // An attacker may set a cookie before the login. The login replaces the cookie, so the attacker
    // does not know the session.
    let fixed = format!("{own}={}", "0123456789abcdef".repeat(4));
    assert!(!login(Some(&fixed)).await.contains("0123456789abcdef"));
    let second = login(Some(pair)).await;
    assert_ne!(second, line);
    let first = house.site.get("/console").header("cookie", pair).fetch().await;
    assert_eq!(first.status, 303, "the session before has ended");

    let visitor = house.log_in(OWNER).await;
    let out = visitor.post("/console/logout", &[]).await;
    let gone = out.header("set-cookie").unwrap();
    assert!(gone.starts_with(&format!("{own}=; ")) && gone.ends_with("Max-Age=0"), "{gone}");
    assert_eq!(
        visitor.get("/console").await.status,
        303,
        "the session has ended on the server, too"
    );

    let house = House::behind_tls().await;
    let line = house.post_form("/console/login", None, &[("token", OWNER)]).await;
    let line = line.header("set-cookie").unwrap();
    assert!(line.starts_with("__Host-rl-console="), "{line}");
    assert!(line.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure"), "{line}");
}

#[tokio::test]
async fn every_response_forbids_features_that_the_console_does_not_use() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let open = [
        "/console/login",
        "/console/login/oidc",
        "/console/login/oidc/return",
        "/console/console.css",
        "/console/console.js",
        "/console/icon.svg",
    ];
    for path in PAGES.into_iter().chain(open) {
        for cookie in [&*owner.cookie, ""] {
            let answer = house.site.get(path).header("cookie", cookie).fetch().await;
            let policy = answer.header("content-security-policy").unwrap();
            assert!(policy.starts_with("default-src 'none'; "), "{path}: {policy}");
            for word in ["frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"] {
                assert!(policy.contains(word), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
            assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
            let kept = if path.contains("console.") || path.contains(".svg") {
                "no-cache"
            } else {
                "no-store"
            };
            assert_eq!(answer.header("cache-control"), Some(kept), "{path}");
            for inline in ["style=", "<style", "onclick=", "onload=", "javascript:", "//cdn"] {
                assert!(path.contains(".js") || !answer.body.contains(inline), "{path}: {inline}");
            }
            assert!(!answer.body.contains("<script>"), "{path}");
        }
    }
}

#[tokio::test]
async fn hostile_text_in_every_field_is_shown_and_does_nothing() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let text = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;";
    let fields = [
        ("consumer_id", text),
        ("from_date", "2026-02-01T12:00:00"),
        ("to_date", "2099-02-01T12:00:00"),
        ("limits", "5/second"),
        ("api_name", text),
        ("api_version", text),
        ("bank_id", text),
    ];
    let done = owner.post("/console/record/new", &fields).await;
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(owner.post("/console/tier/new", &[("name", text)]).await.status, 303);
    let resource = [("name", text), ("apps", text), ("limits", "5/second")];
    assert_eq!(owner.post("/console/resource/new", &resource).await.status, 303);
    let record = house.records.list(&RecordQuery::default()).await.unwrap().records.remove(0);
    let query = |name: &str| {
        url::form_urlencoded::Serializer::new(String::new()).append_pair(name, text).finish()
    };
    let pages = [
        "/console".to_owned(),
        format!("/console?{}&{}&{}", query("text"), query("realm"), query("rule")),
        "/console/consumers".to_owned(),
        format!("/console/consumers?{}&{}&{}", query("search"), query("tier"), query("state")),
        format!("/console/resources?{}", query("app")),
        "/console/resources".to_owned(),
        format!("/console/resource/edit?{}", query("name")),
        "/console/blocks".to_owned(),
        format!("/console/block?{}", query("id")),
        format!("/console/raise?{}", query("id")),
        format!("/console/explain?{}&{}", query("id"), query("path")),
        format!("/console/subject?realm=user&{}", query("id")),
        format!("/console/consumer?{}", query("id")),
        format!("/console/consumer?id=abc&{}&{}", query("at"), query("done")),
        format!("/console/usage?{}", query("id")),
        format!("/console/record/edit?record={}", record.id),
        format!("/console/record/delete?record={}", record.id),
        format!("/console/record/new?{}", query("consumer")),
        format!("/console/tier/edit?{}", query("name")),
        "/console/tiers".to_owned(),
        "/console/changes".to_owned(),
        format!("/console/changes?{}", query("consumer")),
        format!("/console/login?{}", query("next")),
        format!("/console/nowhere/{}", query("a")),
    ];
    let mut shown = 0;
    for page in pages {
        let body = owner.get(&page).await.body;
        for danger in [text, "<script>alert", "<img", "\"><script>", "onerror=alert(1)>"] {
            assert!(!body.contains(danger), "{page}: {danger}: {body}");
        }
        shown += usize::from(body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }
    assert!(shown >= 9, "{shown}");
    // The error message quotes the input, but escapes it.
    let wrong = [("consumer_id", text), ("from_date", text), ("limits", text)];
    let answer = owner.post("/console/record/new", &wrong).await;
    assert!(answer.status == 422 && !answer.body.contains("<script>alert"), "{}", answer.body);
    assert!(answer.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[tokio::test]
async fn a_login_never_redirects_out_of_the_console() {
    let house = House::new().await;
    #[rustfmt::skip]
    let table = [
        ("/console/consumer?id=abc",  "/console/consumer?id=abc"),
        ("/console",                  "/console"),
        ("",                          "/console"),
        ("https://evil.example/",     "/console"),
        ("//evil.example/console",    "/console"),
        ("/console.evil.example",     "/console"),
        ("/consoles",                 "/console"),
        ("/console\\@evil",           "/console"),
        ("/console/a\r\nx: y",        "/console"),
        ("/console/login?next=x",     "/console"),
        ("javascript:alert(1)",       "/console"),
    ];
    for (next, expected) in table {
        let fields = [("token", OWNER), ("next", next)];
        let answer = house.post_form("/console/login", None, &fields).await;
        assert_eq!(answer.header("location"), Some(expected), "{next:?}");
    }
}

#[tokio::test]
async fn forms_of_any_bytes_are_answered() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let origin = house.site.url("").trim_end_matches('/').to_owned();
    let large = vec![b'a'; 70_000];
    let token = format!("form_token={}&", owner.form_token).into_bytes();
    let bodies: [&[u8]; 5] = [b"", b"\xff\xfe=%", b"%00%zz&&&===", &large, b"consumer_id=a%00b"];
    for body in bodies {
        for form in FORMS.iter().filter(|form| !form.ends_with("/logout")) {
            let request = house.site.post(form).header("cookie", &owner.cookie);
            let body = [&token, body].concat();
            let status = request.header("origin", &origin).body(body).fetch().await.status;
            assert!((400..500).contains(&status), "{form}: {status}");
        }
    }
    for query in ["id=%00", "id=", &format!("id={}", "a".repeat(300)), "id=a%0ab"] {
        assert_eq!(owner.get(&format!("/console/consumer?{query}")).await.status, 400, "{query}");
        let usage = owner.get(&format!("/console/usage?{query}")).await.status;
        assert!([200, 400].contains(&usage), "{query}: {usage}");
    }
    for query in ["record=x", "record=", "record=00000000-0000-4000-8000-000000000000", ""] {
        assert_eq!(
            owner.get(&format!("/console/record/edit?{query}")).await.status,
            404,
            "{query}"
        );
    }
    for query in ["before=x&consumer=%00", "before=-1", "search=%00%25_!", "after=%ff"] {
        assert_eq!(owner.get(&format!("/console/changes?{query}")).await.status, 200, "{query}");
        assert_eq!(owner.get(&format!("/console/consumers?{query}")).await.status, 200, "{query}");
    }
    let page = owner.get("/console/record/new?consumer=abc").await.body;
    assert_eq!(field_of(&page, "consumer_id"), "abc");
}

#[tokio::test]
async fn a_form_that_does_not_arrive_is_not_waited_for() {
    let house = House::new().await;
    let own = house.site.url("").trim_end_matches('/').to_owned();
    let place = own.strip_prefix("http://").unwrap();
    let mut slow = TcpStream::connect(place).await.unwrap();
    let half = format!(
        "POST /console/login HTTP/1.1\r\nhost: {place}\r\norigin: {own}\r\ncontent-length: 100\r\n\
         connection: close\r\n\r\ntoken="
    );
    slow.write_all(half.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(GIVE_UP, slow.read_to_string(&mut answer)).await;
    read.expect("it is answered").unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("within 10 seconds"),
        "{answer}"
    );
}

#[tokio::test]
async fn the_console_guards_its_own_paths_and_no_others() {
    let house = House::new().await;
    for path in ["/", "/elsewhere", "/consoles", "/console.css", "/api/elsewhere"] {
        assert_eq!(house.site.get(path).fetch().await.status, 404, "{path}");
        assert_eq!(house.site.post(path).fetch().await.status, 404, "{path}");
    }
    assert_eq!(house.call("abc").await, 200);
    for path in ["/console/elsewhere", "/console/", "/console/a/b/c"] {
        assert_eq!(house.site.get(path).fetch().await.status, 303, "{path}");
    }
}
