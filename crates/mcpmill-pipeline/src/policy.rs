//! Which calls may run live: what the settings name, then what only reads, then what can do no harm because its world is
//! thrown away. A server's own hints are hints: what is said in them can only make a call stricter, never excuse its name.

use std::collections::BTreeSet;

use mcpmill_core::{
    id::ServerId,
    json::of_text,
    record::{Launch, PolicyDecision, ServerRecord, Tool},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::generate::words;

/// Where calls that change things may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Changes {
    /// Nowhere: only what is judged to read runs.
    Nowhere,
    /// Where the world is thrown away afterwards: servers of this machine without a network.
    #[default]
    Disposable,
    /// Everywhere, also on servers that others use.
    Anywhere,
}

/// Which calls run: patterns `server/tool`, in which `*` stands for any text, then what a server reaches and a tool does.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    refuse: Vec<String>,
    allow: Vec<String>,
    changes: Changes,
    networked: BTreeSet<ServerId>,
}

impl Policy {
    /// A policy that refuses what a pattern matches, and lets run what reads or has a disposable world.
    ///
    /// # Errors
    /// A pattern without `/`, which would match nothing; the pattern is returned.
    pub fn new(refuse: Vec<String>) -> Result<Self, String> {
        match refuse.iter().find(|p| !p.contains('/')) {
            Some(bad) => Err(bad.clone()),
            None => Ok(Self { refuse, ..Self::default() }),
        }
    }

    /// With patterns of calls that run whatever they do, unless they are refused, and where calls that change things may.
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn allowing(self, allow: Vec<String>, changes: Changes) -> Result<Self, String> {
        match allow.iter().find(|p| !p.contains('/')) {
            Some(bad) => Err(bad.clone()),
            None => Ok(Self { allow, changes, ..self }),
        }
    }

    /// With the servers that have the network, whose worlds nobody can throw away.
    #[must_use]
    pub fn with_networked(self, networked: BTreeSet<ServerId>) -> Self {
        Self { networked, ..self }
    }

    /// The decision for a call of a tool, with the rule that made it and why.
    pub fn decide(&self, server: &ServerRecord, tool: &Tool) -> PolicyDecision {
        let name = format!("{}/{}", server.name, tool.name);
        let of = |patterns: &[String]| patterns.iter().find(|pattern| matches(pattern, &name)).cloned();
        let decision = |allowed: bool, rule: &str, why: &str| PolicyDecision { allowed, rule: rule.into(), why: why.into() };
        if let Some(pattern) = of(&self.refuse) {
            return decision(false, &pattern, "refused by a pattern of the settings");
        }
        if let Some(pattern) = of(&self.allow) {
            return decision(true, &pattern, "allowed by a pattern of the settings");
        }
        let reads = reads_only(tool, &server.name);
        let local = matches!(server.launch, Launch::Stdio { .. }) && !self.networked.contains(&server.id);
        match (reads, self.changes) {
            (true, _) if says_it_reads(tool) => decision(true, READ_ONLY, "it says that it only reads, and its name agrees"),
            (true, _) => decision(true, READ_ONLY, "its name says that it only reads"),
            (false, Changes::Disposable) if local => {
                decision(true, DISPOSABLE, "its world is thrown away, and it has no network")
            }
            (false, Changes::Anywhere) => decision(true, ANYWHERE, "the settings let calls that change things run anywhere"),
            (false, _) => decision(false, MAY_CHANGE, "it may change things, and its world is not thrown away"),
        }
    }
}

/// The rules that are no patterns.
const READ_ONLY: &str = "read-only";
const DISPOSABLE: &str = "disposable-world";
const ANYWHERE: &str = "anywhere";
const MAY_CHANGE: &str = "may-change";

/// What a tool that only reads begins its name with.
const READS: [&str; 14] = [
    "list", "get", "search", "show", "describe", "read", "find", "fetch", "count", "view", "browse", "query", "lookup", "status",
];
/// What gives away a tool that changes something, wherever it stands in the name.
const WRITES: [&str; 52] = [
    "create", "delete", "remove", "write", "update", "set", "add", "insert", "drop", "move", "rename", "edit", "put", "post",
    "send", "run", "execute", "exec", "start", "stop", "kill", "reset", "clear", "import", "install", "push", "commit", "close",
    "open", "save", "upload", "patch", "archive", "merge", "approve", "cancel", "buy", "pay", "transfer", "publish", "submit",
    "enable", "disable", "restart", "invite", "toggle", "truncate", "grant", "revoke", "deploy", "purge", "erase",
];

/// Whether a tool can be taken to change nothing. What it says of itself counts where it says that it writes; that it
/// only reads it may say, or its name: by its first word, with none in it that changes things. A name may begin with
/// that of its server.
pub fn reads_only(tool: &Tool, server: &str) -> bool {
    let hints = tool.annotations.as_deref().and_then(|text| of_text(text).ok()).unwrap_or_default();
    let of_server = words(server);
    let words: Vec<String> = words(&tool.name).into_iter().skip_while(|word| word == "mcp" || of_server.contains(word)).collect();
    if hints["readOnlyHint"] == Value::Bool(false) || hints["destructiveHint"] == Value::Bool(true) {
        return false;
    }
    let writes = words.iter().any(|word| WRITES.contains(&word.as_str())) || is_told_to_write(tool);
    let says = hints["readOnlyHint"] == Value::Bool(true) || words.first().is_some_and(|word| READS.contains(&word.as_str()));
    says && !writes
}

/// Whether the description begins with a word that changes things: "Deletes a note". Of two that contradict each other the
/// stricter counts.
fn is_told_to_write(tool: &Tool) -> bool {
    let first = words(tool.description_text().split_whitespace().next().unwrap_or_default()).into_iter().next();
    let is =
        |word: &str| WRITES.contains(&word) && !matches!(word, "open" | "post" | "set" | "put" | "close" | "run" | "execute");
    first.is_some_and(|word| {
        let cut = |end: &str| word.strip_suffix(end).is_some_and(|stem| is(stem) || is(&format!("{stem}e")));
        is(&word) || cut("s") || cut("es") || cut("ing")
    })
}

/// Whether a tool says of itself that it only reads.
fn says_it_reads(tool: &Tool) -> bool {
    let hints = tool.annotations.as_deref().and_then(|text| of_text(text).ok()).unwrap_or_default();
    hints["readOnlyHint"] == Value::Bool(true)
}

/// Whether `text` is what `pattern` says, `*` standing for any text.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, want) in [
            ("shell/*", "shell/run", true),
            ("shell/*", "shells/run", false),
            ("*/run_*", "x/run_code", true),
            ("*/run*code", "x/run_the_code", true),
            ("*/run*code", "x/run_the_codes", false),
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn what_only_reads_is_told_by_hint_or_name_and_never_against_a_hint() {
        for (name, hints, want) in [
            ("list_files", None, true),
            ("listFiles", None, true),
            ("get-schema", None, true),
            ("search_and_delete", None, false),
            ("list_files", Some(r#"{"readOnlyHint": false}"#), false),
            ("list_files", Some(r#"{"destructiveHint": true}"#), false),
            ("tables", None, false),
            ("tables", Some(r#"{"readOnlyHint": true}"#), true),
            ("delete_all", Some(r#"{"readOnlyHint": true}"#), false),
            ("gettysburg", None, false),
            ("mcp_notes_getAll", None, true),
            ("mail_list_unsubscribe", None, false),
        ] {
            let tool = crate::card::tests::tool(name, "d", serde_json::json!({"type": "object"}));
            assert_eq!(reads_only(&Tool { annotations: hints.map(str::to_owned), ..tool }, "my-notes"), want, "{name} {hints:?}");
        }
    }

    fn server(launch: Launch) -> ServerRecord {
        mcpmill_testkit::server("desk", launch)
    }

    fn local() -> ServerRecord {
        server(Launch::Stdio { command: "npx".into(), args: vec!["desk".into()] })
    }

    fn tool(name: &str, description: &str, hints: Option<&str>) -> Tool {
        let tool = crate::card::tests::tool(name, description, serde_json::json!({"type": "object"}));
        Tool { annotations: hints.map(str::to_owned), ..tool }
    }

    #[test]
    fn the_rule_is_named() {
        let policy = Policy::new(vec!["ink/*".into(), "*/delete_*".into()]).unwrap();
        let decided = policy.decide(&local(), &tool("delete_file", "d", None));
        assert_eq!((decided.allowed, decided.rule.as_str()), (false, "*/delete_*"));
        assert!(policy.decide(&local(), &tool("read_file", "d", None)).allowed);
        assert_eq!(Policy::new(vec!["shell".into()]).unwrap_err(), "shell");
        assert_eq!(policy.allowing(vec!["shell".into()], Changes::default()).unwrap_err(), "shell");
    }

    #[test]
    fn what_changes_things_runs_only_where_its_world_is_thrown_away() {
        let remote = server(
            serde_json::from_value(serde_json::json!({"type": "streamable-http", "url": "https://mill.example/mcp"})).unwrap(),
        );
        let networked = Policy::default().with_networked([local().id].into());
        let rule = |policy: &Policy, server: &ServerRecord, tool: &Tool| {
            let decision = policy.decide(server, tool);
            assert!(!decision.why.is_empty());
            (decision.allowed, decision.rule)
        };
        let (yes, no) = (Some(r#"{"readOnlyHint": true}"#), Some(r#"{"readOnlyHint": false}"#));
        let want = |allowed: bool, rule: &str| (allowed, rule.to_owned());
        for writes in [
            tool("write_note", "Writes a note", None),
            tool("tables", "d", None),
            // Tools that lie.
            tool("delete_all", "Lists notes", yes),
            tool("list_notes", "Deletes all notes", yes),
            tool("get_notes", "Removing every note", None),
            tool("list_notes", "Lists notes", no),
            tool("notes", "Creates notes", yes),
        ] {
            assert_eq!(rule(&Policy::default(), &local(), &writes), want(true, "disposable-world"), "{}", writes.name);
            assert_eq!(rule(&Policy::default(), &remote, &writes), want(false, "may-change"), "{}", writes.name);
            assert_eq!(rule(&networked, &local(), &writes), want(false, "may-change"), "{}", writes.name);
        }
        for reads in [tool("list_notes", "Lists notes", None), tool("tables", "Shows tables", yes)] {
            assert_eq!(rule(&networked, &local(), &reads), want(true, "read-only"));
            assert_eq!(rule(&Policy::default(), &remote, &reads), want(true, "read-only"));
        }
        let writes = tool("write_note", "Writes a note", None);
        let with = |allow: &[&str], changes| {
            Policy::default().allowing(allow.iter().map(|p| (*p).to_owned()).collect(), changes).unwrap()
        };
        assert_eq!(rule(&with(&["desk/write_*"], Changes::Nowhere), &remote, &writes), want(true, "desk/write_*"));
        assert_eq!(rule(&with(&[], Changes::Nowhere), &local(), &writes), want(false, "may-change"));
        assert_eq!(rule(&with(&[], Changes::Anywhere), &remote, &writes), want(true, "anywhere"));
    }
}
