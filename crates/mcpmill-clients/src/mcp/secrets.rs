//! The user's secrets as texts may hold them, and texts without them.

mod forms;
mod messages;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use super::given::UNNAMED;
use aho_corasick::AhoCorasick;
pub(super) use forms::base64;
use forms::{forms_of, is_plain};
use mcpmill_core::{record::ServerRecord, template::as_variable};
use views::{View, unescaped, unwrapped};

/// Times that escapes are undone: what was escaped twice is found.
const UNDONE: usize = 2;
/// Bytes of a word that is known in either case.
const LONG_WORD: usize = 12;

/// Values of secrets in every form in which a server may repeat them, and what stands for each: `<NAME>`. Servers
/// print their environment into errors, and some into the text of their tools.
///
/// Everything that a server says goes through here once, before any of it is cut: messages as they are read
/// ([`super::kept`]), its error output, and the words that failures are told in.
///
/// A value is known as it is and, unless it is a short word, in other case; without white space at its ends, line by
/// line, and without the word `Bearer` or `Basic` before it; the password in an address or behind `user:` alone; each
/// of these in hexadecimal, Base32 and Base64 (also across lines, encoded twice and of UTF-16), and behind escapes as
/// JSON, programs, addresses and HTML have them, however many of its letters are escaped, once or twice. It is not
/// known as a list of numbers, backwards, with something between its letters, in Base85 or in a cipher: a server that
/// wants to give a secret away can.
///
/// Values of less than six bytes stay: they are in too many texts by chance. So do those that the server can have
/// been given under no name: it knows nothing of them, and a value such as `user@example.com` is in many a
/// description. Words and short numbers stay where a schema or the protocol means something by them.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// All forms at once; letters of ASCII count as equal in either case.
    found_by: Option<AhoCorasick>,
    /// Each form, in the order in which they are looked for.
    forms: Vec<Form>,
    /// What stands for any of them.
    marks: BTreeSet<String>,
    /// Bytes of the longest form.
    longest: usize,
}

/// A form of a secret.
#[derive(Debug)]
struct Form {
    /// What stands for it.
    mark: String,
    text: String,
    /// It is a word or a short number, which may stand in a text by itself.
    is_plain: bool,
}

/// A part of a text that is a secret.
#[derive(Clone, Debug)]
struct Found {
    range: Range<usize>,
    /// The form that says what stands for it, and its bytes.
    form: usize,
    length: usize,
}

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
        if forms.is_empty() {
            return Self::default();
        }
        let longest = forms.keys().map(String::len).max().unwrap_or_default();
        let built = AhoCorasick::builder().ascii_case_insensitive(true).build(forms.keys());
        let marks = forms.values().cloned().collect();
        let forms = forms.into_iter().map(|(text, mark)| Form { mark, is_plain: is_plain(&text), text }).collect();
        // It is only not built when there are more forms than fit into the memory of any machine.
        Self { found_by: built.ok(), forms, marks, longest }
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
        self.found_by.is_none()
    }

    /// Bytes that the rest of one can take in a text whose beginning is lost.
    pub(super) fn longest_rest(&self) -> usize {
        // Escapes are at most eight times as long as what they stand for, and the longest form is some three times
        // as long as the value. A letter that was cut through is replaced by up to six bytes more.
        if self.is_empty() { 0 } else { 3 * self.longest + 6 }
    }

    /// `text` without them.
    pub(super) fn out_of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        self.text(&mut text, false);
        text
    }

    /// As [`Self::out_of`], in place; what was found. Plain ones stay where `but_plain` says so.
    fn text(&self, text: &mut String, but_plain: bool) -> Vec<Found> {
        let found = self.found(text, but_plain);
        if !found.is_empty() {
            *text = self.without(text, &found, 0);
        }
        found
    }

    /// As [`Self::out_of`], for a text whose beginning is lost: it begins behind what can be the rest of one.
    pub(super) fn out_of_rest(&self, text: &str) -> String {
        let mut from = text.len().min(self.longest_rest());
        while !text.is_char_boundary(from) {
            from += 1;
        }
        self.without(text, &self.found(text, false), from)
    }

    /// What of `text` is a secret, as it stands or behind escapes; ascending, and no two of them overlap. A mark of
    /// ours holds none, whatever its name.
    fn found(&self, text: &str, but_plain: bool) -> Vec<Found> {
        let mut found = Vec::new();
        let mut undone: Vec<View> = Vec::new();
        loop {
            let bytes = undone.last().map_or(text.as_bytes(), View::bytes);
            let back = |range| undone.iter().rev().fold(range, |range, view| view.from(range));
            self.search(bytes, but_plain, &mut found, back);
            if let Some(view) = unwrapped(bytes) {
                self.search(view.bytes(), but_plain, &mut found, |range| back(view.from(range)));
            }
            match unescaped(bytes).filter(|_| undone.len() < UNDONE) {
                Some(view) => undone.push(view),
                None => break,
            }
        }
        let mut found = united(found);
        found.retain(|found| !self.is_in_a_mark(text, &found.range));
        found
    }

    fn search(&self, bytes: &[u8], but_plain: bool, found: &mut Vec<Found>, back: impl Fn(Range<usize>) -> Range<usize>) {
        let Some(found_by) = &self.found_by else { return };
        let first = found.len();
        for hit in found_by.find_overlapping_iter(bytes) {
            let form = hit.pattern().as_usize();
            let Form { is_plain, text, .. } = &self.forms[form];
            // A short word of other case is another word.
            let other_case = text.len() < LONG_WORD && bytes[hit.range()] != *text.as_bytes();
            if *is_plain && (but_plain || other_case) {
                continue;
            }
            let one = Found { range: back(hit.range()), form, length: hit.len() };
            // They come by their ends. United at once, or a text of one letter would make a list as long as itself.
            unite(found, first, one);
        }
    }

    /// Whether what stands there is part of a `<NAME>` that stands for a secret.
    fn is_in_a_mark(&self, text: &str, range: &Range<usize>) -> bool {
        let longest = self.marks.iter().map(String::len).max().unwrap_or_default();
        let from = text.floor_char_boundary(range.start.saturating_sub(longest));
        let to = text.floor_char_boundary(text.len().min(range.end + longest));
        let open = text.get(from..range.start).and_then(|before| before.rfind('<'));
        let close = text.get(range.end..to).and_then(|after| after.find('>'));
        let mark = open.zip(close).and_then(|(open, close)| text.get(from + open..=range.end + close));
        mark.is_some_and(|mark| self.marks.contains(mark))
    }

    /// `text` from this byte on, with what was found replaced.
    fn without(&self, text: &str, found: &[Found], mut at: usize) -> String {
        let mut out = String::with_capacity(text.len());
        for found in found {
            // What began before is left out.
            if found.range.start >= at {
                out.push_str(&text[at..found.range.start]);
                out.push_str(&self.forms[found.form].mark);
            }
            at = at.max(found.range.end);
        }
        out.push_str(&text[at..]);
        out
    }
}

/// Adds one whose end is not before that of any from `first` on.
fn unite(found: &mut Vec<Found>, first: usize, mut one: Found) {
    while found.len() > first
        && let Some(last) = found.pop_if(|last| last.range.end > one.range.start)
    {
        one.range = last.range.start.min(one.range.start)..one.range.end.max(last.range.end);
        // The longer one says whose it is.
        if last.length > one.length {
            (one.form, one.length) = (last.form, last.length);
        }
    }
    found.push(one);
}

fn united(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by_key(|found| (found.range.end, found.range.start));
    let mut united = Vec::with_capacity(found.len());
    found.into_iter().for_each(|one| unite(&mut united, 0, one));
    united
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::{EnvVar, Launch};
    use serde_json::json;

    use super::*;

    fn secrets(all: &[(&str, &str)]) -> Secrets {
        Secrets::new(&all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
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
    fn a_value_is_known_without_its_ends_by_its_lines_and_by_its_password() {
        for (value, text, hidden) in [
            ("s3cret-value\n", "is s3cret-value.", "is <K>."),
            (" \ts3cret-value ", "is s3cret-value.", "is <K>."),
            ("Bearer s3cret-value \n", "is s3cret-value.", "is <K>."),
            ("first-line\r\n  second-line\nx", "first-line, second-line, x", "<K>, <K>, x"),
            ("postgres://user:p4ss%2Fword@h.example/db", "p4ss%2Fword and p4ss/word", "<K> and <K>"),
            ("https://t0ken-value@h.example/", "t0ken-value at h.example", "<K> at h.example"),
            ("user:p4ssword", "user and p4ssword", "user and <K>"),
            ("h.example/image:latest", "the latest", "the latest"),
            ("https://h.example:8443/path", "h.example:8443", "h.example:8443"),
            ("-----BEGIN KEY-----\nMIIabcdef\n-----END KEY-----", "-----BEGIN KEY-----MIIabcdef", "-----BEGIN KEY-----<K>"),
        ] {
            assert_eq!(secrets(&[("K", value)]).out_of(text), hidden, "{value:?}");
        }
    }

    /// Every letter written by `one`.
    fn each(value: &str, one: impl Fn(u32) -> String) -> String {
        value.chars().map(|letter| one(u32::from(letter))).collect()
    }

    #[test]
    fn encodings_are_known() {
        let value = "Zq9-planted/K+ey_7351xWv#Tb";
        let all = secrets(&[("K", value)]);
        let (hexed, json) = (hex::encode(value), serde_json::to_string(&json!({"a": value})).unwrap());
        let wide: Vec<u8> = value.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let long = base64(value.repeat(6).as_bytes());
        let wrapped: Vec<_> = long.as_bytes().chunks(76).map(String::from_utf8_lossy).collect();
        for (text, rest) in [
            (hexed.to_uppercase(), 0),
            (hexed, 0),
            (value.to_uppercase(), 0),
            (value.to_lowercase(), 0),
            (each(value, |c| format!("%{c:02x}")), 0),
            (each(value, |c| format!("%25{c:02X}")), 0),
            (each(value, |c| format!("\\x{c:02x}")), 0),
            (each(value, |c| format!("\\u{c:04X}")), 0),
            (each(value, |c| format!("&#{c};")), 0),
            (each(value, |c| format!("&#x{c:X};")), 0),
            (serde_json::to_string(&json).unwrap(), 15),
            ("LJYTSLLQNRQW45DFMQXUWK3FPFPTOMZVGF4FO5RDKRRA====".to_owned(), 0),
            (base64(base64(value.as_bytes()).as_bytes()), 0),
            (base64(&wide), 0),
            (wrapped.join("\n"), 5),
            (wrapped.join("\\n    "), 5),
        ] {
            let hidden = all.out_of(&format!("a {text} b"));
            assert!(hidden.contains("<K>"), "{text}: {hidden}");
            assert!(hidden.replace("<K>", "").len() <= 4 + rest, "{text}: {hidden}");
        }
    }

    #[test]
    fn secrets_that_overlap_go_together() {
        let all = secrets(&[("A", "abcdef12"), ("B", "ef12345678")]);
        assert_eq!(all.out_of("x abcdef12345678 abcdef12abcdef12 y"), "x <B> <A><A> y");
        let one = secrets(&[("A", "aaaaaa")]);
        assert_eq!(one.out_of(&"a".repeat(1 << 20)), "<A>");
    }

    #[test]
    fn no_half_of_a_secret_is_left_where_a_beginning_is_lost() {
        let all = secrets(&[("K", "s3cret-välue")]);
        let long = format!("s3cret-välue{}", each("s3cret-välue", |c| format!("\\u{c:04x}"))).repeat(400);
        for cut in 0..200 {
            let rest = all.out_of_rest(&String::from_utf8_lossy(&long.as_bytes()[cut..]));
            assert_eq!(rest.replace("<K>", ""), "", "{cut}");
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

    #[test]
    fn a_mark_is_never_looked_into() {
        let all = secrets(&[("RW_DB_PASSWORD", "password"), ("password", "s3cret-value"), ("B", "rw-db-2")]);
        let once = all.out_of("the password of rw-db-2 is s3cret-value");
        assert_eq!(once, "the <RW_DB_PASSWORD> of <B> is <password>");
        assert_eq!(all.out_of(&once), once);
        assert_eq!(all.out_of("<a password>"), "<a <RW_DB_PASSWORD>>");
    }

    #[test]
    fn only_words_are_told_apart_by_their_case() {
        let all = secrets(&[("W", "hunter"), ("N", "hunter2"), ("L", "correct-horse-battery")]);
        for (text, hidden) in [
            ("hunter Hunter HUNTER", "<W> Hunter HUNTER"),
            ("HUNTER2 and Hunter2", "<N> and <N>"),
            ("CORRECT-HORSE-BATTERY", "<L>"),
        ] {
            assert_eq!(all.out_of(text), hidden);
        }
    }
}
