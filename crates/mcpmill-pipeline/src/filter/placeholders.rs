//! `placeholders`: what was to be filled in and was not: ellipses, `<your name>`, `YOUR_API_KEY`, `{{city}}`, code where
//! a value belongs. What the tool's schema names itself is fine, and so is content that the request states. Costs
//! nothing.

use std::sync::LazyLock;

use async_trait::async_trait;
use mcpmill_core::record::Verdict;
use regex::Regex;
use serde_json::{Value, json};

use super::{
    Bench, Case, Filter, Plant,
    leaves::{Leaf, leaves},
};
use crate::{
    ask::Meter,
    generate::{
        values::{quoted, states},
        words,
    },
};

pub(super) struct Placeholders {
    pub(super) name: String,
}

/// What stands for something else wherever it stands.
static BLANKS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        r"(?i)<(?:your|the|insert|enter|my|some|any)[ _-][a-z0-9 _-]{1,40}>",
        r"(?i)<(?:name|city|date|path|url|id|value|file|filename|query|text|email|token|username|location|string|number|placeholder)>",
        r"(?i)\[(?:your|the|insert|enter|link to|name of|date of|title of|city of)[ _-][a-z0-9 _-]{1,40}\]",
        r"(?i)\[(?:name|city|date|path|url|id|value|filename|query|email|username|location|placeholder)\]",
        r"\{\{ ?[A-Za-z_][A-Za-z0-9_. -]{0,40} ?\}\}",
        r"\$\{[A-Za-z_][A-Za-z0-9_.]{0,40}\}",
        r"\b(?:YOUR|MY|INSERT|ENTER)_[A-Z][A-Z0-9_]{1,40}\b",
        r"\byour[_-](?:api|access|secret|user|file|project|repo|domain|token|key|name|email)(?:[_-][a-z]+)*\b",
        r"(?i)\bpath/to/",
        r"\b(?:x{3,}|X{4,})\b",
        r"(?i)\blorem ipsum\b",
    ];
    patterns.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect()
});
/// Dots that leave something out, where words or items go on.
static ELLIPSES: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*(?:\.{3,}|…)\s*$|[,\[({]\s*(?:\.{3,}|…)|(?:^|\s)\.{3,}\s*[\])},]|/(?:\.{3,}|…)").ok());
/// What only values are held to.
static IN_VALUES: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [r"\bTODO\b", r"(?i)\bexample\.(?:com|org|net)\b", r"(?i)\bplaceholder\b", r"^(?i:n/a|tbd|tbc|foo ?bar)$"];
    patterns.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect()
});
/// Code where a value belongs.
static CODE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?x)\b(?:Math|Date|JSON|Object|Array|Number|String|datetime|time|uuid|random|os\.path|os\.environ|process\.env|np|numpy|crypto)\s?\.[a-zA-Z]\w*(?:\(|\b\.)
        | \bnew\ Date\( | \bprocess\.env\.\w | \bos\.environ\[ | \b(?:parseInt|parseFloat|getDate|toISOString|strftime|uuid4|randomUUID)\(",
    )
    .ok()
});
/// Words for what a value is, in place of one.
const KINDS: [&str; 12] = [
    "string",
    "value",
    "number",
    "integer",
    "boolean",
    "undefined",
    "placeholder",
    "some value",
    "example value",
    "sample text",
    "your text here",
    "insert text here",
];
/// Parameters that take code, by a word of their names.
const TAKES_CODE: [&str; 16] = [
    "code",
    "script",
    "expression",
    "expr",
    "query",
    "sql",
    "command",
    "formula",
    "source",
    "content",
    "text",
    "program",
    "css",
    "template",
    "pattern",
    "cmd",
];

#[async_trait]
impl Filter for Placeholders {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Placeholder]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let requests = case.requests();
        if let Some(found) = requests.iter().find_map(|text| in_request(text)) {
            return bench.drop(format!("placeholder: the instruction holds `{found}`"));
        }
        for (i, (call, tool)) in case.calls().into_iter().enumerate() {
            let schema = tool.map(mcpmill_core::record::Tool::schema).unwrap_or_default();
            for leaf in leaves(&call.arguments, &schema) {
                if let Some(found) = in_value(&leaf, &requests) {
                    let why = format!("placeholder: call {} (`{}`): `{}` holds `{found}`", i + 1, call.name, leaf.at);
                    return Verdict { evidence: Some(json!({ "at": leaf.at, "found": found }).to_string()), ..bench.drop(why) };
                }
            }
        }
        bench.keep("ok: no placeholder")
    }
}

fn first(all: &[Regex], text: &str) -> Option<String> {
    all.iter().find_map(|one| one.find(text)).map(|found| found.as_str().trim().to_owned())
}

fn of(one: &LazyLock<Option<Regex>>, text: &str) -> Option<String> {
    one.as_ref().and_then(|one| one.find(text)).map(|found| found.as_str().trim().to_owned())
}

/// The first placeholder of a request. What it quotes is content, but for what is nothing else than a placeholder.
fn in_request(text: &str) -> Option<String> {
    let quotes = quoted(text);
    let mut rest = text.to_owned();
    for quote in &quotes {
        rest = rest.replace(quote, " ");
    }
    let whole = |quote: &&str| first(&BLANKS, quote).filter(|found| found.len() * 2 > quote.len());
    let left = |text: &str| of(&ELLIPSES, text).filter(|found| found.contains([',', '[', '(', '{']));
    first(&BLANKS, &rest).or_else(|| quotes.iter().find_map(whole)).or_else(|| left(&rest))
}

/// The placeholder in a value.
fn in_value(leaf: &Leaf<'_>, requests: &[&str]) -> Option<String> {
    let Value::String(text) = leaf.value else { return None };
    if leaf.listed {
        return None;
    }
    let said = |what: &str| requests.iter().any(|request| states(request, what));
    let whole = text.trim();
    if KINDS.contains(&whole.to_lowercase().as_str()) && !said(whole) {
        return Some(whole.to_owned());
    }
    let blank = first(&BLANKS, whole).filter(|found| found.len() * 2 > whole.len() || !said(whole));
    // The schema may say that such is what it takes: a template, a variable.
    let blank = blank.filter(|found| !shows(&leaf.property, found));
    let dots = || of(&ELLIPSES, whole).filter(|_| !said(whole));
    let other = || first(&IN_VALUES, whole).filter(|found| !said(found) && !shows(&leaf.property, found));
    let takes_code = || words(&leaf.name).iter().any(|word| TAKES_CODE.contains(&word.as_str()));
    let code = || of(&CODE, whole).filter(|_| !takes_code() && !said(whole));
    blank.or_else(dots).or_else(other).or_else(code)
}

/// Whether the description of a property shows the text itself.
fn shows(property: &Value, found: &str) -> bool {
    property["description"].as_str().is_some_and(|text| text.contains(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_requests_are_told_from_what_they_quote() {
        for bad in [
            "Send a note to <your name> about lunch.",
            "What is the weather in [insert city] now?",
            "Read the file at /path/to/notes.md.",
            "Look up \"<city>\" for me.",
            "Use YOUR_API_KEY to log in.",
            "Greet {{name}} for me",
            "My number is xxx.",
            "Average the list [1, 2, 3, ...] for me.",
        ] {
            assert!(in_request(bad).is_some(), "{bad}");
        }
        for good in [
            "Hmm... what is in notes.md?",
            "Write \"Dear {{name}}, welcome to the club\" into letter.txt.",
            "Is 3 < 5 and 7 > 6?",
            "Put <b>bold</b> into a.html",
            "Add a TODO to my list: water the plants",
            "Roll 3d6 for XXL shirts, please.",
            "Show me example.com's title.",
        ] {
            assert_eq!(in_request(good), None, "{good}");
        }
    }

    #[test]
    fn blanks_of_values_are_told_from_what_is_asked_for_or_declared() {
        let schema = json!({"properties": {"kind": {"enum": ["string", "number"]}, "day": {"default": "TODO"},
            "site": {"examples": ["https://example.com"]}, "mail": {"description": "with {{name}} for the name"}}});
        let found = |arguments: Value, request: &str| {
            let arguments = arguments.as_object().unwrap().clone();
            leaves(&arguments, &schema).iter().find_map(|leaf| in_value(leaf, &[request]))
        };
        for bad in [
            json!({"city": "<city>"}),
            json!({"city": "..."}),
            json!({"list": "[1,2,3,...]"}),
            json!({"list": [1, 2, "…"]}),
            json!({"who": "string"}),
            json!({"day": "Date.now()"}),
            json!({"n": {"x": "Math.round(7.5)"}}),
            json!({"key": "YOUR_API_KEY"}),
            json!({"path": "/path/to/file"}),
            json!({"site": "https://example.com/a"}),
            json!({"note": "TODO"}),
        ] {
            assert!(found(bad.clone(), "Do it.").is_some(), "{bad}");
        }
        for (good, request) in [
            (json!({"kind": "string"}), ""),
            (json!({"day": "TODO"}), ""),
            (json!({"site": "https://example.com"}), ""),
            (json!({"mail": "Dear {{name}}"}), ""),
            (json!({"code": "print(Math.round(7.5))"}), ""),
            (json!({"text": "Wait... and see"}), ""),
            (json!({"site": "http://example.com"}), "What is at example.com?"),
            (json!({"note": "Fruit: apples, ..."}), "Write 'Fruit: apples, ...' down."),
            (json!({"city": "Oslo", "n": 3, "on": true}), ""),
        ] {
            assert_eq!(found(good.clone(), request), None, "{good}");
        }
    }
}
