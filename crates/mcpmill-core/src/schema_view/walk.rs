//! The bounded walk over a schema: references in place, recursion cut, keywords sorted out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Alteration, Change, Provider, Reason, View, restore::Way, rules};
use crate::naming::property_alias;

/// Keywords that hold schemas by name.
const MAPS: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords that hold a list of schemas; `allOf` is merged before.
const LISTS: [&str; 3] = ["anyOf", "oneOf", "prefixItems"];
/// Keywords that hold one schema.
const SINGLE: [&str; 10] = [
    "items",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Schemas inside each other that are open at once, choices and references among them. This bounds the stack.
const MOST_OPEN: usize = 96;

/// A part of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Where the walk is.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    /// Pointer in the view.
    pub at: &'p str,
    /// Objects and arrays around it.
    pub level: usize,
}

impl Place<'_> {
    pub fn is_root(self) -> bool {
        self.at.is_empty()
    }
}

/// One walk.
pub(super) struct Walk<'a> {
    root: &'a Value,
    pub provider: Provider,
    /// Addresses of the schemas the walk is inside of: meeting one again is recursion.
    open: Vec<*const Value>,
    nodes: usize,
    pub alterations: Vec<Alteration>,
    pub ways: BTreeMap<String, Way>,
}

impl<'a> Walk<'a> {
    pub fn new(root: &'a Value, provider: Provider) -> Self {
        Self { root, provider, open: Vec::new(), nodes: 0, alterations: Vec::new(), ways: BTreeMap::new() }
    }

    pub fn view(mut self) -> Result<View, Reason> {
        let schema = self.node(self.root, Place { at: "", level: 0 })?;
        if self.provider == Provider::OpenAiStrict {
            super::finish::within_strict_limits(&schema)?;
        }
        self.alterations.sort_by(|a, b| (&a.pointer, &a.change).cmp(&(&b.pointer, &b.change)));
        self.alterations.dedup();
        Ok(View { provider: self.provider, schema, alterations: self.alterations, ways: self.ways })
    }

    pub fn note(&mut self, at: &str, change: Change) {
        self.alterations.push(Alteration { pointer: at.to_owned(), change });
    }

    pub fn way(&mut self, at: &str) -> &mut Way {
        self.ways.entry(at.to_owned()).or_default()
    }

    /// Moves what is known of the places below `from` to below `to`.
    pub fn rebase(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        let below =
            |pointer: &str| pointer.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/')).map(str::to_owned);
        for alteration in &mut self.alterations {
            if let Some(rest) = below(&alteration.pointer) {
                alteration.pointer = format!("{to}{rest}");
            }
        }
        let moved: Vec<String> = self.ways.keys().filter(|p| below(p).is_some()).cloned().collect();
        for pointer in moved {
            if let (Some(rest), Some(way)) = (below(&pointer), self.ways.remove(&pointer)) {
                self.ways.insert(format!("{to}{rest}"), way);
            }
        }
    }

    /// The view of one schema.
    pub fn node(&mut self, schema: &'a Value, place: Place<'_>) -> Result<Value, Reason> {
        let map = match self.cut(schema, place) {
            Some(change) => {
                self.note(place.at, change);
                return Ok(self.finish_cut(hint(schema), place));
            }
            None => self.expand(schema, place)?,
        };
        Ok(self.finish(map, place))
    }

    /// Why the walk does not go into a schema.
    fn cut(&self, schema: &Value, place: Place<'_>) -> Option<Change> {
        if self.open.contains(&std::ptr::from_ref(schema)) {
            return Some(Change::CutRecursion);
        }
        let scalar = schema["type"].as_str().is_some_and(|t| t != "object" && t != "array");
        let deep = place.level >= rules::levels(self.provider) && !scalar;
        (deep || self.open.len() >= MOST_OPEN).then_some(Change::CutDepth)
    }

    /// The keywords of a schema, of the target of its reference and of its `allOf`, with the
    /// schemas below it done; the schema itself is still to be finished.
    fn expand(&mut self, schema: &'a Value, place: Place<'_>) -> Result<Map<String, Value>, Reason> {
        self.nodes += 1;
        if self.nodes > rules::MOST_NODES {
            return Err(Reason::TooManyNodes(rules::MOST_NODES));
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(_) => {
                self.note(place.at, Change::BooleanSchema);
                return Ok(Map::new());
            }
            _ => {
                self.note(place.at, if place.is_root() { Change::RootNotObject } else { Change::NoSchema });
                return Ok(Map::new());
            }
        };
        self.open.push(std::ptr::from_ref(schema));
        let mut out = Map::new();
        for (keyword, value) in map {
            self.keyword(keyword, value, place, &mut out)?;
        }
        if let Some(Value::String(reference)) = map.get("$ref") {
            let more = self.target(reference, place)?;
            merge(&mut out, more);
        }
        self.all_of(map, place, &mut out)?;
        if place.is_root() {
            for keyword in ["anyOf", "oneOf"] {
                self.root_choice(keyword, map.get(keyword), place, &mut out)?;
            }
        }
        self.open.pop();
        Ok(out)
    }

    fn target(&mut self, reference: &str, place: Place<'_>) -> Result<Map<String, Value>, Reason> {
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(Reason::RemoteRef(crate::text::shown(reference, 200)));
        };
        let root = self.root;
        let Some(target) = root.pointer(&decoded(fragment)) else {
            self.note(place.at, Change::DanglingRef(crate::text::shown(reference, 200)));
            return Ok(Map::new());
        };
        self.expand_or_cut(target, place, Change::InlinedRef)
    }

    fn expand_or_cut(&mut self, target: &'a Value, place: Place<'_>, change: Change) -> Result<Map<String, Value>, Reason> {
        let cut = self.cut(target, place);
        self.note(place.at, cut.clone().unwrap_or(change));
        if cut.is_some() { Ok(hint(target)) } else { self.expand(target, place) }
    }

    /// `allOf` stands together at the root and where a provider does not take it.
    fn all_of(&mut self, map: &'a Map<String, Value>, place: Place<'_>, out: &mut Map<String, Value>) -> Result<(), Reason> {
        let Some(Value::Array(branches)) = map.get("allOf") else { return Ok(()) };
        if !place.is_root() && !self.provider.is_narrow() {
            let list = self.list("allOf", branches, place)?;
            out.insert("allOf".into(), list);
            return Ok(());
        }
        for branch in branches {
            let more = self.expand_or_cut(branch, place, Change::MergedAllOf)?;
            merge(out, more);
        }
        Ok(())
    }

    /// No provider takes a choice at the root: its branches become optional properties.
    fn root_choice(
        &mut self,
        keyword: &str,
        branches: Option<&'a Value>,
        place: Place<'_>,
        out: &mut Map<String, Value>,
    ) -> Result<(), Reason> {
        let Some(Value::Array(branches)) = branches else { return Ok(()) };
        let mut always: Option<Vec<Value>> = None;
        let mut together = Map::new();
        for branch in branches {
            let mut more = self.expand_or_cut(branch, place, Change::MergedRootChoice(keyword.to_owned()))?;
            let required = more.remove("required").and_then(|r| r.as_array().cloned()).unwrap_or_default();
            always = Some(always.map_or(required.clone(), |a| a.into_iter().filter(|name| required.contains(name)).collect()));
            if let Some(Value::Object(more)) = more.remove("properties") {
                more.into_iter().for_each(|(name, schema)| widen(&mut together, name, schema));
            }
        }
        merge(out, Map::from_iter([("properties".into(), Value::Object(together))]));
        if let Some(always) = always.filter(|a| !a.is_empty()) {
            merge(out, Map::from_iter([("required".into(), Value::Array(always))]));
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        keyword: &'a str,
        value: &'a Value,
        place: Place<'_>,
        out: &mut Map<String, Value>,
    ) -> Result<(), Reason> {
        let choice_at_root = place.is_root() && matches!(keyword, "anyOf" | "oneOf");
        if keyword == "$ref" || (keyword == "allOf" && value.is_array()) || (choice_at_root && value.is_array()) {
            return Ok(());
        }
        let narrow = self.provider.is_narrow();
        let done = match (keyword, value) {
            ("oneOf", Value::Array(branches)) if narrow && !out.contains_key("anyOf") => {
                self.note(place.at, Change::OneOfToAnyOf);
                let list = self.list("anyOf", branches, place)?;
                out.insert("anyOf".into(), list);
                return Ok(());
            }
            ("items" | "prefixItems", Value::Array(places)) if narrow => {
                self.note(place.at, Change::TupleToItems);
                let list = self.list("items/anyOf", places, Place { level: place.level + 1, ..place })?;
                out.insert("items".into(), json!({ "anyOf": list }));
                return Ok(());
            }
            ("items", Value::Array(places)) => {
                self.note(place.at, Change::TupleToItems);
                let list = self.list("prefixItems", places, place)?;
                out.insert("prefixItems".into(), list);
                return Ok(());
            }
            _ if !rules::takes(self.provider, keyword) => None,
            (_, Value::Object(map)) if MAPS.contains(&keyword) => Some(self.map(keyword, map, place)?),
            (_, Value::Array(list)) if LISTS.contains(&keyword) && !list.is_empty() => Some(self.list(keyword, list, place)?),
            ("additionalProperties", _) if narrow => Some(value.clone()),
            ("additionalProperties" | "unevaluatedProperties" | "unevaluatedItems", Value::Bool(_)) => Some(value.clone()),
            (_, Value::Object(_) | Value::Bool(_)) if SINGLE.contains(&keyword) => {
                let at = format!("{}/{keyword}", place.at);
                Some(self.node(value, Place { at: &at, level: place.level + 1 })?)
            }
            // Not what such a keyword holds.
            _ if [&MAPS[..], &LISTS, &SINGLE].iter().any(|held| held.contains(&keyword)) || keyword == "allOf" => None,
            _ => self.plain(keyword, value),
        };
        match done {
            Some(value) => drop(out.insert(keyword.to_owned(), value)),
            None => self.note(place.at, Change::RemovedKeyword(keyword.to_owned())),
        }
        Ok(())
    }

    /// A keyword that holds no schemas.
    fn plain(&self, keyword: &str, value: &Value) -> Option<Value> {
        let taken = rules::is_well_formed(keyword, value)
            && (keyword != "pattern" || value.as_str().is_some_and(|p| rules::takes_pattern(self.provider, p)));
        let renames = self.provider == Provider::Anthropic;
        match value {
            _ if !taken => None,
            Value::Array(names) if keyword == "required" && renames => {
                Some(names.iter().filter_map(Value::as_str).map(property_alias).collect())
            }
            Value::Object(_) if keyword == "dependentRequired" && renames => None,
            _ => Some(value.clone()),
        }
    }

    fn map(&mut self, keyword: &str, map: &'a Map<String, Value>, place: Place<'_>) -> Result<Value, Reason> {
        let mut out = Map::new();
        for (name, schema) in map {
            let renames = self.provider == Provider::Anthropic && keyword == "properties";
            let shown = if renames { property_alias(name) } else { name.clone() };
            let at = format!("{}/{keyword}/{}", place.at, escaped(&shown));
            if shown != *name {
                self.note(&at, Change::RenamedProperty { from: name.clone() });
                self.way(&at).name = Some(name.clone());
            }
            let level = place.level + 1;
            out.insert(shown, self.node(schema, Place { at: &at, level })?);
        }
        Ok(Value::Object(out))
    }

    fn list(&mut self, keyword: &str, schemas: &'a [Value], place: Place<'_>) -> Result<Value, Reason> {
        let each = schemas.iter().enumerate().map(|(i, schema)| {
            let at = format!("{}/{keyword}/{i}", place.at);
            self.node(schema, Place { at: &at, level: place.level })
        });
        each.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }
}

/// What is left of a schema that the walk does not go into: its type.
fn hint(schema: &Value) -> Map<String, Value> {
    let kind = schema.get("type").filter(|t| t.is_string() && rules::is_well_formed("type", t));
    kind.map(|t| Map::from_iter([("type".to_owned(), t.clone())])).unwrap_or_default()
}

/// A fragment with its `%` escapes undone.
fn decoded(fragment: &str) -> String {
    let mut out = Vec::new();
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'%').then(|| after.get(..2)).flatten().and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(value) => {
                out.push(value);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Adds keywords that must hold as well; where both say something, the first stays.
fn merge(out: &mut Map<String, Value>, more: Map<String, Value>) {
    for (keyword, value) in more {
        match (out.get_mut(&keyword), value) {
            (None, value) => drop(out.insert(keyword, value)),
            (Some(Value::Object(own)), Value::Object(other)) if keyword == "properties" => {
                for (name, schema) in other {
                    match (own.get_mut(&name), schema) {
                        (Some(Value::Object(own)), Value::Object(schema)) => {
                            for (k, v) in schema {
                                own.entry(k).or_insert(v);
                            }
                        }
                        (Some(_), _) => {}
                        (None, schema) => drop(own.insert(name, schema)),
                    }
                }
            }
            (Some(Value::Array(own)), Value::Array(other)) if keyword == "required" => {
                let new: Vec<Value> = other.into_iter().filter(|name| !own.contains(name)).collect();
                own.extend(new);
            }
            _ => {}
        }
    }
}

/// Adds a property of another branch of a choice: one that names the branch takes the values of both.
fn widen(together: &mut Map<String, Value>, name: String, schema: Value) {
    let values = |s: &Value| s["enum"].as_array().cloned().or_else(|| s.get("const").map(|c| vec![c.clone()]));
    let Some(own) = together.get_mut(&name) else {
        together.insert(name, schema);
        return;
    };
    let (first, second) = (values(own), values(&schema));
    let Some(own) = own.as_object_mut() else { return };
    own.remove("const");
    match (first, second) {
        (Some(mut first), Some(second)) => {
            let new: Vec<Value> = second.into_iter().filter(|v| !first.contains(v)).collect();
            first.extend(new);
            own.insert("enum".into(), Value::Array(first));
        }
        _ => drop(own.remove("enum")),
    }
}
