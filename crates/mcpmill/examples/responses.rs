//! Makes calls to servers of a recorded roster and keeps their answers, for a set that is labelled by hand.
//!
//!     cargo run --release --example responses -- DATA FOLDER CALLS OUT
//!
//! DATA holds `servers.json`, as for `roster`. CALLS has one JSON object a line: `server` (its name in the roster),
//! `tool`, `arguments` and `request`, what a person would have said. FOLDER is made into a working folder of mcpmill.
//! Each server runs in the cage without a network over the world of [`WORLD`] and gets its calls one after another. OUT
//! gets a line for each answer, as `filters/fixtures/responses/` has them but for the labels; servers under other
//! licences than MIT, Apache-2.0, ISC and BSD are not asked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use mcpmill_clients::{
    assets::{AssetId, Assets},
    cage::{Cage, Host},
    install::Installer,
    mcp::CagedConnector,
};
use mcpmill_core::{
    canonical::content_hash,
    edge::{Connector, ToolRunner, WorldSpec},
    record::ServerRecord,
};
use mcpmill_store::parquet_file::read_all;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Licences under which an answer may be kept.
const OPEN: [&str; 5] = ["MIT", "Apache-2.0", "ISC", "BSD-2-Clause", "BSD-3-Clause"];
/// Time for one server: installing it, starting it and all its calls.
const PATIENCE: Duration = Duration::from_secs(240);
/// Bytes of an answer that is kept.
const LARGEST: usize = 9_000;

/// What every server is given: files of several kinds, some about errors.
const WORLD: &str = r##"
setup = [
  ["git", "init", "-q", "repo"],
  ["python3", "-c", "import sqlite3; c = sqlite3.connect('shop.db'); c.execute('create table orders (id integer, item text, error text)'); c.execute(\"insert into orders values (1, 'lamp', 'none'), (2, 'desk', 'lost in transit')\"); c.commit()"],
]
[files]
"notes.txt" = "Buy bulbs.\nThe printer said: Error 37, paper not found.\nCall Ada.\n"
"data.csv" = "name,price,failed\nlamp,30,no\ndesk,120,yes\n"
"empty.txt" = ""
"docs/errors.md" = "# Errors\n\n- `404 Not Found`: the order does not exist.\n- `500`: ask Ada.\n"
"docs/page.html" = "<html><head><title>Garden hours</title></head><body><h1>Garden</h1><p>Open from 9 to 17.</p></body></html>"
"log/app.log" = "10:00 INFO started\n10:04 ERROR cannot reach the mail server\n10:05 INFO retried, fine\n"
"src/main.py" = "def price(x):\n    if x < 0:\n        raise ValueError('a price is below 0')\n    return x\n"
"repo/readme.md" = "A small repository.\n"
"##;

#[derive(Deserialize)]
struct Entry {
    name: String,
    package: String,
    version: String,
    license: String,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Call {
    server: String,
    tool: String,
    arguments: Map<String, Value>,
    request: String,
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [data, folder, calls, out] = args.as_slice() else { anyhow::bail!("usage: responses DATA FOLDER CALLS OUT") };
    let entries: Vec<Entry> = serde_json::from_str(&fs::read_to_string(Path::new(data).join("servers.json"))?)?;
    let calls: Vec<Call> = fs::read_to_string(calls)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let wanted: BTreeSet<&str> = calls.iter().map(|call| call.server.as_str()).collect();
    let entries: Vec<Entry> = entries.into_iter().filter(|entry| wanted.contains(entry.name.as_str())).collect();
    let closed: Vec<&str> =
        entries.iter().filter(|e| !e.license.split(" AND ").all(|name| OPEN.contains(&name))).map(|e| e.name.as_str()).collect();
    ensure!(closed.is_empty(), "answers of these servers may not be kept: {closed:?}");
    fs::create_dir_all(folder)?;
    let folder = fs::canonicalize(folder)?;
    let servers = discovered(&entries, &folder)?;
    let cache = std::env::var_os("MCPMILL_CACHE_DIR").map_or_else(|| folder.join("cache"), PathBuf::from);
    let (host, assets) = (Host::discover().await, Assets::new(cache.clone()));
    let cage = match Cage::find(None, host.clone()).await {
        Ok(cage) => cage,
        Err(_) => Cage::find(Some(&assets.fetch(AssetId::Bubblewrap).await?), host).await?,
    };
    let installer = Installer::new(cage.clone(), assets, &cache).with_python(Some("3.12".to_owned()));
    let connector = CagedConnector::new(cage, installer, folder.join("worlds"));
    let world: WorldSpec = toml::from_str(WORLD)?;
    let mut out = fs::File::create(out)?;
    for entry in &entries {
        let Some(server) = servers.get(&entry.name) else { continue };
        let own: Vec<&Call> = calls.iter().filter(|call| call.server == entry.name).collect();
        let answered = tokio::time::timeout(PATIENCE, ask(&connector, server, &world, entry, &own, &mut out)).await;
        let told = answered.map_or_else(
            |_| "took too long".to_owned(),
            |done| done.map_or_else(|e| format!("{e:#}"), |n| format!("{n} answers")),
        );
        println!("{}: {told}", entry.name);
    }
    Ok(())
}

/// Discovers the servers, so that they are launched as mcpmill launches what a marketplace lists.
fn discovered(entries: &[Entry], folder: &Path) -> Result<HashMap<String, ServerRecord>> {
    let placed = |text: &str| text.replace("${SANDBOX}", "${WORLD}").replace("${WORK}", "${STATE}");
    let server = |entry: &Entry| {
        let args: Vec<String> = entry.args.iter().map(|arg| placed(arg)).collect();
        let env: BTreeMap<&String, String> = entry.env.iter().map(|(name, value)| (name, placed(value))).collect();
        json!({ "name": entry.name, "licence": entry.license, "command": entry.command, "args": args, "env": env })
    };
    let listed: Vec<Value> = entries.iter().map(server).collect();
    fs::create_dir_all(folder.join("marketplaces"))?;
    let marketplace = toml::Value::try_from(json!({ "kind": "file", "title": "Asked", "server": listed }))?;
    fs::write(folder.join("marketplaces/asked.toml"), toml::to_string(&marketplace)?)?;
    fs::write(folder.join("mcpmill.toml"), "[discover]\nmarketplaces = [\"asked\"]\n")?;
    let program = std::env::current_exe()?.parent().and_then(Path::parent).context("no folder")?.join("mcpmill");
    ensure!(program.exists(), "build the binary first: cargo build --release --bins");
    let status = Command::new(program).args(["run", "--to", "discover", "--new"]).current_dir(folder).status()?;
    ensure!(status.success(), "discover ended with {status}");
    let mut runs: Vec<PathBuf> =
        fs::read_dir(folder.join("runs"))?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    runs.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    let run = runs.pop().context("there is no run")?;
    let servers: Vec<ServerRecord> = read_all(&run.join("1-discover/servers.parquet"))?;
    Ok(servers.into_iter().map(|server| (server.name.clone(), server)).collect())
}

async fn ask(
    connector: &CagedConnector,
    server: &ServerRecord,
    world: &WorldSpec,
    entry: &Entry,
    calls: &[&Call],
    out: &mut fs::File,
) -> Result<usize> {
    let runner = connector.connect(server, world).await?;
    let asked = ask_all(runner.as_ref(), entry, calls, out).await;
    runner.close().await;
    asked
}

async fn ask_all(runner: &dyn ToolRunner, entry: &Entry, calls: &[&Call], out: &mut fs::File) -> Result<usize> {
    let mut schemas: HashMap<String, Value> = HashMap::new();
    let mut cursor = None;
    for _ in 0..50 {
        let page = runner.list_tools(cursor).await?;
        schemas.extend(page.tools.into_iter().filter_map(|tool| Some((tool.name.clone(), tool.output_schema?))));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let mut count = 0;
    for call in calls {
        let Ok(result) = runner.call_tool(&call.tool, &call.arguments).await else { continue };
        let mut answer = Map::from_iter([("content".to_owned(), result.content), ("isError".to_owned(), result.is_error.into())]);
        answer.extend(result.structured_content.map(|content| ("structuredContent".to_owned(), content)));
        let id = content_hash(&json!([call.server, call.tool, call.arguments]))[..8].to_owned();
        let row = json!({
            "id": id, "server": entry.name, "package": entry.package, "version": entry.version, "licence": entry.license,
            "tool": call.tool, "arguments": call.arguments, "request": call.request, "output_schema": schemas.get(&call.tool), "result": answer,
        });
        if row["result"].to_string().len() <= LARGEST {
            writeln!(out, "{row}")?;
            count += 1;
        }
    }
    Ok(count)
}
