//! The steps of a sample, with a model that answers by rule: what each step asks, repairs and refuses.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::{Done, Pace},
    edge::ChatRequest,
    record::{Message, OutcomeKind, Sample, Tool},
};
use mcpmill_pipeline::{
    generate::{GeneratePrompts, GenerateSettings, Profile, generate},
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context};
use serde_json::{Value, json};

fn prompts() -> GeneratePrompts {
    let parse = |id: &str, text: &str| Prompt::parse(id, text).unwrap();
    GeneratePrompts {
        instruct: parse("instruct", include_str!("../../../prompts/instruct.md")),
        slots: parse("slots", include_str!("../../../prompts/slots.md")),
        weave: parse("weave", include_str!("../../../prompts/weave.md")),
        context: parse("context", include_str!("../../../prompts/context.md")),
        evolve: parse("evolve", include_str!("../../../prompts/evolve.md")),
        call: parse("call", include_str!("../../../prompts/call.md")),
    }
}

fn tool(input_schema: Value) -> Tool {
    mcpmill_testkit::tool("1", "get_forecast", "Weather forecast of a city.", input_schema)
}

fn city() -> Tool {
    tool(json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "units": {"type": "string"}},
        "required": ["city"], "additionalProperties": false
    }))
}

fn settings(profile: Profile, evolve: bool) -> GenerateSettings {
    let pace = Pace { concurrency: 1, max_failure_rate: 1.0 };
    GenerateSettings { samples: 1, per_tool: 1, per_call: 1, profile, evolve, pace, at_hand: Arc::default() }
}

/// One sample of `tool`, made by a model that answers by prompt kind.
async fn make(
    tool: Tool,
    settings: &GenerateSettings,
    script: impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static,
) -> (Done<Sample>, Vec<String>) {
    let model = Scripted::new(script);
    let models = Models::new(model.recorded(), HashMap::new());
    let out = Kept::default();
    generate(vec![tool], settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
    (out.ends().remove(0), model.asked())
}

/// Answers the steps that most tests are not about.
fn usual(request: &ChatRequest) -> Option<String> {
    Some(match request.prompt_kind.as_str() {
        "instruct" => json!({"requests": ["What will the weather in Bergamo be like tomorrow?"]}).to_string(),
        "slots" => json!({"city": "Bergamo"}).to_string(),
        "call" => json!({"city": "Bergamo", "units": ""}).to_string(),
        other => panic!("`{other}` is not asked here"),
    })
}

fn steps(sample: &Sample) -> Vec<&str> {
    sample.lineage.iter().map(|revision| revision.step.as_str()).collect()
}

#[tokio::test]
async fn a_request_that_states_its_values_becomes_a_call_and_noise_is_pruned() {
    let (done, asked) = make(city(), &settings(Profile::Small, false), usual).await;
    let sample = &done.rows[0];
    assert_eq!(asked, ["instruct", "slots", "call"]);
    assert_eq!(steps(sample), ["instruct", "call", "prune"]);
    let call = &sample.messages.iter().flat_map(Message::tool_calls).next().unwrap().function;
    assert_eq!(Value::Object(call.arguments.clone()), json!({"city": "Bergamo"}), "the empty optional value is left out");
    assert_eq!(sample.messages[0], Message::user(sample.instruction.clone()));
    assert_eq!((done.outcome.input_tokens, done.outcome.output_tokens, done.outcome.attempts), (30, 15, 3));
    for (parent, child) in sample.lineage.iter().zip(&sample.lineage[1..]) {
        assert_eq!(child.parent.as_deref(), Some(sha256_hex(&parent.text).as_str()), "{}", child.step);
    }
    assert!(sample.lineage[0].prompt.is_some() && sample.lineage[0].model.as_deref() == Some("scripted"));
    assert_eq!((sample.lineage[2].prompt.as_ref(), sample.lineage[2].model.as_ref()), (None, None), "pruned in code");
}

#[tokio::test]
async fn a_value_the_request_lacks_is_woven_in_or_put_behind_it() {
    let vague = |woven: Option<&'static str>| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "instruct" => Some(json!({"requests": ["What will the weather be like tomorrow?"]}).to_string()),
            "weave" => Some(woven.unwrap_or("What will the weather be like?").into()),
            _ => usual(request),
        }
    };
    let small = settings(Profile::Small, false);
    let (done, _) = make(city(), &small, vague(Some("What will the weather in Bergamo be like tomorrow?"))).await;
    assert_eq!(done.rows[0].instruction, "What will the weather in Bergamo be like tomorrow?");
    assert_eq!(steps(&done.rows[0])[..2], ["instruct", "weave"]);
    let (done, asked) = make(city(), &small, vague(None)).await;
    assert_eq!(done.rows[0].instruction, "What will the weather be like tomorrow? Use Bergamo as the city.");
    assert_eq!(steps(&done.rows[0])[..2], ["instruct", "append"]);
    assert_eq!(asked.iter().filter(|kind| *kind == "weave").count(), 2, "both tries are used first");
}

#[tokio::test]
async fn placeholders_and_the_tools_name_are_asked_for_again_and_then_fail_the_row_with_the_raw_reply() {
    for bad in [
        "Read the weather file in path/to/your/city, please.",
        "Use get_forecast for the city of Bergamo, please.",
        "What will the weather in Bergamo be like on the day of the wed",
        "I'm sorry, but I cannot tell the weather in Bergamo.",
    ] {
        let script = move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "instruct" => Some(json!({"requests": [bad]}).to_string()),
            _ => usual(request),
        };
        let (done, asked) = make(city(), &settings(Profile::Small, false), script).await;
        assert_eq!(asked, ["instruct"; 3], "{bad}");
        assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "instruct: unusable-reply"));
        assert!(done.outcome.raw.unwrap().contains(bad));
        assert!(done.rows.is_empty());
    }
}

#[tokio::test]
async fn a_call_outside_its_schema_never_becomes_a_sample() {
    let script = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "call" => Some(json!({"town": "Bergamo"}).to_string()),
        _ => usual(request),
    };
    let (done, _) = make(city(), &settings(Profile::Small, false), script).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "call: unusable-reply"));
}

#[tokio::test]
async fn evolution_of_a_small_model_keeps_every_word_of_the_request() {
    // A tool without optional parameters can only be given context.
    let bare = tool(json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}));
    let script = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "context" => Some("We are setting up an outdoor dinner and cannot move it.".into()),
        "call" => Some(json!({"city": "Bergamo"}).to_string()),
        _ => usual(request),
    };
    let (done, _) = make(bare, &settings(Profile::Small, true), script).await;
    let sample = &done.rows[0];
    assert_eq!(
        sample.instruction,
        "We are setting up an outdoor dinner and cannot move it. What will the weather in Bergamo be like tomorrow?"
    );
    assert!(steps(sample).contains(&"evolve:context"));
}

#[tokio::test]
async fn a_rewrite_that_loses_a_value_is_refused_and_the_request_stays_as_it_was() {
    let rewrite = |text: &'static str| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "evolve" => Some(json!({"request": text}).to_string()),
            _ => usual(request),
        }
    };
    let full = settings(Profile::Full, true);
    let (done, _) = make(city(), &full, rewrite("How will it be in the mountains tomorrow, in some detail?")).await;
    assert_eq!(done.rows[0].instruction, "What will the weather in Bergamo be like tomorrow?");
    let rich = "What will the weather in Bergamo be like tomorrow, hour by hour, as we plan a wedding?";
    let (done, _) = make(city(), &full, rewrite(rich)).await;
    assert_eq!(done.rows[0].instruction, rich);
    assert!(steps(&done.rows[0]).contains(&"evolve:rewrite"));
}

#[tokio::test]
async fn a_model_that_is_down_fails_the_row_at_every_step() {
    for down in ["instruct", "slots", "weave", "context", "call"] {
        let script = move |request: &ChatRequest| match request.prompt_kind.as_str() {
            kind if kind == down => None,
            "instruct" => Some(json!({"requests": ["What will the weather be like tomorrow?"]}).to_string()),
            "weave" => Some("What will the weather in Bergamo be like tomorrow?".into()),
            "context" => Some("We are setting up an outdoor dinner and cannot move it.".into()),
            "call" => Some(json!({"city": "Bergamo"}).to_string()),
            _ => usual(request),
        };
        let bare = tool(json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}));
        let (done, _) = make(bare, &settings(Profile::Small, true), script).await;
        assert_eq!((done.outcome.outcome, done.outcome.reason), (OutcomeKind::Failed, format!("{down}: model-failed")));
        assert!(done.outcome.cause.unwrap().contains("no answer"), "{down}");
    }
}

#[tokio::test]
async fn several_requests_of_one_call_are_divided_among_the_samples() {
    let model = Scripted::new(|request| match request.prompt_kind.as_str() {
        "instruct" => {
            Some(json!({"requests": ["Weather in Bergamo tomorrow, please.", "Will it rain in Bergamo today?"]}).to_string())
        }
        _ => usual(request),
    });
    let models = Models::new(model.recorded(), HashMap::new());
    let settings = GenerateSettings { samples: 2, per_tool: 2, per_call: 2, ..settings(Profile::Small, false) };
    let out = Kept::<Sample>::default();
    generate(vec![city()], &settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
    let mut texts: Vec<String> = out.ends().into_iter().flat_map(|d| d.rows).map(|s| s.instruction).collect();
    texts.sort();
    assert_eq!(texts, ["Weather in Bergamo tomorrow, please.", "Will it rain in Bergamo today?"]);
}

#[tokio::test]
async fn what_was_repaired_is_named_in_lineage_and_counted() {
    let fenced = |request: &ChatRequest| {
        let plain = usual(request)?;
        Some(match request.prompt_kind.as_str() {
            "instruct" => format!("<think>Which city?</think>\n```json\n{plain}\n```"),
            "slots" => plain.replace('"', "'"),
            _ => plain,
        })
    };
    let settings = settings(Profile::Full, false);
    let (repaired, _) = make(city(), &settings, fenced).await;
    let (plain, _) = make(city(), &settings, usual).await;
    let (repaired_row, plain_row) = (&repaired.rows[0], &plain.rows[0]);
    assert_eq!(steps(plain_row), ["instruct", "call"]);
    assert_eq!(steps(repaired_row), ["instruct", "repair:reasoning", "repair:code-fence", "call", "repair:single-quotes"]);
    assert!(repaired_row.lineage[1].model.is_none() && repaired_row.lineage[1].text == repaired_row.lineage[0].text);
    assert_eq!((&repaired_row.messages, &repaired_row.id), (&plain_row.messages, &plain_row.id));
    let counts = json!({"instruct: code-fence": 1, "instruct: reasoning": 1, "slots: single-quotes": 1});
    assert_eq!((json!(repaired.outcome.repairs), plain.outcome.repairs), (counts, None));
}

#[tokio::test]
async fn what_cannot_be_repaired_fails_with_its_raw_text() {
    let two = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "instruct" => Some("{\"requests\": [\"a\"]} or {\"requests\": [\"b\"]}".to_owned()),
        _ => usual(request),
    };
    let (done, _) = make(city(), &settings(Profile::Full, false), two).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "instruct: unusable-reply"));
    assert!(done.outcome.cause.unwrap().contains("several JSON values") && done.outcome.raw.unwrap().contains(" or "));
}
