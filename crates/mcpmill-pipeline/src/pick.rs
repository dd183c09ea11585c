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

/// What stands in the list where it may be that nothing in it fits.
const NOTHING: &str = "none of these: nothing here does what is asked";

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
    choose(model, prompt, request, listed(candidates), row, meter).await
}

/// As [`pick`], with an entry that none of them fits; `None` when the model chooses that.
///
/// # Errors
/// As [`pick`].
pub(crate) async fn pick_or_none(
    model: &RecordedChat,
    prompt: &Prompt,
    request: &str,
    candidates: &[&Tool],
    row: &str,
    meter: &mut Meter,
) -> Result<Option<String>, AskFailure> {
    let mut all = listed(candidates);
    let mut none = "none".to_owned();
    while all.iter().any(|(name, _)| *name == none) {
        none.push('_');
    }
    all.push((none.clone(), NOTHING.to_owned()));
    let chosen = choose(model, prompt, request, all, row, meter).await?;
    Ok((chosen != none).then_some(chosen))
}

/// Aliases and purposes.
fn listed(candidates: &[&Tool]) -> Vec<(String, String)> {
    candidates.iter().map(|tool| (alias(&tool.name), purpose(tool, PURPOSE))).collect()
}

async fn choose(
    model: &RecordedChat,
    prompt: &Prompt,
    request: &str,
    listed: Vec<(String, String)>,
    row: &str,
    meter: &mut Meter,
) -> Result<String, AskFailure> {
    let names: Vec<&String> = listed.iter().map(|(name, _)| name).collect();
    let schema = json!({
        "type": "object",
        "properties": { "tool": { "type": "string", "enum": names } },
        "required": ["tool"],
        "additionalProperties": false,
    });
    let shown: Vec<Value> = listed.iter().map(|(name, purpose)| json!({"name": name, "purpose": purpose})).collect();
    let inputs = json!({ "request": request, "candidates": shown });
    ask(model, &Question { prompt, inputs, schema: Some(schema), row }, meter, |reply| {
        let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
        value["tool"].as_str().map(str::to_owned).ok_or_else(|| "the reply names no tool".to_owned())
    })
    .await
}
