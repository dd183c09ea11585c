//! Texts as who reads them would undo their escapes, and where in the text each part of them stands.

use std::ops::Range;

/// Bytes made of a text's, and where they come from.
pub(super) struct View {
    bytes: Vec<u8>,
    /// What differs from the text before: where in `bytes`, and where in the text; ascending.
    changes: Vec<Change>,
}

/// One part of a text that stands for other bytes. Small, for a text may be nothing but such parts; no message is
/// as long as the numbers go.
struct Change {
    made: Range<u32>,
    from: Range<u32>,
}

impl Change {
    fn new(made: Range<usize>, from: Range<usize>) -> Self {
        let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self { made: short(made.start)..short(made.end), from: short(from.start)..short(from.end) }
    }
}

impl View {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Where in the text a range of the bytes comes from.
    pub(super) fn from(&self, range: Range<usize>) -> Range<usize> {
        self.place(range.start, false)..self.place(range.end, true)
    }

    /// `end`: the end of what stands before this place, and not the start of what comes there.
    fn place(&self, at: usize, end: bool) -> usize {
        let before = |change: &Change| if end { (change.made.start as usize) < at } else { change.made.start as usize <= at };
        let Some(change) = self.changes[..self.changes.partition_point(before)].last() else { return at };
        let behind = at.checked_sub(change.made.end as usize);
        match behind {
            Some(behind) => change.from.end as usize + behind,
            None if end => change.from.end as usize,
            None => change.from.start as usize,
        }
    }
}

/// `text` with every part that `read` knows replaced by what it stands for; `None` when there is none.
fn view(text: &[u8], read: impl Fn(&[u8]) -> Option<(usize, Made)>) -> Option<View> {
    let mut view = View { bytes: Vec::new(), changes: Vec::new() };
    let (mut at, mut copied) = (0, 0);
    while at < text.len() {
        let Some((length, made)) = read(&text[at..]) else {
            at += 1;
            continue;
        };
        view.bytes.extend_from_slice(&text[copied..at]);
        let start = view.bytes.len();
        made.add_to(&mut view.bytes);
        view.changes.push(Change::new(start..view.bytes.len(), at..at + length));
        at += length;
        copied = at;
    }
    view.bytes.extend_from_slice(&text[copied..]);
    (!view.changes.is_empty()).then_some(view)
}

/// What an escape stands for.
enum Made {
    Nothing,
    Byte(u8),
    Letter(char),
}

impl Made {
    fn add_to(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            Self::Byte(byte) => bytes.push(byte),
            Self::Letter(letter) => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Without the escapes of JSON and programs (`\n`, `\"`, `\xNN`, `\uNNNN`), addresses (`%NN`) and HTML (`&#NN;`).
pub(super) fn unescaped(text: &[u8]) -> Option<View> {
    view(text, |rest| match rest {
        [b'%', digits @ ..] => Some((3, Made::Byte(u8::try_from(hex(digits, 2)?).ok()?))),
        [b'\\', b'x', digits @ ..] => Some((4, Made::Byte(u8::try_from(hex(digits, 2)?).ok()?))),
        [b'\\', b'u', digits @ ..] => unicode(digits),
        [b'\\', letter, ..] => Some((2, Made::Byte(simple(*letter)?))),
        [b'&', name @ ..] => html(name),
        _ => None,
    })
}

/// Without line ends and what indents the next line: what was wrapped is whole again.
pub(super) fn unwrapped(text: &[u8]) -> Option<View> {
    view(text, |rest| {
        let ends = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let indent = rest[ends..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count();
        (ends > 0).then_some((ends + indent, Made::Nothing))
    })
}

fn hex(digits: &[u8], count: usize) -> Option<u32> {
    let digits = digits.get(..count)?;
    digits.iter().try_fold(0, |sum, digit| Some(sum << 4 | char::from(*digit).to_digit(16)?))
}

fn unicode(digits: &[u8]) -> Option<(usize, Made)> {
    let first = hex(digits, 4)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((6, Made::Letter(letter)));
    }
    let second = digits.get(4..).and_then(|rest| rest.strip_prefix(b"\\u")).and_then(|rest| hex(rest, 4));
    let second = u16::try_from(second?).ok()?;
    let pair = char::decode_utf16([u16::try_from(first).ok()?, second]).next()?.ok()?;
    Some((12, Made::Letter(pair)))
}

fn simple(letter: u8) -> Option<u8> {
    match letter {
        b'"' | b'\'' | b'\\' | b'/' => Some(letter),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}

/// What stands behind the `&`.
fn html(name: &[u8]) -> Option<(usize, Made)> {
    let end = name.iter().take(12).position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(&name[..end]).ok()?;
    let letter = match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(number.ok()?)?
        }
    };
    // The `&` and the `;`.
    Some((end + 2, Made::Letter(letter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_their_places_known() {
        let text = r"a%41\x42\u0043\ud83d\ude00&#68;&#x45;&amp;\n%4z\q&c b";
        let view = unescaped(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8_lossy(view.bytes()), "aABC😀DE&\n%4z\\q&c b");
        for (part, from) in [("a", "a"), ("A", "%41"), ("BC", r"\x42\u0043"), ("DE&", "&#68;&#x45;&amp;"), ("z\\q&c", "z\\q&c")] {
            let at = String::from_utf8_lossy(view.bytes()).find(part).unwrap();
            assert_eq!(&text[view.from(at..at + part.len())], from);
        }
        assert!(unescaped(b"100 % of it \\ & so on").is_none());
    }

    #[test]
    fn what_was_wrapped_is_whole() {
        let text = "ab\r\n  cd\n\nef g";
        let view = unwrapped(text.as_bytes()).unwrap();
        assert_eq!(view.bytes(), b"abcdef g");
        assert_eq!(&text[view.from(1..3)], "b\r\n  c");
        assert_eq!(&text[view.from(2..4)], "cd");
        assert_eq!(&text[view.from(0..2)], "ab");
        assert!(unwrapped(b"ab cd").is_none());
    }
}
