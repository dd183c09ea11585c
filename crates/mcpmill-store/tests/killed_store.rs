//! A process that is killed while it writes exchanges: SQLite opens the file, and every reply whose caller was told
//! that it is kept is there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking; Clippy exempts only functions marked as tests")]

use std::{
    collections::HashSet,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use mcpmill_core::{
    account::Charge,
    edge::{Exchange, ExchangeKind, Exchanges},
    record::Usage,
};
use mcpmill_store::exchanges::SqliteExchanges;
use rusqlite::Connection;
use serde_json::json;

/// Set in the process that is killed: the file it writes, and its run.
const CHILD: &str = "MCPMILL_TEST_KILLED_STORE";

const CALLERS: u64 = 64;

const SPENT: Charge<'_> = Charge {
    account: "m",
    usage: Usage { input_tokens: 0, output_tokens: 2, cached_tokens: 0, reasoning_tokens: 0, cost: 0.5 },
    attempts: 1,
};

/// Asks and answers with many callers until it is killed, and says of each reply that it is kept.
async fn write(path: &Path, run: String) {
    let store = Arc::new(SqliteExchanges::open(path, &run).unwrap());
    store.cut_off().await.unwrap();
    // One call is surely under way at the kill: its answer never comes.
    store.begin("never answered", &SPENT).await.unwrap();
    let callers = (0..CALLERS).map(|caller| {
        let (store, run) = (Arc::clone(&store), run.clone());
        tokio::spawn(async move {
            for n in 0_u64.. {
                let request = json!({ "run": run, "caller": caller, "n": n });
                let key = Exchange::key(ExchangeKind::Chat, &request);
                store.begin(&key, &SPENT).await.unwrap();
                let exchange = Exchange { key, kind: ExchangeKind::Chat, request, reply: json!("r".repeat(500)) };
                store.put(&exchange, &SPENT).await.unwrap();
                // In one write, which a kill does not tear.
                std::io::stdout().write_all(format!("\nkept {}\n", exchange.key).as_bytes()).unwrap();
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}

#[test]
fn a_file_whose_writers_were_killed_is_whole() {
    if let Some((path, run)) =
        env::var(CHILD).ok().and_then(|told| told.split_once('\n').map(|(p, r)| (p.to_owned(), r.to_owned())))
    {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write(Path::new(&path), run));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("exchanges.sqlite");
    let mut kept: HashSet<String> = HashSet::new();
    for round in 0..3 {
        // Two runs in two processes, both killed.
        let writers = ["a", "b"].map(|run| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "a_file_whose_writers_were_killed_is_whole", "--nocapture"]);
            command.env(CHILD, format!("{}\n{run}{round}", path.display()));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let told = BufReader::new(child.stdout.take().unwrap());
            let told = thread::spawn(move || {
                let lines = told.lines().map_while(Result::ok);
                lines.filter_map(|line| line.strip_prefix("kept ").map(str::to_owned)).collect::<Vec<_>>()
            });
            (child, told)
        });
        thread::sleep(Duration::from_millis(900 + 130 * round));
        for (mut child, told) in writers {
            child.kill().unwrap();
            child.wait().unwrap();
            let told = told.join().unwrap();
            assert!(told.len() > 20, "only {} replies before the kill", told.len());
            kept.extend(told);
        }
        look(&path, &kept);
    }
    let store = SqliteExchanges::open(&path, "a0").unwrap();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.cut_off()).unwrap();
    let m = store.accounts().unwrap().by_name["m"];
    assert!(m.cut_off > 0 && m.cut_off <= CALLERS + 1, "{m:?}");
    assert_eq!(m.usage.output_tokens, 2 * (m.answered + m.cut_off));
}

/// As any program would that knows SQLite.
fn look(path: &Path, kept: &HashSet<String>) {
    let file = Connection::open(path).unwrap();
    let whole: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
    let mut statement = file.prepare("SELECT key FROM exchanges").unwrap();
    let there: HashSet<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let lost: Vec<&String> = kept.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} replies are gone: {lost:?}", lost.len(), kept.len());
    let answered: i64 = file.query_row("SELECT sum(answered) FROM accounts", [], |row| row.get(0)).unwrap();
    assert_eq!(answered as usize, there.len(), "a reply and its account are one transaction");
}
