//! A budget that is smaller than the run: it stops in time, its sums close, and it goes on to the same files.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{collections::BTreeMap, path::Path, time::Duration};

use common::{Folder, ok, stage, tree};
use mcpmill_testkit::ScriptedEndpoint;
use serde_json::Value;

const RUN: [&str; 11] = [
    "run",
    "--to",
    "generate",
    "--set",
    "models.openai.price={input=100, output=300}",
    "--set",
    "models.openai.retries=0",
    "--set",
    "generate.concurrency=2",
    "--set",
    "generate.per_tool=12",
];

fn report(run: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(run.join("report.json")).unwrap()).unwrap()
}

fn generated(run: &Path) -> BTreeMap<String, String> {
    tree(run).into_iter().filter(|(name, _)| name.starts_with("3-generate")).collect()
}

/// The account of the model; there is one.
fn account(report: &Value) -> Value {
    let accounts = report["accounts"].as_object().unwrap();
    accounts.iter().find(|(name, _)| name.starts_with("stand-in@")).unwrap().1.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_stops_a_run_that_goes_on_with_a_larger_one() {
    let model = ScriptedEndpoint::start(Duration::from_millis(5)).await;
    let folder = Folder::with(&["calculator"]);
    ok(&mut folder.with_model(&model.base_url(), &RUN));
    let whole = folder.run();
    let (all, needed) = (report(&whole), model.requests().await);
    let cost = all["used"]["cost"].as_f64().unwrap();
    assert!(cost > 0.0 && account(&all)["answered"] == needed, "{all:#}");

    // The same endpoint: its address is a part of the model's name.
    let capped = Folder::with(&["calculator"]);
    let cap = cost / 3.0;
    let with_cap =
        |cap: f64| capped.with_model(&model.base_url(), &[&RUN[..], &["--set", &format!("budget.cost={cap}")]].concat());
    let stopped = with_cap(cap).output().unwrap();
    let told = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(4), "{told}");
    assert!(told.contains("budget is used up") && told.contains("higher cap") && told.contains(" answered"), "{told}");
    let part = report(&capped.run());
    let spent = part["used"]["cost"].as_f64().unwrap();
    assert!(spent > 0.0 && spent <= cap, "{spent} of {cap} spent");
    assert_eq!(account(&part)["answered"], model.requests().await - needed);

    // The same cap again asks nobody, or as much as is left.
    assert_eq!(with_cap(cap).output().unwrap().status.code(), Some(4));
    ok(&mut with_cap(cost * 3.0));
    assert_eq!(capped.runs().len(), 1, "it goes on in the same run");
    let run = capped.run();
    assert_eq!(generated(&run), generated(&whole));
    assert_eq!(model.requests().await, 2 * needed, "nothing was paid for twice");
    let all = report(&run);
    let account = account(&all);
    assert_eq!(account["answered"], needed);
    assert!((all["used"]["cost"].as_f64().unwrap() - cost).abs() < 1e-9, "{all:#}");
    assert!(account["stored"].as_u64() > Some(0), "rows that were half made are made from the store: {account}");
    let told = stage(&run, "3-generate");
    let accounts = told["accounts"].as_object().unwrap();
    assert_eq!(accounts.len(), 1, "{told:#}");
    for (field, sum) in ["cost", "input_tokens", "output_tokens"].map(|field| (field, &accounts.values().next().unwrap()[field]))
    {
        assert_eq!(&told[field], sum, "{field}: one sum, whatever was in flight when the budget was used up");
    }
    assert_eq!(told["outcomes"], stage(&whole, "3-generate")["outcomes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_another_folder_with_the_same_settings_has_accounts_of_its_own() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let store = tempfile::tempdir().unwrap();
    let set = format!("exchange_store={}", store.path().join("shared.sqlite").display());
    let folders = [Folder::with(&["calculator"]), Folder::with(&["calculator"])];
    let run = |folder: &Folder, more: &[&str]| {
        ok(&mut folder.with_model(&model.base_url(), &[&RUN[..], &["--set", &set], more].concat()));
        (folder.run().file_name().unwrap().to_owned(), account(&report(&folder.run())))
    };
    let (name, first) = run(&folders[0], &[]);
    let (same, second) = run(&folders[1], &[]);
    let asked = model.requests().await;
    assert_eq!((&name, &first["answered"]), (&same, &Value::from(asked)), "one name, and one that paid");
    let all = first["answered"].as_u64().unwrap() + first["stored"].as_u64().unwrap();
    assert_eq!((&second["answered"], &second["cost"], &second["stored"]), (&0.into(), &0.0.into(), &all.into()));
    // In a mode that asks again the replies of others are not its own.
    let third = Folder::with(&["calculator"]);
    let (_, third) = run(&third, &["--set", "mode=live"]);
    assert_eq!((&third["answered"], model.requests().await), (&first["answered"], 2 * asked));
}

#[test]
fn a_cap_on_money_wants_prices() {
    let folder = Folder::with(&["calculator"]);
    let output = folder.with_model("http://127.0.0.1:9/v1", &["run", "--set", "budget.cost=1.0"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("price of `stand-in@127.0.0.1:9` is not known") && told.contains("budget.tokens"), "{told}");
    let output = folder.with_model("http://127.0.0.1:9/v1", &["run", "--set", "budget.costs=1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `cost`?"));
}
