//! `tool-named`: the instruction names the tool outright, so that nothing is left to choose. Plain words that a person
//! would say are no name. Costs nothing.

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Message, Tool, Verdict},
};

use super::{Bench, Case, Filter, Plant};
use crate::{
    ask::Meter,
    generate::{values::texts, words},
};

/// What a tool is called.
const KINDS: [&str; 6] = ["tool", "function", "command", "endpoint", "api", "method"];
/// How somebody says that one is to be called.
const ORDERS: [&str; 7] = ["use", "using", "call", "calling", "invoke", "run", "execute"];

pub(super) struct ToolNamed {
    pub(super) name: String,
}

#[async_trait]
impl Filter for ToolNamed {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::NamesTool]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let calls = case.messages().iter().flat_map(Message::tool_calls);
        // A word that is itself an argument is spoken of, and calls no tool.
        let values: Vec<String> = calls.flat_map(|call| texts(&call.function.arguments)).collect();
        let tools = case.called.iter().copied().chain([case.tool]);
        let named = tools.flat_map(|tool| case.requests().into_iter().filter_map(move |text| named(text, tool)));
        match named.into_iter().find(|name| !values.iter().any(|value| value.contains(name.as_str()))) {
            Some(name) => bench.drop(format!("tool-named: the instruction names `{name}`")),
            None => bench.keep("ok: the instruction names no tool"),
        }
    }
}

/// The tool's name as `text` spells it out; `None` where it does not.
fn named(text: &str, tool: &Tool) -> Option<String> {
    let words = words(&tool.name);
    let mut spelled = vec![tool.name.clone(), alias(&tool.name), words.join("_")];
    if words.len() > 1 {
        let camel = words.iter().enumerate().map(|(i, word)| if i == 0 { word.clone() } else { capital(word) });
        spelled.push(camel.collect());
        spelled.push(words.iter().map(|word| capital(word)).collect());
    }
    spelled.push(words.join("-"));
    let coded = |name: &&String| name.contains(['_', '.', '/', ':']) || (has_hump(name) && words.len() > 1);
    let found = spelled.iter().filter(coded).find(|name| is_token(text, name));
    // A name with dashes, or of one word, may be what a person says.
    let plain = || spelled.iter().map(|name| name.to_lowercase()).chain([words.join(" ")]);
    found.cloned().or_else(|| plain().find(|name| is_ordered(text, name)))
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect()
}

fn has_hump(name: &str) -> bool {
    name.chars().zip(name.chars().skip(1)).any(|(a, b)| a.is_lowercase() && b.is_uppercase())
}

/// Whether `name` stands alone in `text`; what goes on as a path, a file or another name does not.
fn is_token(text: &str, name: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_-/\\@".contains(c));
    text.match_indices(name).any(|(at, _)| {
        let mut after = text[at + name.len()..].chars();
        let next = after.next();
        let file = next == Some('.') && after.next().is_some_and(char::is_alphanumeric);
        !joins(text[..at].chars().next_back()) && !joins(next) && !file
    })
}

/// Whether `text` orders that the tool `name` be called: "use the search tool", "call `search`".
fn is_ordered(text: &str, name: &str) -> bool {
    let text = text.to_lowercase();
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let coded = before.ends_with('`') && after.starts_with('`');
        let quoted = coded || (before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']));
        let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && !"_-/.".contains(c));
        if !edge(before.chars().next_back()) || after.starts_with(|c: char| c.is_alphanumeric() || "_-/".contains(c)) {
            return false;
        }
        let before = before.trim_end_matches(['`', '"', '\'']).trim_end();
        let after = after.trim_start_matches(['`', '"', '\'']).trim_start();
        let kind = after.split(|c: char| !c.is_alphanumeric()).next().is_some_and(|next| KINDS.contains(&next));
        let mut back = before.split_whitespace().rev();
        let last = back.next().unwrap_or_default();
        let order =
            if matches!(last, "the" | "your" | "a" | "tool" | "function") { back.next().unwrap_or_default() } else { last };
        let ordered = ORDERS.contains(&order);
        (ordered && kind) || (coded && (ordered || kind)) || (quoted && kind)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_told_from_words_that_people_say() {
        for (tool, text, want) in [
            ("read_file", "Use read_file on notes.md.", true),
            ("read_file", "Please call readFile for notes.md.", true),
            ("readFile", "Run `read_file` with notes.md", true),
            ("read-file", "Use the read-file tool on notes.md", true),
            ("read_file", "Use the read file tool on notes.md.", true),
            ("search", "Use the search tool to find tents.", true),
            ("search", "Call `search` for tents.", true),
            ("search", "With the 'search' tool find tents.", true),
            ("fs.read", "Try fs.read on notes.md", true),
            ("search", "Please search for tents.", false),
            ("search", "Use the search results of yesterday.", false),
            ("search", "I call search parties my hobby.", false),
            ("read_file", "Read the file notes.md.", false),
            ("read_file", "Open read_file.py and tell me what it does.", false),
            ("read_file", "What is in docs/read_file?", false),
            ("run-code", "Is run-code a word?", false),
            ("echo", "Say hello and echo it.", false),
            ("time", "Use the time zone of Oslo.", false),
        ] {
            let tool = crate::card::tests::tool(tool, "d", json!({"type": "object"}));
            assert_eq!(named(text, &tool).is_some(), want, "{} {text}", tool.name);
        }
    }
}
