//! The object that was asked for, bare or as the arguments of a whole call.

use mcpmill_core::{
    edge::ToolSpec,
    reply::{self, Encoding, Reading, Repair},
    schema::{Schema, SchemaError},
    text::shown,
};
use serde_json::{Map, Value};

/// What calls of a tool have their arguments in.
const WRAPPERS: [&str; 3] = ["arguments", "parameters", "input"];
/// What a call says it is.
const KINDS: [&str; 3] = ["function", "tool_use", "tool_call"];
/// Faults that are told of a reply.
const TOLD: usize = 3;

/// What a reply must be: an object of a schema, which a model may also put into a call.
pub(super) struct Wanted {
    checker: Schema,
    schema: Value,
    /// What a call may name, each with the schema.
    tools: Vec<ToolSpec>,
}

/// How an object fits, from worst to best.
#[derive(PartialEq)]
enum Fit {
    /// It does not, and why.
    Not(String),
    /// Nothing forbids it, but it has keys that the schema does not name.
    Open,
    /// The schema names all of it.
    Named,
}

impl Wanted {
    /// An object of `schema`, which calls of these names may have as their arguments.
    pub(super) fn new(schema: &Value, names: impl IntoIterator<Item = String>) -> Result<Self, SchemaError> {
        let tool = |name| ToolSpec { name, description: String::new(), parameters: schema.clone() };
        let tools = names.into_iter().map(tool).collect();
        Ok(Self { checker: Schema::compile(schema)?, schema: schema.clone(), tools })
    }

    /// The object in `value`, or what is wrong with it. A call is unwrapped where its arguments alone are what was asked
    /// for; a tool may well take a `name` and `arguments` itself.
    pub(super) fn of(&self, value: Value) -> Result<Reading<Map<String, Value>>, String> {
        let call = self.call(&value);
        let Value::Object(bare) = value else {
            let call = call?.ok_or("the reply is JSON but no object")?;
            return self.checked(call);
        };
        let fit = self.fit(&bare);
        let bare = Reading { value: bare, repairs: Vec::new() };
        let is_fit = !matches!(fit, Fit::Not(_));
        let declared = bare.value.keys().all(|key| self.declares(key));
        match call {
            Ok(None) => {
                if let Fit::Not(why) = fit {
                    Err(why)
                } else {
                    Ok(bare)
                }
            }
            Err(_) if is_fit && (declared || self.is_free()) => Ok(bare),
            Err(why) => Err(why),
            Ok(Some(call)) if !(is_fit && declared) => self.checked(call),
            Ok(Some(call)) => match self.fit(&call.value) {
                Fit::Not(_) => Ok(bare),
                Fit::Named if fit == Fit::Open => Ok(call),
                _ => Err("the reply can be read as a whole call and as its arguments: both fit the schema".into()),
            },
        }
    }

    fn checked(&self, read: Reading<Map<String, Value>>) -> Result<Reading<Map<String, Value>>, String> {
        if let Fit::Not(why) = self.fit(&read.value) { Err(why) } else { Ok(read) }
    }

    /// The arguments of the one call that a value is, `None` when it is no call.
    fn call(&self, value: &Value) -> Result<Option<Reading<Map<String, Value>>>, String> {
        if !is_kind_of_call(value) {
            return Ok(None);
        }
        let read = reply::call(value, &self.tools).map_err(|refused| refused.to_string())?;
        let found = match read {
            Some(Reading { value, repairs }) => Some(Reading { value: value.arguments, repairs }),
            None => value.as_object().and_then(|object| self.keyed(object).or_else(|| self.nameless(object))),
        };
        Ok(found.map(|mut read| {
            if !read.repairs.contains(&Repair::CallShape) {
                read.repairs.push(Repair::CallShape);
            }
            read
        }))
    }

    /// The arguments below the name of a tool: `{"get_forecast": {…}}`.
    fn keyed(&self, object: &Map<String, Value>) -> Option<Reading<Map<String, Value>>> {
        let mut fields = object.iter();
        let (Some((key, written)), None) = (fields.next(), fields.next()) else { return None };
        let is_tool = self.tools.iter().any(|tool| tool.name == *key) && !self.declares(key);
        written.as_object().filter(|_| is_tool).map(|map| Reading { value: map.clone(), repairs: Vec::new() })
    }

    /// The arguments of a call that names no tool: `{"arguments": {…}}`. Where any key goes, that is no wrapper.
    fn nameless(&self, object: &Map<String, Value>) -> Option<Reading<Map<String, Value>>> {
        let wrapper = WRAPPERS.into_iter().find(|key| object.contains_key(*key) && !self.declares(key))?;
        let beside = |key: &str| matches!(key, "id" | "type") && !self.declares(key);
        let alone = object.keys().all(|key| key == wrapper || beside(key));
        if !alone || self.is_free() || object[wrapper].is_null() {
            return None;
        }
        reply::arguments(&object[wrapper], Encoding::Object).ok()
    }

    fn fit(&self, object: &Map<String, Value>) -> Fit {
        if let Some(key) = undeclared(object, &self.schema) {
            return Fit::Not(format!("the reply has `{}`, which the schema does not name", shown(key, 64)));
        }
        let value = Value::Object(object.clone());
        let faults = self.checker.faults(&value, TOLD);
        if !faults.is_empty() {
            return Fit::Not(faults.join("; "));
        }
        if is_named(&value, &self.schema) { Fit::Named } else { Fit::Open }
    }

    /// Whether the schema names this key of the object; of one that is put together from parts any part may.
    fn declares(&self, key: &str) -> bool {
        self.schema["properties"].get(key).is_some() || (has_parts(&self.schema) && names_somewhere(&self.schema, key))
    }

    /// Whether the schema names no key at all.
    fn is_free(&self) -> bool {
        !self.schema["properties"].is_object() && !has_parts(&self.schema)
    }
}

/// Whether a value, and what it holds where calls have their parts, says of itself nothing but that it is a call.
fn is_kind_of_call(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(is_kind_of_call),
        Value::Object(fields) => {
            let kind = fields.get("type");
            let below = ["function", "tool_calls"].into_iter().filter_map(|key| fields.get(key));
            kind.is_none_or(|kind| KINDS.iter().any(|known| kind == known)) && below.into_iter().all(is_kind_of_call)
        }
        _ => true,
    }
}

/// A key that a schema neither names nor lets in by a rule of its own. That nothing forbids it makes it no parameter.
fn undeclared<'a>(object: &'a Map<String, Value>, schema: &Value) -> Option<&'a str> {
    let properties = schema["properties"].as_object().filter(|_| !has_parts(schema) && !is_open(schema))?;
    object.keys().map(String::as_str).find(|key| !properties.contains_key(*key))
}

/// Whether a schema names every key of a value and of what lies in it, in so far as it names any there.
fn is_named(value: &Value, schema: &Value) -> bool {
    match value {
        Value::Object(object) => {
            let Some(properties) = schema["properties"].as_object().filter(|_| !has_parts(schema)) else { return true };
            let named = |(key, value): (&String, &Value)| properties.get(key).is_some_and(|schema| is_named(value, schema));
            object.iter().all(named)
        }
        Value::Array(items) => items.iter().all(|item| is_named(item, &schema["items"])),
        _ => true,
    }
}

/// Whether a schema lets in keys that it does not name.
fn is_open(schema: &Value) -> bool {
    ["additionalProperties", "patternProperties"].iter().any(|key| matches!(&schema[*key], Value::Bool(true) | Value::Object(_)))
}

/// Whether a schema is put together from parts: its checker alone can tell what it names.
fn has_parts(schema: &Value) -> bool {
    ["$ref", "allOf", "anyOf", "oneOf", "if"].iter().any(|key| !schema[*key].is_null())
}

/// Whether a property has this name anywhere in a schema.
fn names_somewhere(schema: &Value, key: &str) -> bool {
    match schema {
        Value::Object(fields) => {
            schema["properties"].get(key).is_some() || fields.values().any(|below| names_somewhere(below, key))
        }
        Value::Array(items) => items.iter().any(|item| names_somewhere(item, key)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is read of `raw` where the arguments of a tool were asked for, or what is wrong with it.
    fn told(tool: &str, schema: &Value, raw: Value) -> Result<(Value, Vec<Repair>), String> {
        let wanted = Wanted::new(schema, [tool.to_owned(), "call".to_owned()]).unwrap();
        wanted.of(raw).map(|read| (Value::Object(read.value), read.repairs))
    }

    fn forecast() -> Value {
        json!({"type": "object", "properties": {"city": {"type": "string"}}})
    }

    #[test]
    fn a_whole_call_of_any_usual_shape_is_unwrapped() {
        let city = json!({"city": "Lecco"});
        let named = json!({"name": "get_forecast", "arguments": city});
        let text = json!({"name": "get_forecast", "arguments": city.to_string()});
        for (raw, also) in [
            (named.clone(), None),
            (json!({"name": "call", "parameters": city}), None),
            (json!({"type": "tool_use", "id": "x", "name": "get_forecast", "input": city}), None),
            (json!({"arguments": city}), None),
            (json!({"type": "function", "parameters": city}), None),
            (json!({"arguments": city.to_string()}), Some(Repair::DoubleEncoding)),
            (text.clone(), Some(Repair::DoubleEncoding)),
            (json!({"type": "function", "function": text}), None),
            (json!([named]), None),
            (json!({"tool_calls": [{"type": "function", "id": "x", "function": text}]}), None),
            (json!({"tool": "get_forecast", "arguments": city}), None),
            (json!({"name": "functions.get_forecast", "arguments": city}), None),
            (json!({"get_forecast": city}), None),
        ] {
            let (value, mut repairs) = told("get_forecast", &forecast(), raw.clone()).unwrap();
            repairs.sort_unstable();
            assert_eq!((value, repairs), (city.clone(), also.into_iter().chain([Repair::CallShape]).collect()), "{raw}");
        }
        // A tool without parameters may take anything by its schema, but not its own call.
        let call = json!({"name": "list_all", "arguments": {}});
        assert_eq!(told("list_all", &json!({"type": "object"}), call), Ok((json!({}), vec![Repair::CallShape])));
    }

    #[test]
    fn what_is_no_one_call_of_the_tool_is_refused() {
        let city = json!({"city": "Lecco"});
        let call = json!({"name": "get_forecast", "arguments": city});
        for (bad, why) in [
            (json!({"name": "get_fore", "arguments": city}), "`get_fore` is no tool"),
            (json!({"name": "functions.get_fore", "arguments": city}), "`functions.get_fore` is no tool"),
            (json!({"get_fore": city}), "`get_fore`, which the schema does not name"),
            (json!({"city": "Lecco", "days": 3}), "`days`, which the schema does not name"),
            (json!({"name": "get_forecast", "arguments": {"town": "Lecco"}}), "`town`, which"),
            (json!({"arguments": city, "city": "Bergamo"}), "`arguments`, which"),
            (json!({"type": "object", "name": "get_forecast", "arguments": city}), "which the schema does not name"),
            (json!({"type": "museum", "arguments": city}), "which the schema does not name"),
            (json!({"name": "get_forecast", "arguments": {"city": 5}}), "/city"),
            (json!({"name": "get_forecast", "arguments": "Lecco"}), "cannot be read"),
            (json!([call, call]), "2 calls in place of one"),
            (json!({"tool_calls": [call, call]}), "2 calls in place of one"),
            (json!([city]), "no object"),
            (json!([]), "no object"),
        ] {
            let told = told("get_forecast", &forecast(), bad.clone()).unwrap_err();
            assert!(told.contains(why), "{bad}: {told}");
        }
    }

    #[test]
    fn what_a_schema_takes_itself_is_no_wrapper_and_what_it_lets_in_no_stranger() {
        let own = json!({"type": "object", "properties": {"arguments": {"type": "object"}}});
        assert_eq!(told("run", &own, json!({"arguments": {"a": 1}})), Ok((json!({"arguments": {"a": 1}}), vec![])));
        let mut open = forecast();
        open["additionalProperties"] = json!({"type": "integer"});
        let more = json!({"city": "Lecco", "days": 3});
        assert_eq!(told("get_forecast", &open, more.clone()), Ok((more, vec![])));
        assert!(told("get_forecast", &open, json!({"city": "Lecco", "days": "3"})).is_err());
        open["additionalProperties"] = json!(true);
        let call = json!({"name": "get_forecast", "arguments": {"city": "Lecco", "zip": 1}});
        assert_eq!(told("get_forecast", &open, call).unwrap().0, json!({"city": "Lecco", "zip": 1}));
        assert!(told("get_forecast", &open, json!({"name": "get_forecast", "arguments": {"city": 5}})).is_err());
        // Where any key goes, only a call of the tool's own name is one.
        for any in [json!({"name": "Ada", "input": {}}), json!({"input": {"a": 1}})] {
            assert_eq!(told("store", &json!({"type": "object"}), any.clone()), Ok((any, vec![])));
        }
    }

    #[test]
    fn a_tool_that_takes_a_name_and_arguments_is_unwrapped_where_only_that_can_be_meant() {
        let greet = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let call = json!({"name": "greet_person", "arguments": {"name": "Ada"}});
        assert_eq!(told("greet_person", &greet, call), Ok((json!({"name": "Ada"}), vec![Repair::CallShape])));
        let run = |arguments: Value| {
            let properties = json!({"name": {"type": "string"}, "arguments": arguments});
            json!({"type": "object", "properties": properties, "required": ["name"]})
        };
        let flag = run(json!({"type": "object", "properties": {"flag": {"type": "boolean"}}}));
        let inner = json!({"name": "x", "arguments": {}});
        let call = json!({"name": "run_process", "arguments": inner});
        assert_eq!(told("run_process", &flag, call.clone()), Ok((inner, vec![Repair::CallShape])));
        for own in
            [json!({"name": "x", "arguments": {"flag": true}}), json!({"name": "run_process", "arguments": {"flag": true}})]
        {
            assert_eq!(told("run_process", &flag, own.clone()), Ok((own, vec![])));
        }
        // Both fit: what is taken by a schema that names nothing there, or names it in a part, may be meant.
        let any = run(json!({"type": "object"}));
        let mut parts = any.clone();
        parts["allOf"] = json!([{"required": ["name"]}]);
        for schema in [any, parts] {
            let both = told("run_process", &schema, call.clone()).unwrap_err();
            assert!(both.contains("both fit"), "{both}");
        }
    }
}
