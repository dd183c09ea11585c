//! Paths in requests, against those that are there: what is only read and is not there cannot be read.

use mcpmill_core::record::Tool;
use serde_json::{Map, Value};

use super::forms;

/// Verbs of tools that put something where nothing was, beside those that make it.
const PLACING: [&str; 10] = ["move", "copy", "rename", "clone", "import", "convert", "put", "download", "merge", "worktree"];
/// Words of parameters that say where something is put.
const TARGETS: [&str; 7] = ["dest", "destination", "output", "out", "target", "new", "to"];

/// The paths that are there in the world of a server, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct There {
    known: Vec<String>,
    root: Option<String>,
}

impl There {
    /// Those that `at_hand` names, and `files`.
    pub(super) fn new(at_hand: &str, files: &[String]) -> Self {
        let named: Vec<&str> = paths(at_hand).chain(files.iter().map(String::as_str)).collect();
        // A folder of which more is known is no place where everything may be.
        let whole = |path: &str| !named.iter().any(|other| *other != path && is_in(other, path));
        let known: Vec<String> = named.iter().filter(|path| whole(path)).map(|path| (*path).to_owned()).collect();
        let root = folder_of_all(&known);
        Self { known, root }
    }

    /// Whether a path is known, a folder of one that is, or in one.
    fn has(&self, path: &str) -> bool {
        self.known.iter().any(|known| is_in(path, known) || is_in(known, path))
    }
}

/// The first path of a text below the folder of all that is known that is not there; for a tool that puts things where
/// nothing was, none.
pub(super) fn not_there(text: &str, tool: &Tool, there: &There) -> Option<String> {
    if forms::makes(tool) || forms::words(&tool.name).iter().any(|word| PLACING.contains(&word.as_str())) {
        return None;
    }
    let root = there.root.as_deref()?;
    paths(text).find(|path| is_in(path, root) && !there.has(path)).map(str::to_owned)
}

/// The same for the texts among values, but for those that say where something is put.
pub(super) fn none_there(values: &Map<String, Value>, tool: &Tool, there: &There) -> Option<String> {
    fn of(value: &Value, tool: &Tool, there: &There) -> Option<String> {
        match value {
            Value::String(text) => not_there(text, tool, there),
            Value::Array(items) => items.iter().find_map(|item| of(item, tool, there)),
            _ => None,
        }
    }
    let put = |name: &str| forms::words(name).iter().any(|word| TARGETS.contains(&word.as_str()));
    values.iter().filter(|(name, _)| !put(name)).find_map(|(_, value)| of(value, tool, there))
}

/// Why a reply that names such a path is not used.
pub(super) fn refused(path: &str) -> String {
    format!("`{path}` is read and is not there")
}

/// Whether `path` is `folder` or lies in it.
fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Paths from the root that are no patterns and do not lead back.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || !c.is_ascii() || "\"'`,;:()[]<>|#".contains(c);
    let words = text.split(ends).map(|word| word.trim_end_matches(['.', '?', '!', '/']));
    words.filter(|word| {
        word.starts_with('/') && word[1..].contains('/') && !word.contains(['*', '{', '?']) && !word.contains("..")
    })
}

/// The deepest folder that holds all paths.
fn folder_of_all(paths: &[String]) -> Option<String> {
    let mut folder = paths.first()?.rsplit_once('/')?.0;
    while !paths.iter().all(|path| is_in(path, folder)) {
        folder = folder.rsplit_once('/')?.0;
    }
    (!folder.is_empty()).then(|| folder.to_owned())
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
        let there = There::new(AT_HAND, &["/home/user/work/data/people.json".to_owned()]);
        let read = |text: &str| not_there(text, &named("read_file"), &there);
        for good in [
            "Read /home/user/work/notes/todo.md.",
            "Show '/home/user/work/notes/' and /home/user/work, please",
            "Is there a plan in /home/user/work/docs/2026/plan.md?",
            "Who is in /home/user/work/data/people.json?",
            "Look into /var/log/syslog",
            "Find /home/user/work/**/*.py",
            "Read todo.md",
            "What is /home/user/work/notes/todo.md’s size?",
            "Cut /home/user/work/notes/todo.md|head, see /home/user/work/notes/todo.md#top",
            "读取 /home/user/work/notes/todo.md的内容",
        ] {
            assert_eq!(read(good), None, "{good}");
        }
        for (bad, path) in [
            ("Read /home/user/work/data/travel.txt.", "/home/user/work/data/travel.txt"),
            ("读取/home/user/work/old/sales.csv。", "/home/user/work/old/sales.csv"),
            ("What is in \"/home/user/work/history\"?", "/home/user/work/history"),
            ("Show /home/user/work/notes/todo.md/x and /home/user/work/notes/todo.mdx", "/home/user/work/notes/todo.mdx"),
        ] {
            assert_eq!(read(bad).as_deref(), Some(path), "{bad}");
        }
    }

    #[test]
    fn where_nothing_need_be_nothing_is_looked_for() {
        let there = There::new(AT_HAND, &[]);
        assert_eq!(not_there("/home/user/work/new.md", &named("write_file"), &there), None);
        let read = named("read_file");
        assert_eq!(not_there("/home/user/work/new.md", &read, &There::new("three stores", &[])), None, "nothing is known");
        let looked = There::new(&format!("{AT_HAND}; /home/user/work"), &[]);
        assert!(not_there("/home/user/work/new.md", &read, &looked).is_some(), "the folder of all is no place for everything");
        let none = |values: &Value| none_there(values.as_object().unwrap(), &read, &there);
        let listed = json!({"paths": ["/home/user/work/notes/todo.md", "/home/user/work/no.md"], "n": 1});
        assert_eq!(none(&listed).as_deref(), Some("/home/user/work/no.md"));
        assert_eq!(none(&json!({"output_path": "/home/user/work/no.md"})), None);
    }
}
