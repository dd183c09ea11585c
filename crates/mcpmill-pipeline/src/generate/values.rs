//! Values: which of them a request states, and what arguments state too much.

use serde_json::{Map, Value};

use crate::card::word;

/// A value that a request should state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The parameter it belongs to.
    pub(super) name: String,
    /// The value as a person would write it.
    pub(super) text: String,
}

/// Strings longer than this need not stand in a request word for word.
const LONGEST: usize = 160;
/// Values with such characters are code: nobody says them, and the rewriting prompt cannot hold them.
const UNSPOKEN: [char; 6] = ['{', '}', '<', '>', '`', '\n'];
/// Values of one call that are looked at.
const MOST: usize = 8;

/// Parameters whose values people do not spell out: they say what they want, not the SQL for it.
pub(super) fn is_expression(name: &str) -> bool {
    let name = name.to_lowercase();
    ["query", "sql", "code", "expression", "script", "command", "regex", "pattern", "geojson", "notation"]
        .iter()
        .any(|w| name.contains(w))
}

/// The values of `arguments` that a request should state word for word. Truth values and the words
/// of enumerations are left out: people paraphrase them.
pub(super) fn to_state(arguments: &Map<String, Value>, schema: &Value) -> Vec<Named> {
    let mut out = Vec::new();
    for (name, value) in arguments {
        if !is_expression(name) && schema["properties"][name]["enum"].is_null() {
            collect(name, value, &mut out);
        }
    }
    out.truncate(MOST);
    out
}

fn collect(name: &str, value: &Value, out: &mut Vec<Named>) {
    match value {
        Value::String(text) if !text.trim().is_empty() && text.chars().count() <= LONGEST && !text.contains(UNSPOKEN) => {
            out.push(Named { name: word(name), text: text.trim().to_owned() });
        }
        Value::Number(number) => out.push(Named { name: word(name), text: number.to_string() }),
        Value::Array(items) => items.iter().for_each(|item| collect(name, item, out)),
        Value::Object(map) => map.iter().filter(|(k, _)| !is_expression(k)).for_each(|(k, v)| collect(k, v, out)),
        _ => {}
    }
}

/// The values of `arguments` as they are, words of lists and truth values too.
pub(super) fn all(arguments: &Map<String, Value>) -> Vec<Named> {
    let mut out = Vec::new();
    arguments.iter().for_each(|(name, value)| collect(name, value, &mut out));
    out
}

/// The values that `request` does not state.
pub(super) fn missing(values: &[Named], request: &str) -> Vec<Named> {
    values.iter().filter(|v| !states(request, &v.text)).cloned().collect()
}

/// Whether `request` holds `value` word for word, white space, case and quotes aside. A number must
/// stand alone: `4` is not stated by `42`.
pub(crate) fn states(request: &str, value: &str) -> bool {
    let (request, value) = (normal(request), normal(value));
    if value.is_empty() {
        return true;
    }
    let number = value.parse::<f64>().is_ok();
    request.match_indices(&value).any(|(at, found)| {
        let before = request[..at].chars().next_back();
        let mut after = request[at + found.len()..].chars();
        let next = after.next();
        // Scripts without spaces between words have no boundary that could be missed.
        let joins = |c: Option<char>| c.is_some_and(|c| (c.is_alphanumeric() && !is_unspaced(c)) || c == '_');
        // `3.` ends a sentence, `3.5` is another number.
        let decimal = number && next == Some('.') && after.next().is_some_and(|c| c.is_ascii_digit());
        !joins(before) && !joins(next) && !decimal
    })
}

/// Letters of scripts that put no spaces between words: Chinese, Japanese, Thai and their neighbours.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Whether a text ends as sentences do, in any of the scripts that models write.
pub(crate) fn is_ended(text: &str) -> bool {
    text.ends_with(['.', '?', '!', '"', '\'', ')', '…', '”', '’', '»', '。', '？', '！', '」', '』', '）', '؟', '।'])
}

/// The first concrete value of `text` that nothing in `known` states: a number, what stands in quotes, a path, an
/// address, a date, a name with digits in it. A rewrite must not bring such: it would belong to a parameter.
pub(crate) fn invented(text: &str, known: &[&str]) -> Option<String> {
    let stated = |value: &str| known.iter().any(|known| states(known, value));
    concrete(text).into_iter().find(|value| !stated(value) && !parts_stated(value, &stated)).map(str::to_owned)
}

/// The concrete values of `text`: what stands in quotes, then single words.
pub(super) fn concrete(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c.is_whitespace() || is_unspaced(c) || "\"“”,;()[]".contains(c)).map(bare);
    let words = words.enumerate().filter(|(at, word)| is_concrete(word, *at == 0)).map(|(_, word)| word);
    quoted(text).into_iter().chain(words).collect()
}

/// A word without what ends a sentence, and without a possessive.
fn bare(word: &str) -> &str {
    let word = word.trim_matches(|c: char| ".!?:'’‘`*".contains(c));
    word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(word)
}

/// What stands in quotation marks; an apostrophe is none.
fn quoted(text: &str) -> Vec<&str> {
    let pairs = [('"', '"'), ('“', '”'), ('«', '»'), ('`', '`'), ('「', '」'), ('„', '“')];
    let mut found = Vec::new();
    for (open, close) in pairs {
        let mut rest = text;
        while let Some((inner, after)) = rest.split_once(open).and_then(|(_, after)| after.split_once(close)) {
            found.push(inner.trim());
            rest = after;
        }
    }
    // `'notes'`, but not `John's and Mary's`.
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\'') {
        let opens = before.chars().next_back().is_none_or(|c| c.is_whitespace() || c == '(');
        match after.split_once('\'').filter(|_| opens) {
            Some((inner, tail)) if tail.chars().next().is_none_or(|c| !c.is_alphanumeric()) => {
                found.push(inner.trim());
                rest = tail;
            }
            _ => rest = after,
        }
    }
    found.retain(|value| !value.is_empty());
    found
}

const DAYS: [&str; 18] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "January",
    "February",
    "April",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
    "March",
];

/// Whether a word is a value of its own: it has a digit, is a path, an address, a file, a name in code, or a date.
fn is_concrete(word: &str, first: bool) -> bool {
    let named_file = word.rsplit_once('.').is_some_and(|(stem, ending)| {
        stem.chars().count() > 1 && (2..=5).contains(&ending.len()) && ending.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    let path = word.starts_with(['/', '~', '\\']) || word.matches('/').count() > 1 || word.contains("://");
    let code = word.contains('_') || word.contains('@') || (word.starts_with('#') && word.len() > 1);
    let digit = word.chars().any(char::is_numeric);
    // "March" may begin a sentence as a verb.
    digit || (word.chars().count() > 1 && (path || named_file || code)) || (!first && DAYS.contains(&word))
}

/// Whether what is concrete in a joined word (`3-day`, `10am`) is stated by itself.
fn parts_stated(word: &str, stated: &impl Fn(&str) -> bool) -> bool {
    if word.contains(['/', '_', '@', '#', '\\']) || !word.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, rest) = word.split_at(end);
    !rest.chars().any(char::is_numeric) && stated(number)
}

fn normal(text: &str) -> String {
    let plain = text.chars().filter(|c| !matches!(c, '"' | '\'' | '`' | '’' | '“' | '”'));
    plain.flat_map(char::to_lowercase).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a value and its name can stand in a plain sentence: a word or number, a name of plain words.
pub(super) fn is_plain(value: &Named) -> bool {
    let word = !value.text.contains(char::is_whitespace) && value.text.chars().count() <= 40;
    word && value.name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// What gives away a made-up value, as a part of any word, and as a whole word.
const PLACEHOLDER_PARTS: [&str; 8] = ["path/to", "/path/", "your_", "your-", "placeholder", "lorem ipsum", "foo bar", "…"];
const PLACEHOLDER_WORDS: [&str; 4] = ["n/a", "tbd", "xxx", "..."];

/// The first placeholder in `text`, `<name>` and `[your name]` among them.
pub(crate) fn placeholder(text: &str) -> Option<String> {
    let text = text.to_lowercase();
    let part = PLACEHOLDER_PARTS.into_iter().find(|p| text.contains(p)).map(str::to_owned);
    let mut words = text.split(|c: char| c.is_whitespace() || "\"'(),;:".contains(c));
    part.or_else(|| words.find(|word| PLACEHOLDER_WORDS.contains(word)).map(str::to_owned)).or_else(|| bracketed(&text))
}

/// How small models begin when they forget that they write as the person who asks.
const ASSISTANT: [&str; 6] = ["i'm sorry, but", "i am sorry, but", "i cannot ", "i can't access", "sure, ", "as an ai"];

/// Whether `text` is an assistant's answer and not a person's words.
pub(crate) fn speaks_as_assistant(text: &str) -> bool {
    let text = text.trim().to_lowercase().replace('’', "'");
    ASSISTANT.iter().any(|start| text.starts_with(start)) || text.contains("as an ai ") || text.contains("as a language model")
}

/// Words right inside angle brackets (`a < b` is none), or in square brackets that speak of "your" or "the".
fn bracketed(text: &str) -> Option<String> {
    let inside =
        |open: char, close: char| text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner);
    let joined = |inner: &str| !inner.is_empty() && inner.trim() == inner;
    let angle = inside('<', '>').find(|inner| joined(inner) && inner.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c)));
    let square =
        inside('[', ']').find(|inner| inner.starts_with("your ") || inner.starts_with("the ") || inner.starts_with("insert "));
    angle.or(square).map(str::to_owned)
}

/// Takes out optional arguments that are empty, or that the request does not state: noise that
/// small models add, and that real servers refuse.
pub(crate) fn prune(arguments: &Map<String, Value>, required: &[String], request: &str) -> Map<String, Value> {
    let keep = |name: &String, value: &Value| required.contains(name) || is_stated(value, request);
    arguments.iter().filter(|(name, value)| keep(name, value)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

fn is_stated(value: &Value, request: &str) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(n) => states(request, &n.to_string()),
        Value::String(text) => !text.trim().is_empty() && states(request, text),
        Value::Array(items) => !items.is_empty() && items.iter().all(|item| is_stated(item, request)),
        Value::Object(map) => !map.is_empty() && map.values().any(|v| is_stated(v, request)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_whole_values_only() {
        assert!(states("Read \"Notes/Plan.md\", please.", "notes/plan.md"));
        assert!(states("for 3 days.", "3"));
        assert!(states("It weighs 3.", "3"));
        assert!(!states("It weighs 3.5 kilos", "3"));
        assert!(!states("for 30 days", "3"));
        assert!(!states("the catalogue", "cat"));
        assert!(states("Zürich, then", "zürich"));
        assert!(states("请推荐包含牛排的菜谱。", "牛排"));
        assert!(!states("日本123円", "12"));
    }

    #[test]
    fn sentences_end_in_many_ways() {
        for good in ["Do it.", "今天吃什么？", "请推荐菜谱。", "He said \"no\""] {
            assert!(is_ended(good), "{good}");
        }
        assert!(!is_ended("and display it in the web bro"));
    }

    #[test]
    fn collects_what_people_say() {
        let schema = json!({"properties": {"unit": {"enum": ["c", "f"]}}});
        let arguments =
            json!({"unit": "c", "sql": "select 1", "on": true, "city": " Oslo ", "list": [{"name": "Ada", "age": 3}]});
        let values = to_state(arguments.as_object().unwrap(), &schema);
        let texts: Vec<&str> = values.iter().map(|v| v.text.as_str()).collect();
        assert_eq!(texts, ["Oslo", "Ada", "3"]);
        assert_eq!(missing(&values, "Ada in Oslo")[0].text, "3");
    }

    #[test]
    fn prunes_noise_but_nothing_required() {
        let arguments = json!({"path": "a.txt", "tail": 0, "head": 5, "labels": [], "verbose": false, "deep": true});
        let kept = prune(arguments.as_object().unwrap(), &["path".into()], "first 5 lines");
        assert_eq!(Value::Object(kept), json!({"path": "a.txt", "head": 5, "deep": true}));
    }

    #[test]
    fn an_assistants_words_are_seen() {
        for bad in
            ["I'm sorry, but I can't access the file.", "Sure, here it is.", "I’m sorry, but no.", "Well, as an AI model I do."]
        {
            assert!(speaks_as_assistant(bad), "{bad}");
        }
        for good in ["I'm sorry to bother you again.", "I'm not sure, can you look?", "We want to surely know."] {
            assert!(!speaks_as_assistant(good), "{good}");
        }
    }

    #[test]
    fn placeholders_are_seen() {
        for bad in ["read path/to/file", "mail <name>", "for [your city]", "size: n/a", "wait ..."] {
            assert!(placeholder(bad).is_some(), "{bad}");
        }
        for good in ["read notes/april.md", "reunion/april.txt", "select * from t where units > 10", "[1, 2]", "a < b > c.d"] {
            assert_eq!(placeholder(good), None, "{good}");
        }
    }

    #[test]
    fn invented_values_are_seen_and_known_ones_are_not() {
        let known = ["Show the 3 newest notes of \"Ada Fox\" in notes/plan.md before 2024-05-01.", "id-77"];
        for bad in [
            "Show 5 notes.",
            "Show notes of \"Bob\".",
            "Show the notes of 'Bob'.",
            "Look into /var/log for it.",
            "Look into notes/other.md for it.",
            "Send it to ada@example.org.",
            "Read https://example.org now.",
            "It was on Friday, I think.",
            "Show 3.5 of them.",
            "The ticket is id-78.",
            "Ask for user_name first.",
            "Do it until 2024-05-02.",
            "Room B12 it is.",
            "显示5条笔记。",
        ] {
            assert!(invented(bad, &known).is_some(), "{bad}");
        }
        for good in [
            "Show the 3 newest notes of Ada Fox, please.",
            "For a 3-day trip: what is in notes/plan.md?",
            "It's John's and Mary's, and/or ours, e.g. by id-77.",
            "Please, before 2024-05-01!",
            "March on. I want it soon.",
            "Ada Fox's \"notes/plan.md\"",
        ] {
            assert_eq!(invented(good, &known), None, "{good}");
        }
    }
}
