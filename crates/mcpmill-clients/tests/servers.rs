//! Servers in the cage: such as misbehave, and real ones.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{collections::HashMap, fs, path::Path, time::Duration};

use common::{alive, assets, cache, cage};
use mcpmill_clients::{
    install::{Installer, Lock},
    mcp::{CagedConnector, Era, Program, ServerLimits},
};
use mcpmill_core::{
    edge::{ConnectError, Connector, ToolErrorKind, ToolRunner, WorldSpec},
    id::ServerId,
    record::{EnvVar, HarvestOutcome, Launch, ServerRecord},
};
use serde_json::{Map, Value, json};

struct Bench {
    connector: CagedConnector,
    scratch: tempfile::TempDir,
}

async fn bench(limits: ServerLimits) -> Bench {
    let scratch = tempfile::tempdir().unwrap();
    let cage = cage().await;
    let lock = |name: &str, file: &str| fs::read_to_string(Path::new("tests/data").join(name).join(file)).unwrap();
    let locks = vec![
        Lock::Npm { package: lock("hello-world", "package.json"), lock: lock("hello-world", "package-lock.json") },
        Lock::Pypi { input: lock("time", "requirements.in"), requirements: lock("time", "requirements.txt") },
    ];
    let installer = Installer::new(cage.clone(), assets(), cache()).with_locks(locks);
    let connector = CagedConnector::new(cage, installer, scratch.path().join("worlds")).with_limits(limits);
    Bench { connector, scratch }
}

fn quick() -> ServerLimits {
    ServerLimits { start: Duration::from_secs(20), answer: Duration::from_secs(2), ..ServerLimits::default() }
}

impl Bench {
    /// Processes that have a world of this bench mounted; other tests may run the same package.
    fn processes(&self) -> Vec<String> {
        let scratch = self.scratch.path().to_string_lossy().into_owned();
        // The mount names the folder as its own file system does: without what that one is mounted on.
        let folder = scratch.rsplit('/').next().unwrap();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mounted = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path().join("mountinfo")).is_ok_and(|mounts| mounts.contains(&format!("/{folder}/worlds/")))
        };
        entries.filter(mounted).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    async fn start(&self, mode: &str) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let world = WorldSpec {
            files: [("server.py".to_owned(), include_str!("data/server.py").to_owned())].into(),
            setup: vec![vec!["sh".to_owned(), "-c".to_owned(), "echo ready > ${WORLD}/setup.txt".to_owned()]],
            ..WorldSpec::default()
        };
        let command = ["python3", "${WORLD}/server.py", mode, &self.mark(mode)];
        let program = Program {
            name: mode.to_owned(),
            command: command.iter().map(|&part| part.to_owned()).collect(),
            env: Vec::new(),
            binds: Vec::new(),
        };
        self.connector.start(&program, &world).await
    }

    fn mark(&self, mode: &str) -> String {
        format!("{mode}-{}", self.scratch.path().display())
    }

    /// Nothing is left of any server of this bench.
    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(alive(&self.scratch.path().display().to_string()), Vec::<u32>::new());
        assert_eq!(fs::read_dir(self.scratch.path().join("worlds")).unwrap().count(), 0);
    }
}

fn arguments(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[tokio::test]
async fn a_server_among_junk_is_understood() {
    let bench = bench(quick()).await;
    let server = bench.start("junk").await.unwrap();
    let info = server.info();
    assert_eq!((info.name.as_str(), info.version.as_str(), info.protocol_version.as_str()), ("junk", "1.0", "2025-06-18"));
    assert_eq!(info.instructions.as_deref(), Some("be kind"));
    let page = server.list_tools(None).await.unwrap();
    assert_eq!(page.tools[0].input_schema.to_string(), r#"{"type":"object","properties":{"z":{},"a":{}}}"#);
    let result = server.call_tool("echo", &arguments(&json!({"b": 1, "a": "é"}))).await.unwrap();
    assert_eq!(result.content[1].to_string(), r#"{"type":"novel","own":{"z":1,"a":2}}"#);
    assert_eq!(result.structured_content.unwrap().to_string(), r#"{"z":{"b":1,"a":"é"},"a":1}"#);
    assert!(!result.is_error);
    let error = server.call_tool("absent", &Map::new()).await.unwrap_err();
    assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::Rpc(-32602), "Unknown tool: absent"));
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn what_a_server_says_of_itself_is_kept_in_bounds() {
    let bench = bench(quick()).await;
    let server = bench.start("boasts").await.unwrap();
    let info = server.info();
    assert_eq!(info.name.chars().count(), 301);
    assert_eq!(info.instructions.as_ref().unwrap().chars().count(), 100_001);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn no_half_of_a_secret_is_left_where_words_are_cut() {
    let mut bench = bench(quick()).await;
    let secrets = [("KEY".to_owned(), "planted-value-0123456789".to_owned())].into();
    bench.connector = bench.connector.with_credentials(secrets);
    for mode in ["blurts-error", "blurts-version"] {
        let error = bench.start(mode).await.map(|_| ()).unwrap_err();
        assert!(error.detail.contains("xx<KEY>") && !error.detail.contains("planted"), "{}", error.detail);
    }
    let server = bench.start("blurts").await.unwrap();
    let info = server.info();
    let instructions = info.instructions.as_deref().unwrap();
    assert!(info.name.ends_with("xx<KEY>") && instructions.ends_with("xx<KEY>"), "{}", info.name);
    let page = server.list_tools(None).await.unwrap();
    assert!(page.refused[0].contains("xx<KEY>` has") && !page.refused[0].contains("planted"), "{:?}", page.refused);
    assert_eq!(page.tools[0].description.as_deref(), Some("<KEY>"));
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn noise_between_messages_is_counted() {
    let bench = bench(quick()).await;
    let server = bench.start("noise").await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap().tools[0].description.as_deref(), Some("é\u{fffd}\u{fffd}"));
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    // Three lines that say something before each of the two lists; empty ones are not counted.
    let oddities = server.oddities();
    assert_eq!(oddities, ["stdout_noise: 6 lines", "mended: 2 messages with broken characters"]);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn deep_schemas_are_kept_and_deeper_ones_left_out() {
    let bench = bench(quick()).await;
    let server = bench.start("deep").await.unwrap();
    let page = server.list_tools(None).await.unwrap();
    let names: Vec<_> = page.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["deep_300", "deep_500", "echo"]);
    assert_eq!(page.tools[0].input_schema.to_string(), format!("{}{{}}{}", r#"{"items":"#.repeat(300), "}".repeat(300)));
    assert_eq!(page.refused, ["`deep_100000` is nested too deeply"]);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn both_eras_are_spoken_and_unknown_versions_are_said() {
    let bench = bench(quick()).await;
    let server = bench.start("modern").await.unwrap();
    let info = server.info();
    assert_eq!((info.era.as_str(), info.protocol_version.as_str(), info.transport.as_str()), ("discover", "2026-07-28", "stdio"));
    assert_eq!(info.offered, ["2026-07-28"]);
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    server.close().await;
    let error = bench.start("future").await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::Protocol);
    assert_eq!(error.detail, "it answered with version `2099-01-01`, which was not offered");
    bench.is_clean();
}

#[tokio::test]
async fn the_other_era_is_probed_in_a_process_of_its_own() {
    let mut bench = bench(quick()).await;
    let server = bench.start("both").await.unwrap();
    let of_one = alive(&bench.mark("both")).len();
    server.close().await;
    bench.connector = bench.connector.with_probe_eras(true);
    let server = bench.start("both").await.unwrap();
    let info = server.info();
    assert_eq!((info.era.as_str(), info.protocol_version.as_str()), ("initialize", "2025-06-18"));
    assert_eq!(info.offered, ["2025-06-18", "2026-07-28"], "each once");
    assert_eq!(alive(&bench.mark("both")).len(), of_one, "the probed one has ended");
    server.close().await;
    // One that leaves the probe without an answer is no worse for it, and not waited for long.
    let start = std::time::Instant::now();
    let server = bench.start("pages").await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!((server.info().era.as_str(), &server.info().offered), ("initialize", &vec!["2025-06-18".to_owned()]));
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 2);
    server.close().await;
    bench.connector = bench.connector.with_only(Era::Discover);
    let server = bench.start("both").await.unwrap();
    assert_eq!((server.info().era.as_str(), server.info().protocol_version.as_str()), ("discover", "2026-07-28"));
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn slow_and_stubborn_servers_end_in_time() {
    let bench = bench(quick()).await;
    let server = bench.start("trickle").await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap_err().kind, ToolErrorKind::TimedOut);
    server.close().await;
    let server = bench.start("deaf").await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    let start = std::time::Instant::now();
    server.close().await;
    assert!(start.elapsed() < Duration::from_secs(15));
    let server = bench.start("halfway").await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap_err().kind, ToolErrorKind::Disconnected);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_failing_tool_is_a_result() {
    let bench = bench(quick()).await;
    let server = bench.start("fails").await.unwrap();
    let result = server.call_tool("echo", &Map::new()).await.unwrap();
    assert!(result.is_error);
    assert_eq!(result.content[0]["text"], "{}");
    server.close().await;
}

#[tokio::test]
async fn the_world_is_its_root() {
    let bench = bench(quick()).await;
    let server = bench.start("roots").await.unwrap();
    let result = server.call_tool("echo", &Map::new()).await.unwrap();
    assert_eq!(result.text(), "file:///home/user/work");
    server.close().await;
}

#[tokio::test]
async fn what_a_server_asks_is_answered_or_refused() {
    let mut bench = bench(quick()).await;
    for (taken, form) in [(false, json!({"action": "decline"})), (true, json!({"action": "accept", "content": {"a": "x"}}))] {
        bench.connector = bench.connector.with_defaults_taken(taken);
        let server = bench.start("asks").await.unwrap();
        let told = server.call_tool("echo", &Map::new()).await.unwrap().text();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told, json!([[0, {}, null], [1, form, null], [2, null, -32601], [3, null, -32601]]));
        server.close().await;
    }
}

#[tokio::test]
async fn lists_come_a_page_at_a_time() {
    let bench = bench(quick()).await;
    let server = bench.start("pages").await.unwrap();
    let (mut cursor, mut names) = (None, Vec::new());
    loop {
        let page = server.list_tools(cursor).await.unwrap();
        names.extend(page.tools.into_iter().map(|tool| tool.name));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, ["tool_1_0", "tool_1_1", "tool_2_0", "tool_2_1", "tool_3_0", "tool_3_1"]);
    server.close().await;

    // The caller decides how many pages are too many.
    let server = bench.start("endless").await.unwrap();
    let first = server.list_tools(None).await.unwrap();
    let second = server.list_tools(first.next_cursor.clone()).await.unwrap();
    assert_eq!(first, second);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_list_has_its_time_however_many_pages_it_has() {
    let bench = bench(ServerLimits { list: Duration::from_secs(2), ..quick() }).await;
    let server = bench.start("dawdles").await.unwrap();
    for _ in 0..2 {
        let (mut cursor, mut pages) = (None, 0);
        let error = loop {
            match server.list_tools(cursor).await {
                Ok(page) => (cursor, pages) = (page.next_cursor, pages + 1),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::TimedOut, "its pages took more than 2 s"));
        assert!((1..=6).contains(&pages), "{pages}");
    }
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn odd_tools_are_left_out_alone_and_odd_lists_refused() {
    let bench = bench(quick()).await;
    let server = bench.start("liar").await.unwrap();
    let page = server.list_tools(None).await.unwrap();
    assert_eq!(page.refused, ["`echo` has an input schema that is none"]);
    // A cursor that is a number goes back as one; one that is an object does not.
    let page = server.list_tools(page.next_cursor).await.unwrap();
    assert_eq!((page.tools[0].name.as_str(), page.next_cursor), ("after 7", None));
    assert_eq!(server.oddities(), ["pagination: a cursor that is neither text nor number"]);
    server.close().await;
    let server = bench.start("listless").await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap_err().kind, ToolErrorKind::Protocol);
    server.close().await;
}

#[tokio::test]
async fn a_mute_server_times_out_and_goes_on() {
    let bench = bench(quick()).await;
    let server = bench.start("mute").await.unwrap();
    let error = server.call_tool("echo", &Map::new()).await.unwrap_err();
    assert_eq!(error.kind, ToolErrorKind::TimedOut);
    assert_eq!(error.to_string(), "failed to call tool `echo` on server `mute`: no answer within 2 s");
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_server_that_dies_is_explained() {
    let bench = bench(quick()).await;
    let server = bench.start("dies").await.unwrap();
    let error = server.call_tool("echo", &Map::new()).await.unwrap_err();
    assert_eq!(error.kind, ToolErrorKind::Disconnected);
    assert_eq!(error.detail, "the server ended with exit code 7: ValueError: boom");
    assert!(server.list_tools(None).await.is_err());
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_flood_ends_the_connection() {
    let bench = bench(ServerLimits { message_bytes: 1 << 20, answer: Duration::from_secs(20), ..quick() }).await;
    let server = bench.start("floods").await.unwrap();
    let error = server.call_tool("echo", &Map::new()).await.unwrap_err();
    assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::Limit, "it printed too much"));
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_memory_hog_ends_the_connection() {
    let bench = bench(ServerLimits { memory_bytes: 150 << 20, answer: Duration::from_secs(20), ..quick() }).await;
    let server = bench.start("hog").await.unwrap();
    let error = server.call_tool("echo", &Map::new()).await.unwrap_err();
    assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::Limit, "it used too much memory"));
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn a_daemon_ends_with_its_server() {
    let bench = bench(quick()).await;
    let server = bench.start("daemon").await.unwrap();
    assert!(alive(&bench.mark("daemon")).len() >= 2);
    server.close().await;
    bench.is_clean();
}

#[tokio::test]
async fn failed_starts_are_told_apart() {
    let bench = bench(ServerLimits { start: Duration::from_secs(5), ..quick() }).await;
    let fail = async |mode: &str| bench.start(mode).await.map(|_| ()).unwrap_err();
    let error = fail("silent").await;
    assert_eq!((error.outcome, error.detail.as_str()), (HarvestOutcome::TimedOut, "no answer to `initialize` within 5 s"));
    let error = fail("early").await;
    assert_eq!(error.outcome, HarvestOutcome::LaunchFailed);
    assert_eq!(error.detail, "it ended with exit code 2 before it answered: usage: server --key KEY");
    assert_eq!(error.stderr.as_deref(), Some("usage: server --key KEY"));
    let error = fail("stubborn").await;
    assert_eq!(error.outcome, HarvestOutcome::Protocol);
    assert_eq!(error.detail, "it answered `initialize` with an error: no key (-32000)");
    bench.is_clean();
}

#[tokio::test]
async fn dropping_a_server_ends_it() {
    let bench = bench(quick()).await;
    let server = bench.start("daemon").await.unwrap();
    drop(server);
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if alive(&bench.mark("daemon")).is_empty() && fs::read_dir(bench.scratch.path().join("worlds")).unwrap().count() == 0 {
            return;
        }
    }
    bench.is_clean();
}

fn record(name: &str, command: &str, args: &[&str]) -> ServerRecord {
    let launch = Launch::Stdio { command: command.to_owned(), args: args.iter().map(|&arg| arg.to_owned()).collect() };
    mcpmill_testkit::server(name, launch)
}

#[tokio::test]
async fn what_cannot_be_started_is_said_at_once() {
    let bench = bench(quick()).await;
    let refused =
        async |server: &ServerRecord| bench.connector.connect(server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    let error = refused(&record("c", "docker", &["run", "image"])).await;
    assert_eq!(error.outcome, HarvestOutcome::Unsupported);
    assert!(error.detail.contains("`docker run image`"), "{error}");
    let mut remote = record("r", "npx", &["x"]);
    remote.launch = Launch::StreamableHttp { url: "https://host/mcp".to_owned(), headers: Vec::new() };
    assert_eq!(refused(&remote).await.outcome, HarvestOutcome::Unsupported);
    let mut secret = record("s", "npx", &["-y", "mcp-hello-world@1.1.2"]);
    secret.env = vec![EnvVar { name: "API_KEY".to_owned(), value: None, secret: true, required: true }];
    let error = refused(&secret).await;
    assert_eq!((error.outcome, error.detail.as_str()), (HarvestOutcome::NeedsCredentials, "it needs `API_KEY`"));
    assert_eq!(error.to_string(), "failed to start server `s`: it needs `API_KEY`");
}

#[tokio::test]
async fn a_real_npm_server() {
    let bench = bench(ServerLimits::default()).await;
    let mut hello = record("hello-world", "npx", &["-y", "mcp-hello-world@1.1.2"]);
    hello.id = ServerId("srv_hello".to_owned());
    let server = bench.connector.connect(&hello, &WorldSpec::default()).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr));
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 3);
    let result = server.call_tool("echo", &arguments(&json!({"message": "hello"}))).await.unwrap();
    assert!(result.text().contains("hello"), "{result:?}");
    assert!(!result.is_error);
    assert!(!bench.processes().is_empty());
    server.close().await;
    assert_eq!(bench.processes(), Vec::<String>::new());
    bench.is_clean();
}

#[tokio::test]
async fn a_real_pypi_server() {
    let bench = bench(ServerLimits::default()).await;
    let time = record("time", "uvx", &["mcp-server-time@2026.10.19"]);
    let server = bench.connector.connect(&time, &WorldSpec::default()).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr));
    let tools = server.list_tools(None).await.unwrap().tools;
    assert_eq!(tools.len(), 2);
    let result = server.call_tool("get_current_time", &arguments(&json!({"timezone": "Etc/UTC"}))).await.unwrap();
    assert!(result.text().contains("UTC"), "{result:?}");
    let error = server.call_tool("no_such_tool", &Map::new()).await;
    assert!(error.is_err() || error.is_ok_and(|result| result.is_error));
    server.close().await;
    assert_eq!(bench.processes(), Vec::<String>::new());
    bench.is_clean();
}

#[tokio::test]
async fn a_lock_is_made_where_none_is_given() {
    let cage = cage().await;
    let folder = tempfile::tempdir().unwrap();
    let installer = Installer::new(cage.clone(), assets(), folder.path().join("cache"));
    let scratch = folder.path().join("worlds");
    let connector = CagedConnector::new(cage, installer, scratch).with_credentials(HashMap::new());
    for server in [record("npm", "npx", &["-y", "mcp-hello-world"]), record("pypi", "uvx", &["mcp-server-time"])] {
        let runner = connector.connect(&server, &WorldSpec::default()).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr));
        assert!(!runner.list_tools(None).await.unwrap().tools.is_empty());
        runner.close().await;
    }
    let servers: Vec<_> =
        fs::read_dir(folder.path().join("cache/servers")).unwrap().flatten().map(|entry| entry.path()).collect();
    let locked = |file: &str| servers.iter().any(|path| path.join("lock").join(file).exists());
    assert!(locked("package-lock.json") && locked("requirements.txt"));
}

#[tokio::test]
async fn a_package_that_does_not_exist_is_an_install_failure() {
    let bench = bench(ServerLimits::default()).await;
    let absent = record("absent", "uvx", &["mcpmill-no-such-package-here==9.9.9"]);
    let error = bench.connector.connect(&absent, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::InstallFailed);
    assert!(error.stderr.unwrap().contains("mcpmill-no-such-package-here"), "{}", error.detail);
}
