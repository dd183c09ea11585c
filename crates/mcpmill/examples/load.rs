//! Measures rows a second from a row's prompt to its sealed Parquet, with a chat endpoint that answers at once.
//!
//!     cargo run --release --example load -- FOLDER [ROUNDS] [VENVS]
//!
//! The endpoint is a process of its own on loopback, on the same machine. Every row goes the way of a stage's rows: a
//! prompt file is filled in, the request is noted in the exchange store, sent, its reply is stored, read and checked,
//! the row is written to the journal, and in the end there are sorted Parquet files. Everything is made below FOLDER,
//! on its disk. With VENVS, a folder of Python environments `curator`, `dd` and `dist`, the same rows are also made by
//! Curator, Data Designer and distilabel, in turns (`load_peers.py`). The rounds of one measure are medians.
//!
//!     load -- FOLDER memory ROWS…     resident memory, one process for each number of rows
//!     load -- FOLDER latency MS       rows a second where each answer takes so long: 256 calls in flight, first with as
//!                                     many rows, then with a quarter more, so that calls are ready when one ends

#[path = "../src/reporter.rs"]
mod reporter;

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mcpmill_clients::chat::{Endpoint, EndpointSettings, Sampling};
use mcpmill_core::{
    account::Price,
    canonical::sha256_hex,
    drive::{Context, Done, Pace, drive_each},
    edge::{Mode, RecordedChat, Recorder},
    event::Events,
    id::SampleId,
    record::{Message, Revision, Row, Sample, SampleKind},
};
use mcpmill_pipeline::{Meter, Question, ask, prompt::Prompt};
use mcpmill_store::{
    exchanges::SqliteExchanges,
    journal::{Journal, JournalOptions},
    run_dir::{RunDir, StageState},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// Rows of one round, ours and the peers': what a program takes to start weighs the same for all.
const ROWS: usize = 20_000;

/// What the endpoint says to everything.
const ANSWER: &str = "Please tell me how the harbour of a small town was run a hundred years ago, and who kept its books, \
                      so that I can write two pages on it for the museum before the end of the week.";

const PROMPT: &str = "+++\nrole = \"generator\"\ninputs = [\"topic\"]\nformat = \"text\"\ntemperature = 0.7\ntop_p = 0.9\n\
                      max_tokens = 100\ntries = 2\n+++\n## system\nWrite one request that a person would put to an assistant. \
                      One or two sentences, no greeting.\n\n## user\nTopic: {{ topic }}\n";

/// A row as a stage is given it.
#[derive(Serialize)]
struct Topic {
    id: String,
    topic: String,
}

impl Topic {
    fn nth(place: usize) -> Self {
        let topic = format!("the history of harbour {place} and of the people who worked there");
        Self { id: format!("top_{}", &sha256_hex(&topic)[..16]), topic }
    }
}

impl Row for Topic {
    fn row_id(&self) -> &str {
        &self.id
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", ms] => serve(Duration::from_millis(ms.parse()?)),
        ["round", folder, port, rows, in_flight, calls] => {
            round(Path::new(folder), port, rows.parse()?, [in_flight.parse()?, calls.parse()?])
        }
        [folder, "memory", ref rows @ ..] => memory(Path::new(folder), rows),
        [folder, "latency", ms] => latency(Path::new(folder), ms),
        [folder, ref rest @ ..] => {
            let rounds = rest.first().map_or(Ok(3), |rounds| rounds.parse())?;
            throughput(Path::new(folder), rounds, rest.get(1).map(Path::new))
        }
        [] => bail!("name a folder to work in"),
    }
}

/// Rows a second without latency, beside the peers.
fn throughput(folder: &Path, rounds: usize, venvs: Option<&Path>) -> Result<()> {
    let endpoint = Served::start("0")?;
    let peers: &[&str] = if venvs.is_some() { &["curator", "dd", "dist"] } else { &[] };
    let mut told: Vec<(String, Vec<f64>)> = Vec::new();
    let mut note = |name: String, rate: f64| match told.iter_mut().find(|(known, _)| *known == name) {
        Some((_, rates)) => rates.push(rate),
        None => told.push((name, vec![rate])),
    };
    for round in 1..=rounds {
        for concurrency in [64, 256] {
            let made = one_round(folder, &endpoint, ROWS, [concurrency; 2])?;
            println!("round {round}: mcpmill at {concurrency}: {made}");
            note(format!("mcpmill at {concurrency}"), made["rows_per_s"].as_f64().unwrap_or_default());
        }
        for peer in peers {
            let python = venvs.context("no environments")?.join(peer).join("bin/python");
            let made = peer_round(&python, peer, folder, &endpoint)?;
            println!("round {round}: {peer}: {made}");
            note((*peer).to_owned(), made["rows_per_s"].as_f64().unwrap_or_default());
        }
    }
    println!("\nmedians of {rounds} rounds, rows a second");
    let ours = told.first().map_or(0.0, |(_, rates)| median(rates));
    for (name, rates) in &told {
        let rate = median(rates);
        let ratio = if name.starts_with("mcpmill") {
            String::new()
        } else {
            format!("   mcpmill at 64 is {:.1} times as fast", ours / rate)
        };
        println!("{name:<16} {rate:>8.0}{ratio}");
    }
    Ok(())
}

/// The most memory a process takes for so many rows.
fn memory(folder: &Path, rows: &[&str]) -> Result<()> {
    let endpoint = Served::start("0")?;
    for rows in rows {
        println!("{rows} rows: {}", one_round(folder, &endpoint, rows.parse()?, [64; 2])?);
    }
    Ok(())
}

/// The share of what 256 callers can ask for at most.
fn latency(folder: &Path, ms: &str) -> Result<()> {
    let endpoint = Served::start(ms)?;
    let ideal = 256.0 / (ms.parse::<f64>()? / 1e3);
    for in_flight in [256, 320] {
        let mut rates = Vec::new();
        for _ in 0..3 {
            let made = one_round(folder, &endpoint, ROWS, [in_flight, 256])?;
            println!("{in_flight} rows in flight: {made}");
            rates.push(made["asked_per_s"].as_f64().unwrap_or_default());
        }
        println!("{:.0} of {ideal:.0} calls a second: {:.1} %", median(&rates), 100.0 * median(&rates) / ideal);
    }
    Ok(())
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// A round in a process of its own, so that what it takes can be told apart.
fn one_round(folder: &Path, endpoint: &Served, rows: usize, [in_flight, calls]: [usize; 2]) -> Result<Value> {
    let scratch = tempfile::tempdir_in(folder)?;
    let mut command = Command::new(env::current_exe()?);
    command.arg("round").arg(scratch.path()).args([&endpoint.port, &rows.to_string()]);
    command.args([in_flight.to_string(), calls.to_string()]);
    last_line(&mut command)
}

fn peer_round(python: &Path, peer: &str, folder: &Path, endpoint: &Served) -> Result<Value> {
    let scratch = tempfile::tempdir_in(folder)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/load_peers.py");
    let mut command = Command::new(python);
    command.arg(script).args([peer, &endpoint.port, &ROWS.to_string()]).current_dir(scratch.path());
    last_line(&mut command)
}

/// The JSON in the last line that a command prints.
fn last_line(command: &mut Command) -> Result<Value> {
    let output = command.stderr(Stdio::piped()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_str(text.lines().last().context("it printed nothing")?)?)
}

/// Makes the rows, so many in flight and so many of their calls, and prints what that took.
fn round(folder: &Path, port: &str, rows: usize, at_once: [usize; 2]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let started = Instant::now();
    let asked = runtime.block_on(make(folder, port, rows, at_once))?;
    let seconds = started.elapsed().as_secs_f64();
    let told = json!({
        "rows_per_s": (rows as f64 / seconds).round(), "asked_per_s": (rows as f64 / asked).round(),
        "seconds": (seconds * 10.0).round() / 10.0, "cpu_ms_per_row": cpu_seconds() * 1e3 / rows as f64, "peak_mb": peak_mb(),
    });
    println!("{told}");
    Ok(())
}

/// Returns the seconds until the last row was in the journal.
async fn make(folder: &Path, port: &str, rows: usize, [concurrency, calls]: [usize; 2]) -> Result<f64> {
    let started = Instant::now();
    let run = RunDir::create(&folder.join("runs"), "2026-01-01", &"0".repeat(64), "bench")?;
    let StageState::Open(stage) = run.stage("3-generate", &"0".repeat(64))? else { bail!("the run is not new") };
    let journal = Journal::<Sample>::open(stage, JournalOptions::default())?;
    let store = SqliteExchanges::open(&folder.join("exchanges.sqlite"), run.info().store_id())?;
    let recorder = Arc::new(Recorder::new(Arc::new(store), Mode::Reuse));
    let model = RecordedChat::new(Arc::new(endpoint(port, calls)?), Arc::clone(&recorder));
    let prompt = Prompt::parse("load", PROMPT)?;
    let (events, stream) = Events::channel();
    let reporter = reporter::Reporter::spawn(stream, Some(&run.path().join("events.jsonl")))?;
    let cx = Context { stage: "3-generate".into(), events, cancel: CancellationToken::new(), recorder };
    let pace = Pace { concurrency, max_failure_rate: 0.0 };
    let work = |row: Topic| sample(row, &model, &prompt);
    let summary = drive_each(rows, Topic::nth, pace, &cx, &journal, work).await?;
    ensure!(summary.kept == rows as u64, "not every row was kept: {summary:?}");
    let asked = started.elapsed().as_secs_f64();
    journal.finish(&summary)?;
    drop((cx, model));
    reporter.await?;
    Ok(asked)
}

fn endpoint(port: &str, concurrency: usize) -> Result<Endpoint> {
    Ok(Endpoint::new(EndpointSettings {
        base_url: format!("http://127.0.0.1:{port}/v1"),
        model: "loopback".into(),
        api: None,
        key: None,
        concurrency,
        requests_per_minute: None,
        tokens_per_minute: None,
        retries: 0,
        timeout: Duration::from_secs(60),
        give_up_after: Duration::from_secs(60),
        price: Some(Price { input: 1.0, output: 2.0, ..Price::default() }),
        sampling: Sampling::default(),
        extra: serde_json::Map::new(),
        tool_schema: None,
    })?)
}

async fn sample(row: Topic, model: &RecordedChat, prompt: &Prompt) -> Done<Sample> {
    let mut meter = Meter::default();
    let question = Question { prompt, inputs: json!({ "topic": row.topic }), schema: None, row: &row.id };
    let asked =
        ask(model, &question, &mut meter, |reply| if reply.len() > 10 { Ok(reply.to_owned()) } else { Err("short".into()) });
    let mut done = match asked.await {
        Err(failure) => Done::none(failure.outcome(&row.id)),
        Ok(instruction) => {
            let revision = Revision {
                step: "instruct".into(),
                prompt: Some(prompt.hash.clone()),
                model: Some(model.model().to_owned()),
                parent: None,
                text: instruction.clone(),
            };
            let sample = Sample {
                id: SampleId::of(&row.id),
                kind: SampleKind::Single,
                tool_ids: vec![],
                withheld: vec![],
                server_ids: vec![],
                language: "en".into(),
                messages: vec![Message::user(&instruction)],
                instruction,
                lineage: vec![revision],
            };
            Done::kept(&row.id, vec![sample])
        }
    };
    done.outcome = done.outcome.with_usage(meter.usage, meter.attempts);
    done
}

/// The endpoint in its process; it ends with this handle.
struct Served {
    child: Child,
    port: String,
}

impl Served {
    fn start(latency_ms: &str) -> Result<Self> {
        let mut child =
            Command::new(env::current_exe()?).args(["serve", latency_ms]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut port)?;
        Ok(Self { child, port: port.trim().to_owned() })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Answers chat completions until its input ends.
fn serve(latency: Duration) -> Result<()> {
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        let answer: Arc<[u8]> = answer().into();
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(converse(stream, latency, Arc::clone(&answer)));
        }
    })
}

fn answer() -> Vec<u8> {
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "loopback",
        "choices": [{ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": ANSWER } }],
        "usage": { "prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100 },
    });
    let body = body.to_string();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// One connection: requests with a length, one after the other.
async fn converse(mut stream: TcpStream, latency: Duration, answer: Arc<[u8]>) {
    stream.set_nodelay(true).ok();
    let mut read = Vec::with_capacity(8192);
    loop {
        let whole = loop {
            match whole(&read) {
                Some(length) if length <= read.len() => break length,
                _ if read.len() > 1 << 20 => return,
                _ => {}
            }
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
        };
        read.drain(..whole);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Bytes of the first request, once its head is there.
fn whole(read: &[u8]) -> Option<usize> {
    let head = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let length = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    };
    Some(head + read[..head].split(|byte| *byte == b'\n').find_map(length).unwrap_or(0))
}

/// Processor seconds of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Megabytes of this process at its largest.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1024
}
