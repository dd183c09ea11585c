use std::fs;

use mcpmill_core::record::{Sample, Usage};
use serde_json::{Value, json};

use super::*;

const PRINT: &str = "3f9a1c20ffff";

fn summary() -> mcpmill_core::event::Summary {
    mcpmill_core::event::Summary {
        input_rows: 10,
        kept: 4,
        dropped: 3,
        failed: 2,
        skipped: 1,
        output_rows: 8,
        repeated: 1,
        repairs: [("call: code-fence".to_owned(), 2)].into(),
        evolve_failed: [("deepen".to_owned(), 2)].into(),
        usage: Usage { input_tokens: 5, output_tokens: 6, cached_tokens: 7, reasoning_tokens: 8, cost: 0.25 },
        accounts: mcpmill_core::account::Accounts::default(),
    }
}

fn new(runs: &Path) -> RunDir {
    RunDir::create(runs, "2026-11-29", PRINT, "0.1.0").unwrap()
}

fn opened(state: StageState) -> StageDir {
    match state {
        StageState::Open(dir) => dir,
        StageState::Done(info) => panic!("done: {info:?}"),
    }
}

#[test]
fn runs_are_numbered_listed_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    assert_eq!(latest(&runs).unwrap(), None);
    let (first, second) = (new(&runs), new(&runs));
    // An earlier date does not make it an older run.
    let mut third = RunDir::create(&runs, "2026-01-01", "aaaaaaaa", "0.1.0").unwrap();
    fs::create_dir(runs.join("not-a-run")).unwrap();
    fs::write(runs.join("notes.txt"), "").unwrap();
    let ids: Vec<String> = list(&runs).unwrap().into_iter().map(|run| run.id).collect();
    assert_eq!(ids, ["2026-11-29-3f9a1c20", "2026-11-29-3f9a1c20-2", "2026-01-01-aaaaaaaa"]);
    assert_eq!(latest(&runs).unwrap().unwrap(), *third.info());
    assert_eq!(unfinished(&runs, PRINT).unwrap().unwrap(), *second.info());
    third.set_state(RunState::Finished).unwrap();
    assert_eq!(unfinished(&runs, "aaaaaaaa").unwrap(), None);
    drop(third);
    let again = RunDir::open(&runs, "2026-01-01-aaaaaaaa").unwrap();
    assert_eq!(again.info().state, RunState::Finished);
    assert_eq!(again.info().mcpmill, "0.1.0");
    drop(first);
}

#[test]
fn runs_of_two_folders_are_told_apart_in_a_store() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (new(here.path()), new(there.path()));
    assert_eq!(one.info().id, other.info().id);
    assert_ne!(one.info().store_id(), other.info().store_id());
    let (id, name, path) = (one.info().id.clone(), one.info().store_id().to_owned(), one.path().to_owned());
    drop(one);
    assert_eq!(RunDir::open(here.path(), &id).unwrap().info().store_id(), name, "it keeps its name");
    // As an earlier version wrote it.
    let mut info: Value = serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    info.as_object_mut().unwrap().shift_remove("exchanges");
    fs::write(path.join("run.json"), info.to_string()).unwrap();
    assert_eq!(run_info(&path).unwrap().unwrap().store_id(), id);
    assert_eq!(run_info(here.path()).unwrap(), None);
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    let id = run.info().id.clone();
    let error = RunDir::open(dir.path(), &id).unwrap_err();
    assert!(matches!(error.kind, RunDirErrorKind::Locked), "{error}");
    assert!(error.hint().unwrap().contains("--new"));
    assert!(error.to_string().contains(&id), "{error}");
    drop(run);
    RunDir::open(dir.path(), &id).unwrap();
}

#[test]
fn names_cannot_leave_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    for id in ["..", "../x", "a/b", "", "/etc", "./a"] {
        assert!(matches!(RunDir::open(dir.path(), id).unwrap_err().kind, RunDirErrorKind::Name { .. }), "{id}");
    }
    assert!(matches!(RunDir::open(dir.path(), "nope").unwrap_err().kind, RunDirErrorKind::NoRun));
    for (date, print) in [("29.11.2026", PRINT), ("2026-11-29", "short"), ("2026-11-29", "../../../../x"), ("2026-1-29x", PRINT)]
    {
        assert!(RunDir::create(dir.path(), date, print, "0.1.0").is_err(), "{date} {print}");
    }
    let run = new(dir.path());
    for stage in ["", "../x", "/x", "a/../b"] {
        assert!(run.stage(stage, "f").is_err(), "{stage}");
    }
    assert!(run.write("../x", b"").is_err());
}

#[test]
fn a_damaged_run_json_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    fs::write(run.path().join("run.json"), "{").unwrap();
    let error = list(dir.path()).unwrap_err();
    assert!(matches!(error.kind, RunDirErrorKind::Damaged(_)), "{error}");
    assert!(error.to_string().contains("run.json"), "{error}");
}

#[test]
fn files_are_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    run.write_config("a = 1\n").unwrap();
    run.write_config("a = 2\n").unwrap();
    run.write_report(&json!({"rows": 3})).unwrap();
    assert_eq!(fs::read_to_string(run.path().join("config.toml")).unwrap(), "a = 2\n");
    assert_eq!(fs::read_to_string(run.path().join("report.json")).unwrap(), "{\n  \"rows\": 3\n}\n");
}

#[test]
fn a_stage_is_done_only_under_its_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    let stage = opened(run.stage("3-generate", "f1").unwrap());
    assert_eq!(stage.table::<Sample>(), run.path().join("3-generate/samples.parquet"));
    assert_eq!(opened(run.stage("3-generate", "f1").unwrap()), stage);
    let info = stage.finish(&summary()).unwrap();
    assert_eq!(info.summary(), summary());
    assert_eq!(run.stage("3-generate", "f1").unwrap(), StageState::Done(Box::new(info.clone())));
    assert_eq!(stage_info(stage.path()).unwrap(), Some(info));

    let text: Value = serde_json::from_slice(&fs::read(stage.path().join("stage.json")).unwrap()).unwrap();
    assert_eq!(
        text,
        json!({"stage": "3-generate", "fingerprint": "f1", "input_rows": 10,
            "outcomes": {"kept": 4, "dropped": 3, "failed": 2, "skipped": 1}, "output_rows": 8, "repeated": 1, "repairs": {"call: code-fence": 2}, "evolve_failed": {"deepen": 2},
            "input_tokens": 5, "output_tokens": 6, "cached_tokens": 7, "reasoning_tokens": 8, "cost": 0.25})
    );
}

#[test]
fn another_fingerprint_moves_the_folder_aside_and_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    let folder = run.path().join("eval/select-10/qwen");
    opened(run.stage("eval/select-10/qwen", "f1").unwrap()).finish(&summary()).unwrap();
    opened(run.stage("eval/select-10/qwen", "f2").unwrap()).write("half.json", b"2").unwrap();
    opened(run.stage("eval/select-10/qwen", "f3").unwrap());
    let aside = |k| run.path().join(format!("eval/select-10/qwen.superseded-{k}"));
    assert!(stage_info(&aside(1)).unwrap().is_some());
    assert_eq!(fs::read(aside(2).join("half.json")).unwrap(), b"2");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "only the fingerprint");
    // Rows without a fingerprint are nobody's.
    fs::remove_file(folder.join("fingerprint")).unwrap();
    fs::write(folder.join("rows"), "").unwrap();
    opened(run.stage("eval/select-10/qwen", "f3").unwrap());
    assert!(aside(3).join("rows").exists());
}

#[test]
fn a_kill_before_the_parts_are_gone_leaves_a_done_stage() {
    let dir = tempfile::tempdir().unwrap();
    let run = new(dir.path());
    let stage = opened(run.stage("s", "f").unwrap());
    stage.finish(&summary()).unwrap();
    fs::create_dir(stage.path().join("parts")).unwrap();
    fs::write(stage.path().join("parts/00000.jsonl"), "x").unwrap();
    assert!(matches!(run.stage("s", "f").unwrap(), StageState::Done(_)));
    assert!(!stage.path().join("parts").exists());
}
