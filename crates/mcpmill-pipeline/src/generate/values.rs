//! Values: which of them a request states, and what arguments state too much.

use serde_json::{Map, Value};

use super::{
    code::is_expression,
    forms::{self, words},
};
use crate::card::word;

/// A value that a request should state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The parameter it belongs to.
    pub(super) name: String,
    /// The value as a person would write it.
    pub(super) text: String,
    /// Of a truth value: the words of which one says it. Empty for all others, which are said by their text.
    pub(super) words: Vec<String>,
}

impl Named {
    /// A value that is said by its text; `name` is its parameter's.
    pub(super) fn new(name: &str, text: impl Into<String>) -> Self {
        Self { name: word(name), text: text.into(), words: Vec::new() }
    }

    /// Whether it is a truth value.
    pub(super) fn is_truth(&self) -> bool {
        !self.words.is_empty()
    }

    fn is_said(&self, request: &str) -> bool {
        if self.is_truth() { says_any(request, &self.words) } else { states(request, &self.text) }
    }
}

/// Whether a text has one of some words, in the singular or the plural.
pub(super) fn says_any(text: &str, of: &[String]) -> bool {
    text.split_whitespace().flat_map(words).any(|word| of.contains(&word))
}

/// Strings longer than this need not stand in a request word for word.
const LONGEST: usize = 160;
/// Values with such characters are code: nobody says them, and the rewriting prompt cannot hold them.
const UNSPOKEN: [char; 6] = ['{', '}', '<', '>', '`', '\n'];
/// Values of one call that are looked at.
const MOST: usize = 24;

/// The values of `arguments` that a request should state word for word. Truth values and the words
/// of enumerations are left out: people paraphrase them.
pub(super) fn to_state(arguments: &Map<String, Value>, schema: &Value) -> Vec<Named> {
    let mut out = Vec::new();
    for (name, value) in arguments {
        if forms::plain(&schema["properties"][name])["enum"].is_null() {
            collect(name, value, &mut out);
        }
    }
    out.truncate(MOST);
    out
}

fn collect(name: &str, value: &Value, out: &mut Vec<Named>) {
    match value {
        Value::String(text) if !text.trim().is_empty() && is_short(text) && !is_expression(name, text) => {
            out.push(Named::new(name, text.trim()));
        }
        Value::Number(number) => out.push(Named::new(name, number.to_string())),
        Value::Array(items) => items.iter().for_each(|item| collect(name, item, out)),
        Value::Object(map) => map.iter().for_each(|(k, v)| collect(k, v, out)),
        _ => {}
    }
}

/// Whether a text is one that a request can hold word for word.
pub(super) fn is_short(text: &str) -> bool {
    text.chars().count() <= LONGEST && !text.contains(UNSPOKEN)
}

/// The values of `arguments` as they are, words of lists and truth values too.
pub(super) fn all(arguments: &Map<String, Value>) -> Vec<Named> {
    let mut out = Vec::new();
    arguments.iter().for_each(|(name, value)| collect(name, value, &mut out));
    out
}

/// All that `arguments` hold in texts and numbers, however long and in whatever language of its own.
pub(crate) fn texts(arguments: &Map<String, Value>) -> Vec<String> {
    fn walk(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::String(text) => out.push(text.clone()),
            Value::Number(number) => out.push(number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| walk(item, out)),
            Value::Object(map) => map.values().for_each(|item| walk(item, out)),
            Value::Null | Value::Bool(_) => {}
        }
    }
    let mut out = Vec::new();
    arguments.values().for_each(|value| walk(value, &mut out));
    out
}

/// The values that `request` does not state.
pub(super) fn missing(values: &[Named], request: &str) -> Vec<Named> {
    values.iter().filter(|v| !v.is_said(request)).cloned().collect()
}

/// Whether `request` holds `value` word for word, white space, case and quotes aside. A number must
/// stand alone, in any of its spellings: `4` is not stated by `42`, but by `4.0`.
pub(crate) fn states(request: &str, value: &str) -> bool {
    let (request, value) = (normal(request), normal(value));
    if value.is_empty() {
        return true;
    }
    match number_of(&value) {
        Some(number) => spellings(&number).iter().any(|spelling| holds(&request, spelling, true)),
        None => holds(&request, &value, false),
    }
}

/// Whether `value` stands in `request` between boundaries.
fn holds(request: &str, value: &str, number: bool) -> bool {
    request.match_indices(value).any(|(at, found)| {
        let (before, after) = (&request[..at], &request[at + found.len()..]);
        // Scripts without spaces between words have no boundary that could be missed.
        let joins = |c: Option<char>| c.is_some_and(|c| (c.is_alphanumeric() && !is_unspaced(c)) || c == '_');
        // The day and the hour of a time stamp, which people name apart: `2026-11-30T10:36`.
        let stamped = !number && value.contains(['-', ':']);
        let left = stamped && before.strip_suffix('t').is_some_and(|day| day.ends_with(|c: char| c.is_ascii_digit()));
        let right = stamped && after.strip_prefix('t').is_some_and(|hour| hour.starts_with(|c: char| c.is_ascii_digit()));
        let free = (left || !joins(before.chars().next_back())) && (right || !joins(after.chars().next()));
        free && !(number && is_part(before, after))
    })
}

/// Whether what stands between `before` and `after` is a part of another number, a date or a version: `3` of `3.5`, of
/// `1.3`, of `4,003` and of `-3`. `3.` ends a sentence, and `3-5` holds both of its numbers.
fn is_part(before: &str, after: &str) -> bool {
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let mut left = before.chars().rev();
    let joined = match left.next() {
        Some('.' | ',') => digit(left.next()),
        // A sign has nothing before it; the middle of a range has a number.
        Some('-' | '−') => left.next().is_none_or(|c| !c.is_alphanumeric()),
        _ => false,
    };
    let mut right = after.chars();
    let goes_on = match right.next() {
        Some('.') => digit(right.next()),
        Some(',') => {
            let group = right.clone().take_while(char::is_ascii_digit).count();
            group == 3
        }
        _ => false,
    };
    let dash = |c: &char| c.is_ascii_digit() || *c == '-';
    let tail = before.chars().rev().take_while(dash).filter(|c| *c == '-').count();
    let dashes = tail + after.chars().take_while(dash).filter(|c| *c == '-').count();
    joined || goes_on || dashes > 1
}

/// A number without what groups its thousands; `None` for what is no number.
fn number_of(value: &str) -> Option<String> {
    let digits = value.strip_prefix(['-', '+', '−']).unwrap_or(value);
    let mut groups = digits.split('.').next().unwrap_or_default().split(',');
    let first = groups.next().unwrap_or_default();
    let grouped = (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3);
    let plain = if grouped { value.replace(',', "") } else { value.to_owned() };
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && plain.parse::<f64>().is_ok();
    is_number.then_some(plain)
}

/// How a number may be written: `5` and `5.0`, `4821` and `4,821`.
fn spellings(number: &str) -> Vec<String> {
    let mut all = vec![number.to_owned()];
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || !whole.chars().chain(part.chars()).all(|c| c.is_ascii_digit()) {
        return all;
    }
    let part = part.trim_end_matches('0');
    for whole in [whole.to_owned(), thousands(whole)] {
        let parts = if part.is_empty() { [String::new(), ".0".into()] } else { [format!(".{part}"), format!(".{part}0")] };
        all.extend(parts.iter().map(|part| format!("{sign}{whole}{part}")));
    }
    all
}

fn thousands(whole: &str) -> String {
    let length = whole.len();
    let comma = |at: usize| at > 0 && (length - at).is_multiple_of(3);
    whole.char_indices().flat_map(|(at, c)| comma(at).then_some(',').into_iter().chain([c])).collect()
}

/// Letters of scripts that put no spaces between words: Chinese, Japanese, Thai and their neighbours.
pub(crate) fn is_unspaced(c: char) -> bool {
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
pub(super) fn bare(word: &str) -> &str {
    let word = word.trim_matches(|c: char| ".!?:'’‘`*".contains(c));
    word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(word)
}

/// What stands in quotation marks; an apostrophe is none.
pub(crate) fn quoted(text: &str) -> Vec<&str> {
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
    let word = !value.is_truth() && !value.text.contains(char::is_whitespace) && value.text.chars().count() <= 40;
    word && value.name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// What gives away a made-up value, as a part of any word, and as a whole word.
const PLACEHOLDER_PARTS: [&str; 9] =
    ["path/to", "/path/", "*.ext", "your_", "your-", "placeholder", "lorem ipsum", "foo bar", "…"];
const PLACEHOLDER_WORDS: [&str; 4] = ["n/a", "tbd", "xxx", "..."];

/// The first placeholder in `text`, `<name>` and `[your name]` among them.
pub(crate) fn placeholder(text: &str) -> Option<String> {
    let text = text.to_lowercase();
    let part = PLACEHOLDER_PARTS.into_iter().find(|p| text.contains(p)).map(str::to_owned);
    let mut words = text.split(|c: char| c.is_whitespace() || "\"'(),;:".contains(c));
    part.or_else(|| words.find(|word| PLACEHOLDER_WORDS.contains(word)).map(str::to_owned)).or_else(|| bracketed(&text))
}

/// The first placeholder in the texts of values, their names left alone, for which `counts` holds.
pub(crate) fn held(values: &Map<String, Value>, counts: &dyn Fn(&str) -> bool) -> Option<String> {
    fn of(value: &Value, counts: &dyn Fn(&str) -> bool) -> Option<String> {
        match value {
            Value::String(text) => placeholder(text).filter(|word| counts(word)),
            Value::Array(items) => items.iter().find_map(|item| of(item, counts)),
            Value::Object(map) => held(map, counts),
            _ => None,
        }
    }
    values.values().find_map(|value| of(value, counts))
}

/// How small models begin when they forget that they write as the person who asks.
const ASSISTANT: [&str; 6] = ["i'm sorry, but", "i am sorry, but", "i cannot ", "i can't access", "sure, ", "as an ai"];

/// Whether `text` is an assistant's answer and not a person's words.
pub(crate) fn speaks_as_assistant(text: &str) -> bool {
    let text = text.trim().to_lowercase().replace('’', "'");
    ASSISTANT.iter().any(|start| text.starts_with(start)) || text.contains("as an ai ") || text.contains("as a language model")
}

/// How requests speak of something that is to stand somewhere else.
const ELSEWHERE: [&str; 4] = ["above", "given", "provided", "specified"];
/// What they say stands there.
const THINGS: [&str; 28] = [
    "file",
    "files",
    "data",
    "text",
    "texts",
    "content",
    "contents",
    "path",
    "paths",
    "directory",
    "folder",
    "code",
    "css",
    "html",
    "yaml",
    "json",
    "list",
    "key",
    "document",
    "documents",
    "query",
    "values",
    "string",
    "message",
    "information",
    "table",
    "array",
    "settings",
];

/// The words with which a request points at something that stands nowhere in it: `the given data`, `listed above`. What
/// stands in its `values` says nothing.
pub(super) fn points_nowhere(text: &str, values: &[&str]) -> Option<String> {
    let mut low = text.to_lowercase();
    for value in values.iter().filter(|value| value.contains(' ')) {
        low = low.replace(&value.to_lowercase(), " ");
    }
    let words: Vec<&str> =
        low.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '\'')).filter(|word| !word.is_empty()).collect();
    let far = words
        .windows(3)
        .find(|w| matches!(w[0], "the" | "this" | "these" | "that") && ELSEWHERE.contains(&w[1]) && THINGS.contains(&w[2]));
    let back = words.windows(2).find(|w| matches!(w[0], "listed" | "mentioned" | "described") && w[1] == "above");
    far.or(back).map(|words| words.join(" "))
}

/// Words right inside angle brackets (`a < b` is none), or in square brackets that speak of "your" or "the".
fn bracketed(text: &str) -> Option<String> {
    let inside =
        |open: char, close: char| text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner);
    let joined = |inner: &str| !inner.is_empty() && inner.trim() == inner;
    let angle = inside('<', '>').find(|inner| joined(inner) && inner.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c)));
    let stands_for = |inner: &str| {
        let words: Vec<&str> = inner.split(' ').collect();
        let blank = ["your", "the", "insert", "link", "name", "date", "title", "city"].contains(&words[0]);
        blank && words.len() > 1 && words.iter().all(|word| word.chars().all(char::is_alphabetic))
    };
    let square = inside('[', ']').find(|inner| stands_for(inner));
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
        let stamp = r#"{"at": "2026-11-30T10:36:11-05:00"}"#;
        assert!(states(stamp, "10:36") && states(stamp, "2026-11-30") && !states(stamp, "0:36") && !states(stamp, "10:3"));
        for (request, value) in [
            ("1.5 kilos", "5"),
            ("at -5 degrees", "5"),
            ("version 2.3.5", "5"),
            ("version 2.3.5", "3"),
            ("ticket 4,821", "821"),
            ("ticket 4,821", "4"),
            ("on 2024-10-12", "10"),
            ("from 3-5", "-5"),
            ("10-5", "-5"),
        ] {
            assert!(!states(request, value), "{request} does not state {value}");
        }
        for (request, value) in [
            ("3-5 days", "3"),
            ("3-5 days", "5"),
            ("10-5", "5"),
            ("5, 6 or 7", "5"),
            ("5 kilos", "5.0"),
            ("5.0 kilos", "5"),
            ("2.50 euros", "2.5"),
            ("ticket 4,821", "4821"),
            ("ticket 4821", "4,821"),
            ("at -5 degrees", "-5"),
            ("is it 5, then?", "5"),
        ] {
            assert!(states(request, value), "{request} states {value}");
        }
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
            json!({"unit": "c", "sql": "SELECT 1", "on": true, "city": " Oslo ", "list": [{"name": "Ada", "age": 3}]});
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
    fn what_points_nowhere_is_seen() {
        for bad in [
            "Write the above data into sales.csv.",
            "Convert the given CSS.",
            "Use the provided key.",
            "Look in the specified path.",
            "Read all files listed above.",
        ] {
            assert!(points_nowhere(bad, &[]).is_some(), "{bad}");
        }
        for good in [
            "Show prices above 30.",
            "Which dishes were given a star?",
            "Is breakfast provided at the hotel?",
            "Play it loudly, provided that nobody sleeps.",
            "How do they breathe above three thousand metres?",
            "Is it a forgiven code of honour?",
            "Which ones lie above the above-average ones?",
        ] {
            assert_eq!(points_nowhere(good, &[]), None, "{good}");
        }
        assert_eq!(points_nowhere("Look for \"the given data\".", &["the given data"]), None);
    }

    #[test]
    fn placeholders_are_seen() {
        for bad in [
            "read path/to/file",
            "mail <name>",
            "for [your city]",
            "see [link to blog post]",
            "size: n/a",
            "wait ...",
            "find **/*.ext",
        ] {
            assert!(placeholder(bad).is_some(), "{bad}");
        }
        for good in
            ["read notes/april.md", "reunion/april.txt", "select * from t where units > 10", "[1, 2]", "[name]", "a < b > c.d"]
        {
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
