//! What the free checks look at: the texts of a row, and the single values of its calls.

use mcpmill_core::record::Message;
use serde_json::{Map, Value};

use super::Case;
use crate::generate::held::Held;

/// How deep arguments are looked into.
const DEEPEST: usize = 12;
/// Values of one call that are looked at.
const MOST: usize = 500;

/// One value of a call that holds no others.
pub(super) struct Leaf<'a> {
    /// Where it stands, as a JSON pointer.
    pub(super) at: String,
    /// The name of the parameter or member that holds it.
    pub(super) name: String,
    pub(super) value: &'a Value,
    /// What the schema declares for it; null for what it does not speak of.
    pub(super) property: Value,
    /// Whether the schema itself names the value: of a list, as constant, default or example.
    pub(super) listed: bool,
}

/// The single values of a call in order.
pub(super) fn leaves<'a>(arguments: &'a Map<String, Value>, schema: &Value) -> Vec<Leaf<'a>> {
    let held = Held { schema, request: "", stated: &[], english: true };
    let mut out = Vec::new();
    for (name, value) in arguments {
        let place = Place { at: format!("/{name}"), name, property: &schema["properties"][name], listed: false, depth: 0 };
        walk(value, &place, &held, &mut out);
    }
    out
}

struct Place<'a> {
    at: String,
    name: &'a str,
    property: &'a Value,
    listed: bool,
    depth: usize,
}

fn walk<'a>(value: &'a Value, place: &Place<'_>, held: &Held<'_>, out: &mut Vec<Leaf<'a>>) {
    if place.depth > DEEPEST || out.len() >= MOST {
        return;
    }
    let property = held.open(place.property);
    let listed = place.listed || held.is_listed(value, place.property, 0) || is_example(value, &property);
    let inside = |at: String, name: &str, property: &Value, out: &mut Vec<Leaf<'a>>, item: &'a Value| {
        let place = Place { at, name, property, listed, depth: place.depth + 1 };
        walk(item, &place, held, out);
    };
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                inside(format!("{}/{i}", place.at), place.name, &property["items"], out, item);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                let known = property["properties"].get(key).unwrap_or(&property["additionalProperties"]);
                inside(format!("{}/{key}", place.at), key, known, out, item);
            }
        }
        _ => out.push(Leaf { at: place.at.clone(), name: place.name.to_owned(), value, property, listed }),
    }
}

fn is_example(value: &Value, property: &Value) -> bool {
    property["examples"].as_array().is_some_and(|all| all.contains(value)) || property.get("example") == Some(value)
}

impl<'a> Case<'a> {
    /// The conversation as far as it is known: as it was run, else as it was written.
    pub(super) fn messages(&self) -> &'a [Message] {
        self.trajectory.map_or(&self.sample.messages, |trajectory| &trajectory.messages)
    }

    /// What the user says, turn by turn; the instruction where no turn is written.
    pub(super) fn requests(&self) -> Vec<&'a str> {
        let said: Vec<&str> = self.messages().iter().filter_map(user).collect();
        if said.is_empty() { vec![self.sample.instruction.as_str()] } else { said }
    }

    /// What tools answered, in order.
    pub(super) fn responses(&self) -> Vec<&'a str> {
        let answer = |message: &'a Message| match message {
            Message::Tool { content, .. } => Some(content.as_str()),
            _ => None,
        };
        self.messages().iter().filter_map(answer).collect()
    }
}

fn user(message: &Message) -> Option<&str> {
    match message {
        Message::User { content } => Some(content),
        _ => None,
    }
}
