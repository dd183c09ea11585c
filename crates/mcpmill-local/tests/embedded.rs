//! The engine behind the trait of all chat models, on SmolLM2-135M-Instruct.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use mcpmill_core::{
    edge::{ChatErrorKind, ChatModel, ChatRequest, Finish, Format, ToolSpec},
    record::Message,
};
use mcpmill_local::{EmbeddedModel, LoadOptions};
use serde_json::{Value, json};

#[path = "../src/test_model.rs"]
mod test_model;

fn request(format: Format, max_tokens: u32) -> ChatRequest {
    ChatRequest {
        messages: vec![Message::system("Answer with JSON only."), Message::user("The weather in Oslo over 3 days, please.")],
        tools: Vec::new(),
        format,
        temperature: 0.0,
        top_p: 1.0,
        max_tokens,
        seed: 1,
        prompt_kind: "call".into(),
    }
}

fn schema(schema: Value) -> Format {
    Format::JsonSchema { name: "call".into(), schema }
}

#[test]
fn an_embedded_model_answers_like_any_other() {
    let options = LoadOptions { max_context: 512, prefix_slots: 1, ..LoadOptions::default() };
    let model = EmbeddedModel::load("local/smollm2@test", &test_model::path(), &options).unwrap();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(answers(&model));
}

async fn answers(model: &EmbeddedModel) {
    assert_eq!(model.model(), "local/smollm2@test");

    let properties = json!({"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}});
    let bound = json!({"type": "object", "properties": properties, "required": ["city", "days"]});
    let reply = model.chat(&request(schema(bound), 60)).await.unwrap();
    let said: Value = serde_json::from_str(&reply.content).unwrap();
    assert!(said["city"].is_string() && said["days"].is_i64(), "{said}");
    assert_eq!((reply.finish, reply.attempts), (Finish::Stop, 1));
    assert!(reply.usage.input_tokens > 20 && reply.usage.output_tokens > 5, "{:?}", reply.usage);

    let line = model.chat(&request(Format::Line("[A-Z][a-z ]{5,30}[.]".into()), 40)).await.unwrap();
    assert!(line.content.ends_with('.') && !line.content.contains('\n'), "{}", line.content);

    // No grammar can follow this reference; the caller checks the answer instead.
    let reply = model.chat(&request(schema(json!({"$ref": "https://example.invalid/schema.json"})), 8)).await.unwrap();
    assert!(reply.usage.output_tokens > 0);

    let cut = model.chat(&request(Format::Text, 2)).await.unwrap();
    assert_eq!((cut.finish, cut.usage.output_tokens), (Finish::Length, 2));

    let mut long = request(Format::Text, 4);
    long.messages.push(Message::user("word ".repeat(600)));
    assert_eq!(model.chat(&long).await.unwrap_err().kind, ChatErrorKind::Rejected, "a prompt beyond the context");
    let tool = ToolSpec { name: "t".into(), description: String::new(), parameters: json!({}) };
    let tools = ChatRequest { tools: vec![tool], ..request(Format::Text, 4) };
    assert_eq!(model.chat(&tools).await.unwrap_err().kind, ChatErrorKind::Rejected);
}

#[test]
fn calls_at_the_same_time_are_answered_together_and_may_be_dropped() {
    let options = LoadOptions { max_context: 512, prefix_slots: 1, lockstep: 3 };
    let model = EmbeddedModel::load("local/smollm2@test", &test_model::path(), &options).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let short = request(Format::Line("[A-Z][a-z ]{5,30}[.]".into()), 20);
        let alone = model.chat(&short).await.unwrap().content;
        let long = ChatRequest { seed: 3, temperature: 1.0, ..request(Format::Text, 400) };
        // More than there are places; the long ones would take ten times as long.
        let given_up = tokio::time::timeout(std::time::Duration::from_millis(200), async {
            tokio::join!(model.chat(&long), model.chat(&long), model.chat(&long), model.chat(&long))
        });
        let (first, second, given_up) = tokio::join!(model.chat(&short), model.chat(&short), given_up);
        assert!(given_up.is_err(), "answered too soon to be given up");
        assert_eq!((first.unwrap().content, second.unwrap().content), (alone.clone(), alone.clone()));
        assert_eq!(model.chat(&short).await.unwrap().content, alone, "the places are free again");
    });
}
