//! Where in a reply the values are, and what stands around them.

use std::{borrow::Cow, collections::BTreeSet, ops::Range};

use serde_json::Value;

use super::{
    Refused, Repair, Why,
    parse::{Fault, Fuel, Parser},
};

pub(super) type Fuelled<T> = Result<T, Fault>;

/// How models mark their reasoning.
const REASONING: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
];
/// Bytes of the opening line of a fence.
const LONGEST_FENCE: usize = 100;
/// Where the answer begins after reasoning that has no tags of its own.
const FINAL: &str = "<|channel|>final<|message|>";
/// What ends a turn and is no part of it.
const END_TOKENS: [&str; 9] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|endoftext|>", "<end_of_turn>", "<|call|>", "</s>"];

/// A reply, and what reading it may still cost.
pub(super) struct Text<'a> {
    pub(super) trimmed: &'a str,
    pub(super) fuel: Fuel,
    pub(super) ended: bool,
}

/// A value in a text.
pub(super) struct Found {
    pub(super) span: Range<usize>,
    pub(super) value: Value,
    pub(super) repairs: BTreeSet<Repair>,
}

impl<'a> Text<'a> {
    pub(super) fn new(reply: &'a str) -> Self {
        let mut trimmed = reply.trim_start_matches('\u{feff}').trim();
        let mut ended = false;
        while let Some(rest) = END_TOKENS.iter().find_map(|token| trimmed.strip_suffix(token)) {
            trimmed = rest.trim_end();
            ended = true;
        }
        Self { trimmed, fuel: Fuel::new(reply.len()), ended }
    }

    /// The text without blocks of reasoning; tags inside of JSON are none.
    pub(super) fn without_reasoning(&self) -> Result<(Cow<'a, str>, BTreeSet<Repair>), Refused> {
        let text = self.trimmed;
        let mut repairs = BTreeSet::new();
        if self.ended {
            repairs.insert(Repair::EndToken);
        }
        let marked = |tag: &str| text.contains(tag);
        if !marked(FINAL) && !REASONING.iter().any(|(open, close)| marked(open) || marked(close)) {
            return Ok((Cow::Borrowed(text), repairs));
        }
        let (kept, reasoned) = self.walk().map_err(|fault| Refused::broken("the reply", fault))?;
        if reasoned {
            repairs.insert(Repair::Reasoning);
        }
        Ok((Cow::Owned(kept.trim().to_owned()), repairs))
    }

    /// Takes out the reasoning. A block without end stays with its tag, so that nothing is taken from it.
    fn walk(&self) -> Fuelled<(String, bool)> {
        let text = self.trimmed;
        let mut kept = String::new();
        let (mut from, mut at, mut reasoned) = (0, 0, false);
        while let Some(step) = text[at..].find(['<', '[', '{', '◁']) {
            at += step;
            let rest = &text[at..];
            let ends = REASONING.iter().map(|(_, close)| *close).chain([FINAL]).find(|close| rest.starts_with(close));
            if let Some(close) = ends {
                // All before it was reasoning whose beginning is not there.
                kept.clear();
                (at, reasoned) = (at + close.len(), true);
                from = at;
                continue;
            }
            if let Some((open, close)) = REASONING.iter().find(|(open, _)| rest.starts_with(open)) {
                let Some(end) = rest.find(close) else {
                    return Ok(unended(text, at, open, kept + &text[from..at]));
                };
                kept.push_str(&text[from..at]);
                (at, reasoned) = (at + end + close.len(), true);
                from = at;
                continue;
            }
            at += match rest.as_bytes()[0] {
                b'{' | b'[' => match self.value_at(at)? {
                    Some(length) => length,
                    // No reasoning begins like this: it is broken JSON, and tags in it may be its own.
                    None if at == 0 && self.begins_json() => return Ok((text.to_owned(), false)),
                    None => 1,
                },
                _ => rest.chars().next().map_or(1, char::len_utf8),
            };
        }
        kept.push_str(&text[from..]);
        Ok((kept, reasoned))
    }

    /// Bytes of the value that begins at `at`, where it needs no repair or can be nothing but a value.
    fn value_at(&self, at: usize) -> Fuelled<Option<usize>> {
        let mut parser = Parser::new(self.trimmed, at, &self.fuel);
        match parser.root() {
            Ok(_) if parser.repairs.is_empty() || parser.committed || is_fenced(&self.trimmed[..at]) => {
                Ok(Some(parser.at.min(self.trimmed.len()) - at))
            }
            Err(Fault::Exhausted) => Err(Fault::Exhausted),
            _ => Ok(None),
        }
    }

    /// Whether the text begins with what can be nothing but JSON.
    fn begins_json(&self) -> bool {
        let mut parser = Parser::new(self.trimmed, 0, &self.fuel);
        parser.root().ok();
        parser.committed
    }

    /// Whether the reply never came to an answer.
    pub(super) fn is_unended(&self, repairs: &BTreeSet<Repair>, rest: &str) -> bool {
        !repairs.is_empty() && REASONING.iter().any(|(open, _)| rest.starts_with(open))
    }

    /// Objects and lists of `part`, outermost ones only. Lists in prose count only where they hold more than numbers:
    /// `[1]` is a footnote.
    ///
    /// # Errors
    /// One of them is broken: what lies inside it must not be taken for the whole.
    pub(super) fn containers(&self, part: &str) -> Result<Vec<Found>, Refused> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(step) = part[at..].find(['{', '[']) {
            at += step;
            let mut parser = Parser::new(part, at, &self.fuel);
            match parser.root() {
                Ok(value) => {
                    let span = at..parser.at.min(part.len());
                    at = span.end;
                    let plain = parser.committed || parser.repairs.is_empty();
                    if is_meant(part, &span, &value, plain) {
                        found.push(Found { span, value, repairs: parser.repairs });
                    }
                }
                Err(fault) if parser.committed || fault == Fault::Exhausted => {
                    return Err(Refused::broken("the JSON of the reply", fault));
                }
                Err(_) => at += 1,
            }
        }
        Ok(found)
    }
}

/// A block without end: only what is a value as a whole can still be read, and only when nothing stands before it.
fn unended(text: &str, at: usize, open: &str, before: String) -> (String, bool) {
    let rest = text[at + open.len()..].trim();
    if before.trim().is_empty() && rest.starts_with(['{', '[']) {
        let mut fuel_free = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if matches!(fuel_free.next(), Some(Ok(_))) && rest[fuel_free.byte_offset()..].trim().is_empty() {
            return (rest.to_owned(), true);
        }
    }
    (before + &text[at..], true)
}

/// Whether a value is meant as one: what stands in a fence or alone is; of what stands in prose, objects that are
/// `plain` JSON, and lists that hold more than numbers.
fn is_meant(part: &str, span: &Range<usize>, value: &Value, plain: bool) -> bool {
    let holds = |item: &Value| item.is_object() || item.is_array() || item.is_string();
    let more = value.as_array().is_none_or(|items| items.iter().any(holds));
    (plain && more) || *span == (0..part.len()) || is_fenced(&part[..span.start])
}

/// Whether `before` ends with the opening line of a fence.
fn is_fenced(before: &str) -> bool {
    let before = before.trim_end();
    // Every value of a long line is asked about: what is further away is no such line.
    let from = before.len().saturating_sub(LONGEST_FENCE);
    let line = match before.as_bytes()[from..].iter().rposition(|byte| *byte == b'\n') {
        Some(end) => &before[from + end + 1..],
        None if from == 0 => before,
        None => return false,
    };
    line.trim_start().strip_prefix("```").is_some_and(|language| language.chars().all(is_of_language))
}

pub(super) fn is_of_language(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.')
}

/// What stands around the values that were found.
pub(super) fn around(part: &str, found: &[Found]) -> BTreeSet<Repair> {
    let mut repairs = BTreeSet::new();
    let mut from = 0;
    for piece in found {
        repairs.extend(beside(&part[from..piece.span.start], false));
        from = piece.span.end;
    }
    repairs.extend(beside(&part[from..], true));
    repairs
}

/// What a piece of text beside values is.
pub(super) fn beside(piece: &str, last: bool) -> BTreeSet<Repair> {
    let mut repairs = BTreeSet::new();
    let mut prose = String::new();
    let mut rest = piece;
    while let Some(at) = rest.find('`') {
        repairs.insert(Repair::CodeFence);
        prose.push_str(&rest[..at]);
        let ticks = rest[at..].len() - rest[at..].trim_start_matches('`').len();
        rest = &rest[at + ticks..];
        if ticks >= 3 {
            rest = rest.trim_start_matches(is_of_language);
        }
    }
    prose.push_str(rest);
    let prose = prose.trim();
    if last && !prose.is_empty() && prose.len() <= 3 && prose.chars().all(|c| matches!(c, '}' | ']')) {
        repairs.insert(Repair::ExtraBrace);
    } else if prose.chars().any(|c| !c.is_whitespace() && !matches!(c, ',' | ';')) {
        repairs.insert(Repair::SurroundingProse);
    }
    repairs
}

/// A refusal for what can be meant in more than one way.
pub(super) fn ambiguous(detail: impl Into<String>) -> Refused {
    Refused::new(Why::Ambiguous, detail)
}
