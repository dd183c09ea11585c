//! The forms in which others write a secret, as far as they are not undone by [`super::views`].

use std::collections::BTreeSet;

/// A shorter value is in too many texts by chance. It stays where it is.
const SHORTEST: usize = 6;
/// A number of so many digits is no bound or size of a schema.
const LONG_NUMBER: usize = 8;
/// Bytes of a word that a program has as a name. What is longer was thought up as a secret.
const LONGEST_WORD: usize = 16;
/// Words before a credential in the header `Authorization`.
const SCHEMES: [&str; 3] = ["basic ", "bearer ", "token "];
/// The letters of Base64 and of Base32.
const LETTERS_64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const LETTERS_32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// A value and the parts of it that are secrets of their own, each as it is and encoded.
pub(super) fn forms_of(value: &str) -> BTreeSet<String> {
    let parts = parts_of(value);
    parts.iter().flat_map(|part| written(part)).filter(|form| form.len() >= SHORTEST).collect()
}

/// Whether it may stand in any text by chance: a word, or words joined by `_` or `-`, all of them in one case but
/// for a capital at the beginning; or a number of few digits.
pub(super) fn is_plain(form: &str) -> bool {
    let word = |word: &str| {
        let rest = word.get(1..).unwrap_or_default().as_bytes();
        let letters = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        letters && (rest.iter().all(u8::is_ascii_lowercase) || word.bytes().all(|byte| byte.is_ascii_uppercase()))
    };
    let number = form.len() < LONG_NUMBER && form.bytes().all(|byte| byte.is_ascii_digit());
    number || (form.len() <= LONGEST_WORD && form.split(['_', '-']).all(word))
}

/// The value as it is, without the white space at its ends, its lines, what stands behind a scheme, and a password
/// in it.
fn parts_of(value: &str) -> BTreeSet<String> {
    let trimmed = value.trim();
    let behind = SCHEMES.iter().filter_map(|scheme| {
        let head = trimmed.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| trimmed[scheme.len()..].trim())
    });
    // What frames a key in PEM is no secret.
    let lines = value.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
    let whole: Vec<&str> = [value, trimmed].into_iter().chain(behind).chain(lines).collect();
    let passwords = whole.iter().filter_map(|part| password(part)).flat_map(|password| [plain(password), password.to_owned()]);
    let parts: Vec<String> = passwords.chain(whole.iter().map(|part| (*part).to_owned())).collect();
    parts.into_iter().filter(|part| part.len() >= SHORTEST).collect()
}

/// The password of `scheme://user:password@host`, or of `user:password`.
fn password(value: &str) -> Option<&str> {
    if let Some((_, rest)) = value.split_once("://") {
        // A password may hold an `@` or a `/` that should have been escaped.
        let (user, _) = rest.rsplit_once('@')?;
        return Some(user.split_once(':').map_or(user, |(_, password)| password));
    }
    let (user, password) = value.split_once(':')?;
    // `image:latest` is no password, and words in a sentence are none.
    let word = password.bytes().all(|byte| byte.is_ascii_lowercase());
    let other = |text: &str| text.contains(|c: char| c.is_whitespace() || c == ':');
    (!word && !user.is_empty() && !other(user) && !other(password)).then_some(password)
}

/// A part of an address without its escapes.
fn plain(part: &str) -> String {
    super::views::unescaped(part.as_bytes())
        .and_then(|view| String::from_utf8(view.into_bytes()).ok())
        .unwrap_or_else(|| part.to_owned())
}

fn written(part: &str) -> Vec<String> {
    let bytes = part.as_bytes();
    let wide = |order: fn(u16) -> [u8; 2]| part.encode_utf16().flat_map(order).collect::<Vec<u8>>();
    let once = encoded(bytes, LETTERS_64);
    let mut forms = in_letters(bytes, LETTERS_64);
    forms.extend(in_letters(&wide(u16::to_le_bytes), LETTERS_64));
    forms.extend(in_letters(&wide(u16::to_be_bytes), LETTERS_64));
    // Encoded twice.
    forms.extend(in_letters(once.as_bytes(), LETTERS_64));
    let for_addresses: Vec<String> = forms.iter().map(|form| form.replace('+', "-").replace('/', "_")).collect();
    forms.extend(for_addresses);
    forms.extend(in_letters(bytes, LETTERS_32));
    forms.extend([part.to_owned(), part.replace(' ', "+"), hex::encode(bytes)]);
    forms
}

/// In Base64 or Base32, alone and in the middle of something longer: then only the letters that are of the value
/// alone, for each of the places it may start at.
fn in_letters(value: &[u8], letters: &[u8]) -> Vec<String> {
    let bits = letters.len().ilog2() as usize;
    let places = if bits == 6 { 3 } else { 5 };
    let (alone, padded) = (encoded(value, letters), padded(value, letters));
    let mut forms = vec![alone, padded];
    for before in 0..places {
        let shifted = [&[0; 4][..before], value].concat();
        let text = encoded(&shifted, letters);
        let (from, to) = ((before * 8).div_ceil(bits), shifted.len() * 8 / bits);
        forms.extend(text.get(from..to).map(str::to_owned));
    }
    forms
}

/// Bits taken as many at a time as there are letters for; without padding.
fn encoded(bytes: &[u8], letters: &[u8]) -> String {
    let size = letters.len().ilog2();
    let (mut held, mut bits, mut text) = (0_u32, 0, String::with_capacity(bytes.len() * 8 / size as usize + 1));
    let mut push = |bits: u32| text.push(char::from(letters[bits as usize % letters.len()]));
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        bits += 8;
        while bits >= size {
            bits -= size;
            push(held >> bits);
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        push(held << (size - bits));
    }
    text
}

/// The same, padded.
fn padded(bytes: &[u8], letters: &[u8]) -> String {
    let mut text = encoded(bytes, letters);
    let block = if letters.len() == LETTERS_64.len() { 4 } else { 8 };
    let missing = text.len().next_multiple_of(block) - text.len();
    text.extend(std::iter::repeat_n('=', missing));
    text
}

/// The usual Base64, padded.
pub(in crate::mcp) fn base64(bytes: &[u8]) -> String {
    padded(bytes, LETTERS_64)
}
