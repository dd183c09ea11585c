//! What listings leave open in arguments, variables, headers and addresses: `${NAME}`, `{name}`,
//! `<your key>`, `YOUR_API_KEY`, and what was a secret and is
//! [`REDACTED`](crate::secrets::REDACTED).

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// How something is left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `${NAME}`, `${env:NAME}`, `${NAME:-default}`: certainly a variable.
    Dollar,
    /// `{name}`: a variable in registries; elsewhere it may be meant as it stands.
    Brace,
    /// `<your key>`, `YOUR_API_KEY`: for the reader to replace.
    Asked,
    /// A secret stood here.
    Redacted,
}

/// Something that is left open in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole<'a> {
    /// How it is written.
    pub form: Form,
    /// The name of the value that belongs there: that of the variable; of an asked one its words in capitals; of a
    /// secret what stands before it (`--api-key=`, `?token=`), and empty where nothing does.
    pub name: String,
    /// What is taken without a value, as in `${PORT:-8080}`.
    pub default: Option<&'a str>,
    /// The hole as it stands in the text.
    pub written: &'a str,
}

static HOLES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?x)
        \$\{ (?:env:|input:)? (?<dollar>[A-Za-z0-9_.-]{1,80}) (?: :-(?<default>[^{}]{0,200}) )? \}
        | \{ (?<brace>[A-Za-z0-9_.-]{1,80}) \}
        | (?<redacted><redacted>)
        | < (?<angle>[A-Za-z][A-Za-z0-9\ _-]{0,59}) >
        | \b(?<yours>YOUR[_-][A-Z0-9_-]{1,60})",
    )
    .ok()
});

static NAMED_BEFORE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(?i)([a-z][a-z0-9_.-]*)["']?\s*[=:]\s*["']?(?:(?:bearer|basic|token)\s+)?$"#).ok());

/// `text` with every hole replaced by what `value` gives for it.
pub fn fill(text: &str, mut value: impl FnMut(&Hole<'_>) -> String) -> String {
    let Some(holes) = HOLES.as_ref() else { return text.to_owned() };
    let replaced = holes.replace_all(text, |found: &Captures<'_>| value(&hole(text, found)));
    replaced.into_owned()
}

/// Whether what stands in `text` has to be replaced by hand: a value that holds such is none.
pub fn is_open(text: &str) -> bool {
    let mut open = false;
    fill(text, |hole| {
        open |= matches!(hole.form, Form::Asked | Form::Redacted);
        String::new()
    });
    open
}

/// Words that stand before a credential in a header.
const SCHEMES: [&str; 6] = ["", "bearer", "basic", "token", "apikey", "key"];

/// Whether `text` is nothing but variables, at most behind the word of a scheme: `${KEY}`, `Bearer ${KEY}`. One
/// with a default is none, for that may be a secret; `{key}` is one only where `braces` says so.
pub fn is_variable(text: &str, braces: bool) -> bool {
    let (mut any, mut others) = (false, false);
    let rest = fill(text, |hole| {
        let form = hole.form == Form::Dollar || (braces && hole.form == Form::Brace);
        let is_one = form && hole.default.is_none();
        any |= is_one;
        others |= !is_one;
        String::new()
    });
    any && !others && SCHEMES.iter().any(|scheme| rest.trim().eq_ignore_ascii_case(scheme))
}

fn hole<'t>(text: &'t str, found: &Captures<'_>) -> Hole<'t> {
    let part = |name: &str| found.name(name).map(|part| &text[part.range()]);
    let whole = found.get(0).map_or(0..0, |whole| whole.range());
    let written = &text[whole.clone()];
    let (form, name) = match (part("dollar"), part("brace"), part("angle"), part("yours")) {
        (Some(name), ..) => (Form::Dollar, name.to_owned()),
        (_, Some(name), ..) => (Form::Brace, name.to_owned()),
        (_, _, Some(words), _) | (_, _, _, Some(words)) => (Form::Asked, as_variable(words)),
        _ => (Form::Redacted, named_before(&text[..whole.start]).unwrap_or_default()),
    };
    Hole { form, name, default: part("default"), written }
}

/// What names the value that comes next: `--api-key=`, `"token": "`, `Authorization: Bearer `.
fn named_before(text: &str) -> Option<String> {
    let found = NAMED_BEFORE.as_ref()?.captures(text)?;
    Some(as_variable(&found[1]))
}

/// Words, a flag or a field as the name of a variable: `--api-key` is `API_KEY`, `apiKey` too.
pub fn as_variable(words: &str) -> String {
    let mut name = String::new();
    let mut low = false;
    for c in words.trim_start_matches('-').chars() {
        if c.is_uppercase() && low {
            name.push('_');
        }
        low = c.is_lowercase();
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::REDACTED;

    fn holes(text: &str) -> Vec<(Form, String)> {
        let mut found = Vec::new();
        let filled = fill(text, |hole| {
            found.push((hole.form, hole.name.clone()));
            hole.written.to_owned()
        });
        assert_eq!(filled, text, "what is written can be put back");
        found
    }

    #[test]
    fn finds_every_form_and_its_name() {
        let one = |form, name: &str| vec![(form, name.to_owned())];
        assert_eq!(holes("${API_KEY}"), one(Form::Dollar, "API_KEY"));
        assert_eq!(holes("Bearer ${env:API_KEY}"), one(Form::Dollar, "API_KEY"));
        assert_eq!(holes("--port=${PORT:-8080}"), one(Form::Dollar, "PORT"));
        assert_eq!(holes("https://{region}.example/mcp"), one(Form::Brace, "region"));
        assert_eq!(holes("<YOUR_KEY>"), one(Form::Asked, "YOUR_KEY"));
        assert_eq!(holes("<your api key>"), one(Form::Asked, "YOUR_API_KEY"));
        assert_eq!(holes("https://h.example/mcp?key=YOUR_API_KEY"), one(Form::Asked, "YOUR_API_KEY"));
        let redacted = format!("?apiKey={REDACTED}");
        assert_eq!(holes(&redacted), one(Form::Redacted, "API_KEY"));
        assert_eq!(holes(&format!("--api-key={REDACTED}")), one(Form::Redacted, "API_KEY"));
        assert_eq!(holes(&format!("Authorization: Bearer {REDACTED}")), one(Form::Redacted, "AUTHORIZATION"));
        assert_eq!(holes(&format!("{{\"token\": \"{REDACTED}\"}}")), one(Form::Redacted, "TOKEN"));
        assert_eq!(holes(REDACTED), one(Form::Redacted, ""));
        assert_eq!(holes("{a}${B}").len(), 2);
    }

    #[test]
    fn leaves_what_is_none() {
        for plain in ["{\"a\": 1}", "a < b > c", "</tag>", "<1>", "$HOME", "{}", "{ name }", "your_table", "price $5", "x<y"] {
            assert_eq!(holes(plain), [], "{plain}");
        }
    }

    #[test]
    fn variables_alone_are_told_from_what_else_is_there() {
        for text in ["${KEY}", "Bearer ${env:KEY}", "token ${A}${B}", " ${KEY} "] {
            assert!(is_variable(text, false), "{text}");
        }
        for text in ["", "Bearer", "x${KEY}", "${KEY:-hunter2}", "<your key>", "${A} <redacted>", "{key}", "Bearer {key}"] {
            assert!(!is_variable(text, false), "{text}");
        }
        assert!(is_variable("Bearer {key}", true) && !is_variable("Bearer <key>", true));
    }

    #[test]
    fn a_default_is_known_and_only_what_is_asked_is_open() {
        assert_eq!(fill("p=${PORT:-80}", |hole| hole.default.unwrap_or("none").to_owned()), "p=80");
        assert!(is_open("postgres://<redacted>h/db") && is_open("<key>") && is_open("YOUR_KEY"));
        assert!(!is_open("${KEY}") && !is_open("{key}") && !is_open("plain"));
    }
}
