//! What `doctor`, `explain` and `check` say of settings: what is wanted and whether it is there, never its value.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use common::Folder;
use serde_json::Value;

/// Planted as a key and as a secret; must be in no output.
const PLANTED: &str = "hunter2-planted";

const SETTINGS: &str = r#"
[discover]
marketplaces = ["smithery", "pulsemcp-v01", "github-topic", "npm-search", "mcpm", "own"]
[crawl]
contact = "crawls@example.org"
proxy_env = "TOLD_NO_PROXY"
[harvest.servers]
"pypi:a-server" = { sdist = ["b"], network = "none" }
[secrets]
A_KEY = "TOLD_SET"
B_KEY = "TOLD_UNSET"
"#;

fn folder() -> Folder {
    let folder = Folder::empty();
    folder.write("mcpmill.toml", SETTINGS);
    std::fs::create_dir(folder.path().join("marketplaces")).unwrap();
    folder.write("marketplaces/own.toml", "kind = \"file\"\ntitle = \"mine\"\nnetwork = \"full\"\n");
    folder
}

/// What a command prints on both streams, and whether it succeeded.
fn said(folder: &Folder, args: &[&str]) -> (String, bool) {
    let mut command = folder.mcpmill(args);
    command.envs([("TOLD_SET", PLANTED), ("SMITHERY_API_KEY", PLANTED)]);
    for name in ["TOLD_UNSET", "PULSEMCP_API_KEY", "PULSEMCP_TENANT_ID", "GITHUB_TOKEN"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(PLANTED), "{text}");
    (text, output.status.success())
}

#[test]
fn doctor_tells_of_keys_secrets_and_policies() {
    let folder = folder();
    let (text, _) = said(&folder, &["doctor", "--format", "json", "--offline"]);
    let rows: Value = serde_json::from_str(text.lines().find(|line| line.starts_with('[')).unwrap()).unwrap();
    let row = |thing: &str| {
        let found: Vec<String> = rows
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["thing"] == thing)
            .map(|row| format!("{}: {}", row["state"].as_str().unwrap(), row["detail"].as_str().unwrap()))
            .collect();
        found.join(" | ")
    };
    assert_eq!(row("key of smithery"), "ok: the variable `SMITHERY_API_KEY` holds its key");
    let two = row("key of pulsemcp-v01");
    assert_eq!(two.matches("not set: ").count(), 2, "{two}");
    assert!(two.contains("`PULSEMCP_TENANT_ID`") && two.contains("is skipped"), "{two}");
    assert!(row("key of github-topic").contains("asked all the same"));
    assert!(row("value of npm-search").starts_with("ok: "));
    assert!(row("value of mcpm").starts_with("not set: `discover.values.mcpm`"));
    assert_eq!(row("secret A_KEY"), "ok: the variable `TOLD_SET` holds it");
    assert!(row("secret B_KEY").starts_with("not set: the variable `TOLD_UNSET`"));
    assert!(row("crawl proxy").starts_with("not set: "));
    assert!(row("crawl contact").contains("crawls@example.org"));
    assert!(row("network of own").contains("its loopback included"));
    assert_eq!(row("server pypi:a-server"), "ok: has no network; b may be built from source");
    assert_eq!(row("network of smithery"), "");
}

#[test]
fn a_python_that_is_not_here_is_missing() {
    let folder = folder();
    let (text, fine) = said(&folder, &["doctor", "--set", "harvest.servers.\"pypi:x\".python=\"3.999\""]);
    assert!(text.contains("Python 3.999") && text.contains("missing") && !fine, "{text}");
    let (text, _) = said(&folder, &["doctor", "--set", "harvest.python=3.12"]);
    assert!(text.contains("a version is text and stands in quotes"), "{text}");
}

#[test]
fn explain_tells_what_a_marketplace_wants() {
    let folder = folder();
    let (text, _) = said(&folder, &["explain", "marketplaces/smithery"]);
    assert!(
        text.contains("kind = \"json-api\"") && text.contains("# key of smithery: set, the variable `SMITHERY_API_KEY`"),
        "{text}"
    );
    let (text, _) = said(&folder, &["explain", "marketplaces/mcpm"]);
    assert!(text.contains("# value of mcpm: not set"), "{text}");
    let (text, _) = said(&folder, &["explain", "marketplaces/starter"]);
    assert!(!text.contains("On this machine"), "{text}");
    for (what, holds) in
        [("secrets", "Credentials"), ("crawl", "per_minute"), ("harvest.servers", "sdist"), ("harvest", "network")]
    {
        let (text, fine) = said(&folder, &["explain", what]);
        assert!(fine && text.contains(holds), "{what}: {text}");
    }
}

#[test]
fn wrong_policies_are_told_with_a_way_on() {
    let folder = folder();
    let (text, fine) = said(&folder, &["check", "--set", "harvest.servers.filesystem.network=full"]);
    assert!(!fine && text.contains("names no package: write `npm:NAME` or `pypi:NAME`"), "{text}");
    let (text, fine) = said(&folder, &["check", "--set", "harvest.servers.\"npm:x\".network=all"]);
    assert!(!fine && text.contains("unknown variant `all`") && text.contains("hint: "), "{text}");
    let (text, fine) = said(&folder, &["check", "--set", &format!("secrets.C_KEY={PLANTED}")]);
    assert!(!fine && text.contains("`secrets.C_KEY` is no name of a variable"), "{text}");
    folder.write("marketplaces/own.toml", "kind = \"file\"\ntitle = \"mine\"\nnetwork = \"lan\"\n");
    let (text, fine) = said(&folder, &["run", "--to", "discover"]);
    assert!(!fine && text.contains("unknown variant `lan`, expected `none` or `full`") && text.contains("hint: "), "{text}");
}
