//! The pages of the console, without a browser and without scripts.

use std::sync::Arc;
use std::time::Duration;

use rl_admin::console::ConsoleBuilder;
use rl_core::Subject;
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_records::{
    CallLimits, Expected, HistoryQuery, RecordContent, RecordQuery, Refusal, ResourceLimitContent,
    TierContent,
};

use super::{HOUR, House, OWNER, VIEWER, field_of};

/// Returns the fields that the form of a record sends.
fn typed<'a>(changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        ("consumer_id", "abc"),
        ("from_date", "2026-02-01T12:00:00"),
        ("to_date", "2099-02-01T12:59:59"),
        ("api_name", ""),
        ("api_version", ""),
        ("bank_id", ""),
    ];
    for (name, value) in changes {
        fields.retain(|(known, _)| known != name);
        fields.push((name, value));
    }
    fields
}

#[tokio::test]
async fn pages_that_only_show_data_charge_nothing() {
    let house = House::new().await;
    house.record("abc", 10, 100).await;
    assert_eq!(house.call("abc").await, 200);
    let owner = house.log_in(OWNER).await;
    for _ in 0..20 {
        for path in
            ["/consumer?id=abc", "/usage?id=abc", "", "/now", "/consumers", "/store", "/changes"]
        {
            assert_eq!(owner.get(&format!("/console{path}")).await.status, 200, "{path}");
        }
    }
    let usage = house.limiter.usage(&Subject::consumer("abc")).await.unwrap();
    assert_eq!(usage.limits().map(|limit| limit.used()).collect::<Vec<_>>(), [1, 1]);
    let bars = owner.get("/console/usage?id=abc").await.body;
    assert!(bars.contains("1 of 10") && bars.contains("no limit"), "{bars}");
}

#[tokio::test]
async fn a_record_is_added_changed_and_deleted_by_forms_alone() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let page = owner.get("/console/record/new?consumer=abc").await;
    assert_eq!(field_of(&page.body, "consumer_id"), "abc");
    let fields = typed(&[("limits", "2/minute"), ("bank_id", "gh.29.uk")]);
    let done = owner.post("/console/record/new", &fields).await;
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(done.header("location"), Some("/console/consumer?id=abc&done=created"));
    let statuses = [house.call("abc").await, house.call("abc").await, house.call("abc").await];
    assert_eq!(statuses, [200, 200, 429]);

    let records = house.records.list(&RecordQuery::default()).await.unwrap().records;
    let (id, content) = (records[0].id.to_string(), &records[0].content);
    assert_eq!(content.limits.call_limits().unwrap().numbers(), [-1, 2, -1, -1, -1, -1]);
    assert_eq!(content.to_date.as_micros() % 1_000_000, 999_999, "to the end of its last second");
    assert_eq!((content.bank_id.as_deref(), &*records[0].created_by), (Some("gh.29.uk"), "olivia"));

    let page = owner.get(&format!("/console/record/edit?record={id}")).await.body;
    let (from, revision) = (field_of(&page, "from_date"), field_of(&page, "revision"));
    assert_eq!((&*from, &*field_of(&page, "limits")), ("2026-02-01T12:00:00", "2/minute"));
    let ids = [("record", &*id), ("revision", &*revision), ("limits", "3/minute")];
    let done = owner.post("/console/record/edit", &typed(&ids)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(house.call("abc").await, 200, "it holds for the next call");
    let page = owner.get("/console/consumer?id=abc&done=updated").await.body;
    assert!(
        page.contains("The change was saved") && page.contains("<del>2/minute</del>"),
        "{page}"
    );

    let page = owner.get(&format!("/console/record/delete?record={id}")).await.body;
    let revision = field_of(&page, "revision");
    let fields = [("record", &*id), ("revision", &*revision)];
    assert_eq!(owner.post("/console/record/delete", &fields).await.status, 303);
    assert_eq!(owner.post("/console/record/delete", &fields).await.status, 404, "it is gone");
    assert!(house.records.list(&RecordQuery::default()).await.unwrap().records.is_empty());
    let history = house.records.history(&HistoryQuery::default()).await.unwrap();
    assert!(history.len() == 3 && history.iter().all(|change| change.by == "olivia"));
}

#[tokio::test]
async fn a_preview_shows_the_effect_of_a_form_and_saves_nothing() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let record = house.record("abc", 5, 100).await;
    let second = typed(&[("limits", "100/minute\n3/second:gcra"), ("preview", "on")]);
    let preview = owner.post("/console/record/new", &second).await;
    let from = "change from <strong>5/minute, 100/hour</strong> to ";
    assert_eq!(preview.status, 200);
    let to = "<strong>3/second:gcra, 105/minute, 100/hour</strong>";
    assert!(preview.body.contains(&format!("{from}{to}")), "{}", preview.body);
    assert_eq!(field_of(&preview.body, "limits"), "100/minute\n3/second:gcra");

    let id = record.id.to_string();
    let edit = [("record", &*id), ("revision", "1"), ("limits", "71/minute"), ("preview", "on")];
    let preview = owner.post("/console/record/edit", &typed(&edit)).await;
    assert!(
        preview.body.contains(&format!("{from}<strong>71/minute</strong>")),
        "{}",
        preview.body
    );
    let blocking = typed(&[("limits", "1/day"), ("blocks", "on"), ("preview", "on")]);
    let preview = owner.post("/console/record/new", &blocking).await;
    assert!(preview.body.contains(&format!("{from}<strong>no call allowed</strong>")));
    assert_eq!(house.records.list(&RecordQuery::default()).await.unwrap().records, [record]);

    let gold = [("name", "gold"), ("limits", "2/minute")];
    assert_eq!(owner.post("/console/tier/new", &gold).await.status, 303);
    let edit = [("name", "gold"), ("revision", "2"), ("limits", "3/minute"), ("preview", "on")];
    let preview = owner.post("/console/tier/edit", &edit).await;
    let words = ["from <strong>2/minute</strong> to <strong>3/minute</strong>", "0 members"];
    assert!(words.iter().all(|words| preview.body.contains(words)), "{}", preview.body);
    let gold = house.records.tiers().read("gold").await.unwrap().unwrap();
    assert_eq!(gold.content.limits.to_string(), "2/minute");
}

#[tokio::test]
async fn a_rejected_form_shows_the_error_at_its_field_and_keeps_the_input() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let long = "a".repeat(251);
    #[rustfmt::skip]
    let table = [
        ("limits",                "many",    "many, column 1: expected "),
        ("limits",                "-2/second", "-2/second, column 1: expected "),
        ("limits",                "1/hour\n5/fortnight", "5/fortnight, column 3: expected "),
        ("limits",                "9007199254740992/month", "9007199254740992/month, column 1: expected "),
        ("limits",                "1/hour, 2/hour", "would share one counter"),
        ("rule",                  "a b",     "1 to 64 characters of A-Z a-z 0-9 _ . -"),
        ("from_date",             "soon",    "a date and a time, such as"),
        ("to_date",               "",        "a date and a time, such as"),
        ("from_date",             "2099-03-01T12:00:00", "a time that is not after to_date"),
        ("consumer_id",           "",        "1 to 250 bytes of text"),
        ("consumer_id",           &long,     "1 to 250 bytes of text"),
        ("api_name",              "a\u{1}b", "1 to 250 bytes of text"),
    ];
    for (field, text, expected) in table {
        let answer = owner.post("/console/record/new", &typed(&[(field, text)])).await;
        assert_eq!(answer.status, 422, "{field} {text}");
        let body = &answer.body;
        assert!(body.contains(&format!("<a href=\"#{field}\">")), "{field} {text}: {body}");
        assert!(body.contains(&format!("id=\"{field}-problem\"")), "{field} {text}");
        assert!(body.contains(expected), "{field} {text}");
        assert_eq!(field_of(body, field), text, "the typed text is still there");
    }
    assert!(house.records.list(&RecordQuery::default()).await.unwrap().records.is_empty());

    // The next two records overlap, and the sum of their limits is too large. This is detected only
    // when the second one is stored.
    let largest = [("limits", "9007199254740991/day")];
    assert_eq!(owner.post("/console/record/new", &typed(&largest)).await.status, 303);
    let answer = owner.post("/console/record/new", &typed(&largest)).await;
    assert_eq!(answer.status, 422);
    assert!(answer.body.contains("together with the records that overlap"), "{}", answer.body);
}

#[tokio::test]
async fn the_limits_at_a_time_are_shown_with_their_reason() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let noon = Timestamp::from_secs(1_769_947_200);
    let limits = |numbers| CallLimits::from_numbers(numbers).unwrap();
    let span = |from: u64, to: u64, numbers| {
        let (from, to) = (noon.plus_micros(from * HOUR), noon.plus_micros(to * HOUR));
        RecordContent::new("abc", from, to, limits(numbers))
    };
    let unlimited = [-1; 6];
    house.records.create(span(0, 2, [10, 100, -1, -1, -1, -1]), "otto").await.unwrap();
    house.records.create(span(1, 3, [5, -1, 1_000, -1, -1, -1]), "otto").await.unwrap();
    house
        .records
        .create(RecordContent { blocks: true, ..span(5, 6, unlimited) }, "otto")
        .await
        .unwrap();
    let gold = TierContent { name: "gold".into(), limits: "7/second".parse().unwrap() };
    house.records.tiers().create(gold, "otto").await.unwrap();
    house
        .records
        .tiers()
        .set_member(&Subject::consumer("abc"), Some("gold"), 0, "otto")
        .await
        .unwrap();
    #[rustfmt::skip]
    let table = [
        ("2026-02-01T12:30:00", "Own limits applied then",   "10/second, 100/minute", "One entry of own limits applies then."),
        ("2026-02-01T13:30",    "2 own limits apply then",   "15/second, 100/minute, 1000/hour", "2 entries of own limits apply then."),
        ("2026-02-01T16:00:00", "tier",                        "7/second", "The limits are those of the tier <strong>gold</strong>"),
        ("2026-02-01T17:30:00", "blocked",                     "no call is allowed", "<strong>Blocked.</strong>"),
    ];
    for (at, case, sum, reason) in table {
        let page = owner.get(&format!("/console/consumer?id=abc&at={at}")).await.body;
        assert!(page.contains(reason), "{case}: {page}");
        let total = page.split("<tfoot>").nth(1).unwrap().split("</td>").next().unwrap();
        assert!(total.ends_with(&format!(">{sum}")), "{case}: {total}");
    }
    let page = owner.get("/console/consumer?id=abc&at=2026-02-01T13:30").await.body;
    let rows = page.split("<tbody>").nth(2).unwrap().split("</tbody>").next().unwrap();
    assert!(
        rows.contains(">10/second, 100/minute<") && rows.contains(">5/second, 1000/hour<"),
        "{rows}"
    );
    let page = owner.get("/console/consumer?id=abc&at=yesterday").await.body;
    assert!(page.contains("This is no time"), "{page}");
    let page = owner.get("/console/consumer?id=unknown").await.body;
    assert!(page.contains("The limits are the configured defaults"), "{page}");
}

#[tokio::test]
async fn counters_are_reset_only_with_the_role_for_it() {
    let house = House::new().await;
    house.record("abc", 1, 100).await;
    let owner = house.log_in(OWNER).await;
    assert_eq!([house.call("abc").await, house.call("abc").await], [200, 429]);
    let done = owner.post("/console/reset", &[("id", "abc")]).await;
    assert_eq!(done.header("location"), Some("/console/consumer?id=abc&done=reset"));
    assert_eq!([house.call("abc").await, house.call("abc").await], [200, 429]);
}

#[tokio::test]
async fn tiers_are_managed_and_members_moved() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let gold = [("name", "gold"), ("limits", "2/minute")];
    assert_eq!(owner.post("/console/tier/new", &gold).await.status, 303);
    let again = owner.post("/console/tier/new", &gold).await;
    assert!(again.status == 422 && again.body.contains("exists already"), "{}", again.body);
    let wrong = owner.post("/console/tier/new", &[("name", "x"), ("limits", "x")]).await;
    assert!(wrong.status == 422 && wrong.body.contains("id=\"limits-problem\""));

    let member = [("id", "abc"), ("tier", "gold"), ("revision", "0")];
    assert_eq!(owner.post("/console/consumer/tier", &member).await.status, 303);
    assert_eq!(
        [house.call("abc").await, house.call("abc").await, house.call("abc").await],
        [200, 200, 429]
    );
    assert_eq!(owner.post("/console/consumer/tier", &member).await.status, 409, "it was moved");

    let page = owner.get("/console/tier/edit?name=gold").await.body;
    assert!(page.contains("A change applies to 1 member and 0 subscriptions."), "{page}");
    let revision = field_of(&page, "revision");
    let edit = [("name", "gold"), ("revision", &*revision), ("limits", "3/minute")];
    assert_eq!(owner.post("/console/tier/edit", &edit).await.status, 303);
    assert_eq!(house.call("abc").await, 200);
    let late = owner.post("/console/tier/edit", &edit).await;
    assert!(late.status == 409 && late.body.contains("<strong>olivia</strong> changed this tier"));
    let newest = field_of(&late.body, "revision");
    let delete = [("name", "gold"), ("revision", &*newest)];
    let used = owner.post("/console/tier/delete", &delete).await;
    assert!(used.status == 409 && used.body.contains("The tier has members"), "{}", used.body);
    let page = owner.get("/console/consumer?id=abc").await.body;
    let section = page.split("id=\"tier-heading\"").nth(1).unwrap();
    let out = [("id", "abc"), ("tier", ""), ("revision", &*field_of(section, "revision"))];
    assert_eq!(owner.post("/console/consumer/tier", &out).await.status, 303);
    assert_eq!(owner.post("/console/tier/delete", &delete).await.status, 303);
    assert_eq!(house.records.tiers().list(None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn lists_have_pages_and_a_search() {
    let house = House::new().await;
    for number in 0..60 {
        house.record(&format!("consumer-{number:02}"), 1, 1).await;
    }
    let viewer = house.log_in(VIEWER).await;
    let link = |page: &str, rel: &str| {
        let link = page.split(&format!("rel=\"{rel}\" href=\"")).nth(1)?.split('"').next()?;
        Some(link.replace("&amp;", "&"))
    };
    let first = viewer.get("/console/consumers").await.body;
    assert!(first.contains(">consumer-49<") && !first.contains(">consumer-50<"));
    assert!(first.contains("60 consumers") && link(&first, "prev").is_none(), "{first}");
    let second = viewer.get(&link(&first, "next").unwrap()).await.body;
    assert!(second.contains(">consumer-50<") && second.contains(">consumer-59<"), "{second}");
    assert!(second.contains("60 consumers") && link(&second, "next").is_none(), "{second}");
    let back = viewer.get(&link(&second, "prev").unwrap()).await.body;
    assert!(back.contains(">consumer-00<") && back.contains(">consumer-49<"), "{back}");
    assert!(link(&back, "prev").is_none() && link(&back, "next").is_some(), "{back}");
    let page = viewer.get("/console/consumers?search=consumer-07").await.body;
    assert!(page.contains(">consumer-07<") && !page.contains(">consumer-08<"));
    assert!(page.contains("1 consumer<"), "{page}");
    let page = viewer.get("/console/changes").await.body;
    assert!(page.contains("Older changes") && page.contains(">consumer-59<"));
    let page = viewer.get("/console/changes?consumer=consumer-03").await.body;
    assert!(page.contains(">consumer-03<") && !page.contains(">consumer-04<"));
}

#[tokio::test]
async fn consumers_are_listed_with_their_use_and_filtered_by_state_and_tier() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    for (consumer, calls) in [("idle", 0), ("busy", 9), ("over", 10)] {
        house.record(consumer, -1, 10).await;
        for _ in 0..calls {
            assert_eq!(house.call(consumer).await, 200);
        }
    }
    house.record("barred", -1, 10).await;
    let later = SystemClock.now().plus_micros(HOUR);
    let barred = Subject::consumer("barred");
    house.records.block(&barred, None, later, Expected::Any, "otto").await.unwrap();
    let gold = [("name", "gold"), ("limits", "4/hour")];
    assert_eq!(owner.post("/console/tier/new", &gold).await.status, 303);
    let member = [("id", "member"), ("tier", "gold"), ("revision", "0")];
    assert_eq!(owner.post("/console/consumer/tier", &member).await.status, 303);
    let rows = async |query: &str| {
        let page = owner.get(&format!("/console/consumers?{query}")).await.body;
        let rows = page.split("<tr data-state").skip(1).map(|row| {
            let cells = row.split('<').filter_map(|part| Some(part.split_once('>')?.1));
            cells.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("|")
        });
        rows.collect::<Vec<_>>()
    };
    assert_eq!(
        rows("").await,
        [
            "barred|–|–|blocked",
            "busy|–|10/hour|90 % of hour|90 %",
            "idle|–|10/hour|0 % of hour|OK",
            "member|gold|4/hour|0 % of hour|OK",
            "over|–|10/hour|100 % of hour|used up",
        ]
    );
    let ids = async |query: &str| {
        let rows = rows(query).await.into_iter();
        rows.map(|row| row.split('|').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (query, expected) in [
        ("sort=use", &["barred", "over", "busy", "idle", "member"][..]),
        ("state=blocked", &["barred"]),
        ("state=full", &["over"]),
        ("state=near", &["busy"]),
        ("state=ok", &["idle", "member"]),
        ("tier=gold", &["member"]),
        ("tier=gold&state=full", &[]),
        ("search=b&sort=use", &["barred", "busy"]),
    ] {
        assert_eq!(ids(query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn blocks_are_listed_with_their_reason_and_lifted() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    assert!(owner.get("/console/blocks").await.body.contains("Nothing is blocked."));
    for (id, end) in [("one", "never"), ("two", "day")] {
        let block = [("id", id), ("reason", "too many calls"), ("end", end)];
        assert_eq!(owner.post("/console/block", &block).await.status, 303);
    }
    let page = owner.get("/console/blocks").await.body;
    let rows: Vec<_> = page.split("<th scope=\"row\"").skip(1).collect();
    assert!(rows[0].contains(">two<") && rows[1].contains(">one<"), "{page}");
    for row in &rows {
        assert!(row.contains("too many calls") && row.contains(">Unblock<"), "{row}");
    }
    assert!(rows[1].contains("for ever"), "{}", rows[1]);
    assert_eq!(owner.post("/console/unblock", &[("id", "one")]).await.status, 303);
    let page = house.log_in(VIEWER).await.get("/console/blocks").await.body;
    assert!(page.contains(">two<") && !page.contains(">one<"), "{page}");
    assert!(!page.contains(">Unblock<"), "{page}");
}

#[tokio::test]
async fn resources_are_listed_with_their_applications() {
    let house = House::new().await;
    let viewer = house.log_in(VIEWER).await;
    assert!(viewer.get("/console/resources").await.body.contains("There is no resource."));
    for (name, apps, limits) in
        [("POST /pay", &["shop", "app"][..], "5/second, 900/day"), ("GET /x", &["app"], "0/second")]
    {
        let apps = apps.iter().map(|app| (*app).to_owned()).collect();
        let limits = limits.parse().unwrap();
        let content = ResourceLimitContent { name: name.into(), apps, limits };
        house.records.resources().create(content, "otto").await.unwrap();
    }
    let page = viewer.get("/console/resources").await.body;
    for text in ["POST /pay", "5/second, 900/day", "blocked", "by otto"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let changes = viewer.get("/console/changes").await.body;
    assert!(changes.contains("Resource created") && changes.contains("shop, app"), "{changes}");
    let page = viewer.get("/console/resources?app=shop").await.body;
    assert!(page.contains("POST /pay") && !page.contains("GET /x"), "{page}");
    assert!(!page.contains("Add a resource") && !page.contains("/resource/edit"), "{page}");
    assert_eq!(viewer.get("/console/resource/new").await.status, 403);
}

#[tokio::test]
async fn limits_of_a_resource_are_previewed_created_changed_and_deleted_in_the_console() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    assert!(owner.get("/console/resources").await.body.contains("Add a resource"));
    assert!(owner.get("/console/resource/new").await.body.contains("Applications"));
    let typed = |limits: &'static str| {
        [("name", "GET /<x>"), ("apps", "shop\r\n app \n\nshop"), ("limits", limits)]
    };
    let wrong = owner.post("/console/resource/new", &typed("5/fortnight")).await;
    assert!(wrong.status == 422 && wrong.body.contains("5/fortnight, column 3"), "{}", wrong.body);
    let fields = [&typed("5/second")[..], &[("preview", "on")]].concat();
    let preview = owner.post("/console/resource/new", &fields).await;
    assert_eq!(preview.status, 200);
    for words in [
        "The limits are <strong>5/second</strong>. 2 applications share them.",
        "nothing was saved",
    ] {
        assert!(preview.body.contains(words), "{words}: {}", preview.body);
    }
    assert_eq!(house.records.resources().list(None, 10).await.unwrap(), []);

    let created = owner.post("/console/resource/new", &typed("100/minute\n5/second:gcra")).await;
    assert_eq!(
        (created.status, created.header("location")),
        (303, Some("/console/resources?done=resource-created"))
    );
    let resource = house.records.resources().read("GET /<x>").await.unwrap().unwrap();
    assert_eq!(resource.content.apps, ["app", "shop"]);
    assert_eq!(resource.content.limits.to_string(), "5/second:gcra, 100/minute");
    let again = owner.post("/console/resource/new", &typed("1/day")).await;
    assert!(again.status == 422 && again.body.contains("exists already"), "{}", again.body);

    let path = "/console/resource/edit?name=GET+%2F%3Cx%3E";
    let form = owner.get(path).await.body;
    assert!(form.contains("5/second:gcra\n100/minute") && form.contains("app\nshop"), "{form}");
    assert!(form.contains("GET /&lt;x&gt;") && !form.contains("<x>"), "{form}");
    let seen = field_of(&form, "revision");
    let change = |limits: &'static str, seen: &str| {
        let mut fields: Vec<_> =
            typed(limits).iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        fields.push(("revision", seen.to_owned()));
        fields
    };
    let post = async |path: &str, fields: Vec<(&str, String)>| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
        owner.post(path, &fields).await
    };
    let mut fields = change("0/second", &seen);
    fields.push(("preview", "on".to_owned()));
    let preview = post("/console/resource/edit", fields).await.body;
    assert!(preview.contains("to <strong>0/second</strong>"), "{preview}");
    assert_eq!(post("/console/resource/edit", change("7/second", &seen)).await.status, 303);
    let late = post("/console/resource/edit", change("8/second", &seen)).await;
    assert!(late.status == 409 && late.body.contains("7/second"), "{}", late.body);
    let seen = field_of(&late.body, "revision");
    assert_eq!(post("/console/resource/edit", change("8/second", &seen)).await.status, 303);
    let list = owner.get("/console/resources").await.body;
    assert!(
        list.contains("8/second") && list.contains(path.trim_start_matches("/console")),
        "{list}"
    );
    let seen = field_of(&owner.get(path).await.body, "revision");
    assert_eq!(post("/console/resource/delete", change("", &seen)).await.status, 303);
    assert_eq!(owner.get(path).await.status, 404);
    assert_eq!(house.records.resources().list(None, 10).await.unwrap(), []);
}

/// Fault: the page showed only changes of records.
#[tokio::test]
async fn the_list_of_changes_includes_tiers_members_counters_and_refusals() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let hostile = "<b>gold</b>";
    let limits = "2/minute".parse().unwrap();
    let tier = TierContent { name: hostile.into(), limits };
    house.records.tiers().create(tier, "otto").await.unwrap();
    let member = [("id", "abc"), ("tier", hostile), ("revision", "0")];
    assert_eq!(owner.post("/console/consumer/tier", &member).await.status, 303);
    assert_eq!(owner.post("/console/reset", &[("id", "abc")]).await.status, 303);
    let minute = Some("minute");
    house
        .records
        .audit_log()
        .note_reset(&Subject::ip([192, 0, 2, 7]), None, minute, "otto")
        .await
        .unwrap();
    let refusal = Refusal {
        role: "CanSetCallLimits".into(),
        method: "PUT".into(),
        path: "/management/consumers/abc/block?<script>".into(),
        consumer: Some("abc".into()),
        count: 1_234,
    };
    house.records.audit_log().note_refusal(refusal, "<i>mallory</i>").await.unwrap();
    house.record("abc", 10, 100).await;

    let viewer = house.log_in(VIEWER).await;
    let all = viewer.get("/console/changes").await;
    assert_eq!(all.status, 200);
    let rows: Vec<&str> = all.body.split("<tr>").skip(2).collect();
    let entries = [
        &["Limits created", ">abc</a>", "olivia"][..],
        &[
            "Refused",
            "CanSetCallLimits",
            "PUT",
            "/block?&lt;script&gt;",
            "One of 1\u{202f}234",
            ">abc</a>",
        ],
        &["Counter reset", "minute", "ip ", "192.0.2.7"],
        &["All counters reset", ">abc</a>", "olivia"],
        &["Put into the tier", "&lt;b&gt;gold&lt;/b&gt;", ">abc</a>"],
        &["Tier created", "&lt;b&gt;gold&lt;/b&gt;", "Limits: ", "2/minute", "otto"],
    ];
    assert_eq!(rows.len(), entries.len(), "{}", all.body);
    for (row, words) in rows.iter().zip(entries) {
        for word in words {
            assert!(row.contains(word), "{word}: {row}");
        }
        assert!(!row.contains("<b>gold") && !row.contains("<i>") && !row.contains("<script"));
    }
    for page in ["/console/changes?consumer=abc", "/console/consumer?id=abc"] {
        let own = viewer.get(page).await.body;
        let changes = own.split("changes\"").last().unwrap();
        for word in ["Limits created", "Refused", "All counters reset", "Put into the tier"] {
            assert!(changes.contains(word), "{page}: {word}");
        }
        assert!(!changes.contains("192.0.2.7") && !changes.contains("Tier created"), "{page}");
    }
}

#[tokio::test]
async fn pages_work_and_show_that_the_store_does_not_answer() {
    let mut redis = rl_tests::RedisServer::start();
    let house = House::connected_to(&redis).await;
    house.record("abc", 10, 100).await;
    let viewer = house.log_in(VIEWER).await;
    let page = viewer.get("/console/store").await;
    assert!(!page.body.contains("unavailable"), "{}", page.body);
    redis.stop();
    let page = viewer.get("/console/store").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("unavailable"), "{}", page.body);
    let page = viewer.get("/console/consumer?id=abc").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("The counters are unavailable"), "{}", page.body);
    assert!(
        page.body.contains("One entry of own limits applies now."),
        "the limits are still shown"
    );
}

#[tokio::test]
async fn a_page_reports_that_the_database_is_down() {
    let house = House::new().await;
    let viewer = house.log_in(VIEWER).await;
    house.records.close().await;
    let page = viewer.get("/console/consumers").await;
    assert_eq!(page.status, 503);
    assert!(page.body.contains("Not available at present"), "{}", page.body);
    let page = viewer.get("/console/store").await;
    assert!(page.status == 200 && page.body.contains("unavailable"), "{}", page.body);
}

#[tokio::test]
async fn an_idle_session_ends_although_its_page_refreshes_itself() {
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let house = House::with(None, clock.clone(), ConsoleBuilder::without_tls).await;
    house.record("abc", 10, 100).await;
    let viewer = house.log_in(VIEWER).await;
    let after = |minutes: u64| clock.advance(Duration::from_secs(60 * minutes));
    after(29);
    assert_eq!(viewer.get("/console").await.status, 200, "a click");
    after(29);
    // The automatic refresh of a page does not count as a click.
    for part in ["/console/usage?id=abc", "/console/now"] {
        assert_eq!(viewer.get(part).await.status, 200);
    }
    after(1);
    assert_eq!(viewer.get("/console/usage?id=abc").await.status, 401);
    let page = viewer.get("/console/consumer?id=abc").await;
    assert_eq!(
        page.header("location"),
        Some("/console/login?next=%2Fconsole%2Fconsumer%3Fid%3Dabc")
    );

    // A session ends after twelve hours, even if it is in use.
    let viewer = house.log_in(VIEWER).await;
    for _ in 0..28 {
        after(25);
        assert_eq!(viewer.get("/console").await.status, 200);
    }
    after(20);
    assert_eq!(viewer.get("/console").await.status, 303);
}
