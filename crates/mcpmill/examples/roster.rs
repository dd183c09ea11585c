//! Harvests a recorded roster of servers with one unattended command, and compares what came with what
//! was recorded.
//!
//!     cargo run --release --example roster -- DATA FOLDER [--only NAME,NAME] [--limit N]
//!
//! DATA holds `servers.json` and `harvested/NAME.json`: name, launch and variables of each server, and
//! the `tools/list` answer it gave. FOLDER is made into a working folder of mcpmill with the roster as a
//! marketplace; run again with the same one it goes on where it was. Credentials of the roster are
//! dummies and reach the servers through `[secrets]`, as a user's own would; what single servers are let do
//! beyond the default is in [`SERVERS`] and printed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use mcpmill_core::{
    record::{Outcome, ServerRecord, Tool},
    secrets::{names_a_secret, redact},
    template::as_variable,
};
use mcpmill_store::parquet_file::read_all;
use serde::Deserialize;
use serde_json::{Value, json};

/// What single servers need beyond the default, as `[harvest.servers]` has it: packages that are published as
/// source only, and a database that has to be there.
const SERVERS: &str = r#"
"pypi:dbt-mcp" = { sdist = ["uuid"] }
"pypi:mcp-pandoc" = { sdist = ["pandoc"] }
"pypi:basic-memory" = { sdist = ["pybars3", "pymeta3"] }
"pypi:zotero-mcp-server" = { sdist = ["bibtexparser"] }
"pypi:serena-agent" = { sdist = ["proxy-tools"] }
"pypi:mcp-simple-pubmed" = { sdist = ["docopt"] }
"pypi:math-mcp" = { sdist = ["community", "python-louvain"] }
"pypi:mcp-sqlite" = { world = ["database"] }
"#;

/// The database of `mcp-sqlite`.
const DATABASE: &str = r#"setup = [["python3", "-c", "import sqlite3; sqlite3.connect('${STATE}/t.db').execute('create table t (x)')"]]
[files]
"#;

#[derive(Deserialize)]
struct Entry {
    name: String,
    license: String,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: roster DATA FOLDER [--only NAME,NAME] [--limit N]";
    let data = PathBuf::from(args.next().context(usage)?);
    let folder = PathBuf::from(args.next().context(usage)?);
    let mut rest: Vec<String> = args.collect();
    let mut entries: Vec<Entry> = serde_json::from_str(&fs::read_to_string(data.join("servers.json"))?)?;
    if let Some(at) = rest.iter().position(|arg| arg == "--only") {
        let names: Vec<String> = rest.drain(at..rest.len().min(at + 2)).skip(1).flat_map(|names| words(&names)).collect();
        let unknown: Vec<&String> = names.iter().filter(|name| !entries.iter().any(|entry| entry.name == **name)).collect();
        ensure!(unknown.is_empty() && !names.is_empty(), "`--only` names servers that the roster has not: {unknown:?}");
        entries.retain(|entry| names.contains(&entry.name));
    }
    println!("settings of single servers:{SERVERS}");
    let variables = prepare(&entries, &folder)?;
    let started = Instant::now();
    // The binary beside this example.
    let program = std::env::current_exe()?.parent().and_then(Path::parent).context("no folder")?.join("mcpmill");
    ensure!(program.exists(), "build the binary first: cargo build --release --bins");
    let status =
        Command::new(program).args(["run", "--to", "harvest"]).args(rest).envs(variables).current_dir(&folder).status()?;
    println!("mcpmill run --to harvest ended with {status} after {} s", started.elapsed().as_secs());
    compare(&data, &folder)
}

/// Whether discover would not keep this value of a listing, so that it has to come from `[secrets]`.
fn stays_outside(name: &str, value: &str) -> bool {
    names_a_secret(name) || redact(value).is_some()
}

/// The values of options that name a secret, by the name under which discover lets them be asked for.
fn secret_options(args: &[String]) -> impl Iterator<Item = (String, &String)> {
    let option = |arg: &String| arg.starts_with("--").then(|| as_variable(arg)).filter(|name| names_a_secret(name));
    args.windows(2).filter(|pair| !pair[1].starts_with('-')).filter_map(move |pair| Some((option(&pair[0])?, &pair[1])))
}

fn words(names: &str) -> Vec<String> {
    names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Writes the working folder; returns the variables that hold the values of its secrets.
fn prepare(entries: &[Entry], folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut servers = Vec::new();
    let (mut secrets, mut variables) = (BTreeMap::new(), BTreeMap::new());
    for entry in entries {
        let (hidden, plain): (Vec<_>, Vec<_>) = entry.env.iter().partition(|&(name, value)| stays_outside(name, value));
        let open: BTreeMap<_, _> = plain.into_iter().map(|(name, value)| (name, placed(value))).collect();
        let names: Vec<&String> = hidden.iter().map(|(name, _)| *name).collect();
        // Two servers may want different dummies under one name: the first one's is used for both.
        for (name, value) in hidden.into_iter().map(|(name, value)| (name.clone(), value)).chain(secret_options(&entry.args)) {
            let variable = format!("ROSTER_{}", name.to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
            secrets.entry(name).or_insert_with(|| variable.clone());
            variables.entry(variable).or_insert_with(|| placed(value));
        }
        servers.push(json!({
            "name": entry.name, "licence": entry.license, "command": entry.command,
            "args": entry.args.iter().map(|arg| placed(arg)).collect::<Vec<_>>(), "env": open, "secrets": names, "world": ["roster"],
        }));
    }
    let roster = toml::Value::try_from(json!({ "kind": "file", "title": "Roster", "server": servers }))?;
    let settings = toml::Value::try_from(json!({
        "discover": { "marketplaces": ["roster"] },
        "harvest": { "keep_installed": false, "python": "3.12", "start_timeout_s": 120, "servers": SERVERS.parse::<toml::Table>()? },
        "secrets": secrets,
    }))?;
    fs::create_dir_all(folder.join("marketplaces/worlds"))?;
    fs::write(folder.join("marketplaces/roster.toml"), toml::to_string(&roster)?)?;
    fs::write(folder.join("marketplaces/worlds/roster.toml"), WORLD)?;
    fs::write(folder.join("marketplaces/worlds/database.toml"), DATABASE)?;
    fs::write(folder.join("mcpmill.toml"), toml::to_string(&settings)?)?;
    Ok(variables)
}

/// What every server of the roster was given: a folder with a repository.
const WORLD: &str = r#"setup = [["git", "init", "-q", "repo"]]
[files]
"notes.txt" = "a note\n"
"#;

/// The recorded names of writable folders as those of mcpmill.
fn placed(text: &str) -> String {
    text.replace("${SANDBOX}", "${WORLD}").replace("${WORK}", "${STATE}")
}

fn compare(data: &Path, folder: &Path) -> Result<()> {
    let run = newest(&folder.join("runs"))?;
    let servers: Vec<ServerRecord> = read_all(&run.join("1-discover/servers.parquet"))?;
    let tools: Vec<Tool> = read_all(&run.join("2-harvest/tools.parquet"))?;
    let outcomes: Vec<Outcome> = read_all(&run.join("2-harvest/outcomes.parquet"))?;
    let mut harvested: HashMap<&str, Vec<Value>> = HashMap::new();
    for tool in &tools {
        harvested.entry(tool.server_id.as_str()).or_default().push(signature(&json!({
            "name": tool.name, "description": tool.description, "inputSchema": tool.schema(),
        })));
    }
    let (mut ready, mut equal, mut same_tools, mut all_tools) = (0, 0, 0, 0);
    for server in &servers {
        let outcome = outcomes.iter().find(|outcome| outcome.input_id == server.id.as_str());
        let Some(found) = harvested.get(server.id.as_str()) else {
            let cause = outcome.map(|o| format!("{}: {}", o.reason, o.cause.as_deref().unwrap_or_default())).unwrap_or_default();
            println!("{}: not harvested: {cause}", server.name);
            continue;
        };
        ready += 1;
        let recorded = recorded(&data.join(format!("harvested/{}.json", server.name)))?;
        let (ours, theirs) = (set(found), set(&recorded));
        let common = ours.intersection(&theirs).count();
        (same_tools, all_tools) = (same_tools + common, all_tools + theirs.len());
        if ours == theirs {
            equal += 1;
        } else {
            println!(
                "{}: {} of {} recorded tools are the same, {} others came",
                server.name,
                common,
                theirs.len(),
                ours.len() - common
            );
            differences(found, &recorded);
        }
    }
    println!(
        "{} servers, {ready} harvested, {equal} with the very same tools; {same_tools} of {all_tools} tools the same",
        servers.len()
    );
    Ok(())
}

/// Says of the first differing tools what differs.
fn differences(ours: &[Value], theirs: &[Value]) {
    for recorded in theirs.iter().filter(|tool| !ours.contains(tool)).take(3) {
        let what = match ours.iter().find(|tool| tool["name"] == recorded["name"]) {
            None => "absent",
            Some(tool) if tool["description"] != recorded["description"] => "description",
            Some(_) => "schema",
        };
        println!("    {}: {what}", recorded["name"]);
    }
}

fn recorded(path: &Path) -> Result<Vec<Value>> {
    let file: Value = serde_json::from_str(&fs::read_to_string(path).with_context(|| path.display().to_string())?)?;
    Ok(file["tools"].as_array().map(|tools| tools.iter().map(signature).collect()).unwrap_or_default())
}

/// What two tools must share to be the same. Folders were replaced when the roster was recorded.
fn signature(tool: &Value) -> Value {
    let text = json!([tool["name"], tool["description"], tool["inputSchema"]]).to_string();
    let text = ["${SANDBOX}", "${WORK}", "${HOME}", "${PKG}"].iter().fold(text, |text, folder| text.replace(folder, "<folder>"));
    let text =
        ["/home/user/work", "/home/user/.state", "/home/user"].iter().fold(text, |text, folder| text.replace(folder, "<folder>"));
    let parts: Value = serde_json::from_str(&text).unwrap_or_default();
    json!({ "name": parts[0], "description": parts[1], "inputSchema": parts[2] })
}

fn set(tools: &[Value]) -> BTreeSet<String> {
    tools.iter().map(mcpmill_core::canonical::content_hash).collect()
}

fn newest(runs: &Path) -> Result<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(runs)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    all.pop().context("there is no run")
}
