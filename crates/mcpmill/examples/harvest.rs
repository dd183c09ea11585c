//! Measures what a harvest costs beyond the servers themselves, and against the client of the Python SDK.
//!
//!     cargo run --release --example harvest -- DATA FOLDER [VISITS] [ROUNDS] [NAME…]
//!
//! DATA holds `servers.json`, as for `roster`. FOLDER is made into a working folder of mcpmill; the first
//! time sixty servers that need no credentials are installed into its cache. Then:
//!
//! - each server is harvested VISITS times, and as often the very same command is started by hand in the
//!   very same cage, in turns; what is told is the difference.
//! - all of them are harvested ROUNDS times by `mcpmill run --to harvest` and by the Python SDK, in turns,
//!   both without a cage.
//!
//! With NAMEs only these servers are measured.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mcpmill_clients::{
    assets::{AssetId, Assets},
    cage::{Cage, Host},
    install::Installer,
    mcp::{CagedConnector, RetryLadder},
};
use mcpmill_core::{
    drive::Context,
    edge::{Connector, Mode, Recorder, WorldSpec},
    event::Events,
    launch,
    record::{Outcome, OutcomeKind, ServerRecord, Tool},
    secrets::names_a_secret,
};
use mcpmill_pipeline::harvest::{HarvestSettings, harvest};
use mcpmill_store::{
    exchanges::SqliteExchanges,
    journal::{Journal, JournalOptions},
    parquet_file::read_all,
    run_dir::{RunDir, StageState},
};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, kill_process},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Servers that are measured.
const SERVERS: usize = 60;
/// Servers that are tried, for those that cannot be installed or started here.
const TRIED: usize = 72;
/// Megabytes a server may take on the disk; it keeps the whole below 8 GB.
const LARGEST: f64 = 105.0;
/// The SDK of Python that is compared with.
const SDK: &str = "mcp==2.3.0";
/// Servers at once.
const AT_ONCE: [usize; 2] = [4, 8];
/// Time a server has to end by itself once its input is closed, as mcpmill gives it in the cage.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);
/// A server that at times ends before it answers, as it cannot write into its own folder.
const UNSTEADY: &str = "pubmed-cyanheads";

#[derive(Clone, Deserialize)]
struct Entry {
    name: String,
    license: String,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    tested_runtime: String,
    dummy_credentials: Vec<String>,
    startup_s: f64,
    install_mb: f64,
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: harvest DATA FOLDER [VISITS] [ROUNDS] [NAME…]";
    let data = PathBuf::from(args.next().context(usage)?);
    let folder = PathBuf::from(args.next().context(usage)?);
    let visits: usize = args.next().map_or(Ok(9), |count| count.parse())?;
    let rounds: usize = args.next().map_or(Ok(5), |count| count.parse())?;
    fs::create_dir_all(&folder)?;
    let folder = fs::canonicalize(folder)?;
    let mut bench = Bench::new(&data, &folder).await?;
    let named: Vec<String> = args.collect();
    bench.servers.retain(|server| named.is_empty() || named.contains(&server.name));
    println!("{}", machine(&bench)?);
    if visits > 0 {
        overhead(&bench, visits).await?;
    }
    if rounds > 0 {
        against_the_sdk(&bench, rounds).await?;
    }
    Ok(())
}

/// The servers, installed, and what reaches them.
struct Bench {
    folder: PathBuf,
    servers: Vec<ServerRecord>,
    installer: Installer,
    host: Host,
    caged: Cage,
}

impl Bench {
    async fn new(data: &Path, folder: &Path) -> Result<Self> {
        let entries: Vec<Entry> = serde_json::from_str(&fs::read_to_string(data.join("servers.json"))?)?;
        let tried = suitable(entries);
        let names = match fs::read_to_string(folder.join("chosen.json")) {
            Ok(chosen) => serde_json::from_str(&chosen)?,
            Err(_) => {
                write_folder(folder, &tried)?;
                harvested(folder)?
            }
        };
        fs::write(folder.join("chosen.json"), serde_json::to_string(&names)?)?;
        let chosen: Vec<Entry> = tried.into_iter().filter(|entry| names.contains(&entry.name)).take(SERVERS).collect();
        write_folder(folder, &chosen)?;
        mill(folder, &["run", "--to", "discover", "--new"])?;
        let servers: Vec<ServerRecord> = read_all(&newest(&folder.join("runs"))?.join("1-discover/servers.parquet"))?;
        let host = Host::discover().await;
        let assets = Assets::new(folder.join("cache"));
        let caged = match Cage::find(None, host.clone()).await {
            Ok(cage) => cage,
            Err(_) => Cage::find(Some(&assets.fetch(AssetId::Bubblewrap).await?), host.clone()).await?,
        };
        let installer = Installer::new(caged.clone(), assets, folder.join("cache")).with_python(Some("3.12".to_owned()));
        Ok(Self { folder: folder.to_owned(), servers, installer, host, caged })
    }

    fn connector(&self, cage: &Cage) -> CagedConnector {
        CagedConnector::new(cage.clone(), self.installer.clone(), self.folder.join("cache/worlds"))
    }
}

/// The quickest and smallest servers that want no credentials, none that wants another Python or a repository.
fn suitable(mut entries: Vec<Entry>) -> Vec<Entry> {
    let runs = |entry: &Entry| ["node 20", "python 3.12"].contains(&entry.tested_runtime.as_str());
    let plain =
        |entry: &Entry| entry.name != UNSTEADY && !entry.args.iter().any(|arg| arg == "--python" || arg.contains("/repo"));
    // `--figma-api-key dummy` is asked for, too.
    let asks = |entry: &Entry| entry.args.iter().any(|arg| arg.starts_with("--") && names_a_secret(arg));
    entries.retain(|entry| {
        !asks(entry) && entry.dummy_credentials.is_empty() && entry.install_mb <= LARGEST && runs(entry) && plain(entry)
    });
    entries.sort_by(|a, b| a.startup_s.total_cmp(&b.startup_s).then_with(|| a.name.cmp(&b.name)));
    entries.truncate(TRIED);
    entries
}

/// A working folder with these servers as its only marketplace.
fn write_folder(folder: &Path, entries: &[Entry]) -> Result<()> {
    let placed = |text: &String| text.replace("${SANDBOX}", "${WORLD}").replace("${WORK}", "${STATE}");
    let server = |entry: &Entry| {
        let env: BTreeMap<_, _> = entry.env.iter().map(|(name, value)| (name, placed(value))).collect();
        let args: Vec<_> = entry.args.iter().map(placed).collect();
        json!({ "name": entry.name, "licence": entry.license, "command": entry.command, "args": args, "env": env })
    };
    let all: Vec<_> = entries.iter().map(server).collect();
    let marketplace = toml::Value::try_from(json!({ "kind": "file", "title": "Bench", "server": all }))?;
    let settings = "cache_dir = \"cache\"\n[discover]\nmarketplaces = [\"bench\"]\n[harvest]\npython = \"3.12\"\n";
    fs::create_dir_all(folder.join("marketplaces"))?;
    fs::write(folder.join("marketplaces/bench.toml"), toml::to_string(&marketplace)?)?;
    Ok(fs::write(folder.join("mcpmill.toml"), settings)?)
}

/// The names of the servers that a first harvest, which installs them, got tools of as they are.
fn harvested(folder: &Path) -> Result<BTreeSet<String>> {
    mill(folder, &["run", "--to", "harvest", "--new"])?;
    let run = newest(&folder.join("runs"))?;
    let servers: Vec<ServerRecord> = read_all(&run.join("1-discover/servers.parquet"))?;
    let outcomes: Vec<Outcome> = read_all(&run.join("2-harvest/outcomes.parquet"))?;
    let kept: BTreeSet<&str> = outcomes.iter().filter(|o| o.outcome == OutcomeKind::Kept).map(|o| o.input_id.as_str()).collect();
    // Those that needed another launch line are left out: there is to be one line only.
    let rungs = fs::read_to_string(folder.join("cache/rungs.json")).unwrap_or_else(|_| "{}".to_owned());
    let rungs: BTreeMap<String, usize> = serde_json::from_str(&rungs)?;
    let as_it_is = |server: &&ServerRecord| kept.contains(server.id.as_str()) && !rungs.contains_key(server.id.as_str());
    Ok(servers.iter().filter(as_it_is).map(|server| server.name.clone()).collect())
}

/// Runs the binary beside this example.
fn mill(folder: &Path, args: &[&str]) -> Result<Measured> {
    let program = std::env::current_exe()?.parent().and_then(Path::parent).context("no folder")?.join("mcpmill");
    ensure!(program.exists(), "build the binary first: cargo build --release --bins");
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env_remove("MCPMILL_CACHE_DIR").stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn()?;
    let (status, measured) = Measured::to_the_end(&mut child, started)?;
    ensure!(status.success(), "mcpmill {} ended with {status}", args.join(" "));
    Ok(measured)
}

/// What a process took: seconds, the megabytes it had in memory at most, the processor seconds of its own,
/// and those of all that it started as well.
#[derive(Clone, Copy, Default)]
struct Measured {
    seconds: f64,
    peak: usize,
    own: f64,
    all: f64,
}

impl Measured {
    /// Waits for a process that was started at `started`, and looks at it meanwhile.
    fn to_the_end(child: &mut Child, started: Instant) -> Result<(ExitStatus, Self)> {
        let before = processor_seconds("self", 15);
        let mut measured = Self::default();
        let status = loop {
            let process = child.id().to_string();
            measured.peak = measured.peak.max(memory(&process));
            measured.own = measured.own.max(processor_seconds(&process, 13));
            match child.try_wait()? {
                Some(status) => break status,
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        measured.seconds = started.elapsed().as_secs_f64();
        measured.all = processor_seconds("self", 15) - before;
        Ok((status, measured))
    }
}

/// The processor seconds of a process (13) or of the processes it has waited for (15), in its own and in
/// the system's code; 0 when it is gone.
fn processor_seconds(process: &str, field: usize) -> f64 {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Fields are counted from 0; the name in parentheses is field 1 and may hold anything.
    let fields = line.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(field - 2).take(2));
    let ticks: f64 = fields.into_iter().flatten().filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

fn newest(runs: &Path) -> Result<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(runs)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    all.pop().context("there is no run")
}

/// The most megabytes a process has had in memory; 0 when it is gone.
fn memory(process: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<usize>().ok());
    line.unwrap_or(0) / 1024
}

/// What the figures were measured on.
fn machine(bench: &Bench) -> Result<String> {
    let first = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        value.trim_matches([':', ' ', '\t']).to_owned()
    };
    let version =
        |found: &Option<mcpmill_clients::cage::Interpreter>| found.as_ref().map_or_else(String::new, |i| i.version.clone());
    Ok(format!(
        "{} servers; {} processors ({}), {} of memory, Linux {}, Node {}, Python {}; load {}",
        bench.servers.len(),
        thread::available_parallelism()?,
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
        first("/proc/sys/kernel/osrelease", ""),
        version(&bench.host.node),
        version(&bench.host.python),
        first("/proc/loadavg", "").split(' ').take(3).collect::<Vec<_>>().join(" ")
    ))
}

/// Harvests each server in the cage and starts the same by hand, in turns.
async fn overhead(bench: &Bench, visits: usize) -> Result<()> {
    let connector = bench.connector(&bench.caged);
    let (mut differences, mut lasting) = (Vec::new(), Vec::new());
    // On a machine that others use, wall time says mostly what they left.
    let (mut ours_computed, mut theirs_computed, mut pairs) = (0.0, 0.0, 0_u32);
    println!("\nin the cage, medians of {visits} visits, ms:        harvest  by hand  difference  tools");
    for server in &bench.servers {
        let (mut ours, mut theirs, mut apart, mut tools) = (Vec::new(), Vec::new(), Vec::new(), 0);
        // One more, for what is loaded at the first.
        for visit in 0..=visits {
            // Who goes first takes turns, too.
            let by_hand_first = visit % 2 == 0;
            let before = if by_hand_first { Some(by_hand(bench, &connector, server).await?) } else { None };
            let harvested = harvest_one(bench, &connector, server).await?;
            let by_hand = match before {
                Some(done) => done,
                None => by_hand(bench, &connector, server).await?,
            };
            let same = harvested.tools == by_hand.tools;
            ensure!(same, "`{}` lists {} and {} tools", server.name, harvested.tools, by_hand.tools);
            tools = harvested.tools;
            if visit > 0 {
                ours.push(harvested.wall);
                theirs.push(by_hand.wall);
                apart.push(harvested.wall - by_hand.wall);
                ours_computed += harvested.processor;
                theirs_computed += by_hand.processor;
                pairs += 1;
            }
        }
        let [ours, theirs, apart] = [ours, theirs, apart].map(|all| quartiles(all)[1]);
        println!("{:<44} {ours:>8.1} {theirs:>8.1} {apart:>11.1} {tools:>6}", server.name);
        differences.push(apart);
        lasting.push(theirs);
    }
    let [low, middle, high] = quartiles(differences);
    println!("overhead of a harvest: {middle:.1} ms at the median, quartiles {low:.1} and {high:.1}");
    println!("servers by hand: {:.0} ms at the median", quartiles(lasting)[1]);
    let mean = |sum: f64| sum / f64::from(pairs.max(1));
    println!("processor time of a visit beside the server: {:.1} ms, by hand {:.1}", mean(ours_computed), mean(theirs_computed));
    println!("at most {} MB resident, the bench included", memory("self"));
    Ok(())
}

/// One visit to a server: milliseconds by the clock and of processors, and the tools that were listed.
struct Visit {
    wall: f64,
    processor: f64,
    tools: u64,
}

/// A clock that runs, and the processor seconds before.
struct Clock(Instant, f64);

impl Clock {
    fn start() -> Self {
        Self(Instant::now(), Self::processor())
    }

    fn stop(&self, tools: u64) -> Visit {
        let wall = self.0.elapsed().as_secs_f64() * 1e3;
        Visit { wall, processor: (Self::processor() - self.1) * 1e3, tools }
    }

    /// Seconds of this process and of all that it has waited for: bubblewrap, and not what ran in its namespace.
    fn processor() -> f64 {
        processor_seconds("self", 13) + processor_seconds("self", 15)
    }
}

/// One harvest with all that a run does for it.
async fn harvest_one(bench: &Bench, connector: &CagedConnector, server: &ServerRecord) -> Result<Visit> {
    let scratch = tempfile::tempdir_in(&bench.folder)?;
    let run = RunDir::create(&scratch.path().join("runs"), "2026-01-01", &"0".repeat(64), "bench")?;
    let StageState::Open(stage) = run.stage("2-harvest", &"0".repeat(64))? else { anyhow::bail!("the run is not new") };
    let journal = Journal::<Tool>::open(stage, JournalOptions::default())?;
    let store = SqliteExchanges::open(&scratch.path().join("exchanges.sqlite"), run.info().store_id())?;
    let (events, _stream) = Events::channel();
    let recorder = Arc::new(Recorder::new(Arc::new(store), Mode::Live));
    let cx = Context { stage: "2-harvest".to_owned(), events, cancel: CancellationToken::new(), recorder };
    let settings = HarvestSettings {
        concurrency: 1,
        max_pages: 50,
        max_tools: 1000,
        listed_tools: false,
        worlds: Arc::default(),
        networked: Arc::default(),
    };
    let connector: Arc<dyn Connector> = Arc::new(RetryLadder::new(connector.clone(), bench.folder.join("cache/rungs.json")));
    let servers = vec![server.clone()];
    let clock = Clock::start();
    let summary = harvest(servers, &settings, connector, &cx, &journal).await?;
    let visit = clock.stop(summary.output_rows);
    ensure!(summary.kept == 1, "`{}` was not harvested", server.name);
    Ok(visit)
}

/// The same command in the same cage, spoken to as simply as can be.
async fn by_hand(bench: &Bench, connector: &CagedConnector, server: &ServerRecord) -> Result<Visit> {
    let ready = connector.ready(server, &WorldSpec::default()).await?;
    let (command, inherit) = bench.caged.command(&ready.confined).await?;
    let talked = tokio::task::spawn_blocking(move || talk(command, inherit)).await?;
    talked.with_context(|| format!("`{}` by hand", server.name))
}

fn talk(mut command: Command, inherit: Vec<OwnedFd>) -> Result<Visit> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let clock = Clock::start();
    inherit.iter().try_for_each(|descriptor| fcntl_setfd(descriptor, FdFlags::empty()))?;
    let mut child = command.spawn()?;
    drop(inherit);
    let mut hand =
        Hand { stdin: child.stdin.take().context("no input")?, lines: BufReader::new(child.stdout.take().context("no output")?) };
    let client = json!({
        "protocolVersion": "2025-11-25", "capabilities": { "roots": {} }, "clientInfo": { "name": "hand", "version": "1" },
    });
    hand.ask(0, "initialize", &client)?;
    hand.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    let (mut tools, mut cursor) = (BTreeSet::new(), Value::Null);
    for page in 1.. {
        let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
        let mut listed = hand.ask(page, "tools/list", &params)?;
        let Value::Array(some) = listed["tools"].take() else { anyhow::bail!("no list") };
        tools.extend(some.iter().filter_map(|tool| Some(tool["name"].as_str()?.to_owned())));
        cursor = listed["nextCursor"].take();
        if cursor.as_str().is_none_or(str::is_empty) {
            break;
        }
    }
    drop(hand);
    end(child)?;
    Ok(clock.stop(tools.len() as u64))
}

/// Waits for a server whose input is closed, and ends it when it takes too long.
fn end(mut child: Child) -> Result<()> {
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    let (ended, waiting) = mpsc::channel::<()>();
    let killer = thread::spawn(move || {
        if waiting.recv_timeout(CLOSED_WITHIN) == Err(mpsc::RecvTimeoutError::Timeout) {
            kill_process(process, Signal::KILL).ok();
        }
    });
    child.wait()?;
    drop(ended);
    killer.join().ok();
    Ok(())
}

/// A server's streams.
struct Hand {
    stdin: ChildStdin,
    lines: BufReader<std::process::ChildStdout>,
}

impl Hand {
    fn say(&mut self, message: &Value) -> Result<()> {
        Ok(self.stdin.write_all(format!("{message}\n").as_bytes())?)
    }

    /// The result of a request; whatever the server asks meanwhile is answered.
    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Result<Value> {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.lines.read_line(&mut line)? > 0, "it ended before it answered `{method}`");
            let Ok(mut message) = serde_json::from_str::<Value>(&line) else { continue };
            if message["method"] == "roots/list" {
                let result = json!({ "roots": [{ "uri": "file:///home/user/work" }] });
                self.say(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))?;
            } else if message["id"] == id && message["method"].is_null() {
                return Ok(message["result"].take());
            }
        }
    }
}

/// The three quartiles.
fn quartiles(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (all.len().saturating_sub(1)) as f64;
        let (below, above) = (all[place.floor() as usize], all[place.ceil() as usize]);
        below + (above - below) * place.fract()
    };
    [0.25, 0.5, 0.75].map(at)
}

/// Harvests all servers with the binary and with the SDK, in turns, without a cage.
async fn against_the_sdk(bench: &Bench, rounds: usize) -> Result<()> {
    let words: Vec<String> = ["--from", SDK, "python"].map(str::to_owned).into();
    let python = bench.installer.install(&launch::parse("uvx", &words)?).await?.host_command();
    let uncaged = Cage::unsandboxed(bench.host.clone())?;
    println!(
        "\nwithout a cage, medians of {rounds} rounds in turns       seconds  harvest only  processor s  its own  MB at most"
    );
    for at_once in AT_ONCE {
        let mut visits = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            // Who goes first takes turns, too.
            for who in [round % 2, 1 - round % 2] {
                visits[who].push(match who {
                    0 => mill_all(bench, at_once)?,
                    _ => sdk_all(bench, &uncaged, &python, at_once).await?,
                });
            }
        }
        let figures = [Medians::of(&visits[0]), Medians::of(&visits[1])];
        for (name, of) in ["mcpmill", SDK].iter().zip(&figures) {
            println!(
                "{at_once} at once, {name:<31} {:>10.2} {:>13.2} {:>12.2} {:>8.2} {:>11}",
                of.whole, of.inner, of.processor, of.own, of.peak
            );
        }
        let [ours, theirs] = figures;
        println!(
            "{at_once} at once, ratio {:>35.2} {:>13.2} {:>12.2} {:>8.2} {:>11.2}",
            ours.whole / theirs.whole,
            ours.inner / theirs.inner,
            ours.processor / theirs.processor,
            ours.own / theirs.own,
            ours.peak as f64 / theirs.peak as f64
        );
    }
    Ok(())
}

/// Medians over some visits to all servers; of memory the most.
struct Medians {
    whole: f64,
    inner: f64,
    processor: f64,
    own: f64,
    peak: usize,
}

impl Medians {
    fn of(visits: &[(Measured, f64)]) -> Self {
        let median = |figure: fn(&(Measured, f64)) -> f64| quartiles(visits.iter().map(figure).collect())[1];
        Self {
            whole: median(|(measured, _)| measured.seconds),
            inner: median(|(_, inner)| *inner),
            processor: median(|(measured, _)| measured.all),
            own: median(|(measured, _)| measured.own),
            peak: visits.iter().map(|(measured, _)| measured.peak).max().unwrap_or_default(),
        }
    }
}

/// A whole run of the binary up to harvest, and the seconds of its harvest.
fn mill_all(bench: &Bench, at_once: usize) -> Result<(Measured, f64)> {
    let setting = format!("harvest.concurrency={at_once}");
    let measured = mill(&bench.folder, &["run", "--to", "harvest", "--new", "--unsandboxed", "--set", &setting])?;
    let run = newest(&bench.folder.join("runs"))?;
    let written = |stage: &str| Ok::<_, anyhow::Error>(fs::metadata(run.join(stage).join("stage.json"))?.modified()?);
    let harvest = written("2-harvest")?.duration_since(written("1-discover")?)?;
    let info: Value = serde_json::from_str(&fs::read_to_string(run.join("2-harvest/stage.json"))?)?;
    ensure!(info["outcomes"]["kept"] == bench.servers.len(), "mcpmill harvested {} servers", info["outcomes"]["kept"]);
    Ok((measured, harvest.as_secs_f64()))
}

/// A whole run of the script over the SDK, and the seconds it says its visits took.
async fn sdk_all(bench: &Bench, uncaged: &Cage, python: &[String], at_once: usize) -> Result<(Measured, f64)> {
    let connector = bench.connector(uncaged);
    let (mut worlds, mut servers) = (Vec::new(), Vec::new());
    for server in &bench.servers {
        let ready = connector.ready(server, &WorldSpec::default()).await?;
        let (command, _) = uncaged.command(&ready.confined).await?;
        let env: BTreeMap<_, _> =
            command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?))).collect();
        let args: Vec<_> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        let (program, folder) = (command.get_program().to_str(), command.get_current_dir());
        servers.push(json!({ "name": server.name, "command": program, "args": args, "env": env, "cwd": folder }));
        worlds.push(ready);
    }
    let task = json!({ "at_once": at_once, "servers": servers }).to_string();
    let mut command = Command::new(&python[0]);
    command
        .args(&python[1..])
        .args(["-c", include_str!("harvest_sdk.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn()?;
    child.stdin.take().context("no input")?.write_all(task.as_bytes())?;
    let mut output = child.stdout.take().context("no output")?;
    let reading = thread::spawn(move || std::io::read_to_string(&mut output));
    let (status, measured) = Measured::to_the_end(&mut child, started)?;
    ensure!(status.success(), "the SDK ended with {status}");
    let said: Value = serde_json::from_str(&reading.join().map_err(|_| anyhow::anyhow!("its output cannot be read"))??)?;
    let failed: Vec<_> = said["tools"].as_object().into_iter().flatten().filter(|(_, tools)| !tools.is_number()).collect();
    ensure!(failed.is_empty(), "the SDK failed with {failed:?}");
    Ok((measured, said["seconds"].as_f64().context("no seconds")?))
}
