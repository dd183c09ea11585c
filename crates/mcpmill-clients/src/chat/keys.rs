//! Takes keys out of what providers say, however often JSON was escaped on the way.

use std::{borrow::Cow, ops::Range};

use crate::secret::Secret;

/// Stands where a provider says a key back.
pub(super) const KEY_WAS: &str = "[key]";
/// A value shorter than this is no key.
const SHORTEST: usize = 6;
/// Backslashes before a character that still belong to it: texts in texts in texts.
const MOST_BACKSLASHES: usize = 8;

/// Keys that must not come into outcomes, files and logs.
///
/// A character of a key is found as itself, behind up to eight backslashes, or behind one to eight backslashes as `u` and
/// its four hex digits.
pub struct Keys {
    /// The longest first: one may hold another.
    keys: Vec<Secret>,
    /// Whether a byte may begin a key.
    begins: [bool; 256],
}

/// What of a key stands at a place.
enum Found {
    /// All of it; it ends here.
    Whole(usize),
    /// Its beginning, and the text ends there.
    Cut,
    Nothing,
}

impl Keys {
    /// Those of `keys` that are long enough to be some: six bytes or more.
    pub fn new(keys: impl IntoIterator<Item = Secret>) -> Self {
        let mut keys: Vec<Secret> = keys.into_iter().filter(|Secret(key)| key.len() >= SHORTEST).collect();
        keys.sort_by_key(|Secret(key)| std::cmp::Reverse(key.len()));
        let mut begins = [false; 256];
        for Secret(key) in &keys {
            begins[usize::from(b'\\')] = true;
            begins[usize::from(key.as_bytes()[0])] = true;
        }
        Self { keys, begins }
    }

    /// `text` with `[key]` in place of every key; not copied where it has none.
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut clean = String::new();
        let mut from = 0;
        while let (Some(key), _) = self.next(text.as_bytes(), from, true) {
            // A key begins and ends with whole characters.
            clean.push_str(text.get(from..key.start).unwrap_or_default());
            clean.push_str(KEY_WAS);
            from = key.end;
        }
        if from == 0 {
            return Cow::Borrowed(text);
        }
        clean.push_str(text.get(from..).unwrap_or_default());
        Cow::Owned(clean)
    }

    /// The next key from `from` on, and else where the text may begin with one that it cuts off. `whole` says that no
    /// more text comes.
    fn next(&self, text: &[u8], from: usize, whole: bool) -> (Option<Range<usize>>, usize) {
        let mut at = from;
        while let Some(step) = text[at..].iter().position(|byte| self.begins[usize::from(*byte)]) {
            at += step;
            for Secret(key) in &self.keys {
                match stands(key, text, at) {
                    Found::Whole(end) => return (Some(at..end), end),
                    Found::Cut if !whole => return (None, at),
                    Found::Cut | Found::Nothing => {}
                }
            }
            at += 1;
        }
        (None, text.len())
    }
}

/// Whether `key` stands at `at`. A key that holds backslashes can be read in several ways, and all are followed.
fn stands(key: &str, text: &[u8], at: usize) -> Found {
    // Most places where a key may begin are told apart by the byte that follows.
    let second = text.get(at + 1).filter(|_| text[at] != b'\\');
    if second.is_some_and(|second| *second != b'\\' && Some(second) != key.as_bytes().get(1)) {
        return Found::Nothing;
    }
    let (mut places, mut cut) = (vec![at], false);
    for character in key.chars() {
        let mut next = Vec::new();
        for place in places {
            cut |= step(character, text, place, &mut next);
        }
        next.sort_unstable();
        next.dedup();
        if next.is_empty() {
            return if cut { Found::Cut } else { Found::Nothing };
        }
        places = next;
    }
    // The first, so that the size of pieces changes nothing.
    places.first().map_or(Found::Nothing, |end| Found::Whole(*end))
}

/// Adds the places after `character`, should it stand at `at`; true when the text ends in the middle of it.
fn step(character: char, text: &[u8], at: usize, after: &mut Vec<usize>) -> bool {
    let backslashes = text[at..].iter().take(MOST_BACKSLASHES).take_while(|byte| **byte == b'\\').count();
    let mut buffer = [0; 4];
    let itself = character.encode_utf8(&mut buffer).as_bytes();
    let mut cut = false;
    // Only a backslash can stand before the end of the run.
    let first = if character == '\\' { 0 } else { backslashes };
    for place in first..=backslashes {
        match text[at + place..].strip_prefix(itself) {
            Some(rest) => after.push(text.len() - rest.len()),
            None => cut |= itself.starts_with(&text[at + place..]),
        }
    }
    if backslashes > 0 {
        let hex = format!("u{:04x}", u32::from(character));
        let written = &text[at + backslashes..];
        let written = &written[..written.len().min(hex.len())];
        // The `u` is always a small one.
        if written.first().is_none_or(|byte| *byte == b'u') && written.eq_ignore_ascii_case(&hex.as_bytes()[..written.len()]) {
            if written.len() == hex.len() {
                after.push(at + backslashes + hex.len());
            } else {
                cut = true;
            }
        }
    }
    cut
}

/// Takes keys out of what comes in pieces.
pub(super) struct Cleaner<'a> {
    keys: &'a Keys,
    /// What may be the beginning of a key, and waits for the next piece: at most thirteen bytes for each of the key's.
    rest: Vec<u8>,
}

impl<'a> Cleaner<'a> {
    /// Takes out `keys`.
    pub(super) fn of(keys: &'a Keys) -> Self {
        Self { keys, rest: Vec::new() }
    }

    /// What of the pieces so far can be written.
    pub(super) fn clean(&mut self, piece: &[u8]) -> Vec<u8> {
        self.sweep(piece, false)
    }

    /// What is left when no more pieces come.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.sweep(&[], true)
    }

    fn sweep(&mut self, piece: &[u8], whole: bool) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.rest);
        text.extend_from_slice(piece);
        let mut clean = Vec::with_capacity(text.len());
        let mut from = 0;
        loop {
            let (key, end) = self.keys.next(&text, from, whole);
            let until = key.as_ref().map_or(end, |key| key.start);
            clean.extend_from_slice(&text[from..until]);
            from = end;
            if key.is_none() {
                self.rest = text.split_off(from);
                return clean;
            }
            clean.extend_from_slice(KEY_WAS.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> Keys {
        Keys::new(keys.iter().map(|key| Secret::new(*key)))
    }

    /// In pieces of every size, and as a whole.
    fn cleaned(keys: &Keys, text: &str) -> String {
        let clean = keys.clean(text).into_owned();
        for size in 1..=text.len() {
            let mut cleaner = Cleaner::of(keys);
            let mut pieces: Vec<u8> = text.as_bytes().chunks(size).flat_map(|piece| cleaner.clean(piece)).collect();
            pieces.extend(cleaner.finish());
            assert_eq!(String::from_utf8(pieces).unwrap(), clean, "pieces of {size}");
        }
        clean
    }

    #[test]
    fn a_key_is_found_however_it_is_escaped_and_the_pieces_fall() {
        let keys = keys(&["sk/a+b=é"]);
        for said in [
            "sk/a+b=é",
            r"sk\/a+b=\u00e9",
            r"sk\\/a+b=é",
            r"sk\\\/a\u002bb=é",
            r"\u0073\u006B\u002F\u0061\u002B\u0062\u003D\u00E9",
            r"\\u0073k\\\\u002fa+b\\\u003d\\\\\\\u00e9",
        ] {
            assert_eq!(
                cleaned(&keys, &format!(r#"{{"a":"s {said} é\n","b":"{said}{said}"}}"#)),
                r#"{"a":"s [key] é\n","b":"[key][key]"}"#
            );
        }
        for other in [r"sk\/a+b", r"sk\u002fa+b=\u00e", r"sk\U002fa+b=é", r"sk\u002ea+b=é", "sku002fa+b=é", r"sk\\\\\\\\\/a+b=é"]
        {
            assert_eq!(cleaned(&keys, other), other);
        }
    }

    #[test]
    fn what_holds_beginnings_of_keys_is_kept() {
        let text = r"a key-key-1 b k key- key-key-key-1key-1 é \u006be \u ke";
        assert_eq!(cleaned(&keys(&["key-1x", "y-key-1"]), text), r"a ke[key] b k key- key-ke[key]key-1 é \u006be \u ke");
        assert_eq!(cleaned(&keys(&["abcdef", "abcdefgh"]), "abcdefg abcdefgh abcdef"), "[key]g [key] [key]");
        assert!(matches!(keys(&["short", ""]).clean("short"), Cow::Borrowed("short")), "that is no key");
        assert!(matches!(keys(&["long-enough"]).clean(r"long-\n"), Cow::Borrowed(_)), "nothing is copied");
    }

    #[test]
    fn a_key_with_backslashes_or_a_u_is_found_in_every_reading() {
        for (key, said) in [(r"a\b\\cd", r"a\b\\cd"), (r"a\b\\cd", r"a\\b\\\\cd"), (r"a\b\\cd", r"a\u005cb\\\u005ccd")] {
            assert_eq!(cleaned(&keys(&[key]), said), "[key]");
        }
        assert_eq!(cleaned(&keys(&["xu0075"]), r"x\u0075 x\u0075\u0030075"), r"[key] [key]\u0030075");
        assert_eq!(cleaned(&keys(&["xu-075"]), r"x\u0075-075"), "[key]");
    }

    #[test]
    fn what_waits_for_the_next_piece_is_bounded() {
        let keys = keys(&["secret"]);
        let mut cleaner = Cleaner::of(&keys);
        for piece in 0..1000 {
            cleaner.clean(if piece % 2 == 0 { br"\\\\\\\\" } else { br"\\\u0073" });
            assert!(cleaner.rest.len() <= 6 * 13, "{}", cleaner.rest.len());
        }
    }
}
