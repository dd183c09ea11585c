//! A harvest of servers that misbehave, each a process of its own in the cage: all end typed and in time, the
//! others are not held up, memory stays bounded and nothing stays behind.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

#[path = "../../mcpmill-clients/tests/common/mod.rs"]
mod clients;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    net::TcpListener,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mcpmill_clients::{
    install::Installer,
    mcp::{CagedConnector, Program, ServerLimits},
};
use mcpmill_core::{
    edge::{ConnectError, Connector, ToolRunner, WorldSpec},
    record::{Launch, OutcomeKind, ServerRecord, Tool},
};
use mcpmill_pipeline::harvest::{HarvestSettings, harvest};
use mcpmill_testkit::{Kept, context};

const SERVER: &str = include_str!("misbehaviour/server.py");
/// Pages and tools a harvest of this test follows.
const PAGES: usize = 150;
const TOOLS: usize = 10_000;

/// Starts the script, in the mode a record names.
struct Bench {
    connector: CagedConnector,
    scratch: tempfile::TempDir,
    elsewhere: String,
    starts: Mutex<HashMap<String, usize>>,
}

impl Bench {
    /// Servers have `start` and `answer` seconds.
    async fn new(elsewhere: String, start: u64, answer: u64) -> Arc<Self> {
        let scratch = tempfile::tempdir().unwrap();
        let cage = clients::cage().await;
        let installer = Installer::new(cage.clone(), clients::assets(), clients::cache());
        let limits = ServerLimits {
            start: Duration::from_secs(start),
            answer: Duration::from_secs(answer),
            processes: 64,
            output_bytes: 64 << 20,
            ..ServerLimits::default()
        };
        let connector = CagedConnector::new(cage, installer, scratch.path().join("worlds")).with_limits(limits);
        Arc::new(Self { connector, scratch, elsewhere, starts: Mutex::default() })
    }

    fn starts(&self, mode: &str) -> usize {
        self.starts.lock().unwrap().get(mode).copied().unwrap_or(0)
    }

    /// Harvests servers of these modes; how each ended, in the order they ended.
    async fn harvest(self: &Arc<Self>, modes: &[&str], concurrency: usize) -> Vec<(String, Ended)> {
        let records: Vec<ServerRecord> = modes.iter().map(|mode| record(mode)).collect();
        let names: HashMap<String, String> = records.iter().map(|r| (r.id.to_string(), r.name.clone())).collect();
        let settings = HarvestSettings {
            concurrency,
            max_pages: PAGES,
            max_tools: TOOLS,
            listed_tools: false,
            worlds: Arc::default(),
            networked: Arc::default(),
        };
        let sink = Kept::<Tool>::default();
        let connector: Arc<dyn Connector> = Arc::<Self>::clone(self);
        // A harvest without any tool is a failure of its own; how the servers ended is told all the same.
        harvest(records, &settings, connector, &context("harvest"), &sink).await.ok();
        let ends = sink.ends().into_iter().map(|done| {
            let name = names[&done.outcome.input_id].clone();
            let outcome = done.outcome;
            (
                name,
                Ended {
                    kind: outcome.outcome,
                    reason: outcome.reason,
                    cause: outcome.cause.unwrap_or_default(),
                    tools: done.rows,
                },
            )
        });
        ends.collect()
    }

    /// Nothing is left of any server: no process, no folder.
    #[track_caller]
    fn is_clean(&self) {
        let mark = self.scratch.path().display().to_string();
        assert_eq!(clients::alive(&mark), Vec::<u32>::new());
        assert_eq!(fs::read_dir(self.scratch.path().join("worlds")).unwrap().count(), 0);
    }
}

#[async_trait]
impl Connector for Bench {
    async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let start = {
            let mut starts = self.starts.lock().unwrap();
            let start = starts.entry(server.name.clone()).or_default();
            *start += 1;
            start.to_string()
        };
        let world = WorldSpec { files: [("server.py".to_owned(), SERVER.to_owned())].into(), ..WorldSpec::default() };
        let mark = self.scratch.path().display().to_string();
        let program = Program {
            name: server.name.clone(),
            command: ["python3", "${WORLD}/server.py", &server.name, &start, &mark].map(str::to_owned).into(),
            env: vec![("ELSEWHERE".to_owned(), self.elsewhere.clone())],
            binds: Vec::new(),
        };
        self.connector.start(&program, &world).await
    }
}

#[derive(Debug)]
struct Ended {
    kind: OutcomeKind,
    reason: String,
    cause: String,
    tools: Vec<Tool>,
}

impl Ended {
    /// It gave this many tools, and `cause` says this besides.
    #[track_caller]
    fn kept(&self, tools: usize, cause: &str) {
        assert_eq!((self.kind, self.reason.as_str(), self.tools.len()), (OutcomeKind::Kept, "ready", tools), "{}", self.cause);
        assert!(self.cause.contains(cause) && (self.cause.is_empty() || !cause.is_empty()), "`{cause}`: `{}`", self.cause);
    }

    #[track_caller]
    fn failed(&self, reason: &str, cause: &str) {
        assert_eq!((self.kind, self.reason.as_str(), self.tools.len()), (OutcomeKind::Failed, reason, 0), "{}", self.cause);
        assert!(self.cause.contains(cause), "`{cause}`: `{}`", self.cause);
    }

    fn schema(&self, name: &str) -> &str {
        &self.tools.iter().find(|tool| tool.name == name).unwrap().input_schema
    }
}

fn record(mode: &str) -> ServerRecord {
    let launch = Launch::Stdio { command: "npx".to_owned(), args: vec![mode.to_owned()] };
    let id = ServerRecord::identify(&launch);
    serde_json::from_value(serde_json::json!({ "id": id, "name": mode, "launch": launch })).unwrap()
}

/// Bytes of memory this process has had at most.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

async fn ended(bench: &Arc<Bench>, modes: &[&str]) -> BTreeMap<String, Ended> {
    let ends: BTreeMap<_, _> = bench.harvest(modes, 4).await.into_iter().collect();
    assert_eq!(ends.len(), modes.len(), "each has one end");
    bench.is_clean();
    ends
}

#[tokio::test]
async fn lists_that_do_not_end_are_ended() {
    let bench = Bench::new(String::new(), 60, 60).await;
    let modes = ["many-tools", "huge-page", "stuck-cursor", "cycling-cursors", "empty-pages", "endless-pages", "sparse-pages"];
    let ends = ended(&bench, &modes).await;
    ends["many-tools"].kept(TOOLS, "more than 10000 tools, the rest was cut off");
    ends["huge-page"].kept(TOOLS, "more than 10000 tools, the rest was cut off");
    ends["stuck-cursor"].kept(2, "pagination: non-advancing");
    ends["cycling-cursors"].kept(4, "pagination: non-advancing");
    ends["empty-pages"].kept(1, "pagination: non-advancing");
    ends["sparse-pages"].kept(3, "");
    ends["endless-pages"].kept(PAGES, "more than 150 pages of tools, the rest was cut off");
}

#[tokio::test]
async fn odd_answers_are_understood_as_far_as_they_can_be() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let elsewhere = format!("http://{}/schema.json", listener.local_addr().unwrap());
    let bench = Bench::new(elsewhere.clone(), 60, 6).await;
    let modes = [
        "deep",
        "refers",
        "broken-text",
        "batch",
        "other-ids",
        "text-ids",
        "answers-twice",
        "complains",
        "odd-numbers",
        "says-before",
        "no-last-end",
    ];
    let ends = ended(&bench, &modes).await;
    ends["deep"].kept(1, "");
    assert_eq!(ends["deep"].schema("deep"), format!("{}{{}}{}", r#"{"items":"#.repeat(300), "}".repeat(300)));
    assert_eq!(ends["deep"].tools[0].schema().to_string(), ends["deep"].schema("deep"));
    ends["refers"].kept(2, "");
    assert_eq!(ends["refers"].schema("itself"), r##"{"type":"object","properties":{"child":{"$ref":"#"}}}"##);
    assert!(ends["refers"].schema("elsewhere").contains(&elsewhere));
    assert!(listener.accept().is_err(), "nobody fetched it");
    ends["broken-text"].kept(2, "mended: 1 messages with broken characters");
    let described: Vec<_> = ends["broken-text"].tools.iter().map(Tool::description_text).collect();
    assert!(described.contains(&"\u{fffd}\u{fffd}") && described.contains(&"a\u{fffd}b"), "{described:?}");
    for mode in ["batch", "text-ids", "complains"] {
        ends[mode].kept(1, "");
    }
    ends["answers-twice"].kept(1, "");
    assert_eq!(ends["answers-twice"].tools[0].name, "first");
    ends["odd-numbers"].kept(2, "3 entries of its list are no tools: `odd_0` holds a number that cannot be kept");
    ends["odd-numbers"].kept(2, "rounded: 1 messages with numbers of more digits than are kept");
    ends["says-before"].kept(1, "stdout_noise: 1 lines");
    ends["no-last-end"].kept(1, "");
    ends["other-ids"].failed("timed-out", "no answer within 6 s");
}

#[tokio::test]
async fn floods_end_and_take_little_memory() {
    let bench = Bench::new(String::new(), 60, 60).await;
    let before = most_memory();
    let ends = ended(&bench, &["long-line", "many-lines", "many-values", "nags"]).await;
    for (mode, end) in &ends {
        end.failed("protocol", "it printed too much");
        assert_eq!(bench.starts(mode), 1);
    }
    let taken = most_memory().saturating_sub(before);
    assert!(taken < 120 << 20, "{} MB", taken >> 20);
}

#[tokio::test]
async fn servers_that_die_or_do_not_are_told_apart() {
    let bench = Bench::new(String::new(), 10, 6).await;
    let modes = [
        "half-a-line",
        "closes-output",
        "drips",
        "drips-at-once",
        "dies-once",
        "dies-always",
        "fork-storm",
        "stays",
        "deaf-family",
    ];
    let ends = ended(&bench, &modes).await;
    ends["half-a-line"].failed("launch-failed", "the server ended with exit code 3");
    // The first process of its cage holds the output open.
    ends["closes-output"].failed("timed-out", "no answer within 6 s");
    ends["drips"].failed("timed-out", "no answer within 6 s");
    ends["drips-at-once"].failed("timed-out", "no answer to `initialize` within 10 s");
    ends["dies-once"].kept(1, "at the second start; at the first: ");
    assert!(ends["dies-once"].cause.contains("the server ended with exit code 9: out of luck"), "{}", ends["dies-once"].cause);
    ends["dies-always"].failed("launch-failed", "exit code 9");
    assert_eq!((bench.starts("dies-once"), bench.starts("dies-always"), bench.starts("drips")), (2, 2, 1));
    ends["fork-storm"].failed("protocol", "it started too many processes");
    ends["stays"].kept(1, "");
    ends["deaf-family"].kept(1, "");
}

#[tokio::test]
async fn a_bad_server_holds_up_no_other() {
    let bench = Bench::new(String::new(), 20, 10).await;
    let good: Vec<String> = (0..5).map(|n| format!("good-{n}")).collect();
    let bad = ["silent", "drips", "fork-storm"];
    let modes: Vec<&str> = bad.into_iter().chain(good.iter().map(String::as_str)).collect();
    let start = Instant::now();
    let ends = bench.harvest(&modes, 4).await;
    let order: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
    // Three of four places are held until their time is over; the fourth is enough for all the others.
    let last_good = order.iter().rposition(|name| name.starts_with("good")).unwrap();
    assert!(last_good < order.iter().position(|name| *name == "silent").unwrap(), "{order:?}");
    assert!(ends.iter().filter(|(name, _)| name.starts_with("good")).all(|(_, end)| end.tools.len() == 1), "{ends:?}");
    assert!(start.elapsed() < Duration::from_secs(90), "within their deadlines");
    bench.is_clean();
}
