//! What secrets look like: the one list for all that must not keep them or hand them on.

mod names;

use std::{borrow::Cow, sync::LazyLock};

pub use names::{is_placeholder, is_secret_member, is_secret_option, names_a_coin, names_a_secret};
use regex::{Captures, Regex, RegexSet};

/// What stands in place of a secret.
pub const REDACTED: &str = "<redacted>";
/// Bytes of an encoded text that are looked into.
const LOOKED_INTO: usize = 120;

/// A shape of secrets. Of what it finds the first group stays: it names the secret and is none.
struct Shape {
    /// What has this shape, for people.
    name: &'static str,
    pattern: &'static str,
    /// Whether what looks like this is hardly ever anything else. The others (a mail address, a value after a
    /// name) are cut out where nobody misses them, but are no reason to refuse a whole file.
    certain: bool,
    /// What a pattern alone cannot tell.
    real: fn(&Found<'_>) -> bool,
}

/// What a pattern found.
struct Found<'a> {
    /// What names it.
    before: &'a str,
    value: &'a str,
    /// The rest of the text.
    after: &'a str,
}

const fn certain(name: &'static str, pattern: &'static str) -> Shape {
    Shape { name, pattern, certain: true, real: |_| true }
}

const fn certain_if(name: &'static str, pattern: &'static str, real: fn(&Found<'_>) -> bool) -> Shape {
    Shape { name, pattern, certain: true, real }
}

const fn likely(name: &'static str, pattern: &'static str) -> Shape {
    Shape { name, pattern, certain: false, real: |_| true }
}

const fn checked(name: &'static str, pattern: &'static str, real: fn(&Found<'_>) -> bool) -> Shape {
    Shape { name, pattern, certain: false, real }
}

const SHAPES: [Shape; 31] = [
    certain_if("a bearer token", r#"(?i)(\bbearer(?:\s+|["'`*]{0,3}\s*[:=]\s*["'`]?))[a-z0-9._~+/=-]{16,}"#, |found| {
        is_mixed(found.value) && !is_placeholder(found.value)
    }),
    certain_if("a key that begins with `sk-`", r"(\b)sk-[A-Za-z0-9_-]{16,}", |found| is_key(found.value)),
    certain("a key of a payment service", r"(\b)(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    checked("a key that begins with `sk`, `pk` or `rk`", r"(\b)(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}", |found| is_key(found.value)),
    certain(
        "a token of a code host",
        r"(\b)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})",
    ),
    certain("a token of a chat service", r"(\b)xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    certain("a token of a package or model registry", r"(\b)(?:npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,})"),
    certain("an access key that begins with `AKIA` or `ASIA`", r"(\b)(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    certain("a key that begins with `AIza`", r"(\b)AIza[0-9A-Za-z_-]{30,}"),
    certain("a JSON web token", r"(\b)eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){2}"),
    // Without its end it goes as far as it looks like one: what follows may be the rest of a page.
    certain(
        "a private key",
        r#"()-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:(?:[A-Za-z0-9+/=\s\\"',:]|<br ?/?>|&#1[03];|(?:Proc-Type|DEK-Info):[A-Za-z0-9, -]*)*-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|(?:(?:[\s\\"',]|<br ?/?>|&#1[03];)*[A-Za-z0-9+/]{16,}={0,2})*(?:[\s\\]*[A-Za-z0-9+/]{1,15}={1,2})?)"#,
    ),
    likely(
        "the address of a web hook",
        r"(?i)(\b(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks)/)[a-z0-9_/-]{12,}",
    ),
    likely("a token of a bot", r"(\bbot|\b)[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"),
    // Who forgets to encode an `@` in a password has several.
    checked("a password in an address", r#"(?i)([a-z][a-z0-9+.-]*://)[^\s/@:"']*:[^\s/@"']+@(?:[^\s/@"'<>&,;?#]*@)*"#, |found| {
        !names_a_user(found.value)
    }),
    checked(
        "a password with a slash in an address",
        r#"(?i)((?:mongodb(?:\+srv)?|postgres(?:ql)?|mysql|mariadb|mssql|rediss?|amqps?)://)[^\s/@:"']*:[^\s@"'<>]+@"#,
        |found| !is_port(found.value.split_once(':').map_or("", |(_, rest)| rest)) && !names_a_user(found.value),
    ),
    checked("a user of an address", r#"(?i)([a-z][a-z0-9+.-]*://)[^\s/@:"'<>{}$&,;?#|()\[\]\\]{3,}@"#, is_user),
    checked("a mail address", r"(?i)()[a-z0-9._%+-]+(?:@|%40)(?:[a-z][a-z0-9-]*\.)+[a-z]{2,}\b", is_mailbox),
    checked(
        "a key in the path of an address",
        r#"(?i)(\bhttps?://[^\s"'<>?#]*?/)[a-z0-9_-]*[a-z0-9]{20,}[a-z0-9_-]*"#,
        is_key_of_path,
    ),
    likely(
        "a parameter of a secret's name",
        r#"(?i)([?&;](?:[a-z0-9_.-]*(?:key|token|secret|password|passwd|credential|signature)|config|auth|sig|pwd)=)[^&#\s"'{<$][^&#\s"'<]*"#,
    ),
    likely(
        "a long hexadecimal value of a secret's name",
        r#"(?i)((?:key|token|secret|password|passwd|credentials?)["']?\s*[:=]\s*["']?)[0-9a-f]{24,}"#,
    ),
    likely(
        "a long value of a secret's name",
        r#"(?i)((?:key|token|secret|password|passwd|credentials?)["']?\s*[:=]\s*["']?)[A-Za-z0-9+/_-]{32,}={0,2}"#,
    ),
    checked(
        "credentials of a header",
        r#"(?i)(\bauthorization["'`]?\s*[:=]\s*["'`]?(?:bearer|basic|token|apikey|digest)\s+)[^\s"'<>{}$&,;\\`)]+"#,
        |found| !is_placeholder(found.value),
    ),
    checked("a short bearer token", r#"(?i)(\bbearer(?:\s+|["'`*]{0,3}\s*[:=]\s*["'`]?))[a-z0-9._~+/=-]{6,15}"#, |found| {
        is_mixed(found.value) && !is_placeholder(found.value)
    }),
    checked("an encoded object", r"()ey[A-Za-z0-9](?:[A-Za-z0-9+/_-]|\\/|%2[BbFf]){17,}(?:={1,2}|(?:%3[Dd]){1,2})?", |found| {
        is_object(found.value)
    }),
    checked(
        "a value after an option",
        r#"(?i)((?:^|[\s"'`=])--?[a-z0-9-]*(?:key|token|secret|pass|password|passwd|passphrase|pat)\s+["'`]?)[^\s"'<>{}$&,;|()\[\]\\`#-][^\s"'<>{}$&,;|()\[\]\\`#]{4,}"#,
        |found| is_secret_option(name_before(found.before)) && is_mixed(found.value) && !is_placeholder(found.value),
    ),
    checked(
        "a value that is set under a secret's name",
        r#"(?i)((?:^|[^a-z0-9_.-])[a-z0-9_.-]*(?:key|token|secret|pass|password|passwd|passphrase|pwd|pat|credentials?)["'`]?\s*=\s*["'`]?)[^\s"'<>{}$&,;|()\[\]\\`#]{3,}"#,
        is_set,
    ),
    checked(
        "a value that is told under a secret's name",
        r#"(?i)((?:^|[^a-z0-9_.-])(?:(?:api|access|auth|secret|private|client|bearer)[ ])?[a-z0-9_.-]*(?:key|token|secret|pass|password|passwd|passphrase|pwd|pat|credentials?)["'`*]{0,3}\s*(?:[:：→]|->)\s*\*{0,3}\s*["'`]?)[^\s"'<>{}$&,;|()\[\]\\`#]{3,}"#,
        is_told,
    ),
    checked(
        "a value that is told in words",
        r#"(?i)((?:^|[^a-z0-9_.-])(?:(?:api|access|auth|secret|private|client|bearer)[ ])?[a-z0-9_.-]*(?:key|token|secret|password|passwd|passphrase)[ ]is:?\s+["'`]?)[^\s"'<>{}$&,;|()\[\]\\`#]{10,}"#,
        |found| {
            let name =
                full_name(found.before.trim_end_matches(|c: char| !c.is_alphanumeric()).trim_end_matches(['i', 's', 'I', 'S']));
            is_secret_member(&name) && is_mixed(found.value) && !is_words(found.value) && !is_placeholder(found.value)
        },
    ),
    checked(
        "a value in a tag of a secret's name",
        r#"(?i)((?:<|&lt;)[a-z0-9_.:-]*(?:key|token|secret|pass|password|passwd|passphrase|pwd|credentials?)(?:>|&gt;)\s*)[^\s<>&]{3,}"#,
        |found| {
            let closed = found.after.trim_start().starts_with("</") || found.after.trim_start().starts_with("&lt;/");
            closed
                && is_secret_member(name_before(found.before.trim_end().trim_end_matches("&gt;")))
                && !is_placeholder(found.value)
        },
    ),
    checked(
        "a value that a shell sets",
        r#"(?i)(\b(?:setx|setenv|set[ ]+-[a-z]*x[a-z]*)[ ]+(?:/m[ ]+)?["'`]?[a-z0-9_]+["'`]?[ ]+["'`]?)[^\s"'<>{}$&,;|()\[\]\\`#]{5,}"#,
        |found| {
            names_a_secret(name_before(found.before))
                && !is_placeholder(found.value)
                && (is_mixed(found.value) || found.value.len() > 7)
        },
    ),
    checked(
        "a password of a request",
        r#"(?i)(\bcurl\b[^\n|;]*?\s(?:-u|--user)[\s=]*["'`]?[^\s:"'`<>{}$/]+:)[^\s"'`<>{}$]{3,}"#,
        |found| !is_placeholder(found.value),
    ),
];

static COMPILED: LazyLock<Vec<(&'static Shape, Regex)>> =
    LazyLock::new(|| SHAPES.iter().filter_map(|shape| Some((shape, Regex::new(shape.pattern).ok()?))).collect());
/// All shapes at once: most texts hold none.
static ANY: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new(SHAPES.iter().map(|shape| shape.pattern)).ok());

/// Whether it is a key as they are made: heads that are known, or a run of letters and digits as no name has. `sk` is
/// how many a package begins, too.
fn is_key(value: &str) -> bool {
    let heads = ["sk-ant-", "sk-proj-", "sk-or-", "sk-svcacct-", "sk-admin-", "sk-lf-", "pk-lf-"];
    let headed = heads.iter().filter_map(|head| value.strip_prefix(head)).any(is_mixed);
    headed || value.split(['-', '_']).any(|run| run.len() >= 16 && is_mixed(run))
}

/// Whether it is a port and not a password: `redis://host:6379/0`.
fn is_port(value: &str) -> bool {
    let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < value.len() && rest.starts_with(['/', '?'])
}

/// `https://token@host`, but neither `git@`, which is everybody's, nor a name with its version or hash.
fn is_user(found: &Found<'_>) -> bool {
    let user = found.value.trim_end_matches('@');
    let host = found.after.split(['/', ':']).next().unwrap_or_default();
    let number = host.starts_with(|c: char| c.is_ascii_digit()) && host.split('.').count() != 4;
    user != "git" && !is_placeholder(user) && !number && host != "sha256"
}

/// Whether a long part of a path is the key of a server's address, and no hash of a commit or page: one such is
/// where `mcp` or `sse` is spoken.
fn is_key_of_path(found: &Found<'_>) -> bool {
    let speaks = |part: &str| ["mcp", "sse"].iter().any(|word| part.eq_ignore_ascii_case(word));
    let (_, path) = found.before.split_once("://").unwrap_or_default();
    let before = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    // A part or two further are enough.
    let near = found.after.char_indices().nth(LOOKED_INTO).map_or(found.after, |(at, _)| &found.after[..at]);
    let after = near.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '?' | '#')).next().unwrap_or_default();
    let inner = path.split('/').skip(1).chain(after.split('/'));
    let revision = ["tree", "blob", "commit", "raw", "archive"].iter().any(|word| before.eq_ignore_ascii_case(word));
    !revision && is_mixed(found.value) && inner.chain(path.split('.').take(1)).any(speaks)
}

/// Whether it is made of words and small numbers: `32-character`, `oauth-2.0`.
fn is_words(value: &str) -> bool {
    let letters = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
    let number = |part: &str| part.len() < 5 && part.chars().all(|c| c.is_ascii_digit());
    value.split(['-', '_', '.', '/']).all(|part| letters(part) || number(part))
}

/// The name before a value, that may be two words: `API key`.
fn full_name(before: &str) -> String {
    let name = before.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let start = name.rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ')));
    let start = start.map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    name[start..].trim().replace(' ', "_")
}

/// `user:password@`: what stands in an address for a reader to replace.
fn names_a_user(value: &str) -> bool {
    let words = value.trim_end_matches('@').split_once(':');
    words.is_some_and(|(user, password)| {
        let said = |word: &str| word.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_' || b == b'-') && is_placeholder(word);
        !password.is_empty() && said(user) && said(password)
    })
}

/// Whether it is somebody's, and neither an example, as manuals have them, nor the address of a repository:
/// `git@host:path`, `ssh://git@host/path`.
fn is_mailbox(found: &Found<'_>) -> bool {
    let Some((user, host)) = found.value.split_once('@').or_else(|| found.value.split_once("%40")) else { return true };
    let mut labels = host.rsplit('.').skip(1).map(str::to_lowercase);
    let of_an_example = labels.next().is_some_and(|label| label == "example" || label == "contoso" || label.starts_with("your"));
    let users = ["user", "username", "you", "yourname", "your.name", "someone", "group", "email"];
    // Identifiers of chats are numbers at a host.
    let counted = user.len() > 2 && "1234567890".starts_with(user);
    let repository = user == "git" && found.after.starts_with([':', '/']);
    !repository && !of_an_example && !counted && !users.iter().any(|word| user.eq_ignore_ascii_case(word))
}

/// Whether small letters and several capitals are mixed, as in no word.
fn is_made(value: &str) -> bool {
    let capitals = value.as_bytes().windows(3).any(|three| three.iter().all(u8::is_ascii_uppercase));
    value.len() >= 8 && capitals && value.contains(|c: char| c.is_ascii_lowercase())
}

/// Whether it has digits and letters, as words have not.
fn is_mixed(value: &str) -> bool {
    value.contains(|c: char| c.is_ascii_digit()) && value.contains(|c: char| c.is_ascii_alphabetic())
}

/// The name at the end of what stands before a value.
fn name_before(before: &str) -> &str {
    let name = before.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let start = name.rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    let start = start.map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    &name[start..]
}

/// `password=hunter2`, but neither `token=token`, a version (`auth-token==1.0`) nor code (`token = os.environ[…]`).
fn is_set(found: &Found<'_>) -> bool {
    let starts = ["os.", "process.", "self.", "this.", "config.", "settings.", "args.", "env."];
    // `token = request.headers.token`.
    let path = found.value.contains('.') && found.value.chars().all(|c| c.is_ascii_alphabetic() || c == '.' || c == '_');
    let code = found.after.starts_with(['(', '['])
        || (path && found.before.ends_with(' '))
        || starts.iter().any(|start| found.value.starts_with(start));
    is_secret_member(name_before(found.before)) && !code && !found.value.starts_with('=') && !is_placeholder(found.value)
}

/// `API_KEY: hunter2`, but not `API key: see the manual`: what is told of a secret is told in words.
fn is_told(found: &Found<'_>) -> bool {
    let name = full_name(found.before);
    let name = name.as_str();
    // `ok ? "PASS" : "FAIL"`, `libc::passwd::name`, `token://`.
    if !is_secret_member(name) || name == "PASS" || is_placeholder(found.value) || found.value.starts_with([':', '/']) {
        return false;
    }
    let after = found.after.trim_start_matches([' ', '\t']);
    let last = after.is_empty() || after.starts_with(|c: char| !c.is_alphanumeric());
    let quoted = found.before.ends_with(['"', '\'']) && found.after.starts_with(['"', '\'']);
    let word = name.to_lowercase();
    let length = found.value.len();
    // `API key: 32-character string`.
    if !quoted && is_words(found.value) && !word.contains("passw") && name.contains('_') && !found.before.contains('_') {
        return false;
    }
    quoted
        || (is_mixed(found.value) && (length >= 10 || (last && length >= 5)))
        || (last
            && word.contains("passw")
            && length >= 5
            && (found.value.contains(|c: char| !c.is_alphabetic()) || is_made(found.value)))
}

/// Whether it is the beginning of a JSON object in base64.
fn is_object(value: &str) -> bool {
    let plain = value.replace("\\/", "/").replace("%2B", "+").replace("%2b", "+").replace("%2F", "/").replace("%2f", "/");
    let bits = plain.bytes().take(LOOKED_INTO).map_while(|byte| {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        Some(u32::from(value))
    });
    let bits: Vec<u32> = bits.collect();
    let bytes =
        bits.chunks_exact(4).flat_map(|four| four.iter().fold(0, |sum, six| sum << 6 | six).to_be_bytes().into_iter().skip(1));
    let decoded: Vec<u8> = bytes.collect();
    let decoded = String::from_utf8_lossy(&decoded);
    let member = decoded.strip_prefix('{').and_then(|rest| rest.trim_start().strip_prefix('"'));
    let readable = |text: &str| text.chars().take(30).all(|c| !c.is_control() && c != char::REPLACEMENT_CHARACTER);
    member.is_some_and(|rest| match rest.split_once('"') {
        Some((name, rest)) => readable(name) && rest.trim_start().starts_with(':'),
        None => rest.len() > 30 && readable(rest),
    })
}

/// `text` with secrets replaced by [`REDACTED`]; `None` when there are none.
pub fn redact(text: &str) -> Option<String> {
    if ANY.as_ref().is_some_and(|any| !any.is_match(text)) {
        return None;
    }
    let mut clean = Cow::Borrowed(text);
    for (shape, secret) in COMPILED.iter() {
        if let Some(changed) = cut_out(shape, secret, &clean) {
            clean = changed.into();
        }
    }
    (clean != text).then(|| clean.into_owned())
}

/// `text` without what has this shape; `None` when nothing has. What is none may hold the name of what is one:
/// `Credentials: API_KEY: …`.
fn cut_out(shape: &Shape, secret: &Regex, text: &str) -> Option<String> {
    let (mut clean, mut done, mut from) = (String::new(), 0, 0);
    while let Some(found) = secret.captures_at(text, from) {
        let (whole, seen) = seen(&found, text);
        let name = seen.before;
        if (shape.real)(&seen) {
            clean.push_str(&text[done..whole.start() + name.len()]);
            clean.push_str(REDACTED);
            (done, from) = (whole.end(), whole.end());
        } else {
            let last = name.chars().next_back().map_or(0, char::len_utf8);
            // Long ones are not gone through again and again.
            let inside = name.len() > last && whole.len() <= LOOKED_INTO * 3;
            from = if inside { whole.start() + name.len() - last } else { whole.end() };
        }
    }
    (done > 0).then(|| clean + &text[done..])
}

fn seen<'a>(found: &Captures<'a>, text: &'a str) -> (regex::Match<'a>, Found<'a>) {
    let (whole, before) = (found.get_match(), found.get(1).map_or("", |before| before.as_str()));
    (whole, Found { before, value: &whole.as_str()[before.len()..], after: &text[whole.end()..] })
}

/// An address without user information and without parameters that hold secrets. What leads from page to
/// page (`page_token`, `cursor`) stays: without it the address would be another.
pub fn redact_url(url: &str) -> String {
    let (url, fragment) = url.split_once('#').map_or((url, None), |(url, fragment)| (url, Some(fragment)));
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let mut clean = match address.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            let kept = |part: &str| if find(part).is_some() { REDACTED.to_owned() } else { part.to_owned() };
            format!("{scheme}://{host}{}", path.split('/').map(kept).collect::<Vec<_>>().join("/"))
        }
        None => address.to_owned(),
    };
    if let Some(query) = query {
        let kept = |pair: &str| match pair.split_once('=') {
            Some((name, value)) if !is_placeholder(value) && (is_secret_parameter(name) || find(value).is_some()) => {
                format!("{name}={REDACTED}")
            }
            _ => pair.to_owned(),
        };
        clean = format!("{clean}?{}", query.split('&').map(kept).collect::<Vec<_>>().join("&"));
    }
    match fragment {
        Some(fragment) => format!("{clean}#{}", redact(fragment).unwrap_or_else(|| fragment.to_owned())),
        None => clean,
    }
}

/// Whether a parameter of an address of this name holds a secret.
pub fn is_secret_parameter(name: &str) -> bool {
    let whole = ["config", "auth", "sig", "signature", "pwd", "key"];
    is_secret_member(name)
        || whole.iter().any(|word| name.eq_ignore_ascii_case(word))
        || name.to_lowercase().ends_with("-signature")
}

/// What kind of secret `text` holds, when it is one beyond doubt.
pub fn find(text: &str) -> Option<&'static str> {
    let holds = |shape: &Shape, secret: &Regex| secret.captures_iter(text).any(|found| (shape.real)(&seen(&found, text).1));
    COMPILED.iter().filter(|(shape, _)| shape.certain).find(|(shape, secret)| holds(shape, secret)).map(|(shape, _)| shape.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each shape, in the order of the list. Put together here, so that no scanner takes the test for a leak.
    fn planted() -> [Vec<String>; SHAPES.len()] {
        let tail = "Abcdefghij0123456789Abcdefghij0123456789";
        let with_short = |heads: &[&str]| heads.iter().map(|head| format!("{head}x0123456789")).collect::<Vec<_>>();
        let with = |heads: &[&str]| heads.iter().map(|head| format!("{head}{tail}")).collect::<Vec<_>>();
        [
            with(&["Bearer ", "Authorization: bearer ", "Bearer: "]),
            with(&["sk-", "sk-ant-", "sk-proj-"]),
            with(&["sk_live_", "rk_test_", "pk_live_"]),
            with(&["pk-", "rk_", "sk_"]),
            with(&["ghp_", "gho_", "ghs_", "github_pat_", "glpat-"]),
            with(&["xoxb-", "xoxp-"]),
            vec![format!("npm_{}", &tail[..36]), format!("hf_{}", &tail[..34]), format!("pypi-{tail}")],
            ["AKIA", "ASIA"].map(|head| format!("{head}ABCDEFGHIJ012345")).to_vec(),
            with(&["AIza"]),
            vec![format!("eyJ{tail}.{tail}.{tail}")],
            vec![
                format!("-----BEGIN RSA {} KEY-----\n{tail}\n", "PRIVATE"),
                format!("-----BEGIN {0} KEY-----\n{tail}\n-----END {0} KEY-----", "PRIVATE"),
                format!("-----BEGIN {0} KEY-----\\n0123456789\\n-----END {0} KEY-----", "PRIVATE"),
            ],
            vec![format!("https://{}.slack.com/services/T0123456789/B0123456789/{tail}", "hooks")],
            vec![format!("123456789:AA{tail}"), format!("https://h.example/bot123456789:AA{tail}/send")],
            vec![format!("https://user:{tail}@h.example/"), format!("postgresql://:{tail}@h.example/db")],
            vec![format!("mongodb+srv://user:a/{tail}@h.example/db"), format!("mysql://:a/{tail}@h/")],
            vec![format!("https://{tail}@10.0.0.1/"), format!("git clone https://{tail}@localhost:80/x")],
            vec![format!("ann.lee.{tail}@mail.example"), format!("ann.{tail}%40mail.example")],
            vec![
                format!("https://h.example/sse/{tail}"),
                format!("https://mcp.h.example/s/{tail}/x"),
                format!("https://h.example/{tail}/mcp"),
            ],
            vec![format!("https://h.example/mcp?api_key={tail}&x=1"), "https://h.example/?config=eyJ0123456789".to_owned()],
            vec!["secret = 0123456789abcdef01234567".to_owned()],
            with(&["api_key: ", "token=", "\"password\": \""]),
            vec!["Authorization: Basic 0123456789".into(), "\"Authorization\": \"Bearer 0123456789\"".into()],
            vec!["Bearer a0123456789".into()],
            // {"key":"0123456789","a":"b"}, and one that was cut off or encoded again.
            [
                "eyJrZXkiOiIwMTIzNDU2Nzg5IiwiYSI6ImIifQ==",
                "eyJrZXkiOiIwMTIzNDU2Nzg5IiwiYSI6Im",
                "eyJrZXkiOiIwMTIzNDU2Nzg5%2FwiYSI6%2B",
            ]
            .map(|blob| format!("{blob}:0123456789")[..blob.len()].to_owned())
            .to_vec(),
            with_short(&["npx -y x --api-key ", "--token '"]),
            with_short(&["password=", "--token=", "DB_PASSWORD=", "clientSecret = '"]),
            with_short(&[
                "API_KEY: ",
                "password: ",
                "`clientSecret`: ",
                "API key: ",
                "**API Key:** ",
                "API_KEY：",
                "token -> ",
                "Credentials: API_KEY: ",
            ]),
            with_short(&["the password is ", "API key is: "]),
            vec!["<apiKey>x0123456789</apiKey>".into(), "&lt;access_token&gt;x0123456789&lt;/access_token&gt;".into()],
            with_short(&["setx API_KEY ", "setenv API_KEY '", "set -gx API_KEY "]),
            with_short(&["curl -s -u user:", "curl https://h.example --user 'user:"]),
        ]
    }

    #[test]
    fn a_planted_secret_of_every_shape_is_found_and_cut_out() {
        assert_eq!((COMPILED.len(), ANY.is_some()), (SHAPES.len(), true));
        for ((shape, pattern), planted) in COMPILED.iter().zip(planted()) {
            for secret in planted {
                let text = format!("before {secret} after");
                assert!(pattern.is_match(&text), "{} does not find {secret}", shape.name);
                let clean = redact(&text).unwrap_or_else(|| panic!("{secret} went through"));
                assert!(clean.starts_with("before ") && !clean.contains("0123456789"), "{clean}");
                assert!(clean.contains(REDACTED) && redact(&clean).is_none_or(|again| again == clean), "{clean}");
                assert_eq!(shape.certain, find(&text).is_some(), "{secret}");
            }
        }
    }

    #[test]
    fn plain_text_stays() {
        for plain in [
            "the bearer of good news",
            "set API_KEY to your key",
            "npx -y @acme/pkg@1.2.3-beta.rc",
            "https://h.example/?token={token}",
            "mask-sk-1",
            "sk-semantic-kernel-mcp",
            "npx -y sk-something-else-entirely@1.0.0 rk-remote-kernel-for-mcp2 pk_packages_of_kernels",
            "uses Bearer authentication/authorization, or Authorization: Bearer YOUR_SMITHERY_API_KEY",
            "redis://host:6379/0?mail=a@b, oci://image@sha256:0123, npm://pkg@1.2.3",
            "https://code.example/x/mcp/tree/0123456789abcdef0123456789abcdef01234567/src",
            "https://docs.example/page/0123456789abcdef0123456789abcdef",
            "https://h.example/mcp/a-long-name-of-a-server-that-is-no-key",
            "docker run -u 1000:1000 x, curl -u user:$PASSWORD x",
            "set API_KEY to whatever1 you like, setx API_KEY your-key",
            "API key: 32-character string, Access token: oauth-2.0, the token is required for 2024",
            "<key>CFBundleName</key> <password>your-password</password>",
            "npm_config_registry",
            "user@example.com, jane.doe@mail.example.org, adele@contoso.com, noreply@yourcompany.com, User@Outlook.com",
            "123456@s.whatsapp.net and group@g.us",
            "mysql://user:password@host:3306/name, dialect+driver://username:password@host/db, redis://:password@host",
            "repeat with confirm_token=\"sha256:...\"",
        ] {
            assert_eq!((redact(plain), find(plain)), (None, None), "{plain}");
        }
    }

    #[test]
    fn what_is_told_of_secrets_stays_and_secrets_go() {
        for plain in [
            "api key: see docs",
            "API_KEY: required",
            "API_KEY: YOUR_KEY",
            "GITHUB_TOKEN: GitHub personal access token",
            "token=<token> password=${PASSWORD} API_KEY=$KEY api_key=your-api-key token=GITHUB_TOKEN",
            "use Authorization: Bearer <token> or Authorization: Bearer YOUR_TOKEN or Authorization: Basic auth",
            "a bearer token, bearer authentication, Bearer OAuth2",
            "const CancelToken = axios.CancelToken; token = req.headers.authorization",
            "token = os.environ['X'], password = get_password(), auth-token==1.2.3",
            "use --api-key to set it, --token your-token, --token-file token1.txt",
            "sort_key=name, primary_key=True, max_tokens=4096, page_token=abc123",
            "ok ? \"PASS\" : \"FAIL\", libc::passwd::pw_gecos",
            "\"integrity\": \"sha512-6x6dK6zJdpTzHvOTudUeyK2WXAaIfmDgsyslYrRBeFIlsi54AYsFGUuhmvrQ==\"",
            "Password: optional, password: REQUIRED",
            "SECRET_KEY: a 256-bit key",
            "keywords: mcp2024server",
        ] {
            assert_eq!(redact(plain), None, "{plain}");
        }
        for (secret, clean) in [
            ("password=short", "password=<redacted>"),
            ("password: HUNTersonly", "password: <redacted>"),
            ("password=pw1 ; API_KEY: short9", "password=<redacted> ; API_KEY: <redacted>"),
            ("Authorization: Bearer shrt", "Authorization: Bearer <redacted>"),
            ("Bearer abc123", "Bearer <redacted>"),
            ("mysql://root:a@b@h/x", "mysql://<redacted>h/x"),
            ("mysql://user:hunter2@h/x", "mysql://<redacted>h/x"),
            ("mysql://root:password@h/x", "mysql://<redacted>h/x"),
            ("4915112345678@s.whatsapp.net", "<redacted>"),
            ("user1@mail.example, ann@example.co.host.example", "<redacted>, <redacted>"),
            ("confirm_token=\"sha256:0a1b2c\"", "confirm_token=\"<redacted>\""),
            ("https://tok-0123@h.example/x", "https://<redacted>h.example/x"),
            ("Credentials: API_KEY: x0123456789", "Credentials: API_KEY: <redacted>"),
            ("-----BEGIN PRIVATE KEY-----\n- [a](https://a.example) - A\n- b", "<redacted>\n- [a](https://a.example) - A\n- b"),
            ("-----BEGIN PRIVATE KEY----- is how it begins", "<redacted> is how it begins"),
            ("{\"apiKey\": \"x-planted\"}", "{\"apiKey\": \"<redacted>\"}"),
        ] {
            assert_eq!(redact(secret).as_deref(), Some(clean), "{secret}");
        }
    }

    #[test]
    fn addresses_of_repositories_are_no_mailboxes() {
        for address in ["git@github.com:acme/x.git", "git+ssh://git@github.com/acme/x.git", "ssh://git@code.example/x"] {
            assert_eq!(redact(address), None, "{address}");
        }
        for mailbox in ["git@host.example", "ann@host.example:x", "ask git@host.example."] {
            assert!(redact(mailbox).unwrap().contains(REDACTED), "{mailbox}");
        }
    }

    #[test]
    fn addresses_lose_their_secrets_and_still_lead_on() {
        for (url, clean) in [
            ("https://h.example/a?page_token=abc&cursor=eyJrZXkiOiIwMTIzNDU2Nzg5IiwiYSI6ImIifQ==", None),
            ("https://h.example/?after=x&pageToken=y&nextToken=z#top", None),
            ("https://u:p@h.example/a?page=2&api_key=k", Some("https://h.example/a?page=2&api_key=<redacted>")),
            ("https://h.example/?access_token=abc", Some("https://h.example/?access_token=<redacted>")),
        ] {
            assert_eq!(redact_url(url), clean.unwrap_or(url));
        }
    }
}
