//! Export profiles by the real binary, and read by what the trainers' packages bring: the models' own chat templates and
//! the types of OpenAI's client. The trainers themselves are asked by `tests/profiles/probe.py`; see `datasets/PROFILES.md`.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;
#[path = "profiles/write.rs"]
mod write;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use common::{Folder, ok, rows};
use mcpmill_clients::{
    assets::{AssetId, Assets},
    cage::{Cage, Host},
    install::{Installer, Lock},
};
use mcpmill_core::record::{ExportRow, Split};

const NAMES: [&str; 7] = ["axolotl", "hermes", "llamafactory", "ms-swift", "openai", "trl", "unsloth"];

fn beside(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file)
}

/// Runs `light.py` over profiles and the rows they were written from.
async fn read_by_python(profiles: &Path, rows: &Path) {
    let assets = Assets::new(common::cache());
    let own = assets.fetch(AssetId::Bubblewrap).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let cage = Cage::find(Some(&own), Host::discover().await).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let lock = Lock::Pypi {
        input: include_str!("profiles/requirements.in").to_owned(),
        requirements: include_str!("profiles/requirements.txt").to_owned(),
    };
    let installer = Installer::new(cage, assets, common::cache());
    let python = installer.environment("profile-readers", &lock).await.unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()));
    let command = python.host_command();
    let mut run = Command::new(&command[0]);
    let output = run.args(&command[1..]).arg(beside("profiles/light.py")).args([profiles, rows]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for reader in ["trl by qwen2_5", "trl by qwen3", "unsloth by qwen2_5", "unsloth by qwen3", "hermes", "openai"] {
        assert!(said.contains(&format!("{reader} ok")), "{said}");
    }
}

/// Parallel calls, swapped answers, masked turns, nulls, `{}`, numbers, text beside calls.
#[tokio::test(flavor = "multi_thread")]
async fn hard_shapes_come_back_equal_from_the_models_own_templates() {
    let folder = tempfile::tempdir().unwrap();
    write::write_profiles(&beside("profiles/hard.jsonl"), folder.path()).unwrap();
    read_by_python(folder.path(), &beside("profiles/hard.jsonl")).await;
}

/// The recorded run of all kinds, replayed: nobody is asked.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_writes_the_profiles_that_are_named() {
    let folder = Folder::empty();
    for file in ["mcpmill.toml", "filters/function-call.toml"] {
        let text = fs::read_to_string(beside("recorded-kinds").join(file)).unwrap();
        fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
        folder.write(file, &text);
    }
    let store = format!("exchange_store={}", beside("recorded-kinds/exchanges.jsonl.zst").display());
    let replay = |verb: &[&str]| {
        let args = [verb, &["--set", "mode=replay", "--set", &store, "--offline"]].concat();
        let mut command = folder.mcpmill(&args);
        command.env("MCPMILL_CACHE_DIR", folder.path().join("empty-cache"));
        command
    };
    ok(&mut replay(&["run"]));
    let export = folder.run().join("7-export/mcp-tool-calls");
    let written = |of: &str| {
        let mut names: Vec<String> =
            fs::read_dir(export.join(of)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(written("profiles"), ["trl"], "the default");
    assert_eq!(
        written("profiles/trl"),
        ["README.md", "seen_tool.jsonl", "train.jsonl", "train.py", "unseen_server.jsonl", "unseen_tool.jsonl"]
    );

    let lost = replay(&["export", "--profile", "trk"]).output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(lost.status.code() == Some(2) && said.contains("`trk`") && said.contains("axolotl"), "{said}");

    let all: Vec<&str> = ["export"].into_iter().chain(NAMES.iter().flat_map(|name| ["--profile", *name])).collect();
    ok(&mut replay(&all));
    assert_eq!(written("profiles"), NAMES);
    let first = fs::read(export.join("profiles/trl/train.jsonl")).unwrap();
    ok(&mut replay(&all));
    assert_eq!(fs::read(export.join("profiles/trl/train.jsonl")).unwrap(), first, "the same bytes");

    let rows: Vec<ExportRow> = rows(&folder.run(), "7-export/mcp-tool-calls");
    let train: Vec<String> =
        rows.iter().filter(|row| row.split == Split::Train).map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
    fs::write(folder.path().join("rows.jsonl"), train.concat()).unwrap();
    read_by_python(&export.join("profiles"), &folder.path().join("rows.jsonl")).await;
}
