//! What an answer of fields says of itself: the fields that admit a failure, where they stand for the whole answer.
//!
//! Fields with the same names are data elsewhere: a log has `error`s, a job has a `status` of `failed`, a linter's answer
//! is a list of `errors`. So they count at the top and in what only wraps the answer, and a list admits a failure when
//! every item of it does.

use mcpmill_core::text::clipped;
use serde_json::{Map, Value};

use super::forms::{Asked, failure};

/// Levels of wrapping that are looked into.
const WRAPPED: usize = 5;
/// Strings of a small answer.
const FEW: usize = 6;

/// Fields that hold the answer, and nothing but wrap it.
const WRAPS: [&str; 14] = [
    "result",
    "results",
    "data",
    "response",
    "raw",
    "output",
    "body",
    "content",
    "payload",
    "value",
    "items",
    "searchresults",
    "text",
    "structuredcontent",
];
/// Fields that hold a message to the reader.
const MESSAGES: [&str; 15] = [
    "message",
    "msg",
    "detail",
    "details",
    "reason",
    "title",
    "description",
    "text",
    "output",
    "stderr",
    "cause",
    "explanation",
    "statusmessage",
    "errormessage",
    "errormsg",
];
/// Words of a status that say a failure.
const FAILED: [&str; 5] = ["error", "failed", "failure", "fail", "errored"];
/// Words of a status that say none.
const WELL: [&str; 8] = ["ok", "success", "succeeded", "successful", "completed", "complete", "done", "passed"];

/// A name without case and joints.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Whether nothing is in a value: no text, no number, no yes and no no.
pub(super) fn is_bare(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.iter().all(is_bare),
        Value::Object(fields) => fields.values().all(is_bare),
        _ => false,
    }
}

/// Whether a value carries nothing but zeros.
fn is_barren(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(yes) => !yes,
        Value::Array(items) => items.iter().all(is_barren),
        Value::Object(fields) => fields.values().all(is_barren),
        other => is_bare(other),
    }
}

/// Why a value admits that the call failed, if it does.
pub(super) fn admits(value: &Value, asked: &Asked<'_>) -> Option<String> {
    wrapped(value, asked, 0)
}

fn wrapped(value: &Value, asked: &Asked<'_>, level: usize) -> Option<String> {
    if level > WRAPPED {
        return None;
    }
    match value {
        Value::Object(fields) => of_fields(fields, asked, level),
        Value::Array(items) => {
            let reasons: Option<Vec<String>> = items.iter().map(|item| wrapped(item, asked, level + 1)).collect();
            reasons.and_then(|mut reasons| (!reasons.is_empty()).then(|| reasons.swap_remove(0)))
        }
        Value::String(text) if text.trim_start().starts_with(['{', '[']) => {
            wrapped(&serde_json::from_str(text.trim()).ok()?, asked, level + 1)
        }
        Value::String(text) if level > 0 => failure(text, asked),
        _ => None,
    }
}

fn of_fields(fields: &Map<String, Value>, asked: &Asked<'_>, level: usize) -> Option<String> {
    let named: Vec<(String, &Value)> = fields.iter().map(|(name, value)| (plain(name), value)).collect();
    let claims = claims_success(&named);
    for ((name, value), shown) in named.iter().zip(fields.keys()) {
        if let Some(why) = admission(name, value, &named, claims, asked) {
            return Some(format!("`{}` {why}", clipped(shown, 60)));
        }
    }
    let inner = named.iter().zip(fields.keys()).filter(|((name, _), _)| WRAPS.contains(&name.as_str()) || fields.len() == 1);
    for ((name, value), shown) in inner {
        // Texts among other fields are judged with all of them below.
        let is_text = matches!(value, Value::String(text) if !text.trim_start().starts_with(['{', '[']));
        let whole = fields.len() == 1 && (name == "result" || MESSAGES.contains(&name.as_str()));
        if (!is_text || whole)
            && let Some(why) = wrapped(value, asked, level + 1)
        {
            return Some(format!("in `{}`: {why}", clipped(shown, 60)));
        }
    }
    if claims { None } else { all_say_so(fields, asked) }
}

/// Whether a field says outright that all went well.
fn claims_success(named: &[(String, &Value)]) -> bool {
    named.iter().any(|(name, value)| match value {
        Value::Bool(true) => ["success", "ok", "succeeded", "successful"].contains(&name.as_str()),
        Value::String(word) => ["status", "state"].contains(&name.as_str()) && WELL.contains(&word.to_lowercase().as_str()),
        _ => false,
    })
}

/// What one field admits.
fn admission(name: &str, value: &Value, named: &[(String, &Value)], claims: bool, asked: &Asked<'_>) -> Option<String> {
    let told = |value: &Value| clipped(&value.as_str().map_or_else(|| value.to_string(), str::to_owned), 160);
    let others = || named.iter().filter(|(other, _)| other != name);
    let has_message =
        || others().any(|(other, value)| (other == "error" || MESSAGES.contains(&other.as_str())) && !is_bare(value));
    match (name, value) {
        ("success" | "ok" | "succeeded" | "successful", Value::Bool(false)) => Some("is false".into()),
        ("iserror" | "haserror" | "failed", Value::Bool(true)) => Some("is true".into()),
        ("error" | "err" | "exception" | "errormessage" | "errormsg" | "failure", Value::String(text)) if !claims => {
            let none = ["", "none", "null", "no", "false", "0", "n/a"].contains(&text.trim().to_lowercase().as_str());
            (!none && !asked.holds(text)).then(|| format!("is {}", told(value)))
        }
        ("error" | "exception", Value::Bool(true)) if !claims => Some("is true".into()),
        ("error" | "exception" | "failure", Value::Object(_)) if !claims && !is_bare(value) => {
            Some(format!("is {}", told(value)))
        }
        ("error" | "errors" | "failures" | "exceptions", Value::Array(_)) if !claims && !is_bare(value) => {
            // A list of errors beside an answer may be the answer's own warnings, or what was asked for.
            let barren = others().all(|(_, value)| is_barren(value));
            let texts = value.as_array().is_some_and(|items| items.iter().all(Value::is_string));
            (barren && (texts || named.len() == 1 && !asked.searches())).then(|| format!("is {}", told(value)))
        }
        ("status" | "state" | "outcome" | "result", Value::String(word)) if FAILED.contains(&word.to_lowercase().as_str()) => {
            // The thing that was asked about may have failed, not the question.
            let answers = others()
                .any(|(other, value)| other.ends_with("id") && !is_bare(value) || other.ends_with("at") && !is_bare(value));
            let wraps = || others().any(|(other, value)| WRAPS.contains(&other.as_str()) && wrapped(value, asked, 1).is_some());
            // Whether a thing is there, or well, is answered by that it is not.
            let sought = word.to_lowercase() == "error" && asked.searches() && has_message();
            ((has_message() || wraps()) && !answers && !sought).then(|| format!("is {word}"))
        }
        ("status" | "code" | "statuscode" | "httpstatus", Value::Number(number)) => {
            let failed = number.as_u64().is_some_and(|code| (400..600).contains(&code));
            (failed && has_message()).then(|| format!("is {number}"))
        }
        ("exitcode" | "returncode" | "exitstatus", Value::Number(number)) if number.as_i64() != Some(0) => {
            let is = |ends: &[&str]| others().any(|(other, value)| ends.contains(&other.as_str()) && !is_bare(value));
            (!is(&["stdout", "output", "out"]) && is(&["stderr", "error", "message"])).then(|| format!("is {number}"))
        }
        // `update_customer` answers `"updated": false`.
        (participle, Value::Bool(false)) if asked.is_participle(participle) => Some("is false".into()),
        _ => None,
    }
}

/// Whether what is said at all, but for what the call itself said, is a report of failure.
fn all_say_so(fields: &Map<String, Value>, asked: &Asked<'_>) -> Option<String> {
    let mut texts = Vec::new();
    let mut rest = 0;
    gather(&Value::Object(fields.clone()), asked, &mut texts, &mut rest);
    if texts.is_empty() || texts.len() > 3 || rest > 2 {
        return None;
    }
    let reasons: Option<Vec<String>> = texts.iter().map(|(_, text)| failure(text, asked)).collect();
    if let Some(reason) = reasons.and_then(|reasons| reasons.into_iter().next()) {
        return Some(format!("says nothing else: {reason}"));
    }
    let message = texts.iter().find(|(name, _)| MESSAGES[..5].contains(&name.as_str()))?;
    failure(&message.1, asked).map(|reason| format!("`{}`: {reason}", message.0))
}

/// The texts of an answer that the call did not hold, and how many other values it has that say something.
fn gather(value: &Value, asked: &Asked<'_>, texts: &mut Vec<(String, String)>, rest: &mut usize) {
    fn of(name: &str, value: &Value, asked: &Asked<'_>, texts: &mut Vec<(String, String)>, rest: &mut usize) {
        match value {
            Value::String(text) if text.trim().is_empty() || asked.holds(text) => {}
            Value::String(text) => texts.push((name.to_owned(), text.clone())),
            Value::Number(number) => *rest += usize::from(number.as_f64().is_some_and(|n| n != 0.0 && n != 1.0)),
            Value::Array(items) => items.iter().for_each(|item| of(name, item, asked, texts, rest)),
            Value::Object(fields) => fields.iter().for_each(|(name, field)| of(&plain(name), field, asked, texts, rest)),
            _ => {}
        }
    }
    of("", value, asked, texts, rest);
}

/// Why a judge should look at fields that admit nothing.
pub(super) fn doubt(value: &Value, asked: &Asked<'_>) -> Option<String> {
    doubt_in(value, asked, 0)
}

fn doubt_in(value: &Value, asked: &Asked<'_>, level: usize) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let named: Vec<(String, &Value)> = fields.iter().map(|(name, value)| (plain(name), value)).collect();
            let claims = claims_success(&named);
            if named
                .iter()
                .any(|(name, value)| MESSAGES.contains(&name.as_str()) && value.as_str().is_some_and(|text| asked.denies(text)))
            {
                return None;
            }
            for ((name, value), shown) in named.iter().zip(fields.keys()) {
                let fails = ["error", "fail", "exception", "denied", "stderr"].iter().any(|part| name.contains(part));
                if fails && !is_barren(value) {
                    return Some(format!("`{}` holds something", clipped(shown, 60)));
                }
                let status = ["status", "state", "outcome"].contains(&name.as_str());
                if let (true, Value::String(word)) = (status && !claims, value)
                    && asked.doubts(word)
                {
                    return Some(format!("`{}` is {}", clipped(shown, 60), clipped(word, 60)));
                }
                let told = MESSAGES.contains(&name.as_str()) || WRAPS.contains(&name.as_str());
                if let (true, Value::String(text)) = (told && !claims, value)
                    && asked.doubts(&text.chars().take(300).collect::<String>())
                    && !asked.holds(text)
                {
                    return Some(format!("`{}` may report a failure", clipped(shown, 60)));
                }
                if level < WRAPPED
                    && WRAPS.contains(&name.as_str())
                    && !value.is_array()
                    && let Some(why) = doubt_in(value, asked, level + 1)
                {
                    return Some(why);
                }
            }
            let (mut texts, mut rest) = (Vec::new(), 0);
            gather(value, asked, &mut texts, &mut rest);
            let few = texts.len() <= FEW && rest <= FEW && !claims;
            let said = texts.iter().find(|(_, text)| asked.doubts(text));
            said.filter(|_| few).map(|(name, _)| format!("`{name}` may report a failure"))
        }
        _ => None,
    }
}
