//! How well answers of real servers are told apart is what the README of the labelled set says: by structure, and with the
//! recorded replies of the embedded model.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{Folder, ok};
use serde_json::Value;

fn measured(args: &[&str]) -> Value {
    let folder = Folder::empty();
    let replies = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/responses/judge.jsonl.zst");
    let store = format!("exchange_store={}", replies.display());
    let given = ["eval", "responses", "--format", "json", "--offline", "--set", "mode=replay", "--set", &store];
    let given: Vec<&str> = given.iter().chain(args).copied().collect();
    let output = ok(folder.mcpmill(&given).env("MCPMILL_CACHE_DIR", folder.path().join("empty-cache")));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Hits and trials of a share in both halves.
fn counts(found: &Value, share: &str) -> [(u64, u64); 2] {
    ["seen", "held_out"].map(|half| {
        let share = &found[half][share];
        (share["hits"].as_u64().unwrap(), share["n"].as_u64().unwrap())
    })
}

#[test]
fn structure_and_the_embedded_judge_are_as_good_as_it_is_written() {
    let found = measured(&[]);
    assert_eq!(counts(&found, "false_rejects"), [(2, 117), (1, 48)], "{found:#}");
    assert_eq!(counts(&found, "missed"), [(3, 78), (1, 25)]);
    assert_eq!(counts(&found, "missed_of_all"), [(3, 210), (1, 161)]);
    assert_eq!(counts(&found, "by_structure"), [(171, 195), (63, 73)]);
    assert_eq!((&found["seen"]["unjudged"], &found["held_out"]["unjudged"]), (&0.into(), &0.into()));
    let rows = found["rows"].as_array().unwrap();
    let mut verdicts: BTreeMap<&str, u32> = BTreeMap::new();
    rows.iter().for_each(|row| *verdicts.entry(row["verdict"].as_str().unwrap()).or_default() += 1);
    assert_eq!(verdicts.keys().copied().collect::<Vec<_>>(), ["empty", "hard-error", "ok", "soft-error"]);
}

/// Without a judge nothing is guessed.
#[test]
fn what_structure_leaves_open_is_unjudged() {
    let found = measured(&["--structure"]);
    assert_eq!(counts(&found, "false_rejects"), [(1, 106), (0, 40)], "{found:#}");
    assert_eq!(counts(&found, "missed"), [(0, 65), (1, 23)]);
    let open = |row: &&Value| row["verdict"] == "unjudged" && row["asked"] == true;
    assert_eq!(found["rows"].as_array().unwrap().iter().filter(open).count(), 34);
    assert_eq!(found["judge"], Value::Null);
}

#[test]
fn rows_that_cannot_be_read_are_named() {
    let folder = Folder::empty();
    folder.write("mine.jsonl", "{\"id\": \"a\"}\n");
    let output = folder.mcpmill(&["eval", "responses", "--structure", "--rows", "mine.jsonl"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("`mine.jsonl`") && told.contains("line 1"), "{told}");
    folder.write("mine.jsonl", "");
    let output = folder.mcpmill(&["eval", "responses", "--structure", "--rows", "mine.jsonl"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no rows"));
}
