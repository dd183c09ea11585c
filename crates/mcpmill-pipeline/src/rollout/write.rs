//! Turns that are written while a conversation is run: the next call, the text of the answers, the next request.
//! Code holds each of them to what was said and answered so far.

use mcpmill_core::{
    record::{Message, Sample, SampleKind, Tool},
    schema::{Schema, required},
    text::clipped,
};
use serde_json::{Map, Value, json};

use super::{
    RolloutPrompts,
    known::{from_nowhere, not_brought, said},
    voice::{behind_the_scenes, disclaims, is_an_answer},
};
use crate::{
    ask::{AskFailure, Meter, Question, ask},
    card::{card, one_line},
    generate::{
        language, language_name,
        values::{invented, is_ended, placeholder, prune, states},
    },
    models::Models,
    prompt::Prompt,
};

/// Characters of one answer that a model is shown.
const SHOWN: usize = 1500;

/// Writes turns, with the models of the prompts' roles.
pub struct Writer {
    /// The prompts.
    pub prompts: RolloutPrompts,
    /// The models.
    pub models: Models,
}

impl Writer {
    /// The arguments of the next call, which is one of `tool`: what the user and the answers said, and nothing else.
    pub(super) async fn next(
        &self,
        sample: &Sample,
        messages: &[Message],
        tool: &Tool,
        meter: &mut Meter,
    ) -> Result<Map<String, Value>, AskFailure> {
        let schema = tool.schema();
        let checker = Schema::compile(&schema).map_err(|e| cannot("next", e.to_string()))?;
        let (known, handed) = planned(sample, tool);
        let mut inputs = json!({"card": card(tool), "turns": turns(messages)});
        if !known.is_empty() {
            inputs["known"] = json!(Value::Object(known.clone()).to_string());
        }
        let said = said(messages);
        let accept = |reply: &str| {
            let mut arguments = object(reply)?;
            arguments.extend(known.clone());
            let arguments = prune(&arguments, &required(&schema), &said.join("\n"));
            if let Some(fault) = checker.faults(&Value::Object(arguments.clone()), 1).into_iter().next() {
                return Err(fault);
            }
            let written = arguments.iter().filter(|(name, _)| !known.contains_key(*name));
            let written = written.map(|(name, value)| (name.clone(), value.clone())).collect();
            if let Some(value) = from_nowhere(&written, &schema, handed.as_deref(), &said) {
                return Err(format!("`{value}` was not said and not answered"));
            }
            let link = handed.as_ref().and_then(|name| arguments.get(name));
            match link.and_then(|value| not_brought(value, messages)) {
                Some(value) => Err(format!("`{value}` is not what the answers brought")),
                None => Ok(arguments),
            }
        };
        self.ask(&self.prompts.next, sample, (messages, inputs, Some(schema.clone())), meter, accept).await
    }

    /// What the assistant says about the answers. It states nothing concrete that they and the user did not.
    pub(super) async fn answer(&self, sample: &Sample, messages: &[Message], meter: &mut Meter) -> Result<String, AskFailure> {
        let inputs = foreign(json!({"turns": turns(messages)}), sample);
        let said = said(messages);
        let accept = |reply: &str| {
            let text = text_of(reply, "answer")?;
            if disclaims(&text) {
                return Err("the answer refuses what was done".into());
            }
            // A recovery has had its error.
            if let Some(word) = behind_the_scenes(&text, &said, sample.kind != SampleKind::Recover) {
                return Err(format!("the answer speaks of `{word}`, which nobody did"));
            }
            let known: Vec<&str> = said.iter().map(String::as_str).collect();
            match invented(&text, &known) {
                Some(new) => Err(format!("`{new}` is in no answer")),
                None => language::fits(&text, &sample.language, &[]).map(|()| text),
            }
        };
        self.ask(&self.prompts.answer, sample, (messages, inputs, None), meter, accept).await
    }

    /// What the user asks next, for `tool` to fulfil with what was seen.
    pub(super) async fn user(
        &self,
        sample: &Sample,
        messages: &[Message],
        tool: &Tool,
        meter: &mut Meter,
    ) -> Result<String, AskFailure> {
        let inputs = foreign(json!({"card": card(tool), "turns": turns(messages)}), sample);
        let said = said(messages);
        let accept = |reply: &str| {
            let text = text_of(reply, "request")?;
            let known: Vec<&str> = said.iter().map(String::as_str).collect();
            if is_an_answer(&text) {
                return Err("the request is an assistant's answer".into());
            }
            if tool.name.contains(['_', '-']) && states(&text, &tool.name) {
                return Err("the request names the tool".into());
            }
            if messages.iter().any(|m| matches!(m, Message::User { content } if *content == text)) {
                return Err("the request was made before".into());
            }
            match invented(&text, &known) {
                Some(new) => Err(format!("`{new}` was not seen before")),
                None => language::fits(&text, &sample.language, &[]).map(|()| text),
            }
        };
        self.ask(&self.prompts.user, sample, (messages, inputs, None), meter, accept).await
    }

    /// Asks; the seed belongs to the sample and the place in the conversation.
    async fn ask<T>(
        &self,
        prompt: &Prompt,
        sample: &Sample,
        (messages, inputs, schema): (&[Message], Value, Option<Value>),
        meter: &mut Meter,
        accept: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, AskFailure> {
        let row = format!("{}#{}", sample.id, messages.len());
        let question = Question { prompt, inputs, schema, row: &row };
        ask(self.models.role(prompt.role), &question, meter, accept).await
    }
}

fn cannot(step: &str, cause: String) -> AskFailure {
    AskFailure { reason: format!("{step}: unusable-schema"), cause, raw: None, answered: true, waits: None }
}

/// What generate planned for a later call: arguments that the user stated, and the parameter that an answer brings.
fn planned(sample: &Sample, tool: &Tool) -> (Map<String, Value>, Option<String>) {
    let notes = sample.lineage.iter().filter(|revision| revision.step == "later");
    let mut plans = notes.filter_map(|revision| serde_json::from_str::<Value>(&revision.text).ok());
    let own = plans.rfind(|plan| plan["tool"] == tool.id.as_str()).unwrap_or_default();
    let known = own["arguments"].as_object().cloned().unwrap_or_default();
    (known, own["from_answer"].as_str().map(str::to_owned))
}

/// The inputs with the language where it is not the one prompts are written in.
fn foreign(mut inputs: Value, sample: &Sample) -> Value {
    if let Some(name) = language_name(&sample.language).filter(|_| sample.language != "en") {
        inputs["language"] = json!(name);
    }
    inputs
}

/// The conversation as a prompt shows it: who speaks, the text, and whether it comes from outside.
pub(crate) fn turns(messages: &[Message]) -> Vec<Value> {
    let turn = |who: String, text: String, outside: bool| json!({"who": who, "text": text, "outside": outside});
    let of = |message: &Message| match message {
        Message::System { .. } => Vec::new(),
        // What stands outside the marks is one line, so that it cannot look like another turn.
        Message::User { content } => vec![turn("User".into(), one_line(content), false)],
        Message::Assistant { content, tool_calls } => {
            let text = content.iter().map(|text| turn("Assistant".into(), one_line(text), false));
            let call = |call: &mcpmill_core::record::ToolCall| {
                let arguments = Value::Object(call.function.arguments.clone()).to_string();
                turn("Assistant calls".into(), format!("{} {arguments}", call.function.name), false)
            };
            text.chain(tool_calls.iter().map(call)).collect()
        }
        Message::Tool { name, content, .. } => vec![turn(format!("Answer of {name}"), shown(content), true)],
    };
    messages.iter().flat_map(of).collect()
}

fn shown(content: &str) -> String {
    let cut = clipped(content, SHOWN);
    if cut != content { format!("{cut}\n(cut after {SHOWN} characters)") } else { cut }
}

fn object(reply: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(reply).map_err(|e| e.to_string())
}

fn text_of(reply: &str, field: &str) -> Result<String, String> {
    let text = object(reply)?.get(field).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    if !is_ended(&text) {
        return Err("the text is cut off".into());
    }
    placeholder(&text).map_or(Ok(text), |word| Err(format!("the text holds `{word}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_outside_the_marks_cannot_look_like_a_turn() {
        let messages = [Message::user("Show it.\nAnswer of read:\nfine"), Message::assistant("a\n\nb")];
        let shown = turns(&messages);
        assert_eq!((&shown[0]["text"], &shown[1]["text"]), (&json!("Show it. Answer of read: fine"), &json!("a b")));
    }

    #[test]
    fn a_long_answer_is_cut_and_that_is_told() {
        let long = "x".repeat(SHOWN + 1);
        assert!(shown(&long).ends_with("(cut after 1500 characters)"));
        assert_eq!(shown("short"), "short");
    }
}
