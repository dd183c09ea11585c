//! Which calls may run live. A list in the config decides, not the server's own hints.

use mcpmill_core::record::PolicyDecision;

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
    fn the_rule_is_named() {
        let policy = Policy::new(vec!["shell/*".into(), "*/delete_*".into()]).unwrap();
        assert_eq!(policy.decide("fs", "delete_file"), PolicyDecision { allowed: false, rule: "*/delete_*".into() });
        assert!(policy.decide("fs", "read_file").allowed);
        assert_eq!(Policy::new(vec!["shell".into()]).unwrap_err(), "shell");
    }
}
