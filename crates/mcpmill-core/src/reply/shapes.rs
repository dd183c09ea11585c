//! JSON values that are calls.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Encoding, Reading, Refused, Repair, Why, arguments, find::ambiguous};
use crate::{edge::ToolSpec, record::FunctionCall};

/// Where a call keeps its arguments.
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "input"];
/// Where a call says which tool it is of.
const NAMES: [&str; 2] = ["name", "tool"];
/// What else a call may carry.
const BESIDE: [&str; 3] = ["id", "type", "index"];
/// What some model families put before the name of every tool.
const NAMESPACE: &str = "functions.";

/// Calls of one reply. A model that makes more is caught in a loop.
const MOST_CALLS: usize = 128;

/// Whether `calls` calls can be meant.
///
/// # Errors
/// There are too many.
pub(super) fn few(calls: usize) -> Result<(), Refused> {
    let refuse = || Refused::new(Why::Exhausted, format!("the reply makes more than {MOST_CALLS} calls"));
    if calls > MOST_CALLS { Err(refuse()) } else { Ok(()) }
}

/// Tools that may be called.
#[derive(Clone, Copy)]
pub(super) struct Offered<'a>(pub(super) &'a [ToolSpec]);

impl<'a> Offered<'a> {
    pub(super) fn get(self, name: &str) -> Option<&'a ToolSpec> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// A call of `name`.
    ///
    /// # Errors
    /// No such tool is offered.
    pub(super) fn call(self, name: &str, arguments: Map<String, Value>) -> Result<FunctionCall, Refused> {
        self.known(name)?;
        Ok(FunctionCall { name: name.to_owned(), arguments })
    }

    pub(super) fn known(self, name: &str) -> Result<&'a ToolSpec, Refused> {
        let refuse = || Refused::new(Why::NotOffered, format!("`{}` is no tool that was offered", crate::text::shown(name, 64)));
        self.get(name).ok_or_else(refuse)
    }

    /// The tool that a call names, in a namespace or not; a tool that is offered with the whole name goes first.
    fn meant(self, name: &str) -> Result<&'a ToolSpec, Refused> {
        let bare = name.strip_prefix(NAMESPACE).and_then(|bare| self.get(bare));
        self.get(name).or(bare).map_or_else(|| self.known(name), Ok)
    }

    /// The calls that `value` is, `None` when it is something else. Inside tags (`tagged`) it can be nothing else.
    ///
    /// # Errors
    /// A call names no offered tool, has arguments that cannot be read, or stands beside what is none.
    pub(super) fn in_value(
        self,
        value: &Value,
        tagged: bool,
        repairs: &mut BTreeSet<Repair>,
    ) -> Result<Option<Vec<FunctionCall>>, Refused> {
        match value {
            Value::Array(items) => self.in_list(items, tagged, repairs),
            Value::Object(fields) => match wrapped(fields) {
                Some(calls) => {
                    repairs.insert(Repair::CallShape);
                    self.in_list(calls, true, repairs)
                }
                None => Ok(self.in_object(fields, tagged, repairs)?.map(|call| vec![call])),
            },
            _ => Ok(None),
        }
    }

    fn in_list(
        self,
        items: &[Value],
        tagged: bool,
        repairs: &mut BTreeSet<Repair>,
    ) -> Result<Option<Vec<FunctionCall>>, Refused> {
        let mut calls = Vec::new();
        for item in items {
            let Value::Object(fields) = item else { continue };
            calls.extend(self.in_object(fields, tagged, repairs)?);
            few(calls.len())?;
        }
        if !calls.is_empty() && calls.len() < items.len() {
            return Err(ambiguous("a list holds calls and what is none"));
        }
        Ok(Some(calls).filter(|calls| !calls.is_empty()))
    }

    fn in_object(
        self,
        fields: &Map<String, Value>,
        tagged: bool,
        repairs: &mut BTreeSet<Repair>,
    ) -> Result<Option<FunctionCall>, Refused> {
        let beside = |key: &str| BESIDE.contains(&key) || NAMES.contains(&key);
        let (function, told) = match fields.get("function") {
            Some(Value::Object(function)) if fields.keys().all(|key| key == "function" || beside(key)) => {
                repairs.insert(Repair::CallShape);
                (function, Encoding::Text)
            }
            _ => (fields, Encoding::Object),
        };
        let sure = tagged || told == Encoding::Text;
        let mut names = NAMES.iter().filter_map(|key| function.get(*key));
        let (Some(Value::String(name)), None) = (names.next(), names.next()) else { return Ok(None) };
        if !function.keys().all(|key| ARGUMENTS.contains(&key.as_str()) || beside(key)) {
            return Ok(None);
        }
        let mut given = ARGUMENTS.iter().filter_map(|key| Some((*key, function.get(*key)?)));
        let written = match (given.next(), given.next()) {
            (Some(_), Some(_)) => {
                return Err(ambiguous(format!("the call of `{}` has arguments twice", crate::text::shown(name, 64))));
            }
            (Some((key, written)), None) => {
                if key != "arguments" {
                    repairs.insert(Repair::CallShape);
                }
                written
            }
            (None, _) if sure => &Value::Null,
            (None, _) => return Ok(None),
        };
        let may_be = written.is_object() || written.is_string() || written.is_null();
        if !(sure || may_be) {
            return Ok(None);
        }
        let tool = self.meant(name)?;
        if !function.contains_key("name") || tool.name != *name {
            repairs.insert(Repair::CallShape);
        }
        let Reading { value, repairs: more } = arguments(written, told)
            .map_err(|refused| Refused::new(refused.why, format!("the call of `{name}`: {}", refused.detail)))?;
        if is_definition(&value, tool) {
            return Err(ambiguous(format!("the reply repeats what the tool `{name}` is, and calls nothing")));
        }
        repairs.extend(more);
        Ok(Some(FunctionCall { name: tool.name.clone(), arguments: value }))
    }
}

/// The calls of an OpenAI message.
fn wrapped(fields: &Map<String, Value>) -> Option<&Vec<Value>> {
    let rest = |key: &String| matches!(key.as_str(), "tool_calls" | "role" | "content");
    fields.get("tool_calls").and_then(Value::as_array).filter(|_| fields.keys().all(rest))
}

/// Whether the arguments are the schema of arguments.
fn is_definition(arguments: &Map<String, Value>, tool: &ToolSpec) -> bool {
    let own = tool.parameters["properties"].get("properties").is_some();
    arguments.get("type").is_some_and(|kind| kind == "object")
        && arguments.get("properties").is_some_and(Value::is_object)
        && !own
}
