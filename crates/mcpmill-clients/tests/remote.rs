//! Remote servers on loopback: both transports, and what they get wrong.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
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
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};

/// One HTTP request as it came.
#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    head: String,
    message: Value,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)))
            .map(|(_, v)| v.trim())
    }
}

/// A server on loopback that behaves as its mode says.
struct Remote {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type Stream = Arc<Mutex<Option<mpsc::UnboundedSender<String>>>>;

impl Remote {
    async fn start(mode: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, events) = (Arc::clone(&asked), Stream::default());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, events) = (Arc::clone(&log), Arc::clone(&events));
                tokio::spawn(async move { serve(stream, mode, &log, &events).await });
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut words = head.split(' ');
            let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
            let mut asked = Asked { method, path, head, message: Value::Null };
            let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                asked.message = serde_json::from_slice(&bytes[end + 4..end + 4 + length]).unwrap_or_default();
                return Some(asked);
            }
        }
        match stream.read(&mut buffer).await.ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

async fn reply(stream: &mut TcpStream, status: &str, kind: &str, extra: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n{extra}\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.ok();
}

/// An answer without a length, a few bytes at a time.
async fn drip(stream: &mut TcpStream, kind: &str, body: &str, step: usize, pause: Duration) {
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n").as_bytes()).await.ok();
    for part in body.as_bytes().chunks(step) {
        if stream.write_all(part).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

const TOOL: &str = r#"{"z":1,"name":"écho","inputSchema":{"type":"object","properties":{"z":{},"a":{"default":1.0}}}}"#;

fn answer(message: &Value, mode: &str) -> Option<String> {
    let id = message.get("id")?;
    let version = if mode == "future" { "2099-01-01" } else { "2025-06-18" };
    let result = match message["method"].as_str()? {
        "initialize" if mode == "modern" => {
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32022, "message": "unsupported", "data": {"supported": ["2026-07-28"]}}}).to_string());
        }
        "initialize" => {
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": mode, "version": "1"}})
                .to_string()
        }
        "server/discover" if mode == "modern" => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": mode, "version": "1"}},
        })
        .to_string(),
        "tools/list" => format!(r#"{{"tools":[{TOOL}]}}"#),
        "tools/call" => {
            json!({"content": [{"type": "text", "text": message["params"]["name"]}], "resultType": "complete"}).to_string()
        }
        _ => {
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}).to_string());
        }
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

async fn serve(mut stream: TcpStream, mode: &str, log: &Mutex<Vec<Asked>>, events: &Stream) {
    let Some(asked) = read(&mut stream).await else { return };
    log.lock().unwrap().push(asked.clone());
    let stream = &mut stream;
    let listing = asked.message["method"] == "tools/list";
    let old = matches!(mode, "sse" | "elsewhere");
    match (asked.method.as_str(), mode) {
        ("GET", _) if old => event_stream(stream, mode, events).await,
        ("POST", _) if old && asked.path == "/mcp" => reply(stream, "405 Method Not Allowed", "text/plain", "", "no").await,
        ("POST", _) if old => {
            let text = answer(&asked.message, mode);
            reply(stream, "202 Accepted", "text/plain", "", "").await;
            if let (Some(text), Some(events)) = (text, &*events.lock().unwrap()) {
                events.send(text).ok();
            }
        }
        ("GET", _) => reply(stream, "405 Method Not Allowed", "text/plain", "", "").await,
        ("DELETE", _) => reply(stream, "200 OK", "text/plain", "", "").await,
        (_, "locked") => {
            let challenge = "WWW-Authenticate: Bearer resource_metadata=\"x\"\r\n";
            reply(stream, "401 Unauthorized", "text/plain", challenge, "secret-value-1 is wrong").await;
        }
        (_, "gone") => reply(stream, "410 Gone", "text/plain", "", "").await,
        (_, "html") => reply(stream, "200 OK", "text/html; charset=utf-8", "", "<html>hello</html>").await,
        (_, "away") => reply(stream, "307 Temporary Redirect", "text/plain", "Location: http://localhost:1/mcp\r\n", "").await,
        (_, "moved") if asked.path == "/mcp" => {
            reply(stream, "308 Permanent Redirect", "text/plain", "Location: /mcp/\r\n", "").await;
        }
        (_, "expires") if listing => reply(stream, "404 Not Found", "text/plain", "", "").await,
        (_, "endless") if listing => drip(stream, "text/event-stream", &": x\n".repeat(200_000), 4096, Duration::ZERO).await,
        (_, "slow") if listing => drip(stream, "application/json", &"x".repeat(1000), 1, Duration::from_millis(100)).await,
        (_, "cut") if listing => drip(stream, "text/event-stream", "data: {\"jsonrpc\"", 4, Duration::ZERO).await,
        _ => speak(stream, mode, &asked).await,
    }
}

async fn speak(stream: &mut TcpStream, mode: &str, asked: &Asked) {
    let Some(text) = answer(&asked.message, mode) else { return reply(stream, "202 Accepted", "text/plain", "", "").await };
    match mode {
        "events" => {
            let noise = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "é"}});
            let body = format!(": hi\r\nevent: message\r\ndata: {noise}\r\n\r\nid: 7\r\ndata: {text}\r\n\r\n");
            drip(stream, "text/event-stream; charset=utf-8", &body, 7, Duration::ZERO).await;
        }
        "modern" if asked.message["method"] == "initialize" => {
            reply(stream, "400 Bad Request", "application/json", "", &text).await;
        }
        _ => reply(stream, "200 OK", "application/json", "Mcp-Session-Id: session-1\r\n", &text).await,
    }
}

async fn event_stream(stream: &mut TcpStream, mode: &str, events: &Stream) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    *events.lock().unwrap() = Some(sender);
    let place = if mode == "elsewhere" { "http://localhost:1/messages" } else { "/messages?session=1" };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: endpoint\ndata: {place}\n\n");
    stream.write_all(head.as_bytes()).await.ok();
    while let Some(text) = receiver.recv().await {
        for part in format!("event: message\ndata: {text}\n\n").as_bytes().chunks(9) {
            stream.write_all(part).await.ok();
        }
    }
}

fn limits() -> ServerLimits {
    let (start, answer) = (Duration::from_secs(5), Duration::from_secs(1));
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
    ServerRecord {
        id: ServerRecord::identify(&launch),
        name: "remote".to_owned(),
        title: None,
        description: None,
        version: None,
        launch,
        env: Vec::new(),
        licence: None,
        sources: Vec::new(),
        world: Vec::new(),
        flags: Vec::new(),
        listed_tools: None,
    }
}

async fn connect(remote: &Remote) -> Result<Box<dyn ToolRunner>, ConnectError> {
    let launch = Launch::StreamableHttp { url: remote.url.clone(), headers: Vec::new() };
    connector().await.with_remote(reach(remote)).connect(&record(launch), &WorldSpec::default()).await
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
    for mode in ["json", "events", "moved"] {
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
async fn failures_of_a_session_have_their_kind() {
    let kinds = [
        ("expires", ToolErrorKind::Disconnected, "its session has expired"),
        ("endless", ToolErrorKind::Limit, "it sent too much"),
        ("slow", ToolErrorKind::TimedOut, "no answer within 1 s"),
        ("cut", ToolErrorKind::Disconnected, "its answer was cut off"),
    ];
    for (mode, kind, detail) in kinds {
        let server = connect(&Remote::start(mode).await).await.unwrap();
        let start = Instant::now();
        let error = server.list_tools(None).await.unwrap_err();
        assert_eq!((error.kind, error.detail.as_str()), (kind, detail), "{mode}");
        assert!(start.elapsed() < Duration::from_secs(4), "{mode}");
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
