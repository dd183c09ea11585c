//! Crawls a registry of many entries that this program serves itself from loopback, and says how fast the
//! binary beside it is and how its memory grows.
//!
//!     cargo run --release --example crawl -- FOLDER [ENTRIES]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Entries of a page, as the official registry has them at most.
const PAGE: usize = 100;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().context("usage: crawl FOLDER [ENTRIES]")?);
    let entries: usize = args.next().map_or(Ok(100_000), |count| count.parse())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            thread::spawn(move || serve(stream, entries, &counted));
        }
    });
    prepare(&folder, port)?;
    let program = std::env::current_exe()?.parent().and_then(Path::parent).context("no folder")?.join("mcpmill");
    ensure!(program.exists(), "build the binary first: cargo build --release --bins");
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(["run", "--to", "discover", "--new"])
        .current_dir(&folder)
        .env_remove("MCPMILL_CACHE_DIR")
        .spawn()?;
    let mut crawled = None;
    let (mut told, mut resident, mut processor) = (0, Vec::new(), 0.0);
    while child.try_wait()?.is_none() {
        let done = served.load(Ordering::Relaxed);
        if done * 4 / entries.max(1) > told {
            told = done * 4 / entries.max(1);
            let now = memory(child.id(), "VmRSS");
            println!("{done} entries served after {:.1} s: {now} MB resident", started.elapsed().as_secs_f64());
            resident.push(now);
        }
        if done >= entries {
            crawled.get_or_insert_with(|| started.elapsed());
        }
        let peak = memory(child.id(), "VmHWM");
        if peak > 0 {
            PEAK.store(peak, Ordering::Relaxed);
        }
        processor = processor_seconds(child.id()).unwrap_or(processor);
        thread::sleep(Duration::from_millis(20));
    }
    let (whole, crawled) = (started.elapsed(), crawled.context("it ended before it had asked for all")?);
    println!(
        "{entries} entries: crawled in {:.1} s, {:.0} a second; with merging and writing {:.1} s, {:.0} a second; at most {} MB resident",
        crawled.as_secs_f64(),
        entries as f64 / crawled.as_secs_f64(),
        whole.as_secs_f64(),
        entries as f64 / whole.as_secs_f64(),
        PEAK.load(Ordering::Relaxed)
    );
    if let [first, .., last] = resident[..] {
        println!(
            "from a quarter of the entries to all of them it grew by {} MB; it took {processor:.1} s of processor time",
            last.saturating_sub(first)
        );
    }
    Ok(())
}

static PEAK: AtomicUsize = AtomicUsize::new(0);

fn prepare(folder: &Path, port: u16) -> Result<()> {
    fs::create_dir_all(folder.join("marketplaces"))?;
    let source = format!(
        "kind = \"json-api\"\ntitle = \"Many\"\nstart = [\"http://127.0.0.1:{port}/v0.1/servers?limit={PAGE}\"]\nentries = [\"/servers\"]\n\
         launch = \"registry\"\nmax_pages = 100000\nmax_entries = 10000000\n[paging]\nstyle = \"cursor\"\nparam = \"cursor\"\nnext = [\"/metadata/nextCursor\"]\n\
         [fields]\nname = [\"/server/name\"]\ntitle = [\"/server/title\"]\ndescription = [\"/server/description\"]\n"
    );
    fs::write(folder.join("marketplaces/many.toml"), source)?;
    let settings = format!(
        "cache_dir = \"cache\"\n[discover]\nmarketplaces = [\"many\"]\n[crawl]\nper_minute = 0\nallow_loopback = [\"127.0.0.1:{port}\"]\n"
    );
    Ok(fs::write(folder.join("mcpmill.toml"), settings)?)
}

/// Answers requests of one connection until it ends.
fn serve(mut stream: TcpStream, entries: usize, served: &AtomicUsize) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reading).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let path = first.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match path.split_once("cursor=") {
            _ if path.starts_with("/robots") => (404, String::new()),
            Some((_, cursor)) => (200, page(cursor.parse().unwrap_or(0), entries, served)),
            None => (200, page(0, entries, served)),
        };
        let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).is_err() {
            return;
        }
    }
}

fn page(from: usize, entries: usize, served: &AtomicUsize) -> String {
    let to = (from + PAGE).min(entries);
    let list: Vec<Value> = (from..to).map(entry).collect();
    served.fetch_add(to - from, Ordering::Relaxed);
    let next = (to < entries).then(|| to.to_string());
    json!({ "servers": list, "metadata": { "count": list.len(), "nextCursor": next } }).to_string()
}

fn entry(number: usize) -> Value {
    json!({
        "server": {
            "$schema": "https://static.example/2025-12-11/server.schema.json", "name": format!("example.host{}/server-{number}", number % 977),
            "title": format!("Server {number}"), "version": "1.0.0",
            "description": format!("Looks up, lists and changes the things that number {number} keeps, for as long as it keeps them"),
            "repository": { "url": format!("https://code.example/owner-{}/server-{number}", number % 977), "source": "github" },
            "packages": [{ "registryType": if number.is_multiple_of(3) { "pypi" } else { "npm" }, "identifier": format!("server-{number}-mcp"), "version": "1.0.0",
                "transport": { "type": "stdio" }, "environmentVariables": [{ "name": "API_KEY", "isRequired": true, "isSecret": true }] }],
        },
        "_meta": { "io.modelcontextprotocol.registry/official": { "status": "active", "isLatest": true, "publishedAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z" } },
    })
}

/// Processor time of a process; `None` when it is gone.
fn processor_seconds(process: u32) -> Option<f64> {
    let account = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // What follows the name, which may hold anything, in hundredths of a second.
    let ticks = account.rsplit(')').next()?.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}

/// A line of the kernel's account of a process, in MB; 0 when it is gone.
fn memory(process: u32, line: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let value = status
        .lines()
        .find_map(|found| found.strip_prefix(line)?.trim_start_matches(':').split_whitespace().next()?.parse::<usize>().ok());
    value.unwrap_or(0) / 1024
}
