//! The user's secrets as texts may hold them, and texts without them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
};

use mcpmill_core::{record::ServerRecord, template::as_variable};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value};

use super::given::UNNAMED;

/// A shorter value is in too many texts by chance. It stays where it is.
const SHORTEST: usize = 6;
/// Words before a credential in the header `Authorization`.
const SCHEMES: [&str; 3] = ["basic ", "bearer ", "token "];

/// Values of secrets in every form in which a server may repeat them, and what stands for each.
#[derive(Debug, Default)]
pub(super) struct Secrets(Vec<(String, String)>);

impl Secrets {
    /// Secrets by name; `<NAME>` stands for each. Values of less than six bytes are not hidden.
    pub(super) fn new(secrets: &HashMap<String, String>) -> Self {
        let mut forms = BTreeMap::new();
        let mut named: Vec<_> = secrets.iter().collect();
        named.sort();
        for (name, value) in named {
            for form in forms_of(value) {
                forms.entry(form).or_insert_with(|| format!("<{name}>"));
            }
        }
        let mut forms: Vec<_> = forms.into_iter().collect();
        // A form that holds another one goes first.
        forms.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        Self(forms)
    }

    /// Those of `secrets` that `server` can have been given: the name of each stands somewhere in its listing, as
    /// that of a variable, a header, an option or a hole. A few too many do no harm.
    pub(super) fn given_to(server: &ServerRecord, secrets: &HashMap<String, String>) -> Self {
        let listing = serde_json::to_string(&(&server.launch, &server.env)).unwrap_or_default();
        let listing = as_variable(&listing);
        // Those of remote servers are named behind their host.
        let bare = |name: &str| as_variable(name.rsplit('/').next().unwrap_or(name));
        let named = secrets.iter().filter(|(name, _)| *name == UNNAMED || listing.contains(&bare(name)));
        Self::new(&named.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `text` without them.
    pub(super) fn out_of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        self.text(&mut text);
        text
    }

    /// As [`Self::out_of`], in place.
    pub(super) fn text(&self, text: &mut String) {
        for (form, name) in &self.0 {
            if text.contains(form.as_str()) {
                *text = text.replace(form.as_str(), name);
            }
        }
    }

    /// A record without them, the names of properties included.
    pub(super) fn record<T: Serialize + DeserializeOwned>(&self, record: T) -> T {
        let Ok(value) = serde_json::to_value(&record) else { return record };
        // A number is only hidden where the record takes a text for it.
        let hidden = |numbers| serde_json::from_value(self.value(value.clone(), numbers));
        hidden(true).or_else(|_| hidden(false)).unwrap_or(record)
    }

    fn value(&self, value: Value, numbers: bool) -> Value {
        match value {
            Value::String(text) => Value::String(self.out_of(&text)),
            Value::Number(number) if numbers => self.number(number),
            Value::Array(items) => items.into_iter().map(|item| self.value(item, numbers)).collect(),
            Value::Object(fields) => {
                let hidden = fields.into_iter().map(|(name, field)| (self.out_of(&name), self.value(field, numbers)));
                Value::Object(hidden.collect::<Map<_, _>>())
            }
            other => other,
        }
    }

    fn number(&self, number: Number) -> Value {
        let text = number.to_string();
        let name = self.0.iter().find(|(form, _)| *form == text).map(|(_, name)| name.clone());
        name.map_or(Value::Number(number), Value::String)
    }
}

/// A value and its part behind the scheme, each as it is and as others write it.
fn forms_of(value: &str) -> Vec<String> {
    let behind = SCHEMES.iter().filter_map(|scheme| {
        let head = value.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| value[scheme.len()..].trim())
    });
    let bare = [value].into_iter().chain(behind).filter(|value| value.len() >= SHORTEST);
    let written = bare.flat_map(|value| {
        let escaped = [quoted(value), ascii(&quoted(value)), quoted(value).replace('/', "\\/")];
        escaped.into_iter().chain(percent(value)).chain(base64_forms(value.as_bytes())).chain([value.to_owned()])
    });
    written.filter(|form| form.len() >= SHORTEST).collect()
}

/// As JSON writes it, without the quotes.
fn quoted(value: &str) -> String {
    let text = Value::from(value).to_string();
    text[1..text.len() - 1].to_owned()
}

/// With what is no ASCII escaped, as many writers of JSON do.
fn ascii(quoted: &str) -> String {
    let mut text = String::new();
    for letter in quoted.chars() {
        match letter.is_ascii() {
            true => text.push(letter),
            false => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                write!(text, "\\u{unit:04x}").ok();
            }),
        }
    }
    text
}

/// Percent-encoded, with the letters that common encoders leave as they are.
fn percent(value: &str) -> Vec<String> {
    let encoded = |plain: &str, upper: bool| {
        let mut text = String::new();
        for byte in value.bytes() {
            match char::from(byte) {
                letter if letter.is_ascii_alphanumeric() || plain.contains(letter) => text.push(letter),
                _ if upper => _ = write!(text, "%{byte:02X}"),
                _ => _ = write!(text, "%{byte:02x}"),
            }
        }
        text
    };
    let plain = ["-._~", "-._~/", "-._~!'()*", "-._*", "-._~!'()*;/?:@&=+$,"];
    let both = plain.iter().flat_map(|plain| [encoded(plain, true), encoded(plain, false)]);
    both.flat_map(|text| [text.replace("%20", "+"), text]).collect()
}

/// In either Base64, alone and in the middle of something longer: then only the letters that are of the
/// value alone, for each of the three places it may start at.
fn base64_forms(value: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let shifted = [&[0; 2][..before], value].concat();
        let text = base64(&shifted);
        forms.push(text[(before * 8).div_ceil(6)..shifted.len() * 8 / 6].to_owned());
        if before == 0 {
            forms.push(text.trim_end_matches('=').to_owned());
            forms.push(text);
        }
    }
    let for_addresses: Vec<String> = forms.iter().map(|form| form.replace('+', "-").replace('/', "_")).collect();
    forms.extend(for_addresses);
    forms
}

/// The usual Base64, padded.
pub(super) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= part.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::{EnvVar, Launch, ToolDraft};
    use serde_json::json;

    use super::*;

    fn secrets(all: &[(&str, &str)]) -> Secrets {
        Secrets::new(&all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn values_are_hidden_wherever_they_stand_and_the_rest_stays() {
        let secrets = secrets(&[("A_KEY", "s3cret-value"), ("B", "x"), ("PIN", "87654321")]);
        let draft = ToolDraft {
            name: "x".into(),
            title: None,
            description: Some("uses s3cret-value".into()),
            input_schema: json!({"properties": {"of s3cret-value": {"default": ["s3cret-value", 87_654_321]}}, "a": 1.0}),
            output_schema: None,
            annotations: None,
        };
        let hidden = secrets.record(draft);
        assert_eq!((hidden.name.as_str(), hidden.description.as_deref()), ("x", Some("uses <A_KEY>")));
        let schema = r#"{"properties":{"of <A_KEY>":{"default":["<A_KEY>","<PIN>"]}},"a":1.0}"#;
        assert_eq!(hidden.input_schema.to_string(), schema);
    }

    #[test]
    fn only_what_a_server_can_have_been_given_is_looked_for() {
        let all: HashMap<_, _> = [("MAIL", "user@example.com"), ("API_KEY", "s3cret-value"), ("h.example/TOKEN", "t0ken-value")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let text = "user@example.com s3cret-value t0ken-value";
        let stdio = |args: &[&str]| Launch::Stdio { command: "npx".into(), args: args.iter().map(|arg| (*arg).into()).collect() };
        let variable = |name: &str| EnvVar { name: name.to_owned(), secret: true, required: true, value: None };
        let remote = Launch::Sse { url: "https://h.example/sse?t={token}".into(), headers: vec![variable("x-api-key")] };
        for (launch, env, hidden) in [
            (stdio(&["p"]), vec![], text),
            (stdio(&["p"]), vec![variable("MAIL")], "<MAIL> s3cret-value t0ken-value"),
            (stdio(&["p", "--apiKey", "<redacted>"]), vec![], "user@example.com <API_KEY> t0ken-value"),
            (remote, vec![], "user@example.com <API_KEY> <h.example/TOKEN>"),
        ] {
            let server = ServerRecord { env, ..mcpmill_testkit::server("s", launch) };
            assert_eq!(Secrets::given_to(&server, &all).out_of(text), hidden, "{:?}", server.launch);
        }
    }

    #[test]
    fn values_are_hidden_in_other_forms() {
        let all = secrets(&[("T", "Bearer tok/en+of \"ours\" é1"), ("U", "user:pass word"), ("V", "Basic dXNlcjpwYXNz")]);
        for text in [
            r#"tok/en+of "ours" é1"#,
            "Bearer tok/en+of \\\"ours\\\" é1",
            "tok/en+of \\\"ours\\\" \\u00e91",
            "tok\\/en+of \\\"ours\\\" é1",
            "tok%2Fen%2Bof%20%22ours%22%20%C3%A91",
            "tok%2fen%2bof%20%22ours%22%20%c3%a91",
            "tok/en%2Bof%20%22ours%22%20%C3%A91",
            "tok%2Fen%2Bof+%22ours%22+%C3%A91",
            "dXNlcjpwYXNzIHdvcmQ=",
            "dXNlcjpwYXNz",
        ] {
            let hidden = all.out_of(&format!("a {text} b"));
            assert!(["a <T> b", "a <U> b", "a <V> b", "a Bearer <T> b"].contains(&hidden.as_str()), "{text}: {hidden}");
        }
    }

    #[test]
    fn base64_is_known_at_every_place() {
        let value = "k?~>secret>>?value";
        let all = secrets(&[("K", value)]);
        for before in 0..7 {
            for after in 0..4 {
                let text = base64(format!("{}{value}{}", "x".repeat(before), "y".repeat(after)).as_bytes());
                for text in [text.replace('+', "-").replace('/', "_"), text] {
                    let hidden = all.out_of(&text);
                    // At most one letter at either end, which says less than a byte.
                    let left = hidden.replacen("<K>", "", 1);
                    assert!(hidden.contains("<K>") && left.len() <= (before + after) * 4 / 3 + 6, "{text}: {hidden}");
                }
            }
        }
    }

    #[test]
    fn short_values_stay_and_words_are_not_hit() {
        let all = secrets(&[("S", "abc12"), ("B", "Bearer x"), ("K", "s3cret-value")]);
        for text in ["abc12", "x", "an unrelated text of some length", "YWJjMTI="] {
            assert_eq!(all.out_of(text), text);
        }
        assert!(secrets(&[("S", "abc12")]).is_empty());
    }
}
