//! Asking a model by prompt file: render, ask, check, sample again.

use mcpmill_core::{
    canonical::sha256_hex,
    edge::{ChatRequest, Finish, Format, RecordedChat},
    record::{Outcome, Usage},
    schema::Schema,
    text::clipped,
};
use regex::Regex;
use serde_json::Value;

use crate::prompt::{Prompt, PromptFormat};

/// Seeds of further tries lie this far apart from the first.
const SEED_STEP: u64 = 1_000_003;
/// Characters of an unusable reply that are kept.
const RAW_KEPT: usize = 2000;

/// What calls for one row used so far.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Tokens and money of live calls; stored replies are free.
    pub usage: Usage,
    /// Requests that were sent.
    pub attempts: u32,
    /// Why a model could not be asked at all: it is down, or the reply to replay is not recorded.
    pub unreachable: Option<String>,
    /// Whether that is because the question was not asked yet.
    pub waits: bool,
}

/// Why a prompt brought nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct AskFailure {
    /// `model-failed`, `refused` or `unusable-reply`, with the prompt: `instruct: unusable-reply`.
    pub reason: String,
    /// In words.
    pub cause: String,
    /// The last raw reply.
    pub raw: Option<String>,
    /// True when the model answered, and no answer could be used; false when it could not be asked.
    pub answered: bool,
    /// True when the question was not asked yet: the row waits for a batch, or for more money.
    pub waits: bool,
}

impl AskFailure {
    /// `None` for an answer that cannot be used; a model that cannot be asked stays a failure.
    ///
    /// # Errors
    /// The model could not be asked.
    pub fn tolerate<T>(outcome: Result<T, Self>) -> Result<Option<T>, Self> {
        match outcome {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.answered => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The outcome of a row that failed on this.
    pub fn outcome(self, input_id: &str) -> Outcome {
        if self.waits {
            return Outcome::waiting(input_id, self.cause);
        }
        let mut outcome = Outcome::failed(input_id, self.reason, self.cause);
        outcome.raw = self.raw;
        outcome
    }
}

/// One question: a prompt, what fills it, and a seed that belongs to the row.
pub struct Question<'a> {
    /// The prompt file.
    pub prompt: &'a Prompt,
    /// The variables of its templates.
    pub inputs: Value,
    /// For formats `tool-schema` and for schemas bound at run time.
    pub schema: Option<Value>,
    /// The row's id: seeds and marks derive from it.
    pub row: &'a str,
}

/// Asks until `accept` is content or the prompt's tries are used up.
///
/// `accept` gets the reply as text (formats text and line) or as compact JSON that has been checked
/// against the schema, and says what is wrong with it.
///
/// # Errors
/// The model failed, or no try was usable.
pub async fn ask<T>(
    model: &RecordedChat,
    question: &Question<'_>,
    meter: &mut Meter,
    accept: impl Fn(&str) -> Result<T, String>,
) -> Result<T, AskFailure> {
    let prompt = question.prompt;
    let fail = |reason: &str, cause: String, raw: Option<String>| AskFailure {
        reason: format!("{}: {reason}", prompt.id),
        cause,
        raw: raw.map(|r| clipped(&r, RAW_KEPT)),
        answered: matches!(reason, "unusable-reply" | "refused"),
        waits: false,
    };
    let nonce = &sha256_hex(format!("{}\n{}\n{}", question.row, prompt.id, question.inputs))[..6];
    let messages = prompt.render(&question.inputs, nonce).map_err(|e| fail("prompt", e.to_string(), None))?;
    let format = wire_format(prompt, question.schema.as_ref());
    let first_seed = seed_of(question.row);
    let mut last = (String::new(), None);
    for attempt in 0..prompt.tries {
        let request = ChatRequest {
            messages: messages.clone(),
            tools: Vec::new(),
            format: format.clone(),
            // Greedy decoding repeats itself: a second try of a greedy prompt needs some warmth.
            temperature: if attempt > 0 { prompt.temperature.max(0.6) } else { prompt.temperature },
            top_p: if attempt > 0 { prompt.top_p.min(0.95) } else { prompt.top_p },
            max_tokens: prompt.max_tokens,
            seed: first_seed.wrapping_add(SEED_STEP * u64::from(attempt)) >> 1,
            prompt_kind: prompt.id.clone(),
        };
        let replied = model.chat(&request).await.map_err(|e| {
            meter.attempts += e.attempts;
            meter.usage += e.usage;
            // What a model refuses or garbles it will refuse again: that is an answer of a kind.
            if !e.is_final() {
                meter.unreachable.get_or_insert_with(|| e.to_string());
            }
            meter.waits |= e.waits();
            let failure = fail(if e.is_final() { "refused" } else { "model-failed" }, e.to_string(), e.raw.clone());
            AskFailure { waits: e.waits(), ..failure }
        })?;
        if replied.live {
            meter.usage += replied.reply.usage;
            meter.attempts += replied.reply.attempts;
        }
        let raw = replied.reply.content;
        let usable = if replied.reply.finish == Finish::Stop { Ok(()) } else { Err("the reply was cut off".to_owned()) };
        match usable.and_then(|()| well_formed(&raw, &format)).and_then(|text| accept(&text)) {
            Ok(answer) => return Ok(answer),
            Err(cause) => last = (cause, Some(raw)),
        }
    }
    Err(fail("unusable-reply", last.0, last.1))
}

/// A seed that belongs to `text`.
pub fn seed_of(text: &str) -> u64 {
    u64::from_str_radix(&sha256_hex(text)[..15], 16).unwrap_or_default()
}

fn wire_format(prompt: &Prompt, schema: Option<&Value>) -> Format {
    let named = |schema: Value| Format::JsonSchema { name: prompt.id.replace('-', "_"), schema };
    match (&prompt.format, schema) {
        (PromptFormat::Text, _) => Format::Text,
        (PromptFormat::Line(line), _) => Format::Line(line.clone()),
        (_, Some(schema)) => named(schema.clone()),
        (PromptFormat::Json(schema), None) => named(schema.clone()),
        (PromptFormat::ToolSchema, None) => named(serde_json::json!({"type": "object"})),
    }
}

/// The reply in the form that was asked for, or what is wrong with it.
fn well_formed(raw: &str, format: &Format) -> Result<String, String> {
    match format {
        Format::Text => Ok(raw.trim().to_owned()),
        Format::Line(line) => {
            let line_only = Regex::new(&format!("^(?:{line})$")).map_err(|e| e.to_string())?;
            let text = raw.trim();
            if line_only.is_match(text) {
                Ok(text.to_owned())
            } else {
                Err("the reply is not the one line that was asked for".into())
            }
        }
        Format::JsonSchema { schema, .. } => {
            let value = json_in(raw)?;
            let faults = Schema::compile(schema).map_err(|e| e.to_string())?.faults(&value, 3);
            if faults.is_empty() { Ok(value.to_string()) } else { Err(faults.join("; ")) }
        }
    }
}

/// The one JSON object of a reply: bare, or inside one code fence. Anything else is refused.
fn json_in(raw: &str) -> Result<Value, String> {
    let text = raw.trim();
    let inner = text.strip_prefix("```json").or_else(|| text.strip_prefix("```")).and_then(|t| t.strip_suffix("```"));
    let value: Value = serde_json::from_str(inner.unwrap_or(text).trim()).map_err(|e| format!("the reply is no JSON: {e}"))?;
    if value.is_object() { Ok(value) } else { Err("the reply is JSON but no object".into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_taken_bare_or_fenced_and_never_out_of_prose() {
        assert_eq!(json_in(" {\"a\": 1} ").unwrap(), json!({"a": 1}));
        assert_eq!(json_in("```json\n{\"a\": 1}\n```").unwrap(), json!({"a": 1}));
        assert!(json_in("Sure! {\"a\": 1}").is_err());
        assert!(json_in("[1]").is_err());
    }

    #[test]
    fn lines_match_as_a_whole() {
        let format = Format::Line("[A-Z][a-z ]+[.]".into());
        assert_eq!(well_formed("Hello there.\n", &format).unwrap(), "Hello there.");
        assert!(well_formed("Hello there. And", &format).is_err());
        assert!(well_formed("Hello\nthere.", &format).is_err());
    }
}
