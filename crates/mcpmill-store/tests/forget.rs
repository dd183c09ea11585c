//! Failed rows are tried again by the next attempt; all others stay done.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use mcpmill_core::{
    drive::{Done, Sink},
    event::Summary,
    record::{Outcome, Sample, Verdict},
};
use mcpmill_store::{
    artifact::Table,
    journal::{Journal, JournalOptions},
    parquet_file::read_all,
    run_dir::{RunDir, StageState},
};

fn end(i: usize) -> Done<Sample> {
    let id = format!("smp_{i:02}");
    let verdict = Verdict {
        subject_id: id.clone(),
        filter: "f".into(),
        judgement: mcpmill_core::record::Judgement::Drop,
        reason: "r".into(),
        score: None,
        threshold: None,
        evidence: None,
    };
    let outcome = if i.is_multiple_of(3) { Outcome::failed(id, "model-failed", "down") } else { Outcome::dropped(id, "f") };
    Done { outcome, rows: vec![], verdicts: vec![verdict] }
}

#[test]
fn failed_rows_are_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), "2026-11-29", "ffffffff", "0.1.0").unwrap();
    let open = || match run.stage("4-filter", "f").unwrap() {
        StageState::Open(stage) => Journal::<Sample>::open(stage, JournalOptions { part_rows: 4, verdicts: true }).unwrap(),
        StageState::Done(_) => panic!("not done yet"),
    };
    let journal = open();
    for i in 0..10_usize {
        journal.accept(&format!("hash {i}"), end(i)).unwrap();
    }
    assert_eq!(journal.forget_failed().unwrap(), 4, "rows 0, 3, 6 and 9");

    let journal = open();
    for i in 0..10_usize {
        assert_eq!(journal.seen(&format!("hash {i}")).is_none(), i.is_multiple_of(3), "row {i}");
    }
    let mut summary = Summary::default();
    for i in 0..10_usize {
        let outcome = Outcome::dropped(format!("smp_{i:02}"), "f");
        if i.is_multiple_of(3) {
            journal.accept(&format!("hash {i}"), Done { outcome: outcome.clone(), ..end(i) }).unwrap();
        }
        summary.count(&outcome, 0);
    }
    journal.finish(&summary).unwrap();
    let path = |name: &str| run.path().join("4-filter").join(name).with_extension("parquet");
    assert_eq!(read_all::<Outcome>(&path(Outcome::NAME)).unwrap().len(), 10);
    assert_eq!(read_all::<Verdict>(&path(Verdict::NAME)).unwrap().len(), 10, "no verdict is left of the first attempt");
}
