//! The steps of a sample, with a model that answers by rule: what each step asks, repairs and refuses.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod checks;
mod kinds;
mod requests;

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::{Done, Pace},
    edge::ChatRequest,
    event::Summary,
    record::{Message, OutcomeKind, Sample, SampleKind, Tool},
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    generate::{
        GeneratePrompts, GenerateSettings, Kinds, Languages, Profile,
        diversity::{Counting, Coverage, Seen},
        generate,
    },
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context};
use serde_json::{Value, json};

fn prompts() -> GeneratePrompts {
    GeneratePrompts::read(|id| {
        let text = match id {
            "instruct" => include_str!("../../../../prompts/instruct.md"),
            "slots" => include_str!("../../../../prompts/slots.md"),
            "weave" => include_str!("../../../../prompts/weave.md"),
            "context" => include_str!("../../../../prompts/context.md"),
            "evolve" => include_str!("../../../../prompts/evolve.md"),
            "breadth" => include_str!("../../../../prompts/breadth.md"),
            "call" => include_str!("../../../../prompts/call.md"),
            "parallel" => include_str!("../../../../prompts/parallel.md"),
            "chain" => include_str!("../../../../prompts/chain.md"),
            "then" => include_str!("../../../../prompts/then.md"),
            "multi-turn" => include_str!("../../../../prompts/multi-turn.md"),
            "no-tool" => include_str!("../../../../prompts/no-tool.md"),
            "declines" => include_str!("../../../../prompts/declines.md"),
            "ask" => include_str!("../../../../prompts/ask.md"),
            "recover" => include_str!("../../../../prompts/recover.md"),
            _ => panic!("`{id}` is no prompt of the stage"),
        };
        Prompt::parse(id, text)
    })
    .unwrap()
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

fn settings(profile: Profile, evolve_depth: usize) -> GenerateSettings {
    GenerateSettings {
        samples: 1,
        per_tool: 1,
        per_call: 1,
        profile,
        kinds: Kinds::only(SampleKind::Single),
        languages: Languages::english(),
        evolve_depth,
        pace: Pace { concurrency: 1, max_failure_rate: 1.0 },
        refused: Arc::default(),
        at_hand: Arc::default(),
        files: Arc::default(),
    }
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
    let (done, asked) = make(city(), &settings(Profile::Small, 0), usual).await;
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
    let small = settings(Profile::Small, 0);
    let (done, _) = make(city(), &small, vague(Some("What will the weather in Bergamo be like tomorrow?"))).await;
    assert_eq!(done.rows[0].instruction, "What will the weather in Bergamo be like tomorrow?");
    assert_eq!(steps(&done.rows[0])[..2], ["instruct", "weave"]);
    let (done, asked) = make(city(), &small, vague(None)).await;
    assert_eq!(done.rows[0].instruction, "What will the weather be like tomorrow? Use Bergamo as the city.");
    assert_eq!(steps(&done.rows[0])[..2], ["instruct", "append"]);
    assert_eq!(asked.iter().filter(|kind| *kind == "weave").count(), 2, "both tries are used first");
    for bad in ["Sure, here is the weather in Bergamo.", "Use get_forecast for Bergamo.", "Use the given data for Bergamo."] {
        let (done, _) = make(city(), &small, vague(Some(bad))).await;
        assert_eq!(steps(&done.rows[0])[..2], ["instruct", "append"], "{bad}");
    }
}

#[tokio::test]
async fn a_file_that_is_named_by_its_end_is_spelt_out_without_a_model() {
    let script = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "instruct" => Some(json!({"requests": ["What does april.md say of the weather?"]}).to_string()),
        "slots" | "call" => Some(json!({"city": "notes/april.md"}).to_string()),
        other => panic!("`{other}` is not asked here"),
    };
    let (done, _) = make(city(), &settings(Profile::Small, 0), script).await;
    assert_eq!(done.rows[0].instruction, "What does notes/april.md say of the weather?");
    assert_eq!(steps(&done.rows[0])[..2], ["instruct", "spell-out"]);
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
        let (done, asked) = make(city(), &settings(Profile::Small, 0), script).await;
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
    let (done, _) = make(city(), &settings(Profile::Small, 0), script).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "call: unusable-reply"));
}

#[tokio::test]
async fn a_call_with_other_values_than_the_request_is_asked_for_again_in_both_profiles() {
    for (bad, cause) in [
        (json!({"city": "Zanzibar"}), "`city` is not `Bergamo`"),
        (json!({"city": "Bergamo in winter"}), "`city` holds `Bergamo in winter`"),
    ] {
        for profile in [Profile::Small, Profile::Full] {
            let planted = bad.clone();
            let script = move |request: &ChatRequest| match request.prompt_kind.as_str() {
                "call" => Some(planted.to_string()),
                _ => usual(request),
            };
            let (done, asked) = make(city(), &settings(profile, 0), script).await;
            assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "call: unusable-reply"));
            assert!(done.outcome.cause.as_deref().unwrap().contains(cause), "{:?}", done.outcome.cause);
            assert_eq!(asked.iter().filter(|kind| *kind == "call").count(), 3, "{cause}");
        }
    }
    let noisy = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "call" => Some(json!({"city": "Bergamo", "units": "furlongs"}).to_string()),
        _ => usual(request),
    };
    let (done, _) = make(city(), &settings(Profile::Full, 0), noisy).await;
    assert_eq!(steps(&done.rows[0]), ["instruct", "call", "prune"]);
    let call = &done.rows[0].messages[1].tool_calls()[0].function.arguments;
    assert_eq!(Value::Object(call.clone()), json!({"city": "Bergamo"}), "the full profile is pruned, too");
}

#[tokio::test]
async fn a_search_in_plain_words_is_a_value_like_any_other_and_code_is_none() {
    let search = tool(json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}));
    let calling = |query: &'static str, woven: &'static str| {
        move |request: &ChatRequest| {
            Some(match request.prompt_kind.as_str() {
                "instruct" => json!({"requests": ["Find what we wrote to the plumber, please."]}).to_string(),
                "slots" | "call" => json!({"query": query}).to_string(),
                "weave" => woven.to_owned(),
                other => panic!("`{other}` is not asked here"),
            })
        }
    };
    let small = settings(Profile::Small, 0);
    let woven = "Find what we wrote to the plumber, please: kitchen sink.";
    let (done, _) = make(search.clone(), &small, calling("kitchen sink", woven)).await;
    assert_eq!(steps(&done.rows[0]), ["instruct", "weave", "call"]);
    let sql = "SELECT * FROM letters WHERE to = 'plumber'";
    let (done, _) = make(search, &small, calling(sql, "")).await;
    assert_eq!(steps(&done.rows[0]), ["instruct", "call"], "nobody says SQL");
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
    let (done, _) = make(bare, &settings(Profile::Small, 1), script).await;
    let sample = &done.rows[0];
    assert_eq!(
        sample.instruction,
        "We are setting up an outdoor dinner and cannot move it. What will the weather in Bergamo be like tomorrow?"
    );
    assert!(steps(sample).contains(&"evolve:context"));
}

#[tokio::test]
async fn a_rewrite_that_loses_or_makes_up_a_value_is_refused_and_the_request_stays_as_it_was() {
    let rewrite = |text: &'static str| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "evolve" | "breadth" => Some(json!({"request": text}).to_string()),
            _ => usual(request),
        }
    };
    let full = settings(Profile::Full, 1);
    for bad in [
        "How will it be in the mountains tomorrow, in some detail?",
        "What will the weather in Bergamo be like tomorrow from 9 to 12?",
        "What will the weather in Bergamo be like tomorrow, as \"Anna\" marries?",
        "What will the weather in Bergamo be like tomorrow? Put it into plans/weather.md for me.",
        "What will the weather in Bergamo be like on Friday, that is tomorrow?",
        "Use get_forecast to say what the weather in Bergamo will be like tomorrow.",
        "What will the weather in Bergamo be like tomorrow? Also do it for my sister Claudia in the north.",
        "What will the weather in Bergamo be like tomorrow, and over the seven days after it?",
        "What will the weather in Bergamo be like tomorrow? I ask as we marry. I ask as we marry.",
    ] {
        let (done, asked) = make(city(), &full, rewrite(bad)).await;
        assert_eq!(done.rows[0].instruction, "What will the weather in Bergamo be like tomorrow?", "{bad}");
        assert_eq!(asked.iter().filter(|kind| *kind == "evolve").count(), 2, "it is asked for again: {bad}");
        assert_eq!(steps(&done.rows[0]), ["instruct", "call", "prune"]);
        let failed = done.outcome.evolve_failed.clone().unwrap();
        let (direction, causes) = failed.first_key_value().unwrap();
        assert!(!direction.is_empty() && causes[0].starts_with("evolve: unusable-reply: "), "{failed:?}");
        let mut summary = Summary::default();
        summary.count(&done.outcome, 1);
        assert_eq!(summary.evolve_failed, [(direction.clone(), 1)].into(), "{bad}");
    }
    let rich = "What will the weather in Bergamo be like tomorrow, hour by hour, as we plan a wedding?";
    let (done, _) = make(city(), &full, rewrite(rich)).await;
    assert_eq!(done.rows[0].instruction, rich);
    assert_eq!(done.outcome.evolve_failed, None);
    let evolved = steps(&done.rows[0])[1].to_owned();
    let depths = ["evolve:constraints", "evolve:deepen", "evolve:concretise", "evolve:reasoning"];
    assert!(depths.contains(&evolved.as_str()), "{evolved}");
}

#[tokio::test]
async fn every_operator_is_taken_as_deep_as_the_settings_say_and_breadth_fills_its_slots_anew() {
    let script = |request: &ChatRequest| {
        let last = match request.messages.last() {
            Some(Message::User { content }) => content.clone(),
            _ => String::new(),
        };
        let old = last.rsplit_once("equest: ").map(|(_, rest)| rest.lines().next().unwrap().to_owned()).unwrap_or_default();
        Some(match request.prompt_kind.as_str() {
            "evolve" => {
                let more = if old.contains("curious") { "It matters to us." } else { "I am curious." };
                json!({"request": format!("{old} {more}")}).to_string()
            }
            "breadth" => json!({"request": "Where would bees like the air of Celle tomorrow, in plain words?"}).to_string(),
            "slots" => json!({"city": if last.contains("Celle") { "Celle" } else { "Bergamo" }}).to_string(),
            "call" => json!({"city": if last.contains("bees") { "Celle" } else { "Bergamo" }}).to_string(),
            _ => return usual(request),
        })
    };
    let mut taken = std::collections::BTreeSet::new();
    for place in 0..40 {
        let tool = mcpmill_testkit::tool(&place.to_string(), "get_forecast", "Weather forecast of a city.", city().schema());
        let (done, _) = make(tool.clone(), &settings(Profile::Full, 2), script).await;
        let sample = &done.rows[0];
        let evolved: Vec<&str> = steps(sample).into_iter().filter(|step| step.starts_with("evolve:")).collect();
        assert_eq!(evolved.len(), 2, "{:?}", steps(sample));
        taken.extend(evolved.iter().map(|step| (*step).to_owned()));
        let call = &sample.messages[1].tool_calls()[0].function.arguments;
        assert!(sample.instruction.contains(call["city"].as_str().unwrap()), "{}", sample.instruction);
        let again = make(tool, &settings(Profile::Full, 2), script).await.0;
        assert_eq!(again.rows, done.rows, "the direction belongs to the id");
    }
    let all = ["evolve:breadth", "evolve:concretise", "evolve:constraints", "evolve:deepen", "evolve:reasoning"];
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn optional_parameters_and_words_of_lists_come_in_turn() {
    let schema = json!({
        "type": "object", "required": ["city", "scale"], "properties": {
            "city": {"type": "string"}, "scale": {"type": "string", "enum": ["celsius", "kelvin"]},
            "tone": {"type": "string", "enum": ["dry", "merry"]}, "days": {"type": "integer", "minimum": 2, "maximum": 9}}
    });
    let model = Scripted::new(|request| {
        let Some(Message::User { content }) = request.messages.last() else { return None };
        Some(match request.prompt_kind.as_str() {
            "instruct" => {
                let wants = content.rsplit_once("in this order: ").map(|(_, wants)| wants.to_owned()).unwrap();
                let of = |want: &str| format!("How warm is it in Bergamo, {}?", want.rsplit_once(": ").unwrap().1);
                json!({"requests": wants.split("; ").map(of).collect::<Vec<_>>()}).to_string()
            }
            "slots" if content.contains("- days") => json!({"days": 5}).to_string(),
            "slots" => json!({"city": "Bergamo", "scale": "celsius"}).to_string(),
            "weave" => {
                let value = content.lines().find_map(|line| line.strip_prefix("- ")?.split_once(": ")).unwrap().1;
                let old = content.split_once("Request: ").unwrap().1.lines().next().unwrap();
                format!("{old} Make it {value}.")
            }
            "context" => "We are setting up an outdoor dinner and cannot move it.".into(),
            "call" => {
                let mut call =
                    json!({"city": "Bergamo", "scale": if content.contains("Bergamo, kelvin") { "kelvin" } else { "celsius" }});
                for tone in ["dry", "merry"].into_iter().filter(|tone| content.contains(&format!("it {tone}"))) {
                    call["tone"] = json!(tone);
                }
                for days in [2, 5, 9].into_iter().filter(|days| content.contains(&format!("it {days}."))) {
                    call["days"] = json!(days);
                }
                call.to_string()
            }
            other => panic!("`{other}` is not asked here"),
        })
    });
    let models = Models::new(model.recorded(), HashMap::new());
    let settings = GenerateSettings { samples: 30, per_tool: 30, per_call: 2, ..settings(Profile::Small, 1) };
    let out = Kept::<Sample>::default();
    let tool = tool(schema);
    generate(vec![tool.clone()], &settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
    let toolbox = Toolbox::new(vec![tool]);
    let mut counting = Counting::default();
    out.ends().into_iter().flat_map(|done| done.rows).for_each(|sample| counting.add(&sample, &toolbox));
    let found = counting.finish(&toolbox, &[]);
    assert_eq!(found.samples, 30);
    let Coverage { optional, words, edges } = found.parameters;
    assert_eq!((optional, words), (Seen { seen: 2, of: 2 }, Seen { seen: 4, of: 4 }), "given enough samples all appear");
    assert_eq!((edges["minimum"].seen, edges["maximum"].seen), (1, 1));
}

/// A value that a text says in the words of `mark`: `set days to 16 now`.
fn said_of(text: &str, mark: &str) -> Option<String> {
    let (_, rest) = text.rsplit_once(&format!("set {mark} to "))?;
    Some(rest.split(" now").next()?.to_owned())
}

/// A model that says every value it is given, and calls with what is said.
fn obeying(request: &ChatRequest) -> Option<String> {
    let Some(Message::User { content }) = request.messages.last() else { return None };
    let request_line = || content.rsplit_once("equest: ").unwrap().1.lines().next().unwrap().to_owned();
    let number = |text: &str| json!(text.parse::<i64>().unwrap());
    Some(match request.prompt_kind.as_str() {
        "instruct" => {
            let wants: Vec<&str> =
                content.rsplit_once("in this order: ").map(|(_, wants)| wants.split("; ").collect()).unwrap_or_default();
            let offset = |i: usize| wants.get(i).and_then(|want| want.strip_prefix("offset: ")).unwrap_or("3").to_owned();
            let count = usize::from(content.contains("Write 2")) + 1;
            let of = |i: usize| format!("Shift the plan of Bergamo, set offset to {} now, and list it.", offset(i));
            json!({"requests": (0..count).map(of).collect::<Vec<_>>()}).to_string()
        }
        "slots" if content.contains("- topic") => json!({"topic": "rain"}).to_string(),
        "slots" if content.contains("- tags") => json!({"tags": ["wet", "cold"]}).to_string(),
        "slots" if content.contains("- days") => json!({"days": 5}).to_string(),
        "slots" => json!({"offset": number(&said_of(&request_line(), "offset").unwrap())}).to_string(),
        "weave" => {
            let values: Vec<(&str, &str)> = content
                .rsplit_once("Values:")
                .unwrap()
                .1
                .lines()
                .filter_map(|line| line.strip_prefix("- ")?.split_once(": "))
                .collect();
            let mut text = request_line();
            values
                .iter()
                .for_each(|(name, value)| text.push_str(&format!(" And set {} to {value} now.", name.replace('_', " "))));
            text
        }
        "evolve" => {
            let line = request_line();
            let more = if line.contains("Thank you") { "It matters to us." } else { "Thank you so very much." };
            json!({"request": format!("{line} {more}")}).to_string()
        }
        "breadth" => json!({"request": "Where would bees like it, set offset to 4 now, in plain words?"}).to_string(),
        "call" => {
            let text = request_line();
            let mut call = json!({"offset": number(&said_of(&text, "offset").unwrap())});
            said_of(&text, "topic").into_iter().for_each(|topic| call["topic"] = json!(topic));
            said_of(&text, "days").into_iter().for_each(|days| call["days"] = number(&days));
            said_of(&text, "include hidden").into_iter().for_each(|_| call["include_hidden"] = json!(true));
            if text.contains("set tags to") {
                call["tags"] = json!(["wet", "cold"]);
            }
            call.to_string()
        }
        other => panic!("`{other}` is not asked here"),
    })
}

#[tokio::test]
async fn the_full_profile_covers_optional_parameters_and_edges_in_turn() {
    let schema = json!({"type": "object", "required": ["offset"], "properties": {
        "offset": {"type": "integer", "minimum": -7, "maximum": 60},
        "topic": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
        "tags": {"type": "array", "items": {"type": "string"}},
        "days": {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 9}, {"type": "null"}]},
        "include_hidden": {"type": "boolean"}}});
    for kind in [SampleKind::Single, SampleKind::Recover] {
        let model = Scripted::new(move |request| match request.prompt_kind.as_str() {
            "recover" => Some(json!({"wrong": "no number"}).to_string()),
            _ => obeying(request),
        });
        let models = Models::new(model.recorded(), HashMap::new());
        let settings =
            GenerateSettings { samples: 60, per_tool: 60, per_call: 2, kinds: Kinds::only(kind), ..settings(Profile::Full, 2) };
        let mut schema = schema.clone();
        if kind == SampleKind::Recover {
            schema["properties"]["offset"]["format"] = json!("int32");
        }
        let out = Kept::<Sample>::default();
        let tool = tool(schema);
        generate(vec![tool.clone()], &settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
        let toolbox = Toolbox::new(vec![tool]);
        let mut counting = Counting::default();
        out.ends().into_iter().flat_map(|done| done.rows).for_each(|sample| counting.add(&sample, &toolbox));
        let found = counting.finish(&toolbox, &[]);
        assert_eq!(found.samples, 60);
        let Coverage { optional, edges, .. } = found.parameters;
        assert_eq!(optional, Seen { seen: 4, of: 4 }, "{kind:?}");
        assert_eq!([edges["minimum"], edges["maximum"]], [Seen { seen: 2, of: 2 }; 2], "{kind:?}");
        assert_eq!([edges["negative"], edges["zero"]], [Seen { seen: 1, of: 1 }; 2], "{kind:?}");
    }
}

#[tokio::test]
async fn what_was_added_is_held_to_by_the_steps_after_it() {
    let lost = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "evolve" => Some(json!({"request": "Shift the plan of Bergamo, set offset to 3 now, and list all of it."}).to_string()),
        _ => obeying(request),
    };
    let schema = json!({"type": "object", "required": ["offset"],
        "properties": {"offset": {"type": "integer"}, "topic": {"type": "string"}}});
    let mut added = 0;
    for place in 0..30 {
        let tool = mcpmill_testkit::tool(&place.to_string(), "shift_plan", "Shifts a plan.", schema.clone());
        let (done, _) = make(tool, &settings(Profile::Full, 1), lost).await;
        let sample = &done.rows[0];
        let taken = steps(sample);
        if taken.contains(&"evolve:optional") {
            added += 1;
            assert!(sample.instruction.contains("set topic to rain"), "{}", sample.instruction);
            assert_eq!(sample.messages[1].tool_calls()[0].function.arguments["topic"], "rain");
        }
    }
    assert!(added > 5, "{added}");
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
        let (done, _) = make(bare, &settings(Profile::Small, 1), script).await;
        assert_eq!((done.outcome.outcome, done.outcome.reason), (OutcomeKind::Failed, format!("{down}: model-failed")));
        assert!(done.outcome.cause.unwrap().contains("no answer"), "{down}");
    }
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
    let settings = settings(Profile::Full, 0);
    let (repaired, _) = make(city(), &settings, fenced).await;
    let (plain, _) = make(city(), &settings, usual).await;
    let (repaired_row, plain_row) = (&repaired.rows[0], &plain.rows[0]);
    assert_eq!(steps(plain_row), ["instruct", "call", "prune"]);
    let named = ["instruct", "repair:reasoning", "repair:code-fence", "call", "repair:single-quotes", "prune"];
    assert_eq!(steps(repaired_row), named);
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
    let (done, _) = make(city(), &settings(Profile::Full, 0), two).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "instruct: unusable-reply"));
    assert!(done.outcome.cause.unwrap().contains("several JSON values") && done.outcome.raw.unwrap().contains(" or "));
}

fn text_of(request: &ChatRequest) -> String {
    match request.messages.last() {
        Some(Message::User { content }) => content.clone(),
        _ => String::new(),
    }
}

#[tokio::test]
async fn another_language_is_asked_for_and_noted() {
    let languages = |text: &str| toml::from_str::<Languages>(text).unwrap();
    let script = |request: &ChatRequest| {
        let text = text_of(request);
        Some(match request.prompt_kind.as_str() {
            "instruct" => {
                assert!(text.contains("Language of the requests: Chinese"), "{text}");
                json!({"requests": ["明天那里的天气怎么样？请告诉我详细的天气预报。"]}).to_string()
            }
            "slots" => json!({"city": "贝加莫"}).to_string(),
            "weave" => "明天贝加莫的天气怎么样？".into(),
            "call" => json!({"city": "贝加莫"}).to_string(),
            other => panic!("`{other}` is not asked here"),
        })
    };
    let chinese = GenerateSettings { languages: languages("zh = 1\nen = 0"), ..settings(Profile::Small, 1) };
    let (done, _) = make(city(), &chinese, script).await;
    let sample = &done.rows[0];
    assert_eq!((sample.language.as_str(), sample.instruction.as_str()), ("zh", "明天贝加莫的天气怎么样？"));
    let english = |request: &ChatRequest| {
        assert!(!text_of(request).contains("Language"), "English prompts are as they were");
        usual(request)
    };
    assert_eq!(make(city(), &settings(Profile::Small, 0), english).await.0.rows[0].language, "en");
}
