//! Text from outside, made safe to show.

/// `text` on one line with control and bidirectional characters escaped, cut after `most` characters.
pub fn shown(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == most {
            out.push('…');
            break;
        }
        if is_unsafe(c) {
            out.extend(c.escape_unicode());
        } else if c == '\n' {
            out.push_str("\\n");
        } else {
            out.push(c);
        }
    }
    out
}

/// Control characters but for the line feed, and what reorders or hides text: bidirectional marks,
/// zero-width characters, tag characters.
pub fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// The first `most` characters of `text`, with a mark where something was cut.
pub fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_could_fool_a_reader() {
        assert_eq!(shown("a\u{1b}[31mb\u{202e}c\nd", 99), "a\\u{1b}[31mb\\u{202e}c\\nd");
        assert_eq!(shown("ééé", 2), "éé…");
        assert_eq!(clipped("ééé", 3), "ééé");
        assert_eq!(clipped("éééé", 3), "ééé…");
    }
}
