//! Asking a model by prompt file: render, ask, check, sample again.

mod whole;

use std::collections::BTreeSet;

use mcpmill_core::{
    canonical::sha256_hex,
    edge::{ChatRequest, Finish, Format, RecordedChat},
    naming,
    record::{EvolveFailed, Outcome, Repairs, Usage, Wait, count_repairs},
    reply::{self, Reading, Repair},
};
use regex::Regex;
use serde_json::Value;

use crate::{
    card,
    prompt::{MARK, Prompt, PromptFormat, holds_mark},
};
use whole::Wanted;

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

    /// Adds what further calls for the row used. What the row needs not (`spare`) keeps it from no end.
    pub fn add(&mut self, other: Self, spare: bool) {
        self.usage += other.usage;
        self.attempts += other.attempts;
        other.repairs.into_iter().for_each(|(rule, count)| *self.repairs.entry(rule).or_default() += count);
        other.evolve_failed.into_iter().for_each(|(step, causes)| self.evolve_failed.entry(step).or_default().extend(causes));
        self.untold.extend(other.untold);
        if !spare {
            self.waits = self.waits.or(other.waits);
            self.unreachable = self.unreachable.take().or(other.unreachable);
        }
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
    /// The variables of its templates. A reply may be a whole call of a tool whose card is one of them.
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
    let nonce = &sha256_hex(format!("{}\n{}\n{}", question.row, prompt.id, question.inputs))[..MARK];
    let messages = prompt.render(&question.inputs, nonce).map_err(|e| fail("prompt", e.to_string(), None))?;
    let format = wire_format(prompt, question.schema.as_ref());
    let shape = Shape::of(&format, &question.inputs).map_err(|why| fail("unusable-schema", why, None))?;
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
        let read = usable.and_then(|()| shape.read(&raw));
        let read = read.and_then(|read| match holds_mark(&read.value) {
            true => Err("the reply copies the marks around what it was shown".to_owned()),
            false => Ok(read),
        });
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
    Json(Wanted),
}

impl Shape {
    /// For a question with these inputs: a reply may name the tools whose cards are among them.
    fn of(format: &Format, inputs: &Value) -> Result<Self, String> {
        Ok(match format {
            Format::Text => Self::Text,
            Format::Line(line) => Self::Line(Regex::new(&format!("^(?:{line})$")).map_err(|e| e.to_string())?),
            Format::JsonSchema { schema, name } => {
                let names = shown_names(inputs).into_iter().chain([name.clone()]);
                Self::Json(Wanted::new(schema, names).map_err(|e| e.to_string())?)
            }
        })
    }

    /// The reply in the form that was asked for, with the repairs it took, or what is wrong with it.
    fn read(&self, raw: &str) -> Result<Reading<String>, String> {
        let refused = |refused: reply::Refused| refused.to_string();
        match self {
            Self::Text => reply::text(raw).map_err(refused),
            Self::Line(line) => {
                let read = reply::text(raw).map_err(refused)?;
                if line.is_match(&read.value) { Ok(read) } else { Err("the reply is not the one line that was asked for".into()) }
            }
            Self::Json(wanted) => {
                let Reading { value, repairs } = reply::json(raw).map_err(refused)?;
                let read = wanted.of(value)?;
                let all: BTreeSet<Repair> = repairs.into_iter().chain(read.repairs).collect();
                Ok(Reading { value: Value::Object(read.value).to_string(), repairs: all.into_iter().collect() })
            }
        }
    }
}

/// Inputs that are cards.
const CARDS: [&str; 4] = ["card", "cards", "first", "second"];

/// The names on the cards of a question, and what they are called in conversations.
fn shown_names(inputs: &Value) -> BTreeSet<String> {
    let cards = CARDS.iter().filter_map(|name| inputs[*name].as_str());
    cards.flat_map(card::names).flat_map(|name| [naming::alias(name), name.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(format: &Format, raw: &str) -> Result<Reading<String>, String> {
        Shape::of(format, &json!({"card": "Tool: get_forecast"})).unwrap().read(raw)
    }

    #[test]
    fn the_tool_on_a_card_may_be_called_and_no_other_word_of_the_question() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let format = Format::JsonSchema { name: "call".into(), schema };
        let inputs = json!({
            "card": "Tool: nasa/apod\nPurpose: Shows a forecast.\nParameters:\n- city (string)",
            "request": "Tool: read_note\nHow is it in Lecco?",
        });
        let shape = Shape::of(&format, &inputs).unwrap();
        let whole = |name: &str| shape.read(&json!({"name": name, "arguments": {"city": "Lecco"}}).to_string());
        for name in ["nasa/apod", &naming::alias("nasa/apod"), "call"] {
            assert_eq!(whole(name).unwrap().repairs, [Repair::CallShape], "{name}");
        }
        for name in ["read_note", "forecast", "Lecco", "apod", "city"] {
            assert!(whole(name).unwrap_err().contains(&format!("`{name}` is no tool")), "{name}");
        }
        let two =
            shown_names(&json!({"cards": "Tool: a\nPurpose: x\nParameters: none\n\nTool: b\nPurpose: y\nParameters: none"}));
        assert_eq!(two.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn json_is_exact_or_repaired_and_fits_its_schema() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let format = Format::JsonSchema { name: "x".into(), schema };
        let told = |raw| read(&format, raw).map(|read| (read.value, read.repairs));
        assert_eq!(told(" {\"a\": 1} "), Ok((r#"{"a":1}"#.into(), vec![])));
        assert_eq!(told("```json\n{\"a\": 1}\n```"), Ok((r#"{"a":1}"#.into(), vec![Repair::CodeFence])));
        assert_eq!(told("Sure! {'a': 1}").unwrap().1, [Repair::SurroundingProse, Repair::SingleQuotes]);
        for bad in ["[1]", "[{\"a\": 1}]", "{\"a\": \"1\"}", "{\"a\": 1} or {\"a\": 2}", "a is 1"] {
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
