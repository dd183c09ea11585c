//! Tools that go one after the other: what the first brings is what the second wants.
//!
//! A heuristic, by scores that a person can follow. `B` can follow `A` through a required parameter `p` of `B` that
//! is text or a whole number and that `A` does not take itself:
//!
//! | score | when |
//! |---|---|
//! | 1.0 | `A` declares an output property of the name of `p` and a type that fits; on another server only where `p` says what it is the handle of, and where it is no handle, only behind tools that look |
//! | 0.9 | `A` declares an output property `id`, `name`, `path`, `key` or `url`, and `p` is that of a thing `A`'s name speaks of (`issue_id` after `list_issues`) |
//! | 0.8 | `A` declares no output, lists or makes things, and `p` is the handle of a thing its name speaks of; what is made gets an id or an address, its name the person gave |
//! | 0.7 | `A` lists things of `B`'s server, and `p` is the handle that `B` takes for such a thing (`path` of `read_file` after `search_files`) |
//! | 0.6 | `A` lists, and `p` is the handle of a thing of its server that its description speaks of |
//! | 0.5 | `A` reads or fetches a text (its name says `page`, `document`, `message`, …), and `p` is a text to work on (`text`, `content`, `body`, `message`) |
//!
//! An output that could carry anything (`content`, `result`, `data`, …) is no declared output. Nobody hands on the name
//! of what is yet to be made (`create_folder` after `list_folders`). Tools of one server get 0.05 on top: they were made
//! for each other; and 0.3 where the first lists what the second takes a handle of. Twins are never paired, nor tools
//! that a model could not tell apart by name.

use std::collections::{BTreeMap, BTreeSet};

use mcpmill_core::{id::ToolId, naming::alias, record::Tool, schema::required};
use serde::Serialize;
use serde_json::Value;

use super::forms::{self, words};
use crate::card::property_names;

/// Pairs below this are none.
const LEAST: f64 = 0.5;
/// Tools of other servers that are looked at for one handle.
const MOST_OTHERS: usize = 40;
/// Partners of a tool that are kept.
const MOST_PARTNERS: usize = 12;

/// What follows a tool, and through which parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The tool that follows.
    pub tool: ToolId,
    /// Its parameter that takes what the first one brought.
    pub parameter: String,
    /// How sure that is, 0.5 to 1.3.
    pub score: f64,
}

/// Things that consist of text: `read_page`, but not `get_week`.
const TELLING: [&str; 22] = [
    "article",
    "chapter",
    "comment",
    "document",
    "email",
    "file",
    "issue",
    "letter",
    "lyric",
    "mail",
    "message",
    "news",
    "note",
    "page",
    "paper",
    "poem",
    "post",
    "readme",
    "recipe",
    "text",
    "transcript",
    "website",
];

/// Whether a parameter takes a text to work on.
pub(super) fn is_text(parameter: &str) -> bool {
    matches!(&words(parameter)[..], [word] if TEXTS.contains(&word.as_str()))
}

/// What a tool brings, wants and is about.
struct Traits<'a> {
    tool: &'a Tool,
    /// Declared output properties and their types, two levels deep; empty where none is declared.
    brings: BTreeMap<String, String>,
    /// Required parameters that a value can be handed to: as it is called, its words, its type.
    wants: Vec<(String, Vec<String>, String)>,
    /// All parameters, by their words joined.
    takes: BTreeSet<String>,
    /// Things its name speaks of.
    named: BTreeSet<String>,
    /// Things its description speaks of, in the first sentence.
    described: BTreeSet<String>,
    /// Things its name speaks of in the plural.
    several: BTreeSet<String>,
    makes: bool,
    gets: bool,
    lists: bool,
    looks: bool,
    reads: bool,
}

/// A required parameter that a value can be handed to.
struct Want<'a> {
    words: &'a [String],
    kind: &'a str,
    /// What its tool's name speaks of.
    named: &'a BTreeSet<String>,
    /// Whether its tool is on the server of the one before.
    near: bool,
    /// Whether its tool and the one before speak of one thing.
    shared: bool,
}

/// All tools, to find what follows one.
pub struct Chains<'a> {
    traits: Vec<Traits<'a>>,
    /// Places of tools by a word of a parameter they want.
    by_word: BTreeMap<String, Vec<usize>>,
    by_server: BTreeMap<&'a str, Vec<usize>>,
    by_id: BTreeMap<&'a ToolId, usize>,
}

/// Words that say how a thing is named.
const HANDLES: [&str; 9] = ["id", "name", "path", "key", "url", "uri", "number", "slug", "title"];
/// Handles that a thing has only once it is made.
const GIVEN: [&str; 5] = ["id", "key", "url", "uri", "number"];
const MAKES: [&str; 5] = ["create", "add", "make", "generate", "upload"];
const READS: [&str; 9] = ["read", "get", "fetch", "download", "convert", "extract", "transcribe", "summarize", "translate"];
const LISTS: [&str; 7] = ["list", "search", "find", "discover", "browse", "lookup", "tree"];
const GETS: [&str; 2] = ["get", "show"];
const LOOKS: [&str; 7] = ["describe", "check", "inspect", "open", "status", "analyze", "scan"];
/// Verbs whose tools are given the name of what they make, or bring it in from elsewhere.
const NAMES_ANEW: [&str; 4] = ["install", "import", "clone", "copy"];
/// Words of names of tools that read something else about a thing than its text.
const NO_TEXT: [&str; 6] = ["info", "metadata", "media", "outline", "xml", "status"];
/// Verbs of tools whose `message` is a text for somebody: that of a commit is none.
const SENDS: [&str; 6] = ["send", "post", "mail", "reply", "publish", "echo"];
/// Words of names that say nothing of what a tool is about.
const EMPTY: [&str; 3] = ["tool", "mcp", "server"];
/// Things that lie somewhere: what was given as a path is where a search begins, and what it finds lies below.
const PLACED: [&str; 6] = ["file", "folder", "directory", "document", "workbook", "image"];
/// Handles that point at the same thing from everywhere.
const UNIVERSAL: [&str; 2] = ["url", "uri"];
/// Outputs that could carry anything.
const CARRIERS: [&str; 8] = ["content", "text", "result", "data", "output", "value", "message", "response"];
const TEXTS: [&str; 5] = ["text", "content", "body", "message", "markdown"];

impl<'a> Chains<'a> {
    /// Looks at `tools`.
    pub fn new(tools: &[&'a Tool]) -> Self {
        let traits: Vec<Traits> = tools.iter().map(|tool| traits(tool)).collect();
        let mut by_word: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut by_server: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, one) in traits.iter().enumerate() {
            by_server.entry(one.tool.server_id.as_str()).or_default().push(place);
            let words: BTreeSet<&String> = one.wants.iter().flat_map(|(_, words, _)| words).collect();
            words.into_iter().for_each(|word| by_word.entry(word.clone()).or_default().push(place));
        }
        let by_id = traits.iter().enumerate().map(|(place, one)| (&one.tool.id, place)).collect();
        Self { traits, by_word, by_server, by_id }
    }

    /// What can follow `first`, the surest first.
    pub fn after(&self, first: &Tool) -> Vec<Link> {
        let Some(&place) = self.by_id.get(&first.id) else { return Vec::new() };
        let a = &self.traits[place];
        let mut others: BTreeSet<usize> = self.by_server[first.server_id.as_str()].iter().copied().collect();
        let brings = a.brings.keys().flat_map(|name| name.split(' '));
        let things = a.named.iter().chain(&a.described).map(String::as_str);
        let texts = TEXTS.into_iter().filter(|_| a.reads);
        for word in brings.chain(things).chain(texts) {
            others.extend(self.by_word.get(word).into_iter().flatten().take(MOST_OTHERS));
        }
        let mut links: Vec<Link> = others.into_iter().filter_map(|other| link(a, &self.traits[other])).collect();
        links.sort_by(|x, y| y.score.total_cmp(&x.score).then(x.tool.cmp(&y.tool)));
        links.truncate(MOST_PARTNERS);
        links
    }
}

/// How `b` follows `a`, if it does.
fn link(a: &Traits, b: &Traits) -> Option<Link> {
    if a.tool.cluster_id == b.tool.cluster_id || alias(&a.tool.name) == alias(&b.tool.name) {
        return None;
    }
    let near = a.tool.server_id == b.tool.server_id;
    let is_about = |word: &String| ![&MAKES[..], &LISTS, &GETS, &READS, &EMPTY].iter().any(|of| of.contains(&word.as_str()));
    let shared = a.named.intersection(&b.named).any(is_about);
    let scored = b.wants.iter().filter(|(_, words, _)| !names_anew(b, words)).filter_map(|(name, words, kind)| {
        let want = Want { words, kind, named: &b.named, near, shared };
        let score = fit(a, &want);
        let handed = if is_listed(a, &want) { 0.3 } else { 0.05 };
        let score_of_both = if near { score + handed } else { score };
        (score >= LEAST).then(|| Link { tool: b.tool.id.clone(), parameter: name.clone(), score: score_of_both })
    });
    scored.max_by(|x, y| x.score.total_cmp(&y.score).then(y.parameter.cmp(&x.parameter)))
}

/// The last word of a parameter where that is a handle, and what it is the handle of.
fn parts(words: &[String]) -> (Option<&str>, &[String]) {
    match words.split_last() {
        Some((last, thing)) if HANDLES.contains(&last.as_str()) => (Some(last.as_str()), thing),
        _ => (None, words),
    }
}

/// Whether a parameter of `b` names what `b` makes.
fn names_anew(b: &Traits, words: &[String]) -> bool {
    let (handle, thing) = parts(words);
    let anew = forms::makes(b.tool) || NAMES_ANEW.iter().any(|verb| b.named.contains(*verb));
    anew && handle.is_some() && thing.iter().all(|word| b.named.contains(word))
}

/// Whether `a` lists the things that a tool of its server takes a handle of.
fn is_listed(a: &Traits, want: &Want) -> bool {
    let (handle, thing) = parts(want.words);
    let about = if thing.is_empty() { want.shared } else { thing.iter().all(|word| a.named.contains(word)) };
    want.near && a.lists && handle.is_some() && about
}

/// The score of a parameter behind `a`.
fn fit(a: &Traits, want: &Want) -> f64 {
    let (handle, thing) = parts(want.words);
    let bare = handle.filter(|_| thing.is_empty());
    let placed = |word: &str| want.named.contains(word) && (a.named.contains(word) || a.described.contains(word));
    let below = bare == Some("path")
        && a.lists
        && want.near
        && PLACED.iter().any(|word| placed(word))
        && !LISTS.iter().any(|verb| want.named.contains(*verb));
    if a.takes.contains(&want.words.join(" ")) && !below {
        return 0.0;
    }
    // An answer that says again what it was given (`timezone` after `source_timezone`) brings nothing.
    let echo = format!(" {}", want.words.join(" "));
    if handle.is_none() && a.takes.iter().any(|taken| taken.ends_with(&echo)) {
        return 0.0;
    }
    let fits = |found: &str| found == want.kind || found == "any" || want.kind == "string";
    // A bare `id` or `path` means something else on another server, and a bare `name` anywhere; what is no handle
    // (`branch`, `offset`) is handed on where it was looked up.
    let is_own = match (handle, bare) {
        (_, Some(bare)) => bare != "name" && (want.near || UNIVERSAL.contains(&bare)),
        (Some(_), None) => true,
        (None, _) => want.near && (a.looks || a.lists || a.reads),
    };
    if is_own && a.brings.get(&want.words.join(" ")).is_some_and(|found| fits(found)) {
        return 1.0;
    }
    let about = |things: &BTreeSet<String>| !thing.is_empty() && thing.iter().all(|word| things.contains(word));
    let brought = handle.and_then(|handle| a.brings.get(handle)).is_some_and(|found| fits(found));
    if brought && about(&a.named) {
        return 0.9;
    }
    if !a.brings.is_empty() {
        return 0.0;
    }
    let made = a.makes && handle.is_some_and(|handle| GIVEN.contains(&handle));
    if handle.is_some() && ((about(&a.named) && (a.lists || made)) || (a.gets && about(&a.several))) {
        return 0.8;
    }
    if below || (bare.is_some() && is_listed(a, want)) {
        return 0.7;
    }
    if want.near && a.lists && handle.is_some() && about(&a.described) {
        return 0.6;
    }
    let sends = |word: &str| word != "message" || SENDS.iter().any(|verb| want.named.contains(*verb));
    let text = want.kind == "string" && matches!(want.words, [word] if TEXTS.contains(&word.as_str()) && sends(word));
    let has = |of: &[&str]| a.named.iter().any(|word| of.contains(&word.as_str()));
    let tells = has(&TELLING) && !has(&NO_TEXT);
    if a.reads && tells && text { 0.5 } else { 0.0 }
}

fn traits(tool: &Tool) -> Traits<'_> {
    let schema = tool.schema();
    let named: Vec<String> = words(&tool.name);
    let first = tool.description_text().split(['.', '\n']).next().unwrap_or_default();
    let verb = |verbs: &[&str]| named.iter().any(|word| verbs.contains(&word.as_str()));
    let mut brings = BTreeMap::new();
    if let Some(output) = tool.output_schema.as_deref().and_then(|text| mcpmill_core::json::of_text(text).ok()) {
        outputs((&output, &output), 0, &mut brings);
    }
    let handed = |name: String| {
        let kind = schema["properties"][&name]["type"].as_str().filter(|kind| matches!(*kind, "string" | "integer"))?.to_owned();
        let open = schema["properties"][&name]["enum"].is_null();
        open.then(|| (words(&name), kind)).map(|(words, kind)| (name, words, kind))
    };
    Traits {
        brings,
        wants: required(&schema).into_iter().filter_map(handed).collect(),
        takes: property_names(&schema).iter().map(|name| words(name).join(" ")).collect(),
        several: plurals(&tool.name, &named),
        makes: verb(&MAKES),
        gets: verb(&GETS),
        lists: verb(&LISTS),
        looks: verb(&LOOKS),
        reads: verb(&READS),
        named: named.into_iter().collect(),
        described: words(first).into_iter().filter(|word| word.len() > 3).collect(),
        tool,
    }
}

/// The words of a name that stand in the plural there.
fn plurals(name: &str, named: &[String]) -> BTreeSet<String> {
    let low = name.to_lowercase();
    let ends = |word: &str| low.match_indices(word).any(|(at, _)| !low[at + word.len()..].starts_with(char::is_alphabetic));
    named.iter().filter(|word| !ends(word)).cloned().collect()
}

/// The properties of an output schema and their types, and of the things in its lists; not what could carry anything,
/// nor lists and objects themselves, which are no text or number.
fn outputs((root, schema): (&Value, &Value), depth: usize, out: &mut BTreeMap<String, String>) {
    if depth > 2 {
        return;
    }
    let schema = pointed_at(root, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let property = pointed_at(root, property);
        let name = words(name).join(" ");
        if let Some(kind) = scalar(property).filter(|_| !CARRIERS.contains(&name.as_str())) {
            out.entry(name).or_insert_with(|| kind.to_owned());
        }
        outputs((root, property), depth + 1, out);
        outputs((root, &property["items"]), depth + 1, out);
    }
}

/// What a reference within the schema points at, one step.
fn pointed_at<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let path = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    path.and_then(|path| root.pointer(path)).unwrap_or(schema)
}

/// `string`, `integer`, or `any` where no type is declared.
fn scalar(property: &Value) -> Option<&str> {
    let either = ["anyOf", "oneOf"].iter().find_map(|key| property[*key].as_array());
    let kinds: Vec<&Value> = match (&property["type"], either) {
        (Value::Array(kinds), _) => kinds.iter().collect(),
        (Value::Null, Some(either)) => either.iter().map(|one| &one["type"]).collect(),
        (Value::Null, None) => {
            return ["$ref", "allOf", "properties", "items"].iter().all(|key| property[*key].is_null()).then_some("any");
        }
        (kind, _) => vec![kind],
    };
    let mut kinds = kinds.into_iter().filter(|kind| *kind != "null").map(|kind| kind.as_str().unwrap_or_default());
    kinds.next().filter(|kind| matches!(*kind, "string" | "integer")).filter(|_| kinds.next().is_none())
}

#[cfg(test)]
mod tests {
    use mcpmill_core::id::ServerId;
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    fn on(server: &str, name: &str, description: &str, needed: &[(&str, &str)]) -> Tool {
        let properties: serde_json::Map<String, Value> =
            needed.iter().map(|(name, kind)| ((*name).to_owned(), json!({"type": kind}))).collect();
        let names: Vec<&str> = needed.iter().map(|(name, _)| *name).collect();
        let schema = json!({"type": "object", "properties": properties, "required": names});
        Tool { server_id: ServerId(format!("srv_{server}")), ..tool(name, description, schema) }
    }

    fn follows(tools: &[Tool], first: &str) -> Vec<(String, String, f64)> {
        let all: Vec<&Tool> = tools.iter().collect();
        let first = tools.iter().find(|t| t.name == first).unwrap();
        let name = |id: &ToolId| tools.iter().find(|t| t.id == *id).unwrap().name.clone();
        Chains::new(&all).after(first).into_iter().map(|l| (name(&l.tool), l.parameter, l.score)).collect()
    }

    #[test]
    fn what_is_found_can_be_worked_on() {
        let tools = [
            on("a", "list_issues", "Lists issues of a repository", &[("repo", "string")]),
            on("a", "close_issue", "Closes one", &[("issue_id", "integer")]),
            on("a", "get_repo", "Shows a repository", &[("repo", "string")]),
            on("b", "send_message", "Sends something", &[("to", "string"), ("text", "string")]),
            on("b", "label", "Puts a label on it", &[("issueNumber", "integer"), ("label", "string")]),
            on("c", "read_page", "Reads a page", &[("address", "string")]),
            on("c", "get_week", "Shows the week of the year", &[]),
        ];
        let found = follows(&tools, "list_issues");
        assert_eq!(found[0], ("close_issue".into(), "issue_id".into(), 0.8 + 0.3));
        assert_eq!(found[1], ("label".into(), "issueNumber".into(), 0.8), "also on another server");
        assert_eq!(found.len(), 2, "what the first takes itself is not handed on: {found:?}");
        assert_eq!(follows(&tools, "read_page"), [("send_message".into(), "text".into(), 0.5)]);
        assert!(follows(&tools, "get_week").is_empty(), "nobody sends what is no text");
        assert!(follows(&tools, "close_issue").is_empty());
    }

    #[test]
    fn a_declared_output_counts_most_and_its_type_must_fit() {
        let output = json!({"type": "object", "properties": {"found": {"type": "array", "items": {"type": "object",
            "properties": {"document_id": {"type": "string"}, "pages": {"type": "integer"}}}}}});
        let mut search = on("a", "search", "Searches", &[("words", "string")]);
        search.output_schema = Some(output.to_string());
        let tools = [
            search,
            on("b", "open", "Opens", &[("documentId", "string")]),
            on("b", "turn", "Turns", &[("document_id", "integer")]),
            on("b", "post", "Posts", &[("text", "string")]),
        ];
        assert_eq!(follows(&tools, "search"), [("open".into(), "documentId".into(), 1.0)]);
    }

    #[test]
    fn outputs_are_what_they_are_and_carriers_are_none() {
        let time = json!({"type": "object", "$defs": {"zone": {"type": "object", "properties": {"offset": {"type": "string"}}},
            "day": {"type": "string"}}, "properties": {"source": {"$ref": "#/$defs/zone"}, "area": {"type": "string"}, "day": {"$ref": "#/$defs/day"},
            "lost": {"$ref": "elsewhere"}, "tags": {"type": "array", "items": {"type": "string"}}}});
        let content = json!({"type": "object", "properties": {"content": {"type": "string"}}});
        let with = |mut tool: Tool, output: &Value| {
            tool.output_schema = Some(output.to_string());
            tool
        };
        let tools = [
            with(on("a", "convert_time", "Converts", &[("source_zone", "string"), ("from_area", "string")]), &time),
            with(on("a", "set_time", "Sets", &[]), &time),
            on("a", "move_file", "Moves", &[("source", "string"), ("target", "string")]),
            on("a", "plan_day", "Plans", &[("day", "string")]),
            on("a", "shift", "Shifts", &[("offset", "string")]),
            on("b", "drift", "Drifts", &[("offset", "string")]),
            on("a", "paint", "Paints", &[("area", "string")]),
            on("a", "mark", "Marks", &[("tags", "string"), ("lost", "string")]),
            with(on("c", "list_folders", "Lists", &[]), &content),
            with(on("c", "read_file", "Reads", &[("path", "string")]), &content),
            on("c", "write_file", "Writes", &[("path", "string"), ("content", "string")]),
        ];
        let names = |first: &str| -> Vec<String> { follows(&tools, first).into_iter().map(|(name, ..)| name).collect() };
        let mut after_time = names("convert_time");
        after_time.sort_unstable();
        assert_eq!(after_time, ["plan_day", "shift"], "no object is a text; what is in it may be");
        assert!(names("set_time").is_empty(), "nobody sets what he wants to know");
        assert!(names("list_folders").is_empty(), "`content` of a list is nothing to write");
        assert_eq!(follows(&tools, "read_file"), [("write_file".into(), "content".into(), 0.5 + 0.05)]);
    }

    #[test]
    fn what_a_server_lists_goes_before_what_others_take() {
        let path = [("path", "string")];
        let tools = [
            on("a", "search_files", "Searches", &[("path", "string"), ("words", "string")]),
            on("a", "read_file", "Reads", &path),
            on("a", "make_folder", "Makes", &path),
            on("b", "open_file", "Opens", &path),
        ];
        assert_eq!(follows(&tools, "search_files"), [("read_file".into(), "path".into(), 0.7 + 0.3)]);
        let id = json!({"type": "object", "properties": {"id": {"type": "string"}}});
        let mut make = on("a", "make_list", "Makes", &[]);
        make.output_schema = Some(id.to_string());
        let tools = [make, on("a", "fill", "Fills", &[("id", "string")]), on("b", "pay", "Pays", &[("id", "string")])];
        assert_eq!(follows(&tools, "make_list"), [("fill".into(), "id".into(), 1.0 + 0.05)], "an id is its server's own");
    }

    #[test]
    fn nobody_hands_on_what_is_named_anew_or_known_already() {
        let path = [("path", "string")];
        let tools = [
            on("a", "list_folders", "Lists", &[]),
            on("a", "create_folder", "Makes", &path),
            on("a", "open_folder", "Opens", &path),
            on("a", "get_file_info", "Shows facts", &path),
            on("a", "count_lines", "Counts", &[("file_path", "string")]),
            on("b", "get_symbols", "Shows symbols of a file", &path),
            on("b", "get_symbol_body", "Shows one", &[("symbol_name", "string")]),
            on("c", "create_table", "Makes", &[("columns", "string")]),
            on("c", "drop_table", "Drops", &[("table_name", "string")]),
            on("c", "create_ticket", "Makes", &[("title", "string")]),
            on("c", "drop_ticket", "Drops", &[("ticket_id", "string")]),
            on("c", "send", "Sends", &[("message", "string")]),
            on("c", "commit", "Commits", &[("message", "string")]),
            on("c", "read_page", "Reads", &[("address", "string")]),
            on("c", "get_page_info", "Shows facts", &[("address", "string")]),
        ];
        let names = |first: &str| -> Vec<String> { follows(&tools, first).into_iter().map(|(name, ..)| name).collect() };
        assert_eq!(names("list_folders"), ["open_folder"], "a new folder is none of those that are there");
        assert!(names("get_file_info").is_empty(), "who asks about a file knows where it is");
        assert_eq!(names("get_symbols"), ["get_symbol_body"]);
        assert!(names("create_table").is_empty(), "who makes a table names it");
        assert_eq!(names("create_ticket"), ["drop_ticket"], "an id comes with the making");
        assert_eq!(names("read_page"), ["send"], "a page is no message of a commit");
        assert!(names("get_page_info").is_empty());
    }

    #[test]
    fn twins_and_namesakes_are_no_pair() {
        let mut twin = on("b", "list_notes", "Lists notes", &[("note_id", "string")]);
        let first = on("a", "list_notes", "Lists notes", &[]);
        let mut same = on("c", "note", "One", &[("note_id", "string")]);
        same.cluster_id = first.cluster_id.clone();
        twin.id = ToolId("tool_twin".into());
        assert!(follows(&[first, twin, same], "list_notes").is_empty());
    }
}
