//! Replies that a model should not give: each is planted, refused and asked for again.

use mcpmill_core::{edge::ChatRequest, record::OutcomeKind};
use mcpmill_pipeline::generate::{GenerateSettings, Languages, Profile};
use serde_json::json;

use super::{city, make, settings, usual};

fn spoken(code: &str, profile: Profile) -> GenerateSettings {
    let languages = toml::from_str::<Languages>(&format!("{code} = 1")).unwrap();
    GenerateSettings { languages, ..settings(profile, 0) }
}

#[tokio::test]
async fn a_request_in_another_language_than_its_label_is_refused() {
    for (code, request, cause) in [
        ("en", "我想知道贝加莫明天的天气怎么样，请你详细地告诉我好吗？", "not in English"),
        ("en", "Wie wird das Wetter in Bergamo morgen, bitte?", "not English"),
        ("de", "What will the weather in Bergamo be like tomorrow?", "not German"),
        ("zh", "What will the weather in Bergamo be like tomorrow?", "not in Chinese"),
    ] {
        let script = move |asked: &ChatRequest| match asked.prompt_kind.as_str() {
            "instruct" => Some(json!({"requests": [request]}).to_string()),
            _ => usual(asked),
        };
        let (done, asked) = make(city(), &spoken(code, Profile::Small), script).await;
        assert_eq!(asked, ["instruct"; 3], "{request}");
        assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "instruct: unusable-reply"));
        assert!(done.outcome.cause.as_deref().unwrap().contains(cause), "{:?}", done.outcome.cause);
    }
    let german = |asked: &ChatRequest| match asked.prompt_kind.as_str() {
        "instruct" => Some(json!({"requests": ["Wie wird das Wetter in Bergamo morgen, bitte?"]}).to_string()),
        _ => usual(asked),
    };
    let (done, _) = make(city(), &spoken("de", Profile::Small), german).await;
    assert_eq!(done.rows[0].language, "de");
}

#[tokio::test]
async fn a_rewrite_stays_in_the_language_of_the_request() {
    let script = |asked: &ChatRequest| match asked.prompt_kind.as_str() {
        "instruct" => Some(json!({"requests": ["Wie wird das Wetter dort morgen, bitte?"]}).to_string()),
        "weave" => Some("What will the weather in Bergamo be like tomorrow?".into()),
        _ => usual(asked),
    };
    let (done, _) = make(city(), &spoken("de", Profile::Full), script).await;
    assert_eq!(done.outcome.reason, "weave: unusable-reply");
    assert!(done.outcome.cause.as_deref().unwrap().contains("not German"), "{:?}", done.outcome.cause);
}
