//! Paths in requests, against those that are there: what is only read and is not there cannot be read.

use mcpmill_core::record::Tool;
use serde_json::Value;

use super::forms;

/// Verbs of tools that put something where nothing was, beside those that make it.
const PLACING: [&str; 9] = ["move", "copy", "rename", "clone", "import", "convert", "put", "download", "merge"];

/// The first path below the folder of all that is `at_hand` that is not among it, is no folder of it and lies in none;
/// for a tool that puts things where nothing was, none.
pub(super) fn not_there(text: &str, tool: &Tool, at_hand: &str) -> Option<String> {
    if forms::makes(tool) || forms::words(&tool.name).iter().any(|word| PLACING.contains(&word.as_str())) {
        return None;
    }
    let known: Vec<&str> = paths(at_hand).collect();
    let root = folder_of_all(&known)?;
    let there = |path: &str| known.iter().any(|known| is_in(path, known) || is_in(known, path));
    paths(text).find(|path| is_in(path, root) && !there(path)).map(str::to_owned)
}

/// The same for the texts among values.
pub(super) fn none_there<'a>(values: impl IntoIterator<Item = &'a Value>, tool: &Tool, at_hand: &str) -> Option<String> {
    values.into_iter().find_map(|value| match value {
        Value::String(text) => not_there(text, tool, at_hand),
        Value::Array(items) => none_there(items, tool, at_hand),
        _ => None,
    })
}

/// Why a reply that names such a path is not used.
pub(super) fn refused(path: &str) -> String {
    format!("`{path}` is read and is not there")
}

/// Whether `path` is `folder` or lies in it.
fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Paths from the root that are no patterns.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || "\"'`,;:()[]<>，。？！；".contains(c);
    let words = text.split(ends).map(|word| word.trim_end_matches(['.', '?', '!', '/']));
    words.filter(|word| word.starts_with('/') && word[1..].contains('/') && !word.contains(['*', '{', '?']))
}

/// The deepest folder that holds all paths.
fn folder_of_all<'a>(paths: &[&'a str]) -> Option<&'a str> {
    let mut folder = paths.first()?.rsplit_once('/')?.0;
    while !paths.iter().all(|path| is_in(path, folder)) {
        folder = folder.rsplit_once('/')?.0;
    }
    (!folder.is_empty()).then_some(folder)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT_HAND: &str =
        "/home/user/work/notes/todo.md (a list); /home/user/work/data/sales.csv; the folder /home/user/work/docs";

    fn named(name: &str) -> Tool {
        mcpmill_testkit::tool("1", name, "d", json!({"type": "object"}))
    }

    #[test]
    fn what_is_read_must_be_there() {
        let read = |text: &str| not_there(text, &named("read_file"), AT_HAND);
        for good in [
            "Read /home/user/work/notes/todo.md.",
            "Show '/home/user/work/notes/' and /home/user/work, please",
            "Is there a plan in /home/user/work/docs/2026/plan.md?",
            "Look into /var/log/syslog",
            "Find /home/user/work/**/*.py",
            "Read todo.md",
        ] {
            assert_eq!(read(good), None, "{good}");
        }
        for (bad, path) in [
            ("Read /home/user/work/data/travel.txt.", "/home/user/work/data/travel.txt"),
            ("What is in \"/home/user/work/history\"?", "/home/user/work/history"),
            ("Show /home/user/work/notes/todo.md/x and /home/user/work/notes/todo.mdx", "/home/user/work/notes/todo.mdx"),
        ] {
            assert_eq!(read(bad).as_deref(), Some(path), "{bad}");
        }
        assert_eq!(not_there("/home/user/work/new.md", &named("write_file"), AT_HAND), None);
        assert_eq!(not_there("/home/user/work/new.md", &named("read_file"), "three stores"), None, "nothing is known");
        let values = json!({"paths": ["/home/user/work/notes/todo.md", "/home/user/work/no.md"], "n": 1});
        let found = none_there(values.as_object().unwrap().values(), &named("read_file"), AT_HAND);
        assert_eq!(found.as_deref(), Some("/home/user/work/no.md"));
    }
}
