//! Export profiles: the same rows in the shape that one trainer reads, with its settings beside them.
//!
//! A profile is one file. What it may say of the rows is here; how a conversation is cut so that no masked turn is
//! learned is in `cut`, how messages are written in `shape` and `text`.

mod cut;
mod files;
mod shape;
mod text;

use std::collections::BTreeMap;

use mcpmill_core::record::{ExportRow, Message};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

pub use files::{Told, Training};

use cut::Piece;
use text::Text;

/// How one trainer wants the rows, and what it is told beside them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name: the file's name.
    #[serde(skip)]
    pub name: String,
    /// One line for people.
    pub title: String,
    /// How messages are written.
    pub shape: Shape,
    /// What one written row holds.
    pub unit: Unit,
    /// The member that says whether a turn is learned. Without it a conversation with a masked turn is left out.
    mask: Option<Mask>,
    /// Whether arguments of calls are objects or texts of JSON.
    #[serde(default)]
    arguments: Form,
    /// Whether the offered tools are a list or a text of JSON.
    #[serde(default)]
    tools: Form,
    /// Turns without text hold `null`, and not an empty text.
    #[serde(default)]
    null_content: bool,
    /// Answers of tools name the tool.
    #[serde(default)]
    tool_names: bool,
    /// What stands between the answers of parallel calls, where they are one turn.
    #[serde(default)]
    joint: String,
    /// What stands around the calls of a turn that says something, too. Without it such turns are left out, where
    /// calls and text are not written apart.
    call_marks: Option<[String; 2]>,
    /// Texts that mean something to the model: a row whose own words hold one is left out.
    #[serde(default)]
    marks: Vec<String>,
    /// Columns of the dataset that are kept.
    #[serde(default)]
    keep: Vec<Column>,
    /// Members that every row has.
    #[serde(default)]
    constants: Map<String, Value>,
    /// The text of a conversation, as a Jinja template.
    template: Option<String>,
    /// Files written beside the rows, as Jinja templates.
    files: BTreeMap<String, String>,
    #[serde(skip)]
    text: Option<Text>,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// `role` and `content`, with `tool_calls` in the assistant's turns.
    Openai,
    /// `from` and `value`, with `function_call` and `observation`.
    Sharegpt,
    /// `role` and `content`, each call a message of its own.
    ToolCall,
    /// One text, by the profile's template.
    Text,
}

/// What one written row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A conversation up to the last turn that is learned.
    Conversation,
    /// As many turns as are learned without a masked one between them, and all before them as the prompt.
    Stretch,
    /// One turn that is learned, and all before it as the prompt.
    Turn,
}

/// The member that says whether a turn is learned, and its two values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mask {
    field: String,
    learned: Value,
    masked: Value,
}

/// How JSON is written inside JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Form {
    /// As a text.
    #[default]
    Text,
    /// As it is.
    Json,
}

/// A column of the dataset that a profile can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Column {
    Id,
    Kind,
    Language,
    Server,
    Licence,
}

/// Why a profile cannot be used.
#[derive(Debug, Error)]
#[error("failed to read profile `{name}`: {detail}")]
pub struct ProfileError {
    /// The profile.
    pub name: String,
    /// What is wrong with it.
    pub detail: String,
}

impl Profile {
    /// Reads a profile's file.
    ///
    /// # Errors
    /// It is no TOML, a field is missing or unknown, or two fields do not go together.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let fail = |detail: String| ProfileError { name: name.to_owned(), detail };
        let mut profile: Self = toml::from_str(text).map_err(|e| fail(e.message().to_owned()))?;
        profile.name = name.to_owned();
        if let Some(fault) = profile.fault() {
            return Err(fail(fault));
        }
        profile.text = profile.template.as_deref().map(Text::new).transpose().map_err(fail)?;
        // A template with a mistake must not be found out after the rows are written.
        profile.files(&Told::default())?;
        Ok(profile)
    }

    fn fault(&self) -> Option<String> {
        let odd_file = self.files.keys().find(|file| !is_plain(file));
        if let Some(file) = odd_file {
            return Some(format!("`{file}` is no plain name of a file, or one that rows are written to"));
        }
        if !self.files.contains_key("README.md") {
            return Some("`[files]` has no `README.md`, which says how to train".into());
        }
        if self.marks.iter().any(String::is_empty) {
            return Some("`marks` holds an empty text".into());
        }
        let odd = match (self.shape, self.unit) {
            (Shape::Text, _) if self.template.is_none() => "the shape `text` has a `template`",
            (Shape::Openai | Shape::Sharegpt | Shape::ToolCall, _) if self.template.is_some() => {
                "only the shape `text` has a `template`"
            }
            (Shape::Text | Shape::Sharegpt, Unit::Stretch) => "`unit = \"stretch\"` needs a shape of messages",
            (Shape::Text | Shape::Sharegpt, _) if self.mask.is_some() => "`mask` needs a shape of messages",
            (_, Unit::Stretch | Unit::Turn) if self.mask.is_some() => "`mask` needs `unit = \"conversation\"`",
            _ => return None,
        };
        Some(odd.into())
    }

    /// A row of the dataset as rows of this profile.
    ///
    /// # Errors
    /// Why the row is left out: the format cannot say what the row says.
    pub fn rows(&self, row: &ExportRow) -> Result<Vec<Value>, &'static str> {
        if self.marks.iter().any(|mark| holds(row, mark)) {
            return Err("a mark of the format stands in its words");
        }
        let messages = cut::in_order(row)?;
        if self.unit == Unit::Conversation && self.mask.is_none() && cut::is_masked(&messages) {
            return Err("a masked turn that the format cannot mask");
        }
        cut::pieces(&messages, self.unit)?.iter().map(|piece| self.row(row, piece)).collect()
    }

    fn row(&self, row: &ExportRow, piece: &Piece<'_>) -> Result<Value, &'static str> {
        let mut written = Map::new();
        for column in &self.keep {
            let (name, value) = column.of(row);
            written.insert(name.into(), value);
        }
        match (self.shape, self.unit) {
            (Shape::Sharegpt, _) => {
                written.insert("conversations".into(), shape::sharegpt(self, piece.all())?);
            }
            (Shape::Text, Unit::Conversation) => {
                written.insert("text".into(), self.rendered(row, piece.all(), false)?.into());
            }
            (Shape::Text, _) => {
                let prompt = self.rendered(row, piece.prompt(), true)?;
                let whole = self.rendered(row, piece.all(), false)?;
                let rest = whole.strip_prefix(&prompt).ok_or("the template ends a prompt otherwise than it goes on")?;
                let completion = rest.to_owned();
                written.insert("prompt".into(), prompt.into());
                written.insert("completion".into(), completion.into());
            }
            (_, Unit::Conversation) => {
                written.insert("messages".into(), self.messages(piece.all()));
            }
            _ => {
                written.insert("prompt".into(), self.messages(piece.prompt()));
                written.insert("completion".into(), self.messages(piece.completion()));
            }
        }
        // A text holds its tools.
        if self.shape != Shape::Text {
            written.insert("tools".into(), self.tools(row)?);
        }
        written.extend(self.constants.clone());
        Ok(Value::Object(written))
    }

    fn messages(&self, messages: &[cut::Turn<'_>]) -> Value {
        let written = messages.iter().flat_map(|turn| match self.shape {
            Shape::ToolCall => shape::tool_call(self, turn),
            _ => vec![shape::openai(self, turn)],
        });
        Value::Array(written.collect())
    }

    fn tools(&self, row: &ExportRow) -> Result<Value, &'static str> {
        match self.tools {
            Form::Text => Ok(row.tools.as_str().into()),
            Form::Json => serde_json::from_str(&row.tools).map_err(|_| "its tools are no JSON"),
        }
    }

    fn rendered(&self, row: &ExportRow, turns: &[cut::Turn<'_>], goes_on: bool) -> Result<String, &'static str> {
        self.text.as_ref().map_or(Err("no template"), |text| text.render(&row.tools, turns, goes_on))
    }
}

impl Column {
    fn of(self, row: &ExportRow) -> (&'static str, Value) {
        match self {
            Self::Id => ("id", json!(row.id)),
            Self::Kind => ("kind", json!(row.kind)),
            Self::Language => ("language", json!(row.language)),
            Self::Server => ("server", json!(row.server)),
            Self::Licence => ("licence", json!(row.licence)),
        }
    }
}

/// A name without folders, and none of the files of rows.
fn is_plain(file: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !file.is_empty() && !file.starts_with('.') && file.chars().all(letter) && !file.ends_with(".jsonl")
}

/// Whether the words of a row hold a text. Values and names of arguments are looked at as the model would see them.
fn holds(row: &ExportRow, mark: &str) -> bool {
    let within = |message: &Message| {
        let (Message::System { content } | Message::User { content } | Message::Tool { content, .. }) = message else {
            let Message::Assistant { content, tool_calls } = message else { return false };
            let called = |call: &mcpmill_core::record::ToolCall| Value::Object(call.function.arguments.clone());
            return content.as_ref().is_some_and(|text| text.contains(mark))
                || tool_calls.iter().any(|call| says(&called(call), mark));
        };
        content.contains(mark)
    };
    let tools = || serde_json::from_str(&row.tools).map_or_else(|_| row.tools.contains(mark), |tools| says(&tools, mark));
    row.messages.iter().any(within) || tools()
}

fn says(value: &Value, mark: &str) -> bool {
    match value {
        Value::String(text) => text.contains(mark),
        Value::Array(items) => items.iter().any(|item| says(item, mark)),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains(mark) || says(item, mark)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests;
