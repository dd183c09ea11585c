//! A JSON reader that knows the habits of models, and names every one it met.

use std::{borrow::Cow, cell::Cell, collections::BTreeSet, fmt::Write};

use serde_json::{Map, Number, Value};

use super::Repair;
use crate::json::is_rounded;

/// Levels of nesting; a value that is deeper is refused.
const DEEPEST: u32 = 128;
/// Closing brackets that may be missing at the end. Where more are, the reply is rather cut off.
const MOST_LOST: u32 = 2;
/// Bytes that may be read in vain for every byte of a reply, and in any reply.
const FUEL: (u64, u64) = (2, 16 << 10);

/// What may still be read in vain: a text whose every bracket begins what comes to nothing is given up.
pub(super) struct Fuel(Cell<u64>);

impl Fuel {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Cell::new(FUEL.0 * bytes as u64 + FUEL.1))
    }

    pub(super) fn burn(&self, bytes: usize) -> Result<(), Fault> {
        let left = self.0.get().checked_sub(bytes as u64 + 1);
        self.0.set(left.unwrap_or(0));
        left.map(drop).ok_or(Fault::Exhausted)
    }
}

/// Why no value begins at a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// What stands there is no value.
    Broken(String),
    /// There is too much to try.
    Exhausted,
}

pub(super) type Step<T> = Result<T, Fault>;

fn broken<T>(why: impl Into<String>) -> Step<T> {
    Err(Fault::Broken(why.into()))
}

/// Reads one value of `text`, from `at` on.
pub(super) struct Parser<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    /// What had to be repaired so far.
    pub(super) repairs: BTreeSet<Repair>,
    /// Set once what was read can be nothing but JSON: prose has brackets too.
    pub(super) committed: bool,
    fuel: &'a Fuel,
    lost: u32,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, at: usize, fuel: &'a Fuel) -> Self {
        Self { text, at, repairs: BTreeSet::new(), committed: false, fuel, lost: 0 }
    }

    /// One value as a whole. What is read in vain costs fuel.
    pub(super) fn root(&mut self) -> Step<Value> {
        let start = self.at;
        self.value(0).or_else(|fault| self.in_vain(start).and(Err(fault)))
    }

    /// Pays for what was read from `start` on and came to nothing.
    pub(super) fn in_vain(&self, start: usize) -> Step<()> {
        self.fuel.burn(self.at.min(self.text.len()) - start)
    }

    /// One value of any kind, with the spaces and comments before it.
    pub(super) fn value(&mut self, depth: u32) -> Step<Value> {
        self.space()?;
        match self.peek() {
            Some(b'{' | b'[') if depth >= DEEPEST => broken(format!("it is nested more than {DEEPEST} levels deep")),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"' | b'\'') => self.string().map(Value::String),
            Some(_) => self.word(),
            None => broken("it ends where a value should be"),
        }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes `mark` if it comes next.
    pub(super) fn takes(&mut self, mark: &str) -> bool {
        let there = self.text[self.at..].starts_with(mark);
        if there {
            self.at += mark.len();
        }
        there
    }

    /// Steps over spaces and comments.
    pub(super) fn space(&mut self) -> Step<()> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                Some(b'/' | b'#') => self.comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn comment(&mut self) -> Step<()> {
        let rest = &self.text[self.at..];
        let length = if rest.starts_with("/*") {
            rest.find("*/").map(|end| end + 2)
        } else if rest.starts_with("//") || rest.starts_with('#') {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else {
            return broken("it has a `/` where a value should be");
        };
        self.at += length.unwrap_or(rest.len());
        self.repairs.insert(Repair::Comment);
        length.map_or_else(|| broken("a comment has no end"), |_| Ok(()))
    }

    fn object(&mut self, depth: u32) -> Step<Value> {
        self.at += 1;
        let mut fields = Map::new();
        loop {
            self.space()?;
            if self.takes("}") {
                if !fields.is_empty() {
                    self.repairs.insert(Repair::TrailingComma);
                }
                return Ok(Value::Object(fields));
            }
            let name = self.key()?;
            self.space()?;
            if !self.takes(":") {
                return broken(format!("the key `{}` has no value", crate::text::shown(&name, 40)));
            }
            let value = self.value(depth + 1)?;
            match fields.get(&name) {
                Some(first) if *first != value => {
                    return broken(format!("the key `{}` has two values", crate::text::shown(&name, 40)));
                }
                Some(_) => {
                    self.repairs.insert(Repair::RepeatedKey);
                }
                None => {
                    fields.insert(name, value);
                }
            }
            if self.ends(b'}')? {
                return Ok(Value::Object(fields));
            }
        }
    }

    fn list(&mut self, depth: u32) -> Step<Value> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.space()?;
            if self.takes("]") {
                if !items.is_empty() {
                    self.repairs.insert(Repair::TrailingComma);
                }
                return Ok(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.committed |= items.last().is_some_and(Value::is_string);
            if self.ends(b']')? {
                return Ok(Value::Array(items));
            }
        }
    }

    /// After a member: whether what it belongs to ends here, or a comma says that more comes.
    fn ends(&mut self, close: u8) -> Step<bool> {
        let after = self.at;
        self.space()?;
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(true)
            }
            // The text ends, or the fence around it.
            None => self.is_lost(after, close),
            Some(b'`') if self.text[self.at..].starts_with("```") => self.is_lost(after, close),
            Some(_) => {
                let next = crate::text::shown(&self.text[self.at..], 12);
                broken(format!("`{next}` stands where `,` or `{}` should be", char::from(close)))
            }
        }
    }

    fn is_lost(&mut self, after: usize, close: u8) -> Step<bool> {
        let last = self.text[..after].bytes().next_back();
        // The end of a number cannot be told from its middle.
        if last.is_some_and(|byte| byte.is_ascii_digit()) {
            return broken("it ends with a number that may be cut off");
        }
        self.lost += 1;
        if self.lost > MOST_LOST || !self.committed {
            return broken(format!("it ends where `{}` should be", char::from(close)));
        }
        self.repairs.insert(Repair::LostBrace);
        Ok(true)
    }

    fn key(&mut self) -> Step<String> {
        if matches!(self.peek(), Some(b'"' | b'\'')) {
            let name = self.string()?;
            self.committed |= self.text[self.at..].trim_start_matches([' ', '\t', '\r', '\n']).starts_with(':');
            return Ok(name);
        }
        let name = self.name();
        if name.is_empty() {
            return broken("it has no key where one should be");
        }
        self.repairs.insert(Repair::BareKey);
        Ok(name.to_owned())
    }

    /// A name as programs write it, perhaps none.
    pub(super) fn name(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let first = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-')).unwrap_or(rest.len());
        let name = if first { &rest[..end] } else { "" };
        self.at += name.len();
        name
    }

    fn string(&mut self) -> Step<String> {
        let bytes = self.text.as_bytes();
        let (start, quote) = (self.at + 1, bytes[self.at]);
        let mut end = start;
        let mut raw = false;
        loop {
            match bytes.get(end) {
                None => {
                    self.at = self.text.len();
                    return broken("a string has no end");
                }
                Some(byte) if *byte == quote => break,
                Some(b'\\') => end += 2,
                Some(byte) => {
                    raw |= *byte < 0x20;
                    end += 1;
                }
            }
        }
        let inside = &self.text[start..end];
        self.at = end + 1;
        let mut plain = Cow::Borrowed(inside);
        if quote == b'\'' {
            self.repairs.insert(Repair::SingleQuotes);
            plain = Cow::Owned(requoted(inside)?);
        }
        if raw {
            self.repairs.insert(Repair::RawNewline);
            plain = Cow::Owned(escaped(&plain));
        }
        serde_json::from_str(&format!("\"{plain}\"")).or_else(|_| broken("a string has an escape that JSON does not know"))
    }

    fn word(&mut self) -> Step<Value> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.' | '_')).unwrap_or(rest.len());
        let word = &rest[..end];
        let python = matches!(word, "True" | "False" | "None");
        let value = match word {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" => Value::Null,
            _ => Value::Number(number(word)?),
        };
        if python {
            self.repairs.insert(Repair::PythonLiteral);
        }
        self.at += end;
        Ok(value)
    }
}

fn number(word: &str) -> Step<Number> {
    let read = serde_json::from_str::<Number>(word).or_else(|_| {
        let what = crate::text::shown(word, 40);
        broken(if what.is_empty() { "it has no value where one should be".to_owned() } else { format!("`{what}` is no value") })
    })?;
    // A number must be kept as it was said.
    if is_rounded(word.as_bytes()) {
        return broken(format!("the number `{}` has more digits than can be kept", crate::text::shown(word, 60)));
    }
    Ok(read)
}

/// The inside of a string in single quotes as it is written in double ones.
fn requoted(inside: &str) -> Step<String> {
    let mut out = String::with_capacity(inside.len() + 8);
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => match chars.next() {
                Some('\'') => out.push('\''),
                // Those that mean the same in JSON, Python and JavaScript.
                Some(escape @ ('"' | '\\' | 'b' | 'f' | 'n' | 'r' | 't' | 'u')) => out.extend(['\\', escape]),
                _ => return broken("a string has an escape that JSON does not know"),
            },
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// `inside` with line feeds and other control characters as escapes.
fn escaped(inside: &str) -> String {
    let mut out = String::with_capacity(inside.len() + 16);
    for c in inside.chars() {
        if c < ' ' {
            // Writing to a string cannot fail.
            write!(out, "\\u{:04x}", u32::from(c)).ok();
        } else {
            out.push(c);
        }
    }
    out
}
