//! `grounded`: every value of a call was said: by the user, in an earlier answer of a chain, or by the tool's schema; or
//! it can be followed from what was said (numbers in words, units, dates, names of languages, lists, paths). What may
//! follow from words that nobody can follow without a calendar or a dictionary ("tomorrow", another language) is
//! unjudged and never dropped. Costs nothing.

use std::collections::HashSet;

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Message, SampleKind, Tool, Verdict},
    text::clipped,
};
use serde_json::{Map, Value, json};

use super::{
    Bench, Case, Filter, Plant,
    leaves::{Leaf, leaves},
};
use crate::{
    ask::Meter,
    generate::{is_expression, language_name, values::states, words},
    rollout::known::{from_nowhere, said},
};

/// Characters of a value that a verdict tells.
const SHOWN: usize = 80;

pub(super) struct Grounded {
    pub(super) name: String,
}

/// What is thought of one value.
#[derive(Debug, PartialEq, Eq)]
enum Ground {
    Said,
    /// It may follow, and nobody can tell from here.
    Open,
    Unsaid,
}

#[async_trait]
impl Filter for Grounded {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::WrongValue]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let mut open = None;
        for (i, (call, tool, said)) in calls(case).into_iter().enumerate() {
            let Some(tool) = tool else { continue };
            let schema = tool.schema();
            for leaf in leaves(call, &schema) {
                let what = || {
                    let value = leaf.value.as_str().map_or_else(|| leaf.value.to_string(), str::to_owned);
                    let value = clipped(&value, SHOWN);
                    format!("call {} (`{}`): `{}` holds `{value}`", i + 1, tool.name, leaf.at)
                };
                match ground(&leaf, &schema, &said, &case.sample.language) {
                    Ground::Said => {}
                    Ground::Open => drop(open.get_or_insert_with(what)),
                    Ground::Unsaid => {
                        let evidence = json!({ "call": i + 1, "at": leaf.at }).to_string();
                        let verdict = bench.drop(format!("ungrounded: {}, which nobody said", what()));
                        return Verdict { evidence: Some(evidence), ..verdict };
                    }
                }
            }
        }
        match open {
            Some(what) => bench.unjudged(format!("unjudged: {what}, which cannot be followed from here")),
            None => bench.keep("ok: every value was said"),
        }
    }
}

/// The arguments of a call, its tool, and all that was said before it.
type Call<'a> = (&'a Map<String, Value>, Option<&'a Tool>, Vec<String>);

/// The calls to be learned; a row that asks back says its values later.
fn calls<'a>(case: &Case<'a>) -> Vec<Call<'a>> {
    let messages = case.messages();
    let tool = |name: &str| case.called.iter().find(|tool| alias(&tool.name) == name).copied();
    let first = usize::from(case.sample.kind == SampleKind::Recover);
    let mut found = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for call in message.tool_calls() {
            let mut before = said(&messages[..at]);
            before.push(case.sample.instruction.clone());
            before.extend(messages[..at].iter().filter_map(system));
            found.push((&call.function.arguments, tool(&call.function.name), before));
        }
    }
    found.into_iter().skip(first).collect()
}

fn system(message: &Message) -> Option<String> {
    match message {
        Message::System { content } => Some(content.clone()),
        _ => None,
    }
}

fn ground(leaf: &Leaf<'_>, schema: &Value, said: &[String], language: &str) -> Ground {
    if leaf.listed || matches!(leaf.value, Value::Bool(_) | Value::Null) {
        return Ground::Said;
    }
    let own = json!({ "properties": { &leaf.name: leaf.property }, "required": schema["required"], "$defs": schema["$defs"] });
    let one = Map::from_iter([(leaf.name.clone(), leaf.value.clone())]);
    if from_nowhere(&one, &own, None, said).is_none() {
        return Ground::Said;
    }
    let low: Vec<String> = said.iter().map(|text| text.to_lowercase()).collect();
    if let Value::String(text) = leaf.value
        && is_code(&leaf.name, text)
    {
        return code_ground(text, said, &low);
    }
    let follows = match leaf.value {
        Value::Number(number) => number.as_f64().is_some_and(|number| is_number_said(number, &low)),
        Value::String(text) => is_text_said(text.trim(), said, &low),
        _ => false,
    };
    let text = leaf.value.as_str().unwrap_or_default();
    if follows {
        Ground::Said
    } else if language != "en" || (is_time(text) && low.iter().any(|text| is_relative(text))) {
        Ground::Open
    } else {
        Ground::Unsaid
    }
}

/// Whether a text is a query, a command or a program: people say what it is to do, and not its words.
fn is_code(name: &str, text: &str) -> bool {
    const NAMES: [&str; 7] = ["code", "command", "script", "css", "sql", "snippet", "expression"];
    // A pattern of file names is a value as any other: it says which files.
    let is_glob = text.contains('*') && !text.contains(|c: char| c.is_whitespace() || "'\"()".contains(c));
    !is_glob && (is_expression(name, text) || words(name).iter().any(|word| NAMES.contains(&word.as_str())))
}

/// Of code only what it quotes and counts with must be said. What is not may be of the program and not of the request.
fn code_ground(text: &str, said: &[String], low: &[String]) -> Ground {
    let is_query = text
        .trim_start()
        .get(..6)
        .is_some_and(|verb| ["select", "insert", "update", "delete"].contains(&verb.to_lowercase().as_str()));
    let stated = |value: &str| said.iter().any(|said| states(said, value)) || is_text_said(value.trim_matches('%'), said, low);
    let unsaid = text.split('\'').skip(1).step_by(2).find(|value| !value.trim().is_empty() && !stated(value));
    let number = |part: &str| {
        part.parse::<f64>().is_ok_and(|number| number.abs() > 1.0 && number != 100.0 && !is_number_said(number, low))
    };
    let counts = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c))).any(number);
    match unsaid {
        Some(value) if is_query && !is_time(value) => Ground::Unsaid,
        Some(_) => Ground::Open,
        None if counts => Ground::Open,
        None => Ground::Said,
    }
}

/// Endings of files and what people call these files.
const ENDINGS: [(&str, &[&str]); 14] = [
    ("md", &["markdown"]),
    ("txt", &["text"]),
    ("py", &["python"]),
    ("js", &["javascript"]),
    ("ts", &["typescript"]),
    ("rs", &["rust"]),
    ("html", &["html", "web page"]),
    ("xlsx", &["excel", "spreadsheet", "workbook"]),
    ("docx", &["word"]),
    ("yml", &["yaml"]),
    ("jpg", &["image", "photo", "picture"]),
    ("png", &["image", "picture", "screenshot"]),
    ("java", &["java"]),
    ("csv", &["csv", "table"]),
];

/// Whether a pattern of file names (`*.md`) is said by what the files are called.
fn is_pattern_said(value: &str, low: &[String]) -> bool {
    let Some((stem, ending)) = value.rsplit_once('.') else { return false };
    let called = ENDINGS.iter().find(|(known, _)| *known == ending.trim_end_matches('$')).map_or(&[][..], |(_, called)| *called);
    let wild = stem.contains('*') && !stem.chars().any(char::is_alphanumeric);
    wild && low.iter().any(|text| has_word(text, ending) || called.iter().any(|word| text.contains(word)))
}

const SMALL: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const ORDINALS: [&str; 13] = [
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
];
/// Other words for numbers.
const OTHER: [(&str, f64); 14] = [
    ("half", 0.5),
    ("quarter", 0.25),
    ("dozen", 12.0),
    ("both", 2.0),
    ("pair", 2.0),
    ("couple", 2.0),
    ("twice", 2.0),
    ("double", 2.0),
    ("single", 1.0),
    ("a", 1.0),
    ("an", 1.0),
    ("once", 1.0),
    ("no", 0.0),
    ("last", -1.0),
];
/// What a number is multiplied with when it is given in this unit, for each unit it may be asked for in.
const UNITS: [(&str, &[f64]); 22] = [
    ("second", &[1000.0]),
    ("minute", &[60.0, 60_000.0]),
    ("min", &[60.0, 60_000.0]),
    ("hour", &[60.0, 3600.0, 3_600_000.0]),
    ("day", &[24.0, 1440.0, 86_400.0, 86_400_000.0]),
    ("week", &[7.0, 168.0, 604_800.0]),
    ("month", &[30.0]),
    ("year", &[12.0, 365.0]),
    ("kb", &[1000.0, 1024.0]),
    ("mb", &[1e6, 1_048_576.0, 1024.0]),
    ("megabyte", &[1e6, 1_048_576.0]),
    ("gb", &[1e9, 1_073_741_824.0, 1024.0]),
    ("km", &[1000.0]),
    ("kilometre", &[1000.0]),
    ("kilometer", &[1000.0]),
    ("kg", &[1000.0]),
    ("thousand", &[1e3]),
    ("million", &[1e6]),
    ("hundred", &[100.0]),
    ("percent", &[0.01]),
    ("meter", &[100.0, 1000.0]),
    ("decade", &[10.0]),
];

/// The numbers a text says, in digits or words, each with those it is in other units.
fn numbers(low: &str) -> Vec<f64> {
    let cut = low.replace('%', " percent ");
    let tokens: Vec<&str> =
        cut.split(|c: char| !(c.is_alphanumeric() || c == '.' || c == ',')).filter(|t| !t.is_empty()).collect();
    let mut out = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let token = token.trim_matches(['.', ',']);
        let (digits, unit) = token.split_at(token.find(|c: char| c.is_alphabetic()).unwrap_or(token.len()));
        let next = || tokens.get(i + 1).map_or("", |next| next.trim_matches(['.', ',']));
        let (number, unit) = match digits.replace(',', "").parse::<f64>() {
            Ok(number) => (number, if unit.is_empty() { next() } else { unit }),
            Err(_) => match spelled(token, next()) {
                Some(number) => (number, next()),
                None => continue,
            },
        };
        out.extend([number, -number]);
        if unit == "k" {
            out.push(number * 1e3);
        }
        let unit = unit.strip_suffix('s').unwrap_or(unit);
        out.extend(UNITS.iter().filter(|(name, _)| *name == unit).flat_map(|(_, all)| all.iter().map(|by| number * by)));
    }
    out
}

/// A number in words; tens take the word after them: `twenty one`.
fn spelled(word: &str, next: &str) -> Option<f64> {
    let at = |list: &[&str], word: &str| list.iter().position(|known| *known == word).map(|at| at as f64);
    if let Some(ten) = at(&TENS, word) {
        let one = at(&SMALL, next).filter(|one| *one > 0.0 && *one < 10.0).unwrap_or(0.0);
        return Some((ten + 2.0) * 10.0 + one);
    }
    let other = || OTHER.iter().find(|(known, _)| *known == word).map(|(_, number)| *number);
    at(&SMALL, word).or_else(|| at(&ORDINALS, word)).or_else(other)
}

fn is_number_said(number: f64, low: &[String]) -> bool {
    let near = |said: &f64| (said - number).abs() <= 1e-9 * number.abs().max(1.0);
    // Places are counted from one by people, and from nought by tools.
    let from_nought = |text: &String| number >= 0.0 && ORDINALS.get(number as usize + 1).is_some_and(|word| has_word(text, word));
    low.iter().any(|text| numbers(text).iter().any(near) || from_nought(text))
}

fn has_word(low: &str, word: &str) -> bool {
    low.split(|c: char| !c.is_alphanumeric()).any(|one| one == word)
}

/// What short forms stand for, as people say it.
const SHORT_FORMS: [(&str, &[&str]); 25] = [
    ("usd", &["dollar", "$"]),
    ("eur", &["euro", "€"]),
    ("gbp", &["pound", "£", "sterling"]),
    ("jpy", &["yen", "¥"]),
    ("inr", &["rupee", "₹"]),
    ("cny", &["yuan", "renminbi"]),
    ("chf", &["franc"]),
    ("cad", &["canadian"]),
    ("aud", &["australian"]),
    ("celsius", &["°c"]),
    ("fahrenheit", &["°f"]),
    ("metric", &["celsius", "kilomet", "°c"]),
    ("imperial", &["fahrenheit", "mile", "°f"]),
    ("km", &["kilomet"]),
    ("kg", &["kilo"]),
    ("us", &["united states", "america", "u.s."]),
    ("gb", &["britain", "united kingdom", "gigabyte"]),
    ("uk", &["britain", "united kingdom"]),
    ("utc", &["universal time", "gmt"]),
    ("js", &["javascript"]),
    ("ts", &["typescript"]),
    ("py", &["python"]),
    ("*", &["all", "every", "any", "whole"]),
    (".", &["current", "this", "here"]),
    ("head", &["latest", "last", "current"]),
];

/// Whether a text follows from what was said.
fn is_text_said(text: &str, said: &[String], low: &[String]) -> bool {
    let value = text.to_lowercase();
    if value.is_empty() {
        return false;
    }
    let any = |of: &dyn Fn(&str) -> bool| low.iter().any(|text| of(text));
    if let Ok(number) = value.parse::<f64>() {
        return is_number_said(number, low);
    }
    let short = || {
        SHORT_FORMS
            .iter()
            .find(|(form, _)| *form == value)
            .is_some_and(|(_, all)| any(&|text| all.iter().any(|w| text.contains(w))))
    };
    let language = || {
        let code = value.split(['-', '_']).next().unwrap_or_default();
        language_name(code).is_some_and(|name| any(&|text| text.contains(&name.to_lowercase())))
    };
    // `New York City` and `new-york-city`, `readMe` and "read me".
    let squashed = squash(&value);
    let joined = || squashed.chars().count() > 2 && any(&|text| squash(text).contains(&squashed));
    short()
        || language()
        || joined()
        || is_pattern_said(&value, low)
        || is_date_said(&value, low)
        || is_made_of_said(text, said, low)
}

fn squash(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Whether the parts of a list, a path, an address or a query are all said.
fn is_made_of_said(text: &str, said: &[String], low: &[String]) -> bool {
    let stated = |part: &str| said.iter().any(|said| states(said, part));
    let bare = text.trim_start_matches("https://").trim_start_matches("http://").trim_start_matches("www.");
    let bare = bare.trim_matches(|c| "/.*~".contains(c));
    if !bare.is_empty() && bare != text && stated(bare) {
        return true;
    }
    // A zone of time is named by its city.
    let zone = text.split('/').collect::<Vec<_>>();
    if let [area, .., city] = zone[..]
        && area.starts_with(char::is_uppercase)
        && city.starts_with(char::is_uppercase)
        && stated(&city.replace('_', " "))
    {
        return true;
    }
    let parts: Vec<&str> =
        text.split([',', ';', '|', '/', '\n', '=', ':', '&']).map(str::trim).filter(|p| !p.is_empty()).collect();
    if parts.len() > 1 && parts.iter().all(|part| stated(part) || part.parse::<f64>().is_ok_and(|n| is_number_said(n, low))) {
        return true;
    }
    // A query puts the words of a request in another order, and leaves some out.
    let known: HashSet<String> = low.iter().flat_map(|text| stems(text)).collect();
    let own = stems(&text.to_lowercase());
    !own.is_empty() && own.iter().all(|word| known.contains(word)) && !text.contains(|c: char| c.is_ascii_digit())
}

/// The words of a text without the ends that grammar gives them.
fn stems(low: &str) -> Vec<String> {
    let stem = |word: String| {
        ["ies", "es", "s", "ing", "ed", "e", "y"]
            .iter()
            .find_map(|end| word.strip_suffix(end))
            .filter(|s| s.len() > 2)
            .map_or(word.clone(), str::to_owned)
    };
    low.split(|c: char| !c.is_alphanumeric()).flat_map(words).map(stem).collect()
}

const MONTHS: [&str; 12] =
    ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"];

/// Whether a text is a day or a time of day.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().take(10).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00" || shape == "00:00" || shape.starts_with("00:00:00") || shape == "0000-00" || shape == "00/00/0000"
}

/// Words of a request that only a calendar or a clock makes a day or a time of.
fn is_relative(low: &str) -> bool {
    const WORDS: [&str; 24] = [
        "today",
        "tomorrow",
        "yesterday",
        "tonight",
        "now",
        "next",
        "last",
        "this",
        "past",
        "ago",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
        "noon",
        "midnight",
        "half",
        "quarter",
        "morning",
        "evening",
        "coming",
    ];
    WORDS.iter().any(|word| has_word(low, word))
}

/// Whether a day (`2026-03-03`) or a time (`16:30`) is said in words: "March 3, 2026", "4:30 pm".
fn is_date_said(value: &str, low: &[String]) -> bool {
    let (day, hour) = value.split_once(['t', ' ']).map_or((value, ""), |(day, hour)| (day, hour));
    let (day, hour) = if day.contains(':') { ("", day) } else { (day, hour) };
    let fields: Vec<u32> = day.split('-').filter_map(|part| part.parse().ok()).collect();
    let day_said = |text: &String| match fields[..] {
        [year, month, day] if (1..=12).contains(&month) => {
            let name = MONTHS[month as usize - 1];
            let named = text.contains(name) || text.contains(&name[..3]);
            let has = |n: u32| {
                numbers(text).contains(&f64::from(n))
                    || ["st", "nd", "rd", "th"].iter().any(|end| has_word(text, &format!("{n}{end}")))
            };
            let numeric = has(month) && text.contains('/');
            has(day) && (named || numeric) && (has(year) || !numbers(text).iter().any(|n| (1900.0..2100.0).contains(n)))
        }
        _ => false,
    };
    let clock: Vec<u32> = hour.trim_end_matches('z').split(':').filter_map(|part| part.parse().ok()).collect();
    let hour_said = |text: &String| match clock[..] {
        [h, m, ..] => {
            let half = if h % 12 == 0 { 12 } else { h % 12 };
            let (minutes, mark) = (format!("{half}:{m:02}"), if h < 12 { "am" } else { "pm" });
            let plain = text.replace("a.m", "am").replace("p.m", "pm").replace(' ', "");
            plain.contains(&format!("{minutes}{mark}"))
                || (m == 0
                    && (plain.contains(&format!("{half}{mark}"))
                        || (h == 0 && text.contains("midnight"))
                        || (h == 12 && text.contains("noon"))))
                || text.contains(&format!("{h}:{m:02}"))
        }
        _ => false,
    };
    let is_day = fields.len() == 3 && low.iter().any(day_said);
    let is_hour = clock.len() >= 2 && low.iter().any(hour_said);
    (is_day && (hour.is_empty() || is_hour || clock.iter().all(|n| *n == 0))) || (day.is_empty() && is_hour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &Value, request: &str, language: &str) -> Vec<Ground> {
        let text = json!({"type": "string"});
        let schema = json!({"properties": {"q": text, "n": {"type": "number"}, "unit": {"enum": ["c", "f"]},
            "page": {"default": 1}, "tags": {"type": "array", "items": text}}, "required": ["q"]});
        let arguments = arguments.as_object().unwrap().clone();
        leaves(&arguments, &schema).iter().map(|leaf| ground(leaf, &schema, &[request.to_owned()], language)).collect()
    }

    #[test]
    fn values_are_said_or_can_be_followed() {
        for (arguments, request) in [
            (json!({"q": "Oslo", "n": 3, "unit": "c", "page": 1, "on": true}), "How is Oslo in three days?"),
            (json!({"n": 21}), "Give me twenty-one of them"),
            (json!({"n": 90_000}), "Wait 90 seconds"),
            (json!({"n": 0.15}), "Take 15% off"),
            (json!({"n": 120}), "For the last 2 hours"),
            (json!({"n": 0}), "Show the first table"),
            (json!({"q": "2026-03-03"}), "What is on March 3, 2026?"),
            (json!({"q": "16:30"}), "Meet me at 4:30 pm."),
            (json!({"q": "Asia/Tokyo"}), "How late is it in Tokyo?"),
            (json!({"q": "fr"}), "Put it into French."),
            (json!({"q": "EUR"}), "How many euros?"),
            (json!({"q": "https://mill.example/a"}), "Read mill.example/a"),
            (json!({"q": "apples,pears"}), "I want apples and pears."),
            (json!({"q": "new-york-city"}), "Somewhere in New York City"),
            (json!({"q": "tent reviews light"}), "Look for reviews of light tents."),
            (json!({"tags": ["red", "blue"]}), "Tag it red and blue"),
            (json!({"q": "**/*.md"}), "Find my markdown files"),
            (json!({"sql": "SELECT sum(price) FROM goods WHERE city = 'Oslo'"}), "What did we take in Oslo?"),
        ] {
            assert!(of(&arguments, request, "en").iter().all(|g| *g == Ground::Said), "{arguments} {request}");
        }
        for (arguments, request) in [
            (json!({"q": "Bergen"}), "How is Oslo?"),
            (json!({"n": 4}), "How is Oslo in three days?"),
            (json!({"page": 2}), "Show it"),
            (json!({"q": "2026-03-04"}), "What is on March 3, 2026?"),
            (json!({"q": "apples,plums"}), "I want apples and pears."),
            (json!({"tags": ["red", "green"]}), "Tag it red and blue"),
            (json!({"q": "*.txt"}), "Find my markdown files"),
            (json!({"pattern": "*.txt"}), "List all the files in data, then read them."),
            (json!({"pattern": ".*\\.txt"}), "List all the files in data, then read them."),
            (json!({"sql": "SELECT sum(price) FROM goods WHERE city = 'Rome'"}), "What did we take in Oslo?"),
        ] {
            assert!(of(&arguments, request, "en").contains(&Ground::Unsaid), "{arguments} {request}");
        }
        assert_eq!(of(&json!({"q": "2026-03-04"}), "What is on tomorrow?", "en"), [Ground::Open]);
        assert_eq!(of(&json!({"q": "Warsaw"}), "Jak jest w Warszawie?", "pl"), [Ground::Open]);
    }
}
