//! A stage that is killed again and again, over the driver, the journal and the exchange store
//! together: the files are those of a run nobody disturbed, and no reply was asked for twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking; Clippy exempts only functions marked as tests")]

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mcpmill_core::{
    drive::{Context, Done, Pace, StageError, drive},
    edge::{ExchangeKind, Mode, Recorder},
    event::{Events, Summary},
    id::{SampleId, ServerId, ToolId},
    record::{Message, Outcome, Sample, SampleKind, Tool, ToolDraft, Verdict},
};
use mcpmill_store::{
    exchanges::SqliteExchanges,
    journal::{Journal, JournalOptions},
    parquet_file::read_all,
    run_dir::{RunDir, StageState, latest},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const INPUTS: u64 = 120;

fn tools() -> Vec<Tool> {
    let draft = |n| ToolDraft {
        name: format!("tool-{n}"),
        title: None,
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        annotations: None,
    };
    (0..INPUTS).map(|n| Tool::new(ServerId("srv_1".into()), draft(n))).collect()
}

/// Asks for an instruction, and keeps two of three.
async fn work(tool: Tool, recorder: &Recorder, asked: &AtomicU64) -> Done<Sample> {
    let live = || async {
        tokio::task::yield_now().await;
        asked.fetch_add(1, Ordering::SeqCst);
        Ok::<_, io::Error>(json!(format!("use {}", tool.name)))
    };
    let reply = recorder.ask(ExchangeKind::Call, &json!({"tool": tool.id}), |_| true, live).await.unwrap().reply;
    let instruction = reply.as_str().unwrap().to_owned();
    let id = tool.id.as_str();
    let mut done = if tool.name.ends_with('3') {
        Done::none(Outcome::failed(id, "unreadable", "no JSON"))
    } else {
        let sample = Sample {
            id: SampleId::of(&tool.id),
            kind: SampleKind::Single,
            tool_ids: vec![ToolId(id.into())],
            withheld: vec![],
            server_ids: vec![],
            language: "en".into(),
            messages: vec![Message::user(&instruction)],
            instruction,
            lineage: vec![],
        };
        Done::kept(id, vec![sample])
    };
    done.verdicts = vec![Verdict {
        subject_id: id.into(),
        filter: "length".into(),
        judgement: mcpmill_core::record::Judgement::Keep,
        reason: "long enough".into(),
        score: Some(tool.name.len() as f64 / 3.0),
        threshold: None,
        evidence: None,
    }];
    done
}

/// Opens the run and works until `rows` rows were begun; `None` when the stage was done already.
async fn attempt(runs: &Path, rows: u64, concurrency: usize, asked: &AtomicU64) -> Option<Result<Summary, StageError>> {
    let run = RunDir::open(runs, &latest(runs).unwrap().unwrap().id).unwrap();
    let StageState::Open(stage) = run.stage("3-generate", "f").unwrap() else { return None };
    let store = SqliteExchanges::open(&runs.join("cache/exchanges.sqlite"), run.info().store_id()).unwrap();
    let recorder = Arc::new(Recorder::new(Arc::new(store), Mode::Live));
    let cx = Context {
        stage: "3-generate".into(),
        events: Events::channel().0,
        cancel: CancellationToken::new(),
        recorder: recorder.clone(),
    };
    let journal: Journal<Sample> = Journal::open(stage, JournalOptions { part_rows: 13, verdicts: false }).unwrap();
    let begun = AtomicU64::new(0);
    let pace = Pace { concurrency, max_failure_rate: 0.5 };
    let ended = drive(tools(), pace, &cx, &journal, |tool| {
        if begun.fetch_add(1, Ordering::SeqCst) == rows {
            cx.cancel.cancel();
        }
        work(tool, &recorder, asked)
    })
    .await;
    let finished = ended.as_ref().ok().map(|summary| Summary { repeated: 0, ..summary.clone() });
    if let Some(summary) = finished {
        journal.finish(&summary).unwrap();
    }
    Some(ended)
}

/// Cuts some bytes off the line that was written last, as a kill inside a write does.
fn tear(runs: &Path, bytes: u64) {
    let parts = runs.join(latest(runs).unwrap().unwrap().id).join("3-generate/parts");
    let entries = fs::read_dir(parts).map(|all| all.map(|e| e.unwrap().path()).collect::<Vec<_>>()).unwrap_or_default();
    for path in entries.iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl")) {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(bytes)).unwrap();
    }
}

/// Row files and `stage.json`; outcomes hold times and differ.
fn results(runs: &Path) -> BTreeMap<String, Vec<u8>> {
    let folder = runs.join(latest(runs).unwrap().unwrap().id).join("3-generate");
    let files = ["samples.parquet", "verdicts.parquet", "stage.json"];
    files.map(|name| (name.to_owned(), fs::read(folder.join(name)).unwrap())).into()
}

fn new_runs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    drop(RunDir::create(dir.path(), "2026-11-29", "ffffffff", "0.1.0").unwrap());
    dir
}

#[tokio::test]
async fn a_run_that_is_killed_over_and_over_ends_in_the_same_bytes() {
    let calm = new_runs();
    let asked = AtomicU64::new(0);
    let summary = attempt(calm.path(), u64::MAX, 1, &asked).await.unwrap().unwrap();
    assert_eq!((summary.input_rows, summary.failed, summary.output_rows), (INPUTS, 12, INPUTS - 12));
    assert_eq!(asked.load(Ordering::SeqCst), INPUTS);
    let expected = results(calm.path());

    let torn = new_runs();
    let asked = AtomicU64::new(0);
    let mut kills = 0;
    for round in 1_u64.. {
        // More rows each time, so that it ends; seven in flight, so that they end in another order.
        match attempt(torn.path(), 2 * round, 7, &asked).await {
            Some(Err(StageError::Interrupted)) => kills += 1,
            Some(ended) => drop(ended.unwrap()),
            None => break,
        }
        tear(torn.path(), [0, 1, 40][round as usize % 3]);
    }
    assert!(kills >= 5, "{kills}");
    assert_eq!(asked.load(Ordering::SeqCst), INPUTS, "no reply that arrived was asked for again");
    assert!(results(torn.path()) == expected, "the files differ");
    let folder = torn.path().join("2026-11-29-ffffffff/3-generate");
    assert_eq!(read_all::<Outcome>(&folder.join("outcomes.parquet")).unwrap().len() as u64, INPUTS);
    assert!(!folder.join("parts").exists());
}
