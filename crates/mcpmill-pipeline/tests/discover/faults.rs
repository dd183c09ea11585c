//! Crawls of sources that fail, repeat themselves or say nothing of a change.

use mcpmill_core::edge::FetchErrorKind;

use super::*;

#[tokio::test]
async fn a_crawl_that_fails_midway_keeps_what_was_known() {
    for since in ["", "updated_since = \"since\"\n"] {
        let pages = Arc::new(Pages::default());
        let kept = Arc::new(Memory::default());
        let paging = format!("{since}paging = {{ style = \"cursor\", param = \"cursor\", next = [\"/next\"] }}");
        let marketplaces = [parse("a", &api("a", "registry", &paging)).unwrap()];
        let one = |name: &str, number: &str| version(name, number, "active", true);
        let first = |query: &str, number: &str| {
            let body = json!({"s": [one("w", number), one("x", number)], "next": "c"});
            pages.serve(&format!("https://a.example/s{query}"), &body.to_string());
        };
        first("", "1.0.0");
        pages.serve("https://a.example/s?cursor=c", &json!({"s": [one("y", "1.0.0"), one("z", "1.0.0")]}).to_string());
        run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-01T00:00:00Z")).await;
        let query = if since.is_empty() { "" } else { "?since=2026-11-01T00%3A00%3A00Z" };
        let second = format!("https://a.example/s{query}{}cursor=c", if query.is_empty() { "?" } else { "&" });
        first(query, "2.0.0");
        pages.fail(&second, FetchErrorKind::Status(500));
        // Twice, as what a failed crawl leaves is what the next one starts from.
        for day in ["02", "03"] {
            let (found, ends) = run(&marketplaces, &cx(&pages, Some(&kept), &format!("2026-11-{day}T00:00:00Z"))).await;
            let ended = found.sources[0].ended.as_ref().map(|ended| ended.0.as_str());
            assert_eq!((ended, found.summary.kept, found.summary.failed), (Some("bad-status"), 4, 1), "{query} {day}");
            let versions: Vec<_> = rows(ends).into_iter().map(|s| (s.name, s.version.unwrap())).collect();
            assert_eq!(versions.iter().filter(|(_, version)| version == "2.0.0").count(), 2, "{versions:?}");
            assert_eq!(pages.asked().last(), Some(&second));
        }
        pages.serve(&second, "{\"s\": []}");
        let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-04T00:00:00Z")).await;
        assert_eq!(counts(&found), if since.is_empty() { (0, 0, 2, 2) } else { (0, 0, 4, 0) });
    }
}

#[tokio::test]
async fn a_source_that_is_refused_later_is_skipped_and_keeps_what_was_known() {
    let pages = Arc::new(Pages::default());
    let kept = Arc::new(Memory::default());
    let marketplaces = [parse("a", &api("a", "registry", "")).unwrap()];
    serve(&pages, "a", &json!([version("x", "1.0.0", "active", true)]));
    run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-01T00:00:00Z")).await;
    pages.fail("https://a.example/s", FetchErrorKind::Refused("403".into()));
    let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-02T00:00:00Z")).await;
    assert_eq!((found.summary.kept, found.summary.skipped, found.summary.failed), (1, 1, 0));
}

#[tokio::test]
async fn a_source_that_suddenly_lists_nothing_has_failed() {
    let page = "<a class=\"c\" href=\"/x\"><h3>x</h3></a>";
    let html = "kind = \"html\"\ntitle = \"t\"\nstart = [\"https://a.example/s\"]\nentries = [\".c\"]\nlaunch = \"repository\"\n\
        [fields]\nname = [\"h3\", \"/name\"]\nrepository = [\"@href\"]\n";
    let list = json!({"s": [version("x", "1.0.0", "active", true)]}).to_string();
    for (declared, full, empty) in
        [(html.to_owned(), page, "<div>Redesigned</div>"), (api("a", "registry", ""), list.as_str(), "{\"s\": []}")]
    {
        let pages = Arc::new(Pages::default());
        let kept = Arc::new(Memory::default());
        let marketplaces = [parse("a", &declared).unwrap()];
        pages.serve("https://a.example/s", full);
        run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-01T00:00:00Z")).await;
        pages.serve("https://a.example/s", empty);
        for day in ["02", "03"] {
            let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), &format!("2026-11-{day}T00:00:00Z"))).await;
            let ended = found.sources[0].ended.as_ref().map(|ended| ended.0.as_str());
            assert_eq!((ended, found.summary.kept, found.summary.failed), (Some("empty-listing"), 1, 1), "{empty} {day}");
        }
    }
    // A source that says that it left something out is one whose end was not seen.
    let pages = Arc::new(Pages::default());
    let kept = Arc::new(Memory::default());
    let marketplaces = [parse("a", &api("a", "registry", "paging = { incomplete = [\"/partly\"] }")).unwrap()];
    let [x, y] = ["x", "y"].map(|name| version(name, "1.0.0", "active", true));
    for (partly, entries, expected) in
        [(false, json!([x, y]), (2, 0, 0, 0)), (true, json!([y]), (0, 0, 2, 0)), (false, json!([y]), (0, 0, 1, 1))]
    {
        pages.serve("https://a.example/s", &json!({"partly": partly, "s": entries}).to_string());
        let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-01T00:00:00Z")).await;
        assert_eq!((counts(&found), found.sources[0].counts.cut), (expected, partly));
    }
}

#[tokio::test]
async fn what_changed_on_a_page_alone_is_seen_after_some_days() {
    let pages = Arc::new(Pages::default());
    let marketplaces = [parse("a", &api("a", "url", "detail = { url = \"https://a.example/s/{name}\", days = 5 }")).unwrap()];
    let detail = |name: &str, text: &str| {
        let body = json!({"url": format!("https://{name}.example/mcp"), "text": text}).to_string();
        pages.serve(&format!("https://a.example/s/{name}"), &body);
    };
    serve(&pages, "a", &json!([{"name": "x"}, {"name": "y"}]));
    ["x", "y"].into_iter().for_each(|name| detail(name, "old"));
    let kept = Arc::new(Memory::default());
    let crawl = async |day: &str| {
        let before = pages.asked().len();
        let (found, ends) = run(&marketplaces, &cx(&pages, Some(&kept), &format!("2026-11-{day}T00:00:00Z"))).await;
        let mut texts: Vec<_> = rows(ends).into_iter().map(|s| (s.name, s.description.unwrap())).collect();
        texts.sort();
        (counts(&found), pages.asked().len() - before, texts.into_iter().map(|(_, text)| text).collect::<Vec<_>>())
    };
    let texts = |x: &str, y: &str| vec![x.to_owned(), y.to_owned()];
    assert_eq!(crawl("01").await, ((2, 0, 0, 0), 3, texts("old", "old")));
    detail("x", "new");
    assert_eq!(crawl("05").await, ((0, 0, 2, 0), 1, texts("old", "old")));
    assert_eq!(crawl("06").await, ((0, 1, 1, 0), 3, texts("new", "old")));
    assert_eq!(crawl("10").await, ((0, 0, 2, 0), 1, texts("new", "old")));
    // A page that cannot be had leaves what is known, and is asked for the next time.
    pages.fail("https://a.example/s/y", FetchErrorKind::TimedOut);
    assert_eq!(crawl("11").await, ((0, 0, 2, 0), 3, texts("new", "old")));
    detail("y", "newer");
    assert_eq!(crawl("12").await, ((0, 1, 1, 0), 2, texts("new", "newer")));
}

#[tokio::test]
async fn one_refused_page_is_its_own_entrys_and_three_are_the_sources() {
    let names = ["a", "b", "c", "d", "e", "f"];
    for (refused, kept, failed, reason) in [
        (&["b", "c", "e"][..], 3, 3, None),
        // Two rows of entries, and one of the source.
        (&["b", "c", "d"][..], 1, 3, Some("source-refused")),
    ] {
        let pages = Arc::new(Pages::default());
        let marketplaces = [parse("a", &api("a", "url", "detail = { url = \"https://a.example/s/{name}\" }")).unwrap()];
        serve(&pages, "a", &names.iter().map(|name| json!({ "name": name })).collect());
        for name in names {
            let url = format!("https://a.example/s/{name}");
            pages.serve(&url, &json!({"url": format!("https://{name}.example/mcp")}).to_string());
            if refused.contains(&name) {
                pages.fail(&url, FetchErrorKind::Refused("403".into()));
            }
        }
        // Most rows of the second source have failed, which would end the stage.
        let few = (0..9).map(|n| json!({"name": format!("n{n}"), "url": format!("https://n{n}.example/mcp")}));
        serve(&pages, "b", &few.collect());
        let marketplaces = marketplaces.into_iter().chain([parse("b", &api("b", "url", "")).unwrap()]).collect::<Vec<_>>();
        let (found, _) = run(&marketplaces, &cx(&pages, None, "")).await;
        let ended = found.sources[0].ended.as_ref().map(|ended| ended.0.as_str());
        assert_eq!((found.summary.kept, found.summary.failed, ended), (kept + 9, failed, reason));
    }
}

#[tokio::test]
async fn a_site_that_repeats_its_last_page_comes_to_an_end() {
    for style in ["page", "offset"] {
        let pages = Arc::new(Pages::default());
        let paging = format!("paging = {{ style = \"{style}\", param = \"p\" }}");
        let marketplaces = [parse("a", &api("a", "registry", &paging)).unwrap()];
        let page = |names: [&str; 2]| json!({"s": names.map(|name| version(name, "1.0.0", "active", true))}).to_string();
        pages.serve("https://a.example/s?p=0", &page(["x", "y"]));
        for number in 1..20 {
            pages.serve(&format!("https://a.example/s?p={number}"), &page(["y", "z"]));
        }
        let kept = Arc::new(Memory::default());
        let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-01T00:00:00Z")).await;
        assert_eq!((counts(&found), found.summary.input_rows, pages.asked().len()), ((3, 0, 0, 0), 3, 3), "{style}");
        let (found, _) = run(&marketplaces, &cx(&pages, Some(&kept), "2026-11-02T00:00:00Z")).await;
        assert_eq!(counts(&found), (0, 0, 3, 0), "{style}");
    }
}

#[tokio::test]
async fn sources_that_fail_do_not_cost_what_others_give() {
    let pages = Arc::new(Pages::default());
    let faulty: Vec<String> = (0..8).map(|n| format!("f{n}")).collect();
    faulty.iter().for_each(|site| pages.fail(&format!("https://{site}.example/s"), FetchErrorKind::Status(500)));
    let mut marketplaces: Vec<_> = faulty.iter().map(|id| parse(id, &api(id, "url", "")).unwrap()).collect();
    serve(&pages, "a", &json!([{"name": "x"}, {"name": "y"}]));
    marketplaces.push(parse("a", &api("a", "url", "")).unwrap());
    // Nothing can be used: the causes are named.
    let told = discover(&marketplaces, &cx(&pages, None, ""), None, &context("1-discover"), &Kept::default()).await.unwrap_err();
    let told = told.to_string();
    assert!(
        told.contains("nothing to work on") && told.contains("f7.example") && told.contains("a#x: it has no address"),
        "{told}"
    );
    serve(&pages, "a", &json!([{"name": "x", "url": "https://x.example/mcp"}]));
    let (found, _) = run(&marketplaces, &cx(&pages, None, "")).await;
    assert_eq!((found.summary.kept, found.summary.failed), (1, 8));
}

#[tokio::test]
async fn a_site_that_shows_fewer_a_page_is_read_to_its_end() {
    // So many of 230 a page, though 250 were asked for; with its total and without, and one that stops early.
    for (style, total, shown, whole) in [
        ("offset", true, 230, true),
        ("offset", false, 230, true),
        ("page", true, 230, true),
        ("page", false, 230, true),
        ("offset", true, 200, false),
        ("page", true, 100, false),
    ] {
        let pages = Arc::new(Pages::default());
        let told = if total { ", total = [\"/total\"]" } else { "" };
        let paging = format!("paging = {{ style = \"{style}\", param = \"p\"{told} }}");
        let marketplaces = [parse("a", &api("a", "registry", &paging)).unwrap()];
        let all: Vec<Value> = (0..shown).map(|n| version(&format!("s{n}"), "1.0.0", "active", true)).collect();
        for (number, some) in all.chunks(100).chain([&[][..]]).enumerate() {
            let at = if style == "page" { number } else { (number * 100).min(shown) };
            pages.serve(&format!("https://a.example/s?p={at}"), &json!({"s": some, "total": 230}).to_string());
        }
        let (found, _) = run(&marketplaces, &cx(&pages, None, "")).await;
        assert_eq!((found.summary.kept, found.sources[0].counts.cut), (shown as u64, !whole), "{style} {total} {shown}");
        assert!(found.sources[0].ended.is_none());
    }
    // A site without a page beyond its last one.
    let pages = Arc::new(Pages::default());
    pages.serve("https://a.example/s?p=0", &json!({"s": [version("x", "1.0.0", "active", true)]}).to_string());
    let marketplaces = [parse("a", &api("a", "registry", "paging = { style = \"page\", param = \"p\" }")).unwrap()];
    let (found, _) = run(&marketplaces, &cx(&pages, None, "")).await;
    assert_eq!((found.summary.kept, found.sources[0].ended.is_none(), found.sources[0].counts.cut), (1, true, false));
}
