//! Text of others inside a dataset card.

use mcpmill_core::text::shown;
use minijinja::{Error, Value};

/// Characters of a name that a card shows at most.
const SHOWN: usize = 120;

/// A text on one line that Markdown, in a table too, shows as it is: no markup, no link, no HTML.
pub(super) fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in shown(text, SHOWN).chars() {
        match c {
            '&' | '<' | '>' | '@' => out.push_str(&format!("&#{};", u32::from(c))),
            _ if c.is_ascii_punctuation() && !matches!(c, '-' | '.' | ',' | '/' | '+' | ';' | ':') => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    // Such beginnings are made a link without any mark-up.
    out.replace("www.", "www&#46;").replace("://", "&#58;//")
}

/// A table of counts by name, `head` above the names, without a line break at its end.
///
/// # Errors
/// `counts` is no map.
pub(super) fn table(counts: &Value, head: &str) -> Result<String, Error> {
    let mut out = format!("| {head} | rows |\n| --- | --: |");
    for name in counts.try_iter()? {
        let count = counts.get_item(&name)?;
        out.push_str(&format!("\n| {} | {count} |", cell(&name.to_string())));
    }
    Ok(out)
}

/// A text as a scalar in double quotes, all but plain ASCII escaped.
pub(super) fn yaml(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match (c, u32::from(c)) {
            ('"' | '\\', _) => out.extend(['\\', c]),
            (' '..='~', _) => out.push(c),
            (_, code @ 0..=0xffff) => out.push_str(&format!("\\u{code:04x}")),
            (_, code) => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_shown_as_it_is() {
        assert_eq!(cell("code-index"), "code-index");
        assert_eq!(cell("a|b\n*c*"), r"a\|b\\n\*c\*");
        assert_eq!(cell("<b> www.x.y http://z"), "&#60;b&#62; www&#46;x.y http&#58;//z");
        assert_eq!(cell(&"é".repeat(200)).chars().count(), SHOWN + 1);
    }

    #[test]
    fn yaml_scalars_stay_scalars() {
        assert_eq!(yaml("en"), r#""en""#);
        assert_eq!(yaml("a\"b\\c\n- é 🦀\u{85}"), r#""a\"b\\c\u000a- \u00e9 \U0001f980\u0085""#);
    }
}
