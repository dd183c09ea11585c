use std::{
    fs,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, SystemTime},
};

use mcpmill_core::{
    account::{Account, Charge},
    edge::{Exchange, Exchanges, Mode, Recorder, Stored},
    record::Usage,
};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::*;

fn exchange(request: Value, reply: Value) -> Exchange {
    let kind = ExchangeKind::Chat;
    Exchange { key: Exchange::key(kind, &request), kind, request, reply }
}

fn of(n: u64) -> Exchange {
    exchange(json!({"n": n, "t": 0.1 + n as f64 / 3.0, "text": "é🦀\u{0}"}), json!({"reply": [n, null, "x".repeat(50)]}))
}

const NOTHING: Charge<'_> = Charge {
    account: "m",
    usage: Usage { input_tokens: 0, output_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: 0.0 },
    attempts: 1,
};

fn waited<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn put(store: &SqliteExchanges, exchange: &Exchange) {
    waited(store.put(exchange, &NOTHING)).unwrap();
}

fn note(store: &SqliteExchanges, key: &str) {
    waited(store.begin(key, &NOTHING)).unwrap();
}

fn abandon(store: &SqliteExchanges, key: &str) {
    waited(store.abandon(key, &NOTHING)).unwrap();
}

/// Something that was used, small enough to be told apart.
fn spent(account: &str, tokens: u64) -> Charge<'_> {
    Charge { account, usage: Usage { output_tokens: tokens, cost: tokens as f64 / 4.0, ..Usage::default() }, attempts: 2 }
}

fn lines(path: &Path) -> Vec<u8> {
    zstd::decode_all(fs::File::open(path).unwrap()).unwrap()
}

fn pack_lines(path: &Path, text: &[u8]) {
    fs::write(path, zstd::encode_all(text, 1).unwrap()).unwrap();
}

#[test]
fn what_was_put_is_there_after_reopening_and_is_own_to_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache/exchanges.sqlite");
    let kept = of(1);
    let store = SqliteExchanges::open(&path, "a").unwrap();
    assert_eq!(store.get(&kept.key).unwrap(), None);
    put(&store, &kept);
    drop(store);
    let get = |run: &str| SqliteExchanges::open(&path, run).unwrap().get(&kept.key).unwrap().unwrap();
    assert_eq!(get("a"), Stored { exchange: kept.clone(), own: true });
    assert_eq!(get("b"), Stored { exchange: kept.clone(), own: false });
    assert!(!get("b").own, "being given an exchange does not make it one's own");
}

#[test]
fn each_run_keeps_its_own_reply_and_others_get_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let open = |run| SqliteExchanges::open(&path, run).unwrap();
    let [one, two, three] = ["1", "2", "3"].map(|reply| exchange(json!("q"), json!(reply)));
    let get = |run| open(run).get(&one.key).unwrap().unwrap();
    put(&open("a"), &one);
    put(&open("b"), &two);
    assert_eq!(get("a"), Stored { exchange: one.clone(), own: true }, "b's answer is not a's");
    assert_eq!(get("b"), Stored { exchange: two.clone(), own: true });
    assert_eq!(get("c"), Stored { exchange: two, own: false });
    put(&open("a"), &three);
    assert_eq!(get("a"), Stored { exchange: three.clone(), own: true });
    assert_eq!(get("c"), Stored { exchange: three.clone(), own: false });

    let out = dir.path().join("out.zst");
    assert_eq!(open("b").export(&out, Which::All, &|_| Ok(())).unwrap(), 1, "one reply a request");
    assert_eq!(ExchangeFile::open(&out, Limits::default()).unwrap().get(&one.key).unwrap().unwrap().exchange.reply, json!("2"));
    waited(open("c").reuse(&one.key, "m")).unwrap();
    open("c").export(&out, Which::OfRun, &|_| Ok(())).unwrap();
    assert_eq!(ExchangeFile::open(&out, Limits::default()).unwrap().get(&one.key).unwrap().unwrap().exchange, three);
}

#[test]
fn notes_of_requests_in_flight_survive_and_belong_to_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let open = |run: &str| SqliteExchanges::open(&path, run).unwrap();
    let key = &of(1).key;
    let begin = |run: &str| {
        let store = open(run);
        let before = store.repeated().unwrap();
        note(&store, key);
        open(run).repeated().unwrap() - before
    };
    assert_eq!(begin("a"), 0);
    assert_eq!(begin("b"), 0, "another run's note is not ours");
    assert_eq!(begin("a"), 1, "the kill came between");
    put(&open("a"), &of(1));
    assert_eq!(begin("a"), 0, "an answer ends the note");
    abandon(&open("a"), key);
    assert_eq!(begin("a"), 0);
    assert_eq!(begin("b"), 1, "b's note was left alone");
    assert_eq!(open("a").repeated().unwrap(), 1, "counted over all processes of the run");
}

#[test]
fn two_connections_write_one_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let work = |run: usize| {
        let store = SqliteExchanges::open(&path, &run.to_string()).unwrap();
        for n in 0..50 {
            // Odd ones are fought over, even ones are each run's own.
            let exchange = of(if n % 2 == 1 { n } else { 1000 * run as u64 + n });
            note(&store, &exchange.key);
            put(&store, &exchange);
            assert_eq!(store.get(&exchange.key).unwrap().unwrap().exchange, exchange);
        }
    };
    thread::scope(|scope| (0..4).for_each(|run| drop(scope.spawn(move || work(run)))));
    let stats = SqliteExchanges::open(&path, "z").unwrap().stats().unwrap();
    assert_eq!((stats[0].kind, stats[0].exchanges), (ExchangeKind::Chat, 4 * 50));
    assert!(stats[0].bytes > 0);
}

#[test]
fn many_may_make_the_file_at_once() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sqlite");
        let start = Barrier::new(6);
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    start.wait();
                    SqliteExchanges::open(&path, "r").unwrap();
                });
            }
        });
    }
}

#[test]
fn export_is_sorted_and_the_same_bytes_whatever_came_first() {
    let dir = tempfile::tempdir().unwrap();
    let stores = ["a", "b"].map(|name| SqliteExchanges::open(&dir.path().join(name), "r").unwrap());
    (0..20).for_each(|n| put(&stores[0], &of(n)));
    (0..20).rev().for_each(|n| put(&stores[1], &of(n)));
    let [a, b] = ["a.zst", "b.zst"].map(|name| dir.path().join(name));
    assert_eq!(stores[0].export(&a, Which::All, &|_| Ok(())).unwrap(), 20);
    stores[1].export(&b, Which::All, &|_| Ok(())).unwrap();
    assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
    let text = String::from_utf8(lines(&a)).unwrap();
    assert!(text.lines().is_sorted(), "{text}");
    assert_eq!(serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap().as_object().unwrap().len(), 4);
}

#[test]
fn an_export_of_a_run_holds_what_it_recorded_and_what_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let (a, b) = (SqliteExchanges::open(&path, "a").unwrap(), SqliteExchanges::open(&path, "b").unwrap());
    (0..3).for_each(|n| put(&a, &of(n)));
    waited(b.reuse(&of(0).key, "m")).unwrap();
    put(&b, &of(9));
    let out = dir.path().join("out.zst");
    assert_eq!(b.export(&out, Which::OfRun, &|_| Ok(())).unwrap(), 2);
    let file = ExchangeFile::open(&out, Limits::default()).unwrap();
    assert_eq!(file.get(&of(0).key).unwrap().unwrap().exchange, of(0));
    assert_eq!(file.get(&of(9).key).unwrap().unwrap(), Stored { exchange: of(9), own: false });
    assert_eq!(file.get(&of(1).key).unwrap(), None);
    assert!(waited(file.put(&of(1), &NOTHING)).is_err());
    assert_eq!((file.len(), file.is_empty()), (2, false));
}

#[test]
fn a_refused_exchange_stops_the_export_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteExchanges::open(&dir.path().join("x.sqlite"), "r").unwrap();
    (0..3).for_each(|n| put(&store, &of(n)));
    let out = dir.path().join("out.zst");
    let bad = of(1).key;
    let check = |exchange: &Exchange| if exchange.key == bad { Err("it tells too much".to_owned()) } else { Ok(()) };
    let error = store.export(&out, Which::All, &check).unwrap_err().to_string();
    assert!(error.contains(&bad) && error.contains("it tells too much"), "{error}");
    assert!(!out.exists());
}

#[test]
fn an_import_brings_everything_and_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let from = SqliteExchanges::open(&dir.path().join("from"), "r").unwrap();
    (0..1200).for_each(|n| put(&from, &of(n)));
    let file = dir.path().join("x.zst");
    from.export(&file, Which::All, &|_| Ok(())).unwrap();
    let to = SqliteExchanges::open(&dir.path().join("to"), "r").unwrap();
    let mine = exchange(of(7).request, json!("mine"));
    put(&to, &mine);
    assert_eq!(to.import(&file, Limits::default()).unwrap(), Imported { added: 1199, present: 1 });
    assert_eq!(to.get(&mine.key).unwrap().unwrap().exchange, mine);
    let stored = to.get(&of(1199).key).unwrap().unwrap();
    assert_eq!(stored, Stored { exchange: of(1199), own: false });
}

#[test]
fn an_import_refuses_a_foreign_key_names_the_line_and_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.zst");
    let store = SqliteExchanges::open(&dir.path().join("s"), "r").unwrap();
    let line = |e: &Exchange| serde_json::to_string(e).unwrap();
    let forged = Exchange { reply: json!("x"), key: of(3).key, ..of(2) };
    // More good lines before it than go into one transaction.
    let good: String = (10..610).map(|n| line(&of(n)) + "\n").collect();
    pack_lines(&file, (good + &line(&forged) + "\n").as_bytes());
    let error = store.import(&file, Limits::default()).unwrap_err();
    assert!(matches!(error.kind, ExchangesErrorKind::Line { line: 601, .. }), "{error}");
    assert!(error.to_string().contains("x.zst"), "{error}");
    assert_eq!(store.stats().unwrap(), []);
    pack_lines(&file, b"{\"key\": 1}\n");
    assert!(matches!(store.import(&file, Limits::default()).unwrap_err().kind, ExchangesErrorKind::Line { line: 1, .. }));
    fs::write(&file, "not zstd").unwrap();
    assert!(store.import(&file, Limits::default()).is_err());
}

#[test]
fn a_hostile_file_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bomb.zst");
    let limits = Limits { line_bytes: 1000, total_bytes: 1500 };
    pack_lines(&file, &vec![b' '; 10_000_000]);
    let error = ExchangeFile::open(&file, limits).err().unwrap();
    assert!(matches!(error.kind, ExchangesErrorKind::Line { line: 1, .. }), "{error}");
    let many: String = (0..9).map(|n| serde_json::to_string(&of(n)).unwrap() + "\n").collect();
    pack_lines(&file, many.as_bytes());
    let error = ExchangeFile::open(&file, limits).err().unwrap();
    assert!(matches!(error.kind, ExchangesErrorKind::TooLarge(1500)), "{error}");
    assert_eq!(ExchangeFile::open(&file, Limits::default()).unwrap().len(), 9);
}

fn refused(path: &Path) -> ExchangesErrorKind {
    let error = SqliteExchanges::open(path, "r").err().unwrap();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error.kind
}

#[test]
fn newer_foreign_and_damaged_files_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    drop(SqliteExchanges::open(&path, "r").unwrap());
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
    assert!(matches!(refused(&path), ExchangesErrorKind::Format { found: 7, known: 3 }));

    let foreign = dir.path().join("foreign");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (a); PRAGMA user_version = 1").unwrap();
    assert!(matches!(refused(&foreign), ExchangesErrorKind::Foreign));
    let mode: String = Connection::open(&foreign).unwrap().query_row("PRAGMA journal_mode", [], |r| r.get(0)).unwrap();
    assert_eq!(mode, "delete", "a foreign file is left as it is");

    let broken = dir.path().join("broken");
    fs::write(&broken, "this is no database, however long the text is".repeat(100)).unwrap();
    assert!(matches!(refused(&broken), ExchangesErrorKind::Damaged(_)));
}

#[test]
fn a_damaged_body_is_an_error_that_names_the_exchange() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let store = SqliteExchanges::open(&path, "r").unwrap();
    put(&store, &of(1));
    Connection::open(&path).unwrap().execute("UPDATE exchanges SET reply = x'00'", []).unwrap();
    let message = store.get(&of(1).key).unwrap_err().to_string();
    assert!(message.contains(&of(1).key), "{message}");
    assert!(store.export(&dir.path().join("out"), Which::All, &|_| Ok(())).is_err());
    assert!(!dir.path().join("out").exists());
}

#[tokio::test]
async fn a_killed_live_run_asks_nothing_twice_and_a_new_one_asks_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let ask = async |run: &str, answer: u32| {
        let recorder = Recorder::new(Arc::new(SqliteExchanges::open(&path, run).unwrap()), Mode::Live);
        let live = || async move { Ok::<_, io::Error>(json!(answer)) };
        let recorded = recorder.ask(ExchangeKind::Call, &json!({"tool": "t"}), |_| true, live).await.unwrap();
        (recorded.reply, recorded.live)
    };
    assert_eq!(ask("a", 1).await, (json!(1), true));
    assert_eq!(ask("a", 2).await, (json!(1), false), "resumed");
    assert_eq!(ask("b", 3).await, (json!(3), true), "a new run");
    assert_eq!(ask("b", 4).await, (json!(3), false));
}

#[test]
fn accounts_are_kept_by_run_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let open = |run| SqliteExchanges::open(&path, run).unwrap();
    let a = open("a");
    waited(async {
        a.begin(&of(1).key, &spent("m", 8)).await.unwrap();
        a.put(&of(1), &spent("m", 2)).await.unwrap();
        a.begin(&of(2).key, &spent("m", 8)).await.unwrap();
        a.abandon(&of(2).key, &spent("m", 1)).await.unwrap();
        a.put(&of(3), &spent("other", 5)).await.unwrap();
        a.reuse(&of(3).key, "other").await.unwrap();
    });
    drop(a);
    let accounts = open("a").accounts().unwrap();
    let (m, other) = (accounts.by_name["m"], accounts.by_name["other"]);
    assert_eq!((m.answered, m.failed, m.retried, m.usage.output_tokens, m.usage.cost), (1, 1, 2, 3, 0.75));
    assert_eq!((other.answered, other.stored, other.usage.output_tokens), (1, 1, 5));
    assert!(open("b").accounts().unwrap().is_empty());
}

#[test]
fn what_a_kill_cut_off_is_counted_once_at_its_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let open = |run| SqliteExchanges::open(&path, run).unwrap();
    for (run, keys) in [("a", 1..=3), ("b", 1..=1)] {
        let store = open(run);
        keys.for_each(|n| waited(store.begin(&of(n).key, &spent("m", 8))).unwrap());
    }
    let again = open("a");
    assert!(again.accounts().unwrap().is_empty(), "to look at a run takes nothing over");
    // One is made again before the others are counted.
    waited(again.begin(&of(3).key, &spent("m", 8))).unwrap();
    waited(again.put(&of(3), &spent("m", 1))).unwrap();
    for _ in 0..2 {
        waited(again.cut_off()).unwrap();
        let m = again.accounts().unwrap().by_name["m"];
        assert_eq!((m.cut_off, m.answered, m.usage.output_tokens, m.usage.cost), (3, 1, 25, 6.25));
    }
    assert_eq!(again.repeated().unwrap(), 1);
    waited(again.begin(&of(1).key, &spent("m", 8))).unwrap();
    waited(again.abandon(&of(1).key, &spent("m", 0))).unwrap();
    let m = again.accounts().unwrap().by_name["m"];
    assert_eq!((again.repeated().unwrap(), m.cut_off, m.failed, m.usage.output_tokens), (2, 3, 1, 25));
    assert!(open("b").accounts().unwrap().is_empty(), "another run's note is left alone");
    assert_eq!(waited(async { open("b").cut_off().await.and_then(|()| open("b").accounts()) }).unwrap().by_name["m"].cut_off, 1);
}

/// The tables as the version before made them.
const FORMAT_2: &str = "
    CREATE TABLE exchanges (
        key TEXT NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, request BLOB NOT NULL, reply BLOB NOT NULL,
        created INTEGER NOT NULL DEFAULT (unixepoch()), PRIMARY KEY (key, run));
    CREATE TABLE used (run TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE inflight (run TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE repeated (run TEXT PRIMARY KEY NOT NULL, calls INTEGER NOT NULL) WITHOUT ROWID;
    PRAGMA user_version = 2;";

#[test]
fn a_file_of_the_format_before_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FORMAT_2).unwrap();
    let body = |value: &Value| zstd::encode_all(value.to_string().as_bytes(), 3).unwrap();
    for (run, n) in [("a", 1), ("a", 2), ("b", 3)] {
        let Exchange { key, request, reply, .. } = of(n);
        let sql = "INSERT INTO exchanges VALUES (?1, ?2, 'chat', ?3, ?4, 1000)";
        old.execute(sql, rusqlite::params![key, run, body(&request), body(&reply)]).unwrap();
        old.execute("INSERT INTO used VALUES (?1, ?2)", [run, &key]).unwrap();
    }
    old.execute("INSERT INTO used VALUES ('a', ?1)", [&of(3).key]).unwrap();
    old.execute("INSERT INTO inflight VALUES ('a', ?1)", [&of(4).key]).unwrap();
    old.execute("INSERT INTO repeated VALUES ('a', 5)", []).unwrap();
    drop(old);

    let store = SqliteExchanges::open(&path, "a").unwrap();
    (1..=3).for_each(|n| assert_eq!(store.get(&of(n).key).unwrap(), Some(Stored { exchange: of(n), own: n < 3 })));
    let out = dir.path().join("out.zst");
    assert_eq!(store.export(&out, Which::OfRun, &|_| Ok(())).unwrap(), 3);
    waited(store.cut_off()).unwrap();
    assert_eq!(store.accounts().unwrap().by_name["unknown"], Account { cut_off: 1, ..Account::default() });
    note(&store, &of(4).key);
    assert_eq!(store.repeated().unwrap(), 6);
    drop(store);
    let new = Connection::open(&path).unwrap();
    let told: (i64, i64) = new
        .query_row("SELECT user_version, (SELECT min(created) FROM exchanges) FROM pragma_user_version", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(told, (3, 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_share_transactions_and_each_waits_for_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let stores = ["a", "b"].map(|run| Arc::new(SqliteExchanges::open(&path, run).unwrap()));
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..400 {
        let store = Arc::clone(&stores[n as usize % 2]);
        callers.spawn(async move {
            store.begin(&of(n).key, &spent("m", 8)).await.unwrap();
            store.put(&of(n), &spent("m", 1)).await.unwrap();
            assert_eq!(store.get(&of(n).key).unwrap(), Some(Stored { exchange: of(n), own: true }));
        });
    }
    callers.join_all().await;
    for store in &stores {
        let m = store.accounts().unwrap().by_name["m"];
        assert_eq!((m.answered, m.usage.output_tokens, m.usage.cost), (200, 200, 50.0));
    }
}

#[tokio::test]
async fn a_change_that_cannot_be_made_harms_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let store = SqliteExchanges::open(&path, "r").unwrap();
    let forbid = "CREATE TRIGGER no BEFORE INSERT ON exchanges WHEN new.key = '{}' BEGIN SELECT RAISE(ABORT, 'no'); END";
    Connection::open(&path).unwrap().execute_batch(&forbid.replace("{}", &of(7).key)).unwrap();
    let (one, two, three) = (of(6), of(7), of(8));
    let charge = spent("m", 1);
    let ended = tokio::join!(store.put(&one, &charge), store.put(&two, &charge), store.put(&three, &charge));
    assert!(ended.0.is_ok() && ended.1.unwrap_err().to_string().contains("no") && ended.2.is_ok());
    assert_eq!(store.accounts().unwrap().by_name["m"].answered, 2);
    assert!(store.get(&two.key).unwrap().is_none() && store.get(&three.key).unwrap().is_some());
}

#[test]
fn pruning_keeps_what_a_run_that_is_there_needs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let open = |run| SqliteExchanges::open(&path, run).unwrap();
    for (run, numbers) in [("gone", 0..6), ("here", 6..8)] {
        let store = open(run);
        numbers.for_each(|n| waited(store.put(&of(n), &spent("m", 1))).unwrap());
    }
    waited(open("here").reuse(&of(1).key, "m")).unwrap();
    Connection::open(&path).unwrap().execute("UPDATE exchanges SET created = 1000 WHERE key <> ?1", [&of(2).key]).unwrap();
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(2000);
    let here = ["here".to_owned()];
    let pruned = open("").prune(&here, before).unwrap();
    assert_eq!((pruned.exchanges, pruned.runs), (4, 0), "one is young, one was given to a run that is here");
    assert!([1, 2, 6, 7].into_iter().all(|n| open("").get(&of(n).key).unwrap().is_some()));
    assert_eq!(open("gone").accounts().unwrap().by_name["m"].answered, 6);
    let pruned = open("").prune(&[], SystemTime::now() + Duration::from_secs(60)).unwrap();
    assert_eq!((pruned.exchanges, pruned.runs), (4, 2));
    assert!(open("gone").accounts().unwrap().is_empty() && open("").stats().unwrap().is_empty());
}
