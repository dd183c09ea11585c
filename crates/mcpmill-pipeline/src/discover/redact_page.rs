//! Whole pages without secrets, before they are kept anywhere.

use std::sync::LazyLock;

use mcpmill_core::secrets::{
    REDACTED, find, is_placeholder, is_secret_member, is_secret_option, names_a_coin, names_a_secret, redact,
};
use regex::Regex;
use serde_json::Value;

use super::{html, map::unescaped, redact::Door};

/// JSON in a string in JSON: deeper is text.
const NESTED: usize = 3;
/// [`REDACTED`] in a web page.
pub(super) const ESCAPED: &str = "&lt;redacted&gt;";
/// What may stand under a secret's name, or be said of a secret, instead of its value.
const VALUES: [&str; 7] = ["value", "default", "placeholder", "choices", "examples", "example", "const"];
/// Members that name a server or a package.
const NAMES: [&str; 6] = ["name", "identifier", "slug", "qualifiedName", "package_name", "full_name"];
/// Digits of a number that is a secret and no count.
const MANY_DIGITS: usize = 6;
/// Bytes of a value in a text that is no JSON.
const LONGEST: usize = 4_096;
/// Objects whose members are variables or headers by name.
const BY_NAME: [&str; 6] = ["env", "environment", "environmentVariables", "environment_variables", "headers", "config"];
/// Lists of arguments, as words or as objects.
const ARGUMENTS: [&str; 7] =
    ["args", "arguments", "packageArguments", "package_arguments", "runtimeArguments", "runtime_arguments", "runtimeArgs"];

/// A configuration in a text: a member or an option and the quote before its value, as HTML and strings escape
/// it, however often, with the tags of its colours.
static IN_TEXT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let quote = r#"\\{0,7}(?:"|&(?:amp;){0,3}(?:quot|#34|#x22);)"#;
    let tags = "(?:<[^<>]{0,200}>)*";
    let gap = r"(?:\s|\\{1,8}[nrt]|<[^<>]{0,200}>)*";
    Regex::new(&format!("(?i){quote}{tags}([a-z0-9_.-]{{2,80}}){tags}{quote}{gap}([:,]){gap}({quote}){tags}")).ok()
});

/// A page of a marketplace with its secrets replaced; `None` when it has none. JSON stays JSON, and what is
/// at the pointers `keep` stays as it is: it leads to the next page.
pub fn redact_page(text: &str, keep: &[String]) -> Option<String> {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            let scalar = |value: &&mut Value| !value.is_object() && !value.is_array();
            let kept: Vec<(&String, Value)> =
                keep.iter().filter_map(|pointer| Some((pointer, value.pointer_mut(pointer).filter(scalar)?.take()))).collect();
            let mut page = Cleaner::default();
            page.value(&mut value, "", 0);
            for (pointer, kept) in kept {
                value.pointer_mut(pointer).into_iter().for_each(|place| *place = kept.clone());
            }
            page.changed.then(|| value.to_string())
        }
        Err(_) => {
            let joined = payload(text);
            // In a web page it would be a tag.
            let clean = plain(joined.as_deref().unwrap_or(text)).map(|clean| clean.replace(REDACTED, ESCAPED));
            clean.or(joined)
        }
    }
}

/// A page of Next.js whose payload had secrets: the payload is in its first piece, as a value may be cut in two by
/// the pieces, and the others are empty. `None` when there is nothing to clean.
fn payload(page: &str) -> Option<String> {
    let mut cleaner = Cleaner::default();
    let pieces = html::pieces(page);
    let payload: String = pieces.iter().map(|(_, text)| text.as_str()).collect();
    // Every line is a number and a value.
    let lines: Vec<String> = payload.split('\n').map(|line| cleaner.line(line)).collect();
    if !cleaner.changed {
        return None;
    }
    // Nothing in it ends the script it stands in.
    let mut whole = Some(Value::String(lines.join("\n")).to_string().replace('<', "\\u003c"));
    let (mut clean, mut done) = (String::new(), 0);
    for (span, _) in pieces {
        clean.push_str(&page[done..span.start]);
        clean.push_str(&whole.take().unwrap_or_else(|| "\"\"".to_owned()));
        done = span.end;
    }
    Some(clean + &page[done..])
}

/// A text with its secrets replaced; `None` when it has none.
pub(super) fn redact_text(text: &str) -> Option<String> {
    let (mut cleaner, mut text) = (Cleaner::default(), text.to_owned());
    cleaner.text(&mut text, 0);
    cleaner.changed.then_some(text)
}

/// A text that is no JSON.
fn plain(text: &str) -> Option<String> {
    let clean = configurations(text);
    let clean = match clean.as_deref().unwrap_or(text) {
        text if !text.is_empty() => redact(text).or(clean),
        _ => clean,
    };
    clean.filter(|clean| clean != text)
}

/// A text whose configurations are without secrets; `None` when there is none.
fn configurations(text: &str) -> Option<String> {
    let pattern = IN_TEXT.as_ref()?;
    let (mut clean, mut done, mut from) = (String::new(), 0, 0);
    while let Some(found) = pattern.captures_at(text, from) {
        let (whole, name, quote) = (found.get(0)?, found.get(1)?, found.get(3)?.as_str());
        // The quote at the end may be the one before the next name.
        from = name.end();
        let member = &found[2] == ":";
        if !(if member {
            is_secret_member(name.as_str())
        } else {
            name.as_str().starts_with('-') && is_secret_option(name.as_str())
        }) {
            continue;
        }
        let Some(length) = length(&text[whole.end()..], quote) else { continue };
        // The quote may stand in a tag of its colour.
        let length = text[whole.end()..whole.end() + length].find("</").unwrap_or(length);
        let end = whole.end() + length;
        let value = unescaped(&unescaped(&text[whole.end()..end]));
        // What was cut out before may stand escaped in a script.
        if value.contains("u003c") {
            continue;
        }
        if if member { is_value(&value) } else { !value.starts_with('-') && !is_placeholder(&value) } {
            clean.push_str(&text[done..whole.end()]);
            clean.push_str(REDACTED);
            (done, from) = (end, end);
        }
    }
    (done > 0).then(|| clean + &text[done..])
}

/// Bytes up to the quote that ends a value; `None` when it ends nowhere near.
fn length(text: &str, quote: &str) -> Option<usize> {
    let near = &text[..text.floor_char_boundary(LONGEST + quote.len())];
    let ends = near.match_indices(quote);
    ends.map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\')).filter(|at| !text[..*at].contains('\n'))
}

/// Whether a value under a secret's name is the secret, and neither what a reader is told of it nor an
/// address or the version of a package of this name.
fn is_value(value: &str) -> bool {
    let scheme = value.split_whitespace().next().unwrap_or_default().to_lowercase();
    let address = matches!(value.get(..7), Some("http://" | "https:/"));
    let prose = !value.is_ascii()
        || value.trim().contains(char::is_whitespace) && !matches!(scheme.as_str(), "basic" | "bearer" | "token" | "digest");
    let value = value.split_whitespace().next_back().unwrap_or_default();
    let version = value.trim_start_matches(['^', '~', '=', '>', '<']).split('.').collect::<Vec<_>>();
    let version =
        version.len() > 2 && version[..2].iter().all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()));
    !address && !prose && !version && !is_placeholder(value)
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// Whether a text is no word of a language: long, with digits or capitals in a row.
fn is_made(text: &str) -> bool {
    let capitals = |pair: &[u8]| pair.iter().all(u8::is_ascii_uppercase);
    text.len() >= 8 && (has_digit(text) || text.as_bytes().windows(2).any(capitals))
}

/// Whether it can be the name of a package or a server, and is no key beyond doubt.
pub(super) fn is_identifier(text: &str) -> bool {
    let rest = text.strip_prefix('@').unwrap_or(text);
    rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/')) && find(text).is_none()
}

#[derive(Default)]
struct Cleaner {
    changed: bool,
    /// What comes next is a property of a schema.
    in_properties: bool,
}

impl Cleaner {
    fn value(&mut self, value: &mut Value, under: &str, nested: usize) {
        let property = std::mem::replace(&mut self.in_properties, under == "properties");
        self.member(value, under, property && names_a_coin(under), nested);
        self.in_properties = property;
    }

    /// `coin`: whatever its name says, its value is no secret unless it looks like one.
    fn member(&mut self, value: &mut Value, under: &str, coin: bool, nested: usize) {
        match value {
            Value::String(text) => self.text(text, nested),
            Value::Array(items) => {
                if ARGUMENTS.contains(&under) {
                    self.args(items);
                } else if under == "headers" {
                    items.iter_mut().for_each(|item| self.header(item));
                }
                let plural = under.strip_suffix('s').is_some_and(is_secret_member);
                for item in items {
                    match item {
                        Value::String(text) if plural && is_value(text) && has_digit(text) => self.hide(text),
                        item => self.value(item, under, nested),
                    }
                }
            }
            Value::Object(members) => {
                let flag = |key: &str| members.get(key).and_then(Value::as_bool) == Some(true);
                let text = |key: &str| members.get(key).and_then(Value::as_str);
                let named = text("name").is_some_and(|name| names_a_secret(name) && !name.contains('/'))
                    || text("key").is_some_and(is_secret_member);
                // An input, or the property of a schema.
                let secret = flag("isSecret") || flag("is_secret") || flag("secret") || (named && members.len() < 12);
                let secret = secret || (is_secret_member(under) && !coin);
                let perhaps = names_a_secret(under) && !coin;
                for (key, member) in members.iter_mut() {
                    let by_name = BY_NAME.contains(&under) && names_a_secret(key);
                    if by_name || (secret && matches!(key.as_str(), "value" | "default")) {
                        self.hide_all(member, &|_| true);
                    } else if is_secret_member(key) || (secret && VALUES.contains(&key.as_str())) {
                        self.hide_all(member, &is_value);
                    } else if perhaps && VALUES.contains(&key.as_str()) {
                        self.hide_all(member, &|text| is_value(text) && is_made(text));
                    }
                    // A name is read as one, and no key by its mere shape.
                    if !(NAMES.contains(&key.as_str()) && member.as_str().is_some_and(is_identifier)) {
                        self.value(member, key, nested);
                    }
                }
            }
            _ => {}
        }
    }

    /// Hides a scalar or the items of a list, if they are the secret as `real` has it.
    fn hide_all(&mut self, value: &mut Value, real: &dyn Fn(&str) -> bool) {
        match value {
            Value::String(text) if real(text) => self.hide(text),
            Value::Number(number) if number.to_string().len() >= MANY_DIGITS => {
                *value = REDACTED.into();
                self.changed = true;
            }
            Value::Array(items) => items.iter_mut().filter(|item| !item.is_array()).for_each(|item| self.hide_all(item, real)),
            _ => {}
        }
    }

    /// A line of a payload, whose value is JSON, as a rule.
    fn line(&mut self, line: &str) -> String {
        let (head, mut value) =
            line.split_once(':').map_or((String::new(), line.to_owned()), |(head, value)| (format!("{head}:"), value.to_owned()));
        self.text(&mut value, 0);
        head + &value
    }

    fn text(&mut self, text: &mut String, nested: usize) {
        if nested < NESTED
            && text.trim_start().starts_with(['{', '['])
            && let Ok(mut inner) = serde_json::from_str::<Value>(text)
        {
            let before = std::mem::take(&mut self.changed);
            self.value(&mut inner, "", nested + 1);
            if self.changed {
                *text = inner.to_string();
            }
            self.changed |= before;
        } else if let Some(clean) = plain(text) {
            *text = clean;
            self.changed = true;
        }
    }

    /// Words, or objects with a name and a value (`{"name": "-e", "value": "A_TOKEN=…"}`).
    fn args(&mut self, items: &mut [Value]) {
        let mut places: Vec<&mut Value> = Vec::new();
        for item in items {
            match item {
                Value::Object(members) => {
                    let named = ["name", "value", "default"];
                    places.extend(members.iter_mut().filter(|(key, _)| named.contains(&key.as_str())).map(|(_, member)| member));
                }
                item => places.push(item),
            }
        }
        places.retain(|place| place.is_string());
        let before: Vec<String> = places.iter().filter_map(|place| place.as_str().map(str::to_owned)).collect();
        let mut after = before.clone();
        Door::default().args(&mut after);
        if after != before {
            self.changed = true;
            places.into_iter().zip(after).for_each(|(place, text)| *place = Value::String(text));
        }
    }

    fn header(&mut self, item: &mut Value) {
        if let Value::String(text) = item {
            let before = text.clone();
            Door::default().header(text);
            self.changed |= *text != before;
        }
    }

    fn hide(&mut self, text: &mut String) {
        if !is_placeholder(text) {
            REDACTED.clone_into(text);
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_secret_names_go_wherever_they_stand() {
        let page = json!({ "servers": [{
            "env": { "API_KEY": "hunter2-planted", "LEVEL": "debug", "TOKEN": "${TOKEN}" },
            "headers": { "Authorization": "Basic hunter2-planted" },
            "args": ["--api-key", "hunter2-planted", "--level", "1"],
            "environmentVariables": [{ "name": "PASSWORD_X", "value": "hunter2-planted" }, { "name": "A", "isSecret": true, "default": "hunter2-planted" }],
            "serverConfigs": ["{\"mcpServers\":{\"a\":{\"env\":{\"B_SECRET\":\"hunter2-planted\"}}}}"],
            "keywords": ["mcp"], "tokens": 7, "description": "mail planted@host.example",
        }]});
        let clean = redact_page(&page.to_string(), &[]).unwrap();
        assert!(!clean.contains("planted"), "{clean}");
        for kept in ["debug", "${TOKEN}", "--level", "mcp", "PASSWORD_X", "B_SECRET"] {
            assert!(clean.contains(kept), "{kept} in {clean}");
        }
        assert!(serde_json::from_str::<Value>(&clean).is_ok());
        assert_eq!(redact_page(r#"{"a": [1.0, "x"]}"#, &[]), None);
    }

    #[test]
    fn web_pages_stay_web_pages() {
        let page = r#"<pre>{&quot;env&quot;:{&quot;API_KEY&quot;: &quot;hunter2-planted&quot;, "MY_TOKEN": "your-token"}}</pre><a href="mailto:planted@host.example">"#;
        let clean = redact_page(page, &[]).unwrap();
        assert!(!clean.contains("planted") && clean.contains("&quot;API_KEY&quot;: &quot;&lt;redacted&gt;&quot;"), "{clean}");
        assert!(clean.contains("your-token"), "{clean}");
    }

    #[test]
    fn web_pages_hide_what_is_escaped_in_any_way() {
        let block = r#"{"args":["-y","a-mcp@1.0.0","--api-key","planted","--level","1"],"env":{"API_KEY":"planted","apiToken":"planted&x","LEVEL":"debug"},"headers":{"Authorization":"Basic planted"}}"#;
        let once = block.replace('&', "&amp;").replace('"', "&quot;");
        let coloured = once.replace("&quot;:&quot;", "&quot;</span>: <span class=\"s\">&quot;");
        let (twice, hex) = (once.replace('&', "&amp;"), block.replace('"', "&#x22;"));
        let string = format!("<script>push({})</script>", Value::from(block));
        for page in [block.to_owned() + "<p>", once, twice, hex, coloured, string] {
            let clean = redact_page(&page, &[]).unwrap();
            assert!(!clean.contains("planted") && !clean.contains("amp;x"), "{clean}");
            for kept in ["a-mcp@1.0.0", "--level", "API_KEY", "apiToken", "debug", "Authorization"] {
                assert!(clean.contains(kept), "{kept} in {clean}");
            }
        }
    }

    #[test]
    fn members_of_secret_names_lose_their_values_and_others_keep_theirs() {
        let page = json!({
            "auth": { "clientSecret": "planted", "access_token": "planted", "Authorization": "Basic planted" },
            "packageArguments": [
                { "type": "positional", "value": "--token=planted" }, { "type": "positional", "value": "--header" },
                { "type": "positional", "value": "X-Api-Key: planted" }, { "name": "--level", "value": "debug" },
            ],
            "runtimeArguments": [{ "type": "named", "name": "-e", "value": "DB_PASSWORD=planted" }],
            "variables": [{ "key": "API_KEY", "value": "planted" }, { "key": "keywords", "value": "debug" }],
            "command": "npx -y x --api-key planted1 --level 1",
            "readme": "add {\"args\": [\"--token\", \"planted\"], \"env\": {\"MY_PASS\": \"planted\"}}",
            "config": "eyJhcGlLZXkiOiJwbGFudGVkIiwieCI6MX0=",
        });
        let clean = redact_page(&page.to_string(), &[]).unwrap();
        assert!(!clean.contains("planted") && !clean.contains("eyJ") && clean.contains("debug"), "{clean}");
        let page = json!({
            "tools": [{ "name": "get_token", "description": "Returns a token: see docs", "inputSchema": { "type": "object",
                "properties": { "token": { "type": "string", "description": "The access token" }, "apiKey": { "type": "string" } },
                "required": ["token"] } }],
            "password": "the password of the account", "accessToken": "YOUR_TOKEN", "token_url": "https://a.example/token",
            "nextPageToken": "abc", "keywords": "mcp,token", "identifier": "auth-server", "secret": "API_KEY",
            "dependencies": { "cookie": "^0.7.1", "pbkdf2-password": "1.2.1", "tough-cookie": "4.1.3-x.1" }, "invalid_token": "令牌已失效",
            "repository": { "url": "git+ssh://git@github.com/acme/x.git" }, "clone": "git@github.com:acme/x.git",
        });
        assert_eq!(redact_page(&page.to_string(), &[]), None);
    }

    #[test]
    fn values_in_lists_and_numbers_and_beside_inputs_go() {
        let page = json!({
            "tokens": ["planted1"], "password": ["planted"], "headers": { "Authorization": ["Basic planted"] },
            "env": { "DB_PASSWORD": 86_753_097 }, "secret_key": 86_753_097,
            "inputs": [{ "name": "A", "isSecret": true, "placeholder": "PLANTED-planted", "choices": ["planted", "planted"], "value": 86_753_097 }],
            "configSchema": { "properties": { "braveKey": { "type": "string", "default": "PLANTplanted" }, "token": { "default": "planted" } } },
            "listed": "[{\"name\":\"t\",\"inputSchema\":{\"properties\":{\"apiKey\":{\"default\":\"planted\"}}}}]",
        });
        let clean = redact_page(&page.to_string(), &[]).unwrap();
        assert!(!clean.to_lowercase().contains("planted") && !clean.contains("86753097"), "{clean}");
        let page = json!({
            "tokens": 4_096, "max_tokens": 128_000, "tags": ["token"], "required": ["apiKey"], "tokenizer": ["word"], "secrets": [{ "env": "A_KEY" }],
            "inputs": [{ "name": "API_KEY", "isSecret": true, "placeholder": "Enter your key", "choices": [] }],
            "properties": { "sortKey": { "default": "createdAt", "enum": ["createdAt", "name"] }, "token": { "type": "string", "default": "", "description": "A token" },
                "passThrough": { "default": true }, "api_key": { "default": null, "examples": ["YOUR_KEY"] } },
            "name": "sk-semantic-kernel-mcp", "identifier": "pk-0123456789abcdefghij", "slug": "acme/rk-0123456789abcdefghij",
        });
        assert_eq!(redact_page(&page.to_string(), &[]), None);
    }

    #[test]
    fn a_value_that_is_cut_in_two_by_a_payload_goes() {
        let block = json!({ "mcpServers": { "e": { "args": ["--api-key", "planted", "--level", "1"], "env": { "API_KEY": "planted-value", "LEVEL": "debug" } } } });
        let block = serde_json::to_string_pretty(&block).unwrap();
        let payload = format!(
            "3:I[1]\n4:{}",
            json!(["$", "div", null, { "mcpServer": { "id": 1, "title": "</script>", "serverConfigs": [block] } }])
        );
        let string = Value::from(payload).to_string();
        let string = &string[1..string.len() - 1];
        let at = string.find("planted-value").unwrap() + 4;
        for cuts in [vec![], vec![at], vec![10, at, at + 3]] {
            let mut pieces = Vec::new();
            let mut rest = 0;
            for cut in cuts.iter().copied().chain([string.len()]) {
                pieces.push(format!("<script>self.__next_f.push([1,\"{}\"])</script>", &string[rest..cut]));
                rest = cut;
            }
            let page = format!("<html><p>ann@host.example</p>{}</html>", pieces.join("<i></i>"));
            let clean = redact_page(&page, &[]).unwrap();
            assert!(
                !clean.contains("plan") && !clean.contains("value") && !clean.contains("ann@") && clean.ends_with("</html>"),
                "{clean}"
            );
            let found = html::flight(&clean, "mcpServer").unwrap();
            let config: Value = serde_json::from_str(found["serverConfigs"][0].as_str().unwrap()).unwrap();
            assert_eq!(config["mcpServers"]["e"]["env"], json!({ "API_KEY": "<redacted>", "LEVEL": "debug" }));
            assert_eq!((&config["mcpServers"]["e"]["args"][1], &found["title"]), (&json!("<redacted>"), &json!("</script>")));
            assert_eq!((clean.matches("</script>").count(), redact_page(&clean, &[])), (cuts.len() + 1, None));
        }
        // Escaped once more, where no payload is.
        let deep = r#"<p>\\\"--api-key\\\",\\n  \\\"planted\\\" \\\"API_KEY\\\":\\n\\t\\\"planted\\\"</p>"#;
        let clean = redact_page(deep, &[]).unwrap();
        assert!(!clean.contains("planted"), "{clean}");
    }

    #[test]
    fn code_that_is_coloured_to_the_last_quote_is_cleaned() {
        let span = |text: &str| format!("<span class=\"t\">{text}</span>");
        let quoted = |text: &str| [span("\""), span(text), span("\"")].concat();
        let page = format!("<pre>{}{}{} {}{}</pre>", span("{"), quoted("apiKey"), span(":"), quoted("planted"), span("}"));
        let clean = redact_page(&page, &[]).unwrap();
        assert!(!clean.contains("planted") && clean.contains("apiKey"), "{clean}");
        assert_eq!(clean.matches("</span>").count(), page.matches("</span>").count());
    }

    #[test]
    fn what_leads_to_the_next_page_stays() {
        let cursor = "eyJjdXJzb3IiOiJhYmMiLCJ4IjoxMjM0NX0=";
        let page = json!({
            "next": "https://h.example/?page_token=abc&access_token=x", "meta": { "cursor": "git@host.example", "token": cursor },
            "list": ["planted@host.example"], "password": "planted",
        });
        let keep = ["/next", "/meta/cursor", "/meta/token", "/list", "/none"].map(str::to_owned);
        let clean: Value = serde_json::from_str(&redact_page(&page.to_string(), &keep).unwrap()).unwrap();
        assert!(!clean.to_string().contains("planted"), "{clean}");
        assert_eq!((&clean["next"], &clean["meta"]), (&page["next"], &page["meta"]));
    }

    #[test]
    fn addresses_of_coins_stay_in_schemas_and_tokens_of_access_go() {
        let coin = "So11111111111111111111111111111111111111112";
        let planted = format!("ghp_{}", "Abcdefghij0123456789");
        let schema = json!({"properties": {
            "input_token": {"type": "string", "default": coin},
            "output_token": {"type": "string", "default": planted, "properties": {"toToken": {"default": coin}}},
            "access_token": {"type": "string", "default": "hunter2-planted"},
        }});
        let clean = redact_text(&json!([{"inputSchema": schema}]).to_string()).unwrap();
        let clean: Value = serde_json::from_str(&clean).unwrap();
        let clean = &clean[0]["inputSchema"]["properties"];
        assert_eq!((&clean["input_token"]["default"], &clean["output_token"]["default"]), (&json!(coin), &json!("<redacted>")));
        assert_eq!(clean["output_token"]["properties"]["toToken"]["default"], coin);
        assert_eq!(clean["access_token"]["default"], "<redacted>");
        // Elsewhere a name says what a value is.
        let clean = redact_text(&json!({"config": {"input_token": {"default": coin}}}).to_string()).unwrap();
        assert!(!clean.contains(coin), "{clean}");
    }
}
