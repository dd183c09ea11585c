//! The tool calls of a reply that came as text.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Reading, Refused, Repair, Why,
    find::{Found, Text, ambiguous, around, is_of_language},
    forms,
    shapes::{Offered, few},
};
use crate::{edge::ToolSpec, record::FunctionCall};

/// The calls that a reply's text makes of the `offered` tools; none when the text is an answer. Calls are found in
/// JSON that stands on lines of its own, between the tags of model families, and as `name(key=value)` where the
/// whole reply is that.
///
/// # Errors
/// A call names a tool that was not offered, is broken beyond repair, stands inside a sentence or beside other JSON.
pub fn calls(reply: &str, offered: &[ToolSpec]) -> Result<Reading<Vec<FunctionCall>>, Refused> {
    let text = Text::new(reply);
    let tools = Offered(offered);
    if offered.is_empty() {
        return Ok(none());
    }
    if let Some(read) = text.whole(text.trimmed)? {
        return whole(&read, BTreeSet::new(), tools);
    }
    let (rest, mut repairs) = text.without_reasoning()?;
    if let Some(read) = text.whole(&rest)? {
        return whole(&read, repairs, tools);
    }
    if text.is_unended(&repairs, &rest) {
        return Err(Refused::new(Why::Unended, "the reasoning of the reply has no end"));
    }
    if let Some(calls) = forms::tagged(&rest, &text.fuel, tools, &mut repairs)? {
        return Ok(single(calls, repairs));
    }
    if let Some(calls) = forms::pythonic(&rest, &text.fuel, tools)? {
        repairs.insert(Repair::PythonicCall);
        return Ok(single(calls, repairs));
    }
    in_prose(&text, &rest, repairs, tools)
}

/// The one call of the `offered` tools that a value is, `None` when it is something else.
///
/// # Errors
/// It is several calls, or one that [`calls`] refuses.
pub fn call(value: &Value, offered: &[ToolSpec]) -> Result<Option<Reading<FunctionCall>>, Refused> {
    let mut repairs = BTreeSet::new();
    let Some(mut calls) = Offered(offered).in_value(value, false, &mut repairs)? else { return Ok(None) };
    if calls.len() > 1 {
        return Err(ambiguous(format!("the reply makes {} calls in place of one", calls.len())));
    }
    Ok(calls.pop().map(|call| Reading::new(call, repairs)))
}

fn none() -> Reading<Vec<FunctionCall>> {
    Reading { value: Vec::new(), repairs: Vec::new() }
}

/// A reply that is one JSON value: calls, or an answer.
fn whole(
    read: &Reading<Value>,
    mut repairs: BTreeSet<Repair>,
    tools: Offered<'_>,
) -> Result<Reading<Vec<FunctionCall>>, Refused> {
    repairs.extend(read.repairs.iter().copied());
    let calls = tools.in_value(&read.value, false, &mut repairs)?;
    Ok(calls.map_or_else(none, |calls| Reading::new(calls, repairs)))
}

/// Calls, each once.
fn single(calls: Vec<FunctionCall>, mut repairs: BTreeSet<Repair>) -> Reading<Vec<FunctionCall>> {
    let mut each: Vec<FunctionCall> = Vec::new();
    for call in calls {
        if each.contains(&call) {
            repairs.insert(Repair::RepeatedObject);
        } else {
            each.push(call);
        }
    }
    Reading::new(each, repairs)
}

fn in_prose(
    text: &Text<'_>,
    rest: &str,
    mut repairs: BTreeSet<Repair>,
    tools: Offered<'_>,
) -> Result<Reading<Vec<FunctionCall>>, Refused> {
    let found = match text.containers(rest) {
        Ok(found) => found,
        // JSON of whatever kind may be broken in an answer; a call may not.
        Err(refused) if refused.why == Why::Broken && !seems_call(rest, tools) => return Ok(none()),
        Err(refused) => return Err(refused),
    };
    let mut calls = Vec::new();
    let mut others = false;
    for (place, piece) in found.iter().enumerate() {
        match tools.in_value(&piece.value, false, &mut repairs)? {
            Some(more) => {
                if !is_alone(rest, place, &found) {
                    return Err(ambiguous("a call stands inside a sentence, which may only speak of it"));
                }
                calls.extend(more);
                few(calls.len())?;
            }
            None => others = true,
        }
    }
    if calls.is_empty() {
        return Ok(none());
    }
    if others {
        return Err(ambiguous("the reply holds a call beside other JSON"));
    }
    repairs.extend(found.iter().flat_map(|found| found.repairs.iter().copied()));
    repairs.extend(around(rest, &found));
    Ok(single(calls, repairs))
}

/// Whether broken JSON looks as if it were to be a call.
fn seems_call(text: &str, tools: Offered<'_>) -> bool {
    let quoted = |word: &str| text.contains(&format!("\"{word}\"")) || text.contains(&format!("'{word}'"));
    quoted("name")
        && ["arguments", "parameters", "input"].into_iter().any(quoted)
        && tools.0.iter().any(|tool| quoted(&tool.name))
}

/// Whether the value at `place` has its lines for itself and other values.
fn is_alone(text: &str, place: usize, found: &[Found]) -> bool {
    let span = &found[place].span;
    let from = if place > 0 { found[place - 1].span.end } else { 0 };
    let to = found.get(place + 1).map_or(text.len(), |next| next.span.start);
    let before = text[from..span.start].rsplit('\n').next().unwrap_or_default().trim();
    let after = text[span.end..to].split('\n').next().unwrap_or_default();
    let spare = |c: char| c.is_whitespace() || matches!(c, ';' | ',' | '`' | '}' | ']');
    let before = before.strip_prefix("```").map_or(before, |fence| fence.trim_start_matches(is_of_language));
    before.chars().all(spare) && after.chars().all(spare)
}
