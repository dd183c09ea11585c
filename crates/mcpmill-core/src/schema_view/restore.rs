//! The way back: arguments made under a view become arguments of the tool itself.

use serde_json::{Map, Value};

use super::{View, walk::escaped};

/// What a value at one place of the view needs on its way back.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Way {
    /// The property's own name.
    pub name: Option<String>,
    /// `null` stands for a property that is not given.
    pub drop_null: bool,
    /// The value is JSON text of what the tool takes.
    pub json: bool,
    /// Values of an `enum` that were shown as text.
    pub values: Vec<Value>,
}

impl View {
    /// The arguments of the tool itself for `arguments` that a model gave under this view.
    ///
    /// What the view does not know is handed on as it is: whether the result fits the tool's own
    /// schema is for [`Schema`](crate::schema::Schema) to say.
    pub fn restore(&self, arguments: Value) -> Value {
        self.back(&self.schema, arguments, "")
    }

    fn back(&self, schema: &Value, value: Value, at: &str) -> Value {
        if let Some(way) = self.ways.get(at) {
            if let (true, Value::String(text)) = (way.json, &value) {
                return serde_json::from_str(text).unwrap_or(value);
            }
            let shown = value
                .as_str()
                .and_then(|text| way.values.iter().find(|v| !v.is_string() && super::finish::as_enum_text(v) == *text));
            if let Some(own) = shown {
                return own.clone();
            }
        }
        match value {
            Value::Object(map) => Value::Object(self.back_object(schema, map, at)),
            Value::Array(list) => {
                let branch = self.branch(schema, &Value::Array(list.clone()), at);
                let (schema, at) = branch.unwrap_or((schema, at.to_owned()));
                let each = list.into_iter().enumerate().map(|(i, item)| match schema["prefixItems"].get(i) {
                    Some(place) => self.back(place, item, &format!("{at}/prefixItems/{i}")),
                    None => self.back(&schema["items"], item, &format!("{at}/items")),
                });
                Value::Array(each.collect())
            }
            scalar => match self.branch(schema, &scalar, at) {
                Some((branch, at)) => self.back(branch, scalar, &at),
                None => scalar,
            },
        }
    }

    fn back_object(&self, schema: &Value, map: Map<String, Value>, at: &str) -> Map<String, Value> {
        let whole = Value::Object(map.clone());
        let branch = self.branch(schema, &whole, at);
        let mut out = Map::new();
        let mut rest = Map::new();
        for (name, value) in map {
            let Some(property) = schema["properties"].get(&name) else {
                rest.insert(name, value);
                continue;
            };
            let below = format!("{at}/properties/{}", escaped(&name));
            let way = self.ways.get(&below);
            if value.is_null() && way.is_some_and(|w| w.drop_null) {
                continue;
            }
            let own = way.and_then(|w| w.name.clone()).unwrap_or(name);
            out.insert(own, self.back(property, value, &below));
        }
        match branch {
            Some((branch, below)) => out.extend(self.back_object(branch, rest, &below)),
            None => {
                let below = format!("{at}/additionalProperties");
                out.extend(
                    rest.into_iter().map(|(name, value)| (name, self.back(&schema["additionalProperties"], value, &below))),
                );
            }
        }
        out
    }

    /// The branch of a choice that a value was made under: the first it fits.
    fn branch<'s>(&self, schema: &'s Value, value: &Value, at: &str) -> Option<(&'s Value, String)> {
        ["anyOf", "oneOf", "allOf"].into_iter().find_map(|keyword| {
            let branches = schema[keyword].as_array()?;
            let (i, branch) = branches.iter().enumerate().find(|(_, b)| fits(b, value))?;
            Some((branch, format!("{at}/{keyword}/{i}")))
        })
    }
}

/// Whether a value has the shape of a schema: types, listed values, required and closed properties.
fn fits(schema: &Value, value: &Value) -> bool {
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    };
    let typed = match &schema["type"] {
        Value::String(kind) => is(kind) || (value.is_null() && schema["nullable"] == true),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    let listed = schema["enum"].as_array().is_none_or(|values| values.contains(value))
        && schema.get("const").is_none_or(|own| own == value);
    let choice = schema["anyOf"].as_array().is_none_or(|branches| branches.iter().any(|b| fits(b, value)));
    let shaped = match value {
        Value::Object(map) => {
            let names = crate::schema::required(schema);
            let own = &schema["properties"];
            names.iter().all(|name| map.contains_key(name))
                && map.iter().all(|(name, v)| own.get(name).map_or(schema["additionalProperties"] != false, |s| fits(s, v)))
        }
        Value::Array(list) => list.iter().all(|item| fits(&schema["items"], item)),
        _ => true,
    };
    typed && listed && choice && shaped
}
