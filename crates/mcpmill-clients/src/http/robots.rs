//! robots.txt as RFC 9309 has it: groups by product token, the longest match decides.

use std::time::Duration;

/// The product token that groups are looked up by.
const TOKEN: &str = "mcpmill";

/// What a robots.txt says to us.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Robots {
    rules: Vec<Rule>,
    /// The pause it asks for between two requests.
    pub delay: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    allows: bool,
    /// Normalised; `*` stands for anything, `$` at the end for the end.
    pattern: String,
}

impl Robots {
    /// Nothing may be fetched: the file could not be had.
    pub fn closed() -> Self {
        Self { rules: vec![Rule { allows: false, pattern: "/".into() }], delay: None }
    }

    /// Reads a file; lines that are not understood are passed over.
    pub fn parse(text: &str) -> Self {
        let [mut ours, mut anyones] = [None::<Self>, None::<Self>];
        // Which groups the lines belong to, and whether their list of names is still open.
        let [mut is_ours, mut is_anyones, mut naming] = [false; 3];
        // A line may end in either character, or in both.
        for line in text.split(['\r', '\n']) {
            let line = line.split('#').next().unwrap_or_default();
            let Some((field, value)) = line.split_once(':') else { continue };
            let (field, value) = (field.trim().to_ascii_lowercase(), value.trim());
            if field == "user-agent" {
                if !naming {
                    [is_ours, is_anyones, naming] = [false, false, true];
                }
                is_ours |= product(value).eq_ignore_ascii_case(TOKEN);
                is_anyones |= value == "*";
                if is_ours {
                    // A group of ours without rules allows all, whatever the others may.
                    ours.get_or_insert_default();
                }
                continue;
            }
            if !matches!(field.as_str(), "allow" | "disallow" | "crawl-delay") {
                continue;
            }
            naming = false;
            if is_ours {
                ours.get_or_insert_default().add(&field, value);
            }
            if is_anyones {
                anyones.get_or_insert_default().add(&field, value);
            }
        }
        ours.or(anyones).unwrap_or_default()
    }

    fn add(&mut self, field: &str, value: &str) {
        if field == "crawl-delay" {
            let seconds = value.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            self.delay = self.delay.max(seconds);
        } else if !value.is_empty() {
            self.rules.push(Rule { allows: field == "allow", pattern: normalised(value) });
        }
    }

    /// Whether a path with its query may be fetched.
    pub fn allows(&self, path: &str) -> bool {
        let path = normalised(path);
        let matching = self.rules.iter().filter(|rule| rule.matches(&path));
        matching.max_by_key(|rule| (rule.pattern.len(), rule.allows)).is_none_or(|rule| rule.allows)
    }
}

impl Rule {
    /// The parts between stars are looked for from left to right, each at its first place: linear, so
    /// that no file can make it slow.
    fn matches(&self, path: &str) -> bool {
        let (pattern, to_end) = self.pattern.strip_suffix('$').map_or((self.pattern.as_str(), false), |pattern| (pattern, true));
        let mut parts = pattern.split('*');
        let Some(mut rest) = path.strip_prefix(parts.next().unwrap_or_default()) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return !to_end || rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if to_end && parts.peek().is_none() {
                return rest.ends_with(part);
            }
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// The product token at the start of a user agent's name.
fn product(value: &str) -> &str {
    let end = value.find(|c: char| !c.is_ascii_alphabetic() && c != '-' && c != '_');
    &value[..end.unwrap_or(value.len())]
}

/// One spelling for all: unreserved characters plain, others beyond ASCII as `%XX`, hexadecimal
/// digits in capitals.
fn normalised(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = (byte == b'%').then(|| text.get(at + 1..at + 3)).flatten().filter(|hex| !hex.starts_with('+'));
        let coded = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        at += if coded.is_some() { 3 } else { 1 };
        match coded {
            Some(plain) if plain.is_ascii_alphanumeric() || b"-._~".contains(&plain) => out.push(plain.into()),
            Some(other) => out.push_str(&format!("%{other:02X}")),
            None if byte.is_ascii() => out.push(byte.into()),
            None => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_in_any_way() {
        for end in ["\r", "\n", "\r\n"] {
            let robots = Robots::parse(&["User-agent: *", "Disallow: /a", "Allow: /a/b", ""].join(end));
            assert!(!robots.allows("/a") && robots.allows("/a/b") && robots.allows("/"), "{end:?}");
        }
    }

    #[test]
    fn the_longest_match_decides_and_allow_wins_ties() {
        let robots = Robots::parse("User-agent: *\nDisallow: /a\nAllow: /a/b\nDisallow: /c\nAllow: /c\nDisallow:\n");
        for (path, allowed) in [("/", true), ("/a", false), ("/ab", false), ("/a/b/c", true), ("/c", true), ("/other", true)] {
            assert_eq!(robots.allows(path), allowed, "{path}");
        }
    }

    #[test]
    fn stars_and_ends_match_as_written() {
        let robots = Robots::parse("user-agent: *\ndisallow: /*.json$\ndisallow: /x*y*z\ndisallow: /end$\ndisallow: /*?page=\n");
        for (path, allowed) in [
            ("/a.json", false),
            ("/a.json?x", true),
            ("/a.json.json", false),
            ("/x1y2z3", false),
            ("/x1z2y", true),
            ("/end", false),
            ("/ending", true),
            ("/list?page=2", false),
        ] {
            assert_eq!(robots.allows(path), allowed, "{path}");
        }
    }

    #[test]
    fn our_own_groups_go_before_those_for_all() {
        let robots = Robots::parse(
            "User-agent: other\nUser-agent: McpMill/1.0\nDisallow: /ours\nCrawl-delay: 2.5\n\nUser-agent: *\nDisallow: /\n\
             User-agent: mcpmill\nDisallow: /more # a remark\nSitemap: /s.xml\nDisallow: /last\n",
        );
        assert_eq!(robots.delay, Some(Duration::from_millis(2500)));
        for (path, allowed) in [("/", true), ("/ours", false), ("/more", false), ("/last", false)] {
            assert_eq!(robots.allows(path), allowed, "{path}");
        }
        assert!(Robots::parse("User-agent: mcpmill\n\nUser-agent: x\nDisallow:\n").allows("/"));
        assert!(Robots::parse("User-agent: mcpmill\nDisallow:\nUser-agent: *\nDisallow: /\n").allows("/"));
        assert!(!Robots::parse("User-agent: mcpmiller\nAllow: /\nUser-agent: *\nDisallow: /\n").allows("/"));
    }

    #[test]
    fn spellings_of_one_path_are_one() {
        let robots = Robots::parse("\u{feff}\nUser-agent: *\nDisallow: /caf\u{e9}\nDisallow: /%7ejoe\nDisallow: /a%2fb\n");
        for (path, allowed) in [("/caf%c3%a9", false), ("/~joe", false), ("/a%2Fb", false), ("/a/b", true), ("/%", true)] {
            assert_eq!(robots.allows(path), allowed, "{path}");
        }
        assert!(!Robots::closed().allows("/"));
        assert!(Robots::parse("<html>not found</html>").allows("/"));
    }

    #[test]
    fn a_file_of_stars_is_answered_quickly() {
        let robots = Robots::parse(&format!("User-agent: *\nDisallow: /{}b\n", "*a".repeat(100_000)));
        let start = std::time::Instant::now();
        assert!(robots.allows(&format!("/{}", "a".repeat(8000))));
        assert!(start.elapsed() < Duration::from_millis(500));
    }
}
