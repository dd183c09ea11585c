//! The last step for one schema of a view, when those below it are done: types, objects, choices.

use serde_json::{Map, Value, json};

use super::{
    Change, Provider, Reason, rules,
    walk::{Place, Walk, escaped},
};

/// The types of JSON Schema in the order in which a choice lists them.
const KINDS: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];

impl Walk<'_> {
    /// The end of a schema that the walk did not go into.
    pub(super) fn finish_cut(&mut self, map: Map<String, Value>, place: Place<'_>) -> Value {
        let whole = matches!(map.get("type").and_then(Value::as_str), None | Some("object" | "array"));
        if self.provider.is_narrow() && whole && !place.is_root() { self.as_text(map, place) } else { self.finish(map, place) }
    }

    pub(super) fn finish(&mut self, mut map: Map<String, Value>, place: Place<'_>) -> Value {
        if place.is_root() {
            self.root_is_object(&mut map, place);
        }
        if self.provider.is_narrow() {
            return self.narrow(map, place);
        }
        let is_array = types(&map).iter().any(|t| t == "array");
        if is_array && self.provider == Provider::OpenAi && !map.contains_key("items") && !map.contains_key("prefixItems") {
            self.note(place.at, Change::AddedItems);
            map.insert("items".into(), json!({}));
        }
        Value::Object(map)
    }

    fn root_is_object(&mut self, map: &mut Map<String, Value>, place: Place<'_>) {
        match map.get("type") {
            Some(kind) if kind == "object" => {}
            None => self.note(place.at, Change::AddedType("object".into())),
            Some(_) => self.note(place.at, Change::RootNotObject),
        }
        map.insert("type".into(), json!("object"));
        for keyword in ["enum", "const", "not"] {
            if map.remove(keyword).is_some() {
                self.note(place.at, Change::RemovedKeyword(keyword.into()));
            }
        }
        if !map.get("properties").is_some_and(Value::is_object) {
            self.note(place.at, Change::AddedProperties);
            map.insert("properties".into(), json!({}));
        }
    }

    /// OpenAI strict and Gemini: one type for every value, a list of properties for every object.
    fn narrow(&mut self, mut map: Map<String, Value>, place: Place<'_>) -> Value {
        self.one_way_of_choice(&mut map, place);
        if map.contains_key("const") && self.provider == Provider::Gemini {
            let value = map.remove("const").unwrap_or_default();
            self.note(place.at, Change::ConstToEnum);
            map.insert("enum".into(), json!([value]));
        }
        if map.contains_key("anyOf") {
            return self.choice(map, place);
        }
        let mut kinds = types(&map);
        if kinds.is_empty() {
            kinds = inferred(&map);
            if let [kind] = kinds.as_slice() {
                self.note(place.at, Change::AddedType(kind.clone()));
            }
        }
        if kinds.is_empty() {
            self.note(place.at, Change::AnyToScalars);
            map.insert("anyOf".into(), json!([{"type": "string"}, {"type": "number"}, {"type": "boolean"}]));
            return self.choice(map, place);
        }
        let null = kinds.iter().any(|k| k == "null") && kinds.len() > 1;
        kinds.retain(|k| !null || k != "null");
        match kinds.as_slice() {
            [kind] => self.of_kind(map, &kind.clone(), null, place),
            _ => self.split(map, &kinds, null, place),
        }
    }

    /// A choice beside a list of properties or a scalar type only narrows it and is left out; beside a
    /// bare `object` it says what the object is.
    fn one_way_of_choice(&mut self, map: &mut Map<String, Value>, place: Place<'_>) {
        let is_object = map.get("type").is_some_and(|t| t == "object");
        let listed = map.get("properties").and_then(Value::as_object).is_some_and(|p| !p.is_empty());
        let typed = map.get("type").is_some_and(Value::is_string) && !is_object;
        if !map.contains_key("anyOf") {
            return;
        }
        if listed || typed || place.is_root() {
            map.remove("anyOf");
            self.note(place.at, Change::RemovedKeyword("anyOf".into()));
            let below = format!("{}/anyOf", place.at);
            self.ways.retain(|pointer, _| !pointer.starts_with(&below));
            self.alterations.retain(|a| !a.pointer.starts_with(&below));
        } else {
            ["type", "required", "additionalProperties"].into_iter().for_each(|k| drop(map.remove(k)));
        }
    }

    fn choice(&mut self, mut map: Map<String, Value>, place: Place<'_>) -> Value {
        if self.provider == Provider::OpenAiStrict {
            map.retain(|k, _| matches!(k.as_str(), "anyOf" | "title" | "description"));
            return Value::Object(map);
        }
        // Gemini takes nothing beside `anyOf`, and no branch of type null.
        let branches = map.get("anyOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_null = |b: &Value| b["type"] == "null";
        let null = branches.iter().any(is_null);
        let mut kept: Vec<Value> = Vec::new();
        for (i, branch) in branches.iter().enumerate().filter(|(_, b)| !is_null(b)) {
            self.rebase(&format!("{}/anyOf/{i}", place.at), &format!("{}/anyOf/{}", place.at, kept.len()));
            kept.push(branch.clone());
        }
        if null {
            self.note(place.at, Change::Nullable);
        }
        for branch in kept.iter_mut().filter_map(Value::as_object_mut) {
            if null {
                branch.insert("nullable".into(), json!(true));
            }
            for word in ["title", "description"] {
                if let Some(text) = map.get(word) {
                    branch.entry(word).or_insert_with(|| text.clone());
                }
            }
        }
        match kept.len() {
            0 => json!({"type": "string", "nullable": true}),
            1 => {
                self.rebase(&format!("{}/anyOf/0", place.at), place.at);
                kept.remove(0)
            }
            _ => json!({ "anyOf": kept }),
        }
    }

    /// A list of types becomes a choice; each branch has the keywords of its type.
    fn split(&mut self, mut map: Map<String, Value>, kinds: &[String], null: bool, place: Place<'_>) -> Value {
        self.note(place.at, Change::TypeListToAnyOf);
        let words: Vec<(String, Value)> =
            ["title", "description"].into_iter().filter_map(|w| Some((w.to_owned(), map.remove(w)?))).collect();
        let mut branches = Vec::new();
        for kind in KINDS.into_iter().filter(|k| kinds.iter().any(|own| own == k)) {
            let at = format!("{}/anyOf/{}", place.at, branches.len());
            for (below, of) in [("properties", "object"), ("items", "array")] {
                if kind == of {
                    self.rebase(&format!("{}/{below}", place.at), &format!("{at}/{below}"));
                }
            }
            let mut branch: Map<String, Value> =
                map.iter().filter(|(k, _)| belongs(k, kind)).map(|(k, v)| (k.clone(), v.clone())).collect();
            if let Some(Value::Array(values)) = branch.get_mut("enum") {
                values.retain(|v| is_of(v, kind));
                if values.is_empty() {
                    continue;
                }
            }
            branches.push(self.of_kind(branch, kind, false, Place { at: &at, level: place.level }));
        }
        if null {
            branches.push(json!({"type": "null"}));
        }
        let mut out = Map::from_iter(words);
        out.insert("anyOf".into(), Value::Array(branches));
        self.choice(out, place)
    }

    fn of_kind(&mut self, mut map: Map<String, Value>, kind: &str, null: bool, place: Place<'_>) -> Value {
        map.remove("additionalProperties").filter(|more| kind == "object" && *more == json!(false)).into_iter().for_each(
            |closed| {
                map.insert("additionalProperties".into(), closed);
            },
        );
        let unlisted = kind == "object" && map.get("properties").and_then(Value::as_object).is_none_or(Map::is_empty);
        let closed = map.get("additionalProperties").is_some() && self.provider == Provider::OpenAiStrict;
        if unlisted && !closed && !place.is_root() && !map.contains_key("required") {
            let out = self.as_text(map, place);
            return self.or_null(out, null, place);
        }
        map.insert("type".into(), json!(kind));
        let format = map.get("format").and_then(Value::as_str);
        if format.is_some_and(|f| !rules::takes_format(self.provider, kind, f)) {
            map.remove("format");
            self.note(place.at, Change::RemovedKeyword("format".into()));
        }
        match kind {
            "object" => self.object(&mut map, place),
            "array" if !map.contains_key("items") => {
                self.note(place.at, Change::AddedItems);
                map.insert("items".into(), json!({"type": "string"}));
            }
            "null" if self.provider == Provider::Gemini => {
                self.note(place.at, Change::Nullable);
                return json!({"type": "string", "nullable": true});
            }
            _ => {}
        }
        let null = null || self.values(&mut map, place);
        self.or_null(Value::Object(map), null, place)
    }

    fn or_null(&mut self, mut schema: Value, null: bool, place: Place<'_>) -> Value {
        if !null {
            return schema;
        }
        if self.provider == Provider::Gemini {
            self.note(place.at, Change::Nullable);
            schema["nullable"] = json!(true);
        } else {
            add_null(&mut schema);
        }
        schema
    }

    /// Values of an `enum` as the provider takes them; true when `null` is among them.
    fn values(&mut self, map: &mut Map<String, Value>, place: Place<'_>) -> bool {
        let Some(Value::Array(values)) = map.get("enum") else { return false };
        let values = values.clone();
        if self.provider == Provider::OpenAiStrict {
            let text: usize = values.iter().filter_map(Value::as_str).map(|s| s.chars().count()).sum();
            if values.len() > rules::STRICT_LARGE_ENUM && text > rules::STRICT_ENUM_TEXT {
                map.remove("enum");
                self.note(place.at, Change::RemovedKeyword("enum".into()));
            }
            return false;
        }
        let null = values.contains(&Value::Null);
        let kept: Vec<Value> = values.iter().filter(|v| !v.is_null() && **v != json!("")).cloned().collect();
        if kept.len() + usize::from(null) < values.len() {
            self.note(place.at, Change::RemovedEnumValue);
        }
        if kept.iter().any(|v| !v.is_string()) {
            self.note(place.at, Change::EnumAsText);
            self.way(place.at).values.extend(kept.iter().cloned());
        }
        ["enum", "format", "minimum", "maximum"].into_iter().for_each(|k| drop(map.remove(k)));
        if !kept.is_empty() {
            map.insert("type".into(), json!("string"));
            map.insert("enum".into(), kept.iter().map(as_enum_text).collect());
        }
        null
    }

    fn object(&mut self, map: &mut Map<String, Value>, place: Place<'_>) {
        let required = crate::schema::required(&Value::Object(map.clone()));
        let mut properties = match map.remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        };
        for name in &required {
            if !properties.contains_key(name) {
                self.note(place.at, Change::AddedProperty(name.clone()));
                let at = format!("{}/properties/{}", place.at, escaped(name));
                let any = self.narrow(Map::new(), Place { at: &at, level: place.level + 1 });
                properties.insert(name.clone(), any);
            }
        }
        if self.provider == Provider::OpenAiStrict {
            for (name, schema) in &mut properties {
                if !required.contains(name) && !takes_null(schema) {
                    let at = format!("{}/properties/{}", place.at, escaped(name));
                    add_null(schema);
                    self.note(&at, Change::MadeRequiredNullable);
                    self.way(&at).drop_null = true;
                }
            }
            map.insert("required".into(), properties.keys().cloned().collect());
            if map.insert("additionalProperties".into(), json!(false)).is_none() {
                self.note(place.at, Change::ClosedObject);
            }
        } else if map.remove("additionalProperties").is_some() {
            self.note(place.at, Change::RemovedKeyword("additionalProperties".into()));
        }
        map.insert("properties".into(), Value::Object(properties));
    }

    /// An object or array of no listed shape, written by the model as JSON text.
    fn as_text(&mut self, mut map: Map<String, Value>, place: Place<'_>) -> Value {
        self.note(place.at, Change::ObjectAsText);
        self.way(place.at).json = true;
        let what = map.get("type").and_then(Value::as_str).unwrap_or("value").to_owned();
        let about = match map.remove("description") {
            Some(Value::String(about)) if !about.is_empty() => format!("{about} (JSON text of the {what})"),
            _ => format!("JSON text of the {what}"),
        };
        json!({"type": "string", "description": about})
    }
}

/// Types a schema names.
fn types(map: &Map<String, Value>) -> Vec<String> {
    match map.get("type") {
        Some(Value::String(kind)) => vec![kind.clone()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(|k| k.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// Types that a schema without `type` must mean by its other keywords; none when it may be anything.
fn inferred(map: &Map<String, Value>) -> Vec<String> {
    let values = map.get("enum").and_then(Value::as_array).cloned().or_else(|| map.get("const").map(|c| vec![c.clone()]));
    if let Some(values) = values {
        let mut kinds: Vec<String> =
            KINDS.into_iter().filter(|k| *k != "number" && values.iter().any(|v| is_of(v, k))).map(str::to_owned).collect();
        if values.iter().any(Value::is_f64) {
            kinds.retain(|k| k != "integer");
            kinds.push("number".into());
        }
        kinds.extend(values.contains(&Value::Null).then(|| "null".to_owned()));
        return kinds;
    }
    let own = |kind: &&str| map.keys().any(|k| !belongs_to_all(k) && belongs(k, kind));
    ["object", "array", "string", "number"].into_iter().find(own).map(|k| vec![k.to_owned()]).unwrap_or_default()
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => value.is_null(),
    }
}

fn belongs_to_all(keyword: &str) -> bool {
    matches!(keyword, "title" | "description" | "enum" | "const" | "default" | "nullable")
}

fn belongs(keyword: &str, kind: &str) -> bool {
    match keyword {
        "properties" | "required" | "additionalProperties" | "minProperties" | "maxProperties" => kind == "object",
        "items" | "minItems" | "maxItems" => kind == "array",
        "pattern" | "minLength" | "maxLength" => kind == "string",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => matches!(kind, "number" | "integer"),
        "format" => matches!(kind, "string" | "number" | "integer"),
        _ => belongs_to_all(keyword),
    }
}

/// A value of an `enum` as it is shown where only text is taken.
pub(super) fn as_enum_text(value: &Value) -> Value {
    value.as_str().map_or_else(|| json!(value.to_string()), |text| json!(text))
}

/// Whether a schema of a strict view takes `null`.
fn takes_null(schema: &Value) -> bool {
    let branches = schema["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listed = schema["enum"].as_array().is_none_or(|values| values.contains(&Value::Null));
    let typed = schema["type"] == "null" || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("null")));
    branches.iter().any(takes_null) || (typed && listed && schema.get("const").is_none_or(Value::is_null))
}

/// Lets a schema of a strict view take `null` too.
fn add_null(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some(Value::Array(branches)) = map.get_mut("anyOf") {
        branches.push(json!({"type": "null"}));
        return;
    }
    if let Some(value) = map.remove("const") {
        map.insert("enum".into(), json!([value]));
    }
    if let Some(Value::Array(values)) = map.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    let mut kinds = types(map);
    if !kinds.iter().any(|k| k == "null") {
        kinds.push("null".into());
    }
    map.insert("type".into(), json!(kinds));
}

/// What OpenAI counts over a whole strict schema.
#[derive(Default)]
struct Counts {
    properties: usize,
    values: usize,
    text: usize,
}

impl Counts {
    fn add(&mut self, schema: &Value) {
        let chars = |text: &str| text.chars().count();
        if let Some(properties) = schema["properties"].as_object() {
            self.properties += properties.len();
            self.text += properties.keys().map(|k| chars(k)).sum::<usize>();
            properties.values().for_each(|s| self.add(s));
        }
        let values = schema["enum"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.values += values.len();
        self.text += values.iter().chain(schema.get("const")).filter_map(Value::as_str).map(chars).sum::<usize>();
        schema["anyOf"].as_array().into_iter().flatten().chain(schema.get("items")).for_each(|s| self.add(s));
    }
}

pub(super) fn within_strict_limits(schema: &Value) -> Result<(), Reason> {
    let mut counts = Counts::default();
    counts.add(schema);
    let limits = [
        ("properties", counts.properties, rules::STRICT_PROPERTIES),
        ("enum values", counts.values, rules::STRICT_ENUM_VALUES),
        ("characters of names and values", counts.text, rules::STRICT_TEXT),
    ];
    match limits.into_iter().find(|(_, found, most)| found > most) {
        Some((what, found, most)) => Err(Reason::OverLimit { what, found, most }),
        None => Ok(()),
    }
}
