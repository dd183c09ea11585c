//! Requests: how one reply serves several samples, and what none may hold.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcpmill_core::{
    drive::Done,
    edge::{ChatRequest, Mode, RecordedChat, Recorder},
    record::{OutcomeKind, Sample},
};
use mcpmill_pipeline::{
    generate::{GenerateSettings, Profile, generate},
    models::Models,
};
use mcpmill_testkit::{Kept, Remembering, Scripted, context};
use serde_json::json;

use super::{city, make, prompts, settings, text_of, tool, usual};

/// Two samples of one tool whose requests come in one reply: what `replies` says at the first, second… time it is asked,
/// and the last of them from then on. What was answered is not asked again.
async fn two(replies: &'static [[&'static str; 2]]) -> Vec<Done<Sample>> {
    let asked = AtomicUsize::new(0);
    let model = Scripted::new(move |request| match request.prompt_kind.as_str() {
        "instruct" => {
            let time = asked.fetch_add(1, Ordering::SeqCst);
            Some(json!({"requests": replies[time.min(replies.len() - 1)]}).to_string())
        }
        _ => usual(request),
    });
    let recorder = Arc::new(Recorder::new(Arc::<Remembering>::default(), Mode::Reuse));
    let models = Models::new(RecordedChat::new(model, recorder), HashMap::new());
    let settings = GenerateSettings { samples: 2, per_tool: 2, per_call: 2, ..settings(Profile::Small, 0) };
    let out = Kept::<Sample>::default();
    generate(vec![city()], &settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
    out.ends()
}

fn texts(ends: &[Done<Sample>]) -> Vec<&str> {
    let mut texts: Vec<&str> = ends.iter().flat_map(|done| &done.rows).map(|sample| sample.instruction.as_str()).collect();
    texts.sort_unstable();
    texts
}

#[tokio::test]
async fn several_requests_of_one_call_are_divided_among_the_samples() {
    let ends = two(&[["Weather in Bergamo tomorrow, please.", "Will it rain in Bergamo today?"]]).await;
    assert_eq!(texts(&ends), ["Weather in Bergamo tomorrow, please.", "Will it rain in Bergamo today?"]);
}

#[tokio::test]
async fn a_bad_request_costs_its_own_sample_and_no_other_of_the_batch() {
    let ends = two(&[["Use get_forecast for Bergamo, please.", "Will it rain in Bergamo today?"]]).await;
    assert_eq!(texts(&ends), ["Will it rain in Bergamo today?"]);
    let failed: Vec<&str> = ends.iter().filter_map(|done| done.outcome.cause.as_deref()).collect();
    assert_eq!(failed, ["a request names the tool"]);
}

#[tokio::test]
async fn a_later_reply_gives_no_sample_the_request_of_another() {
    let rain = "Will it rain in Bergamo today?";
    let ends = two(&[
        ["Use get_forecast for Bergamo.", "Will it rain in Bergamo today?"],
        ["Will it rain in Bergamo today?", "Is there snow in Bergamo now?"],
        ["Is Bergamo sunny on Sunday?", "Is there snow in Bergamo now?"],
    ])
    .await;
    assert_eq!(texts(&ends), ["Is Bergamo sunny on Sunday?", rain]);
}

#[tokio::test]
async fn a_call_holds_no_placeholder_that_nobody_said() {
    let schema = json!({"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]});
    let (done, _) = make(tool(schema), &settings(Profile::Small, 0), |request| match request.prompt_kind.as_str() {
        "instruct" => Some(json!({"requests": ["Please find me all the *.md files there are."]}).to_string()),
        "slots" => Some(json!({"pattern": "*.md"}).to_string()),
        _ => Some(json!({"pattern": "**/*.ext"}).to_string()),
    })
    .await;
    assert_eq!(done.outcome.cause.as_deref(), Some("the call holds the placeholder `*.ext`"));
}

#[tokio::test]
async fn what_is_read_is_there() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let asked = |name: &str, path: &'static str| {
        let tool = mcpmill_testkit::tool("1", name, "Reads or writes a file.", schema.clone());
        let at_hand = [(tool.server_id.clone(), "/home/user/work/notes/todo.md; /home/user/work/data/a.csv".to_owned())];
        let settings = GenerateSettings { at_hand: Arc::new(at_hand.into()), ..settings(Profile::Small, 0) };
        async move {
            let script = move |request: &ChatRequest| match request.prompt_kind.as_str() {
                "instruct" => Some(json!({"requests": [format!("Please deal with the file {path} now.")]}).to_string()),
                _ => Some(json!({"path": path}).to_string()),
            };
            make(tool, &settings, script).await.0.outcome
        }
    };
    let absent = asked("read_file", "/home/user/work/data/todo.md").await;
    assert_eq!(absent.reason, "instruct: unusable-reply");
    assert_eq!(absent.cause.as_deref(), Some("`/home/user/work/data/todo.md` is read and is not there"));
    assert_eq!(asked("read_file", "/home/user/work/notes/todo.md").await.outcome, OutcomeKind::Kept);
    assert_eq!(asked("write_file", "/home/user/work/data/todo.md").await.outcome, OutcomeKind::Kept);
}

#[tokio::test]
async fn a_reply_that_copies_the_marks_around_what_it_was_shown_is_not_used() {
    let (done, _) = make(city(), &settings(Profile::Small, 0), |request| {
        let shown = text_of(request);
        let mark = shown.lines().next().unwrap_or_default().to_owned();
        Some(match request.prompt_kind.as_str() {
            "instruct" if mark.starts_with("--- ") => {
                json!({"requests": [format!("Weather in Bergamo? {mark} Thanks.")]}).to_string()
            }
            _ => usual(request)?,
        })
    })
    .await;
    assert_eq!(done.outcome.reason, "instruct: unusable-reply");
    assert!(done.outcome.cause.unwrap().contains("copies the marks"));
}
