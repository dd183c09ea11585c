//! Questions that are put off, answered elsewhere and taken in again, with the real binary. Who answers is the stand-in of
//! the testkit, asked by hand or by its stand-in for OpenAI's batches on loopback.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use common::{Folder, ok, sums_close, tree};
use mcpmill_testkit::{ScriptedEndpoint, batch_line};
use serde_json::{Value, json};

const SERVERS: [&str; 2] = ["memory", "calculator"];
const PRICED: [&str; 2] = ["--set", "models.openai.price={ input = 10.0, output = 0.0 }"];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The files of questions of a run that nobody has taken away.
fn files(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("batch")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut files: Vec<PathBuf> = entries
        .filter(|path| name(path).starts_with(|c: char| c.is_ascii_digit()) && !name(path).ends_with(".requests.jsonl"))
        .collect();
    files.sort();
    files
}

fn import(folder: &Folder, url: &str, file: &str) -> Value {
    let args = [&["batch", "import", file, "--format", "json"], PRICED.as_slice()].concat();
    serde_json::from_slice(&ok(&mut folder.with_model(url, &args)).stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_made_elsewhere_bring_the_rows_that_asking_brings() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let url = model.base_url();
    let live = Folder::with(&SERVERS);
    ok(&mut live.with_model(&url, &["run"]));
    let asked = model.requests().await;

    let folder = Folder::with(&SERVERS);
    let elsewhere = tempfile::tempdir().unwrap();
    let (mut rounds, mut keys, mut questions) = (0, HashSet::new(), 0);
    loop {
        let output = folder.with_model(&url, &["run", "--batch"]).output().unwrap();
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
        rounds += 1;
        let told = said(&output);
        assert!(told.contains("questions wait in runs/") && told.contains("more") && told.contains("hint:"), "{told}");
        assert!(rounds < 60, "{told}");
        let written = files(&folder.run());
        assert!(!written.is_empty(), "{told}");
        for file in written {
            let lines = fs::read_to_string(&file).unwrap();
            // Moved where nobody looks for it.
            fs::remove_file(&file).unwrap();
            let mut answers: Vec<String> = lines.lines().map(batch_line).collect();
            for answer in &answers {
                let key = serde_json::from_str::<Value>(answer).unwrap()["custom_id"].as_str().unwrap().to_owned();
                assert!(key.len() <= 64);
                questions += u64::from(keys.insert(key));
            }
            let count = answers.len() as u64;
            if rounds == 1 {
                // One came too late, one has never been asked, one line is none, one came twice.
                let first: Value = serde_json::from_str(&answers[0]).unwrap();
                keys.remove(first["custom_id"].as_str().unwrap());
                questions -= 1;
                answers[0] =
                    json!({"custom_id": first["custom_id"], "response": null, "error": {"code": "batch_expired"}}).to_string();
                answers.extend([
                    json!({"custom_id": "nobody", "content": "x"}).to_string(),
                    "no JSON".into(),
                    answers[1].clone(),
                ]);
            }
            let back = elsewhere.path().join("answers.jsonl");
            fs::write(&back, answers.join("\n")).unwrap();
            let done = import(&folder, &url, back.to_str().unwrap());
            let odd = u64::from(rounds == 1);
            assert_eq!(done["added"], count - odd, "{done}");
            assert_eq!(
                (&done["unknown"], &done["unreadable"], &done["present"]),
                (&json!(odd), &json!(odd), &json!(odd)),
                "{done}"
            );
            let tokens = done["usage"]["input_tokens"].as_f64().unwrap();
            assert!(
                tokens > 0.0 && (done["usage"]["cost"].as_f64().unwrap() - tokens * 10.0 / 1e6 / 2.0).abs() < 1e-9,
                "half price: {done}"
            );
            if rounds == 1 {
                assert_eq!((&done["errors"], &done["unknown_ids"]), (&json!({"expired": 1}), &json!(["nobody"])));
            }
            let again = import(&folder, &url, back.to_str().unwrap());
            assert_eq!(
                (&again["added"], &again["errors"], &again["usage"]["cost"]),
                (&json!(0), &json!({}), &json!(0.0)),
                "{again}"
            );
        }
    }
    assert!(rounds > 3, "{rounds} rounds");
    assert_eq!(tree(&folder.run()), tree(&live.run()));
    for stage in ["3-generate", "4-filter"] {
        sums_close(&folder.run(), stage);
    }
    assert_eq!(model.requests().await, asked, "nobody was asked");
    assert_eq!(keys.len() as u64, questions, "each question is written once");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_go_to_the_provider_and_back() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let url = model.base_url();
    let folder = Folder::with(&["calculator"]);
    let run = ["run", "--to", "generate", "--batch=questions.jsonl"];
    let output = folder.with_model(&url, &run).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(said(&output).contains("questions wait in questions.jsonl"), "{}", said(&output));
    // Asked for again, the same questions wait in the same file.
    let again = folder.with_model(&url, &run).output().unwrap();
    assert!(again.status.code() == Some(6) && !folder.path().join("questions-2.jsonl").exists(), "{}", said(&again));

    let submitted = ok(&mut folder.with_model(&url, &["batch", "submit", "questions.jsonl"]));
    let id = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    let status = ok(&mut folder.with_model(&url, &["batch", "status", &id]));
    assert!(String::from_utf8_lossy(&status.stdout).starts_with("in_progress"), "{status:?}");
    let fetched = ok(&mut folder.with_model(&url, &["batch", "fetch", &id]));
    assert!(said(&fetched).contains("took in"), "{}", said(&fetched));
    let next = folder.with_model(&url, &run).output().unwrap();
    assert!(next.status.code() == Some(6) && folder.path().join("questions-2.jsonl").exists(), "{}", said(&next));

    let unknown = folder.with_model(&url, &["batch", "status", "other"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{}", said(&unknown));
    let elsewhere = folder
        .mcpmill(&["batch", "fetch", &id])
        .env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        .env("OPENAI_MODEL", "m")
        .output()
        .unwrap();
    assert!(elsewhere.status.code() == Some(2) && said(&elsewhere).contains("no model of the settings"), "{}", said(&elsewhere));
}

#[test]
fn the_embedded_model_and_a_replay_put_nothing_off() {
    let folder = Folder::with(&["calculator"]);
    let output = folder.mcpmill(&["run", "--batch"]).output().unwrap();
    assert!(
        output.status.code() == Some(2) && said(&output).contains("embedded model") && said(&output).contains("hint:"),
        "{}",
        said(&output)
    );
    let output = folder.with_model("http://127.0.0.1:9/v1", &["generate", "--batch", "--set", "mode=replay"]).output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("replay"), "{}", said(&output));
}
