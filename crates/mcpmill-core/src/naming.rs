//! Tool names that every provider accepts, and the way back.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::{canonical::sha256_hex, id::ToolId, record::Tool};

/// Longest name providers accept, in bytes.
const LONGEST: usize = 64;

/// Hex digits of a tail: 64 bits.
const TAIL: usize = 16;

/// Longer tails, for a set of names in which two of the usual length meet.
const LONGER_TAILS: [usize; 2] = [32, 48];

/// What stands before the digits of a tail.
const MARK: &str = "_x";

/// The name under which a tool is offered: `[A-Za-z0-9_-]{1,64}`.
///
/// A name that fits stays. Others have their foreign characters replaced and end in a tail, `_x`
/// and sixteen digits of the hash of the whole name; so does a name that fits but ends like a tail. A
/// plain name and an alias with a tail thus never meet, and two with tails only when their hashes do
/// ([`Aliases`] makes sure of that for the tools of one request).
pub fn alias(name: &str) -> String {
    fit(name, is_plain)
}

/// The name under which a property is shown: `[A-Za-z0-9_.-]{1,64}`, by the rule of [`alias`].
pub(crate) fn property_alias(name: &str) -> String {
    fit(name, |c| is_plain(c) || c == '.')
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn fit(name: &str, fits: impl Fn(char) -> bool) -> String {
    let plain = !name.is_empty() && name.len() <= LONGEST && name.chars().all(&fits);
    if plain && !has_tail(name) { name.to_owned() } else { with_tail(name, &sha256_hex(name)[..TAIL], fits) }
}

/// Whether a name ends as an alias does, whatever the length of the tail.
fn has_tail(name: &str) -> bool {
    let is_digits = |digits: &str| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    [TAIL].into_iter().chain(LONGER_TAILS).any(|length| {
        let tail = name.len().checked_sub(MARK.len() + length).and_then(|at| name.get(at..));
        tail.and_then(|t| t.strip_prefix(MARK)).is_some_and(is_digits)
    })
}

fn with_tail(name: &str, digits: &str, fits: impl Fn(char) -> bool) -> String {
    let room = LONGEST - MARK.len() - digits.len();
    let head: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(room).collect();
    head + MARK + digits
}

/// Two tools of a set have one alias however long its tail: no two real names do.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("failed to name tools apart: `{first}` and `{second}` are both `{alias}`")]
pub struct AliasError {
    /// What both are called.
    pub alias: String,
    /// The one, as `server/tool`.
    pub first: String,
    /// The other, as `server/tool`.
    pub second: String,
}

/// A server and a tool of it, by their own names.
type Key = (String, String);

/// Aliases of a set of tools that are offered together, and whose they are.
///
/// A tool has [`alias`] of its name where no other tool of the set has that. Tools of different
/// servers that would share one are all called `server__tool` with a tail over both names: none of
/// them is the real one. The order in which tools are given does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    by_alias: BTreeMap<String, Key>,
    by_key: BTreeMap<Key, String>,
}

impl Aliases {
    /// The aliases of `(server, tool)` names; a pair that comes twice counts once.
    ///
    /// # Errors
    /// Two pairs cannot be named apart.
    pub fn new<S: Into<String>, T: Into<String>>(tools: impl IntoIterator<Item = (S, T)>) -> Result<Self, AliasError> {
        Self::with_hash(tools.into_iter().map(|(s, t)| (s.into(), t.into())).collect(), &|text| sha256_hex(text))
    }

    fn with_hash(keys: BTreeSet<Key>, hash: &dyn Fn(&str) -> String) -> Result<Self, AliasError> {
        let mut by_key: BTreeMap<Key, String> = keys.into_iter().map(|key| (key.clone(), alias(&key.1))).collect();
        for length in [TAIL].into_iter().chain(LONGER_TAILS) {
            let shared = shared(&by_key);
            for (key, alias) in by_key.iter_mut().filter(|(_, alias)| shared.contains(*alias)) {
                // The length keeps `a`, `b__c` and `a__b`, `c` apart.
                let whole = format!("{}\n{}\n{}", key.0.len(), key.0, key.1);
                *alias = with_tail(&format!("{}__{}", key.0, key.1), &hash(&whole)[..length], is_plain);
            }
        }
        let mut by_alias: BTreeMap<String, Key> = BTreeMap::new();
        for (key, alias) in &by_key {
            if let Some(other) = by_alias.insert(alias.clone(), key.clone()) {
                let name = |(server, tool): &Key| format!("{server}/{tool}");
                return Err(AliasError { alias: alias.clone(), first: name(&other), second: name(key) });
            }
        }
        Ok(Self { by_alias, by_key })
    }

    /// What each of these tools is called, with the name of its server. Of tools of one server that share a name the
    /// first by id is called as if it were alone, and the others as if their id stood behind the name.
    ///
    /// # Errors
    /// Two tools cannot be named apart.
    pub fn of_tools<'t, S: Into<String>>(
        tools: impl IntoIterator<Item = (S, &'t Tool)>,
    ) -> Result<BTreeMap<ToolId, String>, AliasError> {
        let by_id: BTreeMap<&ToolId, Key> =
            tools.into_iter().map(|(server, tool)| (&tool.id, (server.into(), tool.name.clone()))).collect();
        let mut keys: BTreeMap<Key, &ToolId> = BTreeMap::new();
        for (id, key) in by_id.iter().rev() {
            keys.insert(key.clone(), id);
        }
        for (id, mut key) in by_id {
            // A name may end in the id of another tool, as strange as that is.
            while keys.get(&key).is_some_and(|owner| *owner != id) {
                key.1 = format!("{} {id}", key.1);
            }
            keys.insert(key, id);
        }
        let aliases = Self::new(keys.keys().cloned())?;
        let named = keys.into_iter().filter_map(|(key, id)| Some((id.clone(), aliases.by_key.get(&key)?.clone())));
        Ok(named.collect())
    }

    /// What a tool of the set is called.
    pub fn alias(&self, server: &str, tool: &str) -> Option<&str> {
        self.by_key.get(&(server.to_owned(), tool.to_owned())).map(String::as_str)
    }

    /// Server and tool that an alias stands for.
    pub fn original(&self, alias: &str) -> Option<(&str, &str)> {
        self.by_alias.get(alias).map(|(server, tool)| (server.as_str(), tool.as_str()))
    }

    /// `(alias, server, tool)` of every tool, by alias.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.by_alias.iter().map(|(alias, (server, tool))| (alias.as_str(), server.as_str(), tool.as_str()))
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.by_alias.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_alias.is_empty()
    }
}

/// The aliases that more than one tool has.
fn shared(by_key: &BTreeMap<Key, String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    by_key.values().filter(|alias| !seen.insert(*alias)).cloned().collect()
}

/// The words of a name, in lower case and in the singular: `issueIds` is `issue`, `id`.
pub fn words(name: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut fresh = true;
    let mut low = false;
    for c in name.chars() {
        if !c.is_alphanumeric() {
            fresh = true;
            continue;
        }
        if fresh || (c.is_uppercase() && low) {
            out.push(String::new());
        }
        (fresh, low) = (false, c.is_lowercase());
        out.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
    }
    out.into_iter().map(singular).collect()
}

fn singular(word: String) -> String {
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| stem.len() > 2) {
        return format!("{stem}y");
    }
    let plural = word.len() > 2 && word.ends_with('s') && !["ss", "us", "is"].iter().any(|end| word.ends_with(end));
    if plural { word[..word.len() - 1].to_owned() } else { word }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn assert_fits(alias: &str) {
        assert!(!alias.is_empty() && alias.len() <= 64, "{alias}");
        assert!(alias.chars().all(is_plain), "{alias}");
    }

    #[test]
    fn safe_names_stay_and_others_become_safe_and_stay_apart() {
        let long = "x".repeat(80);
        let names =
            ["read_file", "nasa/apod", "nasa apod", "nasa_apod", "天气", "查询", "", " ", &long, &long[1..], "a_b_x123456"];
        assert_eq!(alias("read_file"), "read_file");
        assert_eq!(alias("a_b_x123456"), "a_b_x123456");
        let different: HashSet<String> = names.into_iter().map(alias).collect();
        assert_eq!(different.len(), names.len());
        names.into_iter().map(alias).for_each(|a| assert_fits(&a));
    }

    #[test]
    fn a_name_that_is_anothers_alias_does_not_meet_it() {
        let mut name = "a/b".to_owned();
        let mut seen = HashSet::from([name.clone()]);
        for _ in 0..20 {
            name = alias(&name);
            assert_fits(&name);
            assert!(seen.insert(name.clone()), "{name} came twice");
        }
    }

    #[test]
    fn long_prefixed_names_stay_apart() {
        let prefix = format!("mcp__{}__", "server".repeat(12));
        let names: Vec<String> = (0..500).map(|i| format!("{prefix}{i}")).collect();
        let different: HashSet<String> = names.iter().map(|n| alias(n)).collect();
        assert_eq!(different.len(), names.len());
        different.iter().for_each(|a| assert_fits(a));
    }

    /// Names drawn from few letters, so that many differ only in foreign characters, and their
    /// aliases among them.
    #[test]
    fn aliases_of_many_names_are_one_to_one() {
        let letters = ['a', '_', '/', ' ', '.', '-', 'x', '0', 'é', '天'];
        let mut names: HashSet<String> = HashSet::new();
        let mut state = 7_u64;
        while names.len() < 20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut rest = state >> 8;
            let name: String = (0..state >> 61).map(|_| (letters[(rest % 10) as usize], rest /= 10).0).collect();
            names.insert(alias(&name));
            names.insert(name);
        }
        let different: HashSet<String> = names.iter().map(|n| alias(n)).collect();
        assert_eq!(different.len(), names.len());
        different.iter().for_each(|a| assert_fits(a));
    }

    #[test]
    fn one_name_of_three_servers_is_three_aliases_in_any_order() {
        let tools = [("east", "send_note"), ("west", "send_note"), ("north", "send-note"), ("north", "send_note")];
        let aliases = Aliases::new(tools).unwrap();
        assert_eq!(aliases.len(), 4);
        assert_eq!(aliases.alias("north", "send-note"), Some("send-note"));
        for (server, tool) in tools {
            let alias = aliases.alias(server, tool).unwrap();
            assert_fits(alias);
            assert_eq!(aliases.original(alias), Some((server, tool)));
        }
        assert!(aliases.alias("west", "send_note").unwrap().starts_with("west__send_note_x"));
        assert_eq!(aliases.original("send_note"), None, "nobody is the real one");
        let mut turned = tools;
        turned.reverse();
        assert_eq!(Aliases::new(turned).unwrap(), aliases);
        assert_eq!(Aliases::new(tools.iter().chain(&tools).copied()).unwrap(), aliases);
    }

    #[test]
    fn tools_of_one_server_and_name_are_told_apart_and_the_first_keeps_its_alias() {
        let tool = |name: &str, id: &str| Tool { id: ToolId(id.to_owned()), ..tool(name) };
        let tools =
            [tool("a", "t3"), tool("a", "t1"), tool("a", "t2"), tool("b", "t4"), tool("a t2", "t5"), tool("a t2 t2", "t6")];
        let names = Aliases::of_tools(tools.iter().map(|tool| ("s", tool))).unwrap();
        let name = |id: &str| names[&ToolId(id.to_owned())].as_str();
        assert_eq!((name("t1"), name("t4"), name("t5")), ("a", "b", alias("a t2").as_str()));
        assert_eq!(names.values().collect::<HashSet<_>>().len(), tools.len());
        names.values().for_each(|name| assert_fits(name));
        let turned = Aliases::of_tools(tools.iter().rev().map(|tool| ("s", tool))).unwrap();
        assert_eq!(turned, names);
    }

    fn tool(name: &str) -> Tool {
        let draft = crate::record::ToolDraft {
            name: name.to_owned(),
            title: None,
            description: None,
            input_schema: serde_json::json!({}),
            output_schema: None,
            annotations: None,
        };
        Tool::new(crate::id::ServerId("s".to_owned()), draft)
    }

    #[test]
    fn joined_names_do_not_meet() {
        let tools = [("a", "b__c"), ("a__b", "c"), ("z", "b__c"), ("z", "c")];
        let aliases = Aliases::new(tools).unwrap();
        assert_eq!(aliases.iter().map(|(alias, ..)| alias).collect::<HashSet<_>>().len(), 4);
    }

    #[test]
    fn a_hash_that_meets_another_gets_a_longer_tail_and_then_an_error() {
        let keys = || BTreeSet::from([("s".to_owned(), "t".to_owned()), ("s ".to_owned(), "t".to_owned())]);
        let late = |text: &str| format!("{}{}", "0".repeat(20), sha256_hex(text));
        let aliases = Aliases::with_hash(keys(), &late).unwrap();
        assert_eq!(aliases.len(), 2);
        // A long server name hides the difference between the heads.
        let long = |end: &str| ("s".repeat(60) + end, "t".to_owned());
        let keys = || BTreeSet::from([long("a"), long("b")]);
        let aliases = Aliases::with_hash(keys(), &late).unwrap();
        assert!(aliases.iter().all(|(alias, ..)| has_tail(alias) && alias.len() == 64), "{aliases:?}");
        let error = Aliases::with_hash(keys(), &|_| "0".repeat(64)).unwrap_err();
        assert!(error.to_string().contains("name tools apart"), "{error}");
    }

    #[test]
    fn names_become_words() {
        for (name, want) in [
            ("issueIds", "issue id"),
            ("list_repositories", "list repository"),
            ("HTTPStatus", "httpstatus"),
            ("ticket-number", "ticket number"),
            ("address", "address"),
            ("as", "as"),
        ] {
            assert_eq!(words(name).join(" "), want, "{name}");
        }
    }
}
