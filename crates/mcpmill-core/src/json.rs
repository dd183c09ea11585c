//! JSON that the usual reader refuses: nested deeply, with lone surrogates, with bytes that are no UTF-8.

use serde_json::{Map, Value};

/// Levels of nesting that are kept. All that walk a value call themselves once a level, so this also
/// bounds the stack they need.
pub const DEEPEST: usize = 520;

/// Stands where something deeper than [`DEEPEST`] was cut away.
const CUT: &str = "\u{0}is nested too deeply";
/// Stands where a number was that cannot be kept (`1e400`, `NaN`).
const NO_NUMBER: &str = "\u{0}holds a number that cannot be kept";

/// A JSON text, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// What it says.
    pub value: Value,
    /// Whether characters had to be replaced to read it.
    pub mended: bool,
}

/// Reads JSON, mending what can be mended: lone surrogates and bytes that are no UTF-8 become U+FFFD,
/// and what is nested deeper than [`DEEPEST`] and numbers that no `f64` holds are cut away (see
/// [`is_cut`]). `None` when it is no JSON.
pub fn read(bytes: &[u8]) -> Option<Read> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Some(Read { value, mended: false });
    }
    let text = String::from_utf8_lossy(bytes);
    let mut reader = Reader { text: &text, at: 0, mended: matches!(text, std::borrow::Cow::Owned(_)) };
    let value = reader.document()?;
    Some(Read { value, mended: reader.mended })
}

/// Whether a number in a JSON text has more digits than are kept: whole ones beyond 64 bits, and fractions of more
/// digits than an `f64` has. Such numbers are read as the nearest one.
pub fn is_rounded(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(first) = rest.first() {
        let length = match first {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => rest.iter().take_while(|byte| is_of_number(**byte)).count(),
            _ => 1,
        };
        let (token, after) = rest.split_at(length);
        // Up to fifteen digits are always kept.
        if *first != b'"' && length > 15 && std::str::from_utf8(token).is_ok_and(loses_digits) {
            return true;
        }
        rest = after;
    }
    false
}

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

/// Bytes up to the end of the string that `text` starts with, or all when it has none.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn loses_digits(number: &str) -> bool {
    let digits = |text: &str| {
        let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
        mantissa.chars().filter(char::is_ascii_digit).collect::<String>().trim_matches('0').to_owned()
    };
    let kept = serde_json::from_str::<Value>(number).ok().filter(Value::is_number);
    kept.is_some_and(|kept| digits(&kept.to_string()) != digits(number))
}

/// Reads a JSON text that was written from a value of ours, which may be nested as deeply as [`DEEPEST`].
///
/// # Errors
/// It is none, or was never written whole.
pub fn of_text(text: &str) -> serde_json::Result<Value> {
    let whole = |read: &Read| !read.mended && !is_cut(&read.value);
    serde_json::from_str(text).or_else(|error| read(text.as_bytes()).filter(whole).map(|read| read.value).ok_or(error))
}

/// Whether something was cut away anywhere in `value`.
pub fn is_cut(value: &Value) -> bool {
    why_cut(value).is_some()
}

/// Why something was cut away in `value`, said of the whole (`is nested too deeply`).
pub fn why_cut(value: &Value) -> Option<&'static str> {
    match value {
        Value::String(text) => [CUT, NO_NUMBER].into_iter().find(|mark| text == mark).map(|mark| &mark[1..]),
        Value::Array(items) => items.iter().find_map(why_cut),
        Value::Object(fields) => fields.values().find_map(why_cut),
        _ => None,
    }
}

/// A list or object that is not closed yet.
enum Open {
    List(Vec<Value>),
    /// With the name of the field whose value comes next.
    Object(Map<String, Value>, Option<String>),
}

/// Reads without calling itself, so that no depth overflows the stack.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    mended: bool,
}

impl Reader<'_> {
    fn document(&mut self) -> Option<Value> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            let mut done = match self.next()? {
                b'[' | b'{' if open.len() >= DEEPEST => self.skip()?,
                b'[' => {
                    self.at += 1;
                    if self.next()? != b']' {
                        open.push(Open::List(Vec::new()));
                        continue;
                    }
                    self.at += 1;
                    Value::Array(Vec::new())
                }
                b'{' => {
                    self.at += 1;
                    if self.next()? != b'}' {
                        let name = self.name()?;
                        open.push(Open::Object(Map::new(), Some(name)));
                        continue;
                    }
                    self.at += 1;
                    Value::Object(Map::new())
                }
                b'"' => Value::String(self.string()?),
                _ => self.word()?,
            };
            // What is read belongs to what is open, and may have been the last part of it.
            loop {
                let Some(top) = open.pop() else {
                    return self.next().is_none().then_some(done);
                };
                match self.add(top, done)? {
                    Ok(still_open) => {
                        open.push(still_open);
                        break;
                    }
                    Err(closed) => done = closed,
                }
            }
        }
    }

    /// Adds a value to what is open; `Err` when that is closed now.
    fn add(&mut self, open: Open, value: Value) -> Option<Result<Open, Value>> {
        let byte = self.next()?;
        self.at += 1;
        match (open, byte) {
            (Open::List(mut items), b',' | b']') => {
                items.push(value);
                Some(if byte == b',' { Ok(Open::List(items)) } else { Err(Value::Array(items)) })
            }
            (Open::Object(mut fields, name), b',' | b'}') => {
                fields.insert(name?, value);
                if byte == b'}' {
                    return Some(Err(Value::Object(fields)));
                }
                self.next()?;
                let name = self.name()?;
                Some(Ok(Open::Object(fields, Some(name))))
            }
            _ => None,
        }
    }

    /// The next byte that is no space, without taking it.
    fn next(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn name(&mut self) -> Option<String> {
        let name = self.string()?;
        (self.next()? == b':').then(|| self.at += 1)?;
        Some(name)
    }

    fn string(&mut self) -> Option<String> {
        let start = self.at;
        self.step_over_string()?;
        let token = &self.text[start..self.at];
        serde_json::from_str(token).ok().or_else(|| {
            self.mended = true;
            serde_json::from_str(&without_lone_surrogates(token)).ok()
        })
    }

    fn step_over_string(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        (bytes.get(self.at) == Some(&b'"')).then_some(())?;
        self.at += 1;
        loop {
            self.at += match bytes.get(self.at)? {
                b'"' => break,
                b'\\' => 2,
                _ => 1,
            };
        }
        self.at += 1;
        Some(())
    }

    fn word(&mut self) -> Option<Value> {
        let rest = &self.text[self.at..];
        let end = rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(rest.len());
        self.at += end;
        let word = &rest[..end];
        let read = serde_json::from_str(word).ok();
        read.or_else(|| is_number(word).then(|| Value::String(NO_NUMBER.to_owned())))
    }

    /// Steps over a list or object of any depth.
    fn skip(&mut self) -> Option<Value> {
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                b'"' => {
                    self.step_over_string()?;
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(Value::String(CUT.to_owned()));
            }
        }
    }
}

/// Whether a word is a number as JSON or JavaScript writes it, of whatever size.
fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let word = word.strip_prefix('-').unwrap_or(word);
    let (number, exponent) = word.split_once(['e', 'E']).map_or((word, "0"), |(number, exponent)| (number, exponent));
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    matches!(word, "NaN" | "Infinity") || (digits(whole) && digits(part) && digits(exponent))
}

/// A string token in which every `\ud800` without its other half is `\ufffd`.
fn without_lone_surrogates(token: &str) -> String {
    let unit = |at: usize| {
        let digits = token.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut whole = String::with_capacity(token.len());
    let mut at = 0;
    while let Some(next) = token[at..].chars().next() {
        let step = match (unit(at), unit(at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                whole.push_str("\\ufffd");
                at += 6;
                continue;
            }
            // An escaped backslash must not be taken for the start of an escape.
            _ if next == '\\' => 1 + token[at + 1..].chars().next().map_or(0, char::len_utf8),
            _ => next.len_utf8(),
        };
        whole.push_str(&token[at..at + step]);
        at += step;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}1{}", r#"{"items":["#.repeat(levels / 2), "]}".repeat(levels / 2))
    }

    /// Reads with the reader of this file what the usual one reads as well.
    fn own(text: &str) -> Option<Value> {
        Reader { text, at: 0, mended: false }.document()
    }

    #[test]
    fn what_is_plain_is_read_as_usual() {
        for text in [
            r#" {"a" : [ 1 , -2.5e3, true,null ,{}], "é\n\"\\":[], "z":{"b":[[]],"a":"\ud83d\ude00"}} "#,
            "[1,[2,[3]],{}]",
            r#""x""#,
            "7",
        ] {
            assert_eq!(own(text).unwrap().to_string(), serde_json::from_str::<Value>(text).unwrap().to_string());
        }
        for text in
            ["", "{", "[1", "[1,]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "[1]x", "[1}", "\"x", "nul", "[,1]", "]", "{\"a\":1 2}"]
        {
            assert_eq!(own(text), None, "{text}");
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn deep_values_are_whole_and_deeper_ones_are_cut() {
        for levels in [100, 300, 512] {
            let read = read(nested(levels).as_bytes()).unwrap();
            assert_eq!(read.value.to_string(), nested(levels));
            assert!(!read.mended && !is_cut(&read.value));
        }
        let read = read(nested(200_000).as_bytes()).unwrap();
        assert!(is_cut(&read.value) && is_cut(&read.value.clone()));
        assert!(read.value.to_string().len() < 10_000);
    }

    #[test]
    fn numbers_that_cannot_be_kept_are_cut_alone() {
        let long = "9".repeat(401);
        for number in ["1e400", "-1E+400", "NaN", "Infinity", "-Infinity", &long] {
            let read = read(format!(r#"[{{"maximum":{number}}},{{"maximum":1e4}}]"#).as_bytes()).unwrap();
            assert_eq!(why_cut(&read.value[0]), Some("holds a number that cannot be kept"), "{number}");
            assert!(!is_cut(&read.value[1]));
        }
        for text in ["[nan]", "[-]", "[1e]", "[.5]", "[1.]", "[NaN1]", "[+1]"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_of_more_digits_than_are_kept_are_found() {
        let rounded = |number: &str| is_rounded(format!(r#"{{"a\"1":[{number}, true],"b":2}}"#).as_bytes());
        for number in ["18446744073709551616000001", "-9223372036854775809", "0.12345678901234567890", "1.2345678901234567891e5"]
        {
            assert!(rounded(number), "{number}");
        }
        for number in [
            "18446744073709551615",
            "-9223372036854775808",
            "100000000000000000000000",
            "1.7976931348623157e308",
            "0.1000000000000000000",
            "1.10",
            r#""18446744073709551616000001""#,
            r#""\"18446744073709551616000001""#,
        ] {
            assert!(!rounded(number), "{number}");
        }
        assert!(!is_rounded(b"\"unended 18446744073709551616000001\\"));
    }

    #[test]
    fn what_was_written_is_read_again_and_nothing_else() {
        assert_eq!(of_text(&nested(512)).unwrap().to_string(), nested(512));
        for text in [&nested(1000), "{", r#"["\ud800"]"#] {
            assert!(of_text(text).is_err());
        }
    }

    #[test]
    fn broken_characters_are_replaced() {
        let mended = |bytes: &[u8]| {
            let read = read(bytes).unwrap();
            assert!(read.mended);
            read.value.to_string()
        };
        assert_eq!(mended(br#"{"a\udc00":"x\ud800y"}"#), "{\"a\u{fffd}\":\"x\u{fffd}y\"}");
        assert_eq!(mended(br#"["\ud800\ud83d\ude00\\ud800\u00e9"]"#), "[\"\u{fffd}\u{1f600}\\\\ud800é\"]");
        assert_eq!(mended(b"[\"a\xff\"]"), "[\"a\u{fffd}\"]");
        assert_eq!(read(br#"["\u12"]"#), None);
        assert_eq!(read(br#"["\ud8"]"#), None);
    }
}
