//! The whole line with the real binary, two real MCP servers, real embeddings, and a stand-in for the
//! language model (it answers by rule; what it writes is no data).

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{collections::BTreeSet, process::Command, time::Duration};

use common::{Folder, STAGES, TWO_SERVERS, ok, rows, stage, sums_close, tree};
use mcpmill_core::{
    naming::alias,
    record::{Ended, ExportRow, Judgement, Message, Sample, SampleKind, Split, Tool, Trajectory, Verdict},
    schema::Schema,
};
use mcpmill_testkit::ScriptedEndpoint;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_line_and_its_replay() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&TWO_SERVERS);
    let output = ok(&mut folder.with_model(&model.base_url(), &["run", "--set", "generate.samples=40"]));
    let run = folder.run();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("plan: 40 samples"), "{said}");

    for name in STAGES {
        sums_close(&run, name);
    }
    let tools: Vec<Tool> = rows(&run, "2-harvest");
    assert!(tools.iter().any(|t| t.name == "read_graph") && tools.iter().any(|t| t.name == "calculate"), "{tools:?}");
    let samples: Vec<Sample> = rows(&run, "3-generate");
    calls_fit_their_schemas(&samples, &tools);
    differences_are_told(&run, &samples, &said);
    every_row_has_its_verdicts(&run);
    answers_are_real(&rows(&run, "5-rollout"));
    published(&rows(&run, "7-export/mcp-tool-calls"));
    assert!(std::fs::read_to_string(run.join("7-export/mcp-tool-calls/README.md")).unwrap().contains("split: train"));
    assert!(run.join("report.json").is_file());

    python_reads(&run.join("7-export/mcp-tool-calls")).await;

    // A second run in replay asks nobody and makes the same bytes.
    let asked = model.requests().await;
    ok(&mut folder.with_model(&model.base_url(), &["run", "--new", "--set", "mode=replay", "--set", "generate.samples=40"]));
    assert_ne!(folder.run(), run);
    assert_eq!(tree(&folder.run()), tree(&run));
    assert_eq!(model.requests().await, asked);
    assert_eq!(common::survivors(), Vec::<String>::new(), "no process survives");

    selection_is_measured(&folder, &model);
}

fn calls_fit_their_schemas(samples: &[Sample], tools: &[Tool]) {
    assert!(samples.len() >= 8, "only {} samples", samples.len());
    for sample in samples {
        let wrong = usize::from(sample.kind == SampleKind::Recover);
        for call in sample.messages.iter().flat_map(Message::tool_calls).skip(wrong).map(|call| &call.function) {
            let named = |tool: &&Tool| sample.tool_ids.contains(&tool.id) && alias(&tool.name) == call.name;
            let tool = tools.iter().find(named).unwrap_or_else(|| panic!("{call:?} is of no tool of {}", sample.id));
            let faults = Schema::compile(&tool.schema()).unwrap().faults(&Value::Object(call.arguments.clone()), 3);
            assert!(faults.is_empty(), "{}: {faults:?}", tool.name);
        }
        assert_eq!(sample.tool_ids.is_empty(), sample.kind == SampleKind::NoTool);
        assert!(["instruct", "parallel", "chain", "multi-turn", "ask"].contains(&sample.lineage[0].step.as_str()));
        assert!(sample.lineage[1..].iter().all(|r| r.parent.is_some()));
    }
    let kinds: BTreeSet<SampleKind> = samples.iter().map(|s| s.kind).collect();
    let made = [SampleKind::Single, SampleKind::Parallel, SampleKind::MultiTurn, SampleKind::NoTool, SampleKind::Ask];
    assert!(made.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

/// What the summary of the stage tells of how much its rows differ.
fn differences_are_told(run: &std::path::Path, samples: &[Sample], said: &str) {
    let found = &stage(run, "3-generate")["diversity"];
    assert_eq!(found["samples"], samples.len());
    let single = samples.iter().filter(|s| s.kind == SampleKind::Single).count();
    assert_eq!((&found["kinds"]["single"], &found["languages"]["en"]), (&single.into(), &samples.len().into()));
    assert!(found["spread"].as_f64().is_some_and(|spread| spread > 0.0 && spread < 1.0), "{found}");
    assert!(
        found["parameters"]["edges"]["empty-list"]["of"].as_u64() > Some(0) && found["distinct"][0].as_f64() > Some(0.0),
        "{found}"
    );
    assert!(said.contains("3-generate: diversity: ") && said.contains("distinct-1/2/3"), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(run.join("report.json")).unwrap()).unwrap();
    assert!(report["stages"].as_array().unwrap().iter().any(|stage| stage["diversity"] == *found));
}

/// Steps of the shipped chain before rollout.
const STEPS: usize = 12;

fn every_row_has_its_verdicts(run: &std::path::Path) {
    let verdicts: Vec<Verdict> = rows(run, "4-filter");
    let survivors: Vec<Sample> = rows(run, "4-filter");
    for sample in &survivors {
        let own: Vec<&Verdict> = verdicts.iter().filter(|v| v.subject_id == sample.id.as_str()).collect();
        assert_eq!(own.len(), STEPS, "{own:?}");
        assert!(own.iter().all(|v| v.judgement != Judgement::Drop && !v.reason.is_empty()), "{own:?}");
    }
    let scored = verdicts.iter().filter(|v| v.filter == "embedding-similarity").all(|v| v.score.is_some_and(|s| s.abs() <= 1.0));
    assert!(scored && !survivors.is_empty());
}

fn answers_are_real(trajectories: &[Trajectory]) {
    let answered: Vec<&Trajectory> = trajectories.iter().filter(|t| t.ended == Ended::Answer).collect();
    assert!(!answered.is_empty());
    let told = |what: &str| answered.iter().any(|t| t.result.as_deref().is_some_and(|r| r.contains(what)));
    assert!(told("Ghent store"), "the memory server answers with the entities of its seed");
    assert!(told("42"), "the calculator calculates");
}

fn published(rows: &[ExportRow]) {
    assert!(rows.iter().any(|r| r.split == Split::Train), "{rows:?}");
    for row in rows {
        let tools: Vec<Value> = serde_json::from_str(&row.tools).unwrap();
        for call in row.messages.iter().flat_map(Message::tool_calls) {
            assert!(tools.iter().any(|t| t["function"]["name"] == call.function.name), "the called tool is offered");
        }
        assert_eq!(row.loss.len(), row.messages.len());
        assert!(row.loss.contains(&true), "{row:?}");
        if row.kind == SampleKind::Single {
            assert_eq!(row.live == "ok", row.messages.len() == 3, "{row:?}");
        }
    }
}

/// The embedding baseline and a model that calls tools, among 10 and, filled up from a file, 100.
fn selection_is_measured(folder: &Folder, model: &ScriptedEndpoint) {
    let tool = |i: u32| {
        format!("{{\"name\":\"extra_{i}\",\"description\":\"Does thing number {i}\",\"input_schema\":{{\"type\":\"object\"}}}}\n")
    };
    folder.write("more.jsonl", &(0..120).map(tool).collect::<String>());
    let args = ["eval", "select", "--tools", "more.jsonl", "--format", "json"];
    let output = ok(&mut folder.with_model(&model.base_url(), &args));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("select-100: filled up with 90 tools"), "{said}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let row = |suite: &str, who: &str| {
        let found = rows.iter().find(|r| r["suite"] == suite && r["model"].as_str().unwrap().starts_with(who));
        found.unwrap_or_else(|| panic!("{suite} {who}: {rows:?}"))["scores"].clone()
    };
    for (suite, candidates) in [("select-10", 10), ("select-100", 100)] {
        for who in ["embedding", "stand-in"] {
            let scores = row(suite, who);
            assert_eq!(scores["fewest_candidates"], candidates);
            assert!(
                scores["tool"]["n"].as_u64() > Some(0) && scores["tool"]["low"].as_f64() <= scores["tool"]["value"].as_f64(),
                "{scores}"
            );
        }
        assert_eq!(row(suite, "embedding")["tasks_hash"], row(suite, "stand-in")["tasks_hash"], "all choose among the same");
        assert_eq!(row(suite, "stand-in")["parse_failures"]["hits"], 0);
    }
}

/// pyarrow, datasets, polars and duckdb read the export, each by its own means.
async fn python_reads(export: &std::path::Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers.py");
    let command = common::python().await;
    let output =
        Command::new(&command[0]).args(&command[1..]).arg(script).arg(export).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for reader in ["pyarrow", "datasets", "polars", "duckdb"] {
        assert!(said.contains(&format!("{reader} ok")), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_for_a_model_that_is_down_and_are_tried_again() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let url = model.base_url();
    let folder = Folder::with(&["calculator"]);
    let args = ["run", "--to", "generate", "--set", "models.openai.give_up_after_s=1"];
    model.set_down(true);
    let output = folder.with_model(&url, &args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("3-generate") && said.contains("stand-in") && said.contains("the same command goes on"), "{said}");
    assert!(said.contains("has not answered") && said.contains("(status 503)"), "{said}");

    model.set_down(false);
    let run = folder.run();
    ok(&mut folder.with_model(&url, &args));
    assert_eq!(folder.run(), run, "the same run goes on");
    assert_eq!(stage(&run, "3-generate")["outcomes"]["failed"], 0);
    assert!(stage(&run, "3-generate")["outcomes"]["kept"].as_u64() > Some(0));
}
