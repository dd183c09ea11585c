//! Hundreds of rows through an endpoint that fails in every way: every row ends, sums are those of the endpoint, and no
//! received reply is asked for again.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mcpmill_clients::chat::{Endpoint, EndpointSettings, Sampling};
use mcpmill_core::{
    account::{Accounts, Charge, Price},
    drive::{Context, Done, Pace, Sink, SinkError, StageError, drive},
    edge::{ChatModel, ChatRequest, Exchange, Exchanges, Format, Mode, RecordedChat, Recorder, StoreError, Stored},
    event::{Events, Summary},
    record::{Message, Outcome, Row, Usage},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

const PRICE: Price = Price { input: 1.0, output: 2.0, cached: None, reasoning: None, batch: None };
const RETRIES: usize = 8;

/// What the endpoint does with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Good,
    Slow,
    Busy,
    BusyFor,
    Failed,
    Unavailable,
    Hang,
    Cut,
    Short,
    Nonsense,
    Page,
    Empty,
    Reset,
    ErrorPaid,
    Denied,
    BusyLong,
}

const FAULTS: [Act; 13] = [
    Act::Slow,
    Act::Busy,
    Act::BusyFor,
    Act::Failed,
    Act::Unavailable,
    Act::Hang,
    Act::Cut,
    Act::Short,
    Act::Nonsense,
    Act::Page,
    Act::Empty,
    Act::Reset,
    Act::ErrorPaid,
];

/// What the endpoint remembers.
#[derive(Default)]
struct Book {
    /// Requests by row.
    asked: HashMap<usize, usize>,
    /// Rows that got a good reply.
    done: HashMap<usize, usize>,
    /// Tokens read and generated that it named.
    named: (u64, u64),
    /// Requests that may have been paid for, and nobody said what they took.
    unknown: u64,
    seen: HashMap<String, usize>,
}

type Rule = dyn Fn(usize, usize) -> Act + Send + Sync;

struct Server {
    url: String,
    book: Arc<Mutex<Book>>,
}

impl Server {
    /// `rule` gets the row and how often it was asked for before.
    async fn start(rule: impl Fn(usize, usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (book, rule): (Arc<Mutex<Book>>, Arc<Rule>) = (Arc::default(), Arc::new(rule));
        let kept = Arc::clone(&book);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (book, rule) = (Arc::clone(&kept), Arc::clone(&rule));
                tokio::spawn(async move {
                    serve(stream, &book, &*rule).await.ok();
                });
            }
        });
        Self { url, book }
    }
}

async fn serve(mut stream: TcpStream, book: &Mutex<Book>, rule: &Rule) -> std::io::Result<()> {
    let row = row_of(&mut stream).await?;
    let act = {
        let mut book = book.lock().unwrap();
        let before = book.asked.entry(row).or_default();
        *before += 1;
        let act = rule(row, *before - 1);
        *book.seen.entry(format!("{act:?}")).or_default() += 1;
        match act {
            Act::Good | Act::Slow => {
                *book.done.entry(row).or_default() += 1;
                book.named = (book.named.0 + 100, book.named.1 + 10);
            }
            Act::ErrorPaid => book.named = (book.named.0 + 30, book.named.1 + 3),
            Act::Hang | Act::Cut | Act::Short | Act::Nonsense | Act::Empty | Act::Reset => book.unknown += 1,
            Act::Busy | Act::BusyFor | Act::Failed | Act::Unavailable | Act::Page | Act::Denied | Act::BusyLong => {}
        }
        act
    };
    let good = json!({
        "choices": [{ "finish_reason": "stop", "message": { "content": format!("answer {row}") } }],
        "usage": { "prompt_tokens": 100, "completion_tokens": 10 },
    });
    let good = good.to_string();
    let (head, body, length) = match act {
        Act::Good | Act::Slow => ("200 OK", good.clone(), good.len()),
        Act::Busy => ("429 Busy", String::new(), 0),
        Act::BusyFor => ("429 Busy\r\nRetry-After-Ms: 60", String::new(), 0),
        Act::Failed => ("500 Failed", "oops".to_owned(), 4),
        Act::Unavailable => ("503 Down", String::new(), 0),
        Act::Denied => ("401 Unauthorised", String::new(), 0),
        Act::BusyLong => ("429 Busy\r\nRetry-After: 3600", String::new(), 0),
        Act::Cut => ("200 OK", good[..50].to_owned(), good.len()),
        Act::Short => ("200 OK", good.clone(), 50),
        Act::Nonsense => ("200 OK", "nonsense".to_owned(), 8),
        Act::Page => ("200 OK", "<html></html>".to_owned(), 13),
        Act::Empty => ("200 OK", String::new(), 0),
        Act::ErrorPaid => {
            let body =
                json!({"error": {"message": "upstream"}, "usage": {"prompt_tokens": 30, "completion_tokens": 3}}).to_string();
            let length = body.len();
            ("200 OK", body, length)
        }
        Act::Hang => {
            tokio::time::sleep(Duration::from_secs(3)).await;
            return Ok(());
        }
        Act::Reset => return Ok(()),
    };
    if act == Act::Slow {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads a request and says which row it asks for.
async fn row_of(stream: &mut TcpStream) -> std::io::Result<usize> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await?;
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length: usize = head.split("content-length: ").nth(1).and_then(|l| l.lines().next()?.trim().parse().ok()).unwrap();
        if body.len() >= length {
            let body: Value = serde_json::from_str(body).unwrap();
            return Ok(body["messages"][0]["content"].as_str().unwrap().trim_start_matches("row ").parse().unwrap());
        }
    }
}

/// A store in memory.
#[derive(Default)]
struct Memory(Mutex<(HashMap<String, Exchange>, Accounts)>);

#[async_trait]
impl Exchanges for Memory {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        Ok(self.0.lock().unwrap().0.get(key).map(|exchange| Stored { exchange: exchange.clone(), own: true }))
    }

    async fn begin(&self, _: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put(&self, exchange: &Exchange, used: &Charge<'_>) -> Result<(), StoreError> {
        let mut kept = self.0.lock().unwrap();
        kept.0.insert(exchange.key.clone(), exchange.clone());
        kept.1.answered(used);
        Ok(())
    }

    async fn abandon(&self, _: &str, used: &Charge<'_>) -> Result<(), StoreError> {
        self.0.lock().unwrap().1.failed(used);
        Ok(())
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn accounts(&self) -> Result<Accounts, StoreError> {
        Ok(self.0.lock().unwrap().1.clone())
    }
}

fn settings(base_url: &str) -> EndpointSettings {
    EndpointSettings {
        base_url: base_url.into(),
        model: "m".into(),
        api: None,
        key: None,
        concurrency: 32,
        requests_per_minute: None,
        tokens_per_minute: None,
        retries: RETRIES,
        timeout: Duration::from_millis(900),
        give_up_after: Duration::from_secs(60),
        price: Some(PRICE),
        sampling: Sampling::default(),
        extra: serde_json::Map::new(),
        tool_schema: None,
    }
}

fn request(row: usize) -> ChatRequest {
    ChatRequest {
        // All of one length, so that all may cost the same at most.
        messages: vec![Message::user(format!("row {row:05}"))],
        tools: Vec::new(),
        format: Format::Text,
        temperature: 0.0,
        top_p: 1.0,
        max_tokens: 50,
        seed: 1,
        prompt_kind: String::new(),
    }
}

/// Asks for all rows at once; how many were answered, each by its own answer and for `most` at most.
async fn ask_all(chat: &RecordedChat, rows: usize, most: Usage) -> usize {
    let asks: Vec<_> = (0..rows)
        .map(|row| {
            let chat = chat.clone();
            tokio::spawn(async move { (row, chat.chat(&request(row)).await) })
        })
        .collect();
    let mut answered = 0;
    for ask in asks {
        let (row, outcome) = ask.await.unwrap();
        match outcome {
            Ok(replied) => {
                assert_eq!(replied.reply.content, format!("answer {row}"));
                let used = replied.reply.usage;
                assert!(used.input_tokens <= most.input_tokens && used.output_tokens <= most.output_tokens);
                answered += 1;
            }
            Err(error) => eprintln!("row {row}: {error}"),
        }
    }
    answered
}

/// Mixes bits, so that rows and tries fall anywhere.
fn mixed(row: usize, before: usize) -> u64 {
    let mut x = (row as u64 * 1000 + before as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_ends_and_all_that_was_used_is_counted() {
    const ROWS: usize = 500;
    let server = Server::start(|row, before| match mixed(row, before) % 100 {
        0..30 => FAULTS[(mixed(row, before) / 100) as usize % FAULTS.len()],
        _ => Act::Good,
    })
    .await;
    let endpoint = Arc::new(Endpoint::new(settings(&server.url)).unwrap());
    let all_tries = endpoint.at_most(&request(0));
    let tries = 1 + RETRIES as u64;
    let (most_in, most_out) = (all_tries.input_tokens / tries, all_tries.output_tokens / tries);
    let store = Arc::new(Memory::default());
    let chat = RecordedChat::new(endpoint, Arc::new(Recorder::new(store.clone(), Mode::Reuse)));
    let start = Instant::now();
    assert_eq!(ask_all(&chat, ROWS, all_tries).await, ROWS);
    let took = start.elapsed();

    let (requests, named, unknown) = {
        let book = server.book.lock().unwrap();
        assert!(FAULTS.iter().all(|fault| book.seen[&format!("{fault:?}")] > 0), "{:?}", book.seen);
        assert!(book.done.values().all(|replies| *replies == 1), "no reply is asked for twice");
        (book.asked.values().sum::<usize>() as u64, book.named, book.unknown)
    };
    let account = store.accounts().unwrap().by_name[chat.model()];
    assert_eq!((account.answered, account.failed, account.retried), (ROWS as u64, 0, requests - ROWS as u64));
    let expected = (named.0 + unknown * most_in, named.1 + unknown * most_out);
    assert_eq!((account.usage.input_tokens, account.usage.output_tokens), expected);
    let tokens = Usage { input_tokens: expected.0, output_tokens: expected.1, ..Usage::default() };
    assert!((account.usage.cost - PRICE.of(&tokens)).abs() < 1e-9);
    assert!(took < Duration::from_secs(90), "{took:?}");

    assert_eq!(ask_all(&chat, ROWS, all_tries).await, ROWS);
    assert_eq!(server.book.lock().unwrap().asked.values().sum::<usize>() as u64, requests, "what is kept is not asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_dies_for_a_while_is_waited_for() {
    const ROWS: usize = 512;
    let (dead, served, in_vain) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (is_dead, count, vain) = (Arc::clone(&dead), Arc::clone(&served), Arc::clone(&in_vain));
    let server = Server::start(move |row, _| {
        if is_dead.load(Ordering::SeqCst) {
            vain.fetch_add(1, Ordering::SeqCst);
            return if row % 2 == 0 { Act::Reset } else { Act::Unavailable };
        }
        if count.fetch_add(1, Ordering::SeqCst) == 150 {
            is_dead.store(true, Ordering::SeqCst);
            let is_dead = Arc::clone(&is_dead);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(4)).await;
                is_dead.store(false, Ordering::SeqCst);
            });
        }
        Act::Good
    })
    .await;
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&said);
    let endpoint = Endpoint::new(EndpointSettings { retries: 4, ..settings(&server.url) }).unwrap();
    let endpoint = endpoint.with_notes(Arc::new(move |text| notes.lock().unwrap().push(text)));
    let most = endpoint.at_most(&request(0));
    let store = Arc::new(Memory::default());
    let chat = RecordedChat::new(Arc::new(endpoint), Arc::new(Recorder::new(store.clone(), Mode::Reuse)));
    assert_eq!(ask_all(&chat, ROWS, most).await, ROWS);
    let account = store.accounts().unwrap().by_name[chat.model()];
    assert_eq!((account.answered, account.failed), (ROWS as u64, 0));
    // Those that were under way, those that took their places, and a few probes.
    let in_vain = in_vain.load(Ordering::SeqCst);
    assert!((5..=2 * 32).contains(&in_vain), "{in_vain}");
    assert_eq!(account.retried, in_vain as u64);
    let said = said.lock().unwrap();
    assert!(said[0].contains("does not answer") && said.iter().any(|text| text.contains("answers again")), "{said:?}");
}

#[derive(Serialize)]
struct Line(usize, String);

impl Row for Line {
    fn row_id(&self) -> &str {
        &self.1
    }
}

/// Ends of rows, kept over several attempts.
#[derive(Default)]
struct Ends(Mutex<HashMap<String, Outcome>>);

impl Sink<u8> for Ends {
    fn seen(&self, hash: &str) -> Option<(Outcome, u64)> {
        Some((self.0.lock().unwrap().get(hash)?.clone(), 0))
    }

    fn accept(&self, hash: &str, done: Done<u8>) -> Result<(), SinkError> {
        self.0.lock().unwrap().insert(hash.to_owned(), done.outcome);
        Ok(())
    }
}

/// One attempt at all rows of a stage. Every fourth asks the second model only.
async fn attempt(rows: usize, urls: [&str; 2], store: &Arc<Memory>, ends: &Ends) -> Result<Summary, StageError> {
    let recorder = Arc::new(Recorder::new(store.clone(), Mode::Reuse));
    let cx = Context {
        stage: "3-generate".into(),
        events: Events::channel().0,
        cancel: CancellationToken::new(),
        recorder: Arc::clone(&recorder),
    };
    let chats = urls.map(|url| {
        let patience = EndpointSettings { give_up_after: Duration::from_secs(2), ..settings(url) };
        RecordedChat::new(Arc::new(Endpoint::new(patience).unwrap()), Arc::clone(&recorder))
    });
    let pace = Pace { concurrency: 32, max_failure_rate: 0.5 };
    let lines = (0..rows).map(|row| Line(row, format!("row_{row}"))).collect();
    drive(lines, pace, &cx, ends, |line| {
        let chat = chats[usize::from(line.0 % 4 == 0)].clone();
        async move {
            match chat.chat(&request(line.0)).await {
                Ok(_) => Done::none(Outcome::kept(line.1)),
                Err(error) => Done::none(match error.waits() {
                    Some(wait) => Outcome::waiting(line.1, wait, error.to_string()),
                    None => Outcome::failed(line.1, "model-failed", error.to_string()),
                }),
            }
        }
    })
    .await
}

/// A server that is dead from its request `from` on, as long as the switch says so.
async fn dying(from: usize, dead: Act) -> (Server, Arc<AtomicBool>) {
    let (down, asked) = (Arc::new(AtomicBool::new(true)), AtomicUsize::new(0));
    let switch = Arc::clone(&down);
    let act = move |_, _| {
        let later = asked.fetch_add(1, Ordering::SeqCst) >= from;
        if later && down.load(Ordering::SeqCst) { dead } else { Act::Good }
    };
    (Server::start(act).await, switch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_for_a_provider_that_dies_and_the_same_stage_goes_on() {
    const ROWS: usize = 512;
    for dead in [Act::Unavailable, Act::Failed, Act::Denied, Act::BusyLong] {
        let ((server, down), healthy) = (dying(150, dead).await, Server::start(|_, _| Act::Good).await);
        let (store, ends) = (Arc::new(Memory::default()), Ends::default());
        let (urls, start) = ([server.url.as_str(), healthy.url.as_str()], Instant::now());
        let error = attempt(ROWS, urls, &store, &ends).await.unwrap_err();
        let StageError::Unreachable { done, .. } = &error else { panic!("{dead:?}: {error}") };
        assert!(error.to_string().contains("`m@127.0.0.1") && error.to_string().contains("status "), "{error}");
        // A hundred and fifty of the first, and all of the second.
        assert_eq!(*done, 150 + ROWS as u64 / 4, "{dead:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{dead:?}: {:?}", start.elapsed());
        let in_vain = server.book.lock().unwrap().asked.values().sum::<usize>() - 150;
        assert!(in_vain < 2 * 32 + 10, "{dead:?}: {in_vain} asked in vain");

        down.store(false, Ordering::SeqCst);
        let summary = attempt(ROWS, urls, &store, &ends).await.unwrap();
        assert_eq!((summary.kept, summary.failed), (ROWS as u64, 0), "{dead:?}");
        let done = server.book.lock().unwrap().done.clone();
        assert!(done.len() == ROWS / 4 * 3 && done.values().all(|replies| *replies == 1), "nothing is paid for twice");
        let account = store.accounts().unwrap();
        assert_eq!(account.by_name.values().map(|account| account.answered).sum::<u64>(), ROWS as u64);
        assert_eq!(account.usage().input_tokens, 100 * ROWS as u64, "what was turned down cost nothing");
    }
}
