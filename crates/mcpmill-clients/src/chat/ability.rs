//! What an endpoint can do, found out by asking: how far it binds its output, and which fields it takes.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use mcpmill_core::{
    canonical::content_hash,
    edge::{ChatRequest, Format},
};
use serde_json::Value;

/// How a format is asked for, the firmest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// `response_format: json_schema`.
    Schema,
    /// A call that the model has to make, with the schema as its parameters.
    Tool,
    /// Nothing: the schema is told in words and the reply is checked by the caller.
    Words,
}

/// How often schemas were asked for in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingCounts {
    /// By `response_format`.
    pub schema: u64,
    /// By a forced tool call.
    pub tool: u64,
    /// In words.
    pub words: u64,
}

/// Refusals, with no schema ever accepted, after which an endpoint is taken to have no binding of a kind at all.
const REFUSALS: usize = 5;

/// Fields that an endpoint does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// It wants `max_completion_tokens` in place of `max_tokens`.
    pub(super) completion_tokens: bool,
    pub(super) no_temperature: bool,
    pub(super) no_top_p: bool,
    pub(super) no_seed: bool,
}

impl Fields {
    /// What either does not take.
    fn or(self, other: Self) -> Self {
        Self {
            completion_tokens: self.completion_tokens || other.completion_tokens,
            no_temperature: self.no_temperature || other.no_temperature,
            no_top_p: self.no_top_p || other.no_top_p,
            no_seed: self.no_seed || other.no_seed,
        }
    }

    /// Fields with one more change, where a complaint names the field; what changed, in words.
    fn after(self, complaint: &str) -> Option<(Self, &'static str)> {
        let changes = [
            (
                "max_completion_tokens",
                Self { completion_tokens: true, ..self },
                "wants `max_completion_tokens` in place of `max_tokens`",
            ),
            ("temperature", Self { no_temperature: true, ..self }, "takes no `temperature`"),
            ("top_p", Self { no_top_p: true, ..self }, "takes no `top_p`"),
            ("seed", Self { no_seed: true, ..self }, "takes no `seed`"),
        ];
        let new = |(named, next, _): &(&str, Self, &str)| *next != self && names(complaint, named);
        changes.into_iter().find(new).map(|(_, next, words)| (next, words))
    }
}

/// Whether a text holds a name as a word of its own.
fn names(text: &str, name: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut found = text.match_indices(name);
    found.any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + name.len()..].chars().next()))
}

/// How one request is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) binding: Binding,
    pub(super) fields: Fields,
}

/// What is known of one endpoint.
pub(super) struct Ability {
    rungs: &'static [Binding],
    known: Mutex<Known>,
    used: [AtomicU64; 3],
}

#[derive(Default)]
struct Known {
    fields: Fields,
    /// By rung: whether a schema was ever accepted (refusals are then the schema's own).
    accepted: [bool; 2],
    /// By rung: hashes of schemas that were refused, and answered on a lower one.
    refused: [HashSet<String>; 2],
}

impl Ability {
    /// An endpoint of which nothing is known but the rungs there are.
    pub(super) fn new(rungs: &'static [Binding]) -> Self {
        Self { rungs, known: Mutex::default(), used: Default::default() }
    }

    /// How a request is asked first.
    pub(super) fn plan(&self, request: &ChatRequest) -> Plan {
        let known = self.known();
        let hash = schema_hash(request);
        let open = |rung: &Binding| {
            let Some(place) = place(*rung) else { return true };
            let refused = &known.refused[place];
            let none = !known.accepted[place] && refused.len() >= REFUSALS;
            !none && !hash.as_ref().is_some_and(|hash| refused.contains(hash)) && fits(*rung, request)
        };
        Plan { binding: self.rungs.iter().copied().find(open).unwrap_or(Binding::Words), fields: known.fields }
    }

    /// How a request is asked after it was refused with this complaint; `None` when there is no other way.
    pub(super) fn milder(&self, plan: Plan, request: &ChatRequest, complaint: &str) -> Option<(Plan, &'static str)> {
        let said = said(complaint);
        if let Some((fields, words)) = plan.fields.after(&said) {
            return Some((Plan { fields, ..plan }, words));
        }
        // What is too long is so in every form.
        let lower = said.to_lowercase();
        let long = ["context length", "context window", "maximum context", "too long", "too large", "too many tokens"];
        if !matches!(request.format, Format::JsonSchema { .. }) || long.iter().any(|words| lower.contains(words)) {
            return None;
        }
        let below = self.rungs.iter().copied().skip_while(|rung| *rung != plan.binding).skip(1);
        let binding = below.into_iter().find(|rung| fits(*rung, request))?;
        let words = match plan.binding {
            Binding::Schema => "refuses a `response_format`",
            _ => "refuses a forced tool call",
        };
        Some((Plan { binding, ..plan }, words))
    }

    /// A request was answered as `last`, after it was refused as `first` and all between. Says whether that was new.
    pub(super) fn learn(&self, request: &ChatRequest, first: Plan, last: Plan) -> bool {
        let mut known = self.known();
        let mut new = false;
        if first.fields != last.fields {
            let fields = known.fields.or(last.fields);
            new = fields != known.fields;
            known.fields = fields;
        }
        let Some(hash) = schema_hash(request) else { return new };
        self.used[last.binding as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(place) = place(last.binding) {
            known.accepted[place] = true;
        }
        for rung in self.rungs.iter().skip_while(|rung| **rung != first.binding).take_while(|rung| **rung != last.binding) {
            if let Some(place) = place(*rung).filter(|_| fits(*rung, request)) {
                new |= known.refused[place].insert(hash.clone());
            }
        }
        new
    }

    /// How often schemas were asked for in which way.
    pub(super) fn counts(&self) -> BindingCounts {
        let [schema, tool, words] = [0, 1, 2].map(|rung| self.used[rung].load(Ordering::Relaxed));
        BindingCounts { schema, tool, words }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the knowledge of a rung is kept; the last one needs none.
fn place(rung: Binding) -> Option<usize> {
    match rung {
        Binding::Schema => Some(0),
        Binding::Tool => Some(1),
        Binding::Words => None,
    }
}

/// A forced call would stand beside the tools a request offers, and its arguments are an object.
fn fits(rung: Binding, request: &ChatRequest) -> bool {
    match (&request.format, rung) {
        (Format::JsonSchema { schema, .. }, Binding::Tool) => request.tools.is_empty() && schema["type"] == "object",
        _ => true,
    }
}

fn schema_hash(request: &ChatRequest) -> Option<String> {
    match &request.format {
        Format::JsonSchema { schema, .. } => Some(content_hash(schema)),
        _ => None,
    }
}

/// What a complaint says, without what it repeats of the request.
fn said(complaint: &str) -> String {
    let value: Value = serde_json::from_str(complaint).unwrap_or_default();
    let error = if value["error"].is_null() { &value } else { &value["error"] };
    let parts = [error["message"].as_str(), error["param"].as_str(), error.as_str(), value["detail"].as_str()];
    let said: Vec<&str> = parts.into_iter().flatten().collect();
    let said = if said.is_empty() { complaint.to_owned() } else { said.join(" ") };
    said.chars().take(2000).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::wire::tests::{bound, request};

    const ALL: &[Binding] = &[Binding::Schema, Binding::Tool, Binding::Words];

    #[test]
    fn an_endpoint_is_asked_in_the_firmest_way_it_is_known_to_take() {
        let ability = Ability::new(ALL);
        let first = ability.plan(&bound());
        assert_eq!(first.binding, Binding::Schema);
        let (second, words) = ability.milder(first, &bound(), "no such field: response_format").unwrap();
        assert_eq!((second.binding, words), (Binding::Tool, "refuses a `response_format`"));
        assert!(ability.learn(&bound(), first, second) && !ability.learn(&bound(), first, second));
        assert_eq!(ability.plan(&bound()).binding, Binding::Tool);
        let (third, _) = ability.milder(second, &bound(), "no tools").unwrap();
        assert_eq!(third.binding, Binding::Words);
        assert_eq!(ability.milder(third, &bound(), "no"), None);
        assert_eq!(ability.counts(), BindingCounts { schema: 0, tool: 2, words: 0 });
    }

    #[test]
    fn after_some_refusals_a_rung_is_taken_to_be_missing() {
        let ability = Ability::new(ALL);
        for n in 0..REFUSALS {
            let format = Format::JsonSchema { name: "x".into(), schema: json!({"type": "object", "n": n}) };
            let asked = request(format);
            let first = ability.plan(&asked);
            assert_eq!(first.binding, Binding::Schema);
            ability.learn(&asked, first, Plan { binding: Binding::Words, ..first });
        }
        assert_eq!(ability.plan(&bound()).binding, Binding::Words);
    }

    #[test]
    fn an_answer_without_a_binding_teaches_nothing_of_bindings() {
        let ability = Ability::new(ALL);
        let plan = ability.plan(&request(Format::Text));
        assert!(!ability.learn(&request(Format::Text), plan, plan));
        assert_eq!(ability.counts(), BindingCounts::default());
    }

    #[test]
    fn fields_change_by_what_the_complaint_names() {
        let ability = Ability::new(ALL);
        let asked = request(Format::Text);
        let first = ability.plan(&asked);
        let complaint = json!({"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            "param": "max_tokens"}});
        let (second, _) = ability.milder(first, &asked, &complaint.to_string()).unwrap();
        assert!(second.fields.completion_tokens && !second.fields.no_temperature);
        let (third, _) = ability.milder(second, &asked, r#"{"error":{"message":"no","param":"temperature"}}"#).unwrap();
        assert!(ability.learn(&asked, first, third));
        assert_eq!(ability.plan(&asked).fields, third.fields);
        assert_eq!(ability.milder(third, &asked, "the tree was seeded"), None);
    }

    #[test]
    fn what_is_too_long_is_not_asked_again_in_another_form() {
        let ability = Ability::new(ALL);
        let plan = ability.plan(&bound());
        assert_eq!(ability.milder(plan, &bound(), "This model's maximum context length is 8192 tokens"), None);
    }

    #[test]
    fn offered_tools_stand_alone() {
        let ability = Ability::new(ALL);
        let mut asked = bound();
        let parameters = json!({"type": "object"});
        asked.tools.push(mcpmill_core::edge::ToolSpec { name: "t".into(), description: String::new(), parameters });
        let plan = ability.plan(&asked);
        assert_eq!(ability.milder(plan, &asked, "no").unwrap().0.binding, Binding::Words);
    }
}
