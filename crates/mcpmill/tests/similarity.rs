//! The thresholds of `embedding-similarity` in the shipped chain are those that the labelled rows give, recomputed from recorded
//! vectors: nothing is fetched and nobody is asked.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::path::Path;

use common::{Folder, ok};
use serde_json::Value;

/// What `mcpmill eval similarity` says of the embedded model, from its recorded vectors.
fn calibrated(args: &[&str]) -> Value {
    let folder = Folder::empty();
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/similarity/vectors.jsonl.zst");
    let store = format!("exchange_store={}", vectors.display());
    let given = ["eval", "similarity", "--format", "json", "--offline", "--set", "mode=replay", "--set", &store];
    let given: Vec<&str> = given.iter().chain(args).copied().collect();
    let output = ok(folder.mcpmill(&given).env("MCPMILL_CACHE_DIR", folder.path().join("empty-cache")));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_shipped_thresholds_are_the_calibrated_ones() {
    let found = calibrated(&[]);
    let (name, _) = found["model"].as_str().unwrap().split_once('@').unwrap();
    let chain: toml::Table = include_str!("../../../filters/function-call.toml").parse().unwrap();
    let steps = chain["step"].as_array().unwrap();
    let step = steps.iter().find(|step| step["kind"].as_str() == Some("embedding-similarity")).unwrap();
    let shipped = &step["by_model"][name];
    for threshold in ["max", "min"] {
        assert_eq!(shipped[threshold].as_float(), found["bounds"][threshold].as_f64(), "{threshold}: {found:#}");
    }
    // They hold on rows that they were not chosen by, better than the paper's do for this model.
    let held_out = |side: &str, what: &str| found[side]["held_out"][what]["value"].as_f64().unwrap();
    assert!(held_out("max", "recall") > 0.9 && held_out("max", "false_rejects") < 0.06, "{found:#}");
    assert!(held_out("min", "recall") > 0.5 && held_out("min", "false_rejects") < 0.06, "{found:#}");
    assert!(held_out("max", "recall") > held_out("paper", "recall"));
}

#[test]
fn fewer_good_rows_may_be_lost_for_a_lower_recall() {
    let recall = |bound: &str| calibrated(&["--false-rejects", bound])["max"]["chosen_by"]["recall"]["value"].as_f64().unwrap();
    assert!(recall("0.0") < recall("0.05"));
    let output = Folder::empty().mcpmill(&["eval", "similarity", "--false-rejects", "2"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("between 0 and 1"));
}
