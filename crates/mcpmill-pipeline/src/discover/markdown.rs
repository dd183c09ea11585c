//! Lists in markdown: one bullet with a link is one entry.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

/// `- [name](url) rest` and `- **[Name](url)** rest`, with `*` as bullet, too.
static BULLET: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*[-*+]\s+(?:\*\*|__)?\[([^\]]+)\]\((https?://[^)\s]+)[^)]*\)(?:\*\*|__)?(.*)$").ok());

/// The entries of a list: `name`, `url`, `repository` where the link is one, `description`, `section`.
pub(super) fn entries(text: &str) -> Vec<Value> {
    let Some(bullet) = BULLET.as_ref() else { return Vec::new() };
    let mut section = String::new();
    let mut entries = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
        } else if let Some(heading) = line.strip_prefix('#') {
            section = title(heading);
        } else if let Some(found) = bullet.captures(line) {
            let (name, url) = (found[1].trim(), &found[2]);
            let mut entry = json!({ "name": name, "url": url, "section": section });
            if super::identity::repo(url, None).is_some()
                && ["github.com/", "gitlab.com/", "codeberg.org/", "bitbucket.org/"].iter().any(|h| url.contains(h))
            {
                entry["repository"] = url.into();
            }
            if let Some(description) = description(&found[3]) {
                entry["description"] = description.into();
            }
            entries.push(entry);
        }
    }
    entries
}

/// What follows the first ` - `, ` – `, ` — ` or `: `; flags before it are none of the text.
fn description(rest: &str) -> Option<String> {
    let marks = [" - ", " – ", " — ", " -- ", ": "];
    let (at, mark) = marks.iter().filter_map(|mark| rest.find(mark).map(|at| (at, mark))).min()?;
    let text = rest[at + mark.len()..].trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A heading without its marks and anchor.
fn title(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim();
    match (text.find("<a"), text.rfind("</a>")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &text[..from], &text[to + 4..]).trim().to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_of_bullets_and_dashes_are_read() {
        let text = "# List\n- [not a link]\n### 📦 <a name=\"post\"></a>Post\n- [acme/parcel](https://github.com/acme/parcel) 📇 ☁️ - Tracks parcels.\n\
            - [acme/mono](https://github.com/other/mono/tree/main/src/mail) 🐍 – Sends mail\n## Official\n- **[Stamp](https://stamp.example/mcp)** - Prints\n```\n- [x](https://x.example) - no\n```\n- **[Bare](https://github.com/acme/bare)**\n";
        let found = entries(text);
        let of = |i: usize, k: &str| found[i][k].as_str().unwrap_or_default().to_owned();
        assert_eq!(found.len(), 4);
        assert_eq!((of(0, "section"), of(0, "description")), ("📦 Post".into(), "Tracks parcels.".into()));
        assert_eq!(
            (of(1, "description"), of(1, "repository")),
            ("Sends mail".into(), "https://github.com/other/mono/tree/main/src/mail".into())
        );
        assert_eq!((of(2, "name"), of(2, "repository")), ("Stamp".into(), String::new()));
        assert_eq!(of(3, "description"), "");
    }
}
