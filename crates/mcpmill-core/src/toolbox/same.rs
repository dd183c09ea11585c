//! Which tools may well do what another does. Tools that do the same cannot stand where none is to fit.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;

use crate::{naming, record::Tool, schema::required};

/// Share of words in common from which tools may do the same.
const SAME: f64 = 0.4;

/// Verbs of tools by what they do to the world. `get` shows one thing on one server and lists them on another.
const EFFECTS: [(&str, &[&str]); 8] = [
    ("show", &["read", "get", "show", "view", "fetch", "describe", "open", "load", "download", "print", "retrieve", "inspect"]),
    (
        "find",
        &["list", "search", "find", "get", "fetch", "query", "browse", "count", "discover", "lookup", "scan", "grep", "filter"],
    ),
    ("make", &["create", "make", "add", "new", "write", "insert", "generate", "register", "save"]),
    ("change", &["update", "edit", "set", "write", "modify", "patch", "replace", "append", "add", "put", "save", "rename"]),
    ("remove", &["delete", "remove", "drop", "clear", "purge", "erase", "forget"]),
    ("move", &["move", "rename", "copy"]),
    ("send", &["send", "post", "publish", "notify", "reply"]),
    ("run", &["run", "execute", "exec", "start", "invoke", "stop", "kill", "cancel"]),
];

/// Words of names that speak of no thing.
const SMALL: [&str; 16] =
    ["a", "all", "an", "and", "by", "for", "from", "in", "many", "mcp", "multiple", "of", "the", "to", "tool", "with"];

/// A tool as others are compared with it.
pub(super) struct Compared<'a> {
    tool: &'a Tool,
    words: HashSet<String>,
    effects: BTreeSet<&'static str>,
    things: BTreeSet<String>,
    needs: BTreeMap<String, String>,
}

impl<'a> Compared<'a> {
    pub(super) fn new(tool: &'a Tool) -> Self {
        let name = naming::words(&tool.name);
        Self { tool, words: words(tool), effects: effects(&name), things: things(tool, &name), needs: needs(tool) }
    }

    /// Shared words of all words of the shorter text, 0 to 1.
    pub(super) fn alike(&self, other: &Tool) -> f64 {
        let other = words(other);
        let least = self.words.len().min(other.len());
        if least == 0 { 0.0 } else { self.words.intersection(&other).count() as f64 / least as f64 }
    }

    /// Whether the other may well do the same: it speaks of the same in most words, is a near copy, or needs the same
    /// for the same thing. On one server tools are there to be told apart: there a verb of another effect (`read`,
    /// `delete`) tells that it does something else.
    pub(super) fn may_be(&self, other: &Tool, is_near: bool) -> bool {
        let name = naming::words(&other.name);
        let theirs = effects(&name);
        let differs = !self.effects.is_empty() && !theirs.is_empty() && self.effects.is_disjoint(&theirs);
        let own = self.tool.server_id == other.server_id;
        if differs && own {
            return false;
        }
        let one_thing = || !self.things.is_disjoint(&things(other, &name)) && self.needs == needs(other);
        is_near || self.alike(other) >= SAME || (!differs && one_thing())
    }
}

/// The words of a tool's name and description, small ones left out.
fn words(tool: &Tool) -> HashSet<String> {
    let text = format!("{} {}", tool.name, tool.description_text()).to_lowercase();
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| w.chars().count() > 3).map(str::to_owned).collect()
}

fn effects(name: &[String]) -> BTreeSet<&'static str> {
    let of =
        |(effect, verbs): &(&'static str, &[&str])| name.iter().any(|word| verbs.contains(&word.as_str())).then_some(*effect);
    EFFECTS.iter().filter_map(of).collect()
}

/// What a tool is about: the words of its name that are no verbs, else those its description begins with.
fn things(tool: &Tool, name: &[String]) -> BTreeSet<String> {
    let is_verb = |word: &String| EFFECTS.iter().any(|(_, verbs)| verbs.contains(&word.as_str()));
    let is_thing = |word: &String| !is_verb(word) && !SMALL.contains(&word.as_str());
    let named: BTreeSet<String> = name.iter().filter(|word| is_thing(word)).cloned().collect();
    if !named.is_empty() {
        return named;
    }
    let first = tool.description_text().split(['.', '\n']).next().unwrap_or_default();
    naming::words(first).into_iter().filter(|word| word.chars().count() > 3 && is_thing(word)).collect()
}

/// Required parameters and their types; a list of things counts as the thing.
fn needs(tool: &Tool) -> BTreeMap<String, String> {
    let schema = tool.schema();
    let kind = |property: &Value| {
        let one = if property["type"] == "array" { &property["items"] } else { property };
        one["type"].as_str().unwrap_or("any").to_owned()
    };
    required(&schema).into_iter().map(|name| (naming::words(&name).join(" "), kind(&schema["properties"][&name]))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{id::ServerId, record::ToolDraft};

    fn tool(server: &str, name: &str, description: &str, needed: &[(&str, &str)]) -> Tool {
        let kind = |kind: &str| {
            if kind == "list" { json!({"type": "array", "items": {"type": "string"}}) } else { json!({"type": kind}) }
        };
        let properties: serde_json::Map<String, Value> = needed.iter().map(|(n, k)| ((*n).to_owned(), kind(k))).collect();
        let names: Vec<&str> = needed.iter().map(|(name, _)| *name).collect();
        let draft = ToolDraft {
            name: name.into(),
            title: None,
            description: Some(description.into()),
            input_schema: json!({"type": "object", "properties": properties, "required": names}),
            output_schema: None,
            annotations: None,
        };
        Tool::new(ServerId(server.into()), draft)
    }

    #[test]
    fn on_one_server_the_verb_tells_apart_and_the_rest_does_not() {
        let path = [("path", "string")];
        let read = tool("a", "read_file", "Read the complete contents of a file as text.", &path);
        let read = Compared::new(&read);
        for (name, description, needed, same) in [
            ("read_text_file", "Handles encodings.", &path[..], true),
            ("readFiles", "Several at once.", &[("paths", "list")][..], true),
            ("file_info", "Size and times.", &path[..], true),
            ("head", "Read the complete contents of a file, first lines only", &[("lines", "integer")][..], true),
            ("write_file", "Writes the complete contents of a file as text.", &path[..], false),
            ("delete_file", "Removes it.", &path[..], false),
            ("search_files", "Finds them.", &path[..], false),
            ("file_lock", "Holds it.", &[("path", "string"), ("owner", "string")][..], false),
            ("directory_tree", "Shows folders.", &path[..], false),
        ] {
            assert_eq!(read.may_be(&tool("a", name, description, needed), false), same, "{name}");
        }
        assert!(read.may_be(&tool("a", "cat", "x", &[]), true), "a near copy");
        assert!(!read.may_be(&tool("a", "delete", "x", &[]), true), "alike, and there to be told apart");
    }

    #[test]
    fn on_another_server_words_are_enough() {
        let delete = tool("a", "delete_note", "Deletes a note of the notebook", &[("id", "string")]);
        let delete = Compared::new(&delete);
        assert!(delete.may_be(&tool("b", "open_note", "A note of the notebook", &[]), false));
        assert!(delete.may_be(&tool("b", "remove_notes", "Away with it", &[("ids", "list")]), false));
        assert!(!delete.may_be(&tool("b", "count_fruit", "Counts fruit", &[("id", "string")]), false));
    }
}
