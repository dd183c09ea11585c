//! Keys that are planted where a run has them, and an endpoint that says them back: none is in any file.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::SystemTime,
};

use common::{Folder, cache, ok};
use mcpmill_core::record::{Outcome, Sample, Verdict};
use mcpmill_store::{artifact::Table, parquet_file::read_all};

/// The value of the variable that holds the key; sent in a header.
const KEY: &str = "planted-0key-9d1f";
/// What the endpoint sets as a cookie.
const COOKIE: &str = "planted-cookie-77aa";
/// A part of the endpoint's address.
const IN_URL: &str = "planted-query-31c5";
/// Said by the endpoint beside the key: it has to be found, or the search finds nothing.
const CANARY: &str = "canary-of-the-echo";

/// An endpoint that says back what it was sent, in errors and in replies.
struct Echo {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    /// `also` stands in every answer.
    fn start(also: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let count = Arc::new(AtomicUsize::new(0));
        let keep = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (keep, count) = (Arc::clone(&keep), Arc::clone(&count));
                thread::spawn(move || converse(&stream, also, &keep, &count));
            }
        });
        Self { port, heard }
    }
}

fn converse(stream: &TcpStream, also: &str, heard: &Mutex<Vec<String>>, count: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut authorization, mut length, mut asked) = (String::new(), 0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let Some((name, value)) = line.trim_end().split_once(':') else {
                if line.trim_end().is_empty() {
                    break;
                }
                line.trim_end().clone_into(&mut asked);
                heard.lock().unwrap().push(line);
                continue;
            };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => authorization = value.trim().to_owned(),
                "content-length" => length = value.trim().parse().ok()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let echo = format!("{CANARY} {also} Authorization: {authorization} to `{asked}` and cookie follows");
        heard.lock().unwrap().push(authorization);
        let completion = serde_json::json!({
            "choices": [{ "finish_reason": "stop", "message": { "role": "assistant", "content": echo } }],
            "usage": { "prompt_tokens": 5, "completion_tokens": 5 },
        });
        let error = serde_json::json!({ "error": { "message": echo } });
        let (status, body) = match count.fetch_add(1, Ordering::SeqCst) % 5 {
            1 => ("500 Oops", error),
            3 => ("400 No", error),
            _ => ("200 OK", completion),
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nset-cookie: session={COOKIE}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        (&*stream).write_all((head + &body).as_bytes()).ok()?;
    }
}

/// The text of all files below `folder` that are not older than `since`, packed ones unpacked.
fn texts(folder: &Path, since: SystemTime, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        let Ok(kind) = entry.metadata() else { continue };
        if kind.is_dir() {
            texts(&path, since, found);
        } else if kind.is_file() && kind.len() < 64 << 20 && kind.modified().is_ok_and(|at| at >= since) {
            let Ok(bytes) = fs::read(&path) else { continue };
            if path.extension().is_some_and(|e| e == "zst") {
                found.push((path.clone(), zstd::decode_all(&bytes[..]).unwrap_or_default()));
            }
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.extension().is_some_and(|e| e == "parquet") {
                let rows = match stem.as_str() {
                    Outcome::NAME => rows_of::<Outcome>(&path),
                    Sample::NAME => rows_of::<Sample>(&path),
                    Verdict::NAME => rows_of::<Verdict>(&path),
                    _ => Vec::new(),
                };
                found.push((path.clone(), rows));
            }
            found.push((path, bytes));
        }
    }
}

fn rows_of<T: Table>(path: &Path) -> Vec<u8> {
    serde_json::to_vec(&read_all::<T>(path).unwrap()).unwrap()
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn what_an_endpoint_says_back_is_in_no_file() {
    let since = SystemTime::now();
    let echo = Echo::start("");
    let folder = Folder::with(&["calculator"]);
    let generate = format!(
        "[generate]\nsamples = 12\nper_tool = 12\nmax_failure_rate = 1.0\n[models.openai]\nbase_url = \"http://127.0.0.1:{}/v1?api_key={IN_URL}\"\n\
         api_key_env = \"PLANTED_KEY\"\nmodel = \"echo\"\nretries = 2\n",
        echo.port
    );
    folder.write(
        "mcpmill.toml",
        &format!("exchange_store = \"exchanges.sqlite\"\n[discover]\nmarketplaces = [\"few\"]\n{generate}"),
    );
    let command = |args: &[&str]| {
        let mut command = folder.mcpmill(args);
        command.env("PLANTED_KEY", KEY).env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
        command
    };
    let run = command(&["run", "--to", "generate"]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    ok(&mut command(&["cache", "export", "--all", "out.jsonl.zst"]));
    let heard = echo.heard.lock().unwrap().join("\n");
    let line = format!("POST /v1/chat/completions?api_key={IN_URL} HTTP");
    assert!(heard.contains(&format!("Bearer {KEY}")) && heard.contains(&line), "the keys were sent: {said}");

    let mut found = vec![(PathBuf::from("what it printed"), said.into_bytes())];
    let ours = folder.path().join("mcpmill.toml");
    texts(folder.path(), SystemTime::UNIX_EPOCH, &mut found);
    texts(&cache(), since, &mut found);
    let with = |needle: &str| -> Vec<PathBuf> {
        let held = found.iter().filter(|(path, bytes)| *path != ours && holds(bytes, needle));
        held.map(|(path, _)| path.clone()).collect()
    };
    for planted in [KEY, COOKIE, IN_URL] {
        assert_eq!(with(planted), Vec::<PathBuf>::new(), "{planted}");
    }
    let seen = with(CANARY);
    let there = |name: &str| seen.iter().any(|path| path.ends_with(name));
    assert!(there("out.jsonl.zst") && there("events.jsonl") && there("outcomes.parquet"), "{seen:?}");
    assert!(
        found.iter().any(|(path, _)| path.ends_with("config.toml"))
            && found.iter().any(|(path, _)| path.ends_with("exchanges.sqlite"))
    );
}

#[test]
fn what_looks_like_a_secret_of_others_is_not_handed_on() {
    // Put together here, so that no scanner takes the test for a leak.
    let echo = Echo::start(concat!("sk-", "a1b2c3d4e5f6g7h8i9j0klmn"));
    let folder = Folder::with(&["calculator"]);
    let url = format!("http://127.0.0.1:{}/v1", echo.port);
    let run = folder.with_model(&url, &["run", "--to", "generate", "--set", "generate.max_failure_rate=1.0"]).output().unwrap();
    let export = folder.mcpmill(&["cache", "export", "--all", "out.jsonl.zst"]).output().unwrap();
    let told = String::from_utf8_lossy(&export.stderr);
    assert!(!export.status.success() && told.contains("looks like a secret"), "{told}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(!folder.path().join("out.jsonl.zst").exists());
}
