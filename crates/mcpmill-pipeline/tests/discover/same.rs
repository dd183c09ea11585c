//! Listings that are one server, and listings that look like one and are not.

use super::*;

/// The records and the counts of what registries and other sources of these launches list.
async fn found(sources: &[(&str, &str, Value)]) -> (Vec<ServerRecord>, (u64, u64, u64)) {
    let pages = Arc::new(Pages::default());
    sources.iter().for_each(|(site, _, entries)| serve(&pages, site, entries));
    let marketplaces: Vec<_> = sources.iter().map(|(id, launch, _)| parse(id, &api(id, launch, "")).unwrap()).collect();
    let (found, ends) = run(&marketplaces, &cx(&pages, None, "")).await;
    (rows(ends), (found.summary.kept, found.summary.dropped, found.summary.failed))
}

fn launches(rows: &[ServerRecord]) -> Vec<String> {
    let mut all: Vec<String> = rows.iter().map(|row| serde_json::to_string(&row.launch).unwrap()).collect();
    all.sort();
    all.dedup();
    all
}

fn package(name: &str, form: &Value, repository: Option<&str>) -> Value {
    json!({"server": {"name": name, "version": "1.0.0", "packages": [form], "repository": repository.map(|url| json!({"url": url}))}})
}

#[tokio::test]
async fn several_servers_of_which_only_a_repository_is_known_have_ids_of_their_own() {
    let repo = "https://github.com/mono/servers";
    for (others, kept) in [(json!([]), 2), (json!([{"name": "servers", "repo": repo}]), 3)] {
        let both = json!([{"name": "filesystem", "repo": repo}, {"name": "git", "repo": repo}]);
        let (rows, (count, ..)) = found(&[("a", "repository", both), ("b", "repository", others)]).await;
        assert_eq!((count, launches(&rows).len()), (kept, kept as usize));
        let told = launches(&rows).join("\n");
        assert!(told.contains("github.com/mono/servers`, and in it `filesystem`"), "{told}");
    }
    // One alone has none.
    let (rows, _) = found(&[("a", "repository", json!([{"name": "git", "repo": repo}]))]).await;
    assert!(launches(&rows)[0].ends_with("`github.com/mono/servers`\"}"), "{rows:?}");
}

#[tokio::test]
async fn a_launch_that_is_not_supported_tells_that_two_listings_are_one() {
    let form = |kind: &str, transport: &str| json!({"registryType": kind, "identifier": "foo-mcp", "version": "1.0.0", "transport": {"type": transport}});
    let repo = Some("https://github.com/a/x");
    for form in [form("cargo", "stdio"), form("npm", "streamable-http"), form("gem", "stdio")] {
        let entries = json!([package("a/x", &form, repo), package("b/x", &form, None)]);
        assert_eq!(found(&[("a", "registry", entries)]).await.1, (1, 1, 0), "{form}");
    }
    // So does an address with a hole in it, and so does the name of a package, however it is spoken to.
    let remote = |name: &str| json!({"server": {"name": name, "remotes": [{"type": "streamable-http", "url": "https://{tenant}.host.example/mcp"}], "repository": {"url": format!("https://github.com/{name}")}}});
    assert_eq!(found(&[("a", "registry", json!([remote("a/x"), remote("b/x")]))]).await.1, (1, 1, 0));
    let entries = json!([package("a/x", &form("npm", "streamable-http"), None)]);
    assert_eq!(found(&[("a", "registry", entries), ("b", "npm-package", json!([{"name": "foo-mcp"}]))]).await.1, (1, 1, 0));
    // Nothing but a name, and repositories that differ.
    let named = |name: &str, repo: &str| json!([{"name": name, "repo": repo}]);
    let sources = [
        ("a", "mcp-servers-block", named("x", "https://github.com/a/x")),
        ("b", "mcp-servers-block", named("x", "https://github.com/b/x")),
    ];
    assert_eq!(found(&sources).await.1, (2, 0, 0));
}

#[tokio::test]
async fn an_image_beside_a_package_is_one_server_and_two_images_are_two() {
    let repo = "https://github.com/acme/tool";
    let npm = package("io.acme/tool", &json!({"registryType": "npm", "identifier": "tool-mcp", "version": "1.0.0"}), Some(repo));
    let image = |name: &str| package("tool", &json!({"registryType": "oci", "identifier": name}), Some(repo));
    let bare = json!([{"name": "tool", "repo": repo}]);
    let sources = [
        ("a", "registry", json!([npm.clone()])),
        ("b", "repository", bare.clone()),
        ("c", "registry", json!([image("images.example/tool")])),
    ];
    let (rows, counts) = found(&sources).await;
    assert_eq!((counts, rows[0].sources.len()), ((1, 2, 0), 3));
    assert!(matches!(&rows[0].launch, Launch::Stdio { args, .. } if args[1] == "tool-mcp@1.0.0"));
    let two = json!([image("images.example/tool"), image("images.example/other")]);
    assert_eq!(found(&[("a", "registry", json!([npm])), ("b", "repository", bare), ("c", "registry", two)]).await.1, (4, 0, 0));
}

#[tokio::test]
async fn a_key_in_an_address_makes_no_other_server() {
    let remote =
        json!([{"server": {"name": "io.b/r", "remotes": [{"type": "streamable-http", "url": "https://b.example/mcp"}]}}]);
    let keyed = json!([{"name": "R", "url": "https://b.example/mcp?api_key=planted123"}]);
    for sources in [
        [("a", "registry", remote.clone()), ("b", "url", keyed.clone())],
        [("b", "url", keyed.clone()), ("a", "registry", remote.clone())],
    ] {
        let (rows, counts) = found(&sources).await;
        assert_eq!(counts, (1, 1, 0));
        assert!(matches!(&rows[0].launch, Launch::StreamableHttp { url, .. } if url == "https://b.example/mcp"), "{rows:?}");
    }
}

#[tokio::test]
async fn a_package_of_a_private_registry_is_not_taken_from_the_public_one() {
    let form = |base: Option<&str>| json!({"registryType": "npm", "registryBaseUrl": base, "identifier": "private-thing", "version": "1.0.0"});
    let public = ["https://registry", "npmjs", "org"].join(".");
    for (base, stdio) in [
        (None, true),
        (Some(public.as_str()), true),
        (Some("https://npm.corp.example"), false),
        (Some("https://npmjs.org.corp.example"), false),
    ] {
        let (rows, _) = found(&[("a", "registry", json!([package("a/x", &form(base), None)]))]).await;
        assert_eq!(matches!(rows[0].launch, Launch::Stdio { .. }), stdio, "{rows:?}");
    }
    // Nor is it the public package of that name.
    let private = json!([package("a/x", &form(Some("https://npm.corp.example")), None)]);
    assert_eq!(found(&[("a", "registry", private), ("b", "npm-package", json!([{"name": "private-thing"}]))]).await.1, (2, 0, 0));
}

/// A configuration of the user's.
struct Config(Mutex<String>);

impl mcpmill_pipeline::discover::Files for Config {
    fn list(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn read(&self, _: &str) -> Result<String, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

#[tokio::test]
async fn what_the_user_starts_in_two_ways_is_two_servers_and_is_counted() {
    let own = "kind = \"mcp-servers\"\ntitle = \"t\"\npath = \"x\"\nlaunch = \"mcp-servers-block\"\n";
    let config = Arc::new(Config(Mutex::default()));
    let kept = Arc::new(Memory::default());
    let pages = Arc::new(Pages::default());
    serve(&pages, "b", &json!([{"name": "gh-mcp"}]));
    let marketplaces = [parse("own", own).unwrap(), parse("b", &api("b", "npm-package", "")).unwrap()];
    let server = |env: Value| json!({"command": "npx", "args": ["-y", "gh-mcp"], "env": env});
    let crawl = async |servers: Value, day: &str| {
        // Some editors begin a file with this mark.
        *config.0.lock().unwrap() = format!("\u{feff}{}", json!({ "mcpServers": servers }));
        let cx = CrawlContext {
            files: Some(Arc::clone(&config) as _),
            ..cx(&pages, Some(&kept), &format!("2026-11-{day}T00:00:00Z"))
        };
        let (found, ends) = run(&marketplaces, &cx).await;
        let names: Vec<String> = rows(ends).into_iter().map(|row| row.name).collect();
        (counts(&found), names)
    };
    let (work, home) = (server(json!({"GH_TOKEN": "planted-work"})), server(json!({"GH_TOKEN": "planted-home"})));
    // One alone is the server that a marketplace lists, too.
    let (count, names) = crawl(json!({"gh-work": work}), "01").await;
    assert_eq!((count, names), ((1, 0, 0, 0), vec!["gh-work".to_owned()]));
    let (count, mut names) = crawl(json!({"gh-work": work, "gh-home": home}), "02").await;
    names.sort();
    assert_eq!((count, names), ((1, 0, 1, 0), ["gh-home", "gh-mcp", "gh-work"].map(str::to_owned).to_vec()));
    // The same in every way but the name is one server, where no secret may tell them apart.
    let plain = server(json!({"LEVEL": "1"}));
    let (count, names) = crawl(json!({"gh-work": plain, "gh-home": plain}), "03").await;
    assert_eq!((count, names.len()), ((0, 2, 0, 0), 1));
    let (count, names) = crawl(json!({}), "04").await;
    assert_eq!((count, names), ((0, 0, 0, 2), vec!["gh-mcp".to_owned()]));
    assert!(!format!("{:?}", kept.0.lock().unwrap()).contains("planted"));
}

#[tokio::test]
async fn a_line_for_a_shell_goes_through_the_door_whole_and_without_its_secrets() {
    let own = "kind = \"mcp-servers\"\ntitle = \"t\"\npath = \"x\"\nlaunch = \"mcp-servers-block\"\n";
    let servers = json!({
        "shell": {"command": "npx -y gh-mcp --token planted-word | tee x"},
        "line": {"command": "npx -y other-mcp --token planted-word"},
    });
    let config = Arc::new(Config(Mutex::new(json!({ "mcpServers": servers }).to_string())));
    let cx = CrawlContext { files: Some(config as _), ..CrawlContext::default() };
    let (_, ends) = run(&[parse("own", own).unwrap()], &cx).await;
    let mut launches: Vec<_> = rows(ends).into_iter().map(|row| (row.name, row.launch)).collect();
    launches.sort_by(|a, b| a.0.cmp(&b.0));
    let [(_, Launch::Stdio { command, args }), (_, Launch::Stdio { command: shell, args: none })] = &launches[..] else {
        panic!("{launches:?}")
    };
    assert_eq!((command.as_str(), args.join(" ")), ("npx", "-y other-mcp --token <redacted>".to_owned()));
    assert_eq!((shell.as_str(), none.len()), ("npx -y gh-mcp --token <redacted> | tee x", 0));
    let error = mcpmill_core::launch::parse(shell, none).unwrap_err();
    assert_eq!((error.line.as_str(), error.why.as_str()), (shell.as_str(), "`|` in it is for a shell"));
}
