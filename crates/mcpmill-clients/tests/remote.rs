//! Remote servers on loopback: both transports, and what they get wrong.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod remote_server;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use mcpmill_clients::http::Reach;
use mcpmill_clients::{
    assets::Assets,
    cage::{Cage, Host},
    install::Installer,
    mcp::{CagedConnector, ServerLimits},
};
use mcpmill_core::{
    edge::{ConnectError, Connector, ToolErrorKind, ToolRunner, WorldSpec},
    record::{EnvVar, HarvestOutcome, Launch, ServerRecord},
};
use remote_server::{Remote, SECRET};
use serde_json::Map;
use tokio::net::TcpListener;

fn limits() -> ServerLimits {
    let (start, answer) = (Duration::from_secs(30), Duration::from_secs(30));
    ServerLimits { start, answer, message_bytes: 100_000, output_bytes: 400_000, ..ServerLimits::default() }
}

async fn connector() -> CagedConnector {
    let folder = std::env::temp_dir();
    let cage = Cage::unsandboxed(Host::discover().await).unwrap();
    let installer = Installer::new(cage.clone(), Assets::new(folder.join("none")), folder.join("none"));
    CagedConnector::new(cage, installer, folder.join("none")).with_limits(limits())
}

/// Reaches this host of the loopback, and one that is not there.
fn reach(remote: &Remote) -> Option<Reach> {
    let host = remote.url.trim_start_matches("http://").trim_end_matches("/mcp");
    // Nobody listens at the second one.
    Some(Reach::new(vec![host.to_owned(), "127.0.0.1:1".to_owned()]).unwrap())
}

fn record(launch: Launch) -> ServerRecord {
    mcpmill_testkit::server("remote", launch)
}

async fn connect(remote: &Remote) -> Result<Box<dyn ToolRunner>, ConnectError> {
    connect_within(remote, limits()).await
}

async fn connect_within(remote: &Remote, limits: ServerLimits) -> Result<Box<dyn ToolRunner>, ConnectError> {
    let launch = Launch::StreamableHttp { url: remote.url.clone(), headers: Vec::new() };
    let connector = connector().await.with_limits(limits).with_remote(reach(remote));
    connector.connect(&record(launch), &WorldSpec::default()).await
}

async fn refusal(mode: &'static str) -> (HarvestOutcome, String) {
    let error = connect(&Remote::start(mode).await).await.map(|_| ()).unwrap_err();
    (error.outcome, error.detail)
}

/// It lists its tool verbatim and can be called.
async fn works(server: &dyn ToolRunner) {
    let page = server.list_tools(None).await.unwrap();
    assert_eq!(page.tools[0].input_schema.to_string(), r#"{"type":"object","properties":{"z":{},"a":{"default":1.0}}}"#);
    assert_eq!(server.call_tool("écho", &Map::new()).await.unwrap().text(), "écho");
}

#[tokio::test]
async fn answers_come_as_json_or_as_events() {
    for mode in ["json", "events", "moved", "batch", "batch-events", "marked"] {
        let remote = Remote::start(mode).await;
        let server = connect(&remote).await.unwrap();
        let info = server.info().clone();
        assert_eq!(
            (info.transport.as_str(), info.era.as_str(), info.protocol_version.as_str()),
            ("streamable-http", "initialize", "2025-06-18")
        );
        works(server.as_ref()).await;
        server.close().await;
        let asked = remote.asked();
        let list = asked.iter().rfind(|asked| asked.message["method"] == "tools/list").unwrap();
        assert_eq!(list.header("mcp-protocol-version"), Some("2025-06-18"));
        if mode == "json" {
            assert_eq!(list.header("mcp-session-id"), Some("session-1"));
            assert_eq!(asked.last().unwrap().method, "DELETE");
        }
    }
}

#[tokio::test]
async fn the_old_transport_is_tried_when_the_new_one_is_refused() {
    let remote = Remote::start("sse").await;
    let server = connect(&remote).await.unwrap();
    assert_eq!(server.info().transport, "sse");
    works(server.as_ref()).await;
    server.close().await;
    let launch = Launch::Sse { url: remote.url.clone(), headers: Vec::new() };
    let server = connector().await.with_remote(reach(&remote)).connect(&record(launch), &WorldSpec::default()).await.unwrap();
    works(server.as_ref()).await;
    server.close().await;
}

#[tokio::test]
async fn servers_of_the_other_era_are_discovered() {
    let remote = Remote::start("modern").await;
    let server = connect(&remote).await.unwrap();
    let info = server.info().clone();
    assert_eq!((info.era.as_str(), info.protocol_version.as_str()), ("discover", "2026-07-28"));
    assert_eq!(info.offered, ["2026-07-28"]);
    works(server.as_ref()).await;
    server.close().await;
    let asked = remote.asked();
    let call = asked.iter().rfind(|asked| asked.message["method"] == "tools/call").unwrap();
    assert_eq!(call.header("mcp-method"), Some("tools/call"));
    assert_eq!(call.header("mcp-name"), Some("=?base64?w6ljaG8=?="));
    assert_eq!(call.header("mcp-protocol-version"), Some("2026-07-28"));
}

#[tokio::test]
async fn what_is_no_server_is_told_apart() {
    let (outcome, detail) = refusal("locked").await;
    assert_eq!(outcome, HarvestOutcome::NeedsCredentials);
    assert_eq!(detail, "it refused with status 401; it wants `Bearer` in the header `Authorization`");
    let later = "it wants to be asked later: status 503, with `Retry-After` of 3600 s";
    assert_eq!(refusal("too-busy").await, (HarvestOutcome::LaunchFailed, later.to_owned()));
    let later = "it wants to be asked later: status 429";
    assert_eq!(refusal("curt").await, (HarvestOutcome::LaunchFailed, later.to_owned()));
    assert_eq!(refusal("gone").await, (HarvestOutcome::LaunchFailed, "it answered with status 410".to_owned()));
    let html = "it does not speak MCP: it answers with `text/html`";
    assert_eq!(refusal("html").await, (HarvestOutcome::Protocol, html.to_owned()));
    assert_eq!(refusal("away").await.0, HarvestOutcome::Protocol);
    let version = "it answered with version `2099-01-01`, which was not offered";
    assert_eq!(refusal("future").await, (HarvestOutcome::Protocol, version.to_owned()));
    let (outcome, detail) = refusal("elsewhere").await;
    assert_eq!(outcome, HarvestOutcome::Protocol);
    assert!(detail.contains("another origin"), "{detail}");
}

#[tokio::test]
async fn a_busy_server_gets_the_time_it_asks_for() {
    let remote = Remote::start("busy").await;
    let start = Instant::now();
    let server = connect(&remote).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(500), "not at once");
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    assert!(start.elapsed() >= Duration::from_millis(2500));
    server.close().await;
    let asked = remote.asked();
    let count = |method: &str| asked.iter().filter(|asked| asked.message["method"] == method).count();
    assert_eq!((count("initialize"), count("tools/list")), (2, 3));
}

#[tokio::test]
async fn an_endpoint_is_relative_to_where_a_redirect_ended() {
    let remote = Remote::start("sse-moved").await;
    let launch = Launch::Sse { url: remote.url.clone(), headers: Vec::new() };
    let server = connector().await.with_remote(reach(&remote)).connect(&record(launch), &WorldSpec::default()).await.unwrap();
    works(server.as_ref()).await;
    server.close().await;
}

#[tokio::test]
async fn failures_of_a_session_have_their_kind() {
    let kinds = [
        ("expires", ToolErrorKind::Disconnected, "its session has expired"),
        (
            "locked-list",
            ToolErrorKind::NeedsCredentials,
            "it refused with status 403; it wants a credential in the header `Authorization`",
        ),
        ("too-busy-list", ToolErrorKind::Busy, "it wants to be asked later: status 429, with `Retry-After` of 3600 s"),
        ("endless", ToolErrorKind::Limit, "it sent too much"),
        ("slow", ToolErrorKind::TimedOut, "no answer within 1 s"),
        ("slow-events", ToolErrorKind::TimedOut, "no answer within 1 s"),
        ("slow-head", ToolErrorKind::TimedOut, "no answer within 1 s"),
        ("huge", ToolErrorKind::Limit, "it sent too much"),
        ("bomb", ToolErrorKind::Limit, "it sent too much"),
        ("cut", ToolErrorKind::Disconnected, "its answer was cut off"),
        ("never-resumes", ToolErrorKind::TimedOut, "no answer within 1 s"),
    ];
    for (mode, kind, detail) in kinds {
        let remote = Remote::start(mode).await;
        // What is sent at once gets the time a busy machine needs; what never comes need not be waited for.
        let answer = Duration::from_secs(if kind == ToolErrorKind::TimedOut { 1 } else { 60 });
        let server = connect_within(&remote, ServerLimits { answer, ..limits() }).await.unwrap();
        let start = Instant::now();
        let error = server.list_tools(None).await.unwrap_err();
        assert_eq!((error.kind, error.detail.as_str()), (kind, detail), "{mode}");
        assert!(start.elapsed() < answer + Duration::from_secs(10), "{mode}");
        server.close().await;
    }
}

#[tokio::test]
async fn remote_servers_are_off_until_they_are_switched_on() {
    let remote = Remote::start("json").await;
    let launch = Launch::StreamableHttp { url: remote.url.clone(), headers: Vec::new() };
    let error = connector().await.connect(&record(launch), &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::Unsupported);
    assert!(error.detail.starts_with("remote servers are off"), "{error}");
    assert!(remote.asked().is_empty());
    let elsewhere = Some(Reach::new(vec!["127.0.0.1:2".into()]).unwrap());
    let launch = Launch::StreamableHttp { url: remote.url.clone(), headers: Vec::new() };
    let refused = connector().await.with_remote(elsewhere).connect(&record(launch), &WorldSpec::default()).await;
    assert_eq!(refused.err().unwrap().detail, "its address is not a public one");
    assert!(remote.asked().is_empty());
}

#[tokio::test]
async fn variables_and_headers_are_filled_and_stay_secret() {
    let remote = Remote::start("json").await;
    let variable = |name: &str, value: Option<&str>, secret| EnvVar {
        name: name.to_owned(),
        value: value.map(str::to_owned),
        secret,
        required: true,
    };
    let headers = vec![variable("X-Key", None, true), variable("X-Team", Some("team {team}"), false)];
    let launch = Launch::StreamableHttp { url: format!("{}?token={{TOKEN}}", remote.url), headers };
    let mut server = record(launch);
    server.env = vec![variable("TOKEN", None, true), variable("team", Some("a"), false)];
    let connector = connector().await.with_remote(reach(&remote));
    let error = connector.connect(&server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(
        (error.outcome, error.detail.as_str()),
        (HarvestOutcome::NeedsCredentials, "it needs `127.0.0.1/TOKEN`, `127.0.0.1/X-Key`")
    );
    assert!(remote.asked().is_empty());

    let given = |credentials: [(&str, &str); 2]| -> HashMap<String, String> {
        credentials.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    // What was given for another host, or for servers that run here, is not sent to this one.
    let elsewhere = given([("TOKEN", "secret value/2"), ("host.example/X-Key", "secret-value-1")]);
    let error =
        connector.clone().with_credentials(elsewhere).connect(&server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::NeedsCredentials);
    assert!(remote.asked().is_empty());

    let connector =
        connector.with_credentials(given([("127.0.0.1/TOKEN", "secret value/2"), ("127.0.0.1/X-Key", "secret-value-1")]));
    let runner = connector.connect(&server, &WorldSpec::default()).await.unwrap();
    runner.close().await;
    let asked = &remote.asked()[0];
    assert_eq!(asked.path, "/mcp?token=secret%20value%2F2");
    assert_eq!((asked.header("x-key"), asked.header("x-team")), (Some("secret-value-1"), Some("team a")));

    let Launch::StreamableHttp { url, .. } = &mut server.launch else { panic!() };
    *url = "http://127.0.0.1:1/mcp?token={TOKEN}".to_owned();
    let error = connector.connect(&server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::LaunchFailed);
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn streams_that_break_off_are_taken_up_again() {
    let remote = Remote::start("resumes").await;
    let server = connect(&remote).await.unwrap();
    assert_eq!(server.list_tools(None).await.unwrap().tools.len(), 1);
    let resumed: Vec<_> = remote.asked().into_iter().filter(|asked| asked.header("last-event-id").is_some()).collect();
    assert_eq!(resumed.len(), 1);
    assert_eq!((resumed[0].method.as_str(), resumed[0].header("last-event-id")), ("GET", Some("7")));
    assert_eq!(resumed[0].header("mcp-session-id"), Some("session-1"));
    server.close().await;
}

#[tokio::test]
async fn what_a_server_asks_on_its_own_stream_is_answered() {
    let remote = Remote::start("asks").await;
    let server = connect(&remote).await.unwrap();
    assert_eq!(server.call_tool("x", &Map::new()).await.unwrap().text(), "file:///home/user/work");
    server.close().await;
}

#[tokio::test]
async fn a_call_that_fails_fails_alone_and_for_its_own_reason() {
    let server = connect(&Remote::start("one-of-two").await).await.unwrap();
    let nothing = Map::new();
    let (late, cut, refused) = tokio::join!(
        server.call_tool("late", &nothing),
        server.call_tool("cut", &nothing),
        server.call_tool("refused", &nothing)
    );
    assert_eq!(late.unwrap().text(), "late");
    assert_eq!(cut.unwrap_err().detail, "its answer was cut off");
    assert_eq!(refused.unwrap_err().detail, "it answered with status 503");
    assert_eq!(server.call_tool("after", &nothing).await.unwrap().text(), "after");
    server.close().await;
}

#[tokio::test]
async fn a_slow_start_ends_in_time() {
    let limits = ServerLimits { start: Duration::from_secs(3), ..limits() };
    for mode in ["slow-start", "slow-start-events", "slow-endpoint"] {
        let remote = Remote::start(mode).await;
        let (url, headers) = (remote.url.clone(), Vec::new());
        let launch = if mode == "slow-endpoint" { Launch::Sse { url, headers } } else { Launch::StreamableHttp { url, headers } };
        let connector = connector().await.with_limits(limits).with_remote(reach(&remote));
        let start = Instant::now();
        let error = connector.connect(&record(launch), &WorldSpec::default()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.outcome, HarvestOutcome::TimedOut, "{mode}: {error}");
        assert!(start.elapsed() < Duration::from_secs(15), "{mode}");
    }
}

#[tokio::test]
async fn many_values_in_few_bytes_are_too_much() {
    let remote = Remote::start("many-values").await;
    let (message_bytes, output_bytes, answer) = (16 << 20, 64 << 20, Duration::from_secs(60));
    let server = connect_within(&remote, ServerLimits { message_bytes, output_bytes, answer, ..limits() }).await.unwrap();
    let error = server.list_tools(None).await.unwrap_err();
    assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::Limit, "it sent too much"));
    server.close().await;
}

#[tokio::test]
async fn both_eras_are_probed_and_each_version_told_once() {
    let remote = Remote::start("both").await;
    let launch = Launch::StreamableHttp { url: remote.url.clone(), headers: Vec::new() };
    let connector = connector().await.with_remote(reach(&remote)).with_probe_eras(true);
    let server = connector.connect(&record(launch), &WorldSpec::default()).await.unwrap();
    let info = server.info().clone();
    assert_eq!((info.era.as_str(), info.offered), ("initialize", vec!["2025-06-18".to_owned(), "2026-07-28".to_owned()]));
    works(server.as_ref()).await;
    server.close().await;
}

#[tokio::test]
async fn input_is_given_as_far_as_there_is_any() {
    let nothing = Map::new();
    let server = connect(&Remote::start("nosy").await).await.unwrap();
    let error = server.call_tool("x", &nothing).await.unwrap_err();
    assert_eq!(
        (error.kind, error.detail.as_str()),
        (ToolErrorKind::Protocol, "it wants `sampling/createMessage`, which is not given")
    );
    server.close().await;
    let remote = Remote::start("insatiable").await;
    let server = connect(&remote).await.unwrap();
    let error = server.call_tool("x", &nothing).await.unwrap_err();
    assert_eq!((error.kind, error.detail.as_str()), (ToolErrorKind::Protocol, "it wanted input 5 times and gave no result"));
    server.close().await;
    let asked = remote.asked();
    let calls: Vec<_> = asked.iter().filter(|asked| asked.message["method"] == "tools/call").collect();
    assert_eq!(calls.len(), 5);
    assert_eq!(calls[1].message["params"]["inputResponses"]["a"]["roots"][0]["uri"], "file:///home/user/work");
}

#[tokio::test]
async fn arguments_that_headers_want_go_into_them_listed_or_not() {
    let remote = Remote::start("mirrors").await;
    let server = connect(&remote).await.unwrap();
    let arguments = Map::from_iter([("place".to_owned(), "Ulm".into())]);
    assert_eq!(server.call_tool("goes", &arguments).await.unwrap().text(), "goes");
    let page = server.list_tools(None).await.unwrap();
    assert_eq!((page.tools.len(), page.tools[0].name.as_str()), (1, "goes"));
    assert_eq!(page.refused, ["`wrong` has `x-mcp-header` with a name that no header can have"]);
    server.close().await;
    let asked = remote.asked();
    let call = asked.iter().find(|asked| asked.message["method"] == "tools/call").unwrap();
    assert_eq!(call.header("mcp-param-place"), Some("Ulm"));
}

/// A key stands in a header or in the address; neither follows a redirect or an endpoint to another origin.
#[tokio::test]
async fn a_key_goes_nowhere_else() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = other.local_addr().unwrap().to_string();
    for mode in ["away-to", "elsewhere-to"] {
        let remote = Remote::start_towards(mode, &elsewhere).await;
        let key = EnvVar { name: "X-Key".to_owned(), value: None, secret: true, required: true };
        let launch = Launch::StreamableHttp { url: format!("{}?key={{TOKEN}}", remote.url), headers: vec![key] };
        let mut server = record(launch);
        server.env = vec![EnvVar { name: "TOKEN".to_owned(), value: None, secret: true, required: true }];
        let given = ["127.0.0.1/X-Key", "127.0.0.1/TOKEN"].map(|name| (name.to_owned(), "secret-value-1".to_owned())).into();
        // The other place may be reached; it is not gone to all the same.
        let allowed = vec![remote.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned(), elsewhere.clone()];
        let connector = connector().await.with_remote(Some(Reach::new(allowed).unwrap())).with_credentials(given);
        let error = connector.connect(&server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.outcome, HarvestOutcome::Protocol, "{mode}: {error}");
        assert!(remote.asked()[0].header("x-key").is_some(), "the server itself gets it");
        let nobody = tokio::time::timeout(Duration::from_millis(100), other.accept()).await;
        assert!(nobody.is_err(), "{mode}: somebody came");
    }
}

/// What published configs leave open is asked for, and filled in the form they write.
#[tokio::test]
async fn nothing_is_sent_with_a_hole_in_it() {
    let remote = Remote::start("json").await;
    let header =
        |value: Option<&str>| EnvVar { name: "X-Key".to_owned(), value: value.map(str::to_owned), secret: false, required: true };
    let ends = async |address: &str, value: Option<&str>| {
        let launch = Launch::StreamableHttp { url: format!("{}{address}", remote.url), headers: vec![header(value)] };
        let given =
            ["X-Key", "API_KEY", "KEY", "YOUR_API_KEY"].map(|name| (format!("127.0.0.1/{name}"), format!("given {name}")));
        let connector = connector().await.with_remote(reach(&remote)).with_credentials(given.into());
        let before = remote.asked().len();
        match connector.connect(&record(launch), &WorldSpec::default()).await {
            Err(error) => {
                assert_eq!(remote.asked().len(), before, "nothing is sent");
                error.detail
            }
            Ok(runner) => {
                runner.close().await;
                let asked = &remote.asked()[before];
                format!("{} {}", asked.path, asked.header("x-key").unwrap_or_default())
            }
        }
    };
    assert_eq!(ends("?key=${KEY}", Some("Bearer ${env:KEY}")).await, "/mcp?key=given%20KEY Bearer given KEY");
    assert_eq!(ends("?apiKey=<redacted>", Some("<your org>")).await, "/mcp?apiKey=given%20API_KEY given X-Key");
    assert_eq!(ends("?k=YOUR_API_KEY", None).await, "/mcp?k=given%20YOUR_API_KEY given X-Key");
    assert_eq!(ends("/<workspace>", Some("${GONE}")).await, "it needs `127.0.0.1/WORKSPACE`, `127.0.0.1/GONE`");
}

#[tokio::test]
async fn no_half_of_a_secret_is_left_where_words_are_cut() {
    for mode in ["blurts", "blurts-type"] {
        let remote = Remote::start(mode).await;
        let key = EnvVar { name: "X-Key".into(), value: None, secret: true, required: true };
        let server = record(Launch::StreamableHttp { url: remote.url.clone(), headers: vec![key] });
        let given = [("127.0.0.1/X-Key".to_owned(), SECRET.to_owned())].into();
        let connector = connector().await.with_remote(reach(&remote)).with_credentials(given);
        let error = connector.connect(&server, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
        let detail = error.detail.to_lowercase();
        assert!(detail.contains("xx<127.0.0") || detail.ends_with("another type of content than json or events"), "{detail}");
        assert!(!detail.contains("planted"), "{detail}");
    }
}

#[tokio::test]
async fn credentials_are_not_sent_in_the_clear() {
    let key = EnvVar { name: "X-Key".to_owned(), value: None, secret: true, required: true };
    let launch = Launch::StreamableHttp { url: "http://host.invalid/mcp".to_owned(), headers: vec![key] };
    let given = [("host.invalid/X-Key".to_owned(), "secret-value-1".to_owned())].into();
    let connector = connector().await.with_remote(Some(Reach::new(Vec::new()).unwrap())).with_credentials(given);
    let error = connector.connect(&record(launch), &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.outcome, HarvestOutcome::Unsupported);
    assert!(error.detail.contains("unencrypted") && !error.detail.contains("secret"), "{error}");
}
