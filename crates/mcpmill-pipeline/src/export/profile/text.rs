//! Conversations as one text, by a template.

use mcpmill_core::record::Message;
use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;
use serde_json::{Value, ser::Formatter};

use super::cut::Turn;

/// Steps of one rendering: enough for the longest conversation, and an end to a loop without one.
const FUEL: u64 = 1_000_000;
/// The one template of the environment.
const NAME: &str = "text";

/// A template of conversations.
#[derive(Debug)]
pub struct Text(Environment<'static>);

/// What the template sees of a turn. JSON comes as text, so that members keep their order and numbers their digits.
#[derive(Serialize)]
struct Seen<'a> {
    role: &'static str,
    content: &'a str,
    calls: Vec<SeenCall<'a>>,
    /// The tool that answers.
    name: &'a str,
}

#[derive(Serialize)]
struct SeenCall<'a> {
    name: &'a str,
    arguments: String,
    /// Name and arguments as one object.
    json: String,
}

impl Text {
    /// A template that gets `tools` (a list of JSON texts), `messages` and `goes_on` (the assistant's turn follows).
    ///
    /// # Errors
    /// It is no template.
    pub fn new(template: &str) -> Result<Self, String> {
        let mut env = Environment::new();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_fuel(Some(FUEL));
        env.add_template_owned(NAME, template.to_owned()).map_err(|e| format!("`template`: {e:#}"))?;
        Ok(Self(env))
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// The template fails on it, or the tools are no list.
    pub fn render(&self, tools: &str, turns: &[Turn<'_>], goes_on: bool) -> Result<String, &'static str> {
        let tools: Vec<Value> = serde_json::from_str(tools).map_err(|_| "its tools are no JSON")?;
        let tools: Vec<String> = tools.iter().map(spaced).collect();
        let messages: Vec<Seen<'_>> = turns.iter().map(seen).collect();
        let template = self.0.get_template(NAME).map_err(|_| "no template")?;
        template.render(context! { tools, messages, goes_on }).map_err(|_| "the template fails on it")
    }
}

fn seen<'a>(turn: &Turn<'a>) -> Seen<'a> {
    let plain = |role, content| Seen { role, content, calls: Vec::new(), name: "" };
    match turn.message {
        Message::System { content } => plain("system", content),
        Message::User { content } => plain("user", content),
        Message::Tool { content, name, .. } => Seen { name, ..plain("tool", content) },
        Message::Assistant { content, tool_calls } => {
            let calls = tool_calls.iter().map(|call| {
                let arguments = spaced(&Value::Object(call.function.arguments.clone()));
                let name = spaced(&Value::String(call.function.name.clone()));
                let json = format!("{{\"name\": {name}, \"arguments\": {arguments}}}");
                SeenCall { name: &call.function.name, arguments, json }
            });
            Seen { calls: calls.collect(), ..plain("assistant", content.as_deref().unwrap_or_default()) }
        }
    }
}

/// JSON with a space after commas and colons, as Python writes it: chat templates are written with Python, and models
/// have learned tokens with that space.
fn spaced(value: &Value) -> String {
    let mut out = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut out, Spaced);
    // Writing a value that was read to memory does not fail.
    if value.serialize(&mut writer).is_err() {
        return value.to_string();
    }
    String::from_utf8(out).unwrap_or_else(|_| value.to_string())
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
