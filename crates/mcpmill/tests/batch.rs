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
                // One came too late, one has never been asked, one line is none, one came twice and then otherwise.
                let [first, second] = [0, 1].map(|at| serde_json::from_str::<Value>(&answers[at]).unwrap());
                keys.remove(first["custom_id"].as_str().unwrap());
                questions -= 1;
                answers[0] =
                    json!({"custom_id": first["custom_id"], "response": null, "error": {"code": "batch_expired"}}).to_string();
                answers.extend([
                    json!({"custom_id": "nobody", "content": "x"}).to_string(),
                    "no JSON".into(),
                    answers[1].clone(),
                    json!({"custom_id": second["custom_id"], "content": "otherwise"}).to_string(),
                ]);
            }
            let back = elsewhere.path().join("answers.jsonl");
            fs::write(&back, answers.join("\n")).unwrap();
            let done = import(&folder, &url, back.to_str().unwrap());
            let odd = u64::from(rounds == 1);
            assert_eq!(done["added"], count - odd, "{done}");
            assert_eq!(
                (&done["unknown"], &done["unreadable"], &done["present"], &done["differing"]),
                (&json!(odd), &json!(odd), &json!(odd), &json!(odd)),
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
    let folder = Folder::with(&SERVERS);
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
    handed_in_twice(&folder, &url, &id);
    // Asked live before the answers are taken, the questions are paid for twice: that is told once, and done.
    let stop = ["run", "--to", "generate", "--set", "budget.tokens=0"];
    let live = folder.with_model(&url, &stop).output().unwrap();
    assert!(live.status.code() == Some(4) && said(&live).matches(&format!("handed in (`{id}`")).count() == 1, "{}", said(&live));
    let fetched = ok(&mut folder.with_model(&url, &["batch", "fetch", &id]));
    assert!(said(&fetched).contains("took in"), "{}", said(&fetched));
    answered_already(&folder, &url, &id);
    let live = folder.with_model(&url, &stop).output().unwrap();
    assert!(live.status.code() == Some(4) && !said(&live).contains("handed in"), "{}", said(&live));
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

/// A file is handed in once, unless nothing came of it or the user wants it.
fn handed_in_twice(folder: &Folder, url: &str, id: &str) {
    let submit = |args: &[&str]| folder.with_model(url, &[&["batch", "submit"], args].concat()).output().unwrap();
    fs::copy(folder.path().join("questions.jsonl"), folder.path().join("moved.jsonl")).unwrap();
    let lines = fs::read_to_string(folder.path().join("questions.jsonl")).unwrap();
    let all = lines.lines().count();
    assert!(all > 1);
    folder.write("blank.jsonl", &format!("\n{lines}\n"));
    folder.write("cut.jsonl", lines.lines().next().unwrap());
    for (file, count) in
        [("questions.jsonl", all), ("./questions.jsonl", all), ("moved.jsonl", all), ("blank.jsonl", all), ("cut.jsonl", 1)]
    {
        let twice = submit(&[file]);
        let told = said(&twice);
        assert!(twice.status.code() == Some(2) && told.contains(&format!("as the batch `{id}`")), "{told}");
        assert!(told.contains(&format!("questions in `{file}` that are handed in already: {count} of {count}, as")), "{told}");
        assert!(told.contains(&format!("batch status {id}")) && told.contains("--again"), "{told}");
    }
    let noted = folder.run().join("batch/submitted.jsonl");
    let before = fs::read_to_string(&noted).unwrap();
    assert!(submit(&["questions.jsonl", "--again"]).status.success());
    fs::write(&noted, before.replace(id, "batch-99")).unwrap();
    let failed = submit(&["questions.jsonl"]);
    assert!(failed.status.success(), "that batch has failed: {}", said(&failed));
    fs::write(&noted, before).unwrap();
}

/// What is answered is not handed in again, whatever the file and whatever is known of the batch, unless the user wants it.
fn answered_already(folder: &Folder, url: &str, id: &str) {
    let submit = |args: &[&str]| folder.with_model(url, &[&["batch", "submit"], args].concat()).output().unwrap();
    let told = said(&submit(&["cut.jsonl"]));
    assert!(told.contains(&format!("questions in `cut.jsonl` that are answered already: 1 of 1, as the batch `{id}`")), "{told}");
    let noted = folder.run().join("batch/submitted.jsonl");
    let before = fs::read_to_string(&noted).unwrap();
    fs::remove_file(&noted).unwrap();
    let all = fs::read_to_string(folder.path().join("questions.jsonl")).unwrap().lines().count();
    let unknown = submit(&["blank.jsonl"]);
    assert!(
        unknown.status.code() == Some(2) && said(&unknown).contains(&format!("answered already: {all} of {all}\n")),
        "{}",
        said(&unknown)
    );
    assert!(submit(&["cut.jsonl", "--again"]).status.success());
    fs::write(&noted, before).unwrap();
    let none = submit(&["mcpmill.toml"]);
    assert!(none.status.code() == Some(2) && said(&none).contains("no file of questions"), "{}", said(&none));
}

/// Every file of a folder, and of those in it.
fn all_bytes(folder: &Path, found: &mut Vec<u8>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            all_bytes(&entry, found);
        } else {
            found.extend(fs::read(&entry).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_asked_again_and_says_no_key() {
    const KEY: &str = "planted-0key-6b2e";
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let (folder, elsewhere) = (Folder::with(&SERVERS), tempfile::tempdir().unwrap());
    let with_key = |args: &[&str]| {
        let mut command = folder.with_model(&model.base_url(), args);
        command.env("OPENAI_API_KEY", KEY);
        command
    };
    let run = ["run", "--to", "generate", "--batch"];
    let ask = || {
        let output = with_key(&run).output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
        let file = files(&folder.run()).pop().unwrap();
        fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let key_of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned();
    let back = elsewhere.path().join("answers.jsonl");
    let give = |lines: &[String]| {
        fs::write(&back, lines.join("\n")).unwrap();
        ok(&mut with_key(&["batch", "import", back.to_str().unwrap(), "--format", "json"]))
    };
    let take = |lines: &[String]| -> Value { serde_json::from_slice(&give(lines).stdout).unwrap() };
    let refusal = |key: &str| {
        let body = json!({"error": {"message": format!("no, {KEY} {KEY}")}});
        let line = json!({"custom_id": key, "response": {"status_code": 400, "body": body}, "error": null}).to_string();
        line.replacen(KEY, &KEY.replace('-', r"\u002d"), 1)
    };
    let first = ask();
    assert!(first.len() > 3, "{first:?}");
    let odd: Vec<String> = first.iter().take(3).map(|line| key_of(line)).collect();
    let mut answers: Vec<String> = first.iter().map(|line| batch_line(line)).collect();
    let body = json!({"error": {"message": format!("down, {KEY}")}});
    answers[0] = json!({"custom_id": odd[0], "response": {"status_code": 200, "body": body}}).to_string();
    answers[1] = refusal(&odd[1]);
    answers[2] = json!({"custom_id": odd[2], "result": {"type": "succeeded"}}).to_string();
    let done = take(&answers);
    assert_eq!((&done["added"], &done["refused"]), (&json!(first.len() - 3), &json!(0)), "{done}");
    let errors = done["errors"].as_object().unwrap();
    assert!(errors.len() == 3 && errors["an error in place of a reply"] == 1 && errors["no message"] == 1, "{done}");
    assert!(done.to_string().contains("refused: status 400") && done.to_string().contains("[key]"), "{done}");

    // All three are asked again, and one is refused for good at last.
    let second = ask();
    assert!(odd.iter().all(|key| second.iter().any(|line| key_of(line) == *key)), "{second:?}");
    let others: Vec<String> = second.iter().filter(|line| key_of(line) != odd[1]).map(|line| batch_line(line)).collect();
    // Who answers is told once where it is not who was asked.
    let by = |line: &String, model: &str| {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        answer["response"]["body"]["model"] = json!(model);
        answer.to_string()
    };
    let models = ["stand-in-2026-01-02", "claude-opus-x"].into_iter().chain(std::iter::repeat("claude-opus-x"));
    let given = give(&others.iter().zip(models).map(|(line, model)| by(line, model)).collect::<Vec<_>>());
    assert!(others.len() > 2, "{others:?}");
    assert_eq!(said(&given).matches("answers by `claude-opus-x` are taken for `stand-in`").count(), 1, "{}", said(&given));
    assert!(!said(&given).contains("2026-01-02"), "{}", said(&given));
    assert_eq!(serde_json::from_slice::<Value>(&given.stdout).unwrap()["added"], json!(second.len() - 1));
    assert_eq!(take(&[refusal(&odd[1])])["refused"], 0, "said once before");
    assert!(ask().iter().any(|line| key_of(line) == odd[1]), "asked again though the lines are alike");
    let last = take(&[refusal(&odd[1])]);
    assert_eq!((&last["added"], &last["refused"], &last["errors"]), (&json!(1), &json!(1), &json!({})), "{last}");
    // A good answer is taken nevertheless, and stays.
    let good = batch_line(&first[1]);
    let good = [good];
    assert_eq!((&take(&good)["added"], &take(&good)["present"]), (&json!(1), &json!(1)));
    assert_eq!(take(&[refusal(&odd[1])])["present"], 1);

    let mut found = Vec::new();
    all_bytes(folder.path(), &mut found);
    assert!(!found.windows(KEY.len()).any(|window| window == KEY.as_bytes()), "the key is in no file");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_put_off_than_the_budget_allows() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&SERVERS);
    let cap = 0.05;
    let budget = format!("budget.cost={cap}");
    let args = [&["run", "--to", "generate", "--batch", "--set", &budget], PRICED.as_slice()].concat();
    let run = || {
        let output = folder.with_model(&model.base_url(), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert!(said(&output).contains("budget is used up"), "{}", said(&output));
        files(&folder.run())
    };
    let lines = |file: &Path| fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let written = run();
    assert_eq!(written.len(), 1, "{written:?}");
    let questions = lines(&written[0].with_extension("requests.jsonl"));
    let most = |line: &String| serde_json::from_str::<Value>(line).unwrap()["at_most"]["cost"].as_f64().unwrap();
    let put_off: f64 = questions.iter().map(most).sum();
    assert!(!questions.is_empty() && put_off <= cap && put_off > cap / 2.0, "${put_off} of ${cap}");

    assert_eq!(run(), written, "what waits has its money, and nothing more is written");
    // Answers that do not say what they used counted at their most, so there is no more money for others.
    let bare = |line: &String| {
        let mut answer: Value = serde_json::from_str(&batch_line(line)).unwrap();
        answer["response"]["body"]["usage"] = json!({});
        answer.to_string()
    };
    let answers: Vec<String> = lines(&written[0]).iter().map(bare).collect();
    folder.write("answers.jsonl", &answers.join("\n"));
    let done = import(&folder, &model.base_url(), "answers.jsonl");
    assert!((done["usage"]["cost"].as_f64().unwrap() - put_off).abs() < 1e-9, "{done}");
    assert_eq!(run(), written);
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
