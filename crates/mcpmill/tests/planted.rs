//! The embedding step as it ships: the real MiniLM, the thresholds of `filters/function-call.toml`, and rows
//! that were planted to be dropped. (The other filters meet their planted rows in `mcpmill-pipeline`.)

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::sync::Arc;

use mcpmill_clients::{
    assets::{AssetId, Assets},
    embed::{EmbedFiles, FastEmbedder},
};
use mcpmill_core::{
    drive::Pace,
    edge::RecordedEmbedder,
    id::SampleId,
    record::{Judgement, Sample, Verdict},
    toolbox::Toolbox,
};
use mcpmill_pipeline::filter::{Chain, Parts, filter_samples};
use mcpmill_testkit::{Kept, context, recorder, sample, tool};
use serde_json::json;

async fn embedder() -> RecordedEmbedder {
    let assets = Assets::new(common::cache());
    let fetch = async |id| assets.fetch(id).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let folder = fetch(AssetId::MiniLm).await;
    let files = EmbedFiles {
        runtime: fetch(AssetId::OnnxRuntime).await,
        model: folder.join("model.onnx"),
        tokenizer: ["tokenizer.json", "config.json", "special_tokens_map.json", "tokenizer_config.json"].map(|f| folder.join(f)),
    };
    RecordedEmbedder::new(Arc::new(FastEmbedder::load("all-MiniLM-L6-v2-int8", &files, 1).unwrap()), recorder())
}

/// The embedding step of the shipped chain, alone.
fn step() -> String {
    let chain: toml::Table = include_str!("../../../filters/function-call.toml").parse().unwrap();
    let steps = chain["step"].as_array().unwrap();
    let step = steps.iter().find(|step| step["kind"].as_str() == Some("embedding-similarity")).unwrap().clone();
    toml::to_string(&toml::Table::from_iter([("step".to_owned(), toml::Value::Array(vec![step]))])).unwrap()
}

#[tokio::test]
async fn the_shipped_thresholds_drop_what_was_planted_and_keep_what_is_good() {
    let tool = |name: &str, description: &str| tool("1", name, description, json!({"type": "object"}));
    let time = tool("convert_time", "Convert a time from one time zone to another.");
    let notes = tool("read_file", "Read the complete contents of a text file from the file system.");
    let sums = tool("calculate", "Calculates the value of an arithmetic expression.");
    let rows = [
        (&time, "When it is half past four in Oslo, how late is it in Tokyo?", Judgement::Keep),
        (&notes, "Please read the file notes/plan.md to me with all of its contents.", Judgement::Keep),
        (&sums, "Please calculate what 17 times 49.90 plus 25 percent comes to.", Judgement::Keep),
        (&time, "Convert a time from one time zone to another time zone.", Judgement::Drop),
        (&notes, "Read the complete contents of a text file from the file system, please.", Judgement::Drop),
        (&sums, "Calculate the value of an arithmetic expression.", Judgement::Drop),
        (&time, "Which herbs go well with roast lamb and potatoes?", Judgement::Drop),
        (&notes, "My tomato plants have yellow leaves, do they need more water?", Judgement::Drop),
        (&sums, "Please translate this poem about the sea into Norwegian.", Judgement::Drop),
    ];
    let toolbox = Arc::new(Toolbox::new(vec![time.clone(), notes.clone(), sums.clone()]));
    let none = |_: &str| None;
    let parts = Parts {
        embedder: Ok(embedder().await),
        models: Err("not asked".into()),
        toolbox: Arc::clone(&toolbox),
        programs: Err("not run".into()),
        held_out: Arc::default(),
        prompt: &none,
    };
    let chain = Chain::parse("shipped", &step(), &parts).unwrap();
    let samples: Vec<Sample> = rows.iter().map(|(tool, text, _)| sample(tool, text, &tool.name, &json!({}))).collect();
    let ids: Vec<SampleId> = samples.iter().map(|s| s.id.clone()).collect();
    let out = Kept::default();
    let pace = Pace { concurrency: 1, max_failure_rate: 0.0 };
    filter_samples(samples, &chain, toolbox, pace, &context("4-filter"), &out).await.unwrap();
    let verdicts: Vec<Verdict> = out.ends().into_iter().flat_map(|done| done.verdicts).collect();
    let mut wrong = Vec::new();
    for ((_, text, want), id) in rows.iter().zip(&ids) {
        let verdict = verdicts.iter().find(|v| v.subject_id == id.as_str()).unwrap();
        println!("{:?} {:.3} {text}", verdict.judgement, verdict.score.unwrap());
        if verdict.judgement != *want {
            wrong.push(format!("{text}: {:?} {:?}", verdict.judgement, verdict.score));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
