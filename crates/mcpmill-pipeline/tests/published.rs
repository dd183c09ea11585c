//! The shapes in which MCP-Flow publishes pairs and trajectories, replayed through the filters that ask nobody: what its own
//! filters let pass of broken rows is dropped here, and each for the reason it is broken. Texts are made up.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    drive::Pace,
    id::TrajectoryId,
    record::{Ended, Judgement, Message, PolicyDecision, Sample, Tool, ToolResult, Trajectory},
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    filter::{Chain, Parts, filter_samples, filter_trajectories},
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, context, sample};
use serde_json::{Value, json};

const PACE: Pace = Pace { concurrency: 2, max_failure_rate: 1.0 };

/// A tool file: an array whose schemas are `parameters`.
const TOOLS: &str = r#"[
  {"name": "mean", "description": "Arithmetic mean of a series of numbers",
   "parameters": {"type": "object", "properties": {"series": {"type": "array", "items": {"type": ["number", "string"]}},
                  "label": {"type": "string"}}, "required": ["series"]}}
]"#;

/// Pairs as they stand in a function-call file, each with the filter that drops it; empty where none may.
const PAIRS: &str = r#"[
  {"drops": "", "source_instruction": "What is the mean of 4, 8 and 15?", "tool": "mean",
   "function_call": {"name": "mean", "arguments": {"series": [4, 8, 15]}}},
  {"drops": "placeholders", "source_instruction": "Give me the mean of all daily values of May, from 4 to 15.", "tool": "mean",
   "function_call": {"name": "mean", "arguments": {"series": [4, "...", 15]}}},
  {"drops": "placeholders", "source_instruction": "The mean of 4 and of 17.4 rounded, please.", "tool": "mean",
   "function_call": {"name": "mean", "arguments": {"series": [4, "Math.round(17.4)"]}}},
  {"drops": "schema-valid", "source_instruction": "What is the mean of 4 and 8?", "tool": "mean",
   "function_call": {"arguments": {"series": [4, 8]}}},
  {"drops": "schema-valid", "source_instruction": "What is the mean of 4 and 8?", "tool": "mean",
   "function_call": {"name": "mean", "arguments": {"numbers": [4, 8]}}},
  {"drops": "grounded", "source_instruction": "What is the mean of 4 and 8?", "tool": "mean",
   "function_call": {"name": "mean", "arguments": {"series": [4, 8], "label": "rainfall in Quito"}}}
]"#;

/// Trajectories: always user, assistant, tool; the call is an object without an id, the answer a result in a string.
const TRAJECTORIES: &str = r#"[
  ["ok", [{"role": "user", "content": "What is the mean of 4 and 8?"},
   {"role": "assistant", "content": "", "tool_calls": {"type": "function", "function": {"name": "mean", "arguments": {"series": [4, 8]}}}},
   {"role": "tool", "tool_call_id": 0, "name": "mean", "content": "{\"content\":[{\"type\":\"text\",\"text\":\"6\"}],\"isError\":false}"}]],
  ["unjudged", [{"role": "user", "content": "What is the mean of 4 and 8?"},
   {"role": "assistant", "content": "", "tool_calls": {"type": "function", "function": {"name": "mean", "arguments": {"series": [4, 8]}}}},
   {"role": "tool", "tool_call_id": 0, "name": "mean", "content": "{\"content\":[{\"type\":\"text\",\"text\":\"It lies just between the two.\"}],\"isError\":false}"}]],
  ["hard-error", [{"role": "user", "content": "What is the mean of 4 and 8?"},
   {"role": "assistant", "content": "", "tool_calls": {"type": "function", "function": {"name": "mean", "arguments": {"series": [4, 8]}}}},
   {"role": "tool", "tool_call_id": 0, "name": "mean", "content": "{\"content\":[{\"type\":\"text\",\"text\":\"no licence\"}],\"isError\":true}"}]],
  ["soft-error", [{"role": "user", "content": "What is the mean of 4 and 8?"},
   {"role": "assistant", "content": "", "tool_calls": {"type": "function", "function": {"name": "mean", "arguments": {"series": [4, 8]}}}},
   {"role": "tool", "tool_call_id": 0, "name": "mean", "content": "{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"error\\\": \\\"fetch failed\\\"}\"}],\"isError\":false}"}]],
  ["empty", [{"role": "user", "content": "What is the mean of 4 and 8?"},
   {"role": "assistant", "content": "", "tool_calls": {"type": "function", "function": {"name": "mean", "arguments": {"series": [4, 8]}}}},
   {"role": "tool", "tool_call_id": 0, "name": "mean", "content": "{\"content\":[{\"type\":\"text\",\"text\":\"[]\"}]}"}]]
]"#;

fn tools() -> Vec<Tool> {
    let listed: Vec<Value> = serde_json::from_str(TOOLS).unwrap();
    let text = |tool: &Value, field: &str| tool[field].as_str().unwrap().to_owned();
    let made =
        |tool: &Value| mcpmill_testkit::tool("1", &text(tool, "name"), &text(tool, "description"), tool["parameters"].clone());
    listed.iter().map(made).collect()
}

fn chain(kinds: &[&str], toolbox: &Arc<Toolbox>) -> Chain {
    let step = |kind: &&str| {
        let more = if *kind == "response-valid" { "prompt = \"response\"\nlongest = 20000\n" } else { "" };
        format!("[[step]]\nname = \"{kind}\"\nkind = \"{kind}\"\n{more}")
    };
    let prompt = |id: &str| Prompt::parse(id, include_str!("../../../prompts/response.md")).ok();
    let parts = Parts {
        embedder: Err("none".into()),
        models: Err("nobody is asked".into()),
        toolbox: Arc::clone(toolbox),
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    Chain::parse("published", &kinds.iter().map(step).collect::<String>(), &parts).unwrap()
}

#[tokio::test]
async fn broken_pairs_are_dropped_by_the_filter_of_their_fault() {
    let tools = tools();
    let toolbox = Arc::new(Toolbox::new(tools.clone()));
    let chain = chain(&["schema-valid", "placeholders", "grounded"], &toolbox);
    let pairs: Vec<Value> = serde_json::from_str(PAIRS).unwrap();
    for pair in &pairs {
        let call = &pair["function_call"];
        let name = call["name"].as_str().unwrap_or_default();
        let row = sample(&tools[0], pair["source_instruction"].as_str().unwrap(), name, &call["arguments"]);
        let out = Kept::default();
        filter_samples(vec![row], &chain, Arc::clone(&toolbox), PACE, &context("4-filter"), &out).await.unwrap();
        let done = out.ends().remove(0);
        let dropped = done.verdicts.iter().find(|verdict| verdict.judgement == Judgement::Drop);
        assert_eq!(dropped.map_or("", |verdict| verdict.filter.as_str()), pair["drops"], "{pair}: {:?}", done.verdicts);
    }
}

#[tokio::test]
async fn answers_in_strings_are_judged_by_what_they_hold() {
    let tools = tools();
    let toolbox = Arc::new(Toolbox::new(tools.clone()));
    let chain = chain(&["response-valid"], &toolbox);
    let trajectories: Vec<(String, Vec<Value>)> = serde_json::from_str(TRAJECTORIES).unwrap();
    for (kind, messages) in &trajectories {
        let function = &messages[1]["tool_calls"]["function"];
        let name = function["name"].as_str().unwrap();
        let row: Sample = sample(&tools[0], messages[0]["content"].as_str().unwrap(), name, &function["arguments"]);
        let result: Value = serde_json::from_str(messages[2]["content"].as_str().unwrap()).unwrap();
        let content = serde_json::from_value(result["content"].clone()).unwrap();
        let read = ToolResult { content, structured_content: None, is_error: result["isError"] == true };
        let mut turns = row.messages.clone();
        let tool_call_id = turns[1].tool_calls()[0].id.clone();
        turns.push(Message::Tool { tool_call_id, name: name.to_owned(), content: read.text() });
        let run = Trajectory {
            id: TrajectoryId::of(&(kind, &row.id)),
            sample_id: row.id.clone(),
            messages: turns,
            ended: Ended::Answer,
            cause: None,
            policy: PolicyDecision { allowed: true, rule: "read-only".into(), why: "it only reads".into() },
            result: Some(serde_json::to_string(&read).unwrap()),
            response_verdict: None,
            masked: Vec::new(),
            lineage: Vec::new(),
        };
        let out = Kept::default();
        let samples = HashMap::from([(row.id.clone(), row)]);
        filter_trajectories(vec![run], &samples, &chain, Arc::clone(&toolbox), PACE, &context("6-filter"), &out).await.unwrap();
        let verdict = out.ends().remove(0).verdicts.remove(0);
        let told = verdict.reason.split(':').next().unwrap();
        // What structure leaves open is for a judge, and here there is none.
        let judgement = match kind.as_str() {
            "ok" => Judgement::Keep,
            "unjudged" => Judgement::Unjudged,
            _ => Judgement::Drop,
        };
        assert_eq!((told, verdict.judgement), (kind.as_str(), judgement), "{}", json!(messages));
    }
}
