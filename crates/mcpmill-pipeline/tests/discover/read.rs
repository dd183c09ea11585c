//! Lists in markdown, web pages and sitemaps, and what is read of them.

use super::*;

fn web(kind: &str, rest: &str) -> Box<dyn Marketplace> {
    let text = format!("kind = \"{kind}\"\ntitle = \"t\"\nstart = [\"https://a.example/list\"]\n{rest}");
    parse("a", &text).unwrap()
}

async fn listed(marketplace: Box<dyn Marketplace>, pages: &Arc<Pages>) -> Vec<ServerRecord> {
    let (_, ends) = run(&[marketplace], &cx(pages, None, "")).await;
    ends.into_iter().flat_map(|end| end.rows).collect()
}

#[tokio::test]
async fn what_was_cut_out_of_a_list_in_markdown_is_told_and_flagged() {
    let pages = Arc::new(Pages::default());
    let head = ["-----BEGIN", "PRIVATE KEY-----"].join(" ");
    let list = (0..20).map(|n| format!("- [s{n}](https://code.example/o/s{n}) - Does {n}.\n")).collect::<String>();
    let page = format!("- [mail](https://code.example/o/mail) - Ask ann@acme.example now.\n{head}\n{list}");
    pages.serve("https://a.example/list", &redact_page(&page, &[]).unwrap());
    let fields =
        "launch = \"repository\"\n[fields]\nname = [\"/name\"]\nrepository = [\"/url\"]\ndescription = [\"/description\"]\n";
    let found = listed(web("markdown-list", fields), &pages).await;
    assert_eq!(
        (found[0].description.as_deref(), found[0].flags.as_slice()),
        (Some("Ask <redacted> now."), &["redacted".to_owned()][..])
    );
    assert_eq!(found.len(), 21);
}

const CARDS: &str = "entries = [\"a\"]\nlaunch = \"mcp-servers-block\"\ndetail = { url = \"{url}\", format = \"text\" }\n";

fn block(package: &str) -> String {
    format!("<pre>{}</pre>", json!({"mcpServers": {"x": {"command": "npx", "args": ["-y", package]}}}))
}

#[tokio::test]
async fn the_parts_of_a_cards_address_are_fields_and_other_addresses_are_none() {
    let pages = Arc::new(Pages::default());
    let links = ["/server/tool/ann", "/server/tool/bob", "/servers/new", "/servers/new/x/tab", "/about"];
    pages.serve("https://a.example/list", &links.map(|link| format!("<a href=\"{link}\"><h3>T</h3></a>")).concat());
    for (link, package) in links.iter().zip(["ann-mcp", "bob-mcp", "new-mcp"]) {
        pages.serve(&format!("https://a.example{link}"), &block(package));
    }
    let link = "link = '^https?://[^/]+/servers?/(?P<slug>[^/?#]+)(?:/(?P<owner>[^/?#]+))?/?$'\n[fields]\nname = [\"/slug\"]\nhomepage = [\"@href\", \"/homepage\"]\n";
    let found = listed(web("html", &format!("{CARDS}{link}")), &pages).await;
    assert_eq!(found.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["tool", "tool", "new"]);
    assert!(found[1].sources[0].url.as_deref() == Some("https://a.example/server/tool/bob"), "{found:?}");
}

#[tokio::test]
async fn a_sitemap_says_itself_where_a_page_is() {
    let pages = Arc::new(Pages::default());
    let at = |owner: &str| format!("https://a.example/server/tool/{owner}");
    pages.serve("https://a.example/list", &["ann", "bob"].map(|owner| format!("<url><loc>{}</loc></url>", at(owner))).concat());
    ["ann", "bob"].iter().for_each(|owner| pages.serve(&at(owner), &block(&format!("{owner}-mcp"))));
    let rest = "entries = ['url:^https://a.example/servers?/(?P<slug>[^/?#]+)(?:/(?P<owner>[^/?#]+))?']\nlaunch = \"mcp-servers-block\"\n\
        detail = { url = \"{url}\", format = \"text\" }\n[fields]\nname = [\"/slug\"]\nhomepage = [\"/url\"]\n";
    let found = listed(web("html", rest), &pages).await;
    let launches: Vec<String> = found.iter().map(|server| format!("{} {:?}", server.name, server.launch)).collect();
    assert!(launches.len() == 2 && launches[0].contains("ann-mcp") && launches[1].contains("bob-mcp"), "{launches:?}");
}

#[tokio::test]
async fn every_remote_server_of_an_entry_is_one_way_to_it() {
    let pages = Arc::new(Pages::default());
    let remotes = json!([{"url_setup": "https://x.example"}, {"url_direct": "https://x.example/sse", "transport": "sse"}, {"url_direct": "https://x.example/mcp", "transport": "streamable_http"}]);
    pages.serve(
        "https://a.example/list",
        &json!({"s": [{"name": "x", "remotes": remotes}, {"name": "y", "package": "y-mcp", "remotes": remotes}]}).to_string(),
    );
    let rest = "entries = [\"/s\"]\nlaunch = \"repository\"\n[fields]\nname = [\"/name\"]\nremotes = [\"/remotes\"]\npackage = [\"/package\"]\n";
    let found = listed(web("json-api", rest), &pages).await;
    // Both have the same addresses, so they are one; a package is preferred.
    assert!(found.len() == 1 && matches!(&found[0].launch, Launch::Stdio { .. }), "{found:?}");
    pages.serve("https://a.example/list", &json!({"s": [{"name": "x", "remotes": remotes}]}).to_string());
    let found = listed(web("json-api", rest), &pages).await;
    assert!(matches!(&found[0].launch, Launch::StreamableHttp { url, .. } if url == "https://x.example/mcp"), "{found:?}");
}
