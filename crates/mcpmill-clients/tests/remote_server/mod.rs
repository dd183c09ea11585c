//! An MCP server on loopback that gets wrong what its mode says.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};

/// One HTTP request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub head: String,
    pub message: Value,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)))
            .map(|(_, v)| v.trim())
    }
}

/// A server on loopback that behaves as its mode says.
pub struct Remote {
    pub url: String,
    pub asked: Arc<Mutex<Vec<Asked>>>,
}

type Stream = Arc<Mutex<Option<mpsc::UnboundedSender<String>>>>;

impl Remote {
    pub async fn start(mode: &'static str) -> Self {
        Self::start_towards(mode, "localhost:1").await
    }

    /// One that redirects, or points, to another host.
    pub async fn start_towards(mode: &'static str, elsewhere: &str) -> Self {
        let elsewhere: Arc<str> = elsewhere.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, events) = (Arc::clone(&asked), Stream::default());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, events, elsewhere) = (Arc::clone(&log), Arc::clone(&events), Arc::clone(&elsewhere));
                let mode = mode.trim_end_matches("-to");
                tokio::spawn(async move { serve(stream, mode, &elsewhere, &log, &events).await });
            }
        });
        Self { url, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
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

/// What the server was given, and says where it should not.
pub const SECRET: &str = "Planted/Value-0123456789";
/// Half an event.
const CUT: &str = "data: {\"jsonrpc\"";
/// Time between two bytes of a server that has all the time of the world.
const SLOW: Duration = Duration::from_millis(100);
const TOOL: &str = r#"{"z":1,"name":"écho","inputSchema":{"type":"object","properties":{"z":{},"a":{"default":1.0}}}}"#;

fn answer(message: &Value, mode: &str) -> Option<String> {
    let id = message.get("id")?;
    let version = if mode == "future" { "2099-01-01" } else { "2025-06-18" };
    let result = match message["method"].as_str()? {
        "initialize" if mode == "blurts" => {
            let message = "x".repeat(990) + SECRET;
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": message}}).to_string());
        }
        "initialize" if matches!(mode, "modern" | "nosy" | "insatiable" | "mirrors") => {
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32022, "message": "unsupported", "data": {"supported": ["2026-07-28"]}}}).to_string());
        }
        "initialize" => {
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": mode, "version": "1"}})
                .to_string()
        }
        "server/discover" if matches!(mode, "modern" | "both" | "nosy" | "insatiable" | "mirrors") => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": mode, "version": "1"}},
        })
        .to_string(),
        "tools/list" if mode == "mirrors" => {
            let tool = |name: &str, header: &str| json!({"name": name, "inputSchema": {"properties": {"place": {"type": "string", "x-mcp-header": header}}}});
            json!({"tools": [tool("goes", "Place"), tool("wrong", "no header")]}).to_string()
        }
        "tools/list" => format!(r#"{{"tools":[{TOOL}]}}"#),
        "tools/call" if mode == "nosy" => {
            let wanted = json!({"a": {"method": "sampling/createMessage", "params": {}}});
            json!({"resultType": "input_required", "inputRequests": wanted, "requestState": "s"}).to_string()
        }
        "tools/call" if mode == "insatiable" => {
            json!({"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}).to_string()
        }
        "tools/call" => {
            json!({"content": [{"type": "text", "text": message["params"]["name"]}], "resultType": "complete"}).to_string()
        }
        _ => {
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}).to_string());
        }
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

async fn serve(mut stream: TcpStream, mode: &str, elsewhere: &str, log: &Mutex<Vec<Asked>>, events: &Stream) {
    let Some(asked) = read(&mut stream).await else { return };
    log.lock().unwrap().push(asked.clone());
    let stream = &mut stream;
    let listing = asked.message["method"] == "tools/list";
    let old = matches!(mode, "sse" | "elsewhere" | "sse-moved");
    match (asked.method.as_str(), mode) {
        ("GET", "resumes" | "never-resumes") if asked.header("last-event-id").is_some() => resumed(stream, mode, &asked).await,
        ("GET", "slow-endpoint") => drip(stream, "text/event-stream", &"event: endpoint".repeat(99), 1, SLOW).await,
        ("GET", "asks") => event_stream(stream, mode, elsewhere, events).await,
        ("POST", "asks") if asked.message["method"] == "tools/call" => ask_aside(stream, &asked, log, events).await,
        ("POST", "asks") if asked.message["id"] == "q" => reply(stream, "202 Accepted", "text/plain", "", "").await,
        ("GET", "sse-moved") if asked.path == "/mcp" => {
            reply(stream, "307 Temporary Redirect", "text/plain", "Location: /deeper/sse\r\n", "").await;
        }
        ("POST", "sse-moved") if !asked.path.starts_with("/deeper/messages") => {
            reply(stream, "404 Not Found", "text/plain", "", "").await;
        }
        ("GET", _) if old => event_stream(stream, mode, elsewhere, events).await,
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
        (_, "busy")
            if listing && log.lock().unwrap().iter().filter(|asked| asked.message["method"] == "tools/list").count() < 3 =>
        {
            reply(stream, "429 Too Many Requests", "text/plain", "Retry-After: 1\r\n", "").await;
        }
        (_, "busy") if log.lock().unwrap().len() == 1 => {
            reply(stream, "503 Service Unavailable", "text/plain", "Retry-After: 0\r\n", "").await;
        }
        (_, "too-busy-list") if listing => {
            reply(stream, "429 Too Many Requests", "text/plain", "Retry-After: 3600\r\n", "").await;
        }
        (_, "too-busy") => reply(stream, "503 Service Unavailable", "text/plain", "Retry-After: 3600\r\n", "").await,
        (_, "curt") => reply(stream, "429 Too Many Requests", "text/plain", "", "").await,
        (_, "locked-list") if listing => reply(stream, "403 Forbidden", "text/plain", "", "").await,
        (_, "gone") => reply(stream, "410 Gone", "text/plain", "", "").await,
        (_, "html") => reply(stream, "200 OK", "text/html; charset=utf-8", "", "<html>hello</html>").await,
        (_, "blurts-type") => {
            let kind = format!("text/{}{SECRET}", "x".repeat(45));
            reply(stream, "200 OK", &kind, "", "<html>hello</html>").await;
        }
        (_, "away") => {
            reply(stream, "307 Temporary Redirect", "text/plain", &format!("Location: http://{elsewhere}/mcp\r\n"), "").await;
        }
        (_, "moved") if asked.path == "/mcp" => {
            reply(stream, "308 Permanent Redirect", "text/plain", "Location: /mcp/\r\n", "").await;
        }
        (_, "slow-start") => drip(stream, "application/json", &" ".repeat(1000), 1, SLOW).await,
        (_, "slow-start-events") => drip(stream, "text/event-stream", &":".repeat(1000), 1, SLOW).await,
        (_, "one-of-two") if asked.message["method"] == "tools/call" => one_of_two(stream, &asked).await,
        _ if listing => list(stream, mode, &asked).await,
        _ => speak(stream, mode, &asked).await,
    }
}

/// Asks by its own stream, and goes on with a call when it is told.
async fn ask_aside(stream: &mut TcpStream, call: &Asked, log: &Mutex<Vec<Asked>>, events: &Stream) {
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "roots/list"}).to_string();
    if let Some(events) = &*events.lock().unwrap() {
        events.send(question).ok();
    }
    let told = || log.lock().unwrap().iter().find(|asked| asked.message["id"] == "q").cloned();
    while told().is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    let uri = told().unwrap().message["result"]["roots"][0]["uri"].clone();
    let result = json!({"content": [{"type": "text", "text": uri}]});
    let text = json!({"jsonrpc": "2.0", "id": call.message["id"], "result": result}).to_string();
    reply(stream, "200 OK", "application/json", "", &text).await;
}

/// One call is cut off, another refused, the others go well.
async fn one_of_two(stream: &mut TcpStream, asked: &Asked) {
    match asked.message["params"]["name"].as_str() {
        Some("cut") => drip(stream, "text/event-stream", CUT, 100, Duration::ZERO).await,
        Some("refused") => reply(stream, "503 Service Unavailable", "text/plain", "", "").await,
        _ => {
            sleep(Duration::from_millis(400)).await;
            speak(stream, "one-of-two", asked).await;
        }
    }
}

/// Answers `tools/list`, well or not.
async fn list(stream: &mut TcpStream, mode: &str, asked: &Asked) {
    let (json, events) = ("application/json", "text/event-stream");
    match mode {
        "expires" => reply(stream, "404 Not Found", "text/plain", "", "").await,
        "endless" => drip(stream, events, &": x\n".repeat(200_000), 4096, Duration::ZERO).await,
        "slow" => drip(stream, json, &"x".repeat(1000), 1, SLOW).await,
        "slow-events" => drip(stream, events, &"data: x".repeat(100), 1, SLOW).await,
        "slow-head" => drip_head(stream).await,
        "huge" => drip(stream, json, &"[".repeat(100 << 20), 1 << 16, Duration::ZERO).await,
        "bomb" => {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(&vec![b'['; 100 << 20]).unwrap();
            let packed = packed.finish().unwrap();
            let head = format!("Content-Length: {}\r\nContent-Encoding: gzip\r\nContent-Type: {json}\r\n\r\n", packed.len());
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.ok();
            stream.write_all(&packed).await.ok();
        }
        "many-values" => drip(stream, json, &format!("[{}0]", "0,".repeat(2 << 20)), 1 << 16, Duration::ZERO).await,
        "resumes" | "never-resumes" => {
            let body = format!("id: 7\nretry: 100\ndata: \n\n{CUT}");
            drip(stream, events, &body, 100, Duration::ZERO).await;
        }
        "cut" => drip(stream, events, CUT, 4, Duration::ZERO).await,
        _ => speak(stream, mode, asked).await,
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
        "batch" => {
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
            reply(stream, "200 OK", "application/json", "", &format!("[{log},{text}]")).await;
        }
        "marked" => reply(stream, "200 OK", "application/json", "", &format!("\u{feff}{text}")).await,
        "batch-events" => {
            let body = format!("data: [{text}]\n\n");
            drip(stream, "text/event-stream", &body, 9, Duration::ZERO).await;
        }
        "modern" if asked.message["method"] == "initialize" => {
            reply(stream, "400 Bad Request", "application/json", "", &text).await;
        }
        _ => reply(stream, "200 OK", "application/json", "Mcp-Session-Id: session-1\r\n", &text).await,
    }
}

/// What follows after the last event that was seen: nothing yet, then the answer.
async fn resumed(stream: &mut TcpStream, mode: &str, asked: &Asked) {
    assert_eq!(asked.header("last-event-id"), Some("7"));
    let text = answer(&json!({"id": 1, "method": "tools/list"}), mode).unwrap();
    let body = if mode == "resumes" { format!("id: 8\ndata: {text}\n\n") } else { ": nothing\n\n".to_owned() };
    drip(stream, "text/event-stream", &body, 100, Duration::ZERO).await;
}

/// The head of an answer, a letter at a time.
async fn drip_head(stream: &mut TcpStream) {
    for byte in format!("HTTP/1.1 200 OK\r\nX-Slow: {}", "x".repeat(1000)).bytes() {
        if stream.write_all(&[byte]).await.is_err() {
            return;
        }
        sleep(SLOW).await;
    }
}

async fn event_stream(stream: &mut TcpStream, mode: &str, elsewhere: &str, events: &Stream) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    *events.lock().unwrap() = Some(sender);
    let place = match mode {
        "elsewhere" => format!("http://{elsewhere}/messages"),
        "sse-moved" => "messages?session=1".to_owned(),
        _ => "/messages?session=1".to_owned(),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: endpoint\ndata: {place}\n\n");
    stream.write_all(head.as_bytes()).await.ok();
    while let Some(text) = receiver.recv().await {
        for part in format!("event: message\ndata: {text}\n\n").as_bytes().chunks(9) {
            stream.write_all(part).await.ok();
        }
    }
}
