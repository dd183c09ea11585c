//! Judges that cannot be relied on, with the real binary: one that is down, one that says the same of everything, and a
//! filter of the user's in the cage.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{fs, process::Output, time::Duration};

use common::{Folder, TWO_SERVERS, ok, rows, stage};
use mcpmill_core::record::{ExportRow, Judgement, Sample, Verdict};
use mcpmill_testkit::{ScriptedEndpoint, graded};
use serde_json::Value;

const JUDGE: &str = "[models.other]\nkind = \"endpoint\"\nbase_url = \"URL\"\nmodel = \"judge\"\ngive_up_after_s = 1\nretries = 0\n[roles]\njudge = \"other\"\n";

/// A folder whose judge answers at `url`.
fn folder(url: &str) -> Folder {
    let folder = Folder::with(&TWO_SERVERS);
    let settings = fs::read_to_string(folder.path().join("mcpmill.toml")).unwrap();
    folder.write("mcpmill.toml", &format!("{settings}{}", JUDGE.replace("URL", url)));
    folder
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn of(folder: &Folder, filter: &str) -> Vec<Verdict> {
    rows::<Verdict>(&folder.run(), "4-filter").into_iter().filter(|verdict| verdict.filter == filter).collect()
}

fn count(verdicts: &[Verdict], judgement: Judgement) -> usize {
    verdicts.iter().filter(|verdict| verdict.judgement == judgement).count()
}

/// How the exam of the judge of quality came out.
fn exam(folder: &Folder) -> String {
    let stage = stage(&folder.run(), "4-filter");
    let exam = stage["exams"].as_array().unwrap().iter().find(|exam| exam["filter"] == "quality-score").unwrap();
    exam["end"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_judge_that_is_down_leaves_open_is_judged_later() {
    let (model, judge) = (ScriptedEndpoint::start(Duration::ZERO).await, ScriptedEndpoint::start(Duration::ZERO).await);
    judge.set_down(true);
    let folder = folder(&judge.base_url());
    let output = folder.with_model(&model.base_url(), &["run"]).output().unwrap();
    let told = said(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("stay unjudged") && told.contains("--rejudge"), "{told}");
    let before = of(&folder, "quality-score");
    assert!(before.len() > 4 && count(&before, Judgement::Drop) == 0, "{before:?}");
    assert!(count(&before, Judgement::Unjudged) > 4);
    let chosen = of(&folder, "tool-invocation");
    assert_eq!(exam(&folder), "not-taken");

    judge.set_down(false);
    let asked = model.requests().await;
    ok(&mut folder.with_model(&model.base_url(), &["filter", "--chain", "function-call", "--rejudge"]));
    let after = of(&folder, "quality-score");
    assert_eq!(count(&after, Judgement::Unjudged), 0, "{after:?}");
    assert_eq!((of(&folder, "tool-invocation"), model.requests().await), (chosen, asked), "what was judged stands");
    assert_eq!(stage(&folder.run(), "4-filter")["rejudged"], 1);
    assert_eq!(exam(&folder), "passed");
    let again = ok(&mut folder.with_model(&model.base_url(), &["filter", "--chain", "function-call", "--rejudge"]));
    assert!(said(&again).contains("nothing to judge again"), "{}", said(&again));
    ok(&mut folder.with_model(&model.base_url(), &["filter", "--chain", "trajectory", "--rejudge"]));
    ok(&mut folder.with_model(&model.base_url(), &["run", "--from", "rollout"]));
    assert!(!rows::<ExportRow>(&folder.run(), "7-export/mcp-tool-calls").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_says_the_same_of_everything_is_found_out() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    for score in [0, 10] {
        let judge = ScriptedEndpoint::saying(&graded(score).to_string()).await;
        let folder = folder(&judge.base_url());
        fs::create_dir(folder.path().join("filters")).unwrap();
        let chain = include_str!("../../../filters/function-call.toml");
        folder.write("filters/function-call.toml", &chain.replace("on_failed_exam = \"unjudged\"", "on_failed_exam = \"fail\""));
        let output = folder.with_model(&model.base_url(), &["run"]).output().unwrap();
        let told = said(&output);
        assert_eq!(output.status.code(), Some(3), "{score}: {told}");
        assert!(told.contains("failed their exam") && told.contains("quality-score"), "{told}");
        let verdicts = of(&folder, "quality-score");
        assert_eq!(count(&verdicts, Judgement::Drop), 0);
        assert!(verdicts.iter().any(|verdict| verdict.reason.contains("failed its exam: it caught")), "{verdicts:?}");
        assert!(verdicts.iter().all(|v| v.judgement == Judgement::Unjudged || v.reason.starts_with("not applicable")));
        let report: Value = serde_json::from_slice(&fs::read(folder.run().join("report.json")).unwrap()).unwrap();
        assert!(report["stages"].as_array().unwrap().iter().any(|stage| stage["exams"].is_array()));
        assert_eq!(exam(&folder), "failed");
        // The shipped chain goes on to a good end, and its dataset takes the rows as if there were no such filter.
        folder.write("filters/function-call.toml", chain);
        ok(&mut folder.with_model(&model.base_url(), &["run"]));
        let exported = rows::<ExportRow>(&folder.run(), "7-export/mcp-tool-calls");
        assert!(exported.iter().any(|row| row.verdicts.iter().any(|v| v.judgement == Judgement::Unjudged)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_the_users_judges_in_the_cage() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&TWO_SERVERS);
    fs::create_dir(folder.path().join("filters")).unwrap();
    folder.write(
        "filters/function-call.toml",
        "[[step]]\nname = \"mine\"\nkind = \"command\"\ncommand = [\"python3\", \"mine.py\"]\nplants = [\"vague\"]\non_failed = 1\n",
    );
    let odd = folder.with_model(&model.base_url(), &["check"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&odd.stdout).contains("on_failed") || said(&odd).contains("on_failed"),
        "unknown keys are told"
    );
    folder.write(
        "filters/function-call.toml",
        "on_failed_exam = \"unjudged\"\n[[step]]\nname = \"mine\"\nkind = \"command\"\ncommand = [\"python3\", \"mine.py\"]\n",
    );
    folder.write(
        "filters/mine.py",
        "import json, os, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n    bad = 'Rarely' in row['instruction']\n    \
         seen = os.listdir('/') + os.listdir('.')\n    print(json.dumps({'id': row['id'], 'judgement': 'drop' if bad else 'keep', \
         'reason': 'rare' if bad else 'fine', 'score': len(row['instruction']), 'evidence': seen}))\n",
    );
    ok(&mut folder.with_model(&model.base_url(), &["run", "--to", "4-filter"]));
    let verdicts = of(&folder, "mine");
    let samples: Vec<Sample> = rows(&folder.run(), "3-generate");
    assert_eq!(verdicts.len(), samples.len());
    for sample in &samples {
        let verdict = verdicts.iter().find(|verdict| verdict.subject_id == sample.id.as_str()).unwrap();
        assert_eq!(verdict.judgement == Judgement::Drop, sample.instruction.contains("Rarely"), "{verdict:?}");
        let seen = verdict.evidence.as_deref().unwrap();
        assert!(seen.contains("mine.py") && !seen.contains("exchanges.sqlite"), "it sees its folder and no other: {seen}");
    }
    assert!(count(&verdicts, Judgement::Drop) > 0);
}
