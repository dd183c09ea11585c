//! What the structure of an answer says: how it ended, what it holds, and what its fields and texts say of themselves.

use mcpmill_core::{
    record::{ResponseVerdict, ToolResult},
    schema::Schema,
    text::clipped,
};
use serde_json::{Map, Value};

use super::{
    fields::{admits, doubt, is_bare},
    forms::{Asked, failure, fine},
};

/// What the structure of an answer says.
#[derive(Debug)]
pub(super) enum Found {
    /// It is no answer to learn from.
    Bad(ResponseVerdict, String),
    /// It is one.
    Sure(String),
    /// Structure does not tell, and why.
    Open(String),
}

/// One answer and what it answers.
pub(super) struct Shape<'a> {
    pub(super) result: &'a ToolResult,
    pub(super) asked: Asked<'a>,
    /// The schema that the server declared for its structured content, as text.
    pub(super) output_schema: Option<&'a str>,
    /// Characters of the longest answer that is of use.
    pub(super) longest: usize,
}

impl Shape<'_> {
    pub(super) fn found(&self) -> Found {
        use ResponseVerdict::{Empty, HardError, SchemaBreach, SoftError, TooLong};
        let text = self.result.text();
        if self.result.is_error {
            return Found::Bad(HardError, clipped(&text, 200));
        }
        let documents = documents(self.result);
        if self.is_empty(&text, &documents) {
            return Found::Bad(Empty, "the answer has no content".into());
        }
        if text.chars().count() > self.longest {
            return Found::Bad(TooLong, format!("more than {} characters", self.longest));
        }
        if let Some(fault) = self.breach() {
            return Found::Bad(SchemaBreach, fault);
        }
        if let Some(why) = self.admitted(&text, &documents) {
            return Found::Bad(SoftError, why);
        }
        self.fine(&text, &documents)
    }

    /// Nothing to read and nothing in the fields.
    fn is_empty(&self, text: &str, documents: &Documents) -> bool {
        let structured = self.result.structured_content.as_ref();
        // A heading with nothing below it.
        let heads_nothing = text.trim_end().ends_with(':') && text.trim().lines().count() == 1;
        let no_text = text.trim().is_empty()
            || heads_nothing
            || !documents.texts.is_empty() && documents.texts.iter().all(is_bare) && documents.whole;
        // Servers wrap a text as `{"result": "[]"}`.
        let wrapped = |value: &Value| {
            let text = value
                .as_object()
                .filter(|fields| fields.len() == 1)
                .and_then(|fields| fields.get("result")?.as_str().map(str::trim));
            text.and_then(|text| serde_json::from_str(text).ok())
                .is_some_and(|inner: Value| !inner.is_string() && is_bare(&inner))
        };
        no_text && structured.is_none_or(|value| is_bare(value) || wrapped(value))
    }

    /// A declared output schema that the structured answer does not keep.
    fn breach(&self) -> Option<String> {
        let declared = mcpmill_core::json::of_text(self.output_schema?).ok()?;
        let schema = Schema::compile(&declared).ok()?;
        match self.result.structured_content.as_ref() {
            None => Some("an output schema is declared but no structured content came".into()),
            Some(value) => schema.faults(value, 1).into_iter().next(),
        }
    }

    fn admitted(&self, text: &str, documents: &Documents) -> Option<String> {
        let structured = self.result.structured_content.as_ref();
        let fields =
            documents.texts.iter().filter(|document| document.is_object() || documents.texts.len() == 1 || documents.whole);
        let mut told = structured.into_iter().chain(fields).filter_map(|document| admits(document, &self.asked));
        told.next().or_else(|| if documents.whole { None } else { failure(text, &self.asked) })
    }

    /// What remains when nothing says that it failed.
    fn fine(&self, text: &str, documents: &Documents) -> Found {
        let blocks = self.result.content.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_text = |block: &Value| block["type"] == "text";
        let said: Vec<&str> = blocks.iter().filter(|block| is_text(block)).filter_map(|block| block["text"].as_str()).collect();
        let fine_text = said.iter().all(|text| !self.asked.doubts(text));
        if fine_text && blocks.iter().any(|block| !is_text(block)) {
            let kind = blocks.iter().find_map(|block| block["type"].as_str()).unwrap_or("content");
            return Found::Sure(format!("it is {kind}"));
        }
        if documents.whole && documents.texts.iter().any(|document| document.is_object() || document.is_array()) {
            let doubted = documents.texts.iter().find_map(|document| doubt(document, &self.asked));
            return doubted.map_or_else(|| Found::Sure("its fields hold data and admit no failure".into()), Found::Open);
        }
        match fine(text, &self.asked) {
            Some(why) => Found::Sure(why.into()),
            None => Found::Open("a text that structure cannot tell".into()),
        }
    }
}

/// What a tool says of its failure, if it failed: by the flag of the protocol, or by the form of its answer.
pub(crate) fn failing(result: &ToolResult, tool: &str, arguments: &Map<String, Value>) -> Option<String> {
    if result.is_error {
        return Some(clipped(&result.text(), 200));
    }
    let shape = Shape { result, asked: Asked { tool, arguments }, output_schema: None, longest: usize::MAX };
    shape.admitted(&result.text(), &documents(result))
}

/// The JSON that the text blocks of an answer hold.
struct Documents {
    texts: Vec<Value>,
    /// Whether nothing else is in them.
    whole: bool,
}

/// Places in a text where JSON may begin behind prose.
const BEGINNINGS: usize = 3;

/// A text that is JSON, or a list or dictionary as Python prints it.
fn document(text: &str) -> Option<Value> {
    let printed = |text: &str| {
        let plain = text.starts_with(['{', '[']) && !text.contains(['"', '\\']);
        let json = plain.then(|| {
            text.replace('\'', "\"").replace(": None", ": null").replace(": True", ": true").replace(": False", ": false")
        });
        serde_json::from_str(&json?).ok()
    };
    serde_json::from_str(text).ok().or_else(|| printed(text))
}

fn documents(result: &ToolResult) -> Documents {
    let blocks = result.content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> =
        blocks.iter().filter_map(|block| block["text"].as_str()).filter(|text| !text.trim().is_empty()).collect();
    let whole: Vec<Value> = texts.iter().filter_map(|text| document(text.trim())).collect();
    if whole.len() == texts.len() && !whole.is_empty() {
        // A bare string or number is a text, not fields.
        let fields = whole.iter().all(|document| !document.is_string());
        return Documents { texts: whole, whole: fields };
    }
    let behind = |text: &&str| {
        let begins = text.match_indices(['{', '[']).take(BEGINNINGS);
        begins.filter_map(|(at, _)| serde_json::from_str(text[at..].trim_end()).ok()).find(Value::is_object)
    };
    Documents { texts: texts.iter().filter_map(behind).collect(), whole: false }
}
