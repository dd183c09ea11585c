//! What a model replied, read: a JSON value or tool calls, exact or with repairs that are named.
//!
//! Models wrap what they were asked for in reasoning, fences and prose, and write JSON as the language they were
//! trained on most. What can be read in one way only is read, and every liberty that was taken is named; what can
//! be read in two ways is refused with the reason. Prose is never made a call, and no number or string is altered.
//! Reading takes time in proportion to the text, whatever the text.

mod calls;
mod find;
mod forms;
mod parse;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use find::{Fuelled, Text};
use parse::{Fault, Parser};

pub use calls::{call, calls};

/// A liberty that was taken in reading a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// A block of reasoning was left out.
    Reasoning,
    /// A token that ends a turn was left out (`<|im_end|>`).
    EndToken,
    /// A code fence was taken off.
    CodeFence,
    /// Text around the one value was left out.
    SurroundingProse,
    /// The same value stood there more than once.
    RepeatedObject,
    /// A key stood more than once in an object, with the same value.
    RepeatedKey,
    /// Up to two closing brackets were missing at the very end.
    LostBrace,
    /// There were closing brackets too many at the very end.
    ExtraBrace,
    /// A comma stood before a closing bracket.
    TrailingComma,
    /// Strings stood in single quotes.
    SingleQuotes,
    /// `True`, `False` or `None` stood for their JSON words.
    PythonLiteral,
    /// Comments were left out.
    Comment,
    /// Strings had line feeds or other control characters that were not escaped.
    RawNewline,
    /// Keys stood without quotes.
    BareKey,
    /// A string held JSON in place of the JSON itself.
    DoubleEncoding,
    /// A call stood between the tags of a model family.
    TaggedCall,
    /// The tag after the last call was missing.
    LostTag,
    /// A call was written as in a program, `name(key=value)`.
    PythonicCall,
    /// A call had other field names than `name` and `arguments`, or a wrapper.
    CallShape,
    /// A call had no arguments at all, or `null`.
    NoArguments,
}

impl Repair {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Reasoning,
        Self::EndToken,
        Self::CodeFence,
        Self::SurroundingProse,
        Self::RepeatedObject,
        Self::RepeatedKey,
        Self::LostBrace,
        Self::ExtraBrace,
        Self::TrailingComma,
        Self::SingleQuotes,
        Self::PythonLiteral,
        Self::Comment,
        Self::RawNewline,
        Self::BareKey,
        Self::DoubleEncoding,
        Self::TaggedCall,
        Self::LostTag,
        Self::PythonicCall,
        Self::CallShape,
        Self::NoArguments,
    ];

    /// The word used in lineage and counts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning",
            Self::EndToken => "end-token",
            Self::CodeFence => "code-fence",
            Self::SurroundingProse => "surrounding-prose",
            Self::RepeatedObject => "repeated-object",
            Self::RepeatedKey => "repeated-key",
            Self::LostBrace => "lost-brace",
            Self::ExtraBrace => "extra-brace",
            Self::TrailingComma => "trailing-comma",
            Self::SingleQuotes => "single-quotes",
            Self::PythonLiteral => "python-literal",
            Self::Comment => "comment",
            Self::RawNewline => "raw-newline",
            Self::BareKey => "bare-key",
            Self::DoubleEncoding => "double-encoding",
            Self::TaggedCall => "tagged-call",
            Self::LostTag => "lost-tag",
            Self::PythonicCall => "pythonic-call",
            Self::CallShape => "call-shape",
            Self::NoArguments => "no-arguments",
        }
    }
}

/// What was read, and what had to be repaired for it: nothing when the reply was exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading<T> {
    /// What the reply says.
    pub value: T,
    /// The repairs, each once, in the order of [`Repair`].
    pub repairs: Vec<Repair>,
}

impl<T> Reading<T> {
    fn new(value: T, repairs: BTreeSet<Repair>) -> Self {
        Self { value, repairs: repairs.into_iter().collect() }
    }
}

/// A reply that cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{detail}")]
pub struct Refused {
    /// Why not.
    pub why: Why,
    /// In words.
    pub detail: String,
}

impl Refused {
    fn new(why: Why, detail: impl Into<String>) -> Self {
        Self { why, detail: detail.into() }
    }

    fn broken(what: &str, fault: Fault) -> Self {
        match fault {
            Fault::Broken(detail) => Self::new(Why::Broken, format!("{what} cannot be read: {detail}")),
            Fault::Exhausted => Self::new(Why::Exhausted, format!("{what} cannot be read: it has too many beginnings")),
        }
    }
}

/// Why a reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It holds nothing of the kind.
    Nothing,
    /// It holds several values that differ, or can be meant in several ways.
    Ambiguous,
    /// It holds JSON that is broken beyond the repairs there are.
    Broken,
    /// It calls what was not offered.
    NotOffered,
    /// Its reasoning has no end: the answer never began.
    Unended,
    /// It is made so that reading it would take too long.
    Exhausted,
}

/// The text of a reply, without reasoning and tokens that end a turn.
///
/// # Errors
/// The reasoning has no end.
pub fn text(reply: &str) -> Result<Reading<String>, Refused> {
    let text = Text::new(reply);
    let (rest, repairs) = text.without_reasoning()?;
    if text.is_unended(&repairs, &rest) {
        return Err(Refused::new(Why::Unended, "the reasoning of the reply has no end"));
    }
    Ok(Reading::new(rest.into_owned(), repairs))
}

/// The one JSON value of a reply.
///
/// # Errors
/// There is none, there are several that differ, or it is broken beyond repair.
pub fn json(reply: &str) -> Result<Reading<Value>, Refused> {
    let text = Text::new(reply);
    if let Some(read) = text.whole(text.trimmed)? {
        return Ok(read);
    }
    let (rest, mut repairs) = text.without_reasoning()?;
    if let Some(read) = text.whole(&rest)? {
        repairs.extend(read.repairs);
        return Ok(Reading::new(read.value, repairs));
    }
    if text.is_unended(&repairs, &rest) {
        return Err(Refused::new(Why::Unended, "the reasoning of the reply has no end"));
    }
    let found = text.containers(&rest)?;
    let Some(first) = found.first() else {
        return Err(Refused::new(Why::Nothing, "the reply holds no JSON"));
    };
    if let Some(other) = found.iter().find(|other| other.value != first.value) {
        let (one, two) = (first.value.to_string(), other.value.to_string());
        let (one, two) = (crate::text::shown(&one, 60), crate::text::shown(&two, 60));
        return Err(Refused::new(Why::Ambiguous, format!("the reply holds several JSON values, `{one}` and `{two}`")));
    }
    repairs.extend(found.iter().flat_map(|found| found.repairs.iter().copied()));
    repairs.extend(find::around(&rest, &found));
    if found.len() > 1 {
        repairs.insert(Repair::RepeatedObject);
    }
    Ok(Reading::new(first.value.clone(), repairs))
}

/// The arguments of a call as an endpoint or a model wrote them: an object, or a string that holds one. `told` says
/// whether a string is by the book, as in OpenAI's format.
///
/// # Errors
/// They are no object, or broken beyond repair. Text around them is none of their parts: such arguments are refused.
pub fn arguments(written: &Value, told: Encoding) -> Result<Reading<Map<String, Value>>, Refused> {
    let mut repairs = BTreeSet::new();
    let mut value = written.clone();
    for level in 0..=MOST_ENCODED {
        match value {
            Value::Object(map) => return Ok(Reading::new(map, repairs)),
            Value::Null if level == 0 => {
                repairs.insert(Repair::NoArguments);
                return Ok(Reading::new(Map::new(), repairs));
            }
            Value::String(inner) => {
                if level > 0 || told == Encoding::Object {
                    repairs.insert(Repair::DoubleEncoding);
                }
                if inner.trim().is_empty() {
                    return Ok(Reading::new(Map::new(), repairs));
                }
                let text = Text::new(&inner);
                let read = text.value(text.trimmed).map_err(|fault| Refused::broken("the arguments", fault))?;
                repairs.extend(read.repairs);
                value = read.value;
            }
            other => {
                let detail = format!("the arguments are `{}`, not an object", crate::text::shown(&other.to_string(), 60));
                return Err(Refused::new(Why::Broken, detail));
            }
        }
    }
    Err(Refused::new(Why::Broken, "the arguments are encoded too often"))
}

/// How arguments are written by the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As a JSON object.
    Object,
    /// As a string that holds one.
    Text,
}

/// How often JSON may lie in a string of JSON.
const MOST_ENCODED: u32 = 3;

impl Text<'_> {
    /// The value that `part` is as a whole; `None` when it is more or less than one.
    fn whole(&self, part: &str) -> Result<Option<Reading<Value>>, Refused> {
        match self.value(part) {
            Ok(read) => self.decoded(read).map(Some),
            Err(Fault::Exhausted) => Err(Refused::broken("the reply", Fault::Exhausted)),
            Err(Fault::Broken(_)) => Ok(None),
        }
    }

    /// What a string that holds JSON holds.
    fn decoded(&self, read: Reading<Value>) -> Result<Reading<Value>, Refused> {
        let Reading { mut value, repairs } = read;
        let mut repairs: BTreeSet<Repair> = repairs.into_iter().collect();
        for _ in 0..MOST_ENCODED {
            let Value::String(inner) = &value else { break };
            let inner = inner.trim();
            if !inner.starts_with(['{', '[', '"']) {
                break;
            }
            match self.value(inner) {
                Ok(read) => {
                    repairs.extend(read.repairs);
                    repairs.insert(Repair::DoubleEncoding);
                    value = read.value;
                }
                Err(Fault::Exhausted) => return Err(Refused::broken("the reply", Fault::Exhausted)),
                Err(Fault::Broken(_)) => break,
            }
        }
        Ok(Reading::new(value, repairs))
    }

    /// `part` as one value, with what was repaired inside it.
    fn value(&self, part: &str) -> Fuelled<Reading<Value>> {
        let mut parser = Parser::new(part, 0, &self.fuel);
        let value = parser.root().and_then(|value| parser.space().map(|()| value));
        let left = part.len() - parser.at.min(part.len());
        match value {
            Ok(value) if left == 0 => {
                parser.repairs.extend(self.ended.then_some(Repair::EndToken));
                return Ok(Reading::new(value, parser.repairs));
            }
            Err(Fault::Exhausted) => return Err(Fault::Exhausted),
            _ => {}
        }
        // JSON as it stands in a string, without the quotes around it: every inner quote has its backslash.
        let escaped = ["{\\\"", "[\\\"", "[{\\\""].iter().any(|start| part.starts_with(start));
        if escaped && let Ok(inner) = serde_json::from_str::<String>(&format!("\"{part}\"")) {
            let mut parser = Parser::new(&inner, 0, &self.fuel);
            let value = parser.root()?;
            if inner[parser.at..].trim().is_empty() {
                parser.repairs.insert(Repair::DoubleEncoding);
                return Ok(Reading::new(value, parser.repairs));
            }
        }
        match value {
            Ok(_) => Err(Fault::Broken("more follows after it".into())),
            Err(fault) => Err(fault),
        }
    }
}
