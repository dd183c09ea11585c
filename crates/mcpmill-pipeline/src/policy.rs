//! Which calls may run live. A list in the config decides, not the server's own hints.

use mcpmill_core::{
    json::of_text,
    record::{PolicyDecision, Tool},
};
use serde_json::Value;

use crate::generate::words;

/// Calls that are refused: patterns `server/tool` in which `*` stands for any text.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    refuse: Vec<String>,
}

impl Policy {
    /// A policy that refuses what a pattern matches and lets the rest run.
    ///
    /// # Errors
    /// A pattern without `/`, which would match nothing; the pattern is returned.
    pub fn new(refuse: Vec<String>) -> Result<Self, String> {
        match refuse.iter().find(|p| !p.contains('/')) {
            Some(bad) => Err(bad.clone()),
            None => Ok(Self { refuse }),
        }
    }

    /// The decision for a call, with the rule that made it.
    pub fn decide(&self, server: &str, tool: &str) -> PolicyDecision {
        let name = format!("{server}/{tool}");
        match self.refuse.iter().find(|pattern| matches(pattern, &name)) {
            Some(pattern) => PolicyDecision { allowed: false, rule: pattern.clone() },
            None => PolicyDecision { allowed: true, rule: "default".into() },
        }
    }
}

/// What a tool that only reads begins its name with.
const READS: [&str; 14] = [
    "list", "get", "search", "show", "describe", "read", "find", "fetch", "count", "view", "browse", "query", "lookup", "status",
];
/// What gives away a tool that changes something, wherever it stands in the name.
const WRITES: [&str; 32] = [
    "create", "delete", "remove", "write", "update", "set", "add", "insert", "drop", "move", "rename", "edit", "put", "post",
    "send", "run", "execute", "exec", "start", "stop", "kill", "reset", "clear", "import", "install", "push", "commit", "close",
    "open", "save", "upload", "patch",
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
    let writes = words.iter().any(|word| WRITES.contains(&word.as_str()));
    let says = hints["readOnlyHint"] == Value::Bool(true) || words.first().is_some_and(|word| READS.contains(&word.as_str()));
    says && !writes
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

    #[test]
    fn the_rule_is_named() {
        let policy = Policy::new(vec!["shell/*".into(), "*/delete_*".into()]).unwrap();
        assert_eq!(policy.decide("fs", "delete_file"), PolicyDecision { allowed: false, rule: "*/delete_*".into() });
        assert!(policy.decide("fs", "read_file").allowed);
        assert_eq!(Policy::new(vec!["shell".into()]).unwrap_err(), "shell");
    }
}
