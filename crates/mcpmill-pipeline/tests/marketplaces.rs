//! Every declaration of `marketplaces/` on its saved pages, and on pages with faults.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests read the fixtures and fail by panics")]

use std::{fs, path::PathBuf, sync::Arc};

use mcpmill_core::{
    edge::FetchErrorKind,
    record::{Launch, ServerRecord},
};
use mcpmill_pipeline::discover::{Counts, CrawlContext, CrawlError, Files, Listing, parse};
use mcpmill_testkit::Pages;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../marketplaces"))
}

fn text(path: &str) -> String {
    fs::read_to_string(folder().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The folder `tree` of a fixture.
struct Tree(PathBuf);

impl Files for Tree {
    fn list(&self, folder: &str) -> Result<Vec<String>, String> {
        let root = self.0.join(folder);
        let (mut found, mut waiting) = (Vec::new(), vec![root.clone()]);
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(&dir).map_err(|e| e.to_string())? {
                let path = entry.map_err(|e| e.to_string())?.path();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    found.push(path.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
        Ok(found)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        fs::read_to_string(self.0.join(path)).map_err(|e| e.to_string())
    }
}

fn context(pages: Pages) -> CrawlContext {
    let values = [("npm_registry", "https://packages.example/"), ("mcp_servers", "claude.json")];
    let trees = ["docker_catalogue", "mcp_index", "mcpm"].map(|name| (name, "."));
    CrawlContext {
        fetch: Some(Arc::new(pages)),
        now: "2026-11-30T00:00:00Z".into(),
        values: values.into_iter().chain(trees).map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        ..CrawlContext::default()
    }
}

async fn crawl(id: &str, cx: &CrawlContext) -> (Vec<Listing>, Result<Counts, CrawlError>) {
    crawl_text(id, &text(&format!("{id}.toml")), cx).await
}

async fn crawl_text(id: &str, declaration: &str, cx: &CrawlContext) -> (Vec<Listing>, Result<Counts, CrawlError>) {
    let mut found = Vec::new();
    let ended = parse(id, declaration).unwrap().crawl(cx, &mut |listing| found.push(listing)).await;
    (found, ended)
}

fn pages(id: &str) -> Pages {
    let at = |file: &str| format!("fixtures/{id}/{file}");
    Pages::fixture(&text(&at("pages.json")), |file| text(&at(file)))
}

/// The listings of a source on its own fixture, which it reads to the end.
async fn fixture(id: &str) -> Vec<Listing> {
    let tree = folder().join(format!("fixtures/{id}/tree"));
    let saved = if tree.exists() { Pages::default() } else { pages(id) };
    let cx = CrawlContext { files: Some(Arc::new(Tree(tree))), ..context(saved) };
    let (found, ended) = crawl(id, &cx).await;
    ended.unwrap_or_else(|e| panic!("{e}"));
    found
}

/// One line a listing: its name and how it is launched, or that it is broken.
fn lines(found: &[Listing]) -> Vec<String> {
    let line = |listing: &Listing| match &listing.server {
        Err(cause) => format!("broken: {cause}"),
        Ok(server) => format!("{} = {}", server.name, form(&server.launch)),
    };
    found.iter().map(line).collect()
}

fn form(launch: &Launch) -> String {
    match launch {
        Launch::Stdio { command, args } => format!("{command} {}", args.join(" ")),
        Launch::StreamableHttp { url, .. } => format!("http {url}"),
        Launch::Sse { url, .. } => format!("sse {url}"),
        Launch::Unsupported { what } => format!("({what})"),
    }
}

fn server(found: &[Listing], at: usize) -> &ServerRecord {
    found[at].server.as_ref().unwrap()
}

/// Checks every line: a line that ends in `…` is a beginning.
fn check(found: &[Listing], expected: &[&str]) {
    let lines = lines(found);
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        let fits = expected.strip_suffix('…').map_or(line == expected, |start| line.starts_with(start));
        assert!(fits, "{line}\ninstead of\n{expected}");
    }
}

#[tokio::test]
async fn the_official_registry_in_all_its_ages() {
    let found = fixture("official-registry").await;
    check(
        &found,
        &[
            "io.github.acme/parcel = npx -y parcel-mcp@1.2.0 --root {root} serve",
            "io.github.birch/weather = uvx birch_weather==0.3.0",
            "broken: an entry is no object…",
            "broken: it has no name",
            "com.cedar.example/search = sse https://mcp.cedar.example/sse",
            "io.github.hornbeam/tides = npx -y --tides-log off hornbeam-tides@0.9.1",
        ],
    );
    assert_eq!(server(&found, 5).env[0].value.as_deref(), Some("Brest"));
    // The seed of May 2025 names no schema.
    let pages: String = ["official-registry", "official-registry-v0"]
        .iter()
        .flat_map(|id| (1..=3).filter_map(move |n| fs::read_to_string(folder().join(format!("fixtures/{id}/{n}.json"))).ok()))
        .collect();
    for age in ["2025-07-09", "2025-09-16", "2025-09-29", "2025-10-17", "2025-12-11"] {
        assert!(pages.contains(&format!("/{age}/server.schema.json")), "no entry of {age}");
    }
    let parcel = server(&found, 0);
    let env: Vec<_> = parcel.env.iter().map(|v| (v.name.as_str(), v.value.as_deref(), v.secret, v.required)).collect();
    assert_eq!(env, [("PARCEL_KEY", None, true, true), ("PARCEL_MODE", Some("fast"), false, false), ("root", None, false, true)]);
    assert_eq!(parcel.sources[0].url.as_deref(), Some("https://acme.example"));
    assert_eq!(
        found[0].keys,
        [
            "form:oci image `images.example/acme/parcel:1.2.0`",
            "npm:parcel-mcp",
            "repo:github.com/acme-example/parcel/mcp",
            "url:{region}.acme.example/mcp",
        ]
    );
    let found = fixture("official-registry-v0").await;
    check(
        &found,
        &[
            "io.github.dogwood/notes = npx -y @dogwood/notes@0.1.0 {folder}",
            "io.github.birch/weather = uvx birch_weather==0.3.0",
            "io.github.elm/maps = npx -y elm-maps@0.2.0",
        ],
    );
    assert_eq!((server(&found, 2).version.as_deref(), server(&found, 2).env[0].secret), (Some("0.0.1-seed"), true));
}

#[tokio::test]
async fn pulsemcp_old_and_new() {
    check(&fixture("pulsemcp-v01").await, &["io.github.birch/weather = uvx birch_weather==0.3.0"]);
    check(
        &fixture("pulsemcp").await,
        &[
            "Parcel = npx -y parcel-mcp",
            "Cedar = sse https://mcp.cedar.example/sse",
            "broken: it has no name",
            "Fir = (only a repository is known: `github.com/fir-example/fir`)",
        ],
    );
}

#[tokio::test]
async fn smithery_asks_a_page_of_every_server() {
    let found = fixture("smithery").await;
    check(
        &found,
        &[
            "@acme/parcel = http https://parcel.run.example/mcp",
            "gingko/books = (mcpb bundle `https://bundles.example/books.mcpb`)",
            "hazel = http https://hazel.run.example/mcp",
            "broken: failed to fetch `https://api.smithery.ai/servers/lost%2Fpage`: there is nothing (404)",
        ],
    );
    assert!(server(&found, 0).listed_tools.as_deref().unwrap().contains("Tracks a parcel"));
    assert_eq!(server(&found, 2).listed_tools, None);
}

#[tokio::test]
async fn glama_deepnlp_npm_and_github() {
    let found = fixture("glama").await;
    check(
        &found,
        &["abcdefghi1 = (only a repository…", "abcdefghi2 = (no launch information…", "broken: an entry is no object…"],
    );
    let parcel = server(&found, 0);
    assert_eq!((parcel.licence.as_deref(), parcel.env.len(), parcel.env[0].required), (Some("MIT License"), 2, true));
    let found = fixture("deepnlp").await;
    check(&found, &["juniper/maps = uvx juniper-maps==0.4.0", "kale/kale = (no launch information for `kale/kale`)"]);
    assert!(server(&found, 0).listed_tools.as_deref().unwrap().contains("\"inputSchema\""));
    let found = fixture("npm-search").await;
    check(&found, &["parcel-mcp = npx -y parcel-mcp@1.2.0", "@larch/tool = npx -y @larch/tool@0.0.1", "broken: it has no name"]);
    assert_eq!(server(&found, 1).description.as_deref(), Some("Ask <redacted> for help"));
    assert_eq!((server(&found, 0).licence.as_deref(), server(&found, 1).licence.as_deref()), (Some("MIT"), None));
    let found = fixture("github-topic").await;
    check(&found, &["acme-example/parcel = (only a repository…", "maple-example/syrup = (only a repository…"]);
}

#[tokio::test]
async fn lists_in_markdown() {
    let found = fixture("awesome-punkpeye").await;
    check(
        &found,
        &[
            "https://github.com/acme-example/parcel = (only…",
            "https://github.com/nutmeg-example/mono/tree/main/src/mail = (only…",
        ],
    );
    assert_eq!(found[1].keys, ["repo:github.com/nutmeg-example/mono/src/mail"]);
    let found = fixture("awesome-wong2").await;
    check(
        &found,
        &[
            "https://github.com/acme-example/parcel = (only…",
            "https://olive.example/mcp = (no launch…",
            "https://github.com/nutmeg…",
        ],
    );
}

#[tokio::test]
async fn web_pages() {
    let so =
        ["parcel = npx -y parcel-mcp@1.2.0", "quince = uvx quince-mcp==0.1", "rowan = (no launch…", "broken: failed to fetch…"];
    let found = fixture("mcp-so").await;
    check(&found, &so);
    assert_eq!(server(&found, 0).title.as_deref(), Some("Parcel"));
    check(&fixture("mcp-so-sitemap").await, &so[..1]);
    let found = fixture("mcphub").await;
    check(&found, &["acme/parcel = npx -y parcel-mcp@1.2.0", "broken: its page holds no `mcpServer`"]);
    assert_eq!(server(&found, 0).licence.as_deref(), Some("MIT"));
    let found = fixture("pipedream").await;
    check(
        &found,
        &[
            "tansy_mail = sse https://mcp.pipedream.net/{pipedream_user}/tansy_mail",
            "umber = sse https://mcp.pipedream.net/{pipedream_user}/umber",
        ],
    );
    assert_eq!(server(&found, 0).env[0].name, "pipedream_user");
}

#[tokio::test]
async fn checkouts_and_configurations() {
    let found = fixture("docker-catalogue").await;
    check(
        &found,
        &[
            "broken: `broken/server.yaml`…",
            "cedar = http https://mcp.cedar.example/mcp",
            "parcel = (oci image `images.example/mcp/parcel`)",
        ],
    );
    let tools: serde_json::Value = serde_json::from_str(server(&found, 2).listed_tools.as_deref().unwrap()).unwrap();
    assert_eq!(tools[0]["inputSchema"]["required"], serde_json::json!(["code"]));
    assert_eq!(tools[1].get("inputSchema"), None);
    let found = fixture("mcp-index").await;
    check(&found, &["broken: `acme/bomb/bomb/server.yaml`: it uses an alias", "acme/parcel/parcel = (only a repository…"]);
    assert!(server(&found, 1).listed_tools.as_deref().unwrap().contains("{\"on\":{\"type\":\"boolean\"}}"));
    let found = fixture("mcpm").await;
    check(&found, &["broken: `broken.json`…", "parcel = npx -y parcel-mcp"]);
    for (file, line) in [
        ("claude", "parcel = npx -y parcel-mcp@1.2.0"),
        ("vscode", "cedar = sse https://mcp.cedar.example/sse"),
        ("cursor", "birch = http https://birch.example/mcp"),
    ] {
        let mut cx =
            CrawlContext { files: Some(Arc::new(Tree(folder().join("fixtures/mcp-servers/tree")))), ..context(Pages::default()) };
        cx.values.insert("mcp_servers".into(), format!("{file}.json"));
        let (found, ended) = crawl("mcp-servers", &cx).await;
        ended.unwrap();
        check(&found, &[line]);
        assert!(found[0].own && !serde_json::to_string(&found).unwrap().contains("not-for-you"));
    }
}

const REGISTRY: &str = "https://registry.modelcontextprotocol.io/v0.1/servers?limit=100";
const SECOND: &str = "https://registry.modelcontextprotocol.io/v0.1/servers?limit=100&cursor=io.github.acme%2Fparcel%3A1.2.0";

/// The reason a crawl of the registry ends for, with the listings so far.
async fn fault(spoil: impl Fn(&Pages)) -> (usize, &'static str) {
    let pages = pages("official-registry");
    spoil(&pages);
    let (found, ended) = crawl("official-registry", &context(pages)).await;
    (found.len(), ended.unwrap_err().reason)
}

#[tokio::test]
async fn a_fault_ends_the_source_and_keeps_what_it_gave() {
    let fail = |url: &'static str, kind: FetchErrorKind| move |pages: &Pages| pages.fail(url, kind.clone());
    assert_eq!(fault(fail(REGISTRY, FetchErrorKind::Refused("status 401".into()))).await, (0, "source-refused"));
    assert_eq!(fault(fail(REGISTRY, FetchErrorKind::NoKey("K".into()))).await, (0, "needs-key"));
    assert_eq!(fault(fail(SECOND, FetchErrorKind::Refused("status 403".into()))).await, (1, "source-refused"));
    assert_eq!(fault(fail(SECOND, FetchErrorKind::RateLimited(std::time::Duration::from_secs(9)))).await, (1, "rate-limited"));
    assert_eq!(fault(|p| p.serve(SECOND, "{\"servers\": [{\"server\":")).await, (1, "cut-off"));
    assert_eq!(fault(|p| p.serve(SECOND, "<html>")).await, (1, "not-json"));
    assert_eq!(fault(|p| p.serve(SECOND, "{\"error\": \"bad cursor\"}")).await, (1, "unknown-shape"));
    assert_eq!(fault(|p| p.serve(SECOND, "{\"servers\": [], \"metadata\": {\"nextCursor\": {\"a\": 1}}}")).await.1, "bad-cursor");
    let stuck = "{\"servers\": [], \"metadata\": {\"nextCursor\": \"io.github.acme/parcel:1.2.0\"}}";
    assert_eq!(fault(|p| p.serve(SECOND, stuck)).await.1, "stuck-cursor");
}

#[tokio::test]
async fn a_bad_cursor_costs_no_entry_of_its_page() {
    let object = r#"{"servers": [{"server": {"name": "x/y", "version": "1.0.0"}}], "metadata": {"nextCursor": {"a": 1}}}"#;
    assert_eq!(fault(|p| p.serve(SECOND, object)).await, (2, "bad-cursor"));
    assert_eq!(fault(|p| p.fail(SECOND, FetchErrorKind::Status(400))).await, (1, "bad-cursor"));
    assert_eq!(fault(|p| p.fail(REGISTRY, FetchErrorKind::Status(400))).await, (0, "bad-request"));
}

#[tokio::test]
async fn an_odd_entry_is_odd_alone() {
    let good = |name: &str| {
        format!(
            r#"{{"server": {{"name": "x/{name}", "description": "d", "version": "1.0.0", "packages": [{{"registryType": "npm", "identifier": "{name}-mcp", "version": "1.0.0"}}]}}}}"#
        )
    };
    let deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
    for odd in [good("odd").replace("\"d\"", r#""cut \ud83d""#), good("odd").replace("\"d\"", &deep)] {
        let pages = Pages::default();
        pages.serve(REGISTRY, &format!(r#"{{"servers": [{}, {odd}, {}], "metadata": {{}}}}"#, good("one"), good("two")));
        let (found, ended) = crawl("official-registry", &context(pages)).await;
        ended.unwrap();
        check(&found, &["x/one = npx -y one-mcp@1.0.0", "x/odd = npx…", "x/two = npx -y two-mcp@1.0.0"]);
        // What is kept of it can be read again.
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Listing>>(&text).unwrap(), found);
    }
}

#[tokio::test]
async fn keys_do_not_follow_a_page_to_another_site() {
    let first = "https://api.pulsemcp.com/v0beta/servers?count_per_page=1000";
    let pages = Pages::default();
    pages.serve(first, "{\"servers\": [], \"next\": \"https://elsewhere.example/servers\"}");
    let (_, ended) = crawl("pulsemcp", &context(pages)).await;
    assert_eq!(ended.unwrap_err().reason, "bad-cursor");
}

#[tokio::test]
async fn nothing_is_asked_without_the_means() {
    assert_eq!(crawl("glama", &CrawlContext::default()).await.1.unwrap_err().reason, "not-available");
    assert_eq!(crawl("mcpm", &CrawlContext::default()).await.1.unwrap_err().reason, "not-available");
    let cx = CrawlContext { values: std::collections::BTreeMap::new(), ..context(Pages::default()) };
    assert_eq!(crawl("npm-search", &cx).await.1.unwrap_err().reason, "needs-setting");
}

#[tokio::test]
async fn a_search_that_finds_too_much_is_split_by_days() {
    let declaration = text("github-topic.toml").replace("2024-11-01", "2026-11-27");
    let url = |range: &str, page: &str| {
        format!("https://api.github.com/search/repositories?q=topic:mcp-server+pushed:{range}&sort=updated&per_page=100{page}")
    };
    let item = |name: &str| format!("{{\"full_name\":\"{name}\",\"html_url\":\"https://github.com/{name}\"}}");
    let body = |total: u64, items: &[&str]| {
        format!("{{\"total_count\":{total},\"items\":[{}]}}", items.iter().map(|i| item(i)).collect::<Vec<_>>().join(","))
    };
    let pages = Pages::default();
    pages.serve(&url("2026-11-27..2026-11-30", ""), &body(1500, &["cut/off"]));
    pages.serve_linked(&url("2026-11-27..2026-11-28", ""), &body(900, &["a/a"]), &url("2026-11-27..2026-11-28", "&page=2"));
    pages.serve(&url("2026-11-27..2026-11-28", "&page=2"), &body(900, &["b/b"]));
    pages.serve(&url("2026-11-29..2026-11-30", ""), &body(600, &["c/c"]));
    let (found, ended) = crawl_text("github-topic", &declaration, &context(pages)).await;
    assert!(!ended.unwrap().cut);
    check(&found, &["a/a = (only…", "b/b = (only…", "c/c = (only…"]);

    // A day of which not all is shown costs no entry, and says that it was not the end.
    for (total, incomplete) in [(1500, false), (600, true)] {
        let pages = Pages::default();
        let first = format!("{{\"incomplete_results\":{incomplete},{}", &body(total, &["a/a", "b/b"])[1..]);
        pages.serve_linked(&url("2026-11-30..2026-11-30", ""), &first, &url("2026-11-30..2026-11-30", "&page=2"));
        pages.serve(&url("2026-11-30..2026-11-30", "&page=2"), &body(total, &["c/c"]));
        let (found, ended) = crawl_text("github-topic", &declaration.replace("2026-11-27", "2026-11-30"), &context(pages)).await;
        assert!(ended.unwrap().cut, "{total}");
        check(&found, &["a/a = (only…", "b/b = (only…", "c/c = (only…"]);
    }
}

#[test]
fn wrong_declarations_are_refused_offline() {
    let good = text("glama.toml");
    parse("glama", &good).unwrap();
    for (from, to, said) in [
        ("per_minute", "per_hour", "per_hour"),
        ("[\"/servers\"]", "[\"servers\"]", "no JSON pointer"),
        ("param = \"after\"", "", "`param`"),
        ("start = [\"https", "start = [\"ftp", "no address"),
        ("per_minute = 60", "per_minute = 0", "1 or more"),
        ("\"repository\"", "\"magic\"", "magic"),
        ("launch =", "path = \"x\"\nlaunch =", "`path`"),
    ] {
        let error = parse("glama", &good.replacen(from, to, 1)).err().unwrap_or_else(|| panic!("{to} was taken"));
        assert!(error.to_string().contains(said), "{error}");
    }
    let so = text("mcp-so.toml").replace("h3\", \"/title", "h3[\", \"/title");
    assert!(parse("mcp-so", &so).err().unwrap().to_string().contains("no CSS selector"));
}
