//! Asking a model by prompt file: render, ask, check, sample again.

use std::collections::BTreeSet;

use mcpmill_core::{
    canonical::sha256_hex,
    edge::{ChatRequest, Finish, Format, RecordedChat},
    record::{EvolveFailed, Message, Outcome, Repairs, Usage, Wait, count_repairs},
    reply::{self, Reading, Repair},
    schema::Schema,
};
use regex::Regex;
use serde_json::{Map, Value};

use crate::prompt::{Prompt, PromptFormat};

/// Seeds of further tries lie this far apart from the first.
const SEED_STEP: u64 = 1_000_003;
/// Bytes of an unusable reply that are kept.
const RAW_KEPT: usize = 16 << 10;

/// What calls for one row used so far.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Tokens and money of live calls; stored replies are free.
    pub usage: Usage,
    /// Requests that were sent.
    pub attempts: u32,
    /// Why a model could not be asked at all: it is down, or the reply to replay is not recorded.
    pub unreachable: Option<String>,
    /// What the row waits for, when that says nothing of its question.
    pub waits: Option<Wait>,
    /// Repairs of the replies that were used, by prompt and rule.
    pub repairs: Repairs,
    /// Steps of evolution that came to nothing, and why.
    pub evolve_failed: EvolveFailed,
    /// Those of the repairs that no revision tells of yet.
    untold: Vec<Repair>,
}

impl Meter {
    /// The outcome of the row, with all that its calls used and what was repaired.
    pub fn told(&self, outcome: Outcome) -> Outcome {
        outcome
            .with_usage(self.usage, self.attempts)
            .with_repairs(self.repairs.clone())
            .with_evolve_failed(self.evolve_failed.clone())
    }

    /// Counts the repairs of a reply that is used.
    pub fn repaired(&mut self, prompt: &str, repairs: &[Repair]) {
        count_repairs(&mut self.repairs, prompt, repairs);
        self.untold.extend(repairs.iter().filter(|repair| !self.untold.contains(repair)).copied().collect::<Vec<_>>());
    }

    /// The repairs since the last time this was asked, each once: the lineage of what they led to names them.
    pub fn untold(&mut self) -> Vec<Repair> {
        std::mem::take(&mut self.untold)
    }
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
    /// What the row waits for, when that says nothing of its question.
    pub waits: Option<Wait>,
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
        if let Some(wait) = self.waits {
            return Outcome::waiting(input_id, wait, self.cause);
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
        raw: raw.map(kept),
        answered: matches!(reason, "unusable-reply" | "refused"),
        waits: None,
    };
    let nonce = &sha256_hex(format!("{}\n{}\n{}", question.row, prompt.id, question.inputs))[..6];
    let messages = prompt.render(&question.inputs, nonce).map_err(|e| fail("prompt", e.to_string(), None))?;
    let format = wire_format(prompt, question.schema.as_ref());
    let shape = Shape::of(&format).map_err(|why| fail("unusable-schema", why, None))?;
    let first_seed = seed_of(question.row);
    let shown = match messages.last() {
        Some(Message::User { content }) => content.as_str(),
        _ => "",
    };
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
            if e.waits().is_some() && meter.waits.is_none() {
                (meter.waits, meter.unreachable) = (e.waits(), Some(e.to_string()));
            } else if !e.is_final() {
                meter.unreachable.get_or_insert_with(|| e.to_string());
            }
            let failure = fail(if e.is_final() { "refused" } else { "model-failed" }, e.to_string(), e.raw.clone());
            AskFailure { waits: e.waits(), ..failure }
        })?;
        if replied.live {
            meter.usage += replied.reply.usage;
            meter.attempts += replied.reply.attempts;
        }
        let raw = replied.reply.content;
        let usable = if replied.reply.finish == Finish::Stop { Ok(()) } else { Err("the reply was cut off".to_owned()) };
        let read = usable.and_then(|()| shape.read(&raw, shown));
        match read.and_then(|read| accept(&read.value).map(|answer| (answer, read.repairs))) {
            Ok((answer, repairs)) => {
                let all: BTreeSet<Repair> = replied.reply.repairs.iter().chain(&repairs).copied().collect();
                meter.repaired(&prompt.id, &all.into_iter().collect::<Vec<_>>());
                return Ok(answer);
            }
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

/// The start of a reply that could not be used, with a word on what is missing.
fn kept(raw: String) -> String {
    if raw.len() <= RAW_KEPT {
        return raw;
    }
    let end = (0..=RAW_KEPT).rev().find(|end| raw.is_char_boundary(*end)).unwrap_or_default();
    format!("{}… [clipped: {end} of {} bytes]", &raw[..end], raw.len())
}

/// What replies must look like, made ready once for all tries of a question.
enum Shape {
    Text,
    Line(Regex),
    Json { checker: Schema, schema: Value, name: String },
}

/// What calls of a tool have their arguments in.
const WRAPPERS: [&str; 3] = ["arguments", "parameters", "input"];

impl Shape {
    fn of(format: &Format) -> Result<Self, String> {
        Ok(match format {
            Format::Text => Self::Text,
            Format::Line(line) => Self::Line(Regex::new(&format!("^(?:{line})$")).map_err(|e| e.to_string())?),
            Format::JsonSchema { schema, name } => {
                let checker = Schema::compile(schema).map_err(|e| e.to_string())?;
                Self::Json { checker, schema: schema.clone(), name: name.clone() }
            }
        })
    }

    /// The reply in the form that was asked for, with the repairs it took, or what is wrong with it. `shown` is the
    /// question as it was put.
    fn read(&self, raw: &str, shown: &str) -> Result<Reading<String>, String> {
        let refused = |refused: reply::Refused| refused.to_string();
        match self {
            Self::Text => reply::text(raw).map_err(refused),
            Self::Line(line) => {
                let read = reply::text(raw).map_err(refused)?;
                if line.is_match(&read.value) { Ok(read) } else { Err("the reply is not the one line that was asked for".into()) }
            }
            Self::Json { checker, schema, name } => {
                let Reading { value, mut repairs } = reply::json(raw).map_err(refused)?;
                let Value::Object(mut object) = value else { return Err("the reply is JSON but no object".into()) };
                if let Some(inner) = unwrapped(&object, schema, |call| call == name || names(shown, call))? {
                    object = inner;
                    repairs.push(Repair::CallShape);
                    repairs.sort_unstable();
                }
                if let Some(key) = undeclared(&object, schema) {
                    return Err(format!("the reply has `{key}`, which the schema does not name"));
                }
                let value = Value::Object(object);
                let faults = checker.faults(&value, 3);
                if faults.is_empty() { Ok(Reading { value: value.to_string(), repairs }) } else { Err(faults.join("; ")) }
            }
        }
    }
}

/// Whether a text has a name as a word of its own.
fn names(text: &str, name: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let alone = |at: usize| !joins(text[..at].chars().next_back()) && !joins(text[at + name.len()..].chars().next());
    !name.is_empty() && text.match_indices(name).any(|(at, _)| alone(at))
}

/// What a whole call holds where its arguments alone were asked for: `{"name": …, "arguments": {…}}`. A schema that
/// has such properties itself asks for no wrapper.
fn unwrapped(
    object: &Map<String, Value>,
    schema: &Value,
    is_shown: impl Fn(&str) -> bool,
) -> Result<Option<Map<String, Value>>, String> {
    let Some(properties) = schema["properties"].as_object() else { return Ok(None) };
    let wrapper =
        WRAPPERS.into_iter().find(|key| object.get(*key).is_some_and(Value::is_object) && !properties.contains_key(*key));
    let Some(wrapper) = wrapper else { return Ok(None) };
    let label = |key: &str| matches!(key, "name" | "id" | "type") && !properties.contains_key(key);
    if object.keys().any(|key| key != wrapper && !label(key)) {
        return Ok(None);
    }
    match object.get("name") {
        Some(Value::String(name)) if !is_shown(name) => Err(format!("the reply calls `{name}`, which was not shown")),
        None | Some(Value::String(_)) => Ok(object[wrapper].as_object().cloned()),
        Some(_) => Ok(None),
    }
}

/// A key that a schema neither names nor lets in by a rule of its own. That nothing forbids it makes it no parameter.
fn undeclared<'a>(object: &'a Map<String, Value>, schema: &Value) -> Option<&'a str> {
    let open = |key: &str| matches!(&schema[key], Value::Bool(true) | Value::Object(_));
    // Where a schema is put together from parts, its checker alone can tell.
    let parts = ["$ref", "allOf", "anyOf", "oneOf", "if"].iter().any(|key| !schema[*key].is_null());
    let properties = schema["properties"].as_object().filter(|_| !parts)?;
    if open("additionalProperties") || open("patternProperties") {
        return None;
    }
    object.keys().map(String::as_str).find(|key| !properties.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(format: &Format, raw: &str) -> Result<Reading<String>, String> {
        Shape::of(format).unwrap().read(raw, "Tool: get_forecast\nRequest: how is it?")
    }

    #[test]
    fn a_whole_call_is_unwrapped_and_what_no_schema_names_is_refused() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let format = Format::JsonSchema { name: "call".into(), schema: schema.clone() };
        let told = |raw: &str| read(&format, raw).map(|read| (read.value, read.repairs));
        let whole = |raw: &str| assert_eq!(told(raw), Ok((r#"{"city":"Lecco"}"#.into(), vec![Repair::CallShape])), "{raw}");
        whole(r#"{"name": "get_forecast", "arguments": {"city": "Lecco"}}"#);
        whole(r#"{"name": "call", "parameters": {"city": "Lecco"}}"#);
        whole(r#"{"arguments": {"city": "Lecco"}}"#);
        for (bad, why) in [
            (r#"{"name": "get_fore", "arguments": {"city": "Lecco"}}"#, "`get_fore`, which was not shown"),
            (r#"{"city": "Lecco", "days": 3}"#, "`days`, which the schema does not name"),
            (r#"{"arguments": {"town": "Lecco"}}"#, "`town`, which"),
            (r#"{"arguments": {"city": "Lecco"}, "city": "Bergamo"}"#, "`arguments`, which"),
        ] {
            assert!(told(bad).unwrap_err().contains(why), "{bad}");
        }
        // What a schema takes itself is no wrapper, and what it lets in is no stranger.
        let own = json!({"type": "object", "properties": {"arguments": {"type": "object"}}});
        let own = Format::JsonSchema { name: "call".into(), schema: own };
        assert_eq!(read(&own, r#"{"arguments": {"a": 1}}"#).unwrap().repairs, []);
        let mut open = schema;
        open["additionalProperties"] = json!({"type": "integer"});
        let open = Format::JsonSchema { name: "call".into(), schema: open };
        assert_eq!(read(&open, r#"{"city": "Lecco", "days": 3}"#).unwrap().repairs, []);
        assert!(read(&open, r#"{"city": "Lecco", "days": "3"}"#).is_err());
    }

    #[test]
    fn json_is_exact_or_repaired_and_fits_its_schema() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let format = Format::JsonSchema { name: "x".into(), schema };
        let told = |raw| read(&format, raw).map(|read| (read.value, read.repairs));
        assert_eq!(told(" {\"a\": 1} "), Ok((r#"{"a":1}"#.into(), vec![])));
        assert_eq!(told("```json\n{\"a\": 1}\n```"), Ok((r#"{"a":1}"#.into(), vec![Repair::CodeFence])));
        assert_eq!(told("Sure! {'a': 1}").unwrap().1, [Repair::SurroundingProse, Repair::SingleQuotes]);
        for bad in ["[1]", "{\"a\": \"1\"}", "{\"a\": 1} or {\"a\": 2}", "a is 1"] {
            assert!(told(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_match_as_a_whole() {
        let format = Format::Line("[A-Z][a-z ]+[.]".into());
        assert_eq!(read(&format, "Hello there.\n").unwrap().value, "Hello there.");
        assert_eq!(read(&format, "<think>a\nb</think>\nHello there.").unwrap().repairs, [Repair::Reasoning]);
        assert!(read(&format, "Hello there. And").is_err());
        assert!(read(&format, "Hello\nthere.").is_err());
    }

    #[test]
    fn a_long_reply_is_kept_in_part_and_says_so() {
        assert_eq!(kept("é".repeat(100)), "é".repeat(100));
        let long = kept(format!("a{}", "é".repeat(RAW_KEPT)));
        assert!(long.ends_with("é… [clipped: 16383 of 32769 bytes]"), "{}", &long[long.len() - 50..]);
    }

    #[test]
    fn repairs_are_counted_by_prompt_and_told_once() {
        let mut meter = Meter::default();
        meter.repaired("call", &[Repair::CodeFence, Repair::LostBrace]);
        meter.repaired("slots", &[Repair::CodeFence]);
        assert_eq!(meter.untold(), [Repair::CodeFence, Repair::LostBrace]);
        assert_eq!(meter.untold(), []);
        let repairs = meter.told(Outcome::kept("a")).repairs.unwrap();
        assert_eq!(json!(repairs), json!({"call: code-fence": 1, "call: lost-brace": 1, "slots: code-fence": 1}));
        assert_eq!(Meter::default().told(Outcome::kept("a")), Outcome::kept("a"));
    }
}
