//! Choosing one tool among candidates by prompt: the tool invocation check, and `eval select` for models
//! without tool calling.

use mcpmill_core::{edge::RecordedChat, naming::alias, record::Tool};
use serde_json::{Value, json};

use crate::{
    ask::{AskFailure, Meter, Question, ask},
    card::purpose,
    prompt::Prompt,
};

/// Characters of a candidate's description.
const PURPOSE: usize = 110;

/// The alias of the tool that `model` chooses for `request`, bound to those of the candidates.
///
/// # Errors
/// The model could not be asked, or no reply was usable.
pub async fn pick(
    model: &RecordedChat,
    prompt: &Prompt,
    request: &str,
    candidates: &[&Tool],
    row: &str,
    meter: &mut Meter,
) -> Result<String, AskFailure> {
    let names: Vec<String> = candidates.iter().map(|t| alias(&t.name)).collect();
    let shown: Vec<Value> =
        candidates.iter().zip(&names).map(|(t, n)| json!({"name": n, "purpose": purpose(t, PURPOSE)})).collect();
    let schema = json!({
        "type": "object",
        "properties": { "tool": { "type": "string", "enum": names } },
        "required": ["tool"],
        "additionalProperties": false,
    });
    let inputs = json!({ "request": request, "candidates": shown });
    ask(model, &Question { prompt, inputs, schema: Some(schema), row }, meter, |reply| {
        let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
        value["tool"].as_str().map(str::to_owned).ok_or_else(|| "the reply names no tool".to_owned())
    })
    .await
}
