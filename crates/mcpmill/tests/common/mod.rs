//! A working folder for the real binary: two real servers, settings of its own, the shared cache.

#![allow(dead_code, reason = "every test uses a part of it")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use mcpmill_clients::{
    assets::{AssetId, Assets},
    cage::{Cage, Host},
    install::{Installer, python_readers},
};
use mcpmill_core::{
    canonical::sha256_hex,
    record::{Outcome, OutcomeKind},
};
use mcpmill_store::{artifact::Table, parquet_file::read_all};
use serde_json::Value;
use tempfile::TempDir;

/// Two real servers, one of npm and one of PyPI, from the starter roster.
pub const TWO_SERVERS: [&str; 2] = ["memory", "calculator"];

/// A working folder.
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    /// A folder with nothing in it: the built-in settings and declarations hold.
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A folder whose only marketplace lists these servers of the starter roster.
    pub fn with(servers: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let starter: toml::Table = include_str!("../../../../marketplaces/starter.toml").parse().unwrap();
        let all = starter["server"].as_array().unwrap();
        let chosen =
            servers.iter().map(|name| all.iter().find(|s| s["name"].as_str() == Some(name)).expect("in the roster").clone());
        let listed = toml::Table::from_iter([("server".to_owned(), toml::Value::Array(chosen.collect()))]);
        let text = format!("kind = \"file\"\ntitle = \"for a test\"\n{}", toml::to_string(&listed).unwrap());
        fs::create_dir(dir.path().join("marketplaces")).unwrap();
        let folder = Self { dir };
        folder.write("marketplaces/few.toml", &text);
        folder.write(
            "mcpmill.toml",
            "exchange_store = \"exchanges.sqlite\"\n[discover]\nmarketplaces = [\"few\"]\n[generate]\nsamples = 12\nper_tool = 2\nper_call = 2\n",
        );
        folder
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file below the folder.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// Adds an entry to the marketplace.
    pub fn list(&self, entry: &str) {
        let path = self.path().join("marketplaces/few.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text + "[[server]]\n" + entry).unwrap();
    }

    /// The binary in this folder, with no endpoint set.
    pub fn mcpmill(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcpmill"));
        command.args(args).current_dir(self.path()).env("MCPMILL_CACHE_DIR", cache());
        for name in ["OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"] {
            command.env_remove(name);
        }
        command
    }

    /// The binary with the stand-in endpoint.
    pub fn with_model(&self, base_url: &str, args: &[&str]) -> Command {
        let mut command = self.mcpmill(args);
        command.env("OPENAI_BASE_URL", base_url).env("OPENAI_MODEL", "stand-in");
        command
    }

    /// The runs that have begun, oldest first.
    pub fn runs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("runs")).into_iter().flatten();
        let number = |run: PathBuf| {
            let info: Value = serde_json::from_str(&fs::read_to_string(run.join("run.json")).ok()?).ok()?;
            Some((info["number"].as_u64()?, run))
        };
        let mut runs: Vec<(u64, PathBuf)> = entries.filter_map(|e| number(e.ok()?.path())).collect();
        runs.sort();
        runs.into_iter().map(|(_, run)| run).collect()
    }

    /// The newest run.
    pub fn run(&self) -> PathBuf {
        self.runs().pop().expect("a run")
    }
}

/// Downloads and installed servers are shared by all tests and, where the caller says so, by checkouts.
pub fn cache() -> PathBuf {
    std::env::var_os("MCPMILL_CACHE_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cache"), PathBuf::from)
}

/// Runs a command that must succeed.
pub fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The rows of a table of a stage.
pub fn rows<T: Table>(run: &Path, stage: &str) -> Vec<T> {
    read_all(&run.join(stage).join(T::NAME).with_extension("parquet")).unwrap()
}

/// `stage.json` of a stage.
pub fn stage(run: &Path, stage: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(run.join(stage).join("stage.json")).unwrap()).unwrap()
}

/// The folders of all stages.
pub const STAGES: [&str; 7] =
    ["1-discover", "2-harvest", "3-generate", "4-filter", "5-rollout", "6-filter", "7-export/mcp-tool-calls"];

/// Every input row of a stage has one outcome, the sums agree, and whatever did not go on says why.
pub fn sums_close(run: &Path, name: &str) -> Vec<Outcome> {
    let info = stage(run, name);
    let outcomes: Vec<Outcome> = rows(run, name);
    let count = |kind: OutcomeKind| outcomes.iter().filter(|o| o.outcome == kind).count() as u64;
    let sum: u64 = info["outcomes"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(info["input_rows"], outcomes.len() as u64, "{name}");
    assert_eq!(info["input_rows"], sum, "{name}");
    assert_eq!(info["outcomes"]["kept"], count(OutcomeKind::Kept), "{name}");
    let silent = outcomes.iter().find(|o| o.outcome != OutcomeKind::Kept && o.reason.is_empty());
    assert!(silent.is_none(), "{name}: {silent:?}");
    outcomes
}

/// Row files of all stages and everything of the export, its card too, by path, with their hashes.
/// Outcomes hold times and are left out.
pub fn tree(run: &Path) -> BTreeMap<String, String> {
    let mut hashes = BTreeMap::new();
    let mut waiting = vec![run.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(run).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                waiting.push(path);
            } else if (name.ends_with(".parquet") && !name.ends_with("outcomes.parquet")) || name.ends_with("README.md") {
                hashes.insert(name, sha256_hex(fs::read(&path).unwrap()));
            }
        }
    }
    hashes
}

/// Caged processes whose mcpmill is gone. Their command lines say nothing (they see the cage's own paths),
/// but the world they have mounted carries the process id of its maker.
pub fn survivors() -> Vec<String> {
    let gone = |maker: &u32| !Path::new(&format!("/proc/{maker}")).exists();
    caged().into_iter().filter(|(maker, _)| gone(maker)).map(|(_, what)| what).collect()
}

/// Caged processes, each with the process id of the mcpmill that made its world.
pub fn caged() -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let mounts = fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        let makers = mounts.split("/worlds/world-").skip(1).filter_map(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let what = format!("{:?} {}", entry.file_name(), fs::read_to_string(entry.path().join("comm")).unwrap_or_default());
        found.extend(makers.map(|maker| (maker, what.clone())));
    }
    found
}

/// Processes that have `needle` in their command line.
pub fn processes(needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        if let Ok(line) = fs::read(entry.path().join("cmdline")) {
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(needle) {
                found.push(line);
            }
        }
    }
    found
}

/// How to run Python with pyarrow, pandas, datasets, polars and duckdb, installed by mcpmill's own installer.
pub async fn python() -> Vec<std::ffi::OsString> {
    let assets = Assets::new(cache());
    let host = Host::discover().await;
    let own = assets.fetch(AssetId::Bubblewrap).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let cage = Cage::find(Some(&own), host).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let installer = Installer::new(cage, assets, cache());
    let python =
        installer.environment("python-readers", &python_readers()).await.unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()));
    python.host_command().into_iter().map(Into::into).collect()
}
