//! The licence of a row over several servers: all of theirs.

/// The licences joined with `AND`, each once and a choice in brackets; a single one as it stands, `None` for none.
pub(super) fn all_of<'a>(licences: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut whole: Vec<&str> = Vec::new();
    licences.map(str::trim).filter(|licence| !licence.is_empty()).for_each(|licence| push(&mut whole, licence));
    if whole.len() < 2 {
        return whole.first().map(|licence| (*licence).to_owned());
    }
    let mut parts: Vec<&str> = Vec::new();
    for licence in whole {
        // `AND` binds closer than `OR`: what is a choice at its top is one part.
        let choice = at_top(licence, " OR ").len() > 1;
        let own = if choice { vec![licence] } else { at_top(licence, " AND ") };
        own.into_iter().map(bare).for_each(|part| push(&mut parts, part));
    }
    let several = parts.len() > 1;
    let written = parts
        .into_iter()
        .map(|part| if several && at_top(part, " OR ").len() > 1 { format!("({part})") } else { part.to_owned() });
    Some(written.collect::<Vec<_>>().join(" AND "))
}

fn push<'a>(all: &mut Vec<&'a str>, one: &'a str) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// The parts of an expression between `word`, where that stands in no brackets.
fn at_top<'a>(licence: &'a str, word: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_i32, 0);
    for (at, c) in licence.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 && at >= from && licence[at..].starts_with(word) {
            parts.push(licence[from..at].trim());
            from = at + word.len();
        }
    }
    parts.push(licence[from..].trim());
    parts
}

/// Without brackets around the whole.
fn bare(part: &str) -> &str {
    let inner = part.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inner.filter(|inner| !inner.contains(['(', ')'])).map_or(part, str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_licence_stands_once() {
        for (licences, want) in [
            (&["MIT", "MIT AND Apache-2.0"][..], "MIT AND Apache-2.0"),
            (&["MIT AND Apache-2.0", "ISC", "MIT"], "MIT AND Apache-2.0 AND ISC"),
            (&["MIT OR Apache-2.0"], "MIT OR Apache-2.0"),
            (&["MIT OR Apache-2.0", "MIT OR Apache-2.0"], "MIT OR Apache-2.0"),
            (&["MIT OR Apache-2.0", "ISC"], "(MIT OR Apache-2.0) AND ISC"),
            (&["ISC AND (MIT OR Apache-2.0)", "MIT OR Apache-2.0"], "ISC AND (MIT OR Apache-2.0)"),
            (&["MIT OR ISC AND Zlib", "ISC"], "(MIT OR ISC AND Zlib) AND ISC"),
            (&[" ", "MIT"], "MIT"),
        ] {
            assert_eq!(all_of(licences.iter().copied()).as_deref(), Some(want), "{licences:?}");
        }
        assert_eq!(all_of(std::iter::empty()), None);
    }
}
